/* A device that does nothing at all and says that all is well. Where BAD_PLUGIN says anything it wants all memory. */
#include <stdlib.h>
#include <string.h>
#include <tenon/device.h>

static tn_status noop_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    (void)queue, (void)err;
    size_t size = (bytes + 64) & ~(size_t)63;
    *out = memset(aligned_alloc(64, size), 0, size);
    return TN_OK;
}

static void noop_free(tn_queue *queue, void *memory, size_t bytes)
{
    (void)queue, (void)bytes;
    free(memory);
}

static tn_status noop_upload(tn_queue *queue, void *to, const void *host, size_t bytes, tn_error *err)
{
    (void)queue, (void)err;
    memcpy(to, host, bytes);
    return TN_OK;
}

static tn_status noop_download(tn_queue *queue, void *host, const void *from, size_t bytes, tn_error *err)
{
    return noop_upload(queue, host, from, bytes, err);
}

static tn_status noop_eager(const tn_call *call, tn_error *err)
{
    (void)call, (void)err;
    return TN_OK;
}

static size_t noop_scratch(const tn_call *call)
{
    (void)call;
    return getenv("BAD_PLUGIN") ? SIZE_MAX : 0;
}

static const tn_device device = {.size = sizeof device,
                                 .name = "noop",
                                 .summary = "does nothing",
                                 .host_memory = true,
                                 .alloc = noop_alloc,
                                 .free = noop_free,
                                 .upload = noop_upload,
                                 .download = noop_download,
                                 .scratch = noop_scratch,
                                 .eager = noop_eager};

TN_PLUGIN("noop", "1.0.0", .device = &device);
