/* Optional outputs: the logits of routers, from eager and from kernels that give them or do not. */
#include "eager/eager.h"
#include "open/model.h"
#include "optest.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char BLOCK[] = "model.layers.0.mlp", ROUTER[] = "model.layers.0.mlp.gate";
static const char *const dtypes[] = {"f32", "bf16", "f16"};
enum { TOKENS = 5 };

typedef struct box {
    tn_model *m;
    const tn_site *site;
    tn_dtype dtype;
    tn_tensor x, y, weights, experts, logits;
} box;

static box box_open(const char *dtype)
{
    box b = {.m = test_model("qwen3_moe", .dtype = dtype), .dtype = tn_dtype_parse(dtype)};
    b.site = &graph_find_site(b.m->target.graph, BLOCK)->site;
    int64_t x[2] = {TOKENS, b.site->dim[TN_DIM_HIDDEN]}, k[2] = {TOKENS, b.site->dim[TN_DIM_TOP_K]};
    int64_t e[2] = {TOKENS, b.site->dim[TN_DIM_EXPERTS]};
    b.x = optest_random(b.dtype, 2, x, 3);
    b.y = optest_zeros(b.dtype, 2, x);
    b.weights = optest_zeros(b.dtype, 2, k);
    b.experts = optest_zeros(TN_I32, 2, k);
    b.logits = optest_zeros(b.dtype, 2, e);
    return b;
}

static tn_status block(box *b, const tn_tensor *logits, tn_error *err)
{
    tn_tensor out[2] = {b->y};
    if (logits)
        out[1] = *logits;
    return tn_site_forward(b->m, BLOCK, TN_OP_MOE_BLOCK, &b->x, 1, out, logits ? 2 : 1, err);
}

/* Against the product in double precision: a sum of H products in f32, rounded once to the dtype. */
static void expect_logits(const box *b, const tn_tensor *logits)
{
    const tn_tensor *w = &b->site->param[TN_ROLE_ROUTER].tensors[0];
    int64_t hidden = w->shape[1], experts = w->shape[0];
    double eps = b->dtype == TN_F32 ? 0 : b->dtype == TN_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t e = 0; e < experts; e++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < hidden; i++) {
                double product = optest_at(&b->x, t * hidden + i) * optest_at(w, e * hidden + i);
                sum += product;
                size += fabs(product);
            }
            ck_assert_double_eq_tol(optest_at(logits, t * experts + e), sum,
                                    (double)hidden * 0x1p-24 * size + eps * fabs(sum));
        }
}

START_TEST(eager_gives_logits)
{
    box b = box_open(dtypes[_i]);
    tn_error err = TN_ERROR_INIT;
    tn_tensor out[3] = {b.weights, b.experts, b.logits};
    ck_assert_msg(tn_site_forward(b.m, ROUTER, TN_OP_MOE_ROUTE, &b.x, 1, out, 3, &err) == TN_OK, "%s", err.message);
    expect_logits(&b, &b.logits);
    size_t bytes = (size_t)tn_tensor_count(&b.logits) * tn_dtype_size(b.dtype);
    tn_tensor same = optest_zeros(b.dtype, 2, b.logits.shape), y = b.y;
    b.y = optest_zeros(b.dtype, 2, b.x.shape);
    ck_assert_msg(block(&b, &same, &err) == TN_OK, "%s", err.message);
    ck_assert_mem_eq(same.data, b.logits.data, bytes);
    /* Asking for them changes nothing else. */
    tn_tensor with = b.y;
    b.y = y;
    ck_assert_int_eq(block(&b, NULL, &err), TN_OK);
    ck_assert_mem_eq(with.data, y.data, (size_t)tn_tensor_count(&y) * tn_dtype_size(b.dtype));
}
END_TEST

