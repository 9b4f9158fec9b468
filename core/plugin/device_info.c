/* What the host tells about a device before anything is opened on it. */
#include "base/structs.h"
#include "plugin/registry.h"

#include <string.h>

/* The version of a plugin that was loaded; "" when nothing is known of it. */
static const char *version_of(const char *file)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && strcmp(info.file, file) == 0)
            return info.version;
    return "";
}

static tn_status give(const tn_device *device, int32_t ordinal, tn_device_info *info, tn_error *err)
{
    tn_device_info own = {.size = sizeof own, .ordinal = ordinal, .name = device->name};
    own.summary = device->summary ? device->summary : "";
    own.file = registry_device_file(device->name);
    own.version = own.file ? version_of(own.file) : NULL;
    return structs_give(info, &own, sizeof own, "tn_device_info", err);
}

tn_status tn_device_get(const char *device, tn_device_info *info, tn_error *err)
{
    int32_t ordinal;
    const tn_device *found = registry_device(device, &ordinal, err);
    return found ? give(found, ordinal, info, err) : TN_E_KERNEL;
}

size_t tn_device_count(void)
{
    size_t count = 0;
    while (registry_device_at(count))
        count++;
    return count;
}

tn_status tn_device_at(size_t index, tn_device_info *info)
{
    const tn_device *device = registry_device_at(index);
    return device ? give(device, 0, info, NULL) : TN_E_USAGE;
}
