/* The API's life, and which path is whose. */
#include "api.h"

#include "chat.h"
#include "completions.h"
#include "embeddings.h"
#include "fingerprint.h"
#include "models.h"
#include "tokens.h"
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ---- what all parts ask ------------------------------------------------------------------------- */

bool state_knows(const api *a, const char *name)
{
    if (!name || strcmp(name, a->name) == 0)
        return true;
    for (size_t i = 0; i < a->alias_count; i++)
        if (strcmp(a->aliases[i], "*") == 0 || strcmp(a->aliases[i], name) == 0)
            return true;
    return false;
}

void state_id(char *out, size_t size, const char *prefix, size_t letters)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char random[64] = {0};
    size_t at = strlen(prefix);
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) { /* ids need only differ                  */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        memcpy(random, &now, sizeof now < sizeof random ? sizeof now : sizeof random);
    }
    snprintf(out, size, "%s", prefix);
    for (size_t i = 0; i < letters && i < sizeof random && at + 1 < size; i++)
        out[at++] = digits[random[i] % (sizeof digits - 1)];
    out[at] = '\0';
}

bool state_ends(const api *a, int64_t id)
{
    for (int64_t i = 0; i < a->info.eos_total; i++)
        if (a->info.eos_ids[i] == id)
            return true;
    return false;
}

/* ---- opening ------------------------------------------------------------------------------------ */

/* Which ids are special, and whether their tokens have bytes: without these no answer can be constrained. */
static tn_status open_tokens(api *a, tn_error *err)
{
    bool bytes = true;
    a->special = calloc((size_t)a->info.vocab + 1, 1);
    if (!a->special)
        return tn_fail(err, TN_E_MEMORY, "serve", "out of memory");
    for (int64_t id = 0; id < a->info.vocab && bytes; id++) {
        char *text = NULL;
        size_t length;
        bool special = false;
        bytes = tn_tokenizer_bytes(a->tokenizer, id, &text, &length, &special, NULL) == TN_OK;
        a->special[id] = special;
        free(text);
    }
    if (!bytes)
        return TN_OK;
    a->vocabulary = tn_vocabulary_new(a->tokenizer, a->info.vocab, a->info.eos_ids, (size_t)a->info.eos_total, err);
    return a->vocabulary ? TN_OK : err->code;
}

/* The id of a text that is one token; -1: it is none. */
static int64_t token_of(const api *a, const char *text)
{
    int64_t *ids = NULL, id = -1;
    size_t count = 0;
    if (tn_tokenizer_encode(a->tokenizer, text, strlen(text), false, &ids, &count, NULL) == TN_OK && count == 1)
        id = ids[0];
    free(ids);
    return id < a->info.vocab ? id : -1;
}

/* A model without a chat template has completions. */
static tn_status open_template(api *a, const char *folder, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    a->chat_template = tn_template_open(folder, &why);
    if (!a->chat_template && (why.code != TN_E_INPUT || strcmp(why.where, folder) != 0))
        return tn_fail(err, why.code, why.where, "%s", why.message);
    a->template_text = tn_template_source(a->chat_template, true);
    a->family = splitter_family_of(a->template_text);
    return TN_OK;
}

/* Most models have no pooling, which is no error until somebody asks for vectors. */
static tn_status open_embedder(api *a, tn_error *err)
{
    a->embedder_info.size = sizeof a->embedder_info;
    a->embedder = tn_embedder_open(a->model, NULL, &a->embedder_error);
    if (!a->embedder)
        return TN_OK;
    if (tn_embedder_get_info(a->embedder, &a->embedder_info) != TN_OK ||
        !(a->embedder_prompt = tn_embedder_prompt(a->embedder, NULL, err)))
        return err->code ? err->code : tn_fail(err, TN_E_INTERNAL, "embeddings", "the embedder says nothing");
    return tn_tokenizer_encode(a->tokenizer, a->embedder_prompt, strlen(a->embedder_prompt), true,
                               &a->embedder_prompt_ids, &a->embedder_prompt_count, err);
}

static tn_status copy_names(api *a, const api_options *o, tn_error *err)
{
    a->name = strdup(o->name);
    a->aliases = calloc(o->alias_count + 1, sizeof *a->aliases);
    bool good = a->name && a->aliases;
    for (size_t i = 0; i < o->alias_count && good; i++)
        good = (a->aliases[a->alias_count++] = strdup(o->aliases[i])) != NULL;
    return good ? TN_OK : tn_fail(err, TN_E_MEMORY, "serve", "out of memory");
}

