/* A request for text, from when it is understood to its answer. */
#include "respond.h"
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double reply_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

reply *reply_new(api *a, exchange *x, bool chat, json_t *body)
{
    reply *g = calloc(1, sizeof *g);
    if (!g) {
        json_decref(body);
        return NULL;
    }
    g->api = a;
    g->x = x;
    g->chat = chat;
    g->body = body;
    g->created = (int64_t)time(NULL);
    g->begun = reply_clock();
    g->sampling.top = -1;
    atomic_init(&g->client, REPLY_HERE);
    state_id(g->id, sizeof g->id, chat ? "chatcmpl-" : "cmpl-", 24);
    return g;
}

void reply_prompt_close(reply_prompt *p)
{
    free(p->ids);
    free(p->text);
    tn_media_free(p->media);
    *p = (reply_prompt){0};
}

void reply_free(reply *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->choice_count; i++)
        choice_close(&g->choices[i]);
    free(g->choices);
    for (size_t i = 0; i < g->prompt_count; i++)
        reply_prompt_close(&g->prompts[i]);
    free(g->prompts);
    tn_grammar_free(g->grammar);
    free(g->forced_tool);
    sampling_free(&g->sampling);
    json_decref(g->body);
    free(g);
}

void reply_fail(reply *g, int status, const char *message)
{
    if (g->failed)
        return;
    g->failed = status;
    snprintf(g->failure, sizeof g->failure, "%s", message && message[0] ? message : "it failed");
    /* What was cut must not end in the midst of a character. */
    size_t end = strlen(g->failure);
    while (end == sizeof g->failure - 1 && end > 0 && ((unsigned char)g->failure[end - 1] & 0xC0) == 0x80)
        g->failure[--end] = '\0';
    if (end > 0 && (unsigned char)g->failure[end - 1] >= 0xC0)
        g->failure[end - 1] = '\0';
}

/* ---- the prompts -------------------------------------------------------------------------------- */

static bool check_prompt(const reply *g, const reply_prompt *p, request_error *e)
{
    const api *a = g->api;
    const char *name = g->chat ? "messages" : "prompt";
    if (p->count == 0)
        return request_refuse(e, 400, name, "%s: the prompt has no tokens; give at least one", name);
    for (size_t i = 0; i < p->count; i++)
        if (p->ids[i] < 0 || p->ids[i] >= a->info.vocab)
            return request_refuse(e, 400, name, "%s: token id %lld is not one of the model's", name,
                                  (long long)p->ids[i]);
    if ((int64_t)p->count >= a->context)
        return request_refuse(e, 400, name,
                              "%s: this model's maximum context length is %lld tokens, and the prompt has %zu; make it "
                              "shorter",
                              name, (long long)a->context, p->count);
    return true;
}

/* Does the answer begin within a thought that the template has opened? */
static bool opens_thought(const reply_prompt *p)
{
    static const char tag[] = "<think>";
    size_t length = p->text ? p->length : 0, size = sizeof tag - 1;
    while (length > 0 && (p->text[length - 1] == '\n' || p->text[length - 1] == ' '))
        length--;
    return length >= size && memcmp(p->text + length - size, tag, size) == 0;
}

bool reply_prepare(reply *g, const json_t *tools, bool one_call, bool reasoning, request_error *e)
{
    if (g->api->silent.code)
        return request_refuse(e, 400, "model", "model: it %s", g->api->silent.message);
    for (size_t i = 0; i < g->prompt_count; i++)
        if (!check_prompt(g, &g->prompts[i], e))
            return false;
    size_t each = (size_t)g->sampling.choices, count = g->prompt_count * each;
    if (!(g->choices = calloc(count, sizeof *g->choices)))
        return request_no_memory(e);
    for (size_t i = 0; i < count; i++) {
        const reply_prompt *p = &g->prompts[i / each];
        splitter_options splitting = {.family = g->api->family,
                                      .tools = tools,
                                      .one_call = one_call,
                                      .reasoning = reasoning,
                                      .prompt = p->text,
                                      .prompt_length = p->length};
        choice *c = &g->choices[g->choice_count++];
        *c = (choice){.of = g, .index = i, .prompt = i / each, .number = (int64_t)(i % each)};
        c->free_yet = g->chat && g->grammar && opens_thought(p);
        if (!choice_open(c, g->chat ? &splitting : NULL, e))
            return false;
    }
    return true;
}

/* ---- running ------------------------------------------------------------------------------------ */

static void on_gone(void *ctx, bool late)
{
    reply *g = ctx;
    atomic_store(&g->client, late ? REPLY_LATE : REPLY_GONE);
}

/* The text of prompts, where nothing has to be computed for it first. */
static void echo(reply *g)
{
    for (size_t i = 0; i < g->choice_count && g->sampling.top < 0; i++) {
        const reply_prompt *p = &g->prompts[g->choices[i].prompt];
        choice_echo(&g->choices[i], p->text, p->length);
    }
}

void reply_start(reply *g)
{
    worker *w = g->api->worker;
    exchange_watch(g->x, on_gone, g);
    if (g->stream)
        respond_begin(g);
    if (g->echo)
        echo(g);
    worker_add(w, g);
}

void reply_finish(reply *g)
{
    respond_end(g);
}
