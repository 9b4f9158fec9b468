/* Inside core: memory of a device on pages of its own, so that it can be made read-only where the host can address it.
 */
#ifndef TENON_CORE_PAGES_H
#define TENON_CORE_PAGES_H

#include "device/device.h"

typedef struct pages {
    void *block; /* what the device gave                                                            */
    size_t block_bytes;
    char *data; /* at the start of a page where the host can address it                            */
    size_t bytes;
    bool read_only;
} pages;

tn_status pages_alloc(pages *p, const device *d, size_t bytes, tn_error *err);

/* From now on nothing may write there; work of the device that fills it is done. Does nothing for memory that the host
 * cannot address. */
void pages_protect(pages *p);
void pages_free(pages *p, const device *d); /* nothing lined up may use it                                 */

#endif
