/* Choosing a token from logits. */
#include "generate/sample.h"

#include "base/random.h"
#include "generate/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the best first: a heap over the candidates ---------------------------------------------- */

/* Larger logits first; of equal ones the lower id. */
static bool before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

static void sift_down(int32_t *heap, int64_t count, int64_t i, const float *logits)
{
    int32_t moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && before(logits, heap[child + 1], heap[child]))
            child++;
        if (!before(logits, heap[child], moved))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Moves the best of heap[count] to heap[count - 1] and returns it. */
static int32_t pop(int32_t *heap, int64_t count, const float *logits)
{
    int32_t best = heap[0], last = heap[count - 1];
    heap[count - 1] = best;
    if (count > 1) {
        heap[0] = last;
        sift_down(heap, count - 1, 0, logits);
    }
    return best;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static double weigh(const sampler *s, const float *logits, int32_t id, float largest)
{
    return weights_exp(((double)logits[id] - (double)largest) / s->temperature);
}

/* ---- what came before ------------------------------------------------------------------------ */

tn_status sample_see(sampler *s, const int64_t *ids, int64_t count, tn_error *err)
{
    for (int64_t i = 0; s->seen && i < count; i++) {
        if (ids[i] < 0 || ids[i] >= s->vocab)
            return tn_fail(err, TN_E_INPUT, "history", "token id %lld is outside the vocabulary of %lld",
                           (long long)ids[i], (long long)s->vocab);
        if (s->is_seen[ids[i]])
            continue;
        s->is_seen[ids[i]] = true;
        s->seen[s->seen_count++] = (int32_t)ids[i];
    }
    return TN_OK;
}

void sample_penalise(const sampler *s, float *logits)
{
    for (int64_t i = 0; i < s->seen_count; i++) {
        float *logit = &logits[s->seen[i]];
        *logit = *logit < 0 ? *logit * s->penalty : *logit / s->penalty;
    }
}

/* ---- which may be chosen --------------------------------------------------------------------- */

/* The largest of each BLOCK logits say where the best ones are, without a look at the others. */
enum { BLOCK = 128, LANES = 16 };

static int64_t blocks_of(const sampler *s)
{
    return (s->vocab + BLOCK - 1) / BLOCK;
}

/* The largest of n logits; *broken becomes true where one is NaN. Lanes, since compilers keep the order of one chain.
 */
static float largest_of(const float *logits, int64_t n, bool *broken)
{
    float lane[LANES], most = -INFINITY;
    int32_t nan[LANES] = {0};
    for (int k = 0; k < LANES; k++)
        lane[k] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float x = logits[i + k];
            lane[k] = x > lane[k] ? x : lane[k];
            nan[k] |= x != x;
        }
    for (; i < n; i++) {
        lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
        nan[0] |= logits[i] != logits[i];
    }
    for (int k = 0; k < LANES; k++) {
        most = lane[k] > most ? lane[k] : most;
        *broken = *broken || nan[k];
    }
    return most;
}

static tn_status fail_logits(const sampler *s, const char *what, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, "logits", "%s; %s", what,
                   s->changed ? "on_logits may change them, and must leave a choice among numbers"
                              : "the checkpoint may be damaged, or its numbers too large for the dtype");
}

/* Notes the blocks' largest and finds the best of all, the lowest id among equals. */
static tn_status scan_logits(const sampler *s, const float *logits, int64_t *best, tn_error *err)
{
    int64_t first = 0;
    bool broken = false;
    for (int64_t b = 0; b < blocks_of(s); b++) {
        int64_t left = s->vocab - b * BLOCK;
        s->peak[b] = largest_of(logits + b * BLOCK, left < BLOCK ? left : BLOCK, &broken);
        if (s->peak[b] > s->peak[first])
            first = b;
    }
    if (broken)
        return fail_logits(s, s->changed ? "there is a NaN" : "the model computed NaN", err);
    if (s->peak[first] == -INFINITY)
        return fail_logits(s, "no token is possible: all logits are -inf", err);
    for (*best = first * BLOCK; logits[*best] != s->peak[first]; ++*best)
        continue;
    return TN_OK;
}

