/* How far two sets of logits are from each other. */
#include "verify/whole.h"

#include <math.h>
#include <stdlib.h>

/* One token's. */
typedef struct token_distance {
    double squares, largest, kl;
    bool same_top, skip, broken;
} token_distance;

typedef struct distance_work {
    const float *a, *b;
    int64_t vocab;
    token_distance *tokens;
} distance_work;

/* log of the sum of exp, without overflow. */
static double log_sum(const float *row, int64_t n, int64_t *top)
{
    double sum = 0;
    *top = 0;
    for (int64_t i = 1; i < n; i++)
        *top = row[i] > row[*top] ? i : *top;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)row[i] - (double)row[*top]);
    return log(sum) + (double)row[*top];
}

static token_distance compare_token(const float *a, const float *b, int64_t n)
{
    token_distance d = {0};
    int64_t top_a, top_b;
    for (int64_t i = 0; i < n; i++) {
        d.skip = d.skip || !isfinite(a[i]);
        d.broken = d.broken || !isfinite(b[i]);
    }
    if (d.skip || d.broken)
        return d;
    double of_a = log_sum(a, n, &top_a), of_b = log_sum(b, n, &top_b);
    for (int64_t i = 0; i < n; i++) {
        double distance = fabs((double)a[i] - (double)b[i]), log_p = (double)a[i] - of_a;
        d.squares += distance * distance;
        d.largest = fmax(d.largest, distance);
        d.kl += exp(log_p) * (log_p - ((double)b[i] - of_b));
    }
    d.kl = fmax(d.kl, 0);
    d.same_top = top_a == top_b;
    return d;
}

static void compare_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const distance_work *w = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        w->tokens[t] = compare_token(w->a + t * w->vocab, w->b + t * w->vocab, w->vocab);
}

tn_status whole_distance_of(const float *a, const float *b, int64_t count, int64_t vocab, double *each,
                            whole_distance *out, tn_error *err)
{
    whole_distance d = {0};
    distance_work w = {a, b, vocab, malloc((size_t)count * sizeof *w.tokens)};
    int64_t used = 0;
    if (!w.tokens)
        return whole_no_memory(err);
    tn_parallel_for(count, 1, compare_tokens, &w);
    for (int64_t t = 0; t < count; t++) {
        const token_distance *k = &w.tokens[t];
        each[t] = k->skip ? NAN : k->broken ? INFINITY : sqrt(k->squares / (double)vocab);
        if (k->skip)
            continue;
        used++;
        d.rms += k->broken ? INFINITY : k->squares;
        d.largest = k->broken ? INFINITY : fmax(d.largest, k->largest);
        d.kl_mean += k->broken ? INFINITY : k->kl;
        d.kl_max = k->broken ? INFINITY : fmax(d.kl_max, k->kl);
        d.top1 += k->same_top;
    }
    free(w.tokens);
    if (used > 0) {
        d.rms = sqrt(d.rms / ((double)used * (double)vocab));
        d.kl_mean /= (double)used;
        d.top1 /= (double)used;
    }
    *out = d;
    return TN_OK;
}

/* ---- perplexity ---------------------------------------------------------------------------------------------- */

typedef struct likelihood_work {
    const float *logits;
    const whole_text *text;
    int64_t vocab;
    double *nll;
} likelihood_work;

/* Of the token behind each; 0 for those whose next token is in another window. */
static void find_likelihoods(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const likelihood_work *w = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *row = w->logits + t * w->vocab;
        int64_t top;
        w->nll[t] = 0;
        if (t + 1 < w->text->count && (t + 1) % w->text->window != 0)
            w->nll[t] = log_sum(row, w->vocab, &top) - (double)row[w->text->ids[t + 1]];
    }
}

tn_status whole_distance_perplexity(const float *logits, const whole_text *text, int64_t vocab, double *perplexity,
                                    tn_error *err)
{
    likelihood_work w = {logits, text, vocab, malloc((size_t)text->count * sizeof *w.nll)};
    double sum = 0;
    int64_t predicted = text->count - (text->count + text->window - 1) / text->window;
    if (!w.nll)
        return whole_no_memory(err);
    tn_parallel_for(text->count, 1, find_likelihoods, &w);
    for (int64_t t = 0; t < text->count; t++)
        sum += w.nll[t];
    free(w.nll);
    *perplexity = predicted > 0 ? exp(sum / (double)predicted) : NAN;
    return TN_OK;
}
