/* Who would take a site, and who comes first. */
#include "apply/rank.h"

#include "base/text.h"

#include <string.h>

tn_status rank_declared(const tn_site *site, const tn_impl *impl, bool training, char *reason, size_t size)
{
    tn_status status = select_match(site, impl, reason, size);
    if (status == TN_OK && training && !impl->backward) {
        text_cut(reason, size, "no backward: it gives no gradients, which are wanted here");
        status = TN_DECLINED;
    }
    return status;
}

static const char *name_of(const registry_kernel *k)
{
    const char *slash = strrchr(k->file, '/');
    return slash ? slash + 1 : k->file;
}

int rank_compare(const registry_kernel *a, const registry_kernel *b)
{
    int32_t left = a->kernel.priority, right = b->kernel.priority;
    if (left != right)
        return left > right ? -1 : 1;
    int files = strcmp(name_of(a), name_of(b));
    return files ? files : strcmp(a->kernel.id, b->kernel.id);
}

void rank_reason(const registry_kernel *winner, const registry_kernel *loser, char *reason, size_t size)
{
    if (winner->kernel.priority != loser->kernel.priority)
        text_cut(reason, size, "priority: %s has %d, this kernel %d", winner->kernel.id, (int)winner->kernel.priority,
                 (int)loser->kernel.priority);
    else
        text_cut(reason, size,
                 "tie: %s of %s has the same priority and comes first by file name; choose with --kernels",
                 winner->kernel.id, name_of(winner));
}
