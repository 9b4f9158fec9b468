/* One pattern of a family against the text that comes: whether it may be a call, and the calls that it is. */
#ifndef TENON_SERVE_SPLITTER_MATCH_H
#define TENON_SERVE_SPLITTER_MATCH_H

#include "splitter_brackets.h"
#include "splitter_call.h"
#include "splitter_family.h"
#include "splitter_json.h"
#include "splitter_text.h"

typedef struct splitter_match {
    const splitter_family *family;
    const json_t *tools;
    splitter_call *calls; /* whole, and not told                                                        */
    size_t count, room;
    /* Of the pattern that is read. */
    const char *pattern, *at; /* at: the operation in progress                                               */
    size_t since;             /* where that began; SIZE_MAX: it has not                                          */
    bool some;                /* calls were told                                                             */
    splitter_call open;       /* what NAME began; its tool is NULL: nothing                                      */
    bool pairs;               /* its arguments are put together one by one                                       */
    size_t key, key_length;   /* of the argument whose value comes                                             */
    splitter_json json;
    splitter_call_reader object;
    size_t inside; /* where the arguments of PYTHON begin                                                   */
    splitter_brackets brackets;
} splitter_match;

/* Reads pattern from now on. */
void splitter_match_begin(splitter_match *m, const char *pattern);

/* Reads on at *place. */
splitter_match_result splitter_match_run(splitter_match *m, const splitter_window *w, size_t *place);

/* Whether the answer may end here: the calls that are whole are all that was begun, and it was not cut; or the pattern
 * is of what stands at the end. */
bool splitter_match_may_end(const splitter_match *m, bool cut);

void splitter_match_clear(splitter_match *m); /* drops the calls                                              */
void splitter_match_free(splitter_match *m);

#endif
