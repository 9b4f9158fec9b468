/* Samples of a model: tokens already, their order in an epoch, and rows that they are packed into, against a slow and
 * obvious packing. */
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static char *put(const char *name, const char *text)
{
    char *folder = tempdir_new();
    tempdir_put(folder, name, text);
    return tempdir_at(folder, name);
}

/* Models without a tokenizer learn tokens. */
START_TEST(tokens_need_no_tokenizer)
{
    static const char *const path[] = {"tests/data/dataset/tokens.jsonl"};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_dataset *d = tn_dataset_open(m, path, 1, NULL, &err);
    ck_assert_msg(d != NULL, "%s: %s", err.where, err.message);
    tn_sample s = {.size = sizeof s};
    tn_dataset_sample(d, 0, &s, NULL);
    ck_assert_int_eq(tn_dataset_count(d), 2);
    ck_assert_int_eq(s.length, 5);
    ck_assert_int_eq(s.labels[1], TN_NO_LABEL);
    ck_assert_int_eq(s.labels[4], 5);
    ck_assert_int_eq(tn_dataset_sample(d, 2, &s, &err), TN_E_USAGE);
    tn_dataset_close(d);
    char *text = put("a.jsonl", "{\"text\": \"a b\"}");
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(tn_dataset_open(m, (const char *const[]){text}, 1, NULL, &err));
    suite_expect_in(err.message, "needs a tokenizer: ");
}
END_TEST

/* Samples of so many tokens. */
static tn_dataset *dataset_of(const int64_t *lengths, int64_t count)
{
    size_t size = 0, room = 1 << 20;
    char *text = malloc(room);
    tn_error err = TN_ERROR_INIT;
    for (int64_t i = 0; i < count; i++) {
        size += (size_t)snprintf(text + size, room - size, "{\"input_ids\": [%d", (int)(i % 7));
        for (int64_t k = 1; k < lengths[i]; k++)
            size += (size_t)snprintf(text + size, room - size, ",1");
        size += (size_t)snprintf(text + size, room - size, "]}\n");
    }
    char *path = put("a.jsonl", text);
    free(text);
    const tn_dataset_options options = {.size = sizeof options, .max_length = 64};
    tn_dataset *d =
        tn_dataset_open(test_model("llama", .dtype = "f32"), (const char *const[]){path}, 1, &options, &err);
    ck_assert_msg(d != NULL, "%s: %s", err.where, err.message);
    return d;
}

/* How many rows best fit decreasing makes, by looking at every row for every sample. */
static int64_t rows_of(const int64_t *lengths, int64_t count, int64_t length)
{
    int64_t *left = calloc((size_t)count, sizeof *left), rows = 0;
    for (int64_t size = length; size > 0; size--)
        for (int64_t i = 0; i < count; i++) {
            int64_t best = -1;
            for (int64_t r = 0; lengths[i] == size && r < rows; r++)
                if (left[r] >= size && (best < 0 || left[r] < left[best]))
                    best = r;
            if (lengths[i] == size && best < 0)
                left[best = rows++] = length;
            if (lengths[i] == size)
                left[best] -= size;
        }
    free(left);
    return rows;
}

START_TEST(samples_are_packed_where_least_is_left)
{
    enum { COUNT = 500 };
    int64_t lengths[COUNT], samples[COUNT], first[COUNT + 1], seen[COUNT] = {0};
    uint32_t state = 7;
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525 + 1013904223;
        lengths[i] = 2 + (state >> 16) % 60;
    }
    tn_dataset *d = dataset_of(lengths, COUNT);
    const int64_t lengths_of_rows[] = {61, 64, 65, 100, 1000, INT64_MAX};
    for (size_t k = 0; k < sizeof lengths_of_rows / sizeof *lengths_of_rows; k++) {
        int64_t length = lengths_of_rows[k], rows = tn_dataset_pack(d, length, samples, first, NULL);
        ck_assert_int_eq(rows, k < 5 ? rows_of(lengths, COUNT, length) : 1);
        ck_assert_int_eq(first[0], 0);
        ck_assert_int_eq(first[rows], COUNT);
        for (int64_t r = 0; r < rows; r++) {
            int64_t tokens = 0;
            for (int64_t i = first[r]; i < first[r + 1]; i++) {
                ck_assert(i == first[r] || samples[i] > samples[i - 1]);
                ck_assert_int_eq(seen[samples[i]]++, (int64_t)k);
                tokens += lengths[samples[i]];
            }
            ck_assert_int_le(tokens, length);
            ck_assert(r == 0 || samples[first[r]] > samples[first[r - 1]]);
        }
    }
    tn_dataset_close(d);
}
END_TEST

