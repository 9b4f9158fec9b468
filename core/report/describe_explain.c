/* What --explain says beyond the tree: decisions only. A kernel decides about sites whose operation it implements;
 * about the others one line says it all. */
#include "op/op.h"
#include "plugin/registry.h"
#include "report/describe.h"

#include <string.h>

bool describe_decides(const describe_view *view, const tn_site_report *site, const char *kernel)
{
    const registry_kernel *k = registry_find(view->target->device->ops->name, kernel);
    for (uint32_t i = 0; k && i < k->kernel.impl_count; i++)
        if (k->kernel.impls[i].op == site->site->op)
            return true;
    return !k;
}

/* Does any kernel that was considered decide about the site? */
static bool is_decided(const describe_view *view, const tn_site_report *site)
{
    for (size_t i = 0; i < site->verdict_count; i++)
        if (describe_decides(view, site, site->verdicts[i]->kernel))
            return true;
    return false;
}

/* "no implementation for LINEAR (20 sites), ATTENTION (4 sites)" */
static void add_operations(const describe_view *view, text *out)
{
    const tn_report *r = view->report;
    const op_row *row;
    int listed = 0;
    for (size_t i = 0; (row = op_at(i)); i++) {
        size_t sites = 0;
        for (size_t j = 0; j < r->site_count; j++)
            sites +=
                r->sites[j]->site->op == row->op && r->sites[j]->verdict_count > 0 && !is_decided(view, r->sites[j]);
        if (sites > 0)
            text_add(out, "%s%s (%zu site%s)", listed++ ? ", " : "no implementation for ", row->name, sites,
                     sites == 1 ? "" : "s");
    }
    if (listed)
        text_add(out, "\n");
}

/* Kernels whose operations no site has, each with a line. */
static void add_idle(const describe_view *view, text *out)
{
    const tn_report *r = view->report;
    size_t kernels = r->site_count > 0 ? r->sites[0]->verdict_count : 0;
    for (size_t k = 0; k < kernels; k++) {
        const char *id = r->sites[0]->verdicts[k]->kernel;
        bool decides = false;
        for (size_t i = 0; i < r->site_count && !decides; i++)
            decides = describe_decides(view, r->sites[i], id);
        if (!decides)
            text_add(out, "%s: this model has none of the operations that it implements\n", id);
    }
}

void describe_undecided(const describe_view *view, text *out)
{
    add_operations(view, out);
    add_idle(view, out);
}
