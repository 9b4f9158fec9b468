/* Connections: what comes in is checked before anybody computes, and goes to the handler when it is whole. */
#include "http_state.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, MOST_CONNECTIONS = 1024, HEAD_BYTES = 64 << 10 };

double http_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a request ------------------------------------------------------------------------------------ */

/* Without a /v1 before it or a / behind it. */
static const char *bare_path(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
}

static void answer_refused(exchange *x)
{
    switch (x->refused) {
    case 204:
        exchange_header(x, "Allow", "GET, POST, OPTIONS");
        exchange_answer(x, 204, "text/plain", "", 0);
        return;
    case 400:
        exchange_header(x, "Connection", "close");
        exchange_error(x, 400, NULL, "the head of this request can be read in more than one way");
        return;
    case 401:
        exchange_header(x, "WWW-Authenticate", "Bearer");
        exchange_error(x, 401, NULL, "no key, or a wrong one; send Authorization: Bearer KEY");
        return;
    case 413:
        exchange_error(x, 413, NULL, "the body has more than %zu bytes (--max-body-mb)", x->http->options.body_bytes);
        return;
    case 421:
        exchange_error(x, 421, NULL, "this server has another name than the Host that was asked for");
        return;
    default:
        exchange_error(x, 503, NULL, "there is no memory for this request now; try again");
    }
}

