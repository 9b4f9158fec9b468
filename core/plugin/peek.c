/* Reading what a plugin points to. The kernel copies, and says where there is no memory instead of ending the process.
 * A trial has read the same before; but what a constructor makes up may differ from run to run, and a plugin that is
 * part of the program has no trial. */
#include "plugin/peek.h"

#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

bool peek_copy(void *to, const void *from, size_t bytes)
{
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
    if (bytes == 0)
        return true;
    ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (n == (ssize_t)bytes)
        return true;
    if (n >= 0 || (errno != ENOSYS && errno != EPERM))
        return false;
    memcpy(to, from, bytes); /* a system that forbids the call: as if every pointer were good        */
    return true;
}

bool peek_text(char *to, size_t size, const char *from)
{
    enum { STEP = 64 }; /* a piece that begins at a multiple of it crosses no page                   */
    for (size_t used = 0; used < size;) {
        size_t step = STEP - (uintptr_t)(from + used) % STEP;
        step = step < size - used ? step : size - used;
        if (!peek_copy(to + used, from + used, step))
            return false;
        if (memchr(to + used, '\0', step))
            return true;
        used += step;
    }
    return false;
}

typedef struct place {
    uintptr_t address;
    bool in_library, code;
} place;

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    place *p = arg;
    (void)size;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || p->address - (info->dlpi_addr + segment->p_vaddr) >= segment->p_memsz)
            continue;
        p->in_library = true;
        p->code = (segment->p_flags & PF_X) != 0;
        return 1;
    }
    return 0;
}

bool peek_is_code(const void *function)
{
    char byte;
    place p = {.address = (uintptr_t)function};
    dl_iterate_phdr(look, &p);
    return p.in_library ? p.code : peek_copy(&byte, function, 1);
}
