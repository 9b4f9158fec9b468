/* An exchange that keeps its answer, and asking with it. */
#include "asked.h"

#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct exchange {
    const char *method, *path;
    char *body;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *text;
    size_t length, room;
    bool stream, ended, ended_here; /* here: by the thread that asked                             */
    pthread_t asker;
    void (*gone)(void *ctx, bool late);
    void *ctx;
    asked result;
};

/* ---- what the API calls ------------------------------------------------------------------------- */

const char *exchange_method(const exchange *x)
{
    return x->method;
}

const char *exchange_path(const exchange *x)
{
    return x->path;
}

const char *exchange_body(const exchange *x, size_t *length)
{
    *length = x->body ? strlen(x->body) : 0;
    return x->body;
}

const char *exchange_header_of(const exchange *x, const char *name)
{
    (void)x;
    (void)name;
    return NULL;
}

void exchange_header(exchange *x, const char *name, const char *value)
{
    if (strcmp(name, "Retry-After") == 0)
        snprintf(x->result.retry_after, sizeof x->result.retry_after, "%s", value);
}

static bool append(exchange *x, const char *text, size_t length)
{
    pthread_mutex_lock(&x->lock);
    char *larger = x->length + length < x->room ? x->text : realloc(x->text, x->length + length + 1);
    if (larger) {
        x->text = larger;
        memcpy(x->text + x->length, text, length);
        x->length += length;
        x->text[x->length] = '\0';
    }
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
    return larger != NULL;
}

static void end(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (x->ended) /* and no assertion: those allocate                                                 */
        abort();
    x->ended = true;
    x->ended_here = pthread_equal(x->asker, pthread_self());
    x->gone = NULL;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
}

void exchange_answer(exchange *x, int status, const char *type, const char *body, size_t length)
{
    (void)type;
    x->result.status = append(x, body, length) ? status : 500;
    end(x);
}

void exchange_json(exchange *x, int status, json_t *body)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    exchange_answer(x, text ? status : 500, "application/json", text ? text : "{}", text ? strlen(text) : 2);
    free(text);
}

void exchange_error(exchange *x, int status, const char *param, const char *format, ...)
{
    char message[2048];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    exchange_json(x, status,
                  json_pack("{s:{s:s, s:s?, s:i}}", "error", "message", message, "param", param, "code", status));
}

void exchange_begin_events(exchange *x)
{
    x->stream = true;
    x->result.status = 200;
}

bool exchange_write(exchange *x, const char *bytes, size_t length)
{
    return append(x, bytes, length);
}

bool exchange_event(exchange *x, json_t *event)
{
    char *text = json_dumps(event, JSON_COMPACT);
    json_decref(event);
    bool good = text && append(x, "data: ", 6) && append(x, text, strlen(text)) && append(x, "\n\n", 2);
    free(text);
    return good;
}

void exchange_end(exchange *x)
{
    end(x);
}

void exchange_watch(exchange *x, void (*gone)(void *ctx, bool late), void *ctx)
{
    pthread_mutex_lock(&x->lock);
    x->gone = gone;
    x->ctx = ctx;
    pthread_mutex_unlock(&x->lock);
}

/* ---- asking ------------------------------------------------------------------------------------- */

static exchange *make(const char *path, const char *body)
{
    exchange *x = calloc(1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    x->room = 1 << 16; /* so that walks see no allocation of ours                                        */
    x->text = calloc(1, x->room);
    ck_assert_ptr_nonnull(x->text);
    x->asker = pthread_self();
    x->method = body ? "POST" : "GET";
    x->path = path;
    x->body = body ? strdup(body) : NULL;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->changed, NULL);
    return x;
}

static void forget(void *x_)
{
    exchange *x = x_;
    json_decref(x->result.json);
    json_decref(x->result.events);
    pthread_cond_destroy(&x->changed);
    pthread_mutex_destroy(&x->lock);
    free(x->text);
    free(x->body);
    free(x);
}

static void wait_for(exchange *x, const char *words)
{
    pthread_mutex_lock(&x->lock);
    while (!x->ended && !(words && x->text && strstr(x->text, words)))
        pthread_cond_wait(&x->changed, &x->lock);
    pthread_mutex_unlock(&x->lock);
}

exchange *asked_begin(api *a, const char *path, const char *body)
{
    exchange *x = make(path, body);
    suite_keep(x, forget);
    api_handle(a, x);
    return x;
}

void asked_leave(exchange *x, bool late)
{
    pthread_mutex_lock(&x->lock);
    if (x->gone)
        x->gone(x->ctx, late);
    x->gone = NULL;
    pthread_mutex_unlock(&x->lock);
}

void asked_wait_text(exchange *x, const char *words)
{
    wait_for(x, words);
}

