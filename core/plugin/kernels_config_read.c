/* Finding and reading kernels.json. Strict: a key that is not known is an error with the nearest one that is, since a
 * misspelt option that is silently ignored is worse. */
#include "plugin/kernels_config_read.h"

#include "plugin/environment.h"
#include "plugin/kernels_config.h"
#include "plugin/kernels_json.h"
#include "plugin/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef TN_SYSCONFDIR
#define TN_SYSCONFDIR "/usr/local/etc"
#endif
static const char installed_default[] = TN_SYSCONFDIR "/tenon/kernels.json";

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* ---- one function per key ------------------------------------------------------------------------------------- */

static tn_status read_plugins(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_status status = kernels_json_strings(value, "plugins", path, err);
    if (status != TN_OK)
        return status;
    char *file = realpath(path, NULL);
    if (!file)
        return tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
    *strrchr(file, '/') = '\0'; /* "" for the root: folders then begin with '/' all the same */
    size_t i;
    json_t *item;
    json_array_foreach (value, i, item) {
        char *folder = kernels_config_absolute(file, json_string_value(item));
        if (!folder || !text_list_add(&config->folders, folder))
            status = kernels_json_no_memory(path, err);
        free(folder);
    }
    free(file);
    config->folders_said = true;
    return status;
}

/* spec is taken. One key of a file says which kernels. */
static tn_status take_spec(tn_config *config, kernel_spec *spec, const char *key, const char *path, tn_error *err)
{
    if (!config->kernels_key)
        return kernels_config_set_spec(config, spec, key, err);
    spec_free(spec);
    return tn_fail(err, TN_E_KERNEL, path, "keys '%s' and '%s' both say which kernels; keep one of them",
                   config->kernels_key, key);
}

static tn_status set_kernels(tn_config *config, const char *text, const char *key, const char *path, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    kernel_spec spec;
    tn_status status = kernels_json_as_key(spec_parse(text, &spec, &why), &why, key, path, err);
    return status == TN_OK ? take_spec(config, &spec, key, path, err) : status;
}

static tn_status read_kernels(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    if (json_is_boolean(value))
        return set_kernels(config, json_is_true(value) ? "auto" : "none", "kernels", path, err);
    if (json_is_string(value))
        return set_kernels(config, json_string_value(value), "kernels", path, err);
    if (!json_is_array(value))
        return kernels_json_wrong_type(path, "kernels", "\"auto\", \"none\", or ids as a list or in one string", value,
                                       err);
    char *joined = NULL;
    tn_status status = kernels_json_join(value, "kernels", path, &joined, err);
    if (status == TN_OK)
        status = set_kernels(config, joined[0] ? joined : "none", "kernels", path, err);
    free(joined);
    return status;
}

static tn_status read_device(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!json_is_string(value))
        return kernels_json_wrong_type(path, "device", "a string", value, err);
    return kernels_json_as_key(tn_config_set_device(config, json_string_value(value), &why), &why, "device", path, err);
}

static tn_status read_verify(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    static const char *const names[] = {"first-use", "all", "never"}; /* in the order of config_verify */
    if (!json_is_string(value))
        return kernels_json_wrong_type(path, "verify", "a string", value, err);
    for (int i = 0; i < 3; i++) {
        if (strcmp(json_string_value(value), names[i]) == 0) {
            config->verify = (config_verify)i;
            return TN_OK;
        }
    }
    return tn_fail(err, TN_E_KERNEL, path, "key 'verify': '%s' is none of first-use, all, never",
                   json_string_value(value));
}

static tn_status read_max_packed_mb(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!json_is_integer(value))
        return kernels_json_wrong_type(path, "max_packed_mb", "an integer", value, err);
    return kernels_json_as_key(tn_config_set_max_packed_mb(config, json_integer_value(value), &why), &why,
                               "max_packed_mb", path, err);
}

static tn_status read_disable(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_status status = kernels_json_strings(value, "disable", path, err);
    size_t i;
    json_t *item;
    if (status == TN_OK)
        json_array_foreach (value, i, item)
            if (!text_list_add(&config->disable, json_string_value(item)))
                status = kernels_json_no_memory(path, err);
    return status;
}

