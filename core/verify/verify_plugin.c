/* Trying a plugin's kernels without a model: every implementation of a file, with every dtype that it takes. */
#include "verify/verify_plugin.h"

#include "base/structs.h"
#include "eager/eager.h"
#include "op/op.h"
#include "plugin/environment.h"
#include "plugin/folders.h"
#include "plugin/registry.h"

#include <string.h>
#include <strings.h>

/* A kernel that cannot be tried here at all. */
static tn_status report_absent(verify_plugin *k, const registry_kernel *kernel, int32_t impl, const char *reason)
{
    tn_check_row row = {.size = sizeof row,
                        .kind = TN_CHECK_IMPL,
                        .result = TN_CHECK_DECLINED,
                        .kernel = kernel->kernel.id,
                        .op = kernel->kernel.impls[impl].op,
                        .impl = impl,
                        .shape = "",
                        .worst_shape = "",
                        .reason = reason};
    return verify_plugin_report(k, &row);
}

static tn_status try_impl(verify_plugin *k, registry_kernel *kernel, int32_t index, tn_op only, tn_error *err)
{
    const tn_impl *impl = &kernel->kernel.impls[index];
    tn_status status = TN_OK;
    if (only != TN_OP_NONE && impl->op != only)
        return TN_OK;
    if (strcmp(kernel->kernel.device, eager_cpu.name) != 0)
        return report_absent(k, kernel, index,
                             "its device's memory is not the host's, so it cannot be tried in a child");
    status = registry_probe(kernel, err);
    if (status != TN_OK)
        return status;
    if (!kernel->available)
        return report_absent(k, kernel, index, kernel->reason);
    for (tn_dtype dtype = TN_F32; dtype <= TN_F16 && status == TN_OK; dtype++)
        if (impl->match.takes[TN_AXIS_DTYPE] & TN_TAKES(dtype))
            status = verify_plugin_impl_try(k, kernel, index, dtype, err);
    return status;
}

static tn_status try_file(verify_plugin *k, const char *file, tn_op only, tn_error *err)
{
    registry_kernel *kernel;
    tn_status status = TN_OK;
    size_t found = 0;
    for (size_t i = 0; status == TN_OK && (kernel = registry_any(i)); i++) {
        if (strcmp(kernel->file, file) != 0)
            continue;
        found++;
        for (uint32_t j = 0; j < kernel->kernel.impl_count && status == TN_OK; j++)
            status = try_impl(k, kernel, (int32_t)j, only, err);
    }
    if (status == TN_OK && found == 0)
        status = tn_fail(err, TN_E_KERNEL, file, "it brings no kernels, so there is nothing to check");
    return status;
}

static tn_status find_op(const char *name, tn_op *op, tn_error *err)
{
    *op = TN_OP_NONE;
    for (size_t i = 0; name && op_at(i); i++)
        if (op_at(i)->kind == OP_CONTRACT && strcasecmp(op_at(i)->name, name) == 0)
            *op = op_at(i)->op;
    if (name && *op == TN_OP_NONE)
        return tn_fail(err, TN_E_USAGE, "op", "'%s' is no operation that kernels take; they are in tenon/operation.h",
                       name);
    return TN_OK;
}

tn_status tn_check_plugin(const char *file, const tn_check_options *options,
                          int (*on_row)(void *ctx, const tn_check_row *row), void *ctx, tn_error *err)
{
    verify_plugin k = {.on_row = on_row, .ctx = ctx};
    tn_machine machine = {.size = sizeof machine};
    const char *name = NULL;
    tn_op only;
    if (!file)
        return structs_missing("file", err);
    tn_status status = environment_check(err);
    if (status == TN_OK && options)
        status = structs_take(&k.options, sizeof k.options, options, "tn_check_options", err);
    k.options.threads = threads_bound(k.options.threads);
    if (status == TN_OK)
        status = find_op(k.options.op, &only, err);
    if (status == TN_OK)
        status = folders_load_file(file, &name, err);
    if (status == TN_OK && k.options.bench && (status = tn_measure_machine(&machine, err)) == TN_OK)
        k.machine = &machine;
    if (status == TN_OK)
        status = try_file(&k, name, only, err);
    if (status != TN_OK)
        return k.cancelled ? tn_fail(err, TN_E_CANCELLED, file, "stopped") : status;
    if (k.options.site > k.site || k.options.site < 0)
        return tn_fail(err, TN_E_USAGE, "site", "there is no site %lld; give 1 to %lld", (long long)k.options.site,
                       (long long)k.site);
    if (k.failed > 0)
        return tn_fail(err, TN_E_VERIFY, file, "%lld of %lld implementations failed; see the reasons",
                       (long long)k.failed, (long long)k.tried);
    return TN_OK;
}
