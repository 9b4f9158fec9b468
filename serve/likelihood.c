/* Log-probabilities. */
#include "likelihood.h"

#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool likelihood_see(likelihood *l, const float *logits)
{
    size_t bytes = (size_t)l->api->info.vocab * sizeof *logits;
    if (!l->logits && !(l->logits = malloc(bytes)))
        return false;
    memcpy(l->logits, logits, bytes);
    l->seen = true;
    return true;
}

void likelihood_free(likelihood *l)
{
    free(l->logits);
    l->logits = NULL;
    l->seen = false;
}

/* The logarithm of the sum of all exponentials. */
static double log_sum(const likelihood *l)
{
    int64_t vocab = l->api->info.vocab;
    float largest = l->logits[0];
    for (int64_t i = 1; i < vocab; i++)
        largest = l->logits[i] > largest ? l->logits[i] : largest;
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        sum += exp((double)l->logits[i] - (double)largest);
    return (double)largest + log(fmax(sum, 1)); /* the largest alone brings 1                             */
}

/* The likeliest, best first; of equal ones the lower id. Returns how many. */
static int64_t find_best(const likelihood *l, int64_t best[SAMPLING_MOST_TOP])
{
    int64_t count = 0, most = l->top < l->api->info.vocab ? l->top : l->api->info.vocab;
    for (int64_t i = 0; i < l->api->info.vocab && most > 0; i++) {
        if (count == most && !(l->logits[i] > l->logits[best[count - 1]]))
            continue;
        int64_t at = count < most ? count++ : count - 1;
        for (; at > 0 && l->logits[i] > l->logits[best[at - 1]]; at--)
            best[at] = best[at - 1];
        best[at] = i;
    }
    return count;
}

static double logprob_of(const likelihood *l, int64_t id, double sum)
{
    double value = (double)l->logits[id] - sum;
    return value > LIKELIHOOD_LEAST ? (value < 0 ? value : 0) : LIKELIHOOD_LEAST;
}

/* ---- tokens as text ----------------------------------------------------------------------------- */

/* Bytes of a token, or the text of a special one. false: no memory. */
static bool bytes_of(const api *a, int64_t id, char **bytes, size_t *length)
{
    if (a->vocabulary && !a->special[id])
        return tn_tokenizer_bytes(a->tokenizer, id, bytes, length, NULL, NULL) == TN_OK;
    return tn_tokenizer_decode(a->tokenizer, &id, 1, false, bytes, length, NULL) == TN_OK;
}

static json_t *json_bytes(const char *bytes, size_t length)
{
    json_t *list = json_array();
    for (size_t i = 0; i < length && list; i++)
        if (json_array_append_new(list, json_integer((unsigned char)bytes[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The text of a token that stands alone: parts of a character are U+FFFD. */
static json_t *json_token(const api *a, int64_t id)
{
    char *text = NULL;
    size_t length = 0;
    if (tn_tokenizer_decode(a->tokenizer, &id, 1, false, &text, &length, NULL) != TN_OK)
        return NULL;
    json_t *json = json_stringn(text, length);
    free(text);
    return json;
}

/* ---- chats -------------------------------------------------------------------------------------- */

/* token is taken. */
static json_t *chat_entry(const likelihood *l, int64_t id, json_t *token, double sum)
{
    char *bytes = NULL;
    size_t length = 0;
    bool good = bytes_of(l->api, id, &bytes, &length);
    json_t *list = good ? json_bytes(bytes, length) : NULL;
    free(bytes);
    return json_pack("{s:o, s:f, s:o}", "token", token, "logprob", logprob_of(l, id, sum), "bytes", list);
}

static json_t *chat_token(const likelihood *l, int64_t id, const char *text, size_t length)
{
    int64_t best[SAMPLING_MOST_TOP], count = find_best(l, best);
    double sum = log_sum(l);
    json_t *entry = chat_entry(l, id, json_stringn(text, length), sum), *top = json_array();
    bool good = entry && top;
    for (int64_t i = 0; i < count && good; i++)
        good = json_array_append_new(top, chat_entry(l, best[i], json_token(l->api, best[i]), sum)) == 0;
    if (good && json_object_set(entry, "top_logprobs", top) == 0) {
        json_decref(top);
        return entry;
    }
    json_decref(top);
    json_decref(entry);
    return NULL;
}

/* ---- completions -------------------------------------------------------------------------------- */

/* A token as the key of an object. One that is no whole text is told by its bytes, since several could be U+FFFD. */
static bool key_of(const api *a, int64_t id, grown *key)
{
    char *bytes = NULL;
    size_t length = 0;
    bool good = bytes_of(a, id, &bytes, &length);
    key->length = 0;
    json_t *whole = good && !memchr(bytes, 0, length) ? json_stringn(bytes, length) : NULL;
    if (whole) {
        good = grown_add(key, bytes, length);
    } else if (good) {
        good = grown_add(key, "bytes:", 6);
        for (size_t i = 0; i < length && good; i++)
            good = grown_format(key, "\\x%02x", (unsigned char)bytes[i]);
    }
    json_decref(whole);
    free(bytes);
    return good;
}

static json_t *likeliest(const likelihood *l, double sum)
{
    int64_t best[SAMPLING_MOST_TOP], count = find_best(l, best);
    json_t *top = json_object();
    grown key = {0};
    bool good = top != NULL;
    for (int64_t i = 0; i < count && good; i++) {
        good = key_of(l->api, best[i], &key);
        if (good && !json_object_get(top, key.at)) /* the likelier of two with one text                          */
            good = json_object_set_new(top, key.at, json_real(logprob_of(l, best[i], sum))) == 0;
    }
    grown_free(&key);
    if (good)
        return top;
    json_decref(top);
    return NULL;
}

static json_t *completion_token(const likelihood *l, int64_t id, const char *text, size_t length)
{
    json_t *token = json_stringn(text, length);
    if (!l->seen)
        return json_pack("{s:o, s:n, s:n}", "token", token, "logprob", "top");
    double sum = log_sum(l);
    return json_pack("{s:o, s:f, s:o}", "token", token, "logprob", logprob_of(l, id, sum), "top", likeliest(l, sum));
}

json_t *likelihood_entry(const likelihood *l, int64_t id, const char *text, size_t length)
{
    return l->chat ? chat_token(l, id, text, length) : completion_token(l, id, text, length);
}
