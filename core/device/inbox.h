/* Inside core: what a call brings to a device, piece by piece, in one block of its memory, which is uploaded at once: a
 * device waits about as long for a few bytes as for a few thousand. */
#ifndef TENON_CORE_INBOX_H
#define TENON_CORE_INBOX_H

#include "device/device.h"

typedef struct inbox {
    const device *device;
    char *host, *there; /* the block, on both sides; the same where the device computes in the host's memory */
    size_t size, used;
} inbox;

/* Bytes that a piece takes of it. */
size_t inbox_piece(size_t bytes);

tn_status inbox_init(inbox *in, const device *device, size_t size, tn_error *err);
void inbox_close(inbox *in);

/* Forgets what was put into it. */
void inbox_begin(inbox *in);
/* Where the device will find a copy of these bytes, once they are sent. They have to fit. */
void *inbox_put(inbox *in, const void *host, size_t bytes);
tn_status inbox_send(inbox *in, tn_error *err);

#endif
