/* One site on its own, for programs that have their own way of putting a model's operations together. */
#include "call/site.h"

#include "base/structs.h"
#include "base/tensor.h"
#include "base/text.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "run/run.h"

#include <string.h>

const graph_site *site_find(const tn_model *model, const char *path, tn_op op, tn_error *err)
{
    if (!model) {
        structs_missing("model", err);
        return NULL;
    }
    const graph *g = model->target.graph;
    const graph_site *site = NULL;
    for (size_t i = 0; path && !site && i < g->site_count; i++)
        if (g->sites[i]->site.op == op && !strcmp(g->sites[i]->site.path, path))
            site = g->sites[i];
    if (!site)
        tn_fail(err, TN_E_USAGE, path ? path : "site",
                "the model has no site with this path and operation %s; see tenon inspect", tn_op_name(op));
    else if (site->lacking || site->by_parts)
        tn_fail(err, TN_E_USAGE, path, "cannot be performed: %s", site->declined);
    return site && !site->lacking && !site->by_parts ? site : NULL;
}

/* Names are made for those that are wrong. */
static tn_status check_tensors(const char *list, const tn_tensor *tensors, int32_t count, tn_error *err)
{
    char name[16];
    for (int32_t i = 0; i < count; i++)
        if (tensor_check(&tensors[i], list, NULL) != TN_OK) {
            text_cut(name, sizeof name, "%s[%d]", list, (int)i);
            return tensor_check(&tensors[i], name, err);
        }
    return TN_OK;
}

tn_status site_fill_call(tn_call *call, const tn_site *site, const tn_tensor *in, int32_t in_count,
                         const tn_tensor *out, int32_t out_count, tn_error *err)
{
    if (in_count < 0 || in_count > TN_CALL_TENSORS || out_count < 0 || out_count > TN_CALL_TENSORS)
        return tn_fail(err, TN_E_USAGE, site->path, "a call has at most %d inputs and outputs", TN_CALL_TENSORS);
    if ((!in && in_count > 0) || (!out && out_count > 0))
        return structs_missing(!in && in_count > 0 ? "in" : "out", err);
    *call = (tn_call){.size = sizeof *call, .op = site->op, .site = site, .in_count = in_count};
    call->out_count = out_count;
    if (in_count > 0)
        memcpy(call->in, in, (size_t)in_count * sizeof *in);
    if (out_count > 0)
        memcpy(call->out, out, (size_t)out_count * sizeof *out);
    tn_status status = check_tensors("in", call->in, in_count, err);
    return status == TN_OK ? check_tensors("out", call->out, out_count, err) : status;
}

tn_status site_fill_grads(tn_call *call, tn_grads *own, const tn_grads *grads, tn_error *err)
{
    tn_status status = structs_take(own, sizeof *own, grads, "tn_grads", err);
    call->grads = own;
    if (status == TN_OK)
        status = check_tensors("grads.in", own->in, TN_CALL_TENSORS, err);
    return status == TN_OK ? check_tensors("grads.out", own->out, TN_CALL_TENSORS, err) : status;
}

tn_status site_plan(const graph_binding *applied, const tn_site *site, int64_t tokens, graph_binding *bound,
                    tn_error *err)
{
    *bound = *applied;
    if (!bound->impl)
        return TN_OK;
    tn_error why = TN_ERROR_INIT;
    tokens = tokens > 0 ? tokens : 1;
    tn_status status = run_plan_for(bound->impl, site, &applied->plan, tokens, &bound->plan, &why);
    if (status != TN_OK)
        return tn_fail(err, status, bound->kernel->kernel.id, "plan failed at %s: %s", site->path, why.message);
    if (bound->plan.max_tokens < tokens)
        return tn_fail(err, TN_E_USAGE, site->path,
                       "%lld tokens are more than %s plans for here, %lld; use fewer at once", (long long)tokens,
                       bound->kernel->kernel.id, (long long)bound->plan.max_tokens);
    return TN_OK;
}

tn_status tn_site_forward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                          const tn_tensor *out, int32_t out_count, tn_error *err)
{
    tn_call call;
    graph_binding bound;
    const graph_site *site = site_find(model, path, op, err);
    if (!site)
        return TN_E_USAGE;
    tn_status status = site_fill_call(&call, &site->site, in, in_count, out, out_count, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    if (status == TN_OK)
        status = site_plan(&site->bound, &site->site, op_tokens(&call), &bound, err);
    if (status != TN_OK)
        return status;
    return run_alone(model->target.device, bound.impl ? NULL : site, &bound, &call, err);
}

tn_status tn_site_backward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                           const tn_grads *grads, tn_error *err)
{
    tn_call call;
    graph_binding bound;
    tn_grads own = {0};
    const graph_site *site = site_find(model, path, op, err);
    if (!site)
        return TN_E_USAGE;
    if (!model->target.training)
        return tn_fail(err, TN_E_USAGE, site->site.path,
                       "gradients need a model that was opened for training (tn_model_options.training)");
    tn_status status = site_fill_call(&call, &site->site, in, in_count, NULL, 0, err);
    if (status == TN_OK)
        status = site_fill_grads(&call, &own, grads, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    if (status == TN_OK)
        status = site_plan(&site->bound, &site->site, op_tokens(&call), &bound, err);
    return status == TN_OK ? run_alone(model->target.device, NULL, &bound, &call, err) : status;
}
