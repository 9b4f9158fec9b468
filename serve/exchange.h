/* One request of HTTP and its answer, as those who answer see it; http.c has the connection. */
#ifndef TENON_SERVE_EXCHANGE_H
#define TENON_SERVE_EXCHANGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct exchange exchange;

/* Who answers is called on a thread of HTTP once the body is whole, and returns soon: it has ended the exchange by
 * then, or has handed it to another thread, which does. Everything below but exchange_watch may be called from any
 * thread, by one at a time. */
typedef void exchange_handler(void *ctx, exchange *x);

const char *exchange_method(const exchange *x);
const char *
exchange_path(const exchange *x); /* decoded, without the query, and without a /v1 before it or a / behind */
const char *exchange_body(const exchange *x, size_t *length);
const char *exchange_header_of(const exchange *x, const char *name); /* of the request; NULL: it has none       */

/* Before exchange_begin: one more header of the answer. */
void exchange_header(exchange *x, const char *name, const char *value);

/* The whole answer at once, which ends the exchange. body is copied. */
void exchange_answer(exchange *x, int status, const char *type, const char *body, size_t length);

/* The same of JSON, which is taken; NULL: out of memory (500). */
void exchange_json(exchange *x, int status, json_t *body);

/* {"error": {"message", "type", "param", "code"}}; type follows from the status; param NULL: null. */
void exchange_error(exchange *x, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A stream of events: the head goes out at once, then what is written. exchange_event writes "data: ", the JSON on one
 * line, which is taken, and two line ends; exchange_write any bytes. While nothing is written for a time, http.c sends
 * comments (--ping). false: the client is gone, or takes nothing any more. */
void exchange_begin_events(exchange *x);
bool exchange_event(exchange *x, json_t *event);
bool exchange_write(exchange *x, const char *bytes, size_t length);
void exchange_end(exchange *x); /* x is not to be used any more                                                  */

/* Calls gone(ctx) once, from any thread, when the client is found to have gone away or the time of --request-timeout is
 * over (late is true then) before the exchange has ended; not after exchange_watch(x, NULL, NULL) or the end has
 * returned. gone must not wait, nor call functions of this header. */
void exchange_watch(exchange *x, void (*gone)(void *ctx, bool late), void *ctx);

#endif
