/* The members of a request's body: their types and ranges, and what is wrong with them. */
#ifndef TENON_SERVE_REQUEST_H
#define TENON_SERVE_REQUEST_H

#include "exchange.h"

#include <tenon/tenon.h>

/* The first thing that is wrong with a request. */
typedef struct request_error {
    int status;     /* of the answer; 0: nothing is wrong                                        */
    char param[80]; /* the member that is meant; "": none                                        */
    char message[1024];
} request_error;

/* Notes an error unless there is one, and returns false. */
bool request_refuse(request_error *e, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool request_no_memory(request_error *e);
/* Has an allocation of jansson's failed on this thread since request_parse? Some of them it takes for other mistakes,
 * or does without. Notes an error then, and returns false. */
bool request_had_memory(request_error *e);
/* To be called once, before the first request. */
void request_watch_memory(void);
/* What the library says: the request's fault (400) or ours (500). */
bool request_failed(request_error *e, const char *param, const tn_error *err);

/* Ends the exchange with that error. */
void request_answer(exchange *x, request_error *e);

/* The body as an object. NULL: e says why. */
json_t *request_parse(exchange *x, request_error *e);

/* NULL: the member is not there, or null. */
json_t *request_member(const json_t *body, const char *name);

/* The member, or otherwise where there is none or it is wrong; bounds belong to the range. An integer may be written as
 * 2.0. */
double request_real(const json_t *body, const char *name, double low, double high, double otherwise, request_error *e);
int64_t request_integer(const json_t *body, const char *name, int64_t low, int64_t high, int64_t otherwise,
                        request_error *e);
bool request_flag(const json_t *body, const char *name, bool otherwise, request_error *e);
const char *request_text(const json_t *body, const char *name, const char *otherwise, request_error *e);

/* An integer of JSON; false: it is none, or has no exact value. */
bool request_whole(const json_t *value, int64_t *out);

/* A list of token ids of a vocabulary. Owned; NULL: e says why, with name as the member. */
int64_t *request_ids(const json_t *list, const char *name, int64_t vocab, size_t *count, request_error *e);

#endif
