/* The log-probabilities of generated tokens. */
#include "logprobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tn_status logprobs_open(logprobs *l, int64_t most, int64_t vocab, const tn_tokenizer *tokenizer, tn_error *err)
{
    *l = (logprobs){.tokenizer = tokenizer, .most = most, .vocab = vocab, .list = json_array()};
    l->logits = malloc((size_t)vocab * sizeof *l->logits);
    return l->logits && l->list ? TN_OK : tn_fail(err, TN_E_MEMORY, "--logprobs", "out of memory; leave it out");
}

void logprobs_close(logprobs *l)
{
    json_decref(l->list);
    free(l->logits);
    *l = (logprobs){0};
}

void logprobs_see(logprobs *l, const float *logits)
{
    memcpy(l->logits, logits, (size_t)l->vocab * sizeof *logits);
}

/* The logarithm of the sum of all exponentials. */
static double log_sum(const logprobs *l)
{
    /* Not fmax() of doubles: GCC 12 for AArch64 breaks down on a vector of these. */
    float largest = l->logits[0];
    for (int64_t i = 1; i < l->vocab; i++)
        largest = l->logits[i] > largest ? l->logits[i] : largest;
    double sum = exp((double)l->logits[0] - (double)largest);
    for (int64_t i = 1; i < l->vocab; i++)
        sum += exp((double)l->logits[i] - (double)largest);
    return (double)largest + log(sum);
}

/* The likeliest, best first; of equal ones the lower id. Returns how many. */
static int64_t find_best(const logprobs *l, int64_t best[LOGPROBS_MOST])
{
    int64_t count = 0;
    for (int64_t i = 0; i < l->vocab && l->most > 0; i++) {
        if (count == l->most && !(l->logits[i] > l->logits[best[count - 1]]))
            continue;
        int64_t at = count < l->most ? count++ : count - 1;
        for (; at > 0 && l->logits[i] > l->logits[best[at - 1]]; at--)
            best[at] = best[at - 1];
        best[at] = i;
    }
    return count;
}

/* {"id", "text", "logprob"}; text null: no tokenizer. A part of a character is U+FFFD. NULL: err says why. */
static json_t *describe(const logprobs *l, int64_t id, double sum, tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    if (l->tokenizer && tn_tokenizer_decode(l->tokenizer, &id, 1, false, &text, &length, err))
        return NULL;
    json_t *one =
        json_pack("{s:I, s:o, s:o}", "id", (json_int_t)id, "text", text ? json_stringn(text, length) : json_null(),
                  "logprob", json_number((double)l->logits[id] - sum));
    free(text);
    if (!one)
        tn_fail(err, TN_E_MEMORY, "--logprobs", "out of memory; leave it out");
    return one;
}

tn_status logprobs_token(logprobs *l, int64_t id, tn_error *err)
{
    int64_t best[LOGPROBS_MOST], count = find_best(l, best);
    double sum = log_sum(l);
    json_t *token = describe(l, id, sum, err), *top = json_array();
    bool whole = token && top;
    for (int64_t i = 0; i < count && whole; i++)
        whole = json_array_append_new(top, describe(l, best[i], sum, err)) == 0;
    whole = whole && json_object_set(token, "top", top) == 0 && json_array_append(l->list, token) == 0;
    json_decref(top);
    json_decref(token);
    return whole ? TN_OK : tn_fail(err, TN_E_MEMORY, "--logprobs", "out of memory; leave it out");
}