/* Lists the candidates with logits of at least `least`, by their ids. */
static int64_t list_from(const sampler *s, const float *logits, float least)
{
    int64_t n = 0;
    for (int64_t b = 0; b < blocks_of(s); b++) {
        int64_t end = (b + 1) * BLOCK < s->vocab ? (b + 1) * BLOCK : s->vocab;
        for (int64_t i = b * BLOCK; i < end && s->peak[b] >= least; i++)
            if (logits[i] >= least && logits[i] > -INFINITY)
                s->order[n++] = (int32_t)i;
    }
    return n;
}

/* How many candidates there are, where these are not more than most. */
static int64_t count_some(const sampler *s, const float *logits, int64_t most)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->vocab && n <= most; i++)
        n += logits[i] > -INFINITY;
    return n;
}

/* At least n candidates, and all that are as good as the last of them; all there are where there are fewer. */
static int64_t list_best(const sampler *s, const float *logits, int64_t n)
{
    int64_t blocks = blocks_of(s);
    if (n >= blocks)
        return list_from(s, logits, -INFINITY);
    for (int64_t b = 0; b < blocks; b++)
        s->order[b] = (int32_t)b;
    for (int64_t i = blocks / 2 - 1; i >= 0; i--)
        sift_down(s->order, blocks, i, s->peak);
    for (int64_t i = 0; i < n - 1; i++)
        pop(s->order, blocks - i, s->peak);
    return list_from(s, logits, s->peak[s->order[0]]);
}

/* ---- the best of a list, one after the other -------------------------------------------------- */

/* Longer lists are sorted at once. */
enum { HEAP = 8192, RADIX = 11 };

