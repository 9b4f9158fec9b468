/* Walks the table of operations: whoever adds a row and forgets a piece of it reads here which. */
#include "check/check.h"
#include "check/draw_site.h"
#include "check/fence.h"
#include "eager/eager.h"
#include "op/op.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Features that no eager operation has yet: quantised weights. */
static const uint64_t LATER = TN_HAS_SCALES | TN_HAS_ZERO_POINTS;

static tn_status eager_forward(const tn_call *call, tn_error *err)
{
    return run_alone(&cpu_device, NULL, NULL, call, err);
}

static tn_status eager_backward(const tn_call *call, tn_error *err)
{
    return run_alone(&cpu_device, NULL, NULL, call, err);
}

/* ---- what is done with each site ------------------------------------------------------------------------------ */

/* Every output is written, and with numbers. */
static void expect_results(const tn_site *site)
{
    tn_error err = TN_ERROR_INIT;
    check_reference r;
    check_case size = {.batch = 2, .tokens = 5};
    tn_status status = check_reference_open(&r, &cpu_device, site, UINT32_MAX, size, &err);
    ck_assert_msg(status == TN_OK, "%s: eager: %s", site->path, err.message);
    ck_assert_msg(op_check_call(&r.call, &err) == TN_OK, "%s: a drawn call does not fit: %s", site->path, err.message);
    ck_assert_msg(op_operations(&r.call) > 0, "%s: no work", site->path);
    ck_assert_msg(op_bytes(&r.call) > 0, "%s: no bytes", site->path);
    for (int i = 0; i < r.call.out_count; i++) {
        const tn_tensor *t = &r.call.out[i];
        for (int64_t j = 0; t->dtype == TN_F32 && j < tn_tensor_count(t); j++)
            ck_assert_msg(isfinite(((const float *)t->data)[j]), "%s: output %d has no number at %lld", site->path, i,
                          (long long)j);
    }
    check_reference_close(&r);
}

/* Drawing, fences, comparing and gradients all know it: eager, taken for a kernel, is right by its own measure. */
static void expect_checkable(const tn_site *site)
{
    tn_error err = TN_ERROR_INIT;
    tn_impl impl = {.size = sizeof impl, .op = site->op, .forward = eager_forward, .backward = eager_backward};
    check_subject subject = {.device = &cpu_device, .site = site, .impl = &impl, .gradients = true};
    const check_case cases[] = {{.batch = 1, .tokens = 1}, {.batch = 2, .tokens = 9}};
    tn_status status = check_site(&subject, cases, 2, NULL, &err);
    ck_assert_msg(status == TN_OK, "%s (layout %s, norm %s, features 0x%llx): %s", site->path,
                  tn_axis_value_name(TN_AXIS_LAYOUT, site->meaning[TN_AXIS_LAYOUT]),
                  tn_axis_value_name(TN_AXIS_NORM, site->meaning[TN_AXIS_NORM]), (unsigned long long)site->features,
                  err.message);
}

static void try_site(const tn_site *like)
{
    tn_error err = TN_ERROR_INIT;
    draw_site d;
    tn_status status = draw_site_open(&d, like, 7, &err);
    ck_assert_msg(status == TN_OK, "%s (features 0x%llx): %s", like->path, (unsigned long long)like->features,
                  err.message);
    expect_results(&d.site);
    expect_checkable(&d.site);
    draw_site_close(&d);
}

/* Each layout and norm without features and with each feature alone, and all of them together. */
static void try_variants(const op_row *row, tn_site site)
{
    uint64_t features = row->features & ~LATER;
    try_site(&site);
    for (int bit = 0; bit < 64; bit++)
        if (features >> bit & 1) {
            tn_site with = site;
            draw_site_add(&with, UINT64_C(1) << bit);
            try_site(&with);
        }
}

