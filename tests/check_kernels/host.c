/* What the checks need of the host. */
#include "host.h"

#include "eager/eager.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_plugin *plugins[64];
static size_t plugin_count;

__attribute__((weak)) void tn_register(const tn_plugin *plugin)
{
    if (plugin_count < 64)
        plugins[plugin_count++] = plugin;
}

static uint64_t mask = ~UINT64_C(0);

static uint64_t machine(void)
{
    uint64_t flags = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        flags |= TN_CPU_AVX2;
    if (__builtin_cpu_supports("avx512bw"))
        flags |= TN_CPU_AVX512;
    if (__builtin_cpu_supports("avx512bf16"))
        flags |= TN_CPU_AVX512_BF16;
#endif
    return flags;
}

__attribute__((weak)) uint64_t tn_cpu_flags(void)
{
    return machine() & mask;
}

void host_restrict(uint64_t flags)
{
    mask = flags;
}

uint64_t host_flags(void)
{
    return machine();
}

static int32_t threads = 1;

__attribute__((weak)) int32_t tn_thread_count(void)
{
    return threads;
}

void host_threads(int32_t count)
{
    threads = count;
}

__attribute__((weak)) void tn_parallel_for(int64_t count, int64_t grain,
                                           void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread),
                                           void *ctx)
{
    int64_t pieces = threads;
    if (grain > 0 && (count + grain - 1) / grain < pieces)
        pieces = (count + grain - 1) / grain;
    int64_t each = pieces ? (count + pieces - 1) / pieces : 0;
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < pieces; i++)
        if (i * each < count)
            body(ctx, i * each, (i + 1) * each < count ? (i + 1) * each : count, (int32_t)i);
}

__attribute__((weak)) const eager_op *eager_find(tn_op op)
{
    (void)op;
    return NULL;
}

bool host_open(const char *folder)
{
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/*.so", folder);
    glob_t found;
    if (glob(pattern, 0, NULL, &found)) {
        fprintf(stderr, "check_kernels: %s: no plugins; run 'make' first\n", folder);
        return false;
    }
    bool good = true;
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (!dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL)) {
            fprintf(stderr, "check_kernels: %s\n", dlerror());
            good = false;
        }
    globfree(&found);
    return good;
}

static bool takes(const tn_impl *impl, const tn_site *site)
{
    if (impl->op != site->op || (site->features & ~impl->match.features))
        return false;
    for (int a = 0; a < TN_AXIS_MAX; a++)
        if (site->meaning[a] && impl->match.takes[a] && !(impl->match.takes[a] & TN_TAKES(site->meaning[a])))
            return false;
    return true;
}

const tn_impl *host_impl(const char *kernel, const tn_site *site, char *reason, size_t size)
{
    for (size_t p = 0; p < plugin_count; p++)
        for (uint32_t k = 0; k < plugins[p]->kernel_count; k++) {
            const tn_kernel *kernel_k = &plugins[p]->kernels[k];
            if (strcmp(kernel_k->id, kernel) || kernel_k->device != TN_DEVICE_CPU)
                continue;
            for (uint32_t i = 0; i < kernel_k->impl_count; i++)
                if (takes(&kernel_k->impls[i], site))
                    return &kernel_k->impls[i];
        }
    snprintf(reason, size, "no implementation of %s takes the site", kernel);
    return NULL;
}

tn_status host_eager_open(host_eager_state *e, const tn_call *call, tn_error *err)
{
    *e = (host_eager_state){.op = eager_find(call->op)};
    if (!e->op)
        return TN_DECLINED;
    size_t bytes = e->op->scratch ? e->op->scratch(call) : 0;
    e->scratch = aligned_alloc(64, bytes / 64 * 64 + 64);
    return e->scratch ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

tn_status host_eager_forward(host_eager_state *e, const tn_call *call, tn_error *err)
{
    tn_call with = *call;
    with.plan = NULL;
    with.packed = NULL;
    with.scratch = e->scratch;
    return e->op->forward(&with, err);
}

void host_eager_close(host_eager_state *e)
{
    free(e->scratch);
    e->scratch = NULL;
}

tn_status host_eager(const tn_call *call, tn_error *err)
{
    host_eager_state e;
    tn_status status = host_eager_open(&e, call, err);
    if (status == TN_OK)
        status = host_eager_forward(&e, call, err);
    host_eager_close(&e);
    return status;
}
