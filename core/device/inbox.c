/* One block for all that a call brings. */
#include "device/inbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)

size_t inbox_piece(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

tn_status inbox_init(inbox *in, const device *device, size_t size, tn_error *err)
{
    void *there = NULL;
    *in = (inbox){.device = device, .size = size};
    tn_status status = device_alloc(device, size, &there, err);
    if (status != TN_OK)
        return status;
    in->there = there;
    in->host = device->ops->host_memory ? in->there : calloc(size > 0 ? size : 1, 1);
    return in->host ? TN_OK : tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows or a smaller chunk");
}

void inbox_close(inbox *in)
{
    if (in->host != in->there)
        free(in->host);
    if (in->there)
        device_free(in->device, in->there, in->size);
    *in = (inbox){0};
}

void inbox_begin(inbox *in)
{
    in->used = 0;
}

void *inbox_put(inbox *in, const void *host, size_t bytes)
{
    size_t at = in->used;
    assert(inbox_piece(bytes) <= in->size - at);
    if (bytes > 0)
        memcpy(in->host + at, host, bytes);
    in->used += inbox_piece(bytes);
    return in->there + at;
}

tn_status inbox_send(inbox *in, tn_error *err)
{
    return in->host == in->there || in->used == 0 ? TN_OK
                                                  : device_upload(in->device, in->there, in->host, in->used, err);
}
