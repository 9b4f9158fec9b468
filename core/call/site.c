/* One site on its own, for programs that have their own way of putting a model's operations together. */
#include "base/structs.h"
#include "base/tensor.h"
#include "base/text.h"
#include "op/op.h"
#include "open/model.h"
#include "plugin/registry.h"
#include "run/run.h"

#include <string.h>

static const graph_site *find_site(const tn_model *model, const char *path, tn_op op, tn_error *err)
{
    if (!model) {
        structs_missing("model", err);
        return NULL;
    }
    const graph *g = model->target.graph;
    for (size_t i = 0; path && i < g->site_count; i++)
        if (g->sites[i]->site.op == op && !strcmp(g->sites[i]->site.path, path))
            return g->sites[i];
    tn_fail(err, TN_E_USAGE, path ? path : "site",
            "the model has no site with this path and operation %s; see tenon inspect", tn_op_name(op));
    return NULL;
}

static tn_status check_tensors(const char *list, const tn_tensor *tensors, int32_t count, tn_error *err)
{
    char name[16];
    tn_status status = TN_OK;
    for (int32_t i = 0; i < count && status == TN_OK; i++) {
        text_cut(name, sizeof name, "%s[%d]", list, (int)i);
        status = tensor_check(&tensors[i], name, err);
    }
    return status;
}

static tn_status fill_call(tn_call *call, const graph_site *site, const tn_tensor *in, int32_t in_count,
                           const tn_tensor *out, int32_t out_count, tn_error *err)
{
    if (in_count < 0 || in_count > TN_CALL_TENSORS || out_count < 0 || out_count > TN_CALL_TENSORS)
        return tn_fail(err, TN_E_USAGE, site->site.path, "a call has at most %d inputs and outputs", TN_CALL_TENSORS);
    if ((!in && in_count > 0) || (!out && out_count > 0))
        return structs_missing(!in && in_count > 0 ? "in" : "out", err);
    *call = (tn_call){.size = sizeof *call, .op = site->site.op, .site = &site->site, .in_count = in_count};
    call->out_count = out_count;
    if (in_count > 0)
        memcpy(call->in, in, (size_t)in_count * sizeof *in);
    if (out_count > 0)
        memcpy(call->out, out, (size_t)out_count * sizeof *out);
    tn_status status = check_tensors("in", call->in, in_count, err);
    return status == TN_OK ? check_tensors("out", call->out, out_count, err) : status;
}

/* What is bound, with scratch for as many tokens as the call has: fewer than a session's, or more. */
static tn_status bind_call(const graph_site *site, const tn_call *call, graph_binding *bound, tn_error *err)
{
    *bound = site->bound;
    if (!bound->impl)
        return TN_OK;
    int64_t tokens = op_tokens(call) > 0 ? op_tokens(call) : 1;
    tn_error why = TN_ERROR_INIT;
    tn_status status = run_plan_for(bound->impl, &site->site, &site->bound.plan, tokens, &bound->plan, &why);
    if (status != TN_OK)
        return tn_fail(err, status, bound->kernel->kernel.id, "plan failed at %s: %s", site->site.path, why.message);
    if (bound->plan.max_tokens < tokens)
        return tn_fail(err, TN_E_USAGE, site->site.path,
                       "%lld tokens are more than %s plans for here, %lld; use fewer at once", (long long)tokens,
                       bound->kernel->kernel.id, (long long)bound->plan.max_tokens);
    return TN_OK;
}

tn_status tn_site_forward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                          const tn_tensor *out, int32_t out_count, tn_error *err)
{
    tn_call call;
    graph_binding bound;
    const graph_site *site = find_site(model, path, op, err);
    if (!site)
        return TN_E_USAGE;
    tn_status status = fill_call(&call, site, in, in_count, out, out_count, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    if (status == TN_OK)
        status = bind_call(site, &call, &bound, err);
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
    const graph_site *site = find_site(model, path, op, err);
    if (!site)
        return TN_E_USAGE;
    if (!model->target.training)
        return tn_fail(err, TN_E_USAGE, site->site.path,
                       "gradients need a model that was opened for training (tn_model_options.training)");
    tn_status status = structs_take(&own, sizeof own, grads, "tn_grads", err);
    if (status == TN_OK)
        status = fill_call(&call, site, in, in_count, NULL, 0, err);
    call.grads = &own;
    if (status == TN_OK)
        status = check_tensors("grads.in", own.in, TN_CALL_TENSORS, err);
    if (status == TN_OK)
        status = check_tensors("grads.out", own.out, TN_CALL_TENSORS, err);
    if (status == TN_OK)
        status = op_check_call(&call, err);
    if (status == TN_OK)
        status = bind_call(site, &call, &bound, err);
    return status == TN_OK ? run_alone(model->target.device, NULL, &bound, &call, err) : status;
}
