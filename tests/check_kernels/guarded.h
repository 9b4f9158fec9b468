/* Buffers between pages that nobody may touch, and calls that survive touching them. */
#ifndef TENON_CHECK_GUARDED_H
#define TENON_CHECK_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

typedef enum placement {
    PLACE_LEFT,    /* right after a guard page                                                   */
    PLACE_RIGHT,   /* the last byte right before one                                             */
    PLACE_SHIFTED, /* an element after PLACE_LEFT: aligned to nothing else                       */
    PLACE_COUNT
} placement;

typedef struct guarded {
    char *map;
    size_t map_bytes;
    char *data;
    size_t bytes;
    const char *name; /* for messages; borrowed                                                  */
    int index;
    bool read_only;
    void *far; /* the same between the guard pages, in a device's memory; NULL: it is not there   */
} guarded;

/* data is bytes long, aligned to element bytes, filled like the slack around it with a pattern. */
guarded guarded_new(placement where, size_t bytes, size_t element, const char *name, int index);
void guarded_free(guarded *g);
void guarded_protect(guarded *g); /* read-only from here on                                      */

/* What lies between the guard pages: data and slack. */
char *guarded_inner(const guarded *g, size_t *bytes);

/* Is the slack between data and the guard pages as it was? */
bool guarded_intact(const guarded *g);

/* What is in memory that nobody has written. */
bool guarded_untouched(const guarded *g, size_t offset, size_t bytes);

/* Runs body; false when it touched memory that it may not, and text says which. label is for the last words of the
 * process when a thread of the team does so. */
bool guarded_call(void (*body)(void *ctx), void *ctx, const char *label, const guarded *buffers, size_t count,
                  char *text, size_t size);

#endif
