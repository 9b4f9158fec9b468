/* Memory that grows where it lies. */
#include "device/growing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Large blocks grow by huge pages, which attention reads faster, but for the first one: a page is cleared whole, and
 * most texts of a server are shorter. Below a granule nothing is gained. */
static const size_t LARGE = (size_t)4 << 20, HUGE_PAGE = (size_t)2 << 20, GRANULE = (size_t)64 << 10;

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static tn_status reserve(growing *g, tn_error *err)
{
    g->granule = round_up(GRANULE, (size_t)sysconf(_SC_PAGESIZE));
    g->page = g->bytes >= LARGE ? HUGE_PAGE : g->granule;
    size_t size = round_up(g->bytes, g->page);
    g->is_held = calloc(size / g->granule, 1);
    if (!g->is_held)
        return tn_fail(err, TN_E_MEMORY, g->device->ops->name, "out of memory");
    /* A page more than needed, of which the aligned part is used. */
    g->mapping_bytes = size + g->page;
    g->mapping = mmap(NULL, g->mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g->mapping == MAP_FAILED) {
        g->mapping = NULL;
        return tn_fail(err, TN_E_MEMORY, g->device->ops->name,
                       "cannot reserve %zu bytes of addresses: %s; use a shorter context", g->mapping_bytes,
                       strerror(errno));
    }
    g->data = (char *)g->mapping + (round_up((uintptr_t)g->mapping, g->page) - (uintptr_t)g->mapping);
    return TN_OK;
}

tn_status growing_init(growing *g, const device *device, size_t bytes, tn_error *err)
{
    *g = (growing){.device = device, .bytes = bytes};
    if (bytes == 0)
        return TN_OK;
    if (bytes > SIZE_MAX / 2)
        return tn_fail(err, TN_E_MEMORY, device->ops->name, "%zu bytes do not fit into memory", bytes);
    if (device->ops->host_memory && bytes >= GRANULE)
        return reserve(g, err);
    void *memory = NULL;
    tn_status status = device_alloc(device, bytes, &memory, err);
    g->data = memory;
    g->held = status == TN_OK ? bytes : 0;
    return status;
}

void growing_free(growing *g)
{
    if (g->mapping)
        munmap(g->mapping, g->mapping_bytes);
    else if (g->data)
        device_free(g->device, g->data, g->bytes);
    free(g->is_held);
    *g = (growing){0};
}

/* What is made usable for bytes from .. to - 1. */
static void extent(const growing *g, size_t *from, size_t *to)
{
    size_t low = *from < g->page ? g->granule : g->page, high = *to <= g->page ? g->granule : g->page;
    *from = *from / low * low;
    *to = round_up(*to, high);
}

size_t growing_would_hold(const growing *g, size_t from, size_t to)
{
    if (!g->mapping || from >= to)
        return g->held;
    extent(g, &from, &to);
    size_t more = 0;
    for (size_t i = from / g->granule; i < to / g->granule; i++)
        more += g->is_held[i] ? 0 : g->granule;
    return g->held + more;
}

/* Before anybody touches them. */
static void take_huge_pages(const growing *g, size_t from, size_t to)
{
    from = round_up(from, HUGE_PAGE);
    to = to / HUGE_PAGE * HUGE_PAGE;
    if (g->page == HUGE_PAGE && from < to)
        madvise(g->data + from, to - from, MADV_HUGEPAGE);
}

tn_status growing_hold(growing *g, size_t from, size_t to, tn_error *err)
{
    if (!g->mapping || from >= to)
        return TN_OK;
    extent(g, &from, &to);
    size_t end = to / g->granule;
    for (size_t i = from / g->granule; i < end;) {
        size_t run = i;
        while (run < end && !g->is_held[run])
            run++;
        size_t size = (run - i) * g->granule;
        take_huge_pages(g, i * g->granule, run * g->granule);
        if (size > 0 && mprotect(g->data + i * g->granule, size, PROT_READ | PROT_WRITE))
            return tn_fail(err, TN_E_MEMORY, g->device->ops->name,
                           "cannot take %zu more bytes: %s; use a shorter context or a smaller model", size,
                           strerror(errno));
        memset(g->is_held + i, 1, run - i);
        g->held += size;
        i = run > i ? run : i + 1;
    }
    return TN_OK;
}
