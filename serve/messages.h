/* A chat's messages, as a template wants them, and the text that it makes of them. */
#ifndef TENON_SERVE_MESSAGES_H
#define TENON_SERVE_MESSAGES_H

#include "shown.h"

/* Checks a request's messages and returns those that the template sees; pictures and sounds come to shown. Owned; NULL:
 * e says what is wrong. */
json_t *messages_read(const api *a, const json_t *body, shown *shown, request_error *e);

/* What the template makes of them, by what the request's body says of how. tools NULL: none. text is owned, and ends in
 * a NUL. false: e says why not. */
bool messages_render(const api *a, const json_t *body, const json_t *messages, const json_t *tools, char **text,
                     size_t *length, request_error *e);

#endif
