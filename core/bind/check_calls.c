/* Calls larger than those of a first use: a session may have more rows, longer chunks and more positions than that. */
#include "bind/apply.h"
#include "check/check.h"
#include "select/alike.h"

#include <stdlib.h>

/* Positions behind a query that are still tried: the cache of that call is drawn, and compared, in memory. */
enum { MOST_CACHED = 16384 };

/* The calls at one site that go beyond what was tried. */
static size_t larger_calls(const apply_target *target, const tn_site *site, const apply_calls *calls,
                           check_case cases[2])
{
    size_t count = 0;
    int64_t cached = calls->context - 1 < MOST_CACHED ? calls->context - 1 : MOST_CACHED;
    if (calls->rows * calls->tokens > target->checked.tokens && !graph_is_wide(site))
        cases[count++] = (check_case){.batch = calls->rows, .tokens = calls->tokens};
    if (site->op == TN_OP_ATTENTION && cached > target->checked.cached)
        cases[count++] = (check_case){.batch = 1, .tokens = 1, .past = cached};
    return count;
}

/* Is this the first site of its shape that the implementation has? */
static bool is_first(const graph *g, size_t site)
{
    for (size_t i = 0; i < site; i++)
        if (g->sites[i]->bound.impl == g->sites[site]->bound.impl &&
            plan_same_shape(&g->sites[i]->site, &g->sites[site]->site))
            return false;
    return true;
}

tn_status apply_check_calls(apply_target *target, const apply_calls *calls, tn_error *err)
{
    const graph *g = target->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_binding *bound = &g->sites[i]->bound;
        check_case cases[2];
        size_t count = bound->impl && is_first(g, i) ? larger_calls(target, &g->sites[i]->site, calls, cases) : 0;
        if (count == 0)
            continue;
        tn_error why = TN_ERROR_INIT;
        check_subject subject = {.device = target->device,
                                 .site = &g->sites[i]->site,
                                 .impl = bound->impl,
                                 .bound = bound,
                                 .gradients = target->training,
                                 .all_gradients = true};
        tn_status status = check_site(&subject, cases, count, NULL, &why);
        if (status == TN_E_MEMORY || status == TN_E_INTERNAL)
            return tn_fail(err, status, why.where, "%s", why.message);
        if (status != TN_OK && status != TN_DECLINED)
            return tn_fail(
                err, TN_E_KERNEL, bound->id,
                "cannot be used for calls as large as these, at %s: %s; use a smaller chunk or fewer tokens, "
                "or leave the kernel out",
                why.where, why.message);
    }
    if (calls->rows * calls->tokens > target->checked.tokens)
        target->checked.tokens = calls->rows * calls->tokens;
    if (calls->context > target->checked.cached)
        target->checked.cached = calls->context;
    return TN_OK;
}
