/* Brackets that come byte by byte, and strings between them: where the first that was opened is closed. */
#ifndef TENON_SERVE_SPLITTER_BRACKETS_H
#define TENON_SERVE_SPLITTER_BRACKETS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct splitter_brackets {
    const char *mark; /* around strings, its first byte there once; NULL: the quotes of Python                      */
    int depth;
    size_t matched; /* bytes of mark that were there                                                          */
    char quote;     /* of the string that is open                                                             */
    bool escaped, triple;
    int run; /* quotes of the string's kind that were just there, while it may begin or end by three           */
} splitter_brackets;

/* true: c closes the first. Brackets of other kinds are not told apart: what is between them is read afterwards. */
bool splitter_brackets_step(splitter_brackets *b, char c);

#endif
