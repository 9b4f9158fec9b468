/* Reading how tokens are to be drawn. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- stops ------------------------------------------------------------------------------------ */

static bool add_stop(sampling *s, const json_t *stop, const char *name, request_error *e)
{
    const char *text = json_string_value(stop);
    size_t length = json_string_length(stop);
    if (!text)
        return request_refuse(e, 400, "stop", "%s must be a string, or an array of strings", name);
    if (length == 0)
        return request_refuse(e, 400, "stop", "%s must not be empty", name);
    if (length > SAMPLING_STOP_BYTES)
        return request_refuse(e, 400, "stop", "%s has %zu bytes; at most %d are taken", name, length,
                              SAMPLING_STOP_BYTES);
    if (strlen(text) != length)
        return request_refuse(e, 400, "stop", "%s holds U+0000, which is not supported", name);
    s->stops[s->stop_count++] = text;
    return true;
}

/* Those of the request, and those at which the model's authors stop. */
static bool read_stops(sampling *s, const json_t *body, const tn_sampling *usual, request_error *e)
{
    const json_t *stop = request_member(body, "stop"), *one;
    size_t i, asked = json_is_array(stop) ? json_array_size(stop) : stop != NULL;
    if (asked > SAMPLING_MOST_STOPS)
        return request_refuse(e, 400, "stop", "stop has %zu texts; at most %d are taken", asked, SAMPLING_MOST_STOPS);
    s->stops = calloc(asked + usual->stop_count + 1, sizeof *s->stops);
    if (!s->stops)
        return request_no_memory(e);
    if (stop && !json_is_array(stop) && !add_stop(s, stop, "stop", e))
        return false;
    json_array_foreach (stop, i, one) {
        if (!add_stop(s, one, "each of stop", e))
            return false;
    }
    for (i = 0; i < usual->stop_count && !s->ignore_eos; i++)
        s->stops[s->stop_count++] = usual->stop_strings[i];
    return true;
}

static bool read_stop_ids(sampling *s, const json_t *body, int64_t vocab, request_error *e)
{
    const json_t *list = request_member(body, "stop_token_ids");
    if (!list)
        return true;
    if (!json_is_array(list))
        return request_refuse(e, 400, "stop_token_ids", "stop_token_ids must be an array of token ids");
    if (json_array_size(list) > SAMPLING_MOST_STOP_IDS)
        return request_refuse(e, 400, "stop_token_ids", "stop_token_ids has more than %d entries",
                              SAMPLING_MOST_STOP_IDS);
    s->stop_ids = request_ids(list, "stop_token_ids", vocab, &s->stop_id_count, e);
    return s->stop_ids != NULL;
}

/* ---- biases ----------------------------------------------------------------------------------- */

static bool add_bias(sampling *s, int64_t id, const json_t *value, int64_t vocab, request_error *e)
{
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (id < 0 || id >= vocab)
        return request_refuse(e, 400, "logit_bias", "logit_bias: %lld is no token id, 0 to %lld", (long long)id,
                              (long long)vocab - 1);
    if (!json_is_false(value) && (!json_is_number(value) || !(bias >= -100 && bias <= 100)))
        return request_refuse(e, 400, "logit_bias", "logit_bias of token %lld must be a number between -100 and 100",
                              (long long)id);
    s->biases[s->bias_count++] = (sampling_bias){id, bias};
    return true;
}

/* A token id written as a key; -1: it is none. */
static int64_t id_of(const char *key)
{
    size_t digits = strspn(key, "0123456789");
    return digits > 0 && digits < 16 && !key[digits] ? strtoll(key, NULL, 10) : -1;
}

