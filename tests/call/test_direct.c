/* Grouped products as programs call them: eager, by kernels of the process, and what is said of wrong arguments. */
#include "optest.h"
#include "plugin/plugins.h"
#include "process.h"
#include "suite.h"
#include "test_kernels.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a product and its kernels --------------------------------------------------------------------------------- */

typedef struct product {
    tn_tensor x, w, y, grad_y, grad_x, grad_w;
    int64_t w_count, groups, counts[3];
    tn_layout layout;
} product;

static product example(tn_dtype dtype)
{
    product p = {.w_count = 1, .groups = 3, .counts = {2, 0, 3}, .layout = TN_LAYOUT_STACKED_OI};
    p.x = optest_random(dtype, 2, (int64_t[]){5, 8}, 1);
    p.w = optest_random(dtype, 3, (int64_t[]){3, 6, 8}, 2);
    p.grad_y = optest_random(dtype, 2, (int64_t[]){5, 6}, 3);
    p.y = optest_zeros(dtype, 2, p.grad_y.shape);
    p.grad_x = optest_zeros(dtype, 2, p.x.shape);
    p.grad_w = optest_zeros(dtype, 3, p.w.shape);
    return p;
}

static tn_status forward(const product *p, const char *kernel, tn_error *err)
{
    return tn_grouped_matmul(&p->x, &p->w, p->w_count, p->layout, p->counts, p->groups, &p->y, kernel, err);
}

static tn_status backward(const product *p, const char *kernel, tn_error *err)
{
    return tn_grouped_matmul_backward(&p->x, &p->w, p->w_count, p->layout, p->counts, p->groups, &p->grad_y, &p->grad_x,
                                      &p->grad_w, kernel, err);
}

/* y = factor times the product: the factor tells who performed it. */
static void scaled(const tn_call *call, double factor)
{
    const tn_tensor *w = call->site->param[TN_ROLE_WEIGHT].tensors;
    tn_tensor y = call->out[0];
    int64_t in = w->shape[2], out = w->shape[1], row = 0;
    for (int64_t g = 0; g < w->shape[0]; g++)
        for (int64_t end = row + ((const int64_t *)call->in[1].data)[g]; row < end; row++)
            for (int64_t o = 0; o < out; o++) {
                double sum = 0.0;
                for (int64_t i = 0; i < in; i++)
                    sum += optest_at(&call->in[0], row * in + i) * optest_at(w, (g * out + o) * in + i);
                optest_set(&y, row * out + o, sum * factor);
            }
}

static tn_status right(const tn_call *call, tn_error *err)
{
    (void)err;
    scaled(call, 1.0 + 0x1p-10); /* within a tolerance of 2^16 ulps                                  */
    return TN_OK;
}

static tn_status better(const tn_call *call, tn_error *err)
{
    (void)err;
    scaled(call, 1.0 + 0x1p-11);
    return TN_OK;
}

static tn_status wrong(const tn_call *call, tn_error *err)
{
    (void)err;
    scaled(call, 1.5);
    return TN_OK;
}

static tn_status crashes(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    abort();
}

/* Gradients times a factor; those that nobody wants are left alone. */
static void scaled_grads(const tn_call *call, double factor)
{
    const tn_tensor *w = call->site->param[TN_ROLE_WEIGHT].tensors, *dy = &call->grads->out[0];
    const tn_param *wanted = &call->grads->param[TN_ROLE_WEIGHT];
    tn_tensor dx = call->grads->in[0], dw = wanted->count > 0 ? wanted->tensors[0] : (tn_tensor){0};
    int64_t in = w->shape[2], out = w->shape[1], begin = 0;
    for (int64_t g = 0; g < w->shape[0]; g++) {
        int64_t end = begin + ((const int64_t *)call->in[1].data)[g];
        for (int64_t o = 0; dw.data && o < out; o++)
            for (int64_t i = 0; i < in; i++) {
                double sum = 0.0;
                for (int64_t row = begin; dy->data && row < end; row++)
                    sum += optest_at(dy, row * out + o) * optest_at(&call->in[0], row * in + i);
                optest_set(&dw, (g * out + o) * in + i, sum * factor);
            }
        for (int64_t row = begin; dx.data && row < end; row++)
            for (int64_t i = 0; i < in; i++) {
                double sum = 0.0;
                for (int64_t o = 0; dy->data && o < out; o++)
                    sum += optest_at(dy, row * out + o) * optest_at(w, (g * out + o) * in + i);
                optest_set(&dx, row * in + i, sum * factor);
            }
        begin = end;
    }
}