/* Bits that grow with the number; both zeros are equal. */
static uint32_t ordered_bits(float logit)
{
    uint32_t bits;
    logit += 0.0f;
    memcpy(&bits, &logit, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

/* By RADIX bits of the logits at a time, from the least ones; of equal logits the order is kept, in which the lowest id
 * comes last. weight's memory, not in use yet, has the other list. */
static void sort_list(const sampler *s, const float *logits, int64_t count)
{
    int32_t *from = s->order, *to = (int32_t *)(void *)s->weight;
    for (int64_t i = 0; i < count; i++)
        to[count - 1 - i] = from[i];
    memcpy(from, to, (size_t)count * sizeof *from);
    for (int shift = 0; shift < 32; shift += RADIX) {
        int64_t place[1 << RADIX] = {0}, sum = 0;
        const uint32_t mask = (1u << RADIX) - 1;
        for (int64_t i = 0; i < count; i++)
            place[ordered_bits(logits[from[i]]) >> shift & mask]++;
        for (int d = 0; d < 1 << RADIX; d++) {
            int64_t n = place[d];
            place[d] = sum;
            sum += n;
        }
        for (int64_t i = 0; i < count; i++)
            to[place[ordered_bits(logits[from[i]]) >> shift & mask]++] = from[i];
        int32_t *other = from;
        from = to;
        to = other;
    }
    if (from != s->order)
        memcpy(s->order, from, (size_t)count * sizeof *from);
}

/* From now on order[count - 1 - i] is the i-th best once next_best has been asked for it, i growing from 0. */
static void begin_best(const sampler *s, const float *logits, int64_t count)
{
    if (count > HEAP)
        sort_list(s, logits, count);
    for (int64_t i = count / 2 - 1; i >= 0 && count <= HEAP; i--)
        sift_down(s->order, count, i, logits);
}

static int32_t next_best(const sampler *s, const float *logits, int64_t count, int64_t i)
{
    return count > HEAP ? s->order[count - 1 - i] : pop(s->order, count - i, logits);
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* The top_k best of the list, and all that equal the last of them, as in transformers; *total: of their weights. */
static int64_t keep_top_k(const sampler *s, const float *logits, int64_t count, float largest, double *total)
{
    int64_t kept = 0;
    *total = 0;
    for (; kept < count; kept++) {
        int32_t id = next_best(s, logits, count, kept);
        if (kept >= s->top_k && logits[id] != logits[s->order[count - kept]])
            break;
        s->weight[kept] = weigh(s, logits, id, largest);
        *total += s->weight[kept];
    }
    return kept;
}

/* A candidate stays while the better ones hold less than top_p of all; weighed: so many have their weights. */
static int64_t keep_top_p(const sampler *s, const float *logits, int64_t count, int64_t weighed, float largest,
                          double all, double *total)
{
    int64_t kept = 0;
    for (*total = 0; kept < count && *total < s->top_p * all; kept++) {
        if (kept >= weighed)
            s->weight[kept] = weigh(s, logits, next_best(s, logits, count, kept), largest);
        *total += s->weight[kept];
    }
    return kept;
}

/* Lists enough of the best to hold top_p of all weights, whose sum *all becomes. */
static int64_t list_top_p(const sampler *s, const float *logits, float largest, double *all)
{
    int64_t count, every = count_some(s, logits, s->vocab);
    weights_all(logits, s->vocab, (double)largest, s->temperature, s->weight);
    *all = weights_sum(s->weight, s->vocab);
    for (int64_t n = 64; n < blocks_of(s); n *= 4) {
        double held = 0;
        count = list_best(s, logits, n);
        if (count > HEAP || count == every)
            break;
        for (int64_t i = 0; i < count; i++)
            held += weigh(s, logits, s->order[i], largest);
        /* Rounding, by the order of the sum, must not matter. */
        if (held * (1 - 1e-9) >= s->top_p * *all)
            return count;
    }
    return list_from(s, logits, -INFINITY);
}

/* top_k and top_p: sorted, at the end of order[*count]; their weights and the sum of these. */
static int64_t keep_best(const sampler *s, const float *logits, float largest, int64_t *count, double *total)
{
    double all = 0;
    *count = s->top_k ? list_best(s, logits, s->top_k) : list_top_p(s, logits, largest, &all);
    begin_best(s, logits, *count);
    if (!s->top_k)
        return keep_top_p(s, logits, *count, 0, largest, all, total);
    int64_t kept = keep_top_k(s, logits, *count, largest, &all);
    *total = all;
    return s->top_p < 1 ? keep_top_p(s, logits, kept, kept, largest, all, total) : kept;
}

/* min_p, of kept candidates whose weights fall: the best has weight 1. */
static int64_t cut_unlikely(const sampler *s, int64_t kept, double *total)
{
    for (; kept > 1 && s->weight[kept - 1] < s->min_p; kept--)
        *total -= s->weight[kept - 1];
    return kept;
}

/* All candidates that min_p leaves, by their ids. The first look is generous by more than roundings. */
static int64_t keep_likely(const sampler *s, const float *logits, float largest)
{
    double least = (double)largest + s->temperature * log(s->min_p);
    int64_t kept = 0, count = list_from(s, logits, (float)(least - 1e-5 * (fabs(least) + fabs((double)largest))));
    for (int64_t i = 0; i < count; i++) {
        s->weight[kept] = weigh(s, logits, s->order[i], largest);
        if (s->weight[kept] >= s->min_p)
            s->order[kept++] = s->order[i];
    }
    return kept;
}

tn_status sample_pick(const sampler *s, const float *logits, int64_t position, int64_t *id, tn_error *err)
{
    int64_t best = 0;
    tn_status status = scan_logits(s, logits, &best, err);
    if (status != TN_OK)
        return status;
    *id = best;
    if (s->temperature == 0)
        return TN_OK;
    if (logits[best] == INFINITY)
        return fail_logits(s, s->changed ? "one is infinite" : "the model computed an infinite logit", err);
    /* Rounding may leave the sum below the target after the last one: then that one is it. */
    random_state random = {s->key + (uint64_t)position * RANDOM_STEP};
    const double drawn = random_uniform(&random);
    bool sorted = (s->top_k && count_some(s, logits, s->top_k) > s->top_k) || s->top_p < 1;
    if (!sorted && s->min_p == 0) {
        weights_all(logits, s->vocab, (double)logits[best], s->temperature, s->weight);
        *id = weights_find(s->weight, s->vocab, drawn * weights_sum(s->weight, s->vocab));
        return TN_OK;
    }
    int64_t kept, count;
    double total = 0, sum = 0;
    if (sorted) {
        kept = keep_best(s, logits, logits[best], &count, &total);
        kept = cut_unlikely(s, kept, &total);
    } else {
        kept = keep_likely(s, logits, logits[best]);
        for (int64_t i = 0; i < kept; i++)
            total += s->weight[i];
    }
    int64_t i = 0;
    while (i < kept - 1 && (sum += s->weight[i]) <= drawn * total)
        i++;
    *id = sorted ? s->order[count - 1 - i] : s->order[i];
    return TN_OK;
}

tn_status sample_init(sampler *s, const tn_generate_options *options, int64_t vocab, tn_error *err)
{
    *s = (sampler){.vocab = vocab,
                   .top_k = options->top_k,
                   .temperature = options->temperature,
                   .top_p = options->top_p == 0 ? 1 : options->top_p,
                   .min_p = options->min_p,
                   .changed = options->on_logits != NULL,
                   .penalty = options->repetition_penalty == 0 ? 1 : (float)options->repetition_penalty};
    s->key = random_bits(&(random_state){options->seed});
    if (!isfinite(options->temperature) || options->temperature < 0)
        return tn_fail(err, TN_E_USAGE, "temperature", "%g is not a finite number of at least 0", options->temperature);
    if (!(options->top_p >= 0 && options->top_p <= 1))
        return tn_fail(err, TN_E_USAGE, "top_p", "%g is not between 0 and 1", options->top_p);
    if (options->top_k < 0)
        return tn_fail(err, TN_E_USAGE, "top_k", "%lld is negative", (long long)options->top_k);
    if (vocab < 1 || vocab > INT32_MAX)
        return tn_fail(err, TN_E_INTERNAL, "sampling", "a vocabulary of %lld tokens", (long long)vocab);
    if (!(options->min_p >= 0 && options->min_p <= 1))
        return tn_fail(err, TN_E_USAGE, "min_p", "%g is not between 0 and 1", options->min_p);
    if (!(s->penalty > 0 && isfinite(s->penalty)))
        return tn_fail(err, TN_E_USAGE, "repetition_penalty", "%g is not a finite number above 0",
                       options->repetition_penalty);
    if (s->penalty != 1) {
        s->seen = malloc((size_t)vocab * sizeof *s->seen);
        s->is_seen = calloc((size_t)vocab, sizeof *s->is_seen);
        if (!s->seen || !s->is_seen)
            return tn_fail(err, TN_E_MEMORY, "sampling", "out of memory for %lld tokens", (long long)vocab);
    }
    s->peak = malloc((size_t)blocks_of(s) * sizeof *s->peak);
    if (!s->peak)
        return tn_fail(err, TN_E_MEMORY, "sampling", "out of memory for %lld tokens", (long long)vocab);
    if (s->temperature == 0)
        return TN_OK;
    s->order = malloc((size_t)vocab * sizeof *s->order);
    s->weight = malloc((size_t)vocab * sizeof *s->weight);
    if (!s->order || !s->weight)
        return tn_fail(err, TN_E_MEMORY, "sampling", "out of memory for %lld tokens", (long long)vocab);
    return TN_OK;
}

void sample_close(sampler *s)
{
    free(s->peak);
    free(s->order);
    free(s->weight);
    free(s->seen);
    free(s->is_seen);
    *s = (sampler){0};
}
