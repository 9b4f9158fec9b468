/* A call that went wrong while a model ran, made again: eager here, the kernel in children, on one thread and on many.
 */
#include "base/structs.h"
#include "base/tensor.h"
#include "base/text.h"
#include "check/callfile.h"
#include "check/check.h"
#include "check/fenced.h"
#include "check/unclear.h"
#include "eager/eager.h"
#include "op/match.h"
#include "op/op.h"
#include "plugin/folders.h"
#include "plugin/registry.h"

#include <stdlib.h>
#include <string.h>

/* Calls on one thread, in one child: at the end of its memory, at the start and in place, and again. Then those on a
 * team, so many in each of some children: what goes wrong between threads does so now and then. */
enum { ALONE = 3, TOGETHER = 5, CHILDREN = 4 };

typedef struct replay {
    callfile file;
    inputs in;
    tn_call eager;
    void *memory; /* of eager's outputs                                                              */
    fenced_run alone[ALONE], together[TOGETHER];
    const tn_impl *impl;
    compare_figures figures; /* the worst of all calls                                            */
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
    text_escape(r->result.plugin, sizeof r->result.plugin, kernel->file);
    for (uint32_t i = 0; i < kernel->kernel.impl_count && !r->impl; i++)
        if (kernel->kernel.impls[i].op == r->file.site.op &&
            match_site(&r->file.site, &kernel->kernel.impls[i], reason, sizeof reason) == TN_OK)
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

/* Makes calls in one child, on so many threads, with a plan for as many. */
static tn_status make_calls(replay *r, fenced_run *runs, size_t count, int32_t team, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = check_open_run(&runs[i], &r->in, NULL, (check_manner){.apart = i == 1, .team = team}, err);
    fenced_trial t = {.device = &cpu_device,
                      .plain = true,
                      .site = &r->file.site,
                      .impl = r->impl,
                      .max_tokens = r->in.tokens > GRAPH_MAX_TOKENS ? r->in.tokens : GRAPH_MAX_TOKENS,
                      .threads = team,
                      .runs = runs,
                      .run_count = count};
    return status == TN_OK ? fenced_execute(&t, err) : status;
}

/* Has this call wrong numbers? */
static bool is_wrong(replay *r, const fenced_run *run)
{
    double ulps = compare_ulps(&r->impl->tolerance, (tn_dtype)r->file.site.meaning[TN_AXIS_DTYPE]);
    compare_figures figures = {0};
    compare_call(&r->eager, &run->call, ulps, r->in.skip, &figures);
    if (figures.worst > r->figures.worst)
        r->figures = figures;
    return figures.worst > 1;
}

/* On one thread, and on as many as the file tells and this machine bears, or all where that is one. */
static tn_status compute_kernel(replay *r, tn_error *err)
{
    tn_replay *to = &r->result;
    int32_t all = tn_thread_count();
    char where[160];
    to->threads = r->file.facts.threads > 1 ? threads_bound(r->file.facts.threads) : all > 1 ? all : 2;
    tn_status status = make_calls(r, r->alone, ALONE, 1, err);
    for (int i = 0; i < ALONE && status == TN_OK; i++, to->calls_alone++)
        to->wrong_alone += is_wrong(r, &r->alone[i]);
    for (int child = 0; child < CHILDREN && status == TN_OK; child++) {
        status = make_calls(r, r->together, TOGETHER, to->threads, err);
        for (int i = 0; i < TOGETHER && status == TN_OK; i++, to->calls_together++) {
            to->wrong_together += is_wrong(r, &r->together[i]);
            to->other_bits += !check_same_bits(&r->alone[0], &r->together[i], where, sizeof where);
        }
        for (int i = 0; i < TOGETHER; i++)
            fenced_close_run(&r->together[i]);
    }
    return status;
}

/* What the numbers of calls say: "wrong on 2 threads in 7 of 20 calls, right on one: its threads race". */
static void describe(tn_replay *r)
{
    char *text = r->threads_text;
    size_t size = sizeof r->threads_text, used;
    if (r->wrong_together > 0)
        used = text_cut(text, size, "wrong on %d threads in %d of %d calls", (int)r->threads, (int)r->wrong_together,
                        (int)r->calls_together);
    else
        used = text_cut(text, size, "right on %d threads in %d calls", (int)r->threads, (int)r->calls_together);
    if (r->wrong_alone > 0)
        used +=
            text_cut(text + used, size - used, ", wrong on one in %d of %d", (int)r->wrong_alone, (int)r->calls_alone);
    else
        used += text_cut(text + used, size - used, ", right on one in %d", (int)r->calls_alone);
    if (r->wrong_alone > 0)
        return;
    if (r->wrong_together > 0 && r->wrong_together < r->calls_together)
        text_cut(text + used, size - used, ": its threads race");
    else if (r->wrong_together > 0)
        text_cut(text + used, size - used, ": it goes wrong between threads");
    else if (r->other_bits > 0)
        text_cut(text + used, size - used, ", with other bits than there in %d: its threads race", (int)r->other_bits);
}

static tn_status compare(replay *r, tn_error *err)
{
    tn_replay *to = &r->result;
    double ulps = compare_ulps(&r->impl->tolerance, (tn_dtype)r->file.site.meaning[TN_AXIS_DTYPE]);
    to->worst_now = r->figures.worst;
    to->passed = r->figures.worst <= 1 && to->other_bits == 0;
    text_escape(to->now, sizeof to->now, r->figures.detail);
    describe(to);
    if (to->passed)
        return TN_OK;
    return tn_fail(err, TN_E_VERIFY, r->file.facts.kernel,
                   "is still wrong at %s: %.3g times the tolerance of %g ulps (%s); %s", r->file.site.path,
                   r->figures.worst, ulps, r->figures.detail, to->threads_text);
}

static void tell(replay *r)
{
    tn_replay *to = &r->result;
    to->op = r->file.site.op;
    to->tokens = op_tokens(&r->file.call);
    to->worst_then = r->file.facts.worst;
    text_escape(to->kernel, sizeof to->kernel, r->file.facts.kernel);
    text_escape(to->site, sizeof to->site, r->file.site.path);
    text_escape(to->then, sizeof to->then, r->file.facts.detail);
}

static void replay_close(replay *r)
{
    for (int i = 0; i < ALONE; i++)
        fenced_close_run(&r->alone[i]);
    for (int i = 0; i < TOGETHER; i++)
        fenced_close_run(&r->together[i]);
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
