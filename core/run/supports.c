/* Asking a device whether it performs a graph, before anything is computed. */
#include "run/run.h"

static tn_status ask(const device *d, const tn_site *site, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    tn_status status = device_supports(d, site, &why);
    if (status == TN_OK)
        return TN_OK;
    return tn_fail(err, status == TN_E_MEMORY ? status : TN_E_KERNEL, site->path, "device %s does not perform %s: %s",
                   d->ops->name, tn_op_name(site->op), why.message[0] ? why.message : "it gives no reason");
}

/* What to ask about at a site: of a composed operation, the step that it needs beside the sites inside it, which are
 * asked about on their own, or nothing. */
static tn_op step_of(const tn_site *site)
{
    switch (site->op) {
    case TN_OP_MLP:
        return site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN ? TN_OP_ACT : TN_OP_GLU;
    case TN_OP_ADD_RMS_NORM:
    case TN_OP_LORA_LINEAR:
        return TN_OP_ADD;
    case TN_OP_MOE_BLOCK:
        return site->features & TN_HAS_SHARED_EXPERT ? TN_OP_ADD : TN_OP_NONE;
    default:
        return site->op;
    }
}

tn_status run_supported(const device *d, const graph *g, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; d->ops->supports && i < g->site_count && status == TN_OK; i++) {
        tn_site site = g->sites[i]->site;
        site.op = step_of(&site);
        if (site.op != TN_OP_NONE)
            status = ask(d, &site, err);
    }
    for (size_t i = 0; d->ops->supports && i < g->step_count && status == TN_OK; i++)
        status = ask(d, &g->steps[i]->site, err);
    return status;
}