static tn_status read_kernel_config(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    kernel_spec spec = {.mode = SPEC_NONE};
    if (!json_is_object(value) && !json_is_null(value))
        return kernels_json_wrong_type(path, "kernel_config", "an object with the key 'name', or null", value, err);
    tn_status status = json_is_object(value) ? kernels_config_read_object(value, path, &spec, err) : TN_OK;
    if (status == TN_OK)
        return take_spec(config, &spec, "kernel_config", path, err);
    spec_free(&spec);
    return status;
}

/* What LLaMA-Factory v0 has instead. */
static tn_status read_use_v1_kernels(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    bool flag;
    if (!kernels_json_flag(value, &flag))
        return kernels_json_wrong_type(path, "use_v1_kernels", "true or false", value, err);
    return set_kernels(config, flag ? "auto" : "none", "use_v1_kernels", path, err);
}

static tn_status read_options(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    static const char *const names[] = {"modules"};
    const char *id, *key;
    json_t *option, *modules;
    if (!json_is_object(value))
        return kernels_json_wrong_type(path, "options", "an object of kernel ids", value, err);
    json_object_foreach ((json_t *)(uintptr_t)value, id, option) {
        if (!json_is_object(option))
            return kernels_json_wrong_type(path, id, "an object", option, err);
        /* Without patterns it restricts nothing, but the id is looked at. */
        if (json_object_size(option) == 0 && !kernels_config_pair_add(&config->options, &config->option_count, id, ""))
            return kernels_json_no_memory(path, err);
        json_object_foreach (option, key, modules) {
            if (strcmp(key, "modules") != 0)
                return kernels_json_unknown_key(key, id, names, 1, path, err);
            char *joined = NULL;
            tn_status status = kernels_json_join(modules, "modules", path, &joined, err);
            if (status == TN_OK && !joined[0])
                status = tn_fail(err, TN_E_KERNEL, path, "key 'modules' of '%s' is empty; use disable instead", id);
            if (status == TN_OK && !kernels_config_pair_add(&config->options, &config->option_count, id, joined))
                status = kernels_json_no_memory(path, err);
            free(joined);
            if (status != TN_OK)
                return status;
        }
    }
    return TN_OK;
}

static tn_status read_pins(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    const char *name;
    json_t *pin;
    if (!json_is_object(value))
        return kernels_json_wrong_type(path, "pins", "an object of file names", value, err);
    json_object_foreach ((json_t *)(uintptr_t)value, name, pin) {
        const char *text = json_string_value(pin);
        if (!text)
            return kernels_json_wrong_type(path, name, "a string", pin, err);
        if (strncmp(text, "sha256:", 7) != 0 || strlen(text) != 7 + 64 ||
            strspn(text + 7, "0123456789abcdefABCDEF") != 64)
            return tn_fail(err, TN_E_KERNEL, path, "pin of '%s': expected sha256: and 64 hexadecimal digits, got '%s'",
                           name, text);
        if (strchr(name, '/'))
            return tn_fail(err, TN_E_KERNEL, path, "pin of '%s': give the file's name without a folder", name);
        if (!kernels_config_pair_add(&config->pins, &config->pin_count, name, text))
            return kernels_json_no_memory(path, err);
    }
    return TN_OK;
}

static tn_status read_measure(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    if (!json_is_boolean(value))
        return kernels_json_wrong_type(path, "measure", "true or false", value, err);
    return tn_config_set_measure(config, json_is_true(value), err);
}

static tn_status read_same_bits(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    if (!json_is_boolean(value))
        return kernels_json_wrong_type(path, "same_bits", "true or false", value, err);
    return tn_config_set_same_bits(config, json_is_true(value), err);
}

static tn_status read_exact(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    if (!json_is_boolean(value))
        return kernels_json_wrong_type(path, "exact", "true or false", value, err);
    return tn_config_set_exact(config, json_is_true(value), err);
}

/* ---- the file -------------------------------------------------------------------------------------------------------
 */

