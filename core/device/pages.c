/* Memory of a device on pages of its own. Weights lie there: who writes them by mistake is stopped at once, where on a
 * page shared with something else it would change the model for good. */
#include "device/pages.h"

#include <sys/mman.h>
#include <unistd.h>

static uintptr_t page_size(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

static uintptr_t round_up(uintptr_t value)
{
    return (value + page_size() - 1) / page_size() * page_size();
}

tn_status pages_alloc(pages *p, const device *d, size_t bytes, tn_error *err)
{
    *p = (pages){.bytes = bytes, .block_bytes = bytes};
    if (bytes > SIZE_MAX / 2)
        return tn_fail(err, TN_E_MEMORY, d->ops->name, "%zu bytes do not fit into memory", bytes);
    if (d->ops->host_memory)
        p->block_bytes = round_up(bytes) + page_size();
    tn_status status = device_alloc(d, p->block_bytes, &p->block, err);
    if (status == TN_OK)
        p->data = d->ops->host_memory ? (char *)p->block + (round_up((uintptr_t)p->block) - (uintptr_t)p->block)
                                      : (char *)p->block;
    return status;
}

/* Where the system refuses, which it does for memory that is no memory of ours, writing stays possible. */
void pages_protect(pages *p)
{
    bool whole = p->block_bytes > p->bytes && p->bytes > 0;
    p->read_only = whole && mprotect(p->data, round_up(p->bytes), PROT_READ) == 0;
}

void pages_free(pages *p, const device *d)
{
    if (p->read_only)
        mprotect(p->data, round_up(p->bytes), PROT_READ | PROT_WRITE);
    device_free(d, p->block, p->block_bytes);
    *p = (pages){0};
}
