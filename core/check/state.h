/* Inside core: does a library keep anything in its variables from one call to the next? For the child that tries it. */
#ifndef TENON_CORE_STATE_H
#define TENON_CORE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The writable variables of the library that a function belongs to, of the libraries that it brought along (not the
 * system's), of the calling thread where they are thread-local, and memory that they lead to. */
typedef struct state_watch state_watch;

/* code: a function of the library. NULL: it is part of the program or of libtenon, whose variables are their own, or
 * there is no memory. Never given back: the child ends. */
state_watch *state_open(const void *code);

typedef enum state_change {
    STATE_SAME,
    STATE_FRESH, /* something changed that did not change before: what is made once, at the first call of its kind */
    STATE_KEPT   /* something changed that changed in an earlier call, too                              */
} state_change;

/* Around one call, of which notes are the words that may point to memory of the library's (tn_plan.user; NULL: none).
 * first: the library makes things ready, so changes do not count. KEPT: what says where, "4 bytes of 'calls'". w may be
 * NULL. */
void state_before(state_watch *w, const uint64_t *notes, size_t note_count);
state_change state_after(state_watch *w, bool first, char *what, size_t size);

#endif
