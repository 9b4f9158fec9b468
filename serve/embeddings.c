/* A request for vectors: its texts are embedded some at a time. */
#include "embeddings.h"

#include "chat.h"
#include "completions.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

/* Texts that are computed together. */
enum { TOGETHER = 8 };

typedef struct embedding {
    worker_job job; /* the first: the worker has a pointer to it                                      */
    api *api;
    exchange *x;
    reply_prompt *texts;
    size_t count, done;
    bool base64;
    atomic_int client;
    json_t *data; /* the vectors that are done                                                     */
} embedding;

static void close_embedding(embedding *m)
{
    completions_free(m->texts, m->count);
    json_decref(m->data);
    free(m);
}

/* ---- vectors as JSON ---------------------------------------------------------------------------- */

static char *base64_of(const float *vector, size_t width)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = width * 4, at = 0;
    unsigned char *bytes = malloc(size + 3);
    char *out = malloc((size + 2) / 3 * 4 + 1);
    if (!bytes || !out) {
        free(bytes);
        free(out);
        return NULL;
    }
    for (size_t i = 0; i < width; i++) { /* little-endian, whatever the machine's order                    */
        uint32_t bits;
        memcpy(&bits, vector + i, sizeof bits);
        for (size_t k = 0; k < 4; k++)
            bytes[i * 4 + k] = (unsigned char)(bits >> (8 * k));
    }
    memset(bytes + size, 0, 3);
    for (size_t i = 0; i < size; i += 3) {
        uint32_t three = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        for (int k = 0; k < 4; k++)
            out[at++] = i + (size_t)k <= size ? digits[three >> (18 - 6 * k) & 63] : '=';
    }
    out[at] = '\0';
    free(bytes);
    return out;
}

