/* Answers and events as JSON. */
#ifndef TENON_SERVE_RESPOND_H
#define TENON_SERVE_RESPOND_H

#include "reply.h"

/* Of a stream: its head and, of a chat, a chunk that opens each choice, in order. */
void respond_begin(reply *g);

/* A chunk of one choice, with log-probabilities that are due. delta is taken; NULL: no memory. */
void respond_delta(choice *c, json_t *delta);
void respond_text(choice *c, const char *key, const char *text, size_t length); /* of one member          */

/* The chunk that ends a choice. */
void respond_finish(choice *c);

/* The answer, or of a stream what stands behind all choices, or the error. The exchange ends. */
void respond_end(reply *g);

#endif
