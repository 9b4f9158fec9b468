/* Choosing a token from logits. */
#include "generate/sample.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>

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
    return exp(((double)logits[id] - (double)largest) / s->temperature);
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

/* ---- drawing --------------------------------------------------------------------------------- */

/* Keeps the best of order[count], sorted, at its end: order[count - 1 - i] is the i-th, s->weight[i] its weight.
 * Returns how many; *total is the sum of their weights. */
static int64_t keep_best(const sampler *s, const float *logits, int64_t count, float largest, double *total)
{
    int64_t kept = 0;
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        sift_down(s->order, count, i, logits);
    double all = 0, above = 0;
    if (s->top_k) {
        /* All that equal the last of the k stay, as in transformers. */
        while (kept < count && (kept < s->top_k || logits[s->order[0]] == logits[s->order[count - kept]])) {
            int32_t id = pop(s->order, count - kept, logits);
            s->weight[kept++] = weigh(s, logits, id, largest);
            all += s->weight[kept - 1];
        }
        count = kept;
    } else {
        for (int64_t i = 0; i < count; i++)
            all += weigh(s, logits, s->order[i], largest);
    }
    *total = all;
    if (s->top_p >= 1)
        return kept;
    /* A candidate stays while the better ones hold less than top_p. */
    int64_t chosen = 0;
    for (; chosen < count && above < s->top_p * all; chosen++) {
        if (!s->top_k)
            s->weight[chosen] = weigh(s, logits, pop(s->order, count - chosen, logits), largest);
        above += s->weight[chosen];
    }
    *total = above;
    return chosen;
}

/* min_p, of kept candidates whose weights fall: the best has weight 1. */
static int64_t cut_unlikely(const sampler *s, int64_t kept, double *total)
{
    for (; kept > 1 && s->weight[kept - 1] < s->min_p; kept--)
        *total -= s->weight[kept - 1];
    return kept;
}

/* min_p, of candidates in any order. */
static int64_t keep_likely(const sampler *s, const float *logits, int64_t count, float largest)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (weigh(s, logits, s->order[i], largest) >= s->min_p)
            s->order[kept++] = s->order[i];
    return kept;
}

static tn_status fail_logits(const sampler *s, const char *what, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, "logits", "%s; %s", what,
                   s->changed ? "on_logits may change them, and must leave a choice among numbers"
                              : "the checkpoint may be damaged, or its numbers too large for the dtype");
}

/* Lists the candidates in order (unless NULL) and finds the best, the lowest id among equals. */
static tn_status scan_logits(const sampler *s, const float *logits, int64_t *count, int64_t *best, tn_error *err)
{
    int64_t n = 0, at = -1;
    for (int64_t i = 0; i < s->vocab; i++) {
        if (isnan(logits[i]))
            return fail_logits(s, s->changed ? "there is a NaN" : "the model computed NaN", err);
        if (logits[i] == -INFINITY)
            continue;
        if (s->order)
            s->order[n] = (int32_t)i;
        n++;
        if (at < 0 || logits[i] > logits[at])
            at = i;
    }
    if (at < 0)
        return fail_logits(s, "no token is possible: all logits are -inf", err);
    *count = n;
    *best = at;
    return TN_OK;
}

tn_status sample_pick(const sampler *s, const float *logits, int64_t position, int64_t *id, tn_error *err)
{
    int64_t count = 0, best = 0;
    tn_status status = scan_logits(s, logits, &count, &best, err);
    if (status != TN_OK)
        return status;
    *id = best;
    if (s->temperature == 0)
        return TN_OK;
    if (logits[best] == INFINITY)
        return fail_logits(s, s->changed ? "one is infinite" : "the model computed an infinite logit", err);
    bool sorted = (s->top_k && s->top_k < count) || s->top_p < 1;
    if (!sorted && s->min_p > 0)
        count = keep_likely(s, logits, count, logits[best]);
    int64_t kept = count;
    double total = 0, sum = 0;
    if (sorted) {
        kept = keep_best(s, logits, count, logits[best], &total);
        kept = cut_unlikely(s, kept, &total);
    } else {
        for (int64_t i = 0; i < count; i++)
            total += s->weight[i] = weigh(s, logits, s->order[i], logits[best]);
    }
    /* Rounding may leave the sum below the target after the last one: then that one is it. */
    random_state random = {s->key + (uint64_t)position * RANDOM_STEP};
    double target = random_uniform(&random) * total;
    int64_t i = 0;
    while (i < kept - 1 && (sum += s->weight[i]) <= target)
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
    free(s->order);
    free(s->weight);
    free(s->seen);
    free(s->is_seen);
    *s = (sampler){0};
}
