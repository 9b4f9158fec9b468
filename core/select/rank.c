/* Who would take a site, and who comes first. */
#include "select/rank.h"

#include "base/text.h"
#include "op/match.h"
#include "plugin/registry.h"

#include <string.h>

tn_status rank_declared(const tn_site *site, const tn_impl *impl, bool training, char *reason, size_t size)
{
    tn_status status = match_site(site, impl, reason, size);
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

rank_decider rank_decide(const rank_side *a, const rank_side *b, int *order)
{
    *order = a->place < b->place ? -1 : a->place > b->place;
    if (*order)
        return RANK_PLACE;
    if (a->share.median > 0 && b->share.median > 0)
        *order = timing_compare(&a->share, &b->share);
    if (*order)
        return RANK_TIME;
    *order = a->kernel->kernel.priority > b->kernel->kernel.priority   ? -1
             : a->kernel->kernel.priority < b->kernel->kernel.priority ? 1
                                                                       : 0;
    if (*order)
        return RANK_PRIORITY;
    *order = strcmp(name_of(a->kernel), name_of(b->kernel));
    if (*order)
        return RANK_FILE;
    *order = strcmp(a->kernel->kernel.id, b->kernel->kernel.id);
    return RANK_ID;
}

int rank_compare(const rank_side *a, const rank_side *b)
{
    int order;
    rank_decide(a, b, &order);
    return order;
}

bool rank_is_tie(const rank_side *a, const rank_side *b)
{
    int order;
    return rank_decide(a, b, &order) >= RANK_FILE;
}

void rank_reason(const rank_side *winner, const rank_side *loser, char *reason, size_t size)
{
    int order;
    const char *id = winner->kernel->kernel.id;
    switch (rank_decide(winner, loser, &order)) {
    case RANK_PLACE:
        text_cut(reason, size,
                 loser->place == RANK_AUTO ? "order: %s is asked for by name" : "order: %s is asked for first", id);
        break;
    case RANK_TIME:
        text_cut(
            reason, size,
            "measured: %s takes %.0f %% of the time without it, this kernel %.0f %%; choose with --kernels=auto,%s", id,
            100 * winner->share.median, 100 * loser->share.median, loser->kernel->kernel.id);
        break;
    case RANK_PRIORITY:
        text_cut(reason, size, "priority: %s has %d, this kernel %d; choose with --kernels=auto,%s", id,
                 (int)winner->kernel->kernel.priority, (int)loser->kernel->kernel.priority, loser->kernel->kernel.id);
        break;
    case RANK_FILE:
        text_cut(reason, size,
                 "tie: %s of %s has the same priority and comes first by file name; choose with --kernels=auto,%s", id,
                 name_of(winner->kernel), loser->kernel->kernel.id);
        break;
    case RANK_ID:
        text_cut(reason, size, "tie: %s has the same priority and comes first by id; choose with --kernels=auto,%s", id,
                 loser->kernel->kernel.id);
    }
}
