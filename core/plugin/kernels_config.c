/* The configuration object: what kernels.json says, and what the program overrides. */
#include "plugin/kernels_config.h"

#include "base/structs.h"
#include "plugin/environment.h"
#include "plugin/kernels_config_read.h"
#include "plugin/registry.h"
#include "plugin/spec.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- parts ------------------------------------------------------------------------------------------------ */

bool kernels_config_pair_add(config_pair **pairs, size_t *count, const char *key, const char *value)
{
    config_pair *more = realloc(*pairs, (*count + 1) * sizeof *more);
    if (!more)
        return false;
    *pairs = more;
    more[*count] = (config_pair){strdup(key), strdup(value)};
    (*count)++;
    return more[*count - 1].key && more[*count - 1].value;
}

static void pairs_free(config_pair *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(pairs[i].key);
        free(pairs[i].value);
    }
    free(pairs);
}

static const char *pair_find(const config_pair *pairs, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(pairs[i].key, key) == 0)
            return pairs[i].value;
    return NULL;
}

char *kernels_config_absolute(const char *base, const char *folder)
{
    char *joined = NULL;
    if (folder[0] == '/')
        joined = strdup(folder);
    else if (asprintf(&joined, "%s/%s", base, folder) < 0)
        return NULL;
    char *real = joined ? realpath(joined, NULL) : NULL;
    if (!real)
        return joined; /* the scan says that it does not exist */
    free(joined);
    return real;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

tn_config *tn_config_new(void)
{
    tn_config *config = calloc(1, sizeof *config);
    if (!config)
        return NULL;
    config->device = strdup("auto");
    config->max_packed_mb = -1;
    if (!config->device || tn_config_set_kernels(config, "auto", NULL) != TN_OK) {
        tn_config_free(config);
        return NULL;
    }
    return config;
}

void tn_config_free(tn_config *config)
{
    if (!config)
        return;
    text_list_clear(&config->folders);
    text_list_clear(&config->disable);
    pairs_free(config->options, config->option_count);
    pairs_free(config->pins, config->pin_count);
    lockfile_close(config->lock);
    free(config->file);
    spec_free(&config->spec);
    free(config->kernels);
    free(config->device);
    free(config);
}

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

static const int64_t MOST_MB = (int64_t)1 << 40;

tn_status tn_config_set_max_packed_mb(tn_config *config, int64_t mb, tn_error *err)
{
    if (!config)
        return structs_missing("config", err);
    if (mb < -1 || mb > MOST_MB)
        return tn_fail(err, TN_E_KERNEL, "max_packed_mb", "%lld is out of range; give 0 to %lld, or -1 for no bound",
                       (long long)mb, (long long)MOST_MB);
    config->max_packed_mb = mb;
    return TN_OK;
}

int64_t tn_config_max_packed_mb(const tn_config *config)
{
    return config ? config->max_packed_mb : -1;
}

size_t kernels_config_max_packed(const tn_config *config)
{
    return config->max_packed_mb < 0 ? SIZE_MAX : (size_t)config->max_packed_mb << 20;
}

/* ---- measuring -------------------------------------------------------------------------------------------------- */

tn_status tn_config_set_measure(tn_config *config, bool measure, tn_error *err)
{
    if (!config)
        return structs_missing("config", err);
    config->measure = measure ? CONFIG_MEASURE : CONFIG_MEASURE_NOT;
    return TN_OK;
}

tn_status tn_config_set_same_bits(tn_config *config, bool same_bits, tn_error *err)
{
    if (!config)
        return structs_missing("config", err);
    config->same_bits = same_bits;
    return TN_OK;
}

bool kernels_config_same_bits(const tn_config *config)
{
    return config && config->same_bits;
}

tn_status tn_config_set_exact(tn_config *config, bool exact, tn_error *err)
{
    if (!config)
        return structs_missing("config", err);
    config->exact = exact;
    return TN_OK;
}

bool kernels_config_exact(const tn_config *config)
{
    return config && config->exact;
}

bool kernels_config_measure(const tn_config *config)
{
    if (kernels_config_same_bits(config)) /* which leaves calls of some sizes to eager                  */
        return false;
    return config && config->measure != CONFIG_MEASURE_UNSAID ? config->measure == CONFIG_MEASURE
                                                              : environment_measure();
}

/* ---- a lock -------------------------------------------------------------------------------------------------- */

tn_status tn_config_set_lock(tn_config *config, const char *file, tn_error *err)
{
    if (!config || !file)
        return structs_missing(config ? "file" : "config", err);
    tn_error why = TN_ERROR_INIT;
    lockfile *lock = lockfile_read(file, &why);
    if (!lock)
        return tn_fail(err, why.code, why.where, "%s", why.message);
    lockfile_close(config->lock);
    config->lock = lock;
    return TN_OK;
}

const lockfile *kernels_config_lock(const tn_config *config)
{
    return config ? config->lock : NULL;
}

/* ---- overrides --------------------------------------------------------------------------------------------------- */

tn_status tn_config_add_plugins(tn_config *config, const char *folder, tn_error *err)
{
    if (!config)
        return structs_missing("config", err);
    if (!folder || !folder[0])
        return tn_fail(err, TN_E_KERNEL, "plugins", "no folder given; name the folder that holds the plugins");
    char *here = folder[0] == '/' ? strdup("/") : getcwd(NULL, 0);
    if (!here)
        return tn_fail(err, TN_E_KERNEL, "plugins", "no current folder to find %s from: %s", folder, strerror(errno));
    char *absolute = kernels_config_absolute(here, folder);
    bool added = absolute && text_list_add(&config->folders, absolute);
    config->folders_said |= added;
    free(absolute);
    free(here);
    return added ? TN_OK : tn_fail(err, TN_E_MEMORY, "plugins", "out of memory");
}

tn_status tn_config_set_plugins(tn_config *config, const char *folder, tn_error *err)
{
    if (!config)
        return structs_missing("config", err);
    text_list before = config->folders;
    config->folders = (text_list){0};
    tn_status status = tn_config_add_plugins(config, folder, err);
    if (status == TN_OK) {
        text_list_clear(&before);
    } else {
        text_list_clear(&config->folders);
        config->folders = before;
    }
    return status;
}

/* text is taken; NULL: no memory. */
static tn_status replace(char **with, char *text, const char *where, tn_error *err)
{
    if (!text)
        return tn_fail(err, TN_E_MEMORY, where, "out of memory");
    free(*with);
    *with = text;
    return TN_OK;
}

tn_status kernels_config_set_spec(tn_config *config, kernel_spec *spec, const char *key, tn_error *err)
{
    tn_status status = replace(&config->kernels, spec_text(spec), "kernels", err);
    if (status != TN_OK) {
        spec_free(spec);
        return status;
    }
    spec_free(&config->spec);
    config->spec = *spec;
    config->kernels_key = key;
    return TN_OK;
}

tn_status tn_config_set_kernels(tn_config *config, const char *spec, tn_error *err)
{
    kernel_spec parsed;
    if (!config || !spec)
        return structs_missing(config ? "kernels" : "config", err);
    tn_status status = spec_parse(spec, &parsed, err);
    return status == TN_OK ? kernels_config_set_spec(config, &parsed, NULL, err) : status;
}

tn_status tn_config_set_device(tn_config *config, const char *device, tn_error *err)
{
    char name[REGISTRY_NAME];
    int32_t ordinal;
    if (!config || !device)
        return structs_missing(config ? "device" : "config", err);
    /* Which devices there are is known after a scan only. */
    if (strcmp(device, "auto") != 0 && !registry_parse_device(device, name, &ordinal))
        return tn_fail(err, TN_E_KERNEL, "device", "'%.64s' is not a device; give auto, NAME or NAME:ORDINAL", device);
    return replace(&config->device, strdup(device), "device", err);
}

/* ---- questions -------------------------------------------------------------------------------------------------- */

const char *tn_config_file(const tn_config *config)
{
    return config ? config->file : NULL;
}

const char *tn_config_kernels(const tn_config *config)
{
    return config ? config->kernels : NULL;
}

const char *tn_config_device(const tn_config *config)
{
    return config ? config->device : NULL;
}

config_verify kernels_config_verify(const tn_config *config)
{
    return config->verify;
}

const char *kernels_config_disabled(const tn_config *config, const char *id)
{
    for (size_t i = 0; i < config->disable.count; i++)
        if (fnmatch(config->disable.items[i], id, 0) == 0)
            return config->disable.items[i];
    return NULL;
}

const char *kernels_config_source(const tn_config *config)
{
    return config->kernels_key ? config->file : NULL;
}

const char *kernels_config_key(const tn_config *config)
{
    return config->kernels_key;
}

const kernel_spec *kernels_config_spec(const tn_config *config)
{
    return &config->spec;
}

const char *kernels_config_modules(const tn_config *config, const char *id)
{
    const char *patterns = pair_find(config->options, config->option_count, id);
    return patterns && patterns[0] ? patterns : NULL;
}

const char *kernels_config_pin(const tn_config *config, const char *file_name)
{
    return pair_find(config->pins, config->pin_count, file_name);
}

bool kernels_config_has_pins(const tn_config *config)
{
    return config->pin_count > 0;
}

size_t kernels_config_folders(const tn_config *config)
{
    return config->folders.count;
}

const char *kernels_config_folder(const tn_config *config, size_t index)
{
    return index < config->folders.count ? config->folders.items[index] : NULL;
}

size_t tn_config_folder_count(const tn_config *config)
{
    return config ? kernels_config_folders(config) : 0;
}

const char *tn_config_folder(const tn_config *config, size_t index)
{
    return config ? kernels_config_folder(config, index) : NULL;
}

bool tn_config_says_plugins(const tn_config *config)
{
    return config && config->folders_said;
}
