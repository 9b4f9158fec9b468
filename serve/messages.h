/* A chat's messages, as a template wants them, and the text that it makes of them. */
#ifndef TENON_SERVE_MESSAGES_H
#define TENON_SERVE_MESSAGES_H

#include "request.h"
#include "state.h"

/* Checks a request's messages and returns those that the template sees. Owned; NULL: e says what is wrong. */
json_t *messages_read(const api *a, const json_t *body, request_error *e);

/* What the template makes of them, by what the request's body says of how. tools NULL: none. text is owned, and ends in
 * a NUL. false: e says why not. */
bool messages_render(const api *a, const json_t *body, const json_t *messages, const json_t *tools, char **text,
                     size_t *length, request_error *e);

#endif
