/* The parts of a check: memory between guard pages, and inputs that are drawn. */
#include "check/check.h"
#include "check/fence.h"
#include "open/model.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

START_TEST(fences_hold)
{
    for (int side = FENCE_END; side <= FENCE_START; side++)
        for (size_t bytes = 0; bytes < 9000; bytes += 1236) {
            fence f;
            ck_assert_int_eq(fence_open(&f, bytes, 4, 0, (fence_side)side, false, NULL), TN_OK);
            ck_assert_uint_eq((uintptr_t)f.data % 4, 0);
            ck_assert(fence_intact(&f));
            fence_fill(&f, FENCE_ONES);
            memset(f.data, 7, bytes);
            ck_assert(fence_intact(&f));
            ck_assert(fence_contains(&f, f.data - 1) && fence_contains(&f, f.data + bytes));
            ck_assert(!fence_contains(&f, f.map + f.map_bytes));
            fence_close(&f);
        }
    fence f;
    ck_assert_int_eq(fence_open(&f, 10, 4, 0, FENCE_END, false, NULL), TN_OK);
    f.data[10] = 0; /* two bytes are left of the last element */
    ck_assert(!fence_intact(&f));
    fence_close(&f);
    ck_assert_int_eq(fence_open(&f, SIZE_MAX / 2, 4, 0, FENCE_END, false, NULL), TN_E_MEMORY);
}
END_TEST

static bool can_be_read(const unsigned char *at)
{
    unsigned char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)at, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

/* What was given back is out of reach until it is opened again, for as much or less, with a guard page right behind. */
START_TEST(a_fence_is_opened_in_what_was_given_back)
{
    fence_spares spares = {0};
    fence f;
    for (size_t bytes = 60000; bytes > 100; bytes /= 3) {
        ck_assert_int_eq(fence_open_spare(&spares, &f, bytes, 4, 0, FENCE_END, NULL), TN_OK);
        const unsigned char *data = f.data, *end = f.data + bytes;
        ck_assert(fence_intact(&f) && can_be_read(data) && can_be_read(end - 1));
        ck_assert(!can_be_read(end + (4 - bytes % 4) % 4) && fence_contains(&f, end + 3));
        memset(f.data, 7, bytes);
        ck_assert(bytes < 60000 || fence_read_only(&f, NULL) == TN_OK);
        ck_assert_uint_eq(spares.count, 0);
        fence_give_back(&spares, &f);
        ck_assert(spares.count == 1 && f.map == NULL && !can_be_read(data) && !can_be_read(end - 1));
    }
    const unsigned char *map = spares.kept[0].map;
    ck_assert_int_eq(fence_open_spare(&spares, &f, 60000, 4, 4, FENCE_START, NULL), TN_OK);
    ck_assert_ptr_eq(f.map, map);
    fence_close(&f);
    /* What fence_fill leaves out is never what an earlier call left there. */
    size_t large = (size_t)3 << 20;
    ck_assert_int_eq(fence_open_spare(&spares, &f, large, 4, 0, FENCE_END, NULL), TN_OK);
    memset(f.data, 7, large);
    fence_give_back(&spares, &f);
    ck_assert_uint_eq(spares.count, 0);
    ck_assert_int_eq(fence_open_spare(&spares, &f, large, 4, 0, FENCE_END, NULL), TN_OK);
    ck_assert_int_eq(f.data[large / 2], 0);
    fence_close(&f);
}
END_TEST

/* The same seed draws the same; rows differ; values look like a normal distribution. */
START_TEST(inputs_are_seeded)
{
    tn_model_options o = {.size = sizeof o, .dtype = "bf16"};
    tn_model *m = tn_model_open("tests/data/models/qwen3", &o, NULL);
    ck_assert_ptr_nonnull(m);
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        inputs a, b;
        tn_error err = TN_ERROR_INIT;
        const tn_site *site = &m->target.graph->sites[i]->site;
        ck_assert_msg(inputs_draw(&a, site, 2, 5, 42, &err) == TN_OK, "%s", err.message);
        ck_assert_int_eq(inputs_draw(&b, site, 2, 5, 42, &err), TN_OK);
        ck_assert_int_eq(a.tokens, 10);
        ck_assert_int_ge(a.call.in_count, 1);
        ck_assert_int_ge(a.call.out_count, 1);
        for (int j = 0; j < a.call.in_count; j++) {
            const tn_tensor *t = &a.call.in[j];
            size_t bytes = (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
            ck_assert_mem_eq(t->data, b.call.in[j].data, bytes);
        }
        inputs_close(&b);
        ck_assert_int_eq(inputs_draw(&b, site, 2, 5, 43, &err), TN_OK);
        ck_assert_mem_ne(a.call.in[0].data, b.call.in[0].data, 64);
        inputs_close(&a);
        inputs_close(&b);
    }
    tn_model_close(m);
}
END_TEST

/* Where routing is clear, the last chosen and the first rejected expert are apart; where it never is, that is said. */
START_TEST(routed_tokens_are_clear)
{
    enum { H = 16, E = 12, K = 3, T = 40 };
    float router[E * H];
    random_state r = {.state = 1};
    for (int i = 0; i < E * H; i++)
        router[i] = 0.3f * random_nearly_normal(&r);
    tn_tensor weight = tn_tensor_dense(router, TN_F32, 2, (int64_t[]){E, H});
    tn_site site = {.size = sizeof site, .op = TN_OP_MOE_ROUTE, .path = "gate"};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    site.dim[TN_DIM_HIDDEN] = H;
    site.dim[TN_DIM_EXPERTS] = E;
    site.dim[TN_DIM_TOP_K] = K;
    site.param[TN_ROLE_ROUTER] = (tn_param){&weight, 1};
    inputs in;
    ck_assert_int_eq(inputs_draw(&in, &site, 1, T, 7, NULL), TN_OK);
    const float *x = in.call.in[0].data;
    int clear = 0;
    for (int t = 0; t < T; t++) {
        double logit[E];
        int above = 0;
        for (int e = 0; e < E; e++) {
            logit[e] = 0;
            for (int i = 0; i < H; i++)
                logit[e] += (double)router[e * H + i] * x[t * H + i];
        }
        /* Chosen are K: no score may lie within 2 % below the K-th. */
        for (int e = 0; e < E; e++) {
            int better = 0, near = 0;
            for (int f = 0; f < E; f++) {
                better += logit[f] > logit[e];
                near += logit[f] < logit[e] && exp(logit[f] - logit[e]) > 0.9801;
            }
            if (better == K - 1 && near == 0)
                above++;
        }
        ck_assert(in.skip[t] || above == 1);
        clear += !in.skip[t];
    }
    ck_assert_int_ge(2 * clear, T);
    inputs_close(&in);
    memset(router, 0, sizeof router);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(inputs_draw(&in, &site, 1, T, 7, &err), TN_DECLINED);
    ck_assert_ptr_nonnull(strstr(err.message, "nearly the same"));
}
END_TEST

int main(void)
{
    TCase *all = suite_open("check: parts", 60);
    suite_add(all, fences_hold, a_fence_is_opened_in_what_was_given_back, inputs_are_seeded, routed_tokens_are_clear);
    return suite_run();
}
