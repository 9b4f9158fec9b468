/* What the checks need of the host: its own loader, registry, selection and eager operations. */
#include "host.h"
#include "eager/eager.h"

#include "device/cpu_flags.h"
#include "op/match.h"
#include "run/run.h"
#include "plugin/registry.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

bool host_open(const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    char path[PATH_MAX];
    if (!realpath(folder, path)) {
        fprintf(stderr, "check_kernels: %s: no such folder; run 'make' first\n", folder);
        return false;
    }
    tn_config *config = tn_config_new();
    if (!config || tn_config_set_plugins(config, path, &err) != TN_OK || tn_scan(config, &err) != TN_OK) {
        fprintf(stderr, "check_kernels: %s: %s\n", err.where, err.message);
        tn_config_free(config);
        return false;
    }
    tn_config_free(config);
    bool good = tn_plugin_count() > 0;
    if (!good)
        fprintf(stderr, "check_kernels: %s: no plugins; run 'make' first\n", path);
    for (size_t i = 0; i < tn_plugin_count(); i++) {
        tn_plugin_info info = {.size = sizeof info};
        if (tn_plugin_get(i, &info) == TN_OK && info.state != TN_PLUGIN_LOADED) {
            fprintf(stderr, "check_kernels: %s: %s\n", info.file, info.reason);
            good = false;
        }
    }
    return good;
}

const tn_impl *host_impl(const char *device, const char *kernel, const tn_site *site, char *reason, size_t size)
{
    const registry_kernel *k = registry_find(device, kernel);
    if (!k) {
        snprintf(reason, size, "kernel '%s' for device %s is in no plugin", kernel, device);
        return NULL;
    }
    snprintf(reason, size, "kernel '%s' has no implementation of %s", kernel, tn_op_name(site->op));
    for (uint32_t i = 0; i < k->kernel.impl_count; i++) {
        const tn_impl *impl = &k->kernel.impls[i];
        if (impl->op == site->op && match_site(site, impl, reason, size) == TN_OK)
            return impl;
    }
    return NULL;
}

void host_restrict(uint64_t flags)
{
    cpu_flags_restrict(flags);
}

void host_emulate(uint64_t flags)
{
    cpu_flags_emulate(flags);
}

uint64_t host_flags(void)
{
    return tn_cpu_flags();
}

void host_threads(int32_t count)
{
    threads_set(count);
    threads_strict(true); /* as many as asked for take part, and are timed */
}

static tn_status eager_step(arena *a, const tn_call *call, tn_error *err)
{
    tn_call with = *call;
    with.plan = NULL;
    with.packed = NULL;
    return call->grads ? run_eager_backward(&cpu_device, a, &with, err) : run_eager_call(&cpu_device, a, &with, err);
}

tn_status host_eager_open(host_eager_state *e, const tn_call *call, tn_error *err)
{
    arena measure;
    tn_status status = arena_init(&measure, &cpu_device, 0, err);
    *e = (host_eager_state){NULL};
    if (status == TN_OK)
        status = eager_step(&measure, call, err);
    if (status != TN_OK)
        return status;
    e->arena = calloc(1, sizeof(arena));
    status = e->arena ? arena_init(e->arena, &cpu_device, measure.peak + 64, err) : TN_E_MEMORY;
    if (status != TN_OK) {
        free(e->arena);
        e->arena = NULL;
    }
    return status;
}

tn_status host_eager_run(host_eager_state *e, const tn_call *call, tn_error *err)
{
    size_t mark = arena_mark(e->arena);
    tn_status status = eager_step(e->arena, call, err);
    arena_release(e->arena, mark);
    return status;
}

void host_eager_close(host_eager_state *e)
{
    if (e->arena)
        arena_close(e->arena);
    free(e->arena);
    e->arena = NULL;
}

tn_status host_eager(const tn_call *call, tn_error *err)
{
    host_eager_state e;
    tn_status status = host_eager_open(&e, call, err);
    if (status == TN_OK)
        status = host_eager_run(&e, call, err);
    host_eager_close(&e);
    return status;
}