static void each_value(const op_row *row, tn_axis axis, tn_site site, tn_axis next)
{
    bool has = row->needs >> axis & 1;
    for (int32_t v = 1; v <= (has ? op_last_value(axis) : 1); v++) {
        if (has && !draw_site_has_value(row->op, axis, v))
            continue;
        if (has)
            site.meaning[axis] = v;
        if (next == axis)
            try_variants(row, site);
        else
            each_value(row, next, site, next);
    }
}

/* why NULL: whatever is said of it. */
static void expect_wrong(tn_site site, const char *why)
{
    tn_error err = TN_ERROR_INIT;
    draw_site d;
    ck_assert_msg(draw_site_open(&d, &site, 1, &err) == TN_E_USAGE, "%s", why ? why : tn_op_name(site.op));
    if (why)
        ck_assert_str_eq(err.message, why);
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

START_TEST(every_contract_is_whole)
{
    const op_row *row = op_at((size_t)_i);
    if (row->kind != OP_CONTRACT)
        return;
    each_value(row, TN_AXIS_LAYOUT, draw_site_plain(row->op), TN_AXIS_NORM);
}
END_TEST

START_TEST(every_axis_value_is_checkable)
{
    const op_row *row = op_at((size_t)_i);
    static const tn_axis axes[] = {TN_AXIS_ROPE, TN_AXIS_ACT, TN_AXIS_SCORE};
    for (size_t i = 0; row->kind == OP_CONTRACT && i < sizeof axes / sizeof *axes; i++)
        for (int32_t v = 1; row->needs >> axes[i] & 1 && v <= op_last_value(axes[i]); v++) {
            tn_site site = draw_site_plain(row->op);
            site.meaning[axes[i]] = v;
            if (draw_site_has_value(row->op, axes[i], v))
                try_site(&site);
            else
                expect_wrong(site, NULL);
        }
}
END_TEST

START_TEST(every_row_has_its_pieces)
{
    const op_row *row = op_at((size_t)_i);
    ck_assert_ptr_nonnull(row->name);
    ck_assert_ptr_eq(op_find(row->op), row);
    ck_assert_str_eq(tn_op_name(row->op), row->name);
    ck_assert_int_eq(row->op >= TN_OP_FIRST_STEP, row->kind == OP_STEP);
    for (size_t i = 0; op_at(i); i++)
        ck_assert(op_at(i) == row || (op_at(i)->op != row->op && strcmp(op_at(i)->name, row->name)));
    const eager_op *eager = eager_find(row->op);
    if (row->kind == OP_LATER) {
        ck_assert_ptr_null(eager);
        return;
    }
    ck_assert_msg(eager || row->composed, "%s: there is no eager operation", row->name);
    ck_assert_msg(!eager || eager->forward, "%s: no forward", row->name);
    ck_assert_msg(row->kind == OP_STEP || row->composed || eager->backward, "%s: no gradients", row->name);
    ck_assert_msg(row->in[0].shape && row->out[0].shape, "%s: no tensors", row->name);
}
END_TEST

/* Every parameter that is missing, or has another shape, is named. */
START_TEST(a_wrong_parameter_is_named)
{
    const op_row *row = op_at((size_t)_i);
    if (row->kind != OP_CONTRACT || !row->param[0].shape)
        return;
    tn_site like = draw_site_plain(row->op);
    draw_site d;
    ck_assert_int_eq(draw_site_open(&d, &like, 1, NULL), TN_OK);
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &d.site.param[role], kept = *p;
        if (p->count == 0)
            continue;
        tn_error err = TN_ERROR_INIT;
        *p = (tn_param){0};
        tn_status status = op_check_site(&d.site, &err);
        bool maybe = status == TN_OK;
        ck_assert_msg(maybe || strstr(err.message, tn_role_name((tn_role)role)), "%s", err.message);
        tn_tensor wrong = kept.tensors[0];
        wrong.shape[wrong.ndim - 1]++;
        tn_tensor *list = calloc((size_t)kept.count, sizeof *list);
        memcpy(list, kept.tensors, (size_t)kept.count * sizeof *list);
        list[0] = wrong;
        *p = (tn_param){list, kept.count};
        tn_error_clear(&err);
        ck_assert_int_eq(op_check_site(&d.site, &err), TN_E_USAGE);
        ck_assert_msg(strstr(err.message, tn_role_name((tn_role)role)), "%s", err.message);
        free(list);
        *p = kept;
    }
    for (int role = 0; role < TN_ROLE_MAX; role++) { /* one that it does not have */
        tn_tensor some = tn_tensor_dense(d.memory, TN_F32, 1, (int64_t[]){1});
        if (d.site.param[role].count > 0 || role == TN_ROLE_ROUTER_BIAS)
            continue;
        d.site.param[role] = (tn_param){&some, 1};
        ck_assert_int_eq(op_check_site(&d.site, NULL), TN_E_USAGE);
        d.site.param[role] = (tn_param){0};
    }
    draw_site_close(&d);
}
END_TEST

