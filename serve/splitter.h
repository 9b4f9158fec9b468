/* What the text of an answer is made of: thinking, content, and calls of tools in the way the model's family writes
 * them. It comes token by token and goes out as soon as it is known what it is. */
#ifndef TENON_SERVE_SPLITTER_H
#define TENON_SERVE_SPLITTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* How a family writes thinking and calls (SERVER.md 6, 10), told by its chat template's text. */
typedef struct splitter_family splitter_family;

/* template_text NULL: a model without one. Static storage, never NULL: where nothing is known of calls, there are
 * none, and <think> is thinking. */
const splitter_family *splitter_family_of(const char *template_text);
const char *splitter_family_name(const splitter_family *family);

typedef enum split_kind {
    SPLIT_CONTENT,
    SPLIT_REASONING,
    SPLIT_CALL,     /* a call begins: text is the tool's name                                          */
    SPLIT_ARGUMENTS /* more of the JSON text of the last call's arguments                             */
} split_kind;

typedef struct split_event {
    split_kind kind;
    int call;         /* of SPLIT_CALL and SPLIT_ARGUMENTS: which, from 0                                      */
    const char *text; /* whole characters of UTF-8, not empty; not ended by a NUL                          */
    size_t length;
} split_event;

typedef void split_sink(void *ctx, const split_event *event);

typedef struct splitter_options {
    const splitter_family *family;
    const json_t *tools; /* the request's list; NULL: calls are not looked for, and their text is content           */
    bool one_call;       /* calls behind the first are dropped (parallel_tool_calls false)                   */
    bool reasoning;      /* false: thinking is content as it stands                                          */
    const char *prompt;  /* the rendered prompt: its end tells whether the answer begins inside a thought; or NULL  */
    size_t prompt_length;
} splitter_options;

typedef struct splitter splitter;

/* The options' tools and prompt must stay until it is made, and are not kept. NULL: no memory. */
splitter *splitter_new(const splitter_options *options, split_sink *sink, void *ctx);
void splitter_free(splitter *s);

/* Text that is whole characters; special: it is that of one special token, which is markup or nothing: one that the
 * family gives no meaning is left out. A call is told when its name is known to be one of the tools and what is behind
 * it is known to be a call as far as it goes; what turns out to be none is content, from its first marker on. false: no
 * memory. */
bool splitter_push(splitter *s, const char *text, size_t length, bool special);

/* No more comes. cut: the answer was ended by a limit: what is begun of a call is content then (and was not told, so
 * arguments are told when the call is whole, unless the family's marks are such that it cannot turn out otherwise). */
bool splitter_end(splitter *s, bool cut);

int splitter_calls(const splitter *s); /* that were told so far                                                   */

#endif
