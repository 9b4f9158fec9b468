/* Lines that a user types or a pipe brings. On a terminal they can be edited, and earlier ones come back. */
#ifndef TENON_LINE_H
#define TENON_LINE_H

#include "cli.h"

typedef struct line_reader line_reader;

typedef enum line_end {
    LINE_READ,
    LINE_CLOSED,      /* no more: the end of the input, or Ctrl-D                                 */
    LINE_INTERRUPTED, /* Ctrl-C: what was typed is forgotten                                      */
    LINE_FAILED
} line_end;

/* For the terminal standard input is, where editing is on, or for a pipe. words: commands that Tab completes behind a
 * slash, NULL ends them; borrowed for the life of the reader. Owned: line_close. */
line_reader *line_open(const char *const *words, tn_error *err);
void line_close(line_reader *l);

/* Of a terminal: brings back the lines that a file holds, and writes the last 500 of all to it. */
void line_recall(line_reader *l, const char *path);
tn_status line_keep(const line_reader *l, const char *path, tn_error *err);

/* history.c: the usual file, $XDG_STATE_HOME/tenon/chat_history, whose folder is made. false: there is no place for it.
 */
bool history_path(char *path, size_t size);

bool line_interactive(const line_reader *l);

/* The next line without its end, or the lines that were pasted at once; one that ends in a backslash goes on in the
 * next, with a line end between. text is owned: free(). *interrupted is what a handler of SIGINT sets; it is cleared.
 */
line_end line_read(line_reader *l, volatile int *interrupted, char **text, size_t *length, tn_error *err);

#endif
