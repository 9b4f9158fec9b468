/* Memory of devices, copies and fills. An address of device memory is a number in a range of pages that nobody may
 * touch, so that the host faults at it; what is stored there lies elsewhere, in memory of exactly its size, which the
 * sanitizers watch. Addresses are not given twice until the range is used up: memory that was freed stays unknown. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RANGE_SIZE ((size_t)64 << 30)
#define GAP 4096 /* between allocations */
#define ALIGNMENT 64
#define UNDEFINED_BYTE 0xff /* makes NaN of all types of floating point */

typedef struct block {
    struct block *next; /* by address */
    char *address, *host;
    size_t size, charged;
    int device;
} block;

typedef struct pinned {
    struct pinned *next;
    char *address;
    size_t size;
} pinned;

static char *range;
static size_t range_size, cursor;
static block **blocks; /* live ones, sorted by address */
static size_t block_count, block_room;
static pinned *locked;
static size_t used[8];

static void make_range(void)
{
    for (range_size = RANGE_SIZE; !range && range_size > GAP; range_size /= 2) {
        void *got = mmap(NULL, range_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got != MAP_FAILED) {
            range = got;
            return;
        }
    }
    abort();
}

bool sim_is_device(const void *address)
{
    return range && (const char *)address >= range && (const char *)address < range + range_size;
}

/* Index of the first block that ends behind address. */
static size_t search(const char *address)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle]->address + blocks[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static block *block_of(const void *address, size_t size)
{
    const char *begin = address;
    size_t at = search(begin);
    if (at == block_count || begin < blocks[at]->address)
        return NULL;
    return size <= (size_t)(blocks[at]->address + blocks[at]->size - begin) ? blocks[at] : NULL;
}

void *sim_translate(const void *address, size_t size, int device)
{
    block *b = sim_is_device(address) ? block_of(address, size ? size : 1) : NULL;
    return b && b->device == device ? b->host + ((const char *)address - b->address) : NULL;
}

/* ---- allocations ----------------------------------------------------------------------------------------------- */

static size_t rounded(size_t size, size_t to)
{
    return (size + to - 1) / to * to;
}

/* A free place behind the last one given out, or from the beginning; its address is no multiple of more than 64. */
static char *place(size_t size)
{
    for (int round = 0; round < 2; round++) {
        for (;;) {
            size_t need = rounded(size, GAP) + 2 * GAP;
            if (need > range_size || cursor > range_size - need)
                break;
            char *address = range + cursor + ALIGNMENT;
            size_t at = search(address - ALIGNMENT);
            if (at == block_count || blocks[at]->address >= address + size + GAP) {
                cursor += need;
                return address;
            }
            cursor = rounded((size_t)(blocks[at]->address + blocks[at]->size - range), GAP) + GAP;
        }
        cursor = 0;
    }
    return NULL;
}

static void insert(block *b)
{
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 64;
        block **more = realloc(blocks, block_room * sizeof *more);
        if (!more)
            abort();
        blocks = more;
    }
    size_t at = search(b->address);
    memmove(blocks + at + 1, blocks + at, (block_count - at) * sizeof *blocks);
    blocks[at] = b;
    block_count++;
}

static size_t capacity(void)
{
    return (size_t)sim_switch("ASCEND_SIM_MEMORY", (int64_t)4 << 30);
}