START_TEST(they_are_checked)
{
    box b = box_open("f32");
    tn_error err = TN_ERROR_INIT;
    tn_tensor bad = b.logits;
    bad.shape[1]++;
    ck_assert_int_eq(block(&b, &bad, &err), TN_E_USAGE);
    ck_assert_msg(strncmp(err.message, "output 1 (f32 [5,", 17) == 0, "%s", err.message);
    bad.data = NULL; /* not wanted, whatever shape it has                                        */
    ck_assert_int_eq(block(&b, &bad, NULL), TN_OK);
    tn_tensor three[3] = {b.y, b.logits, b.logits};
    ck_assert_int_eq(tn_site_forward(b.m, BLOCK, TN_OP_MOE_BLOCK, &b.x, 1, three, 3, NULL), TN_E_USAGE);
}
END_TEST

/* ---- kernels ------------------------------------------------------------------------------------------ */

static int calls, calls_with_logits;

static tn_status without_logits(const tn_call *call, tn_error *err)
{
    calls++;
    calls_with_logits += call->out_count > 1 && call->out[1].data;
    return test_kernel_forward(call, err);
}

static tn_status with_logits(const tn_call *call, tn_error *err)
{
    tn_call route = *call;
    int64_t shape[2] = {call->in[0].shape[0], call->site->dim[TN_DIM_TOP_K]};
    tn_status status = without_logits(call, err);
    if (status != TN_OK || call->out_count < 2 || !call->out[1].data)
        return status;
    route.op = TN_OP_MOE_ROUTE;
    route.out[0] = tn_tensor_dense(calloc((size_t)tn_tensor_count(&call->out[0]), 4), call->in[0].dtype, 2, shape);
    route.out[1] = tn_tensor_dense(calloc((size_t)tn_tensor_count(&call->out[0]), 4), TN_I32, 2, shape);
    route.out[2] = call->out[1];
    route.out_count = 3;
    route.scratch = aligned_alloc(64, (eager_moe_route.scratch(&route) + 127) / 64 * 64);
    status = eager_moe_route.forward(&route, err);
    free(route.scratch);
    free(route.out[0].data);
    free(route.out[1].data);
    return status;
}

START_TEST(what_a_kernel_does_not_give_eager_does)
{
    box b = box_open("f32");
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(&(test_kernel){.id = "block", .op = TN_OP_MOE_BLOCK, .forward = without_logits});
    test_model_apply(b.m, NULL, "block");
    calls = 0;
    ck_assert_int_eq(block(&b, &b.logits, &err), TN_OK);
    ck_assert_int_eq(calls, 0);
    expect_logits(&b, &b.logits);
    ck_assert_int_eq(block(&b, NULL, &err), TN_OK);
    tn_tensor none = b.logits;
    none.data = NULL;
    ck_assert_int_eq(block(&b, &none, &err), TN_OK);
    ck_assert_int_eq(calls, 2);
    ck_assert_int_eq(calls_with_logits, 0);
}
END_TEST

START_TEST(a_kernel_that_gives_them_is_asked)
{
    box b = box_open("f32");
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(
        &(test_kernel){.id = "block", .op = TN_OP_MOE_BLOCK, .forward = with_logits, .optional_outputs = 1u << 1});
    test_model_apply(b.m, NULL, "block");
    ck_assert_int_eq(block(&b, &b.logits, &err), TN_OK);
    ck_assert_int_eq(calls, 1); /* the check's calls were in a child                               */
    ck_assert_int_eq(calls_with_logits, 1);
    expect_logits(&b, &b.logits);
}
END_TEST

START_TEST(a_kernel_that_does_not_keep_its_word_is_refused)
{
    box b = box_open("f32");
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(
        &(test_kernel){.id = "block", .op = TN_OP_MOE_BLOCK, .forward = without_logits, .optional_outputs = 1u << 1});
    ck_assert_int_eq(tn_apply_kernels(b.m, NULL, "block", NULL, &err), TN_E_VERIFY);
    suite_expect_in(err.message, "output 1, row 0, element 0 was never written");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("optional outputs", 60);
    tcase_add_loop_test(tc, eager_gives_logits, 0, 3);
    suite_add(tc, they_are_checked, what_a_kernel_does_not_give_eager_does, a_kernel_that_gives_them_is_asked,
              a_kernel_that_does_not_keep_its_word_is_refused);
    return suite_run();
}
