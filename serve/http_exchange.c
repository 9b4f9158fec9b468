/* One request and its answer, between a thread of libmicrohttpd, which owns the connection, and whoever answers. A
 * connection that has nothing to send is suspended under the exchange's lock, and who then writes something resumes it
 * under the same lock, so that no wake-up is lost. */
#include "http_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What a reader may leave standing before it counts as gone. */
enum { MOST_WAITING = 4 << 20, BLOCK = 16 << 10 };

static const char json_media[] = "application/json", events_media[] = "text/event-stream";

/* ---- life ----------------------------------------------------------------------------------------- */

static void name_it(exchange *x)
{
    uint64_t n = atomic_fetch_add(&x->http->numbers, 1) * UINT64_C(0x9e3779b97f4a7c15);
    n = (n ^ (n >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
    snprintf(x->id, sizeof x->id, "req-%016llx", (unsigned long long)(n ^ (n >> 29)));
}

exchange *exchange_new(http *h, struct MHD_Connection *connection, line *line, const char *method, const char *path)
{
    exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->http = h;
    x->line = line;
    x->connection = connection;
    x->holders = 1;
    x->begun = http_now();
    x->method = strdup(method);
    x->path = strdup(path);
    pthread_mutex_init(&x->lock, NULL);
    name_it(x);
    if (x->method && x->path)
        return x;
    exchange_release(x);
    return NULL;
}

void exchange_release(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool last = --x->holders == 0;
    pthread_mutex_unlock(&x->lock);
    if (!last)
        return;
    if (x->response)
        MHD_destroy_response(x->response);
    for (int i = 0; i < x->headers; i++) {
        free(x->header[i][0]);
        free(x->header[i][1]);
    }
    pthread_mutex_destroy(&x->lock);
    free(x->method);
    free(x->path);
    free(x->head);
    body_drop(x);
    free(x->out);
    free(x);
}

/* ---- of the request ------------------------------------------------------------------------------- */

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
    *length = x->body_length;
    return x->body ? x->body : "";
}

const char *exchange_header_of(const exchange *x, const char *name)
{
    const char *end = x->head ? x->head + x->head_length : NULL;
    for (const char *at = x->head; at < end;) {
        const char *value = at + strlen(at) + 1;
        if (strcasecmp(at, name) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

/* ---- on the connection's thread -------------------------------------------------------------------- */

/* libmicrohttpd closes a connection whose reader ends it (by an error, or without chunks as in HTTP/1.0), and forgets
 * it until something else happens on its thread: it is to look after the least time that can be given. */
static void close_soon(const exchange *x)
{
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
}

static ssize_t read_stream(void *ctx, uint64_t at, char *to, size_t most)
{
    exchange *x = ctx;
    (void)at;
    pthread_mutex_lock(&x->lock);
    size_t n = x->out_length - x->out_at;
    ssize_t result = 0;
    if (x->gone) {
        close_soon(x);
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n > 0) {
        n = n < most ? n : most;
        memcpy(to, x->out + x->out_at, n);
        x->out_at += n;
        if (x->out_at == x->out_length)
            x->out_at = x->out_length = 0;
        result = (ssize_t)n;
    } else if (x->ended) {
        if (x->is_old)
            close_soon(x);
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return result;
}

static void add_headers(const exchange *x, struct MHD_Response *r, const char *type)
{
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, "x-request-id", x->id);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    for (int i = 0; i < x->headers; i++)
        MHD_add_response_header(r, x->header[i][0], x->header[i][1]);
    http_share(x, r);
}

enum MHD_Result exchange_continue(exchange *x)
{
    enum MHD_Result result = MHD_YES;
    struct MHD_Response *due = NULL;
    pthread_mutex_lock(&x->lock);
    if (x->gone && !x->queued) {
        result = MHD_NO;
    } else if (x->response && !x->queued) {
        x->queued = true;
        due = x->response;
    } else if (!x->queued) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    /* Without the lock: what queues takes the response's own, with which the response's reader takes ours. */
    return due ? MHD_queue_response(x->connection, (unsigned)x->status, due) : result;
}

/* What a client sent may hold anything: in a line of its own only what is seen. status 0: the client left before. */
static void log_it(const exchange *x, int status, bool stream, bool sent)
{
    char shown[256];
    snprintf(shown, sizeof shown, "%s %s", x->method, x->path);
    for (char *c = shown; *c; c++)
        *c = *c > ' ' && *c < 0x7f ? *c : *c == ' ' ? ' ' : '?';
    fprintf(stderr, "%s %d %.0f ms%s%s\n", shown, status ? status : 499, 1e3 * (http_now() - x->begun),
            stream ? ", a stream" : "", sent ? "" : ", not sent whole");
}

void exchange_connection_over(exchange *x, bool sent)
{
    exchange_lose(x, false);
    pthread_mutex_lock(&x->lock);
    int status = x->status;
    bool stream = x->stream;
    x->connection = NULL;
    pthread_mutex_unlock(&x->lock);
    if (x->http->options.log)
        log_it(x, status, stream, sent);
    exchange_release(x);
}

/* ---- by who answers ------------------------------------------------------------------------------- */

/* With the lock: the connection looks again. */
static void wake(exchange *x)
{
    if (!x->suspended || !x->connection)
        return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

void exchange_header(exchange *x, const char *name, const char *value)
{
    char *n = strdup(name), *v = strdup(value);
    if (n && v && x->headers < EXCHANGE_HEADERS) {
        x->header[x->headers][0] = n;
        x->header[x->headers++][1] = v;
        return;
    }
    free(n);
    free(v);
}

/* The answer is known: whole, or the beginning of a stream. */
static void respond(exchange *x, int status, struct MHD_Response *r, const char *type, bool stream)
{
    pthread_mutex_lock(&x->lock);
    x->stream = stream;
    x->wrote = http_now();
    x->status = status;
    x->response = r;
    if (r)
        add_headers(x, r, type);
    else
        x->gone = true; /* no memory for an answer: the connection is closed                              */
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* It has ended for who answers. */
static void let_go(exchange *x)
{
    body_drop(x);
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    x->watch = NULL;
    wake(x);
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
}

void exchange_answer(exchange *x, int status, const char *type, const char *body, size_t length)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(length, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    if (r && status == 503)
        MHD_add_response_header(r, "Retry-After", "2");
    respond(x, status, r, type, false);
    let_go(x);
}

void exchange_json(exchange *x, int status, json_t *body)
{
    static const char none[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\"}}";
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (text)
        exchange_answer(x, status, json_media, text, strlen(text));
    else
        exchange_answer(x, 500, json_media, none, sizeof none - 1);
    free(text);
}

static const char *type_of(int status)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},       {429, "rate_limit_error"},     {501, "not_supported_error"},
                 {503, "unavailable_error"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status)
            return types[i].type;
    return status < 500 ? "invalid_request_error" : "server_error";
}

/* Takes the last character, of which the end is missing, from a text that was cut. */
static void cut_character(char *text, size_t length)
{
    while (length > 0 && ((unsigned char)text[length - 1] & 0xC0) == 0x80)
        length--;
    if (length > 0 && (unsigned char)text[length - 1] >= 0xC0)
        length--;
    text[length] = '\0';
}

void exchange_error(exchange *x, int status, const char *param, const char *format, ...)
{
    char message[2048];
    va_list values;
    va_start(values, format);
    size_t length = (size_t)vsnprintf(message, sizeof message, format, values);
    va_end(values);
    if (length >= sizeof message)
        cut_character(message, sizeof message - 1);
    json_t *text = json_string(message);
    if (!text)
        text = json_string("the message is no UTF-8");
    exchange_json(x, status,
                  json_pack("{s:{s:o, s:s, s:s?, s:i}}", "error", "message", text, "type", type_of(status), "param",
                            param, "code", status));
}

void exchange_begin_events(exchange *x)
{
    exchange_header(x, "Cache-Control", "no-cache");
    exchange_header(x, "X-Accel-Buffering", "no");
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, x, NULL);
    respond(x, 200, r, events_media, true);
}

/* With the lock. */
static bool append(exchange *x, const char *bytes, size_t length)
{
    if (x->gone || x->out_length - x->out_at + length > MOST_WAITING)
        return false;
    if (x->out_at > 0) {
        memmove(x->out, x->out + x->out_at, x->out_length - x->out_at);
        x->out_length -= x->out_at;
        x->out_at = 0;
    }
    if (x->out_length + length > x->out_capacity) {
        size_t capacity = 2 * (x->out_length + length);
        char *out = realloc(x->out, capacity);
        if (!out)
            return false;
        x->out = out;
        x->out_capacity = capacity;
    }
    memcpy(x->out + x->out_length, bytes, length);
    x->out_length += length;
    x->wrote = http_now();
    wake(x);
    return true;
}

bool exchange_write(exchange *x, const char *bytes, size_t length)
{
    pthread_mutex_lock(&x->lock);
    bool ok = append(x, bytes, length);
    x->gone |= !ok;
    if (!ok)
        wake(x);
    pthread_mutex_unlock(&x->lock);
    return ok;
}

bool exchange_event(exchange *x, json_t *event)
{
    char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;
    json_decref(event);
    if (!text)
        return false;
    pthread_mutex_lock(&x->lock);
    bool ok = append(x, "data: ", 6) && append(x, text, strlen(text)) && append(x, "\n\n", 2);
    x->gone |= !ok;
    if (!ok)
        wake(x);
    pthread_mutex_unlock(&x->lock);
    free(text);
    return ok;
}

void exchange_end(exchange *x)
{
    let_go(x);
}

void exchange_watch(exchange *x, void (*gone)(void *ctx, bool late), void *ctx)
{
    pthread_mutex_lock(&x->lock);
    x->watch = gone;
    x->watch_ctx = ctx;
    if (gone && (x->gone || x->late)) { /* it went, or was late, before anybody looked                  */
        x->watch = NULL;
        gone(ctx, !x->gone);
    }
    pthread_mutex_unlock(&x->lock);
}

/* ---- by the watcher -------------------------------------------------------------------------------- */

void exchange_lose(exchange *x, bool late)
{
    pthread_mutex_lock(&x->lock);
    void (*watch)(void *, bool) = x->watch;
    x->watch = NULL;
    x->late |= late;
    if (!late && !x->ended)
        x->gone = true;
    if (watch && !x->ended)
        watch(x->watch_ctx, late);
    if (!late)
        wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_ping(exchange *x, double now)
{
    double silence = x->http->options.ping_seconds;
    pthread_mutex_lock(&x->lock);
    if (silence > 0 && x->stream && !x->ended && !x->gone && now - x->wrote >= silence)
        append(x, ": ping\n\n", 8);
    pthread_mutex_unlock(&x->lock);
}

bool exchange_is_gone(exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}
