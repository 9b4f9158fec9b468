/* What lies where is read from /proc/self/maps, which knows the rights that the dynamic linker gave the pages in the
 * end. The kernel copies (peek.c): where a file ended meanwhile it says so, and a memcpy would end in
 * SIGBUS. A mapping is replaced in one step, so that a thread may run there meanwhile.
 *
 * Pages become executable before they are moved to their place: perf, which follows mappings as they are made, goes on
 * naming the functions of the file. Debuggers and dladdr know libraries from the dynamic linker and see no difference.
 */
#include "plugin/detach.h"

#include "plugin/peek.h"
#include "plugin/writers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct range {
    uintptr_t start, end;
    int rights;       /* PROT_..., of pages                                                              */
    const char *file; /* of a library; borrowed from the dynamic linker                                   */
} range;

typedef struct ranges {
    range *items;
    size_t count;
    bool failed; /* no memory                                                                           */
} ranges;

static void add(ranges *list, range r)
{
    range *items = realloc(list->items, (list->count + 1) * sizeof *items);
    list->failed = list->failed || !items;
    if (!items)
        return;
    list->items = items;
    items[list->count++] = r;
}

/* ---- which ------------------------------------------------------------------------------------------------------ */

typedef struct search {
    const objects_loaded *before;
    const char *folder;
    ranges libraries;
} search;

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    search *s = arg;
    range r = {.start = UINTPTR_MAX, .file = info->dlpi_name};
    (void)size;
    if (!objects_is_new(s->before, info->dlpi_phdr) || writers_is_system(info->dlpi_name, s->folder))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        r.start = at < r.start ? at : r.start;
        r.end = at + segment->p_memsz > r.end ? at + segment->p_memsz : r.end;
    }
    if (r.end > 0)
        add(&s->libraries, r);
    return 0;
}

static bool is_inside(const ranges *libraries, const range *r)
{
    for (size_t i = 0; i < libraries->count; i++)
        if (r->start < libraries->items[i].end && libraries->items[i].start < r->end)
            return true;
    return false;
}

/* "START-END rwxp OFFSET DEVICE INODE PATH": mapped from a file, and to be reached. */
static bool parse(const char *line, range *r)
{
    char rights[5];
    unsigned long long inode;
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*s %llu", &r->start, &r->end, rights, &inode) != 4)
        return false;
    r->rights =
        (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) | (rights[2] == 'x' ? PROT_EXEC : 0);
    return inode != 0 && r->rights != PROT_NONE && rights[3] == 'p';
}

/* The mappings of files in these libraries. */
static tn_status find_pages(const ranges *libraries, bool variables, ranges *pages, tn_error *err)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t size = 0;
    range r;
    if (!file)
        return tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INTERNAL, NULL, "/proc/self/maps: %s",
                       strerror(errno));
    while (getline(&line, &size, file) > 0)
        if (parse(line, &r) && is_inside(libraries, &r) && (variables || !(r.rights & PROT_WRITE)))
            add(pages, r);
    bool whole = feof(file) && !ferror(file);
    free(line);
    fclose(file);
    if (pages->failed || !whole)
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    return TN_OK;
}

/* ---- replacing -------------------------------------------------------------------------------------------------- */

static tn_status replace(const range *r, tn_error *err)
{
    size_t bytes = r->end - r->start;
    void *place = (void *)r->start; /* NOLINT(performance-no-int-to-ptr)                                  */
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tn_status status = TN_OK;
    if (own == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    if (!peek_copy(own, place, bytes))
        status = tn_fail(err, TN_E_INPUT, NULL, "its pages cannot be read");
    else if (mprotect(own, bytes, r->rights) != 0 ||
             mremap(own, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED)
        status =
            tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INTERNAL, NULL, "code in memory: %s", strerror(errno));
    if (status != TN_OK)
        munmap(own, bytes);
    else if ((r->rights & (PROT_READ | PROT_EXEC)) == (PROT_READ | PROT_EXEC))
        __builtin___clear_cache(place, (char *)place + bytes);
    return status;
}

/* The dynamic linker knows a file by its inode. As long as a page of it is mapped, which nobody can read, no other file
 * gets that number when this one is removed. */
static tn_status hold(const char *path, tn_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_NONE, MAP_PRIVATE, fd, 0);
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (page != MAP_FAILED)
        return TN_OK;
    return tn_fail(err, why == ENOMEM ? TN_E_MEMORY : TN_E_INTERNAL, NULL, "%s: %s", path, strerror(why));
}

tn_status detach_new(const objects_loaded *before, const char *folder, bool variables, tn_error *err)
{
    search s = {.before = before, .folder = folder};
    ranges pages = {0};
    tn_status status = TN_OK;
    if (objects_is_full(before))
        return tn_fail(err, TN_E_INTERNAL, NULL, "too many libraries");
    dl_iterate_phdr(look, &s);
    if (s.libraries.failed)
        status = tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    for (size_t i = 0; i < s.libraries.count && status == TN_OK; i++)
        status = hold(s.libraries.items[i].file, err);
    if (status == TN_OK && s.libraries.count > 0)
        status = find_pages(&s.libraries, variables, &pages, err);
    for (size_t i = 0; i < pages.count && status == TN_OK; i++)
        status = replace(&pages.items[i], err);
    free(pages.items);
    free(s.libraries.items);
    return status;
}
