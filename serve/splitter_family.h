/* How families write thinking and calls: one row of patterns each, which splitter_match.c reads. */
#ifndef TENON_SERVE_SPLITTER_FAMILY_H
#define TENON_SERVE_SPLITTER_FAMILY_H

#include "splitter.h"

/* A pattern is text that must be there, and between it these bytes, of which none is in any text. */
#define WS "\x01"     /* white space, or none                                                             */
#define NAME "\x02"   /* the name of a tool of the request; a call begins                                 */
#define KEY "\x03"    /* an argument's name, up to the text behind it in the pattern                      */
#define VALUE "\x04"  /* its value, up to the text behind it: a string as it stands, else JSON            */
#define LINES "\x05"  /* the same, on lines of its own                                                    */
#define CALL "\x06"   /* {"name": ..., "arguments": {...}}, a whole call                                  */
#define ARGS "\x07"   /* an object of JSON, all arguments of a call                                       */
#define PYTHON "\x0e" /* name(key=value, ...), a whole call                                               */
#define BRACES "\x0f" /* {key:value, ...} with the family's quotes, all arguments of a call               */
#define SKIP "\x10"   /* anything short, up to the text behind it                                         */
#define MANY "\x11"   /* from here to AGAIN any number of times: what is behind AGAIN ends it             */
#define AGAIN "\x12"
#define DONE "\x13"  /* the call that NAME began is whole                                                 */
#define TELL "\x14"  /* whatever comes, these are calls                                                   */
#define THINK "\x15" /* a thought begins                                                                  */
#define START "\x16" /* at the beginning of a pattern: only where nothing but thoughts and calls was said */
#define LAST "\x17"  /* nothing comes behind                                                              */
#define KEEP "\x18"  /* of what closes a thought: is no part of it, and is looked at once more            */

/* What is at a place of a pattern is one of these. */
static inline bool splitter_family_is(const char *at, const char *ops)
{
    while (*ops && *ops != *at)
        ops++;
    return *ops;
}

enum { SPLITTER_PATTERNS = 12, SPLITTER_CLOSES = 6 };

/* Where several patterns begin alike, they are tried in their order; where the mark of one begins with that of another,
 * the longer is first. */
struct splitter_family {
    const char *name;
    const char *marks[2]; /* a template that has all of them, the first row that fits, is of the family  */
    const char *patterns[SPLITTER_PATTERNS]; /* up to NULL */
    const char *closes[SPLITTER_CLOSES];     /* what ends a thought                                                   */
    const char *quote;                       /* of BRACES                                                             */
};

/* The text at the pattern's place, up to the next of the bytes above. */
size_t splitter_family_text(const char *pattern);

/* A pattern that finds calls. */
bool splitter_family_calls(const char *pattern);

/* The text of a special token means something to the family. */
bool splitter_family_knows(const splitter_family *family, const char *text, size_t length);

/* The prompt's end has begun a thought. */
bool splitter_family_inside(const splitter_family *family, const char *prompt, size_t length);

#endif
