/* Nothing here touches memory that may not be there: it is read by a system call. Almost every word of a library is
 * told from an address without one. */
#include "check/state_memory.h"

#include <inttypes.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* So far is hashed what one word leads to: bytes in all, and steps from one block to the next. */
static const uint64_t MOST_BYTES = UINT64_C(64) << 20;
enum { MOST_STEPS = 4, PIECE = 2048, WORD = sizeof(uint64_t) };

/* Addresses of programs lie between these, and mappings near each other: in the same 2^40 bytes. */
static const uint64_t LEAST_ADDRESS = UINT64_C(1) << 16, MOST_ADDRESS = UINT64_C(1) << 47;
enum { NEAR_BITS = 40 };

enum { MOST_RANGES = 1 << 14 }; /* outputs lie between pages of their own                                 */

typedef struct range {
    uint64_t begin, end;
} range;

typedef struct range_list {
    range ranges[MOST_RANGES];
    size_t count, last; /* last: which one held the address that was found                             */
} range_list;

struct state_memory {
    uint64_t heap, heap_end, page;
    pid_t process;
    range_list before;  /* everything that was mapped when the watch began                           */
    range_list objects; /* libraries: their code and variables                                         */
    range_list now;     /* what can be written and is no file's, if known                             */
    bool known;
    uint64_t left;
    uint64_t piece[MOST_STEPS][PIECE];
};

