/* The tools of a request, and the form that its answer must have. */
#ifndef TENON_SERVE_TOOLS_H
#define TENON_SERVE_TOOLS_H

#include "reply.h"

typedef enum tools_choice { TOOLS_NONE, TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_NAMED } tools_choice;

typedef struct tools {
    const json_t *list; /* at least one; NULL: none                                                  */
    tools_choice choice;
    const char *named; /* of TOOLS_NAMED                                                           */
    bool one_call;     /* parallel_tool_calls is false                                                */
} tools;

/* body must stay. false: e says what is wrong. */
bool tools_read(tools *t, const json_t *body, request_error *e);

/* Is that a name of a tool, or of a schema? */
bool tools_is_name(const json_t *name);

/* Makes the reply's grammar, where tools or response_format demand a form. false: e says why there is none. */
bool tools_constrain(reply *g, const tools *t, const json_t *body, request_error *e);

#endif
