/* tn_kernels_available and tn_kernels_elsewhere: what was registered, as callers see it. */
#include "base/structs.h"
#include "eager/eager.h"
#include "plugin/plugins.h"
#include "plugin/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a list says of one kernel, reason being why it is not available; NULL: that is asked. */
static tn_kernel_info describe(registry_kernel *k, const char *reason)
{
    if (!reason)
        registry_probe(k, NULL);
    return (tn_kernel_info){.size = sizeof(tn_kernel_info),
                            .id = k->kernel.id,
                            .version = k->kernel.version,
                            .summary = k->kernel.summary,
                            .file = k->file,
                            .device = k->kernel.device,
                            .available = !reason && k->available,
                            .reason = reason ? reason : k->reason};
}

static tn_status start(tn_kernel_info ***list, size_t *count, tn_error *err)
{
    if (!list || !count)
        return structs_missing("list", err);
    *list = NULL;
    *count = 0;
    return TN_OK;
}

static tn_status no_memory(tn_kernel_info **infos, tn_error *err)
{
    free(infos);
    return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory");
}

tn_status tn_kernels_available(const char *device, tn_kernel_info ***list, size_t *count, tn_error *err)
{
    tn_status status = start(list, count, err);
    if (status != TN_OK)
        return status;
    int32_t ordinal;
    char name[REGISTRY_NAME];
    tn_error missing = TN_ERROR_INIT;
    const tn_device *machine = registry_device(device, &ordinal, &missing);
    bool known = machine || registry_parse_device(device, name, &ordinal);
    if (machine)
        snprintf(name, sizeof name, "%s", machine->name);
    size_t n = known ? registry_count(name) : 0;
    /* A device that is absent may still have kernels to list, none of them available. */
    if (!machine && n == 0)
        return tn_fail(err, missing.code, missing.where, "%s", missing.message);
    tn_kernel_info **infos = structs_list(n, sizeof **infos);
    const char *absent = machine ? NULL : plugins_intern(missing.message);
    if (!infos || (!machine && !absent))
        return no_memory(infos, err);
    for (size_t i = 0; i < n; i++)
        *infos[i] = describe(registry_at(name, i), absent);
    *list = infos;
    *count = n;
    return TN_OK;
}

/* Why a kernel of another device is none here. */
static const char *place_text(const char *of, const char *here)
{
    char reason[128];
    snprintf(reason, sizeof reason, "for device '%s', not for '%s'", of, here);
    return plugins_intern(reason);
}

tn_status tn_kernels_elsewhere(const char *device, tn_kernel_info ***list, size_t *count, tn_error *err)
{
    tn_status status = start(list, count, err);
    if (status != TN_OK)
        return status;
    int32_t ordinal;
    char name[REGISTRY_NAME];
    bool builtin = !device || strcmp(device, "auto") == 0;
    if (!registry_parse_device(builtin ? eager_cpu.name : device, name, &ordinal))
        return tn_fail(err, TN_E_KERNEL, "device", "'%.64s' is not a device", device);
    size_t all = 0, used = 0;
    while (registry_any(all))
        all++;
    tn_kernel_info **infos = structs_list(all, sizeof **infos);
    bool told = infos;
    for (size_t i = 0; told && i < all; i++) {
        registry_kernel *k = registry_any(i);
        if (strcmp(k->kernel.device, name) == 0)
            continue;
        const char *reason = place_text(k->kernel.device, name);
        told = reason;
        if (told)
            *infos[used++] = describe(k, reason);
    }
    if (!told)
        return no_memory(infos, err);
    *list = infos;
    *count = used;
    return TN_OK;
}
