/* Parameters of a site in the child: nobody may write them. */
#include "check/fenced.h"

#include <sys/mman.h>
#include <unistd.h>

/* The bytes of a tensor, and the whole pages among them (begin > end: none). */
typedef struct extent {
    uintptr_t first, last, begin, end;
} extent;

static extent extent_of(const tn_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)t->data;
    extent e = {.first = first, .last = first + tn_dtype_bytes(t->dtype, tn_tensor_count(t))};
    e.begin = (e.first + page - 1) / page * page;
    e.end = e.last / page * page;
    return e;
}

void fenced_params_protect(const tn_site *site)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            extent e = extent_of(&site->param[role].tensors[i]);
            if (e.begin < e.end)
                mprotect((void *)e.begin, e.end - e.begin, PROT_READ);
        }
}

bool fenced_params_contain(const tn_site *site, const void *address)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            const tn_tensor *t = &site->param[role].tensors[i];
            uintptr_t at = (uintptr_t)address, first = (uintptr_t)t->data;
            if (at >= first && at - first < tn_dtype_bytes(t->dtype, tn_tensor_count(t)))
                return true;
        }
    return false;
}

/* FNV-1a. */
static uint64_t add_bytes(uint64_t hash, uintptr_t first, uintptr_t last)
{
    for (const unsigned char *p = (const unsigned char *)first; p < (const unsigned char *)last; p++)
        hash = (hash ^ *p) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t fenced_params_edges(const tn_site *site)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            extent e = extent_of(&site->param[role].tensors[i]);
            if (e.begin >= e.end) {
                hash = add_bytes(hash, e.first, e.last);
                continue;
            }
            hash = add_bytes(hash, e.first, e.begin);
            hash = add_bytes(hash, e.end, e.last);
        }
    return hash;
}
