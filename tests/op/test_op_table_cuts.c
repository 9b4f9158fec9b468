/* What --parallel cuts: eager on parts of a call gives the parts of what it gives on the whole, bit for bit, where an
 * output has the letter; where none has, the parts' sum is the whole but for rounding. */
#include "check/check.h"
#include "check/draw_site.h"
#include "eager/eager.h"
#include "op/op.h"
#include "suite.h"

#include <check.h>
#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Letters that are cut together, as two of the row's shapes have them, and their dimensions. */
static const struct cut {
    tn_op op;
    const char *letters;
    tn_dim dim[2];
    tn_layout layout; /* 0: there is none                                                                  */
} cuts[] = {{TN_OP_LINEAR, "O", {TN_DIM_OUT}, 0},
            {TN_OP_LINEAR, "H", {TN_DIM_HIDDEN}, 0},
            {TN_OP_GROUPED_MATMUL, "O", {TN_DIM_OUT}, TN_LAYOUT_EXPERT_LIST},
            {TN_OP_GROUPED_MATMUL, "O", {TN_DIM_OUT}, TN_LAYOUT_STACKED_OI},
            {TN_OP_GROUPED_MATMUL, "H", {TN_DIM_HIDDEN}, TN_LAYOUT_STACKED_OI},
            {TN_OP_MLP, "I", {TN_DIM_INTER}, TN_LAYOUT_SPLIT},
            {TN_OP_MLP, "I", {TN_DIM_INTER}, TN_LAYOUT_UP_DOWN},
            {TN_OP_MOE_EXPERTS, "I", {TN_DIM_INTER}, TN_LAYOUT_EXPERT_LIST},
            {TN_OP_ATTENTION, "NK", {TN_DIM_Q_HEADS, TN_DIM_KV_HEADS}, 0},
            {TN_OP_GATED_DELTA_RULE, "NK", {TN_DIM_Q_HEADS, TN_DIM_KV_HEADS}, 0},
            {TN_OP_SHORT_CONV, "W", {TN_DIM_WIDTH}, 0}};

enum { PARTS = 2 };

/* Memory of a test, which lasts as long as it. */
static void *kept[256];
static size_t kept_count;

static void *keep(size_t count, size_t size)
{
    void *p = calloc(count, size);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_lt(kept_count, sizeof kept / sizeof *kept);
    return kept[kept_count++] = p;
}

static void free_kept(void)
{
    while (kept_count > 0)
        free(kept[--kept_count]);
}

/* Where a part begins of so many: heads go by halves, with the keys that are theirs; else the first one is smaller. */
static int64_t begin_of(const struct cut *c, int64_t size, int part)
{
    return part == 0 ? 0 : part == PARTS ? size : size / (c->letters[1] ? 2 : 4);
}

/* The dimension of a tensor that is cut; -1: it is whole. */
static int cut_dim(const struct cut *c, const char *shape)
{
    int dim = 0;
    shape += islower((unsigned char)shape[0]) && shape[1] ? 1 : 0; /* the type comes first in what flows    */
    for (; *shape; shape++, dim++)
        if (strchr(c->letters, *shape))
            return dim;
    return -1;
}

/* A part of a tensor, dense, in memory of the test. */
static tn_tensor part_of(const struct cut *c, const tn_tensor *whole, const char *shape, int part)
{
    int dim = cut_dim(c, shape);
    if (dim < 0 || !whole->data)
        return *whole;
    int64_t own[TN_MAX_DIMS], size = whole->shape[dim], first = begin_of(c, size, part), outer = 1, inner = 1;
    memcpy(own, whole->shape, sizeof own);
    own[dim] = begin_of(c, size, part + 1) - first;
    for (int i = 0; i < whole->ndim; i++)
        *(i < dim ? &outer : &inner) *= i == dim ? 1 : own[i];
    const tn_tensor dense = tn_tensor_dense(whole->data, whole->dtype, whole->ndim, whole->shape);
    ck_assert_mem_eq(whole->stride, dense.stride, (size_t)whole->ndim * sizeof *dense.stride);
    size_t row = (size_t)inner * tn_dtype_size(whole->dtype);
    char *data = keep((size_t)(outer * own[dim]), row);
    for (int64_t i = 0; i < outer; i++)
        memcpy(data + (size_t)(i * own[dim]) * row, (char *)whole->data + (size_t)(i * size + first) * row,
               (size_t)own[dim] * row);
    return tn_tensor_dense(data, whole->dtype, whole->ndim, own);
}