/* "data: " and one line, and an empty line behind it. */
static void read_events(asked *r)
{
    r->events = json_array();
    for (const char *at = r->text; at && *at;) {
        const char *stop = strstr(at, "\n\n");
        ck_assert_msg(strncmp(at, "data: ", 6) == 0 && stop, "no event: %s", at);
        ck_assert_msg(!r->done, "behind the end: %s", at);
        r->done = strncmp(at + 6, "[DONE]", 6) == 0;
        json_t *event = r->done ? NULL : json_loadb(at + 6, (size_t)(stop - at) - 6, JSON_ALLOW_NUL, NULL);
        ck_assert_msg(r->done || event, "no JSON: %s", at);
        if (event)
            json_array_append_new(r->events, event);
        at = stop + 2;
    }
}

const asked *asked_end(exchange *x)
{
    wait_for(x, NULL);
    asked *r = &x->result;
    r->text = x->text;
    if (x->stream)
        read_events(r);
    else
        r->json = json_loads(x->text ? x->text : "", JSON_ALLOW_NUL, NULL);
    return r;
}

const asked *asked_for(api *a, const char *path, const char *body)
{
    return asked_end(asked_begin(a, path, body));
}

const asked *asked_format(api *a, const char *path, const char *format, ...)
{
    char *body = NULL;
    va_list values;
    va_start(values, format);
    ck_assert_int_ge(vasprintf(&body, format, values), 0);
    va_end(values);
    const asked *r = asked_for(a, path, body);
    free(body);
    return r;
}

exchange *asked_make(const char *path, const char *body)
{
    return make(path, body);
}

void asked_hand(api *a, exchange *x)
{
    api_handle(a, x);
}

int asked_status(api *a, exchange *x)
{
    wait_for(x, NULL);
    asked_idle(a);
    return x->result.status;
}

bool asked_ended_here(const exchange *x)
{
    return x->ended_here;
}

void asked_forget(exchange *x)
{
    forget(x);
}

void asked_idle(api *a)
{
    while (api_active(a) > 0)
        nanosleep(&(struct timespec){0, 200000}, NULL);
}

/* ---- looking ------------------------------------------------------------------------------------ */

json_t *asked_at(const json_t *json, const char *path)
{
    char part[64];
    json_t *at = (json_t *)json;
    while (at && *path) {
        size_t length = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, path);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part)) : json_object_get(at, part);
        path += length + (path[length] == '.');
    }
    return at;
}

const char *asked_string(const json_t *json, const char *path)
{
    return json_string_value(asked_at(json, path));
}

char *asked_joined(const asked *r, int choice, const char *key)
{
    size_t i, length = 0;
    json_t *event;
    char *text = strdup("");
    json_array_foreach (r->events, i, event) {
        const json_t *one = asked_at(event, "choices.0");
        const char *piece =
            json_string_value(key ? json_object_get(json_object_get(one, "delta"), key) : json_object_get(one, "text"));
        if (!piece || json_integer_value(json_object_get(one, "index")) != choice)
            continue;
        text = realloc(text, length + strlen(piece) + 1);
        ck_assert_ptr_nonnull(text);
        memcpy(text + length, piece, strlen(piece) + 1);
        length += strlen(piece);
    }
    return text;
}

/* ---- the model ---------------------------------------------------------------------------------- */

const char asked_template[] =
    "{% if tools %}<tool_call> {{ tools | tojson }} {% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% if m.tool_call_id %}[{{ m.tool_call_id }}]{% endif "
    "%}; {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}{% if enable_thinking is defined %} {{ "
    "enable_thinking }}{% endif %}";

static void close_model(void *model)
{
    tn_model_close(model);
}

static void close_api(void *a)
{
    api_stop(a, 0);
    api_free(a);
}

api *asked_open(const api_options *options)
{
    tn_error err = TN_ERROR_INIT;
    api_options o = options ? *options : (api_options){.queue = 64};
    char *folder = o.folder ? NULL : tempdir_new();
    if (folder) {
        tempdir_copy("models/demo", folder);
        tempdir_put(folder, "chat_template.jinja", asked_template);
        o.folder = folder;
    }
    o.name = o.name ? o.name : "demo";
    o.kernels = "none";
    /* Without kernels that promise it the same bits are not to be had; in f32 what differs is too little to be seen. */
    const tn_model_options loading = {.size = sizeof loading, .dtype = "f32", .threads = 1};
    o.model = tn_model_open(o.folder, &loading, &err);
    ck_assert_msg(o.model != NULL, "%s", err.message);
    suite_keep(o.model, close_model);
    api *a = api_new(&o, &err);
    ck_assert_msg(a != NULL, "%s", err.message);
    suite_keep(a, close_api);
    return a;
}
