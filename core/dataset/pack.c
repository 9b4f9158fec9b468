/* tenon/dataset.h: the order of an epoch, and samples packed into rows. */
#include "base/random.h"
#include "base/structs.h"
#include "dataset/dataset.h"

#include <stdbool.h>
#include <stdlib.h>

/* ---- order ------------------------------------------------------------------------------------------- */

/* A number below limit, each as likely. */
static uint64_t below(random_state *r, uint64_t limit)
{
    uint64_t most = UINT64_MAX - UINT64_MAX % limit, bits;
    do
        bits = random_bits(r);
    while (bits >= most);
    return bits % limit;
}

void tn_dataset_order(int64_t count, uint64_t seed, int64_t epoch, int64_t *order)
{
    random_state r = {seed};
    if (!order || count <= 0)
        return;
    r.state = random_bits(&r) + (uint64_t)epoch; /* neighbouring seeds and epochs have nothing in common */
    r.state = random_bits(&r);
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = (int64_t)below(&r, (uint64_t)i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* Rows by how many tokens are left in them: a list for each number, and a bit where it is not empty. */
typedef struct packing {
    int64_t length, count, rows;
    int64_t *by_length; /* samples, the longest first                                              */
    int64_t *row_of, *next, *heads;
    uint64_t *bits;
} packing;

static void put(packing *p, int64_t row, int64_t left)
{
    p->next[row] = p->heads[left];
    p->heads[left] = row;
    p->bits[left / 64] |= UINT64_C(1) << left % 64;
}

/* The row with the least room that is enough, with what is left in it; -1: none. */
static int64_t take(packing *p, int64_t length, int64_t *left)
{
    uint64_t word = p->bits[length / 64] >> length % 64 << length % 64;
    int64_t i = length / 64, last = p->length / 64;
    while (word == 0 && i < last)
        word = p->bits[++i];
    if (word == 0)
        return -1;
    *left = i * 64 + __builtin_ctzll(word);
    int64_t row = p->heads[*left];
    p->heads[*left] = p->next[row];
    if (p->heads[*left] < 0)
        p->bits[i] &= ~(UINT64_C(1) << *left % 64);
    return row;
}

static int64_t length_of(const tn_dataset *d, int64_t i)
{
    tn_sample s = {.size = sizeof s};
    tn_dataset_sample(d, i, &s, NULL);
    return s.length;
}

/* By counting: where samples are as long, in their order. places: of length + 2. */
static void sort(packing *p, const tn_dataset *d, int64_t *places)
{
    for (int64_t i = 0; i < p->count; i++)
        places[p->length - length_of(d, i) + 1]++;
    for (int64_t k = 1; k <= p->length; k++)
        places[k] += places[k - 1];
    for (int64_t i = 0; i < p->count; i++)
        p->by_length[places[p->length - length_of(d, i)]++] = i;
}

static void fill(packing *p, const tn_dataset *d)
{
    for (int64_t left = 0; left <= p->length; left++)
        p->heads[left] = -1;
    for (int64_t i = 0; i < p->count; i++) {
        int64_t sample = p->by_length[i], length = length_of(d, sample), left = p->length;
        int64_t row = take(p, length, &left);
        row = row < 0 ? p->rows++ : row;
        p->row_of[sample] = row;
        put(p, row, left - length);
    }
}

/* Rows get the numbers in which their first samples come. */
static void write_rows(packing *p, int64_t *samples, int64_t *first)
{
    int64_t *number = p->next, known = 0; /* not needed any more */
    for (int64_t r = 0; r <= p->rows; r++)
        first[r] = 0;
    for (int64_t r = 0; r < p->rows; r++)
        number[r] = -1;
    for (int64_t i = 0; i < p->count; i++) {
        int64_t *n = &number[p->row_of[i]];
        *n = *n < 0 ? known++ : *n;
        first[*n + 1]++;
    }
    for (int64_t r = 0; r < p->rows; r++)
        first[r + 1] += first[r];
    for (int64_t i = 0; i < p->count; i++)
        samples[first[number[p->row_of[i]]]++] = i;
    for (int64_t r = p->rows; r > 0; r--)
        first[r] = first[r - 1];
    first[0] = 0;
}

static tn_status check(const tn_dataset *d, int64_t length, tn_error *err)
{
    for (int64_t i = 0; i < tn_dataset_count(d); i++)
        if (length_of(d, i) > length)
            return tn_fail(err, TN_E_USAGE, "length", "is %lld, and sample %lld has %lld tokens; allow longer rows",
                           (long long)length, (long long)i, (long long)length_of(d, i));
    return TN_OK;
}

int64_t tn_dataset_pack(const tn_dataset *d, int64_t length, int64_t *samples, int64_t *first, tn_error *err)
{
    if (!d || !samples || !first) {
        structs_missing(!d ? "dataset" : !samples ? "samples" : "first", err);
        return -1;
    }
    tn_dataset_info info = {.size = sizeof info};
    tn_dataset_get_info(d, &info);
    length = length > 0 ? length : dataset_max_length(d);
    if (check(d, length, err) != TN_OK)
        return -1;
    packing p = {.length = length < info.tokens ? length : info.tokens, .count = info.samples};
    size_t count = (size_t)p.count, places = (size_t)p.length + 2;
    int64_t *memory = calloc(3 * count + 2 * places, sizeof *memory);
    p.bits = calloc(places / 64 + 1, sizeof *p.bits);
    if (memory && p.bits) {
        p.by_length = memory;
        p.row_of = memory + count;
        p.next = memory + 2 * count;
        p.heads = memory + 3 * count;
        sort(&p, d, memory + 3 * count + places);
        fill(&p, d);
        write_rows(&p, samples, first);
    } else {
        p.rows = -1;
        tn_fail(err, TN_E_MEMORY, "rows", "out of memory for %zu samples", count);
    }
    free(memory);
    free(p.bits);
    return p.rows;
}