static int allocate(void **out, size_t size)
{
    int device = sim_current_device();
    size_t charged = rounded(size, 32) + 32;
    if (size > capacity() || charged > capacity() - used[device])
        return sim_error(207001, "aclrtMalloc: %zu bytes of %zu are left, %zu were asked for",
                         capacity() - used[device], capacity(), size);
    if (!range)
        make_range();
    char *address = place(size);
    block *b = calloc(1, sizeof *b);
    char *host = address && b ? aligned_alloc(ALIGNMENT, rounded(size, ALIGNMENT)) : NULL;
    if (!host) {
        free(b);
        return sim_error(207001, "aclrtMalloc: the host has no %zu bytes", size);
    }
    memset(host, UNDEFINED_BYTE, size);
    *b = (block){.address = address, .host = host, .size = size, .charged = charged, .device = device};
    insert(b);
    used[device] += charged;
    sim_count_live(SIM_MEMORY, 1);
    *out = address;
    return 0;
}

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    SIM_HOLD;
    int code = sim_need_context("aclrtMalloc");
    if (code)
        return code;
    if (!devPtr || !size)
        return sim_violation(100000, "aclrtMalloc: %s", devPtr ? "size is 0" : "devPtr is NULL");
    if ((code = sim_not_captured(NULL, "aclrtMalloc")))
        return code;
    unsigned base = (unsigned)policy & ~(unsigned)(ACL_MEM_TYPE_LOW_BAND_WIDTH | ACL_MEM_TYPE_HIGH_BAND_WIDTH);
    if (base > ACL_MEM_MALLOC_HUGE1G_ONLY_P2P)
        return sim_violation(107018, "aclrtMalloc: unknown policy %d", (int)policy);
    if (sim_injected("aclrtMalloc"))
        return 207001;
    return allocate(devPtr, size);
}

static void end_block(size_t at)
{
    block *b = blocks[at];
    memmove(blocks + at, blocks + at + 1, (block_count - at - 1) * sizeof *blocks);
    block_count--;
    used[b->device] -= b->charged;
    sim_count_live(SIM_MEMORY, -1);
    free(b->host);
    free(b);
}

aclError aclrtFree(void *devPtr)
{
    SIM_HOLD;
    int code = sim_need_context("aclrtFree");
    if (code)
        return code;
    if (!devPtr)
        return sim_violation(100000, "aclrtFree: devPtr is NULL");
    block *b = sim_is_device(devPtr) ? block_of(devPtr, 1) : NULL;
    if (!b || b->address != devPtr)
        return sim_violation(107000, "aclrtFree: %p is %s", devPtr,
                             b ? "within an allocation" : "not allocated, or was freed before");
    if ((code = sim_not_captured(NULL, "aclrtFree")))
        return code;
    const char *user = sim_queued_use(b->address, b->size, false);
    if (user) /* the vendor's library cannot see this; the work will not find its memory */
        sim_violation(0, "aclrtFree: %s, which is queued, uses this memory", user);
    else if ((user = sim_captured_use(b->address, b->size, NULL)))
        sim_violation(0, "aclrtFree: %s, which is captured, uses this memory", user);
    end_block(search(b->address));
    return 0;
}

void sim_memory_reset(int device)
{
    for (size_t i = block_count; i-- > 0;)
        if (blocks[i]->device == device) {
            sim_violation(0, "aclrtResetDevice: %zu bytes at %p were not freed before", blocks[i]->size,
                          (void *)blocks[i]->address);
            end_block(i);
        }
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free_size, size_t *total)
{
    SIM_HOLD;
    int code = sim_need_context("aclrtGetMemInfo");
    if (code)
        return code;
    if (!free_size || !total || (int)attr < ACL_DDR_MEM || (int)attr > ACL_HBM_MEM_P2P_HUGE1G)
        return sim_violation(100000, "aclrtGetMemInfo: a pointer is NULL or the kind of memory unknown");
    if (sim_injected("aclrtGetMemInfo"))
        return 507899;
    *total = capacity();
    *free_size = capacity() - used[sim_current_device()];
    return 0;
}

/* ---- page-locked memory of the host ---------------------------------------------------------------------------- */

bool sim_is_pinned(const void *p, size_t n)
{
    for (const pinned *l = locked; l; l = l->next)
        if ((const char *)p >= l->address && (const char *)p + n <= l->address + l->size)
            return true;
    return false;
}

aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    SIM_HOLD;
    int code = sim_need_context("aclrtMallocHost");
    if (code)
        return code;
    if ((code = sim_not_captured(NULL, "aclrtMallocHost")))
        return code;
    if (!hostPtr || !size)
        return sim_violation(100000, "aclrtMallocHost: %s", hostPtr ? "size is 0" : "hostPtr is NULL");
    if (sim_injected("aclrtMallocHost"))
        return 207001;
    pinned *l = calloc(1, sizeof *l);
    char *address = l ? aligned_alloc(ALIGNMENT, rounded(size, ALIGNMENT)) : NULL;
    if (!address) {
        free(l);
        return sim_error(207001, "aclrtMallocHost: the host has no %zu bytes", size);
    }
    memset(address, UNDEFINED_BYTE, size);
    *l = (pinned){.next = locked, .address = address, .size = size};
    locked = l;
    sim_count_live(SIM_HOST_MEMORY, 1);
    *hostPtr = address;
    return 0;
}

aclError aclrtFreeHost(void *hostPtr)
{
    SIM_HOLD;
    if (!hostPtr)
        return sim_violation(100000, "aclrtFreeHost: hostPtr is NULL");
    pinned **at = &locked;
    while (*at && (*at)->address != hostPtr)
        at = &(*at)->next;
    pinned *l = *at;
    if (!l)
        return sim_violation(107000, "aclrtFreeHost: %p did not come from aclrtMallocHost, or was freed", hostPtr);
    const char *user = sim_queued_use(l->address, l->size, false);
    if (user) {
        sim_violation(0, "aclrtFreeHost: %s, which is queued, uses this memory", user);
        return 0; /* left as it is: the work will still use it */
    }
    *at = l->next;
    free(l->address);
    free(l);
    sim_count_live(SIM_HOST_MEMORY, -1);
    return 0;
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

typedef struct copy {
    const char *call;
    char *to;
    const char *from;
    size_t count;
    int value; /* with fill: what bytes become */
    bool fill, to_device, from_device;
} copy;

/* What was asked for, without what the state of queues has to say. */
static int check_copy(const copy *c, size_t room)
{
    if (!c->to || (!c->from && !c->fill))
        return sim_violation(100000, "%s: a pointer is NULL", c->call);
    if (c->count > room)
        return sim_violation(107000, "%s: %zu bytes for a place of %zu", c->call, c->count, room);
    const void *sides[] = {c->to, c->from};
    const bool device[] = {c->to_device, c->from_device};
    for (int i = 0; i < 2 && sides[i]; i++) {
        if (sim_is_device(sides[i]) != device[i])
            return sim_violation(107000, "%s: the %s is %s memory, its kind says otherwise", c->call,
                                 i ? "source" : "destination", device[i] ? "host" : "device");
        if (device[i] && !block_of(sides[i], c->count))
            return sim_violation(107000, "%s: %zu bytes at %p are not within a live allocation", c->call, c->count,
                                 sides[i]);
    }
    return 0;
}

static int set_direction(copy *c, aclrtMemcpyKind kind)
{
    if ((int)kind < ACL_MEMCPY_HOST_TO_HOST || (int)kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE)
        return sim_violation(107000, "%s: unknown kind %d", c->call, (int)kind);
    if (kind == ACL_MEMCPY_DEFAULT) {
        c->to_device = sim_is_device(c->to);
        c->from_device = sim_is_device(c->from);
        return 0;
    }
    c->to_device = kind != ACL_MEMCPY_HOST_TO_HOST && kind != ACL_MEMCPY_DEVICE_TO_HOST;
    c->from_device = kind != ACL_MEMCPY_HOST_TO_HOST && kind != ACL_MEMCPY_HOST_TO_DEVICE &&
                     kind != ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE;
    return 0;
}

static char *host_side(const char *address, size_t count, bool on_device)
{
    block *b = on_device ? block_of(address, count) : NULL;
    if (b)
        return b->host + (address - b->address);
    return on_device ? NULL : (char *)(uintptr_t)address;
}

static int perform_copy(void *state, int device)
{
    (void)device; /* copies may go between devices */
    const copy *c = state;
    char *to = host_side(c->to, c->count, c->to_device);
    const char *from = host_side(c->from, c->count, c->from_device);
    if (!to || (c->from && !from))
        return sim_violation(507899, "%s: its device memory was freed before it ran", c->call);
    if (c->from)
        memmove(to, from, c->count);
    else
        memset(to, c->value, c->count);
    return 0;
}

static void count(const copy *c)
{
    bool up = c->to_device && c->from && !c->from_device, down = c->from_device && !c->to_device;
    if (c->fill || (c->to_device && c->from_device))
        sim_count_launch(c->call);
    sim_counted.moved_bytes += c->to_device && c->from_device ? 2 * (int64_t)c->count : 0;
    sim_counted.uploads += up;
    sim_counted.downloads += down;
    sim_counted.uploaded_bytes += up ? (int64_t)c->count : 0;
    sim_counted.downloaded_bytes += down ? (int64_t)c->count : 0;
}

/* Copies that wait for nobody must not meet queued work: the vendor's library would race with it. */
static void check_races(const copy *c)
{
    const char *user = sim_queued_use(c->to, c->count, false);
    if (!user && c->from)
        user = sim_queued_use(c->from, c->count, true);
    if (user)
        sim_violation(0, "%s: %s is queued for this memory, and the copy does not wait for it", c->call, user);
}

static int copy_now(copy *c, size_t room)
{
    int code = check_copy(c, room);
    if (!code)
        code = sim_not_captured(NULL, c->call);
    if (code)
        return code;
    if (sim_injected(c->call))
        return 507899;
    check_races(c);
    count(c);
    return perform_copy(c, 0);
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    SIM_HOLD;
    if (!count)
        return 0;
    copy c = {.call = "aclrtMemcpy", .to = dst, .from = src, .count = count};
    int code = sim_need_context(c.call);
    if (!code)
        code = set_direction(&c, kind);
    return code ? code : copy_now(&c, destMax);
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    SIM_HOLD;
    copy c = {.call = "aclrtMemset", .to = devPtr, .count = count, .value = value, .fill = true, .to_device = true};
    int code = sim_need_context(c.call);
    return code ? code : copy_now(&c, maxCount);
}

/* False: it is captured. */
static bool queue_copy(const copy *c, aclrtStream stream)
{
    copy *state = sim_allocate(sizeof *state);
    sim_range *ranges = sim_allocate(2 * sizeof *ranges);
    *state = *c;
    ranges[0] = (sim_range){c->to, c->to + c->count, true};
    if (c->from)
        ranges[1] = (sim_range){c->from, c->from + c->count, false};
    return sim_enqueue(stream, &(sim_work){.name = c->call,
                                           .run = perform_copy,
                                           .discard = free,
                                           .state = state,
                                           .ranges = ranges,
                                           .range_count = c->from ? 2 : 1});
}

/* Page-locked memory of the host may change until the queue has got there; ordinary memory is copied before the call
 * returns, behind all that was queued before. */
static bool may_wait(const copy *c)
{
    return (c->to_device || sim_is_pinned(c->to, c->count)) &&
           (!c->from || c->from_device || sim_is_pinned(c->from, c->count));
}

static int copy_later(copy *c, size_t room, aclrtStream stream)
{
    int code = sim_check_stream(stream, c->call);
    if (!code)
        code = check_copy(c, room);
    if (!code && !may_wait(c))
        code = sim_not_captured(stream, c->call);
    if (code)
        return code;
    if (sim_injected(c->call))
        return 507899;
    if (queue_copy(c, stream))
        count(c);
    if (may_wait(c))
        return 0;
    sim_counted.synchronisations++;
    return sim_perform(stream);
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream)
{
    SIM_HOLD;
    copy c = {.call = "aclrtMemcpyAsync", .to = dst, .from = src, .count = count};
    if (!count)
        return 0;
    int code = set_direction(&c, kind);
    if (code)
        return code;
    if (!c.to_device && !c.from_device)
        return sim_violation(207000, "aclrtMemcpyAsync: from host to host is refused");
    return copy_later(&c, destMax, stream);
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream)
{
    SIM_HOLD;
    copy c = {
        .call = "aclrtMemsetAsync", .to = devPtr, .count = count, .value = value, .fill = true, .to_device = true};
    return copy_later(&c, maxCount, stream);
}