static tn_status read_root(tn_config *config, const json_t *root, const char *path, tn_error *err)
{
    static const char *const names[] = {"plugins", "kernels",       "device",        "verify",  "max_packed_mb",
                                        "disable", "options",       "pins",          "measure", "same_bits",
                                        "exact",   "kernel_config", "use_v1_kernels"};
    static tn_status (*const readers[])(tn_config *, const json_t *, const char *, tn_error *) = {
        read_plugins, read_kernels, read_device,    read_verify, read_max_packed_mb, read_disable,       read_options,
        read_pins,    read_measure, read_same_bits, read_exact,  read_kernel_config, read_use_v1_kernels};
    enum { KEYS = sizeof names / sizeof names[0] };
    const char *key;
    json_t *value;
    if (!json_is_object(root))
        return tn_fail(err, TN_E_KERNEL, path, "expected an object, got %s", kernels_json_type(root));
    json_object_foreach ((json_t *)(uintptr_t)root, key, value) {
        int i = 0;
        while (i < KEYS && strcmp(key, names[i]) != 0)
            i++;
        if (i == KEYS)
            return kernels_json_unknown_key(key, NULL, names, KEYS, path, err);
        tn_status status = readers[i](config, value, path, err);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

/* The file's text. Owned. */
static tn_status read_text(const char *path, char **text, size_t *size, tn_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s; correct the path", strerror(errno));
    tn_status status = TN_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        status = tn_fail(err, TN_E_KERNEL, path, "not a regular file; give a kernels.json");
    else if (st.st_size > CONFIG_BYTES_MAX)
        status = tn_fail(err, TN_E_KERNEL, path, "larger than 1 MiB; not a kernels.json");
    *text = status == TN_OK ? malloc(CONFIG_BYTES_MAX) : NULL;
    if (status == TN_OK && !*text)
        status = kernels_json_no_memory(path, err);
    *size = 0;
    while (status == TN_OK && *size < CONFIG_BYTES_MAX) {
        ssize_t n = read(fd, *text + *size, CONFIG_BYTES_MAX - *size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
        if (n <= 0)
            break;
        *size += (size_t)n;
    }
    close(fd);
    return status;
}

static tn_status read_file(tn_config *config, const char *path, tn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    json_t *root = NULL;
    tn_status status = read_text(path, &text, &size, err);
    if (status == TN_OK)
        status = kernels_json_parse(text, size, path, "", &root, err);
    if (status == TN_OK)
        status = read_root(config, root, path, err);
    json_decref(root);
    free(text);
    if (status == TN_OK && !(config->file = strdup(path)))
        status = kernels_json_no_memory(path, err);
    return status;
}

/* The first place that has a file, or that the user named; "" when there is none. */
static void find_file(const char *path, char *found, size_t size)
{
    const char *named = secure_getenv("TENON_CONFIG"), *xdg = secure_getenv("XDG_CONFIG_HOME");
    const char *home = secure_getenv("HOME");
    found[0] = '\0';
    if (path || (named && named[0])) {
        snprintf(found, size, "%s", path ? path : named);
        return;
    }
    if (xdg && xdg[0] == '/')
        snprintf(found, size, "%s/tenon/kernels.json", xdg);
    else if (home && home[0] == '/')
        snprintf(found, size, "%s/.config/tenon/kernels.json", home);
    if (found[0] && access(found, F_OK) == 0)
        return;
    snprintf(found, size, "%s", access(installed_default, F_OK) == 0 ? installed_default : "");
}

tn_config *tn_config_load(const char *path, tn_error *err)
{
    char found[PATH_MAX];
    if (environment_check(err) != TN_OK)
        return NULL;
    find_file(path, found, sizeof found);
    tn_config *config = tn_config_new();
    if (!config) {
        tn_fail(err, TN_E_MEMORY, found, "out of memory");
        return NULL;
    }
    bool asked = path || found[0];
    if (asked && read_file(config, found, err) != TN_OK) {
        tn_config_free(config);
        return NULL;
    }
    return config;
}