START_TEST(a_sample_longer_than_a_row_is_refused)
{
    const int64_t lengths[] = {5, 9, 3};
    int64_t samples[3], first[4];
    tn_error err = TN_ERROR_INIT;
    tn_dataset *d = dataset_of(lengths, 3);
    ck_assert_int_eq(tn_dataset_pack(d, 8, samples, first, &err), -1);
    ck_assert_int_eq(err.code, TN_E_USAGE);
    suite_expect_in(err.message, "sample 1 has 9 tokens");
    ck_assert_int_eq(tn_dataset_pack(d, 0, samples, first, NULL), 1); /* of the dataset's own length: 64 */
    ck_assert_int_eq(tn_dataset_pack(d, 9, samples, first, NULL), 2);
    ck_assert_int_eq(samples[first[0]], 0);
    ck_assert_int_eq(samples[first[0] + 1], 2);
    tn_dataset_close(d);
}
END_TEST

/* It is part of what a run repeats by, so it stays as it is. */
START_TEST(an_order_depends_on_seed_and_epoch_alone)
{
    enum { COUNT = 1000 };
    int64_t a[COUNT], b[COUNT], small[8];
    int differ = 0, seen[COUNT] = {0};
    tn_dataset_order(8, 42, 0, small);
    const int64_t known[] = {4, 3, 2, 1, 0, 5, 7, 6};
    ck_assert_mem_eq(small, known, sizeof small);
    tn_dataset_order(COUNT, 42, 0, a);
    tn_dataset_order(COUNT, 42, 0, b);
    ck_assert_mem_eq(a, b, sizeof a);
    tn_dataset_order(COUNT, 42, 1, b);
    for (int i = 0; i < COUNT; i++) {
        seen[a[i]]++;
        differ += a[i] != b[i];
    }
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(seen[i], 1);
    ck_assert_int_gt(differ, COUNT * 9 / 10);
    tn_dataset_order(COUNT, 43, 0, b);
    ck_assert_mem_ne(a, b, sizeof a);
    tn_dataset_order(COUNT, 41, 1, b); /* seed and epoch are not one number */
    ck_assert_mem_ne(a, b, sizeof a);
    tn_dataset_order(0, 42, 0, NULL);
}
END_TEST

/* Each sample comes first about as often. */
START_TEST(every_place_is_as_likely)
{
    enum { COUNT = 5, TIMES = 5000 };
    int64_t order[COUNT];
    int counts[COUNT] = {0};
    for (int epoch = 0; epoch < TIMES; epoch++) {
        tn_dataset_order(COUNT, 1, epoch, order);
        counts[order[0]]++;
    }
    for (int i = 0; i < COUNT; i++) /* six deviations of a binomial distribution: sqrt(5000 * 0.2 * 0.8) = 28.3 */
        ck_assert_int_lt(abs(counts[i] - TIMES / COUNT), 170);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("packing", 60);
    suite_add(all, tokens_need_no_tokenizer, samples_are_packed_where_least_is_left,
              a_sample_longer_than_a_row_is_refused, an_order_depends_on_seed_and_epoch_alone,
              every_place_is_as_likely);
    return suite_run();
}
