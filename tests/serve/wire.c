/* See wire.h. */
#include "wire.h"
#include "../../serve/http_state.h"
#include "suite.h"
#include "tempdir.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_HELD = 64, BIG = 64 << 20 };
static const double LONG = 200; /* seconds, of what hangs; a machine may stand still for some               */

struct wire {
    http *http;
    const char *unix_path;
    pthread_mutex_t lock;
    exchange *held[MOST_HELD];
    int held_count, held_taken;
    _Atomic int waiting;
    atomic_bool let;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* ---- the server ----------------------------------------------------------------------------------- */

static void hold(wire *w, exchange *x)
{
    pthread_mutex_lock(&w->lock);
    if (w->held_count == MOST_HELD)
        abort();
    w->held[w->held_count++] = x;
    pthread_mutex_unlock(&w->lock);
}

static void answer_big(exchange *x)
{
    char *text = malloc(BIG);
    if (!text)
        abort();
    memset(text, 'x', BIG);
    exchange_answer(x, 200, "text/plain", text, BIG);
    free(text);
}

static void handle(void *wire_, exchange *x)
{
    wire *w = wire_;
    size_t length;
    const char *path = exchange_path(x), *body = exchange_body(x, &length);
    if (strcmp(path, "/text") == 0) {
        exchange_json(x, 200, json_pack("{s:s%}", "text", body, length));
    } else if (strcmp(path, "/big") == 0) {
        answer_big(x);
    } else if (strcmp(path, "/stream") == 0) {
        exchange_begin_events(x);
        hold(w, x);
    } else if (strcmp(path, "/hold") == 0) {
        hold(w, x);
    } else if (strcmp(path, "/wait") == 0) {
        w->waiting++;
        while (!w->let)
            sleep_ms(2);
        exchange_json(x, 200, json_object());
    } else if (strcmp(path, "/end") == 0) {
        exchange_answer(x, 410, "text/plain", "", 0);
    } else {
        exchange_error(x, 404, "path", "there is nothing at %s", path);
    }
}

http_options wire_options(void)
{
    return (http_options){.host = "127.0.0.1", .body_bytes = 1 << 20, .read_seconds = LONG, .idle_seconds = 300};
}

static void close_it(void *wire_)
{
    wire *w = wire_;
    http_close(w->http);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

wire *wire_load(const http_options *options)
{
    tn_error err = TN_ERROR_INIT;
    wire *w = calloc(1, sizeof *w);
    ck_assert_ptr_nonnull(w);
    pthread_mutex_init(&w->lock, NULL);
    w->unix_path = options->unix_path;
    w->http = http_open(options, &err);
    ck_assert_msg(w->http != NULL, "%s: %s", err.where, err.message);
    suite_keep(w, close_it);
    return w;
}

void wire_loaded(wire *w)
{
    http_handle(w->http, handle, w);
}

wire *wire_serve(const http_options *options)
{
    wire *w = wire_load(options);
    wire_loaded(w);
    return w;
}

void wire_close(wire *w)
{
    suite_forget(w);
    close_it(w);
}

exchange *wire_held(wire *w)
{
    exchange *x = NULL;
    for (double end = now() + LONG; !x && now() < end; sleep_ms(2)) {
        pthread_mutex_lock(&w->lock);
        if (w->held_taken < w->held_count)
            x = w->held[w->held_taken++];
        pthread_mutex_unlock(&w->lock);
    }
    ck_assert_msg(x != NULL, "no request came");
    return x;
}

const _Atomic int *wire_waiting(const wire *w)
{
    return &w->waiting;
}

void wire_let(wire *w)
{
    w->let = true;
}

static void on_gone(void *watched_, bool late)
{
    watched *w = watched_;
    if (late)
        w->late++;
    else
        w->gone++;
}

void wire_watch(exchange *x, watched *w)
{
    exchange_watch(x, on_gone, w);
}

void wire_wait(const _Atomic int *counter, int value)
{
    for (double end = now() + LONG; *counter != value && now() < end;)
        sleep_ms(2);
    ck_assert_int_eq(*counter, value);
}

void wire_wait_for_lines(wire *w, int count)
{
    int now_open = -1;
    for (double end = now() + LONG; now_open != count && now() < end; sleep_ms(2)) {
        now_open = 0;
        pthread_mutex_lock(&w->http->lock);
        for (const line *l = w->http->lines; l; l = l->next)
            now_open++;
        pthread_mutex_unlock(&w->http->lock);
    }
    ck_assert_msg(now_open == count, "%d connections are open", now_open);
}

/* ---- connections ---------------------------------------------------------------------------------- */

static void close_socket(void *fd)
{
    close(*(int *)fd);
    free(fd);
}

int wire_open(const wire *w)
{
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                               .sin_port = htons((uint16_t)http_port(w->http))};
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    int fd = socket(w->unix_path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), *kept = malloc(sizeof *kept);
    ck_assert(fd >= 0 && kept);
    if (w->unix_path)
        snprintf(path.sun_path, sizeof path.sun_path, "%s", w->unix_path);
    ck_assert_int_eq(w->unix_path ? connect(fd, (void *)&path, sizeof path) : connect(fd, (void *)&four, sizeof four),
                     0);
    *kept = fd;
    suite_keep(kept, close_socket);
    return fd;
}

bool wire_try(int fd, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
        if (n < 0)
            return false;
        bytes += n;
        length -= (size_t)n;
    }
    return true;
}

