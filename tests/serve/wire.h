/* A server of the transport alone, whose answers the test gives itself, and bytes to and from it. */
#ifndef TENON_TESTS_WIRE_H
#define TENON_TESTS_WIRE_H

#include "../../serve/http.h"

#include <sys/stat.h>

#define WIRE_HOST "Host: localhost\r\n"
#define WIRE_GET(path) "GET " path " HTTP/1.1\r\n" WIRE_HOST "\r\n"

/* What the requests below come to. /text: {"text": what the body is}; /big: 64 MiB of text; /hold: nothing, until the
 * test answers what wire_held returns; /stream: a stream of events that the test writes; /wait: {}, but the handler
 * waits for wire_let; /end: 410. Kept until the test ends. */
typedef struct wire wire;

/* Options with a port of its own and long times, to be changed. */
http_options wire_options(void);
wire *wire_serve(const http_options *options);
wire *wire_load(const http_options *options); /* the same, which is still loading                            */
void wire_loaded(wire *w);
void wire_close(wire *w); /* before the test ends                                                            */

/* The oldest exchange that /hold or /stream was asked for and wire_held has not returned. The test ends it. */
exchange *wire_held(wire *w);

const _Atomic int *wire_waiting(const wire *w); /* handlers that came to /wait                                    */
void wire_let(wire *w);

/* How often who watches an exchange was told that the client is gone, and that it is late. */
typedef struct watched {
    _Atomic int gone, late;
} watched;

void wire_watch(exchange *x, watched *w);
void wire_wait(const _Atomic int *counter, int value); /* fails when that takes long                          */

void wire_wait_for_lines(wire *w, int count); /* until the server has so many connections                            */

/* Connections; closed when the test ends. */
int wire_open(const wire *w);
void wire_send(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool wire_try(int fd, const char *bytes, size_t length); /* false: the server has closed it                    */

/* What comes until the server closes, or words have come, or minutes are over. *closed, unless NULL: it did. */
const char *wire_read(int fd, const char *words, bool *closed);

/* All that is answered to this, on a connection of its own. A last request is added, which is answered with 410, so
 * that the server closes it. */
const char *wire_ask(const wire *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Asks a server that waits so long for a request, until this process was not held up for longer meanwhile. Fails unless
 * that is answered; its connection. */
int wire_get(const wire *w, double seconds);

int wire_status(const char *answer);                 /* of the first; 0: none                              */
int wire_count(const char *text, const char *words); /* how often they are in it                           */

/* A file of the folder, which these may read. Kept until the test ends. */
const char *wire_file(const char *folder, const char *name, const char *text, mode_t mode);

#endif