/* {"ID": BIAS, ...}, or [[ID, BIAS], ...] where false excludes a token. */
static bool read_biases(sampling *s, const json_t *body, int64_t vocab, request_error *e)
{
    json_t *given = request_member(body, "logit_bias"), *value;
    const char *key;
    size_t i, count = json_is_array(given) ? json_array_size(given) : json_object_size(given);
    int64_t id;
    if (!given)
        return true;
    if (!json_is_array(given) && !json_is_object(given))
        return request_refuse(e, 400, "logit_bias", "logit_bias must be an object of token ids and biases");
    if (count > SAMPLING_MOST_BIASES)
        return request_refuse(e, 400, "logit_bias", "logit_bias has more than %d entries", SAMPLING_MOST_BIASES);
    if (!(s->biases = calloc(count + 1, sizeof *s->biases)))
        return request_no_memory(e);
    json_object_foreach (given, key, value) {
        if ((id = id_of(key)) < 0)
            return request_refuse(e, 400, "logit_bias", "logit_bias: '%.40s' is no token id", key);
        if (!add_bias(s, id, value, vocab, e))
            return false;
    }
    json_array_foreach (given, i, value) {
        if (json_array_size(value) != 2 || !request_whole(json_array_get(value, 0), &id))
            return request_refuse(e, 400, "logit_bias", "each of logit_bias must be [token id, bias]");
        if (!add_bias(s, id, json_array_get(value, 1), vocab, e))
            return false;
    }
    return true;
}

/* ---- numbers ---------------------------------------------------------------------------------- */

static bool read_seed(sampling *s, const json_t *body, request_error *e)
{
    if (request_member(body, "seed")) {
        s->seed = (uint64_t)request_integer(body, "seed", INT64_MIN, INT64_MAX, 0, e);
        return e->status == 0;
    }
    if (getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed)
        return request_refuse(e, 500, NULL, "the system gives no random numbers");
    return true;
}

static void read_lengths(sampling *s, const json_t *body, request_error *e)
{
    const char *name = request_member(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    s->max_tokens = request_integer(body, name, 0, INT32_MAX, -1, e);
    request_integer(body, "max_tokens", 0, INT64_MAX, 0, e); /* its type, where the other one counts            */
    s->min_tokens = request_integer(body, "min_tokens", 0, INT32_MAX, 0, e);
    if (s->max_tokens >= 0 && s->min_tokens > s->max_tokens)
        request_refuse(e, 400, "min_tokens", "min_tokens must not be more than %s", name);
}

static void read_penalties(sampling *s, const json_t *body, const tn_sampling *usual, request_error *e)
{
    const char *name = request_member(body, "repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
    s->repetition = request_real(body, name, 0, 100, usual->repetition_penalty, e);
    if (!(s->repetition > 0))
        request_refuse(e, 400, name, "%s must be more than 0", name);
    s->presence = request_real(body, "presence_penalty", -2, 2, 0, e);
    s->frequency = request_real(body, "frequency_penalty", -2, 2, 0, e);
}

bool sampling_read(sampling *s, const json_t *body, const tn_sampling *usual, int64_t vocab, request_error *e)
{
    /* Authors who do not draw say nothing of how to; then it is as the API's users expect. */
    bool drawn = usual->temperature > 0;
    *s = (sampling){.top = -1};
    s->temperature = request_real(body, "temperature", 0, 2, drawn ? usual->temperature : 1, e);
    s->top_p = request_real(body, "top_p", 0, 1, drawn ? usual->top_p : 1, e);
    if (request_member(body, "top_p") && !(s->top_p > 0))
        request_refuse(e, 400, "top_p", "top_p must be more than 0");
    s->top_k = request_integer(body, "top_k", -1, INT32_MAX, drawn ? usual->top_k : 0, e);
    s->top_k = s->top_k < 0 ? 0 : s->top_k;
    s->min_p = request_real(body, "min_p", 0, 1, drawn ? usual->min_p : 0, e);
    s->choices = request_integer(body, "n", 1, SAMPLING_MOST_CHOICES, 1, e);
    s->ignore_eos = request_flag(body, "ignore_eos", false, e);
    s->skip_special = request_flag(body, "skip_special_tokens", true, e);
    read_lengths(s, body, e);
    read_penalties(s, body, usual, e);
    return e->status == 0 && read_seed(s, body, e) && read_stops(s, body, usual, e) &&
           read_stop_ids(s, body, vocab, e) && read_biases(s, body, vocab, e);
}

void sampling_free(sampling *s)
{
    free(s->stops);
    free(s->stop_ids);
    free(s->biases);
    *s = (sampling){0};
}

uint64_t sampling_seed(const sampling *s, int64_t choice)
{
    /* SplitMix64's mixing: choices of neighbouring seeds have nothing in common. */
    uint64_t z = s->seed + (uint64_t)choice * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