void wire_send(int fd, const char *format, ...)
{
    char *bytes = NULL;
    va_list values;
    va_start(values, format);
    int length = vasprintf(&bytes, format, values);
    va_end(values);
    ck_assert_int_ge(length, 0);
    ck_assert_msg(wire_try(fd, bytes, (size_t)length), "%s", strerror(errno));
    free(bytes);
}

const char *wire_read(int fd, const char *words, bool *closed)
{
    size_t length = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    bool over = false;
    ck_assert_ptr_nonnull(text);
    *text = '\0';
    for (double end = now() + LONG; !over && !(words && strstr(text, words)) && now() < end;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0)
            continue;
        if (length + 1 == capacity)
            ck_assert_ptr_nonnull(text = realloc(text, capacity *= 2));
        ssize_t n = recv(fd, text + length, capacity - length - 1, 0);
        over = n <= 0;
        length += n > 0 ? (size_t)n : 0;
        text[length] = '\0';
    }
    if (closed)
        *closed = over;
    suite_keep(text, free);
    return text;
}

const char *wire_ask(const wire *w, const char *format, ...)
{
    static const char last[] = "GET /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char *bytes = NULL;
    bool closed;
    int fd = wire_open(w);
    va_list values;
    va_start(values, format);
    int length = vasprintf(&bytes, format, values);
    va_end(values);
    ck_assert_int_ge(length, 0);
    if (wire_try(fd, bytes, (size_t)length))
        wire_try(fd, last, sizeof last - 1);
    free(bytes);
    const char *answer = wire_read(fd, NULL, &closed);
    ck_assert(closed);
    return answer;
}

int wire_get(const wire *w, double seconds)
{
    for (;;) {
        double began = now();
        int fd = wire_open(w);
        bool sent = wire_try(fd, WIRE_GET("/text"), strlen(WIRE_GET("/text"))), late = now() - began >= seconds;
        const char *answer = wire_read(fd, "}", NULL);
        if (sent && wire_status(answer) == 200)
            return fd;
        ck_assert_msg(late, "no answer: %s", answer);
    }
}

int wire_status(const char *answer)
{
    return strncmp(answer, "HTTP/1.", 7) == 0 && strlen(answer) > 9 ? atoi(answer + 9) : 0;
}

int wire_count(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)); at += strlen(words))
        count++;
    return count;
}

const char *wire_file(const char *folder, const char *name, const char *text, mode_t mode)
{
    const char *path = tempdir_at(folder, name);
    tempdir_write(path, text, strlen(text));
    ck_assert_int_eq(chmod(path, mode), 0);
    return path;
}
