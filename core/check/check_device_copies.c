/* Does a device's memory give back what was put into it? And does the device look at the number of a unit? */
#include "check/check_device.h"

#include "check/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Small ones, odd ones, and more than any page, block of a copying loop or bound between small and large memory. */
static const size_t sizes[] = {64, 4097, (1 << 20) + 3, (5 << 20) + 1};
enum { SIZES = sizeof sizes / sizeof *sizes, BLOCKS = 2, OFFSET = 64, UNTOUCHED = 0xa5 };

/* Two blocks of the device's memory, as they should be and as they came back. */
typedef struct copying {
    const device *device;
    size_t bytes;
    void *memory[BLOCKS];
    unsigned char *want[BLOCKS], *got; /* got has a byte more, which no copy may touch             */
    tn_error *err;
} copying;

/* No byte is like its neighbours or like the same byte of another block. */
static unsigned char pattern(size_t i, int seed)
{
    return (unsigned char)((i * 2654435761u >> 13) + i / 251 + (size_t)seed * 77);
}

static tn_status differs(const copying *c, const char *what, size_t at, int want)
{
    return tn_fail(c->err, TN_E_KERNEL, "device", "%s %s: byte %zu of %zu is %d and not %d; use --device cpu",
                   c->device->ops->name, what, at, c->bytes, c->got[at], want);
}

/* Is every byte of both blocks what it should be? */
static tn_status expect(const copying *c, const char *what)
{
    for (int b = 0; b < BLOCKS; b++) {
        memset(c->got, UNTOUCHED, c->bytes + 1);
        tn_status status = device_download(c->device, c->got, c->memory[b], c->bytes, c->err);
        if (status != TN_OK)
            return status;
        if (c->got[c->bytes] != UNTOUCHED)
            return differs(c, "copies more than it is asked for", c->bytes, UNTOUCHED);
        for (size_t i = 0; i < c->bytes; i++)
            if (c->got[i] != c->want[b][i])
                return differs(c, what, i, c->want[b][i]);
    }
    return TN_OK;
}

/* Uploads bytes of a pattern to a place in a block; what they come from must not change. */
static tn_status put(const copying *c, int block, size_t at, size_t bytes, int seed)
{
    for (size_t i = 0; i < bytes; i++)
        c->got[i] = c->want[block][at + i] = pattern(at + i, seed);
    tn_status status = device_upload(c->device, (char *)c->memory[block] + at, c->got, bytes, c->err);
    for (size_t i = 0; i < bytes && status == TN_OK; i++)
        if (c->got[i] != c->want[block][at + i])
            status = differs(c, "changes what it copies from", i, c->want[block][at + i]);
    return status;
}

/* A piece from the middle, so that copies may begin anywhere. */
static tn_status expect_piece(const copying *c)
{
    size_t at = c->bytes > OFFSET ? OFFSET : 0, bytes = c->bytes - at - (c->bytes > 1 + at);
    memset(c->got, UNTOUCHED, c->bytes);
    tn_status status = device_download(c->device, c->got, (char *)c->memory[0] + at, bytes, c->err);
    for (size_t i = 0; i < bytes && status == TN_OK; i++)
        if (c->got[i] != c->want[0][at + i])
            status = differs(c, "copies a part of its memory wrong", i, c->want[0][at + i]);
    if (status == TN_OK && bytes < c->bytes && c->got[bytes] != UNTOUCHED)
        status = differs(c, "copies more than it is asked for", bytes, UNTOUCHED);
    return status;
}

static tn_status try_copies(const copying *c)
{
    size_t middle = c->bytes > 2 * OFFSET ? OFFSET : 0, part = c->bytes / 2 > 0 ? c->bytes / 2 : 1;
    tn_status status = expect(c, "gives memory that is not zero");
    for (int b = 0; b < BLOCKS && status == TN_OK; b++)
        status = put(c, b, 0, c->bytes, b + 1);
    if (status == TN_OK)
        status = expect(c, "does not give back what was copied to it");
    if (status == TN_OK)
        status = put(c, 1, middle, part, 9);
    if (status == TN_OK)
        status = expect(c, "copies to a part of its memory wrong");
    return status == TN_OK ? expect_piece(c) : status;
}

static tn_status try_size(const device *d, size_t bytes, tn_error *err)
{
    copying c = {.device = d, .bytes = bytes, .got = malloc(bytes + 1), .err = err};
    tn_status status = c.got ? TN_OK : check_no_memory(err);
    for (int b = 0; b < BLOCKS && status == TN_OK; b++) {
        c.want[b] = calloc(bytes, 1);
        status = c.want[b] ? device_alloc(d, bytes, &c.memory[b], err) : check_no_memory(err);
    }
    if (status == TN_OK)
        status = try_copies(&c);
    tn_status synced = device_sync(d, status == TN_OK ? err : NULL);
    for (int b = 0; b < BLOCKS; b++) {
        device_free(d, c.memory[b], bytes);
        free(c.want[b]);
    }
    free(c.got);
    return status == TN_OK ? synced : status;
}

/* device.h: a unit that is not there is an error. Whoever opens this one does not look. */
static tn_status try_ordinal(const device *d, tn_error *err)
{
    device other;
    if (!d->ops->open || device_open(&other, d->ops, INT32_MAX, d->guest, NULL) != TN_OK)
        return TN_OK;
    device_close(&other);
    return tn_fail(err, TN_E_KERNEL, "device",
                   "%s opens unit %" PRId32 ", which cannot be there: it does not look at the number; use --device cpu",
                   d->ops->name, INT32_MAX);
}

tn_status check_device_copies(const device *d, tn_error *err)
{
    tn_status status = try_ordinal(d, err);
    for (size_t i = 0; i < SIZES && status == TN_OK; i++)
        status = try_size(d, sizes[i], err);
    return status;
}