static void answer_page(exchange *x)
{
    exchange_header(x, "Content-Security-Policy",
                    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
                    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    exchange_header(x, "Referrer-Policy", "no-referrer");
    exchange_answer(x, 200, "text/html; charset=utf-8", http_page, strlen(http_page));
}

/* All of it has come. */
static void handle(exchange *x)
{
    http *h = x->http;
    exchange_handler *handler = atomic_load(&h->handler);
    x->handled = true;
    x->holders++; /* nobody else knows it yet                                                             */
    pthread_mutex_lock(&h->lock);
    x->line->state = LINE_ANSWERING;
    x->line->exchange = x;
    x->deadline = h->options.request_seconds > 0 ? http_now() + h->options.request_seconds : 0;
    pthread_mutex_unlock(&h->lock);
    if (x->refused)
        answer_refused(x);
    else if (strcmp(x->path, "/") == 0 && (strcmp(x->method, "GET") == 0 || strcmp(x->method, "HEAD") == 0))
        answer_page(x);
    else if (!handler)
        exchange_error(x, 503, NULL, "Loading model");
    else if (x->body_length > 0)
        pool_add(h, x);
    else
        handler(atomic_load(&h->ctx), x);
}

static line *line_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void set_state(http *h, line *l, line_state state)
{
    pthread_mutex_lock(&h->lock);
    l->state = state;
    l->since = http_now();
    if (state != LINE_ANSWERING)
        l->exchange = NULL;
    pthread_mutex_unlock(&h->lock);
}

/* The line of a request has come, and no header yet: the time for the rest runs, also on a connection that was idle.
 * The path is without escapes when it comes to on_request, where a NUL ends it. */
static void *on_line(void *http_, const char *uri, struct MHD_Connection *connection)
{
    line *l = line_of(connection);
    if (!l)
        return NULL;
    l->odd_path = strstr(uri, "%00") != NULL;
    if (l->state == LINE_IDLE)
        set_state(http_, l, LINE_READING);
    return NULL;
}

static bool waits_for_leave(const exchange *x)
{
    const char *expect = exchange_header_of(x, "Expect");
    return expect && strcasecmp(expect, "100-continue") == 0;
}

/* Of the body of who is refused nothing is kept, but it is read, since who still sends does not see an answer. That is
 * not so of who waits for leave to send it, nor is a body waited for whose end nobody knows. */
static enum MHD_Result begin(http *h, struct MHD_Connection *connection, const char *url, const char *method,
                             const char *version, void **own)
{
    line *l = line_of(connection);
    char *path = l ? strdup(url) : NULL;
    exchange *x = path ? exchange_new(h, connection, l, method, bare_path(path)) : NULL;
    free(path);
    if (!x)
        return MHD_NO;
    *own = x;
    x->is_old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    x->refused = http_read_head(x);
    if (x->refused != 400 && !(x->refused && waits_for_leave(x)))
        return MHD_YES;
    handle(x);
    return exchange_continue(x);
}

static enum MHD_Result on_request(void *http_, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **own)
{
    http *h = http_;
    exchange *x = *own;
    if (!x)
        return begin(h, connection, url, method, version, own);
    if (*size > 0) {
        body_take(x, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!x->handled)
        handle(x);
    return exchange_continue(x);
}

static void on_completed(void *http_, struct MHD_Connection *connection, void **own,
                         enum MHD_RequestTerminationCode code)
{
    http *h = http_;
    exchange *x = *own;
    line *l = line_of(connection);
    if (l)
        set_state(h, l, LINE_IDLE);
    if (x)
        exchange_connection_over(x, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    *own = NULL;
}

static void on_connection(void *http_, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    http *h = http_;
    line *l = *socket_context;
    pthread_mutex_lock(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED && (l = calloc(1, sizeof *l))) {
        l->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        l->since = http_now();
        l->next = h->lines;
        l->before = &h->lines;
        if (l->next)
            l->next->before = &l->next;
        h->lines = l;
        *socket_context = l;
    } else if (code == MHD_CONNECTION_NOTIFY_CLOSED && l) {
        *l->before = l->next;
        if (l->next)
            l->next->before = l->before;
        free(l);
        *socket_context = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}

/* ---- the daemon ----------------------------------------------------------------------------------- */

static tn_status start(http *h, tn_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->listening,
                                 MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
                                 MHD_OPTION_CONNECTION_TIMEOUT, h->options.idle_seconds, MHD_OPTION_URI_LOG_CALLBACK,
                                 on_line, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                 on_connection, h, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!h->daemon)
        return tn_fail(err, TN_E_MEMORY, "http", "the threads that answer cannot be started");
    if (pthread_create(&h->watcher, NULL, http_watch, h) != 0)
        return tn_fail(err, TN_E_MEMORY, "http", "a thread cannot be started");
    h->watching = true;
    return pool_open(h, err);
}

http *http_open(const http_options *options, tn_error *err)
{
    http *h = calloc(1, sizeof *h);
    if (!h) {
        tn_fail(err, TN_E_MEMORY, "http", "out of memory");
        return NULL;
    }
    h->options = *options;
    h->listening = -1;
    atomic_store(&h->numbers, (uint_fast64_t)time(NULL) << 20);
    pthread_mutex_init(&h->lock, NULL);
    tn_status status = keys_read(&h->keys, options->key_file, err);
    if (status == TN_OK)
        status = http_listen(h, err);
    if (status == TN_OK)
        status = start(h, err);
    if (status == TN_OK)
        return h;
    http_close(h);
    return NULL;
}

void http_handle(http *h, exchange_handler *handler, void *ctx)
{
    atomic_store(&h->ctx, ctx);
    atomic_store(&h->handler, handler);
}

int http_port(const http *h)
{
    return h->port;
}

/* What was answered is sent: nobody who reads is cut off, but who does not is. */
static void flush(http *h)
{
    enum { LOOKS = 400 }; /* of 5 ms each: a machine that stands still meanwhile cuts nobody off               */
    bool busy = true;
    for (int i = 0; busy && i < LOOKS; i++) {
        busy = false;
        pthread_mutex_lock(&h->lock);
        for (const line *l = h->lines; l; l = l->next)
            busy |= l->state == LINE_ANSWERING;
        pthread_mutex_unlock(&h->lock);
        if (busy)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

void http_close(http *h)
{
    if (!h)
        return;
    if (h->daemon)
        flush(h);
    pool_close(h);
    atomic_store(&h->closing, true);
    if (h->watching)
        pthread_join(h->watcher, NULL);
    pthread_mutex_lock(&h->lock); /* none may be suspended when the daemon ends                           */
    for (line *l = h->lines; l; l = l->next)
        if (l->exchange)
            exchange_lose(l->exchange, false);
    pthread_mutex_unlock(&h->lock);
    if (h->daemon)
        MHD_stop_daemon(h->daemon); /* closes the listening socket, too                                   */
    else if (h->listening >= 0)
        close(h->listening);
    http_unlisten(h);
    pool_free(h);
    keys_close(&h->keys);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
