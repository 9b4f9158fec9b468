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

tn_status tn_device_get(const char *device, tn_device_info *info, tn_error *err)
{
    tn_device_info own = {.size = sizeof own};
    const tn_device *found = registry_device(device, &own.ordinal, err);
    if (!found)
        return TN_E_KERNEL;
    own.name = found->name;
    own.summary = found->summary ? found->summary : "";
    own.file = registry_device_file(found->name);
    own.version = own.file ? version_of(own.file) : NULL;
    return structs_give(info, &own, sizeof own, "tn_device_info", err);
}