static void cut_params(const struct cut *c, const op_row *row, tn_site *site, int part)
{
    for (const op_param *p = row->param; p < row->param + OP_PARAMS && p->shape; p++) {
        tn_param *own = &site->param[p->role];
        if (own->count == 0 || (c->layout && p->when.layouts && !(p->when.layouts >> c->layout & 1)))
            continue;
        tn_tensor *list = keep((size_t)own->count, sizeof *list);
        for (int64_t i = 0; i < own->count; i++)
            list[i] = part_of(c, &own->tensors[i], p->shape, part);
        own->tensors = list;
    }
}

/* The same call of a site of which one part is there; its results are fresh memory. */
static void run_part(const struct cut *c, const op_row *row, const tn_call *whole, int part, tn_site *site,
                     tn_call *call)
{
    tn_error err = TN_ERROR_INIT;
    *site = *whole->site;
    *call = *whole;
    call->site = site;
    for (int i = 0; c->letters[i]; i++)
        site->dim[c->dim[i]] = begin_of(c, site->dim[c->dim[i]], part + 1) - begin_of(c, site->dim[c->dim[i]], part);
    cut_params(c, row, site, part);
    for (int i = 0; i < call->in_count; i++)
        call->in[i] = part_of(c, &whole->in[i], row->in[i].shape, part);
    for (int i = 0; i < call->out_count; i++) {
        tn_tensor *t = &call->out[i];
        *t = part_of(c, &whole->out[i], row->out[i].shape, part);
        t->data = keep((size_t)tn_tensor_count(t), tn_dtype_size(t->dtype));
    }
    ck_assert_msg(op_check_call(call, &err) == TN_OK, "%s by %s: %s", row->name, c->letters, err.message);
    ck_assert_msg(run_alone(&cpu_device, NULL, NULL, call, &err) == TN_OK, "%s: %s", row->name, err.message);
}

static void expect_sum(const struct cut *c, const op_row *row, const tn_call *whole, const tn_call *parts)
{
    const float *y = whole->out[0].data;
    int64_t count = tn_tensor_count(&whole->out[0]), terms = whole->site->dim[c->dim[0]];
    double most = 0;
    for (int p = 0; p < PARTS; p++)
        for (int64_t i = 0; i < count; i++)
            most = fmax(most, fabs((double)((const float *)parts[p].out[0].data)[i]));
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int p = 0; p < PARTS; p++)
            sum += (double)((const float *)parts[p].out[0].data)[i];
        ck_assert_msg(fabs(sum - (double)y[i]) <= (double)terms * FLT_EPSILON * most,
                      "%s by %s: %lld: parts make %g of %g", row->name, c->letters, (long long)i, sum, (double)y[i]);
    }
}

START_TEST(parts_make_the_whole)
{
    const struct cut *c = &cuts[_i];
    const op_row *row = op_find(c->op);
    tn_error err = TN_ERROR_INIT;
    tn_site like = draw_site_plain(c->op), site[PARTS];
    tn_call parts[PARTS];
    draw_site d;
    check_reference r;
    if (cut_dim(c, row->out[0].shape) >= 0)
        ck_assert_str_eq(row->cut, c->letters);
    for (int i = 0; c->letters[i]; i++)
        ck_assert_int_eq(op_dim_of(c->letters[i]), c->dim[i]);
    if (c->layout)
        like.meaning[TN_AXIS_LAYOUT] = (int32_t)c->layout;
    ck_assert_msg(draw_site_open(&d, &like, 7, &err) == TN_OK, "%s: %s", row->name, err.message);
    const check_case size = {.batch = 2, .tokens = 5};
    ck_assert_msg(check_reference_open(&r, &cpu_device, &d.site, UINT32_MAX, size, &err) == TN_OK, "%s", err.message);
    for (int p = 0; p < PARTS; p++)
        run_part(c, row, &r.call, p, &site[p], &parts[p]);
    if (cut_dim(c, row->out[0].shape) < 0)
        expect_sum(c, row, &r.call, parts);
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < r.call.out_count && cut_dim(c, row->out[0].shape) >= 0; i++) {
            const tn_tensor want = part_of(c, &r.call.out[i], row->out[i].shape, p), *got = &parts[p].out[i];
            ck_assert_msg(!memcmp(want.data, got->data, tn_dtype_bytes(got->dtype, tn_tensor_count(got))),
                          "%s by %s: output %d of part %d is not that of the whole", row->name, c->letters, i, p);
        }
    check_reference_close(&r);
    draw_site_close(&d);
    free_kept();
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cuts in the table of operations", 60);
    tcase_add_loop_test(tc, parts_make_the_whole, 0, sizeof cuts / sizeof *cuts);
    return suite_run();
}
