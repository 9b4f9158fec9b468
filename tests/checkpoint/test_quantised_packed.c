/* Codes in words, in every direction, against a reader that looks for one code at a time. */
#include "checkpoint/quantised.h"
#include "suite.h"

#include <stdlib.h>
#include <string.h>

typedef struct layout {
    int bits;
    bool columns, lanes; /* as in quantised_packed                                                       */
    bool scattered;      /* words of a stream are not side by side                                       */
} layout;

static const layout layouts[] = {
    {2, false, false, true},  {3, false, false, true},  {4, false, false, true},  {8, false, false, true},
    {2, false, false, false}, {3, false, false, false}, {4, false, false, false}, {5, false, false, false},
    {6, false, false, false}, {7, false, false, false}, {8, false, false, false}, {4, true, true, false},
    {2, true, false, false},  {3, true, false, true},   {4, true, false, true},   {8, true, false, false},
};

/* Rows and columns: within and beyond tiles, and of whole words or not. */
static const int64_t sizes[][2] = {{32, 32}, {8, 8}, {96, 288}, {160, 520}, {72, 1056}, {200, 56}, {40, 33}};

/* One bit after the other. */
static int code_at(const quantised_packed *p, int64_t row, int64_t column)
{
    static const int lanes[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    int64_t stream = p->columns ? column : row, at = p->columns ? row : column;
    int code = 0;
    if (p->lanes)
        at = at / 8 * 8 + lanes[at % 8];
    for (int bit = 0; bit < p->bits; bit++) {
        int64_t place = at * p->bits + bit;
        uint32_t word;
        memcpy(&word, p->words + stream * p->next + place / 32 * p->step, sizeof word);
        code |= (int)(word >> place % 32 & 1) << bit;
    }
    return code;
}

/* What was written for an element, as a number whose middle is 0. */
static int read_back(const tn_tensor *t, int64_t row, int64_t column)
{
    int64_t at = row * t->shape[1] + column;
    if (t->dtype == TN_I8)
        return ((const int8_t *)t->data)[at];
    return (((const uint8_t *)t->data)[at / 2] >> (at % 2 * 4) & 15) - 8;
}

static void check_size(const layout *l, int64_t rows, int64_t columns, shards *set)
{
    tn_error err = TN_ERROR_INIT;
    const quantised q = {.set = set, .loop = tn_parallel_for, .err = &err};
    const quantised_part part = {.name = "x", .file = "file"};
    int64_t streams = l->columns ? columns : rows, length = l->columns ? rows : columns;
    int64_t words = (length * l->bits + 31) / 32, bytes = streams * words * 4;
    char *memory = malloc((size_t)bytes + 1);
    ck_assert_ptr_nonnull(memory);
    quantised_packed p = {.words = memory + 1, .bits = l->bits, .columns = l->columns, .lanes = l->lanes};
    p.step = l->scattered ? streams * 4 : 4;
    p.next = l->scattered ? 4 : words * 4;
    for (int64_t i = 0; i <= bytes; i++)
        memory[i] = (char)(rand() >> 5);
    tn_dtype dtype = quantised_code_type(l->bits, columns);
    tn_tensor t;
    tn_status status =
        quantised_unpack(&q, &part, &p, rows, columns, dtype, quantised_shift(l->bits, dtype), UINT8_MAX, &t);
    ck_assert_int_eq(status, TN_OK);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            ck_assert_msg(read_back(&t, row, column) == code_at(&p, row, column) - (1 << (l->bits - 1)),
                          "%d bits, %d%d%d, [%lld,%lld] of [%lld,%lld]", l->bits, l->columns, l->lanes, l->scattered,
                          (long long)row, (long long)column, (long long)rows, (long long)columns);
    free(memory);
}

START_TEST(every_layout)
{
    tn_error err = TN_ERROR_INIT;
    shards *set = shards_record(TN_BF16, &err);
    ck_assert_ptr_nonnull(set);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_size(&layouts[_i], sizes[i][0], sizes[i][1], set);
    shards_close(set);
}
END_TEST

int main(void)
{
    tcase_add_loop_test(suite_open("quantised_packed", 0), every_layout, 0, sizeof layouts / sizeof layouts[0]);
    return suite_run();
}