static tn_status right_grads(const tn_call *call, tn_error *err)
{
    (void)err;
    memset(call->scratch, 1, 1000);
    scaled_grads(call, 1.0 + 0x1p-10);
    return TN_OK;
}

static tn_status wrong_grads(const tn_call *call, tn_error *err)
{
    (void)err;
    scaled_grads(call, 1.5);
    return TN_OK;
}

static tn_status plan_scratch(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = 64;
    plan->backward_scratch_bytes = 1000;
    return TN_OK;
}

/* Marks the kernel whose gradients are wrong. */
static tn_status plan_wrong_grads(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return plan_scratch(site, plan, err);
}

static tn_status plan_packs(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = 64;
    return TN_OK;
}

static tn_status plan_declines(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)plan;
    return tn_fail(err, TN_DECLINED, site->path, "%lld outputs are too many", (long long)site->dim[TN_DIM_OUT]);
}

static tn_status not_here(tn_error *err)
{
    return tn_fail(err, TN_DECLINED, NULL, "the machine has no such unit");
}

static void add_kernel(const char *id, int32_t priority, tn_status (*perform)(const tn_call *, tn_error *),
                       tn_status (*plan)(const tn_site *, tn_plan *, tn_error *), tn_status (*available)(tn_error *))
{
    tn_impl impl = {.size = sizeof impl,
                    .op = TN_OP_GROUPED_MATMUL,
                    .match = {.size = sizeof impl.match},
                    .tolerance = {65536, 1, 1},
                    .plan = plan,
                    .forward = perform,
                    .backward = plan == plan_scratch       ? right_grads
                                : plan == plan_wrong_grads ? wrong_grads
                                                           : NULL};
    impl.match.takes[TN_AXIS_DTYPE] = TN_TAKES(TN_F32);
    impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_STACKED_OI);
    tn_kernel kernel = {.size = sizeof kernel,
                        .id = id,
                        .version = "1.0.0",
                        .summary = "of a test",
                        .device = "cpu",
                        .priority = priority,
                        .available = available,
                        .impls = &impl,
                        .impl_count = 1};
    test_kernel_register(&kernel);
}

