/* A call that went wrong while a model ran, made again: eager here, the kernel in a child. */
#include "base/structs.h"
#include "base/tensor.h"
#include "base/text.h"
#include "check/callfile.h"
#include "check/check.h"
#include "check/fenced.h"
#include "check/unclear.h"
#include "eager/eager.h"
#include "op/op.h"
#include "plugin/registry.h"

#include <stdlib.h>
#include <string.h>

/* The same call so often, in one child: at the end of its memory, at the start and in place, and again. */
enum { RUNS = 3 };

typedef struct replay {
    callfile file;
    inputs in;
    tn_call eager;
    void *memory; /* of eager's outputs                                                              */
    fenced_run runs[RUNS];
    const tn_impl *impl;
    tn_replay result;
} replay;

/* From the file that the caller names, or among those loaded. The one that the call names is data, and no reason to
 * load anything. */
static tn_status find_kernel(const replay *r, const char *plugin, const registry_kernel **kernel, tn_error *err)
{
    const char *name = NULL, *id = r->file.facts.kernel;
    if (plugin && folders_load_file(plugin, &name, err) != TN_OK)
        return TN_E_KERNEL;
    *kernel = registry_find(eager_cpu.name, id);
    if (*kernel && (!plugin || strcmp((*kernel)->file, name) == 0))
        return TN_OK;
    *kernel = NULL;
    if (plugin)
        return tn_fail(err, TN_E_KERNEL, plugin, "has no kernel '%s', which the call is of", id);
    return tn_fail(err, TN_E_KERNEL, id,
                   "no plugin that is loaded brings this kernel; it came from %s, which can be given beside the call",
                   r->file.facts.plugin);
}

/* The kernel's implementation for this site. */
static tn_status find_impl(replay *r, const char *plugin, tn_error *err)
{
    const registry_kernel *kernel = NULL;
    const char *id = r->file.facts.kernel;
    char reason[320] = "it has no such operation";
    tn_status status = find_kernel(r, plugin, &kernel, err);
    if (status != TN_OK)
        return status;
    text_cut(r->result.plugin, sizeof r->result.plugin, "%s", kernel->file);
    for (uint32_t i = 0; i < kernel->kernel.impl_count && !r->impl; i++)
        if (kernel->kernel.impls[i].op == r->file.site.op &&
            select_match(&r->file.site, &kernel->kernel.impls[i], reason, sizeof reason) == TN_OK)
            r->impl = &kernel->kernel.impls[i];
    if (!r->impl)
        return tn_fail(err, TN_E_KERNEL, id, "does not take the site of this call any more: %s", reason);
    return TN_OK;
}

static tn_status compute_eager(replay *r, tn_error *err)
{
    size_t bytes = 0;
    r->in = (inputs){.call = r->file.call, .tokens = op_tokens(&r->file.call)};
    for (int i = 0; i < r->in.call.out_count; i++) {
        bytes += tensor_padded_bytes(&r->in.call.out[i]);
        r->in.call.out[i].data = NULL;
    }
    r->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!r->memory)
        return check_no_memory(err);
    r->eager = r->in.call;
    bytes = 0;
    for (int i = 0; i < r->eager.out_count; i++) {
        r->eager.out[i].data = (char *)r->memory + bytes;
        bytes += tensor_padded_bytes(&r->eager.out[i]);
    }
    tn_status status = unclear_find(&r->in.call, &r->in.skip, err);
    return status == TN_OK ? run_alone(&cpu_device, NULL, NULL, &r->eager, err) : status;
}

static tn_status compute_kernel(replay *r, tn_error *err)
{
    tn_status status = TN_OK;
    for (int i = 0; i < RUNS && status == TN_OK; i++) {
        check_manner manner = {.apart = i == 1, .team = r->file.facts.threads};
        status = check_open_run(&r->runs[i], &r->in, NULL, manner, err);
    }
    fenced_trial t = {.device = &cpu_device,
                      .site = &r->file.site,
                      .impl = r->impl,
                      .max_tokens = r->in.tokens > GRAPH_MAX_TOKENS ? r->in.tokens : GRAPH_MAX_TOKENS,
                      .threads = r->file.facts.threads,
                      .runs = r->runs,
                      .run_count = RUNS};
    return status == TN_OK ? fenced_execute(&t, err) : status;
}

static tn_status compare(replay *r, tn_error *err)
{
    double ulps = compare_ulps(&r->impl->tolerance, (tn_dtype)r->file.site.meaning[TN_AXIS_DTYPE]);
    compare_figures figures = {0};
    for (int i = 0; i < RUNS; i++)
        compare_call(&r->eager, &r->runs[i].call, ulps, r->in.skip, &figures);
    r->result.worst_now = figures.worst;
    r->result.passed = figures.worst <= 1;
    text_cut(r->result.now, sizeof r->result.now, "%s", figures.detail);
    if (r->result.passed)
        return TN_OK;
    return tn_fail(err, TN_E_VERIFY, r->file.facts.kernel,
                   "is still wrong at %s: %.3g times the tolerance of %g ulps (%s)", r->file.site.path, figures.worst,
                   ulps, figures.detail);
}

static void tell(replay *r)
{
    tn_replay *to = &r->result;
    to->op = r->file.site.op;
    to->tokens = op_tokens(&r->file.call);
    to->worst_then = r->file.facts.worst;
    text_cut(to->kernel, sizeof to->kernel, "%s", r->file.facts.kernel);
    text_cut(to->site, sizeof to->site, "%s", r->file.site.path);
    text_cut(to->then, sizeof to->then, "%s", r->file.facts.detail);
}

static void replay_close(replay *r)
{
    for (int i = 0; i < RUNS; i++)
        fenced_close_run(&r->runs[i]);
    free(r->in.skip);
    free(r->memory);
    callfile_close(&r->file);
    free(r);
}

tn_status tn_check_replay(const char *plugin, const char *file, tn_replay *result, tn_error *err)
{
    if (!file || !result)
        return structs_missing(!file ? "file" : "result", err);
    tn_status status = structs_check(result, "tn_replay", err);
    if (status != TN_OK)
        return status;
    replay *r = calloc(1, sizeof *r);
    if (!r)
        return check_no_memory(err);
    r->result.size = sizeof r->result;
    status = callfile_open(&r->file, file, err);
    if (status == TN_OK) {
        tell(r);
        status = find_impl(r, plugin, err);
    }
    if (status == TN_OK)
        status = compute_eager(r, err);
    if (status == TN_OK)
        status = compute_kernel(r, err);
    if (status == TN_OK)
        status = compare(r, err);
    structs_give(result, &r->result, sizeof r->result, "tn_replay", NULL);
    replay_close(r);
    return status;
}