static json_t *list_of(const float *vector, size_t width)
{
    json_t *list = json_array();
    for (size_t i = 0; i < width && list; i++)
        if (json_array_append_new(list, json_real((double)vector[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static bool add_vector(embedding *m, size_t index, const float *vector, size_t width)
{
    char *text = m->base64 ? base64_of(vector, width) : NULL;
    json_t *value = m->base64 ? json_string(text) : list_of(vector, width);
    free(text);
    return json_array_append_new(m->data, json_pack("{s:s, s:I, s:o}", "object", "embedding", "index",
                                                    (json_int_t)index, "embedding", value)) == 0;
}

/* ---- computing ---------------------------------------------------------------------------------- */

/* How many of a text's first tokens are those of the model's prompt, where that is not to be pooled. */
static int64_t prompt_of(const api *a, const reply_prompt *p)
{
    size_t n = 0;
    while (!a->embedder_info.include_prompt && n < a->embedder_prompt_count && n < p->count &&
           p->ids[n] == a->embedder_prompt_ids[n])
        n++;
    return (int64_t)n;
}

/* Texts from done on, so many of them. */
static tn_status embed(embedding *m, size_t count, float *out, tn_error *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < count; i++)
        longest = m->texts[m->done + i].count > longest ? m->texts[m->done + i].count : longest;
    int64_t *ids = calloc(count * longest, sizeof *ids), *mask = calloc(count * longest, sizeof *mask);
    tn_status status = ids && mask ? TN_OK : tn_fail(err, TN_E_MEMORY, "embeddings", "out of memory");
    for (size_t i = 0; i < count && status == TN_OK; i++)
        for (size_t k = 0; k < m->texts[m->done + i].count; k++) {
            ids[i * longest + k] = m->texts[m->done + i].ids[k];
            mask[i * longest + k] = 1;
        }
    tn_batch batch = {
        .size = sizeof batch, .rows = (int64_t)count, .tokens = (int64_t)longest, .ids = ids, .mask = mask};
    if (status == TN_OK)
        status = tn_embed(m->api->embedder, &batch, prompt_of(m->api, &m->texts[m->done]), out, err);
    free(ids);
    free(mask);
    return status;
}

static bool embed_some(embedding *m, request_error *e)
{
    size_t width = (size_t)m->api->embedder_info.width;
    size_t count = 1;
    while (count < TOGETHER && m->done + count < m->count &&
           prompt_of(m->api, &m->texts[m->done + count]) == prompt_of(m->api, &m->texts[m->done]))
        count++;
    tn_error err = TN_ERROR_INIT;
    float *out = malloc(count * width * sizeof *out);
    bool good = out || request_no_memory(e);
    if (good && embed(m, count, out, &err) != TN_OK)
        good = request_failed(e, "input", &err);
    for (size_t i = 0; i < count && good; i++)
        good = add_vector(m, m->done + i, out + i * width, width) || request_no_memory(e);
    free(out);
    m->done += count;
    return good;
}

/* The exchange ends, and the job with it. */
static void finish(embedding *m, request_error *e)
{
    worker *w = m->api->worker;
    int64_t tokens = 0;
    for (size_t i = 0; i < m->count; i++)
        tokens += (int64_t)m->texts[i].count;
    if (e->status)
        request_answer(m->x, e);
    else
        exchange_json(m->x, 200,
                      json_pack("{s:s, s:s, s:O, s:{s:I, s:I}}", "object", "list", "model", m->api->name, "data",
                                m->data, "usage", "prompt_tokens", (json_int_t)tokens, "total_tokens",
                                (json_int_t)tokens));
    close_embedding(m);
    worker_release(w, 1);
}

static bool run(worker_job *job)
{
    embedding *m = (embedding *)job;
    request_error e = {0};
    int client = atomic_load(&m->client);
    if (client == REPLY_GONE)
        request_refuse(&e, 499, NULL, "the client has gone");
    else if (client == REPLY_LATE)
        request_refuse(&e, 504, NULL, "the request took longer than this server allows");
    else if (worker_cutting(m->api->worker))
        request_refuse(&e, 503, NULL, "the server is shutting down");
    else
        embed_some(m, &e);
    if (!e.status && m->done < m->count)
        return true;
    finish(m, &e);
    return false;
}

static void on_gone(void *ctx, bool late)
{
    embedding *m = ctx;
    atomic_store(&m->client, late ? REPLY_LATE : REPLY_GONE);
}

/* ---- the request -------------------------------------------------------------------------------- */

/* What is put before each text of this model, and no white space around both. */
static bool add_prompt(const api *a, reply_prompt *p, request_error *e)
{
    static const char white[] = " \t\r\n\v\f";
    tn_error err = TN_ERROR_INIT;
    grown whole = {0};
    bool good =
        grown_add(&whole, a->embedder_prompt, strlen(a->embedder_prompt)) && grown_add(&whole, p->text, p->length);
    size_t from = 0, to = whole.length;
    while (from < to && memchr(white, whole.at[from], sizeof white - 1))
        from++;
    while (to > from && memchr(white, whole.at[to - 1], sizeof white - 1))
        to--;
    free(p->ids);
    p->ids = NULL;
    if (!good)
        request_no_memory(e);
    else if (tn_tokenizer_encode(a->tokenizer, whole.at + from, to - from, true, &p->ids, &p->count, &err) != TN_OK)
        good = request_failed(e, "input", &err);
    grown_free(&whole);
    return good;
}

static bool check_texts(embedding *m, bool strings, request_error *e)
{
    int64_t most = m->api->embedder_info.max_tokens;
    for (size_t i = 0; i < m->count; i++) {
        reply_prompt *p = &m->texts[i];
        if (strings && !add_prompt(m->api, p, e))
            return false;
        if (p->count == 0)
            return request_refuse(e, 400, "input", "input[%zu] has no tokens", i);
        if (most > 0 && (int64_t)p->count > most)
            return request_refuse(e, 400, "input", "input[%zu] has %zu tokens, and this model takes at most %lld", i,
                                  p->count, (long long)most);
    }
    return true;
}

static bool read_embedding(embedding *m, const json_t *body, request_error *e)
{
    const api *a = m->api;
    const json_t *input = request_member(body, "input");
    if (!chat_model(a, body, e))
        return false;
    if (!a->embedder)
        return request_refuse(e, 400, "model", "this model makes no embeddings, since nothing says how to pool: %s",
                              a->embedder_error.message);
    const char *format = request_text(body, "encoding_format", "float", e);
    m->base64 = strcmp(format, "base64") == 0;
    if (!m->base64 && strcmp(format, "float") != 0)
        request_refuse(e, 400, "encoding_format", "encoding_format must be float or base64");
    int64_t width = a->embedder_info.width;
    if (request_integer(body, "dimensions", 1, INT32_MAX, width, e) != width)
        request_refuse(e, 400, "dimensions", "this model's embeddings have %lld dimensions", (long long)width);
    if (json_is_string(input) && json_string_length(input) == 0)
        request_refuse(e, 400, "input", "input must not be empty");
    if (e->status || !completions_prompts(a, input, "input", &m->texts, &m->count, e))
        return false;
    bool strings = json_is_string(input) || json_is_string(json_array_get(input, 0));
    return check_texts(m, strings, e);
}

void embeddings_answer(api *a, exchange *x)
{
    request_error e = {0};
    json_t *body = request_parse(x, &e);
    embedding *m = body ? calloc(1, sizeof *m) : NULL;
    if (m) {
        *m = (embedding){.job.run = run, .api = a, .x = x, .data = json_array()};
        atomic_init(&m->client, REPLY_HERE);
    }
    bool good = body && ((m && m->data) || request_no_memory(&e)) && read_embedding(m, body, &e) &&
                request_had_memory(&e) && worker_reserve(a->worker, 1, &e);
    json_decref(body);
    if (good) {
        exchange_watch(x, on_gone, m);
        worker_add_job(a->worker, &m->job);
        return;
    }
    request_answer(x, &e);
    if (m)
        close_embedding(m);
}
