/* HTTP: sockets, limits, keys, and who may ask; what is asked goes to an exchange_handler. Over libmicrohttpd. */
#ifndef TENON_SERVE_HTTP_H
#define TENON_SERVE_HTTP_H

#include "exchange.h"

#include <tenon/tenon.h>

typedef struct http_options {
    const char *host;      /* a name or number to listen at; beyond this machine any Host header is taken            */
    int port;              /* 0: any                                                                                */
    const char *unix_path; /* instead of both; or NULL                                                              */
    const char *key_file;  /* one key a line; or NULL: nobody is asked                                              */
    const char *const *origins; /* whose pages may ask (CORS); "*": all                                       */
    size_t origin_count;
    size_t body_bytes;      /* of a request, at most                                                                 */
    double read_seconds;    /* for a request to come in                                                              */
    unsigned idle_seconds;  /* without a byte that goes either way, between requests or in an answer                 */
    double request_seconds; /* for an answer; 0: any                                                                */
    double ping_seconds;    /* of silence in a stream before a comment; 0: none                                      */
    bool log;               /* a line on stderr for each request: no word of its contents                            */
} http_options;

typedef struct http http;

/* Listens and answers that the model is loading (503). The options' strings must stay. NULL: err says why. Owned:
 * http_close. */
http *http_open(const http_options *options, tn_error *err);

/* From now on requests go to the handler; those for / get the page. */
void http_handle(http *h, exchange_handler *handler, void *ctx);

int http_port(const http *h); /* that it listens at                                                            */

/* Takes a socket's path away again, if it is still this server's. At any time after http_open, by any thread. */
void http_unlisten(const http *h);

/* Ends all connections and threads. Every exchange that the handler was given has been ended by then. */
void http_close(http *h);

#endif