START_TEST(a_wrong_dimension_is_named)
{
    const op_row *row = op_at((size_t)_i);
    if (row->kind != OP_CONTRACT)
        return;
    for (int dim = 0; dim < TN_DIM_MAX; dim++) {
        tn_site site = draw_site_plain(row->op);
        tn_error err = TN_ERROR_INIT;
        if (!(row->dims >> dim & 1))
            continue;
        site.dim[dim] = 0;
        ck_assert_int_eq(op_check_site(&site, &err), TN_E_USAGE);
        ck_assert_msg(strstr(err.message, tn_dim_name((tn_dim)dim)) == err.message, "%s", err.message);
    }
}
END_TEST

START_TEST(contradictions_are_named)
{
    tn_site route = draw_site_plain(TN_OP_MOE_ROUTE);
    draw_site_add(&route, TN_HAS_GROUPS);
    route.dim[TN_DIM_GROUPS] = 4;
    expect_wrong(route, "groups: 4 do not divide 9 experts");
    route.dim[TN_DIM_GROUPS] = 3;
    route.dim[TN_DIM_TOP_GROUPS] = 4;
    expect_wrong(route, "top_groups: 4 of 3 groups");
    route.dim[TN_DIM_TOP_GROUPS] = 1;
    route.dim[TN_DIM_TOP_K] = 4;
    expect_wrong(route, "top_k: 4, of 3 experts in the best groups");
    route.dim[TN_DIM_TOP_K] = 10;
    expect_wrong(route, "top_k: 10 of 9 experts");
    tn_site rope = draw_site_plain(TN_OP_ROPE);
    rope.dim[TN_DIM_ROTARY] = 17;
    expect_wrong(rope, "rotary: 17 of a head of 16, which must be an even number");
    route = draw_site_plain(TN_OP_MOE_ROUTE);
    route.num[TN_NUM_EPS] = -1;
    expect_wrong(route, "eps: is -1, must not be negative");
    tn_site sum = draw_site_plain(TN_OP_ADD_RMS_NORM);
    sum.num[TN_NUM_EPS] = -0.5;
    expect_wrong(sum, "eps: is -0.5, must not be negative");
    sum = draw_site_plain(TN_OP_ADD_RMS_NORM);
    sum.meaning[TN_AXIS_NORM] = TN_NORM_W_GATED;
    expect_wrong(sum, "norm: a sum has no gated norm");
    sum = draw_site_plain(TN_OP_ADD_RMS_NORM);
    sum.num[TN_NUM_EPS] = NAN;
    expect_wrong(sum, "eps: is nan, must be a finite number");
    tn_site none = draw_site_plain(TN_OP_RMS_NORM);
    none.op = TN_OP_NONE;
    ck_assert_int_eq(op_check_site(&none, NULL), TN_E_USAGE);
    tn_site norm = draw_site_plain(TN_OP_RMS_NORM);
    norm.features = TN_HAS_WINDOW;
    expect_wrong(norm, "window is nothing that RMS_NORM can have");
    norm = draw_site_plain(TN_OP_RMS_NORM);
    norm.meaning[TN_AXIS_NORM] = 0;
    expect_wrong(norm, "norm: the site has none, RMS_NORM needs one");
    norm = draw_site_plain(TN_OP_RMS_NORM);
    norm.features = TN_HAS_GROUPS;
    norm.dim[TN_DIM_WIDTH] = 37;
    norm.dim[TN_DIM_GROUPS] = 3;
    expect_wrong(norm, "groups: 3 do not divide a row of 37");
    tn_site mlp = draw_site_plain(TN_OP_MLP);
    mlp.meaning[TN_AXIS_ACT] = TN_ACT_XIELU;
    mlp.num[TN_NUM_ALPHA] = mlp.num[TN_NUM_BETA] = 0.5;
    expect_wrong(mlp, "act: xielu is that of an MLP without a gate");
    tn_site conv = draw_site_plain(TN_OP_SHORT_CONV);
    conv.meaning[TN_AXIS_ACT] = TN_ACT_PRELU;
    expect_wrong(conv, "act: prelu is that of an MLP");
    route = draw_site_plain(TN_OP_MOE_ROUTE);
    route.meaning[TN_AXIS_SCORE] = TN_SCORE_SPARSEMIXER;
    route.num[TN_NUM_MARGIN] = -0.5;
    expect_wrong(route, "margin: is -0.5, sparsemixer needs a positive one");
    route.num[TN_NUM_MARGIN] = 0.02;
    route.features |= TN_HAS_RENORM;
    expect_wrong(route, "score: sparsemixer has no correction bias, groups, factors of experts or common sum");
    tn_site scan = draw_site_plain(TN_OP_SELECTIVE_SCAN);
    scan.dim[TN_DIM_Q_HEADS] = 2;
    scan.dim[TN_DIM_KV_HEADS] = 5;
    expect_wrong(scan, "kv_heads: 5 heads are no multiple of 2 groups");
    scan = draw_site_plain(TN_OP_SELECTIVE_SCAN);
    scan.features |= TN_HAS_STEP_LIMITS;
    scan.num[TN_NUM_LEAST] = 1;
    scan.num[TN_NUM_LIMIT] = 0.5;
    expect_wrong(scan, "limit: steps lie within 1 and 0.5");
}
END_TEST

