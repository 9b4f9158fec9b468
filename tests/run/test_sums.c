/* Sums over ranks: in f32, in the order of ranks, rounded once; the same on every rank, in whichever order parts come.
 */
#include "group/group.h"
#include "run/steps.h"
#include "suite.h"

#include <tenon/half.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, MOST = 5000 };

/* What the ranks give, one behind the other, and who comes first. */
typedef struct play {
    int32_t rank;
    bool backwards;
    const char *parts;
    int calls;
} play;

static tn_status gather(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    play *p = self;
    size_t one = (size_t)bytes[0];
    (void)err;
    p->calls++;
    ck_assert_mem_eq((char *)all + (size_t)p->rank * one, p->parts + (size_t)p->rank * one, one);
    for (int i = 0; i < RANKS; i++) {
        int r = p->backwards ? RANKS - 1 - i : i;
        ck_assert_int_eq(bytes[r], bytes[0]);
        memcpy((char *)all + (size_t)r * one, p->parts + (size_t)r * one, one);
    }
    return TN_OK;
}

/* The sum that a rank has. parts [RANKS,count]; out [count] */
static void sum_as(int32_t rank, bool backwards, tn_dtype dtype, const void *parts, int64_t count, void *out)
{
    tn_error err = TN_ERROR_INIT;
    size_t bytes = tn_dtype_bytes(dtype, count);
    play p = {.rank = rank, .backwards = backwards, .parts = parts};
    const tn_group end = {.size = sizeof end, .rank = rank, .ranks = RANKS, .self = &p, .gather = gather};
    group *g = group_new(&end, &err);
    arena a = {0};
    graph_run r = {.arena = &a, .err = &err};
    const graph_cut cut = {.group = g};
    const tn_tensor x = tn_tensor_dense(out, dtype, 2, (int64_t[]){1, count});
    ck_assert_ptr_nonnull(g);
    memcpy(out, (const char *)parts + (size_t)rank * bytes, bytes);
    steps_sum(&r, &cut, &x);
    ck_assert_int_eq(r.status, TN_OK);
    ck_assert_int_eq(p.calls, 1);
    a.measuring = true; /* what it takes is what was foretold                                         */
    steps_sum(&r, &cut, &x);
    ck_assert_int_eq(p.calls, 1);
    ck_assert_int_eq(g->expected.gathers, 1);
    ck_assert_int_eq(g->expected.gathered, RANKS * (int64_t)bytes);
    group_close(g);
}

/* 1e8 + 1 - 1e8 is 0 in this order, and 1 in another. */
START_TEST(the_order_is_that_of_ranks)
{
    static float parts[RANKS][MOST], out[MOST];
    for (int i = 0; i < MOST; i++) {
        parts[0][i] = 1e8F;
        parts[1][i] = 1;
        parts[2][i] = i % 2 ? -1e8F : (float)i;
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        sum_as(rank, _i, TN_F32, parts, MOST, out);
        for (int i = 0; i < MOST; i++)
            ck_assert_float_eq(out[i], i % 2 ? 0 : 1e8F + (float)i);
    }
}
END_TEST

/* 256 + 1 + 1 is 258, and 256 where it is rounded in between. */
START_TEST(it_is_rounded_once)
{
    uint16_t parts[RANKS] = {tn_f32_to_bf16(256), tn_f32_to_bf16(1), tn_f32_to_bf16(1)}, out;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        sum_as(rank, _i, TN_BF16, parts, 1, &out);
        ck_assert_float_eq(tn_bf16_to_f32(out), 258);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("sums over ranks", 30);
    tcase_add_loop_test(tc, the_order_is_that_of_ranks, 0, 2);
    tcase_add_loop_test(tc, it_is_rounded_once, 0, 2);
    return suite_run();
}
