/* /chat/completions and what goes with it. */
#ifndef TENON_SERVE_CHAT_H
#define TENON_SERVE_CHAT_H

#include "reply.h"

void chat_answer(api *a, exchange *x);   /* /chat/completions                                         */
void chat_count(api *a, exchange *x);    /* /chat/completions/input_tokens                             */
void chat_template(api *a, exchange *x); /* /apply-template                                            */

/* Members that other requests have, too. Is the model that is named this one? stream and stream_options; cache_salt. */
bool chat_model(const api *a, const json_t *body, request_error *e);
bool chat_stream(reply *g, request_error *e);
bool chat_salt(reply *g, request_error *e);

#endif
