/* Chats: from a request's body to sequences. */
#include "chat.h"

#include "messages.h"
#include "tools.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

/* ---- members ------------------------------------------------------------------------------------ */

/* stream and stream_options, which completions share. */
bool chat_stream(reply *g, request_error *e)
{
    const json_t *options = request_member(g->body, "stream_options");
    g->stream = request_flag(g->body, "stream", false, e);
    if (options && !json_is_object(options))
        return request_refuse(e, 400, "stream_options", "stream_options must be an object");
    if (options && !g->stream)
        return request_refuse(e, 400, "stream_options", "stream_options goes with stream: true");
    g->include_usage = options && request_flag(options, "include_usage", false, e);
    return e->status == 0;
}

/* Only sequences of one salt share beginnings. */
bool chat_salt(reply *g, request_error *e)
{
    const char *salt = request_text(g->body, "cache_salt", NULL, e);
    g->salt = salt ? UINT64_C(0xCBF29CE484222325) : 0; /* FNV-1a                                             */
    for (; salt && *salt; salt++)
        g->salt = (g->salt ^ (unsigned char)*salt) * UINT64_C(0x100000001B3);
    return e->status == 0;
}

bool chat_model(const api *a, const json_t *body, request_error *e)
{
    const char *name = request_text(body, "model", NULL, e);
    if (e->status)
        return false;
    return state_knows(a, name) ||
           request_refuse(e, 404, "model", "the model '%.100s' does not exist; this server has '%.100s'", name,
                          a->name);
}

static bool read_logprobs(sampling *s, const json_t *body, request_error *e)
{
    bool wanted = request_flag(body, "logprobs", false, e);
    int64_t top = request_integer(body, "top_logprobs", 0, SAMPLING_MOST_TOP, 0, e);
    if (top > 0 && !wanted)
        return request_refuse(e, 400, "top_logprobs", "top_logprobs needs logprobs: true");
    s->top = wanted ? top : -1;
    return e->status == 0;
}

static bool read_modalities(const json_t *body, request_error *e)
{
    const json_t *list = request_member(body, "modalities"), *one;
    size_t i;
    if (list && !json_is_array(list))
        return request_refuse(e, 400, "modalities", "modalities must be an array");
    json_array_foreach (list, i, one) {
        if (!json_is_string(one) || strcmp(json_string_value(one), "text") != 0)
            return request_refuse(e, 400, "modalities", "modalities can only be text");
    }
    return true;
}

/* true: thinking is told apart from content. */
static bool read_reasoning(const json_t *body, request_error *e)
{
    static const char *const formats[] = {"auto", "deepseek", "deepseek-legacy", "none"};
    const char *format = request_text(body, "reasoning_format", "auto", e);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(format, formats[i]) == 0)
            return strcmp(format, "none") != 0;
    request_refuse(e, 400, "reasoning_format", "reasoning_format must be auto, deepseek or none");
    return true;
}

static bool read_sampling(reply *g, request_error *e)
{
    const api *a = g->api;
    if (!sampling_read(&g->sampling, g->body, &a->usual, a->info.vocab, e) || !read_logprobs(&g->sampling, g->body, e))
        return false;
    const char *name = request_member(g->body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    return g->sampling.max_tokens != 0 || request_refuse(e, 400, name, "%s must be at least 1", name);
}

/* ---- the prompt --------------------------------------------------------------------------------- */

/* What stands for pictures and sounds takes their place in the text. */
static bool put_media(const api *a, const shown *shown, reply_prompt *p, request_error *e)
{
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    if (!(p->media = shown_make(shown, a, e)))
        return false;
    if (tn_media_expand(p->media, a->tokenizer, p->text, p->length, &text, &p->length, &err) != TN_OK)
        return request_failed(e, "messages", &err);
    free(p->text);
    p->text = text;
    return true;
}

/* tools NULL: none. The text's special tokens are in it already. */
static bool make_prompt(const api *a, const json_t *body, const json_t *tools, reply_prompt *p, request_error *e)
{
    tn_error err = TN_ERROR_INIT;
    shown shown = {.count = 0};
    json_t *messages = messages_read(a, body, &shown, e);
    bool good = messages && messages_render(a, body, messages, tools, &p->text, &p->length, e) &&
                (shown.count == 0 || put_media(a, &shown, p, e));
    json_decref(messages);
    shown_close(&shown);
    if (!good)
        return false;
    return tn_tokenizer_encode(a->tokenizer, p->text, p->length, false, &p->ids, &p->count, &err) == TN_OK ||
           request_failed(e, "messages", &err);
}

static bool read_chat(reply *g, request_error *e)
{
    const api *a = g->api;
    tools t;
    if (!chat_model(a, g->body, e) || !chat_stream(g, e) || !read_sampling(g, e) || !chat_salt(g, e) ||
        !read_modalities(g->body, e) || !tools_read(&t, g->body, e))
        return false;
    bool reasoning = read_reasoning(g->body, e);
    if (e->status || !worker_has_room(a->worker, e))
        return false;
    const json_t *offered = t.choice == TOOLS_NONE ? NULL : t.list;
    g->short_ids = strcmp(splitter_family_name(a->family), "mistral") == 0;
    g->prompts = calloc(1, sizeof *g->prompts);
    if (!g->prompts)
        return request_no_memory(e);
    g->prompt_count = 1;
    if (!make_prompt(a, g->body, offered, &g->prompts[0], e) || !tools_constrain(g, &t, g->body, e))
        return false;
    /* An answer whose form is fixed is no call of the model's own. */
    return reply_prepare(g, g->grammar ? NULL : offered, t.one_call, reasoning, e);
}

void chat_answer(api *a, exchange *x)
{
    request_error e = {0};
    json_t *body = request_parse(x, &e);
    reply *g = body ? reply_new(a, x, true, body) : NULL;
    if (body && !g)
        request_no_memory(&e);
    if (g && read_chat(g, &e) && request_had_memory(&e) && worker_reserve(a->worker, g->choice_count, &e)) {
        reply_start(g);
        return;
    }
    request_answer(x, &e);
    reply_free(g);
}

/* ---- prompts alone ------------------------------------------------------------------------------ */

/* false: the exchange has ended with an error. */
static bool only_prompt(const api *a, exchange *x, reply_prompt *p)
{
    request_error e = {0};
    tools t;
    json_t *body = request_parse(x, &e);
    bool good = body && chat_model(a, body, &e) && tools_read(&t, body, &e) &&
                make_prompt(a, body, t.choice == TOOLS_NONE ? NULL : t.list, p, &e);
    json_decref(body);
    if (good)
        return true;
    reply_prompt_close(p);
    request_answer(x, &e);
    return false;
}

void chat_count(api *a, exchange *x)
{
    reply_prompt p = {0};
    if (!only_prompt(a, x, &p))
        return;
    exchange_json(x, 200,
                  json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)p.count));
    reply_prompt_close(&p);
}

void chat_template(api *a, exchange *x)
{
    reply_prompt p = {0};
    if (!only_prompt(a, x, &p))
        return;
    exchange_json(x, 200, json_pack("{s:o}", "prompt", json_stringn(p.text, p.length)));
    reply_prompt_close(&p);
}
