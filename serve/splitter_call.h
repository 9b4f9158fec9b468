/* One call, and how it is read where it is an object of JSON with a name and arguments. */
#ifndef TENON_SERVE_SPLITTER_CALL_H
#define TENON_SERVE_SPLITTER_CALL_H

#include "splitter_json.h"
#include "splitter_text.h"

#include <jansson.h>

/* The text that is held, by its place in all of the answer. */
typedef struct splitter_window {
    splitter_text text;
    size_t base; /* where its first byte is                                                              */
} splitter_window;

static inline const char *splitter_window_at(const splitter_window *w, size_t place)
{
    return w->text.bytes + (place - w->base);
}

static inline size_t splitter_window_end(const splitter_window *w)
{
    return w->base + w->text.length;
}

typedef struct splitter_call {
    const json_t *tool; /* its "function" in the request; NULL: not known                                    */
    splitter_text arguments;
} splitter_call;

typedef enum splitter_match_result {
    MATCH_FAILED, /* it is none: what was held is something else                                            */
    MATCH_MORE,   /* all of the window is read                                                             */
    MATCH_TELL,   /* the calls are some whatever comes; run it again                                        */
    MATCH_DONE,
    MATCH_THINK, /* done, and a thought begins                                                           */
    MATCH_MEMORY
} splitter_match_result;

typedef enum splitter_member { MEMBER_OTHER, MEMBER_NAME, MEMBER_ARGUMENTS } splitter_member;

typedef struct splitter_call_reader {
    splitter_json json;
    splitter_member member; /* whose value comes                                                         */
    size_t since;           /* of its key, then of its value                                                */
    size_t arguments, arguments_length;
    bool bare; /* no mark is before it: it has nothing but what calls have                                  */
} splitter_call_reader;

/* The request's function of that name, or NULL. */
const json_t *splitter_call_tool(const json_t *tools, const char *name, size_t length);

void splitter_call_begin(splitter_call_reader *r, bool bare);

/* The byte at place. MATCH_DONE: it was the last, and out is the call; out->tool is set once its name is known. */
splitter_match_result splitter_call_step(splitter_call_reader *r, const json_t *tools, const splitter_window *w,
                                         size_t place, splitter_call *out);

#endif
