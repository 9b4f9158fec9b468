/* A stack of device memory: activations and scratch of one session. */
#include "device/device.h"

#define ARENA_ALIGN ((size_t)64)

tn_status arena_init(arena *a, const device *device, size_t size, tn_error *err)
{
    *a = (arena){.device = device, .measuring = size == 0};
    if (size == 0)
        return TN_OK;
    if (size > SIZE_MAX - (ARENA_ALIGN - 1))
        return tn_fail(err, TN_E_MEMORY, device->ops->name, "an arena of %zu bytes does not fit; use a shorter context",
                       size);
    size = (size + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
    void *memory = NULL;
    tn_status status = device_alloc(device, size, &memory, err);
    if (status != TN_OK)
        return status;
    a->base = memory;
    a->size = size;
    return TN_OK;
}

void arena_close(arena *a)
{
    if (a->base) {
        device_sync(a->device, NULL);
        device_free(a->device, a->base, a->size);
    }
    *a = (arena){.device = a->device};
}

tn_status arena_take(arena *a, size_t bytes, void **out, tn_error *err)
{
    *out = NULL;
    size_t limit = a->measuring ? SIZE_MAX / 2 : a->size;
    if (bytes > SIZE_MAX / 2 || ((bytes + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1)) > limit - a->used) {
        if (a->guessed)
            return tn_fail(err, TN_E_MEMORY, "arena", "%zu more bytes than the machine has; use fewer tokens at once",
                           bytes);
        if (a->measuring)
            return tn_fail(err, TN_E_MEMORY, "arena", "%zu more bytes do not fit; use a shorter context", bytes);
        return tn_fail(err, TN_E_INTERNAL, "arena", "%zu bytes do not fit: %zu of %zu are in use; report this defect",
                       bytes, a->used, a->size);
    }
    if (!a->measuring)
        *out = a->base + a->used;
    a->used += (bytes + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
    if (a->used > a->peak)
        a->peak = a->used;
    return TN_OK;
}
