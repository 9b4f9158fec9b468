/* Steps of towers: attention of every token to all of its row, in calls that are no longer than calls may be, and what
 * the host puts into an arena. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"
#include "run/steps.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static graph_run start(arena *a, tn_error *err)
{
    return (graph_run){.device = &cpu_device, .arena = a, .dtype = TN_F32, .err = err};
}

static const struct {
    int64_t rows, tokens, keys, heads, dim;
} shapes[] = {
    {1, 5, 5, 2, 8}, {3, 7, 4, 2, 4}, {1, GRAPH_MAX_TOKENS + 3, 3, 1, 2}, {5, GRAPH_MAX_TOKENS / 2, 2, 1, 2},
    {2, 0, 3, 1, 4}, {0, 4, 4, 1, 4},
};

/* o of one query, in double precision. */
static double value_at(const tn_tensor *q, const tn_tensor *k, const tn_tensor *v, int64_t b, int64_t t, int64_t n,
                       int64_t i, double scale)
{
    int64_t keys = k->shape[1], heads = k->shape[2], dim = k->shape[3];
    double sum = 0, out = 0;
    for (int64_t s = 0; s < keys; s++) {
        double dot = 0;
        for (int64_t j = 0; j < dim; j++)
            dot += optest_at(q, ((b * q->shape[1] + t) * heads + n) * dim + j) *
                   optest_at(k, ((b * keys + s) * heads + n) * dim + j);
        sum += exp(dot * scale);
        out += exp(dot * scale) * optest_at(v, ((b * keys + s) * heads + n) * dim + i);
    }
    return out / sum;
}

START_TEST(attention_of_all_to_all)
{
    int64_t rows = shapes[_i].rows, tokens = shapes[_i].tokens, keys = shapes[_i].keys, heads = shapes[_i].heads;
    int64_t dim = shapes[_i].dim, q_shape[4] = {rows, tokens, heads, dim}, k_shape[4] = {rows, keys, heads, dim};
    tn_tensor q = optest_random(TN_F32, 4, q_shape, 1), k = optest_random(TN_F32, 4, k_shape, 2);
    tn_tensor v = optest_random(TN_F32, 4, k_shape, 3), o = optest_zeros(TN_F32, 4, q_shape);
    graph_site site = {.site = optest_site(TN_OP_ATTENTION, TN_F32)};
    site.site.dim[TN_DIM_HEAD] = site.site.dim[TN_DIM_HEAD_V] = dim;
    site.site.dim[TN_DIM_Q_HEADS] = site.site.dim[TN_DIM_KV_HEADS] = heads;
    site.site.num[TN_NUM_SCALE] = 0.3;
    tn_error err = TN_ERROR_INIT;
    arena a;
    size_t size = 0;
    for (int real = 0; real < 2; real++) {
        ck_assert_int_eq(arena_init(&a, &cpu_device, size, &err), TN_OK);
        if (real)
            memset(a.base, 0xff, a.size); /* what lies in an arena is whatever was there            */
        graph_run r = start(&a, &err);
        steps_attend(&r, &site, &q, &k, &v, &o);
        ck_assert_msg(r.status == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_uint_eq(a.used, 0);
        size = a.peak > 0 ? a.peak : 64;
        arena_close(&a);
    }
    for (int64_t n = 0; n < tn_tensor_count(&o); n++) {
        double expected =
            value_at(&q, &k, &v, n / (tokens * heads * dim), n / (heads * dim) % tokens, n / dim % heads, n % dim, 0.3);
        ck_assert_double_eq_tol(optest_at(&o, n), expected, 1e-5);
    }
}
END_TEST

START_TEST(what_the_host_has)
{
    static const float numbers[6] = {1, -2, 3, 4.5f, 5, 6};
    tn_error err = TN_ERROR_INIT;
    arena a;
    ck_assert_int_eq(arena_init(&a, &cpu_device, 0, &err), TN_OK);
    graph_run r = start(&a, &err);
    ck_assert_ptr_null(steps_upload(&r, TN_F32, 2, (int64_t[]){2, 3}, numbers).data);
    ck_assert_ptr_null(steps_upload(&r, TN_I32, 1, (int64_t[]){7}, NULL).data);
    size_t size = a.peak;
    arena_close(&a);
    ck_assert_int_eq(arena_init(&a, &cpu_device, size, &err), TN_OK);
    memset(a.base, 0xff, a.size);
    tn_tensor t = steps_upload(&r, TN_F32, 2, (int64_t[]){2, 3}, numbers);
    tn_tensor zeros = steps_upload(&r, TN_I32, 1, (int64_t[]){7}, NULL);
    ck_assert_int_eq(r.status, TN_OK);
    ck_assert_mem_eq(t.data, numbers, sizeof numbers);
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(((const int32_t *)zeros.data)[i], 0);
    steps_upload(&r, TN_F32, 1, (int64_t[]){1000}, NULL); /* no room: the failure sticks            */
    ck_assert_int_eq(r.status, TN_E_INTERNAL);
    ck_assert_ptr_null(steps_upload(&r, TN_F32, 1, (int64_t[]){1}, numbers).data);
    arena_close(&a);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("steps_tower", 60);
    tcase_add_loop_test(tc, attention_of_all_to_all, 0, (int)(sizeof shapes / sizeof shapes[0]));
    suite_add(tc, what_the_host_has);
    return suite_run();
}
