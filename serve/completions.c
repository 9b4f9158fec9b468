/* Completions: from a request's body to sequences. */
#include "completions.h"

#include "chat.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PROMPTS = 2048, MOST_SEQUENCES = 4096, USUAL_TOKENS = 16, MOST_TOP = 5 };

/* ---- prompts ------------------------------------------------------------------------------------ */

void completions_free(reply_prompt *prompts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(prompts[i].ids);
        free(prompts[i].text);
    }
    free(prompts);
}

static bool of_text(const api *a, const json_t *text, const char *name, reply_prompt *p, request_error *e)
{
    tn_error err = TN_ERROR_INIT;
    p->length = json_string_length(text);
    if (!(p->text = malloc(p->length + 1)))
        return request_no_memory(e);
    memcpy(p->text, json_string_value(text), p->length + 1);
    return tn_tokenizer_encode(a->tokenizer, p->text, p->length, true, &p->ids, &p->count, &err) == TN_OK ||
           request_failed(e, name, &err);
}

/* The text is what the ids stand for. */
static bool of_ids(const api *a, const json_t *ids, const char *name, reply_prompt *p, request_error *e)
{
    tn_error err = TN_ERROR_INIT;
    if (json_array_size(ids) == 0)
        return request_refuse(e, 400, name, "%s must not be empty", name);
    if (!(p->ids = request_ids(ids, name, a->info.vocab, &p->count, e)))
        return false;
    return tn_tokenizer_decode(a->tokenizer, p->ids, p->count, true, &p->text, &p->length, &err) == TN_OK ||
           request_failed(e, name, &err);
}

static bool of_either(const api *a, const json_t *given, const char *name, reply_prompt *p, request_error *e)
{
    if (json_is_string(given))
        return of_text(a, given, name, p, e);
    if (json_is_array(given))
        return of_ids(a, given, name, p, e);
    return request_refuse(e, 400, name, "%s must be a string, an array of strings, token ids, or arrays of these",
                          name);
}

bool completions_prompts(const api *a, const json_t *given, const char *name, reply_prompt **prompts, size_t *count,
                         request_error *e)
{
    const json_t *first = json_array_get(given, 0);
    bool several = json_is_array(given) && (json_is_string(first) || json_is_array(first));
    size_t n = several ? json_array_size(given) : 1;
    if (!given)
        return request_refuse(e, 400, name, "%s is missing", name);
    if (n > MOST_PROMPTS)
        return request_refuse(e, 400, name, "%s has more than %d entries", name, MOST_PROMPTS);
    if (!(*prompts = calloc(n, sizeof **prompts)))
        return request_no_memory(e);
    for (*count = 0; *count < n; ++*count) {
        const json_t *one = several ? json_array_get(given, *count) : given;
        if (several && json_typeof(one) != json_typeof(first))
            request_refuse(e, 400, name, "%s must have entries of one kind", name);
        if (e->status || !of_either(a, one, name, *prompts + *count, e)) {
            ++*count; /* what of it is there is the caller's                                              */
            return false;
        }
    }
    return true;
}

/* ---- members ------------------------------------------------------------------------------------ */

static bool read_sampling(reply *g, request_error *e)
{
    const api *a = g->api;
    sampling *s = &g->sampling;
    if (!sampling_read(s, g->body, &a->usual, a->info.vocab, e))
        return false;
    s->top = request_integer(g->body, "logprobs", 0, MOST_TOP, -1, e);
    s->max_tokens = s->max_tokens < 0 ? USUAL_TOKENS : s->max_tokens;
    int64_t best = request_integer(g->body, "best_of", 1, SAMPLING_MOST_CHOICES, s->choices, e);
    if (best != s->choices)
        return request_refuse(e, 400, "best_of", "best_of is not supported unless it is n");
    const char *suffix = request_text(g->body, "suffix", NULL, e);
    if (suffix && suffix[0])
        return request_refuse(e, 400, "suffix", "suffix is not supported by this model");
    g->echo = request_flag(g->body, "echo", false, e);
    return e->status == 0;
}

static bool read_completion(reply *g, request_error *e)
{
    const api *a = g->api;
    if (!chat_model(a, g->body, e) || !chat_stream(g, e) || !read_sampling(g, e) || !chat_salt(g, e) ||
        !worker_has_room(a->worker, e) ||
        !completions_prompts(a, request_member(g->body, "prompt"), "prompt", &g->prompts, &g->prompt_count, e))
        return false;
    if ((int64_t)g->prompt_count * g->sampling.choices > MOST_SEQUENCES)
        return request_refuse(e, 400, "n", "n times the number of prompts must not be more than %d", MOST_SEQUENCES);
    return reply_prepare(g, NULL, false, false, e);
}

void completions_answer(api *a, exchange *x)
{
    request_error e = {0};
    json_t *body = request_parse(x, &e);
    reply *g = body ? reply_new(a, x, false, body) : NULL;
    if (body && !g)
        request_no_memory(&e);
    if (g && read_completion(g, &e) && request_had_memory(&e) && worker_reserve(a->worker, g->choice_count, &e)) {
        reply_start(g);
        return;
    }
    request_answer(x, &e);
    reply_free(g);
}