static bool read_memory(const state_memory *m, uint64_t at, void *to, size_t bytes)
{
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)at, bytes};
    return process_vm_readv(m->process, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

void state_memory_read(const state_memory *m, const void *from, void *to, size_t bytes)
{
    read_memory(m, (uint64_t)(uintptr_t)from, to, bytes);
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

/* Memory that has no name, or one that only this process knows. */
static bool is_anonymous(const char *name)
{
    return !name[0] || !strncmp(name, "/memfd:", 7) || !strncmp(name, "/dev/zero", 9) || !strncmp(name, "/dev/shm/", 9);
}

/* all: or those that can be written and are no file's. heap: where that of the C library begins, if there is one. */
static void read_ranges(range_list *list, bool all, uint64_t *heap)
{
    char line[512], access[8], name[256];
    FILE *maps = fopen("/proc/self/maps", "re");
    list->count = list->last = 0;
    while (maps && list->count < MOST_RANGES && fgets(line, sizeof line, maps)) {
        range r;
        name[0] = '\0';
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %*s %255s", &r.begin, &r.end, access, name) < 3)
            continue;
        if (!strcmp(name, "[heap]") && !*heap)
            *heap = r.begin;
        if (all || (access[0] == 'r' && access[1] == 'w' && is_anonymous(name)))
            list->ranges[list->count++] = r;
    }
    if (maps)
        fclose(maps);
}

static bool holds(const range *r, uint64_t address)
{
    return r->begin <= address && address < r->end;
}

/* The first range that ends behind the address; they are in order. NULL: none does. Words that follow each other often
 * lead to the same one. */
static const range *find_range(range_list *list, uint64_t address)
{
    size_t first = 0, end = list->count;
    if (list->last < end && holds(&list->ranges[list->last], address))
        return &list->ranges[list->last];
    while (first < end) {
        size_t middle = (first + end) / 2;
        if (list->ranges[middle].end <= address)
            first = middle + 1;
        else
            end = middle;
    }
    list->last = first;
    return first < list->count ? &list->ranges[first] : NULL;
}

static bool contains(range_list *list, uint64_t address)
{
    const range *r = find_range(list, address);
    return r && holds(r, address);
}

static int add_object(struct dl_phdr_info *info, size_t size, void *ctx)
{
    range_list *list = ctx;
    range r = {UINT64_MAX, 0};
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uint64_t begin = (uint64_t)info->dlpi_addr + p->p_vaddr, end = begin + p->p_memsz;
        if (p->p_type == PT_LOAD) {
            r.begin = begin < r.begin ? begin : r.begin;
            r.end = end > r.end ? end : r.end;
        }
    }
    if (r.begin < r.end && list->count < MOST_RANGES)
        list->ranges[list->count++] = r;
    return 0;
}

static int by_address(const void *a, const void *b)
{
    const range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

state_memory *state_memory_open(void)
{
    void *memory =
        mmap(NULL, sizeof(state_memory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    state_memory *m = memory == MAP_FAILED ? NULL : memory;
    if (!m)
        return NULL;
    m->process = getpid();
    m->page = (uint64_t)sysconf(_SC_PAGESIZE);
    read_ranges(&m->before, true, &m->heap);
    dl_iterate_phdr(add_object, &m->objects);
    qsort(m->objects.ranges, m->objects.count, sizeof(range), by_address);
    return m;
}

/* The heap grows between calls, and begins with the first block. */
void state_memory_look(state_memory *m)
{
    m->known = false;
    if (!m->heap)
        read_ranges(&m->now, false, &m->heap);
    m->heap_end = m->heap ? (uint64_t)(uintptr_t)sbrk(0) : 0;
}

/* Bytes from here to the end of a mapping that was not there when the watch began. The system joins mappings that lie
 * side by side, so older ones are cut off. */
static uint64_t mapped_bytes(state_memory *m, uint64_t address)
{
    uint64_t probe;
    const range *older = find_range(&m->before, address);
    if (address % m->page != 0 || (older && older->begin <= address) || !read_memory(m, address, &probe, sizeof probe))
        return 0;
    if (!m->known)
        read_ranges(&m->now, false, &m->heap);
    m->known = true;
    const range *r = find_range(&m->now, address);
    if (!r || r->begin > address)
        return 0;
    return (older && older->begin < r->end ? older->begin : r->end) - address;
}

/* ---- blocks of the heap --------------------------------------------------------------------------------------------
 * A block's size stands before it, with flags in the lowest bits; a large block is a mapping of its own, and how far it
 * lies from that one's begin stands before the size. */

enum { ALIGN = 16, FLAGS = 7, MAPPED = 2, OF_THREAD = 4 };

/* A large block begins so close to the beginning of a page: at most as many bytes as it may be aligned to. */
enum { MOST_OFFSET = 128 };

/* Blocks that a thread takes lie in heaps of 64 MiB, each at a multiple of that, with what it belongs to, the heap
 * before and its size in front. */
static uint64_t bytes_of_thread(const state_memory *m, uint64_t address, uint64_t size)
{
    static const uint64_t EACH = UINT64_C(64) << 20;
    uint64_t heap = address & ~(EACH - 1), head[3];
    if (!read_memory(m, heap, head, sizeof head))
        return 0;
    bool good = head[0] % EACH < 4096 && head[0] >= LEAST_ADDRESS && head[0] < MOST_ADDRESS && head[2] <= EACH;
    return good && address + size <= heap + head[2] ? size - WORD : 0;
}

static uint64_t block_bytes(state_memory *m, uint64_t address)
{
    uint64_t head[2];
    bool in_heap = address >= m->heap + ALIGN && address < m->heap_end;
    if (!in_heap && contains(&m->objects, address))
        return 0;
    if (address % ALIGN != 0 || !read_memory(m, address - sizeof head, head, sizeof head))
        return 0;
    uint64_t size = head[1] & ~(uint64_t)FLAGS;
    if (size <= sizeof head || size >= MOST_ADDRESS || size % ALIGN != 0)
        return 0;
    if (in_heap)
        return !(head[1] & MAPPED) && size <= m->heap_end - address ? size - sizeof head + WORD : 0;
    if (head[1] & OF_THREAD)
        return bytes_of_thread(m, address, size);
    bool whole = (address - sizeof head - head[0]) % m->page == 0 && (size + head[0]) % m->page == 0;
    return address % m->page <= MOST_OFFSET && head[1] & MAPPED && whole && head[0] < m->page ? size - sizeof head : 0;
}

/* ---- hashing ----------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

// NOLINTNEXTLINE(misc-no-recursion): so many steps at most
static uint64_t hash_from(state_memory *m, uint64_t address, int step)
{
    bool is_near = (address ^ (uint64_t)(uintptr_t)m) >> NEAR_BITS == 0;
    if (address % ALIGN != 0 || step == MOST_STEPS || !(is_near || (address >= m->heap && address < m->heap_end)))
        return 0;
    uint64_t hash = 1, bytes = block_bytes(m, address);
    if (bytes == 0)
        bytes = mapped_bytes(m, address);
    bytes = bytes < m->left ? bytes : m->left;
    m->left -= bytes;
    if (bytes < WORD)
        return 0;
    for (uint64_t at = 0, words = bytes / WORD; at < words; at += PIECE) {
        size_t n = words - at < PIECE ? (size_t)(words - at) : PIECE;
        if (!read_memory(m, address + at * WORD, m->piece[step], n * WORD))
            return 0;
        for (size_t i = 0; i < n; i++) {
            uint64_t word = m->piece[step][i];
            hash = mix(mix(hash, word), hash_from(m, word, step + 1));
        }
    }
    return hash ? hash : 1;
}

uint64_t state_memory_hash(state_memory *m, uint64_t address)
{
    m->left = MOST_BYTES;
    return hash_from(m, address, 0);
}

bool state_memory_leads_nowhere(state_memory *m, uint64_t word)
{
    bool in_heap = word >= m->heap && word < m->heap_end;
    return word % ALIGN != 0 || word < LEAST_ADDRESS || (!in_heap && contains(&m->objects, word));
}
