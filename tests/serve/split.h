/* An answer through a splitter, cut into pieces, as one text: what tests of it compare. */
#ifndef TENON_TESTS_SPLIT_H
#define TENON_TESTS_SPLIT_H

#include "../../serve/splitter.h"

#include <stdio.h>

/* The request's tools that tests speak of: get_weather(city, days), get_time(zone), and set_all of every type. */
extern const char split_tools[];

typedef struct split_case {
    const char *family;
    const char *marks;  /* the text of a chat template, or enough of it */
    const char *text;   /* of the answer */
    const char *result; /* what split_text makes of it */
    const char *prompt; /* or NULL */
    bool no_tools, one_call, as_it_stands, cut;
} split_case;

/* What came out of a splitter: reasoning, content, calls. */
typedef struct split_parts {
    FILE *files[3];
    char *text[3];
    size_t size[3];
    int told;
} split_parts;

/* p is all zero. split_end ends and frees the splitter; its result is "reasoning{...} content{...} name({...})
 * name({...})", without what is empty. Owned. */
splitter *split_begin(const splitter_options *options, split_parts *p);
char *split_end(splitter *s, split_parts *p, bool cut);

/* The result for pieces of step bytes, from first bytes on, at characters' edges; step 0: all that is left. Owned. */
char *split_text(const split_case *c, size_t first, size_t step);

/* The same however the text is cut: whole, by characters, and at each place in two. Kept by the suite. */
const char *split_everywhere(const split_case *c);

#endif