/* What sums of products are: counted by hand. */
START_TEST(work_is_that_of_the_products)
{
    tn_site moe = draw_site_plain(TN_OP_MOE_BLOCK);
    draw_site_add(&moe, TN_HAS_SHARED_GATE);
    double h = 40, i = 24, e = 9, k = 2, shared = 20;
    ck_assert_double_eq_tol(inputs_operations(&moe, 3), 2 * 3 * (h * e + k * 3 * h * i + 3 * h * shared + h), 1e-6);
    tn_site linear = draw_site_plain(TN_OP_LINEAR);
    draw_site d;
    ck_assert_int_eq(draw_site_open(&d, &linear, 1, NULL), TN_OK);
    tn_call call = inputs_call(&d.site, 1, 3);
    ck_assert_double_eq(op_operations(&call), 2 * 3 * 40 * 28);
    ck_assert_double_eq(op_bytes(&call), 4 * (3 * 40 + 3 * 28 + 40 * 28));
    draw_site_close(&d);
    tn_site attention = draw_site_plain(TN_OP_ATTENTION);
    call = inputs_call(&attention, 1, 4); /* 5 positions before, 3 empty ones behind */
    ck_assert_double_eq(op_operations(&call), 2 * 2.0 * 4 * 6 * 16 * 12);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("table of operations", 300);
    int count = 0;
    while (op_at((size_t)count))
        count++;
    tcase_add_loop_test(tc, every_row_has_its_pieces, 0, count);
    tcase_add_loop_test(tc, every_contract_is_whole, 0, count);
    tcase_add_loop_test(tc, every_axis_value_is_checkable, 0, count);
    tcase_add_loop_test(tc, a_wrong_parameter_is_named, 0, count);
    tcase_add_loop_test(tc, a_wrong_dimension_is_named, 0, count);
    suite_add(tc, contradictions_are_named, work_is_that_of_the_products);
    return suite_run();
}
