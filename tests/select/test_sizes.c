/* Which sizes of calls count as met: every number that a kernel sees, by itself, by its class and by its remainder. */
#include "select/sizes.h"
#include "op/op.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static sizes met;

/* A call's shapes; the data of experts and groups is given. */
static tn_call call_of(tn_op op, const tn_site *site, int64_t batch, int64_t tokens, int64_t cached)
{
    const op_row *row = op_find(op);
    op_free f = op_free_of(row, batch, tokens, cached);
    return op_call_of(row, site, &f);
}

static bool meets(tn_op op, int64_t batch, int64_t tokens, int64_t cached)
{
    tn_site site = {.size = sizeof site, .op = op};
    site.dim[TN_DIM_HEAD] = site.dim[TN_DIM_KV_HEADS] = site.dim[TN_DIM_Q_HEADS] = site.dim[TN_DIM_WIDTH] = 8;
    site.dim[TN_DIM_HIDDEN] = site.dim[TN_DIM_OUT] = 8;
    tn_call call = call_of(op, &site, batch, tokens, cached);
    bool known = sizes_meet(&met, &call, false);
    sizes_meet(&met, &call, true);
    ck_assert(sizes_meet(&met, &call, false));
    return known;
}

START_TEST(numbers_of_tokens_are_exact)
{
    for (int64_t n = 0; n <= 1024; n++)
        ck_assert_msg(!meets(TN_OP_LINEAR, 1, n, 0), "%lld", (long long)n);
    for (int64_t n = 0; n <= 1024; n++)
        ck_assert(meets(TN_OP_LINEAR, 1, n, 0));
}
END_TEST

/* Beyond: by what is behind whole blocks, and within 7 per cent. */
START_TEST(large_numbers_by_class_and_remainder)
{
    for (int64_t n = 4096; n < 4096 + 64; n++)
        ck_assert_msg(!meets(TN_OP_LINEAR, 1, n, 0), "%lld", (long long)n);
    ck_assert(meets(TN_OP_LINEAR, 1, 4096 + 100, 0));
    ck_assert(!meets(TN_OP_LINEAR, 1, 4096 + 4096 / 14, 0));
    for (double n = 1 << 13; n < 1e15; n *= 1.07)
        ck_assert_msg(!meets(TN_OP_LINEAR, 1, (int64_t)n, 0) || n > (1u << 31), "%g", n);
}
END_TEST

START_TEST(rows_are_told_from_tokens)
{
    ck_assert(!meets(TN_OP_ROPE, 1, 12, 0));
    ck_assert(!meets(TN_OP_ROPE, 3, 4, 0));
    ck_assert(!meets(TN_OP_ROPE, 4, 3, 0));
    ck_assert(meets(TN_OP_ROPE, 3, 4, 0));
    ck_assert(!meets(TN_OP_ROPE, 2, 6, 0));
}
END_TEST

/* A text of 20,000 tokens, one after the other: each number of keys to 128, each remainder once, each class once. */
START_TEST(decoding_pays_seldom)
{
    int64_t new_ones = 0, last = 0;
    for (int64_t keys = 1; keys <= 20000; keys++) {
        bool known = meets(TN_OP_ATTENTION, 1, 1, keys);
        new_ones += !known;
        ck_assert(keys > 128 || !known);
        if (!known && keys > 256) {
            ck_assert_msg(keys <= last + last / 14, "%lld after %lld", (long long)keys, (long long)last);
        }
        last = known ? last : keys;
    }
    ck_assert_int_lt(new_ones, 128 + 64 + 8 * 16);
    ck_assert(meets(TN_OP_ATTENTION, 1, 1, 16385));
    ck_assert(!meets(TN_OP_ATTENTION, 1, 2, 16385)); /* another number of queries ...                       */
    ck_assert(!meets(TN_OP_ATTENTION, 1, 64, 16385));
    ck_assert(!meets(TN_OP_ATTENTION, 1, 64, 10001)); /* ... sees other numbers of keys, too                 */
}
END_TEST

/* Five tokens, of which the first experts get so many. */
static bool meets_experts(int32_t first)
{
    tn_site site = {.size = sizeof site, .op = TN_OP_MOE_EXPERTS};
    site.dim[TN_DIM_EXPERTS] = 4;
    site.dim[TN_DIM_TOP_K] = 1;
    site.dim[TN_DIM_HIDDEN] = 8;
    int32_t chosen[5] = {2, 3, 1, 7, -1}; /* two are no experts                                           */
    for (int32_t i = 0; i < first; i++)
        chosen[i] = 0;
    tn_call call = call_of(TN_OP_MOE_EXPERTS, &site, 1, 5, 0);
    call.in[2].data = chosen;
    return sizes_meet(&met, &call, true);
}

START_TEST(tokens_of_an_expert_count)
{
    ck_assert(!meets_experts(0));
    ck_assert(meets_experts(0));
    ck_assert(!meets_experts(2));
    ck_assert(!meets_experts(5));
    ck_assert(meets_experts(2));
    ck_assert(meets_experts(1));
}
END_TEST

START_TEST(rows_of_a_group_count)
{
    tn_site site = {.size = sizeof site, .op = TN_OP_GROUPED_MATMUL};
    site.dim[TN_DIM_EXPERTS] = 2;
    site.dim[TN_DIM_HIDDEN] = site.dim[TN_DIM_OUT] = 8;
    tn_call call = call_of(TN_OP_GROUPED_MATMUL, &site, 1, 9, 0);
    int64_t counts[2] = {4, 5};
    call.in[1].data = counts;
    ck_assert(!sizes_meet(&met, &call, true));
    counts[0] = 5;
    counts[1] = 4;
    ck_assert(sizes_meet(&met, &call, true));
    counts[0] = 2;
    counts[1] = 7;
    ck_assert(!sizes_meet(&met, &call, true));
}
END_TEST

START_TEST(as_text_and_back)
{
    text word = {0};
    sizes back, other = {{0}};
    meets(TN_OP_LINEAR, 1, 77, 0);
    meets(TN_OP_ATTENTION, 2, 1, 70000);
    sizes_write(&met, &word);
    text_add(&word, "\n");
    ck_assert(sizes_read(&back, word.data));
    ck_assert_mem_eq(&back, &met, sizeof met);
    sizes_join(&other, &back);
    ck_assert_mem_eq(&other, &met, sizeof met);
    word.data[100] = 'g';
    ck_assert(!sizes_read(&back, word.data));
    word.data[100] = '\0';
    ck_assert(!sizes_read(&back, word.data));
    ck_assert(!sizes_read(&back, ""));
    free(word.data);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("sizes", 0);
    suite_add(tc, numbers_of_tokens_are_exact, large_numbers_by_class_and_remainder, rows_are_told_from_tokens,
              decoding_pays_seldom, tokens_of_an_expert_count, rows_of_a_group_count, as_text_and_back);
    return suite_run();
}
