/* Inside core: memory that catches writes outside it, for trying kernels that nobody trusts yet. */
#ifndef TENON_CORE_FENCE_H
#define TENON_CORE_FENCE_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>

/* bytes between two pages that nothing may touch, close to the one after them or to the one before them. What is left
 * of the first and last page holds FENCE_FILL; the memory itself is zero. */
enum { FENCE_FILL = 0xff };

typedef struct fence {
    unsigned char *map, *data;
    size_t map_bytes, bytes;
    size_t mapped; /* bytes from map on that are the fence's to unmap, or to give back              */
} fence;

/* Mappings given back for fences that are opened later, which nothing may touch meanwhile: the system takes longer to
 * make pages than a kernel to read them. Zeros are an empty one; of one thread. */
enum { FENCE_SPARES = 24 };
typedef struct fence_spares {
    struct fence_spare {
        unsigned char *map;
        size_t bytes;
    } kept[FENCE_SPARES];
    size_t count;
} fence_spares;

typedef enum fence_side { FENCE_END, FENCE_START } fence_side;

/* Maps it; shared with children forked later, or private. align is a power of two: data is a multiple of it, and off
 * bytes away from one; off is less than a page. Close with fence_close. */
tn_status fence_open(fence *f, size_t bytes, size_t align, size_t off, fence_side side, bool shared, tn_error *err);
void fence_close(fence *f);

/* The same, private, in a mapping that was given back, if there is one: the memory holds anything then, and is to be
 * filled. What fence_fill would fill only in part is as fence_open maps it, and is not kept. */
tn_status fence_open_spare(fence_spares *spares, fence *f, size_t bytes, size_t align, size_t off, fence_side side,
                           tn_error *err);
void fence_give_back(fence_spares *spares, fence *f);

/* What memory holds that nobody has written yet. */
typedef enum fence_contents {
    FENCE_ONES,    /* FENCE_FILL: a NaN in every floating type and an impossible index in every integer type, so that
                      elements nobody wrote are found                                               */
    FENCE_ZEROS,   /* as fresh memory of the system has                                              */
    FENCE_NUMBERS, /* finite floats of every type, some thousands; integers far beyond any index     */
    FENCE_SIGNALS  /* NaNs that signal                                                              */
} fence_contents;
enum { FENCE_CONTENTS = 4 };

/* Of what is large its beginning and its end. */
void fence_fill(fence *f, fence_contents contents);

tn_status fence_read_only(const fence *f, tn_error *err);

/* Does everything around data still hold FENCE_FILL? */
bool fence_intact(const fence *f);

/* Whether address lies in the mapping, guard pages included. */
bool fence_contains(const fence *f, const void *address);

#endif
