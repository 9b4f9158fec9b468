/* Memory between guard pages. */
#include "check/fence.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* No more is filled at either end of what is large: first touches of memory take seconds a gigabyte. */
static const size_t MOST_FILLED = (size_t)1 << 20;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Of the whole mapping: what is asked for, wherever it begins in the first page, and two guard pages. */
static size_t bytes_around(size_t bytes, size_t align, size_t off)
{
    size_t page = page_bytes();
    return (bytes + align + off + page - 1) / page * page + 2 * page;
}

/* Opens it in memory that nothing may touch. */
static tn_status set_up(fence *f, unsigned char *map, size_t mapped, size_t bytes, size_t align, size_t off,
                        fence_side side, tn_error *err)
{
    size_t page = page_bytes(), around = bytes_around(bytes, align, off), inner = around - 2 * page;
    unsigned char *begin = map + page;
    *f = (fence){.map = map, .map_bytes = around, .bytes = bytes, .mapped = mapped};
    if (mprotect(begin, inner, PROT_READ | PROT_WRITE) != 0) {
        fence_close(f);
        return tn_fail(err, TN_E_MEMORY, NULL, "cannot protect memory to check a kernel with; free some memory");
    }
    size_t slack = inner - bytes;
    f->data = begin + (side == FENCE_END ? slack / align * align - off : off);
    memset(begin, FENCE_FILL, (size_t)(f->data - begin));
    memset(f->data + bytes, FENCE_FILL, slack - (size_t)(f->data - begin));
    return TN_OK;
}

tn_status fence_open(fence *f, size_t bytes, size_t align, size_t off, fence_side side, bool shared, tn_error *err)
{
    *f = (fence){0};
    if (bytes > SIZE_MAX / 4)
        return tn_fail(err, TN_E_MEMORY, NULL, "%zu bytes are more than there can be", bytes);
    size_t mapped = bytes_around(bytes, align, off);
    void *map =
        mmap(NULL, mapped, PROT_NONE, MAP_ANONYMOUS | MAP_NORESERVE | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    if (map == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, NULL, "no memory for %zu bytes to check a kernel with; free some memory",
                       bytes);
    return set_up(f, map, mapped, bytes, align, off, side, err);
}

tn_status fence_open_spare(fence_spares *spares, fence *f, size_t bytes, size_t align, size_t off, fence_side side,
                           tn_error *err)
{
    size_t best = spares->count, least = bytes <= 2 * MOST_FILLED ? bytes_around(bytes, align, off) : SIZE_MAX;
    for (size_t i = 0; i < spares->count; i++)
        if (spares->kept[i].bytes >= least &&
            (best == spares->count || spares->kept[i].bytes < spares->kept[best].bytes))
            best = i;
    if (best == spares->count)
        return fence_open(f, bytes, align, off, side, false, err);
    struct fence_spare spare = spares->kept[best];
    spares->kept[best] = spares->kept[--spares->count];
    return set_up(f, spare.map, spare.bytes, bytes, align, off, side, err);
}

void fence_give_back(fence_spares *spares, fence *f)
{
    size_t page = page_bytes();
    if (!f->map || f->bytes > 2 * MOST_FILLED || spares->count == FENCE_SPARES ||
        mprotect(f->map + page, f->map_bytes - 2 * page, PROT_NONE) != 0) {
        fence_close(f);
        return;
    }
    spares->kept[spares->count++] = (struct fence_spare){f->map, f->mapped};
    *f = (fence){0};
}

/* Words of two 16-bit numbers that are one of 32 bits, too: 3584.0 in bf16, and a NaN that signals in bf16 and f32. */
static const uint32_t numbers = 0x45604560, signals = 0x7fa07fa0;

static void fill(unsigned char *data, size_t bytes, fence_contents contents)
{
    const uint32_t word = contents == FENCE_NUMBERS ? numbers : signals;
    size_t done = 0;
    if (contents == FENCE_ONES || contents == FENCE_ZEROS) {
        memset(data, contents == FENCE_ONES ? FENCE_FILL : 0, bytes);
        return;
    }
    for (; done < bytes && done < sizeof word; done++)
        data[done] = (unsigned char)(word >> done * 8);
    for (size_t more; done < bytes; done += more) {
        more = done < bytes - done ? done : bytes - done;
        memcpy(data + done, data, more);
    }
}

void fence_fill(fence *f, fence_contents contents)
{
    size_t first = f->bytes < MOST_FILLED ? f->bytes : MOST_FILLED, last = f->bytes - first;
    last = last < MOST_FILLED ? last : MOST_FILLED;
    fill(f->data, first, contents);
    fill(f->data + f->bytes - last, last, contents);
}

void fence_close(fence *f)
{
    if (f->map)
        munmap(f->map, f->mapped);
    *f = (fence){0};
}

tn_status fence_read_only(const fence *f, tn_error *err)
{
    size_t page = page_bytes();
    if (mprotect(f->map + page, f->map_bytes - 2 * page, PROT_READ) != 0)
        return tn_fail(err, TN_E_MEMORY, NULL, "cannot protect memory to check a kernel with; free some memory");
    return TN_OK;
}

bool fence_intact(const fence *f)
{
    size_t page = page_bytes();
    for (const unsigned char *p = f->map + page; p < f->data; p++)
        if (*p != FENCE_FILL)
            return false;
    for (const unsigned char *p = f->data + f->bytes; p < f->map + f->map_bytes - page; p++)
        if (*p != FENCE_FILL)
            return false;
    return true;
}

bool fence_contains(const fence *f, const void *address)
{
    uintptr_t p = (uintptr_t)address, begin = (uintptr_t)f->map;
    return p >= begin && p - begin < f->map_bytes;
}
