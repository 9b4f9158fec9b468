/* Connections: what comes in is checked before anybody computes, and goes to the handler when it is whole. */
#include "http_state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 4, MOST_CONNECTIONS = 1024, HEAD_BYTES = 64 << 10, BACKLOG = 128 };

double http_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- who may ask ---------------------------------------------------------------------------------- */

static bool is_address(const char *name)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

/* A page from elsewhere whose name was made to point here says its own name. Where others than this machine can ask
 * anyway, under names that nobody here knows, keys are what protects. */
static bool is_own_host(const http *h, const char *host)
{
    char name[256];
    if (!h->local || h->options.unix_path || !host)
        return true;
    snprintf(name, sizeof name, "%s", host);
    char *end = name[0] == '[' ? strchr(name, ']') : strrchr(name, ':');
    if (end)
        *end = '\0';
    const char *bare = name + (name[0] == '[');
    return strcasecmp(bare, "localhost") == 0 || strcasecmp(bare, h->options.host) == 0 || is_address(bare);
}

static bool is_public(const exchange *x)
{
    return strcmp(x->path, "/health") == 0 || strcmp(x->path, "/") == 0;
}

typedef struct lengths {
    int length, coding;
    bool odd;
} lengths;

static enum MHD_Result count_length(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    lengths *l = ctx;
    (void)kind;
    if (strcasecmp(key, "Content-Length") == 0) {
        l->length++;
        l->odd |= !value || !*value || strspn(value, "0123456789") != strlen(value);
    }
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        l->coding++;
        l->odd |= !value || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

/* Who says twice how long a body is may mean to hide a second request in it. */
static bool is_ambiguous(struct MHD_Connection *connection)
{
    lengths l = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_length, &l);
    return l.odd || l.length > 1 || l.coding > 1 || (l.length && l.coding);
}