static tn_status open_all(api *a, const api_options *o, tn_error *err)
{
    a->model = o->model;
    a->info.size = sizeof a->info;
    a->usual.size = sizeof a->usual;
    a->created = (int64_t)time(NULL);
    tn_status status = tn_model_get_info(a->model, &a->info);
    if (status == TN_OK)
        status = tn_model_sampling(a->model, &a->usual, err);
    if (status == TN_OK)
        status = copy_names(a, o, err);
    if (status == TN_OK && !(a->tokenizer = tn_tokenizer_open(o->folder, err)))
        status = err->code;
    if (status == TN_OK)
        status = open_tokens(a, err);
    if (status == TN_OK)
        status = open_template(a, o->folder, err);
    if (status == TN_OK)
        status = open_embedder(a, err);
    if (status != TN_OK)
        return status;
    a->think_open = token_of(a, "<think>");
    a->think_close = token_of(a, "</think>");
    fingerprint_make(a, a->info.folder, o->kernels, o->same_bits);
    const tn_engine_options engine = {
        .size = sizeof engine, .sequences = o->sequences, .context = o->context, .cache_bytes = o->cache_bytes};
    a->worker = worker_new(a, &engine, o->queue, err);
    return a->worker ? TN_OK : err->code;
}

static void close_all(api *a)
{
    worker_free(a->worker);
    tn_embedder_close(a->embedder);
    tn_vocabulary_free(a->vocabulary);
    tn_template_free(a->chat_template);
    tn_tokenizer_free(a->tokenizer);
    for (size_t i = 0; i < a->alias_count; i++)
        free(a->aliases[i]);
    free(a->aliases);
    free(a->name);
    free(a->special);
    free(a->embedder_prompt_ids);
    metrics_end(&a->metrics);
    free(a);
}

api *api_new(const api_options *options, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    request_watch_memory();
    api *a = calloc(1, sizeof *a);
    if (!a || !metrics_start(&a->metrics)) {
        free(a);
        tn_fail(err, TN_E_MEMORY, "serve", "out of memory");
        return NULL;
    }
    if (open_all(a, options, err) == TN_OK)
        return a;
    close_all(a);
    return NULL;
}

void api_free(api *a)
{
    if (a)
        close_all(a);
}

int64_t api_active(api *a)
{
    return worker_active(a->worker);
}

void api_stop(api *a, double drain_seconds)
{
    worker_stop(a->worker, drain_seconds);
}

/* ---- paths -------------------------------------------------------------------------------------- */

static void answer_health(api *a, exchange *x)
{
    if (worker_ending(a->worker))
        exchange_error(x, 503, NULL, "the server is shutting down");
    else
        exchange_json(x, 200, json_pack("{s:s}", "status", "ok"));
}

static void answer_metrics(api *a, exchange *x)
{
    grown text = {0};
    if (metrics_write(&a->metrics, a->name, &text))
        exchange_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", text.at, text.length);
    else
        exchange_error(x, 500, NULL, "out of memory");
    grown_free(&text);
}

static const struct {
    const char *path;
    bool post;
    void (*answer)(api *a, exchange *x);
} paths[] = {
    {"/health", false, answer_health},
    {"/metrics", false, answer_metrics},
    {"/models", false, models_list},
    {"/version", false, models_version},
    {"/chat/completions", true, chat_answer},
    {"/chat/completions/input_tokens", true, chat_count},
    {"/completions", true, completions_answer},
    {"/embeddings", true, embeddings_answer},
    {"/tokenize", true, tokens_encode},
    {"/detokenize", true, tokens_decode},
    {"/apply-template", true, chat_template},
};

static bool is_get(const exchange *x)
{
    const char *method = exchange_method(x);
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* What takes the model is refused while the server ends, before anything else is looked at. */
static bool is_ending(api *a, exchange *x)
{
    request_error e = {0};
    if (!worker_ending(a->worker))
        return false;
    request_refuse(&e, 503, NULL, "the server is shutting down");
    request_answer(x, &e);
    return true;
}

static void refuse_method(exchange *x, const char *allowed)
{
    exchange_header(x, "Allow", allowed);
    exchange_error(x, 405, NULL, "this path takes the method %s", allowed);
}

void api_handle(void *ctx, exchange *x)
{
    static const char models[] = "/models/";
    api *a = ctx;
    const char *path = exchange_path(x);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (strcmp(path, paths[i].path) != 0)
            continue;
        if (paths[i].post ? strcmp(exchange_method(x), "POST") != 0 : !is_get(x))
            refuse_method(x, paths[i].post ? "POST" : "GET");
        else if (!paths[i].post || !is_ending(a, x))
            paths[i].answer(a, x);
        return;
    }
    if (strncmp(path, models, sizeof models - 1) != 0)
        exchange_error(x, 404, NULL, "there is nothing at this path");
    else if (is_get(x))
        models_get(a, x, path + sizeof models - 1);
    else
        refuse_method(x, "GET");
}
