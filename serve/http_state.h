/* What the files of the transport share: http.c (connections), http_listen.c (sockets), http_head.c (who may ask),
 * http_body.c, http_pool.c (threads of the handler), http_exchange.c (answers), http_watch.c (clients that have gone,
 * or are slow). */
#ifndef TENON_SERVE_HTTP_STATE_H
#define TENON_SERVE_HTTP_STATE_H

#include "http.h"
#include "keys.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* A connection: what it is doing since when. Owned by libmicrohttpd's callback of its end. */
typedef enum line_state { LINE_READING, LINE_ANSWERING, LINE_IDLE } line_state;

typedef struct line {
    int fd;
    line_state state;
    double since;
    bool odd_path; /* of the request: it holds a NUL                                                       */
    struct exchange *exchange; /* that is being answered; or NULL                                          */
    struct line *next, **before;
} line;

enum { EXCHANGE_HEADERS = 8 };

struct exchange {
    http *http;
    line *line;
    struct MHD_Connection *connection; /* NULL: it is done with this                                   */
    char *method, *path;               /* owned                                                      */
    char *head;                        /* owned: names and values, a NUL behind each                 */
    size_t head_length, head_capacity;
    char *body; /* owned; ends in a NUL                                                              */
    size_t body_length, body_capacity;
    bool handled, is_old; /* is_old: HTTP/1.0                                                       */
    int refused;          /* status that it is answered with when its body is through; 0: it goes to the handler  */
    char id[24];
    double begun, deadline; /* 0: none                                                            */
    struct exchange *next_in_pool;
    bool is_long; /* it takes a thread of those for what takes long                                  */

    /* The rest under lock. The connection's side and the answering side each let go of it once; the last frees it. */
    pthread_mutex_t lock;
    int holders;
    struct MHD_Response *response; /* whole, to be queued                                              */
    char *header[EXCHANGE_HEADERS][2];
    int headers, status;
    bool stream, ended, gone, suspended, queued, late;
    char *out; /* of a stream, what was not sent                                                      */
    size_t out_length, out_capacity, out_at;
    double wrote;
    void (*watch)(void *ctx, bool late);
    void *watch_ctx;
};

/* Requests that wait for a thread and for the handler, short ones and long ones. */
enum { POOL_THREADS = 4, POOL_LONG_BODY = 256 << 10 };
typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct exchange *first[2], *last[2];
    int long_running, threads;
    pthread_t thread[POOL_THREADS];
    bool opened, closing;
} pool;

struct http {
    http_options options;
    key_list keys;
    int listening, port;
    bool local;         /* only this machine can ask                                                 */
    bool bound;         /* the path is of this socket:                                               */
    struct stat socket; /* by its device and inode                                                    */
    struct MHD_Daemon *daemon;
    exchange_handler *_Atomic handler;
    void *_Atomic ctx;
    pool pool;
    atomic_uint_fast64_t numbers;
    atomic_size_t bodies; /* bytes of all that are held                                                 */
    pthread_mutex_t lock; /* of lines; taken before an exchange's                                      */
    line *lines;
    pthread_t watcher;
    bool watching;
    atomic_bool closing;
};

double http_now(void);

/* http_listen.c */
tn_status http_listen(http *h, tn_error *err);

/* http_head.c */
int http_read_head(exchange *x); /* the status that the request is refused with, by its head; 0: it may go on   */
void http_share(const exchange *x, struct MHD_Response *r); /* headers for pages from elsewhere              */

/* http_body.c: what does not fit is dropped, and the request refused. */
void body_take(exchange *x, const char *data, size_t length);
void body_drop(exchange *x);

/* http_pool.c: pool_close ends the threads when nothing waits any more; what is added then is handled at once. Both are
 * due also when pool_open has failed, or was not called. */
tn_status pool_open(http *h, tn_error *err);
void pool_add(http *h, exchange *x);
void pool_close(http *h);
void pool_free(http *h);

/* http_exchange.c */
exchange *exchange_new(http *h, struct MHD_Connection *connection, line *line, const char *method, const char *path);
void exchange_release(exchange *x);
/* On the connection's thread: queues what there is, or suspends it until there is something. */
enum MHD_Result exchange_continue(exchange *x);
void exchange_connection_over(exchange *x, bool sent); /* it is not used any more, however it ended        */
void exchange_lose(exchange *x, bool late);            /* the client is gone, or its time is over                     */
void exchange_ping(exchange *x, double now);
bool exchange_is_gone(exchange *x);

/* http_watch.c */
void *http_watch(void *http);

/* page.c: one HTML file. */
extern const char http_page[];

#endif
