/* Does what kernels.json names exist? A restriction for a kernel that is misspelt would vanish without a word. */
#include "base/nearest.h"
#include "plugin/kernels_config.h"
#include "plugin/kernels_config_read.h"
#include "plugin/plugins.h"
#include "plugin/registry.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Kernels of every device are known, every file that a scan found, whatever became of it,
 * and every library that came in with one. */
typedef struct known {
    const tn_config *config;
    bool complete; /* no plugin failed that may have brought what is missing                       */
    text_list *warnings;
} known;

static bool is_complete(void)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK &&
            (info.state == TN_PLUGIN_REFUSED || info.state == TN_PLUGIN_QUARANTINED))
            return false;
    return registry_any(0) != NULL;
}

static bool has_kernel(const char *pattern, bool exact)
{
    registry_kernel *k;
    for (size_t i = 0; (k = registry_any(i)); i++)
        if (exact ? !strcmp(pattern, k->kernel.id) : !fnmatch(pattern, k->kernel.id, 0))
            return true;
    return false;
}

/* An error where the name must be wrong, else a warning. */
static tn_status missing(const known *k, bool is_error, const char *key, const char *name, const char *what,
                         const char *near, tn_error *err)
{
    char line[768];
    text_cut(line, sizeof line, "key '%s': '%.200s' %s%s%.200s%s; correct or remove it", key, name, what,
             near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
    if (is_error)
        return tn_fail(err, TN_E_KERNEL, k->config->file, "%s", line);
    text warning = {0};
    text_add(&warning, "%s: %s", k->config->file, line);
    bool added = warning.data && !warning.failed && text_list_add(k->warnings, warning.data);
    free(warning.data);
    return added ? TN_OK : tn_fail(err, TN_E_MEMORY, k->config->file, "out of memory");
}

static const char *file_name(const tn_plugin_info *info)
{
    const char *slash = strrchr(info->file, '/');
    return slash ? slash + 1 : info->file;
}

static tn_status check_pin(const known *k, const char *pinned, tn_error *err)
{
    size_t count = 0, all = tn_plugin_count();
    tn_plugin_info info = {.size = sizeof info};
    const char **names = calloc(all + 1, sizeof *names);
    bool found = plugins_has_library(pinned);
    if (!names)
        return tn_fail(err, TN_E_MEMORY, k->config->file, "out of memory");
    for (size_t i = 0; i < all; i++)
        if (tn_plugin_get(i, &info) == TN_OK) {
            names[count++] = file_name(&info);
            found |= !strcmp(pinned, names[count - 1]);
        }
    tn_status status = TN_OK;
    if (!found)
        status = missing(k, k->complete, "pins", pinned, "is no file of the plugin folders",
                         nearest_of(pinned, names, count), err);
    free(names);
    return status;
}

tn_status kernels_config_check(const tn_config *config, text_list *warnings, tn_error *err)
{
    if (!config || !config->file)
        return TN_OK;
    known k = {config, is_complete(), warnings};
    tn_status status = TN_OK;
    for (size_t i = 0; i < config->option_count && status == TN_OK; i++) {
        const char *id = config->options[i].key;
        if (!has_kernel(id, true))
            status = missing(&k, k.complete, "options", id, "is no kernel that a plugin brought",
                             registry_nearest(NULL, id), err);
    }
    for (size_t i = 0; i < config->disable.count && status == TN_OK; i++) {
        const char *pattern = config->disable.items[i];
        bool plain = !strpbrk(pattern, "*?[");
        if (!has_kernel(pattern, false))
            status = missing(&k, k.complete && plain, "disable", pattern,
                             plain ? "is no kernel that a plugin brought" : "matches no kernel that a plugin brought",
                             registry_nearest(NULL, pattern), err);
    }
    for (size_t i = 0; i < config->pin_count && status == TN_OK; i++)
        status = check_pin(&k, config->pins[i].key, err);
    return status;
}
