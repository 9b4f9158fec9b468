/* What a plugin's device computes is compared with the CPU before anything of a model depends on it. */
#include "open/trust_device.h"

#include "check/check_device.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "select/alike.h"

/* The primitive operation that a site of a composed one needs beside the sites inside it. */
static check_device_subject step_at(const tn_site *site)
{
    switch (site->op) {
    case TN_OP_MLP:
        return (check_device_subject){.op = site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN ? TN_OP_ACT : TN_OP_GLU,
                                      .width = site->dim[TN_DIM_INTER]};
    case TN_OP_ADD_RMS_NORM:
        return (check_device_subject){.op = TN_OP_ADD, .width = site->dim[TN_DIM_WIDTH]};
    case TN_OP_MOE_BLOCK:
        return (check_device_subject){.op = TN_OP_ADD, .width = site->dim[TN_DIM_HIDDEN]};
    case TN_OP_ATTENTION:
        return (check_device_subject){.op = TN_OP_CACHE_APPEND, .width = site->dim[TN_DIM_HEAD]};
    default:
        return (check_device_subject){.op = TN_OP_NONE};
    }
}

static tn_status try_at(const tn_model *m, const device *cpu, const tn_site *site, check_device_subject s,
                        tn_error *err)
{
    s.device = &m->device;
    s.cpu = cpu;
    s.site = site;
    return s.op == TN_OP_NONE ? TN_OK : check_device(&s, err);
}

/* The first of its shape? */
static bool is_first(const graph *g, size_t index)
{
    size_t i = 0;
    while (i < index && !plan_same_shape(&g->sites[i]->site, &g->sites[index]->site))
        i++;
    return i == index;
}

/* The first that does what it does? */
static bool is_first_step(const graph *g, size_t index)
{
    const graph_step *step = g->steps[index];
    size_t i = 0;
    while (i < index && (g->steps[i]->width != step->width || !plan_same_shape(&g->steps[i]->site, &step->site)))
        i++;
    return i == index;
}

/* The last one of the same shape. */
static const tn_site *last_like(const graph *g, size_t index)
{
    size_t i = g->site_count - 1;
    while (i > index && !plan_same_shape(&g->sites[i]->site, &g->sites[index]->site))
        i--;
    return &g->sites[i]->site;
}

/* Another site of the shape, and the first again: whoever takes the weights of one for the other's shows here. */
static tn_status try_others(const tn_model *m, const device *cpu, size_t first, tn_error *err)
{
    const graph *g = m->target.graph;
    const tn_site *site = &g->sites[first]->site, *last = last_like(g, first);
    const check_device_subject brief = {.op = site->op, .brief = true};
    tn_status status = last == site ? TN_OK : try_at(m, cpu, last, brief, err);
    return status == TN_OK && last != site ? try_at(m, cpu, site, brief, err) : status;
}

/* Parts before what is composed of them, so that an error names the part that is wrong. */
static tn_status try_sites(const tn_model *m, const device *cpu, tn_error *err)
{
    const graph *g = m->target.graph;
    tn_status status = TN_OK;
    for (int composed = 0; composed < 2; composed++)
        for (size_t i = 0; i < g->site_count && status == TN_OK; i++) {
            const tn_site *site = &g->sites[i]->site;
            if (!is_first(g, i))
                continue;
            if (!composed)
                status = try_at(m, cpu, site, step_at(site), err);
            if (status != TN_OK || op_find(site->op)->composed != composed)
                continue;
            status = try_at(m, cpu, site, (check_device_subject){.op = site->op, .gradients = m->target.training}, err);
            if (status == TN_OK)
                status = try_others(m, cpu, i, err);
        }
    return status;
}

static tn_status try_steps(const tn_model *m, const device *cpu, tn_error *err)
{
    tn_status status = TN_OK;
    const graph *g = m->target.graph;
    for (size_t i = 0; i < g->step_count && status == TN_OK; i++) {
        const graph_step *step = g->steps[i];
        if (is_first_step(g, i))
            status =
                try_at(m, cpu, &step->site, (check_device_subject){.op = step->site.op, .width = step->width}, err);
    }
    return status;
}

tn_status trust_device(tn_model *m, tn_error *err)
{
    int32_t ordinal;
    device cpu;
    const tn_device *built_in = registry_device(NULL, &ordinal, err);
    if (m->device.ops == built_in)
        return TN_OK;
    tn_status status = device_open(&cpu, built_in, ordinal, false, err);
    if (status != TN_OK)
        return status;
    status = check_device_copies(&m->device, err);
    if (status == TN_OK)
        status = try_steps(m, &cpu, err);
    if (status == TN_OK)
        status = try_sites(m, &cpu, err);
    device_close(&cpu);
    return status;
}