/* y is factor times eager's. */
static void expect_by(product *p, const char *kernel, double factor)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(forward(p, "none", &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_tensor eager = optest_from(TN_F32, &p->y);
    ck_assert_msg(forward(p, kernel, &err) == TN_OK, "%s: %s", err.where, err.message);
    for (int64_t i = 0; i < tn_tensor_count(&eager); i++) {
        tn_tensor element = optest_zeros(TN_F32, 0, NULL);
        optest_set(&element, 0, optest_at(&eager, i) * factor);
        ck_assert_double_eq(optest_at(&p->y, i), optest_at(&element, 0));
    }
}

static void expect_refused(tn_status status, const tn_error *err, tn_status code, const char *where, const char *why)
{
    ck_assert_int_eq(status, code);
    ck_assert_str_eq(err->where, where);
    ck_assert_msg(strstr(err->message, why) == err->message, "%s", err->message);
}

START_TEST(without_kernels)
{
    product p = example(TN_F32);
    expect_by(&p, NULL, 1.0);
    expect_by(&p, "auto", 1.0);
    double sum = 0.0;
    for (int64_t i = 0; i < 8; i++)
        sum += optest_at(&p.x, 3 * 8 + i) * optest_at(&p.w, (2 * 6 + 4) * 8 + i);
    ck_assert_double_eq(optest_at(&p.y, 3 * 6 + 4), sum);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(backward(&p, "auto", &err), TN_OK);
    sum = 0.0;
    for (int64_t row = 2; row < 5; row++)
        sum += optest_at(&p.grad_y, row * 6 + 4) * optest_at(&p.x, row * 8 + 7);
    ck_assert_double_eq(optest_at(&p.grad_w, (2 * 6 + 4) * 8 + 7), sum);
    ck_assert_double_eq(optest_at(&p.grad_w, 6 * 8), 0.0);
    expect_refused(forward(&p, "npu_fused_moe", &err), &err, TN_E_KERNEL, "kernels",
                   "kernel 'npu_fused_moe' not found; no plugin brought a kernel");
}
END_TEST

START_TEST(the_best_kernel_that_takes_it)
{
    product p = example(TN_F32);
    add_kernel("right", 10, right, plan_scratch, NULL);
    expect_by(&p, "auto", 1.0 + 0x1p-10);
    add_kernel("better", 20, better, NULL, NULL);
    add_kernel("wrong", 30, wrong, NULL, NULL);
    add_kernel("crashes", 40, crashes, NULL, NULL);
    add_kernel("packs", 50, better, plan_packs, NULL);
    add_kernel("declines", 60, better, plan_declines, NULL);
    add_kernel("absent", 70, better, NULL, not_here);
    expect_by(&p, "auto", 1.0 + 0x1p-11);
    expect_by(&p, "right", 1.0 + 0x1p-10);
    /* The only one with right gradients. */
    add_kernel("wrong_grads", 80, better, plan_wrong_grads, NULL);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(backward(&p, "none", &err), TN_OK);
    double eager = optest_at(&p.grad_w, 5);
    ck_assert_msg(backward(&p, "auto", &err) == TN_OK, "%s", err.message);
    ck_assert_double_eq(optest_at(&p.grad_w, 5), (double)(float)(eager * (1.0 + 0x1p-10)));
    ck_assert_int_eq(backward(&p, "wrong_grads", &err), TN_E_KERNEL);
    suite_expect_in(err.message, "wrong gradients");
    err = (tn_error)TN_ERROR_INIT;
    /* What none takes is eager. */
    product half = example(TN_BF16);
    ck_assert_int_eq(forward(&half, "auto", &err), TN_OK);
    add_kernel("equal", 80, better, NULL, NULL);
    /* A tie stops nothing. */
    ck_assert_msg(forward(&p, "auto", &err) == TN_OK, "%s", err.message);
}
END_TEST

/* Right in its check, and wrong with the rows of the first live call. */
static bool turned;

static tn_status turns_wrong(const tn_call *call, tn_error *err)
{
    return turned ? wrong(call, err) : better(call, err);
}

START_TEST(the_first_call_of_a_size_is_compared)
{
    product p = example(TN_F32);
    tn_error err = TN_ERROR_INIT;
    add_kernel("turns", 20, turns_wrong, NULL, NULL);
    expect_by(&p, "turns", 1.0 + 0x1p-11);
    turned = true; /* with sizes that are known by now                                                  */
    ck_assert_int_eq(forward(&p, "turns", &err), TN_OK);
    ck_assert_uint_eq(tn_notice_count(), 0);
    p.counts[0]--;
    p.counts[2]++;
    expect_by(&p, "turns", 1.0);
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_msg(strstr(tn_notice_get(0), "turns is wrong at "), "%s", tn_notice_get(0));
    expect_refused(forward(&p, "turns", &err), &err, TN_E_KERNEL, "turns",
                   "does not perform this: a call of it was wrong in this process");
    expect_by(&p, "auto", 1.0);
}
END_TEST

START_TEST(kernels_by_name_say_why_not)
{
    static const struct {
        const char *id, *why;
    } no[] = {{"wrong", "does not perform this: wrong numbers"},
              {"crashes", "does not perform this: forward: crashed with SIGABRT"},
              {"packs", "does not perform this: it packs weights"},
              {"declines", "does not perform this: plan: 6 outputs are too many; use auto or none"},
              {"absent", "does not perform this: it is not available: the machine has no such unit"}};
    product p = example(TN_F32), half = example(TN_BF16);
    add_kernel("wrong", 30, wrong, NULL, NULL);
    add_kernel("crashes", 40, crashes, NULL, NULL);
    add_kernel("packs", 50, better, plan_packs, NULL);
    add_kernel("declines", 60, better, plan_declines, NULL);
    add_kernel("absent", 70, better, NULL, not_here);
    add_kernel("better", 20, better, NULL, NULL);
    /* The second time from memory. */
    for (size_t i = 0; i < 2 * sizeof no / sizeof *no; i++) {
        tn_error err = TN_ERROR_INIT;
        const char *id = no[i / 2].id;
        expect_refused(forward(&p, id, &err), &err, TN_E_KERNEL, id, no[i / 2].why);
    }
    tn_error err = TN_ERROR_INIT;
    expect_refused(forward(&half, "better", &err), &err, TN_E_KERNEL, "better",
                   "does not perform this: dtype: site has bf16, kernel takes f32");
    tn_error_clear(&err);
    expect_refused(backward(&p, "better", &err), &err, TN_E_KERNEL, "better", "does not perform this: no backward");
    tn_error_clear(&err);
    expect_refused(forward(&p, "beter", &err), &err, TN_E_KERNEL, "kernels",
                   "kernel 'beter' not found; did you mean 'better'?");
}
END_TEST

/* The kernel of this tree, with both kinds of stacks, is near eager. */
START_TEST(the_plugin_performs_it)
{
    static const tn_layout layouts[] = {TN_LAYOUT_STACKED_OI, TN_LAYOUT_STACKED_IO};
    char folder[4096];
    tn_error err = TN_ERROR_INIT;
    snprintf(folder, sizeof folder, "%s/plugins", process_build());
    tn_config *config = tn_config_new();
    ck_assert_msg(tn_config_add_plugins(config, folder, &err) == TN_OK && tn_scan(config, &err) == TN_OK, "%s: %s",
                  err.where, err.message);
    for (int l = 0; l < 2; l++) {
        product p = example(TN_BF16);
        p.layout = layouts[l];
        if (l) {
            p.w = optest_random(TN_BF16, 3, (int64_t[]){3, 8, 6}, 2);
            p.grad_w = optest_zeros(TN_BF16, 3, p.w.shape);
        }
        ck_assert_int_eq(forward(&p, "none", &err), TN_OK);
        ck_assert_int_eq(backward(&p, "none", &err), TN_OK);
        tn_tensor y = optest_from(TN_BF16, &p.y), dx = optest_from(TN_BF16, &p.grad_x);
        tn_tensor dw = optest_from(TN_BF16, &p.grad_w);
        ck_assert_msg(forward(&p, "npu_fused_moe", &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_msg(backward(&p, "auto", &err) == TN_OK, "%s: %s", err.where, err.message);
        optest_close(&p.y, &y, 0x1p-6, 0x1p-7, "y");
        optest_close(&p.grad_x, &dx, 0x1p-6, 0x1p-7, "dx");
        optest_close(&p.grad_w, &dw, 0x1p-6, 0x1p-7, "dw");
    }
    tn_config_free(config);
}
END_TEST

/* ---- wrong arguments -------------------------------------------------------------------------------------------- */

typedef struct mistake {
    int which;
    tn_status code;
    const char *where, *message;
} mistake;

static const mistake mistakes[] = {
    {0, TN_E_USAGE, "x", "has 3 dimensions; pass a tensor of 2"},
    {1, TN_E_USAGE, "w", "is of type f64; grouped products take f32, bf16 and f16"},
    {2, TN_E_USAGE, "y", "has shape [5,7]; [5,6] is wanted here"},
    {3, TN_E_USAGE, "y", "is of type bf16; f32 is wanted here"},
    {4, TN_E_USAGE, "x", "has stride 2 along its last dimension; make it dense there"},
    {5, TN_E_USAGE, "y",
     "has stride 5 along dimension 0, where 6 elements lie; pass a tensor whose rows do not overlap"},
    {6, TN_E_USAGE, "grouped_matmul", "layout split (1) is none of stacked_oi, stacked_io, expert_list, list_io"},
    {7, TN_E_USAGE, "w", "is 1 tensors for 3 groups; pass a matrix for each"},
    {8, TN_E_USAGE, "w", "is a stack of 3 matrices for 2 groups; pass a matrix for each"},
    {9, TN_E_USAGE, "w",
     "takes 6 inputs with layout stacked_io, and x has 8; pass weights for x, or the layout that they have"},
    {10, TN_E_INPUT, "counts", "group 1 has -1 rows; counts must not be negative"},
    {11, TN_E_INPUT, "counts", "the last group, 2, ends at row 4 of 5; the counts must add up to the rows of x"},
    {12, TN_E_USAGE, "x", "has no data; pass a tensor in memory of the host"},
    {13, TN_E_USAGE, "grouped_matmul", "0 groups; pass the rows of at least one"},
    {14, TN_E_USAGE, "x", "has -5 elements along dimension 0; none can be negative"},
    {15, TN_E_USAGE, "w",
     "has stride 40 along dimension 0, where 48 elements lie; pass a tensor whose rows do not overlap"},
};

static void make_mistake(product *p, int which)
{
    switch (which) {
    case 0:
        p->x.ndim = 3;
        break;
    case 1:
        p->w.dtype = TN_F64;
        break;
    case 2:
        p->y = optest_zeros(TN_F32, 2, (int64_t[]){5, 7});
        break;
    case 3:
        p->y = optest_zeros(TN_BF16, 2, (int64_t[]){5, 6});
        break;
    case 4:
        p->x.stride[1] = 2;
        break;
    case 5:
        p->y.stride[0] = 5;
        break;
    case 6:
        p->layout = TN_LAYOUT_SPLIT;
        break;
    case 7:
        p->layout = TN_LAYOUT_LIST_IO;
        break;
    case 8:
        p->groups = 2;
        break;
    case 9:
        p->layout = TN_LAYOUT_STACKED_IO;
        break;
    case 10:
        p->counts[1] = -1;
        break;
    case 11:
        p->counts[2] = 2;
        break;
    case 12:
        p->x.data = NULL;
        break;
    case 13:
        p->groups = 0;
        break;
    case 14:
        p->x.shape[0] = -5;
        break;
    default:
        p->w.stride[0] = 40;
    }
}

START_TEST(wrong_arguments_are_named)
{
    const mistake *m = &mistakes[_i];
    product p = example(TN_F32);
    make_mistake(&p, m->which);
    tn_error err = TN_ERROR_INIT;
    expect_refused(forward(&p, "auto", &err), &err, m->code, m->where, m->message);
    ck_assert_str_eq(err.message, m->message);
    if (strcmp(m->where, "y") == 0)
        return;
    tn_error_clear(&err);
    expect_refused(backward(&p, "auto", &err), &err, m->code, m->where, m->message);
}
END_TEST

START_TEST(wrong_gradients_and_lists_are_named)
{
    product p = example(TN_F32);
    tn_error err = TN_ERROR_INIT;
    p.grad_w = optest_zeros(TN_F32, 3, (int64_t[]){3, 8, 6});
    expect_refused(backward(&p, NULL, &err), &err, TN_E_USAGE, "grad_w", "has shape [3,8,6]; [3,6,8] is wanted");
    p = example(TN_F32);
    p.grad_x.stride[0] = 0;
    tn_error_clear(&err);
    expect_refused(backward(&p, NULL, &err), &err, TN_E_USAGE, "grad_x", "has stride 0 along dimension 0, where 8");
    p = example(TN_F32);
    p.grad_y.dtype = TN_F16;
    tn_error_clear(&err);
    expect_refused(backward(&p, NULL, &err), &err, TN_E_USAGE, "grad_y", "is of type f16; f32 is wanted here");
    tn_tensor list[3];
    for (int i = 0; i < 3; i++)
        list[i] = optest_random(TN_F32, 2, (int64_t[]){8, 6 + (i == 2)}, 1);
    tn_error_clear(&err);
    tn_status status = tn_grouped_matmul(&p.x, list, 3, TN_LAYOUT_LIST_IO, p.counts, 3, &p.y, NULL, &err);
    expect_refused(status, &err, TN_E_USAGE, "w[2]", "has shape [8,7]; [8,6] is wanted here");
    tn_error_clear(&err);
    status = tn_grouped_matmul(&p.x, NULL, 3, TN_LAYOUT_LIST_IO, p.counts, 3, &p.y, NULL, &err);
    expect_refused(status, &err, TN_E_USAGE, "w[0]", "is NULL; pass a tensor");
    tn_error_clear(&err);
    status = tn_grouped_matmul(&p.x, &p.w, 1, p.layout, NULL, 3, &p.y, NULL, &err);
    expect_refused(status, &err, TN_E_USAGE, "grouped_matmul",
                   "3 groups without counts; pass the rows of at least one");
    tn_error_clear(&err);
    status = tn_grouped_matmul(&p.x, &p.w, 1, p.layout, p.counts, 3, NULL, NULL, &err);
    expect_refused(status, &err, TN_E_USAGE, "y", "is NULL; pass a tensor");
}
END_TEST

/* What examples/grouped_matmul.c prints is right, without kernels and with those of this tree. */
START_TEST(the_example_is_right)
{
    static const char right_figures[] = "y         1   2\n          0   1\n          3   2\n          3   0\n"
                                        "grad_x    1   2   0\n          1   2   0\n"
                                        "          3  -1   1\n          3  -1   1\n"
                                        "grad_w    1   3   3\n          2   6   6\n"
                                        "          0   0   0\n          0   0   0\n"
                                        "          3   1   2\n          6   2   4\n";
    for (int plugins = 0; plugins < 2; plugins++) {
        char line[8300], out[1024] = "";
        snprintf(line, sizeof line, "%s/examples/grouped_matmul %s%s", process_build(), plugins ? process_build() : "",
                 plugins ? "/plugins" : "");
        FILE *pipe = popen(line, "r");
        ck_assert_ptr_nonnull(pipe);
        size_t length = fread(out, 1, sizeof out - 1, pipe);
        ck_assert_uint_gt(length, 0);
        ck_assert_int_eq(pclose(pipe), 0);
        ck_assert_str_eq(out, right_figures);
    }
}
END_TEST

START_TEST(nothing_to_do)
{
    product p = example(TN_F16);
    tn_error err = TN_ERROR_INIT;
    p.x.shape[0] = p.y.shape[0] = p.grad_y.shape[0] = p.grad_x.shape[0] = 0;
    p.x.data = p.y.data = p.grad_y.data = NULL;
    memset(p.counts, 0, sizeof p.counts);
    for (int64_t i = 0; i < tn_tensor_count(&p.grad_w); i++)
        optest_set(&p.grad_w, i, 3.0);
    ck_assert_int_eq(forward(&p, "auto", &err), TN_OK);
    ck_assert_int_eq(
        tn_grouped_matmul_backward(&p.x, &p.w, 1, p.layout, p.counts, 3, &p.grad_y, NULL, NULL, "auto", &err), TN_OK);
    ck_assert_double_eq(optest_at(&p.grad_w, 7), 3.0);
    ck_assert_int_eq(backward(&p, "auto", &err), TN_OK);
    optest_expect_zero(&p.grad_w);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("grouped products for programs", 0);
    suite_add(tc, without_kernels, the_best_kernel_that_takes_it, the_first_call_of_a_size_is_compared,
              kernels_by_name_say_why_not, the_plugin_performs_it);
    tcase_add_loop_test(tc, wrong_arguments_are_named, 0, (int)(sizeof mistakes / sizeof *mistakes));
    suite_add(tc, wrong_gradients_and_lists_are_named, nothing_to_do, the_example_is_right);
    return suite_run();
}