/* 0: it may go on. */
static int refusal(const http *h, struct MHD_Connection *connection, const exchange *x)
{
    if (is_ambiguous(connection))
        return 400;
    if (!is_own_host(h, exchange_header_of(x, "Host")))
        return 421;
    if (strcmp(x->method, "OPTIONS") == 0)
        return 204;
    if (!is_public(x) &&
        !keys_match(&h->keys, exchange_header_of(x, "Authorization"), exchange_header_of(x, "X-Api-Key")))
        return 401;
    return 0;
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
    switch (x->too_large ? 413 : x->refused) {
    case 204:
        exchange_header(x, "Allow", "GET, POST, OPTIONS");
        exchange_answer(x, 204, "text/plain", "", 0);
        return;
    case 400:
        exchange_header(x, "Connection", "close");
        exchange_error(x, 400, NULL, "the length of the body is said in more than one way");
        return;
    case 401:
        exchange_header(x, "WWW-Authenticate", "Bearer");
        exchange_error(x, 401, NULL, "no key, or a wrong one; send Authorization: Bearer KEY");
        return;
    case 413:
        exchange_error(x, 413, NULL, "the body has more than %zu bytes (--max-body-mb)", x->http->options.body_bytes);
        return;
    default:
        exchange_error(x, x->refused, NULL, "this server has another name than the Host that was asked for");
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
    if (x->refused || x->too_large)
        answer_refused(x);
    else if (strcmp(x->path, "/") == 0 && (strcmp(x->method, "GET") == 0 || strcmp(x->method, "HEAD") == 0))
        answer_page(x);
    else if (!handler)
        exchange_error(x, 503, NULL, "Loading model");
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

static enum MHD_Result begin(http *h, struct MHD_Connection *connection, const char *url, const char *method,
                             void **own)
{
    line *l = line_of(connection);
    char *path = l ? strdup(url) : NULL;
    exchange *x = path ? exchange_new(h, connection, l, method, bare_path(path)) : NULL;
    free(path);
    if (!x)
        return MHD_NO;
    *own = x;
    if (l->state == LINE_IDLE)
        set_state(h, l, LINE_READING);
    x->refused = refusal(h, connection, x);
    if (x->refused != 400)
        return MHD_YES;
    handle(x); /* and no body is waited for, whose end nobody knows                                        */
    return exchange_continue(x);
}

static enum MHD_Result on_request(void *http_, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **own)
{
    http *h = http_;
    exchange *x = *own;
    (void)version;
    if (!x)
        return begin(h, connection, url, method, own);
    if (*size > 0) {
        bool taken = exchange_take_body(x, data, *size);
        *size = 0;
        return taken ? MHD_YES : MHD_NO;
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
    (void)code;
    if (l)
        set_state(h, l, LINE_IDLE);
    if (x)
        exchange_connection_over(x);
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

/* ---- listening ------------------------------------------------------------------------------------ */

static tn_status listen_unix(http *h, tn_error *err)
{
    const char *path = h->options.unix_path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof address.sun_path)
        return tn_fail(err, TN_E_USAGE, path, "a socket's path has at most %zu characters",
                       sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = lstat(path, &st) == 0, answers = connect(probe, (void *)&address, sizeof address) == 0;
    close(probe);
    if (there && (answers || !S_ISSOCK(st.st_mode)))
        return tn_fail(err, TN_E_USAGE, path, answers ? "somebody listens there already" : "is there and no socket");
    if (there)
        unlink(path); /* of a server that is gone                                                         */
    h->listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before = umask(0117); /* for its owner and group alone                                         */
    bool ok = h->listening >= 0 && bind(h->listening, (void *)&address, sizeof address) == 0 &&
              listen(h->listening, BACKLOG) == 0;
    umask(before);
    return ok ? TN_OK : tn_fail(err, TN_E_USAGE, path, "cannot listen: %s", strerror(errno));
}

static bool is_loopback(const struct sockaddr *a)
{
    const struct sockaddr_in *four = (const void *)a;
    const struct sockaddr_in6 *six = (const void *)a;
    return a->sa_family == AF_INET    ? (ntohl(four->sin_addr.s_addr) >> 24) == 127
           : a->sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                                      : false;
}

static int own_port(int fd)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (getsockname(fd, (void *)&own, &size) != 0)
        return 0;
    return ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&own)->sin6_port
                                           : ((struct sockaddr_in *)(void *)&own)->sin_port);
}

static tn_status listen_at(http *h, tn_error *err)
{
    char port[16];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%d", h->options.port);
    int failed = getaddrinfo(h->options.host, port, &hints, &found);
    if (failed)
        return tn_fail(err, TN_E_USAGE, h->options.host, "is no address to listen at: %s", gai_strerror(failed));
    h->listening = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    h->local = is_loopback(found->ai_addr);
    bool ok = h->listening >= 0 && setsockopt(h->listening, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0 &&
              bind(h->listening, found->ai_addr, found->ai_addrlen) == 0 && listen(h->listening, BACKLOG) == 0;
    int why = errno;
    freeaddrinfo(found);
    if (!ok)
        return tn_fail(err, TN_E_USAGE, h->options.host, "cannot listen at port %d: %s; take another with --port",
                       h->options.port, strerror(why));
    h->port = own_port(h->listening);
    return TN_OK;
}

static tn_status start(http *h, tn_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->listening,
                                 MHD_OPTION_THREAD_POOL_SIZE, (unsigned)POOL, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)MOST_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                 on_connection, h, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!h->daemon)
        return tn_fail(err, TN_E_MEMORY, "http", "the threads that answer cannot be started");
    if (pthread_create(&h->watcher, NULL, http_watch, h) != 0)
        return tn_fail(err, TN_E_MEMORY, "http", "a thread cannot be started");
    h->watching = true;
    return TN_OK;
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
        status = options->unix_path ? listen_unix(h, err) : listen_at(h, err);
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
    double end = http_now() + 2;
    for (bool busy = true; busy && http_now() < end;) {
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
    if (h->options.unix_path && h->listening >= 0)
        unlink(h->options.unix_path);
    keys_close(&h->keys);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
