/* Reading kernels.json. Strict: a key that is not known is an error with the nearest one that is, since a misspelt
 * option that is silently ignored is worse. */
#include "plugin/kernels_config.h"
#include "base/json_memory.h"
#include "base/nearest.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

static tn_status wrong_type(const char *path, const char *key, const char *want, const json_t *got, tn_error *err)
{
    return tn_fail(err, TN_E_KERNEL, path, "key '%s': expected %s, got %s", key, want, type_name(got));
}

static tn_status no_memory(const char *path, tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, path, "out of memory");
}

/* Every element of a list is a string that is not empty. */
static tn_status check_strings(const json_t *list, const char *key, const char *path, tn_error *err)
{
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return wrong_type(path, key, "a list of strings", list, err);
    json_array_foreach (list, i, item) {
        if (!json_is_string(item))
            return tn_fail(err, TN_E_KERNEL, path, "key '%s': element %zu: expected a string, got %s", key, i,
                           type_name(item));
        if (json_string_length(item) == 0)
            return tn_fail(err, TN_E_KERNEL, path, "key '%s': element %zu is empty", key, i);
    }
    return TN_OK;
}

/* The elements, separated by commas, which none of them may contain. Owned. */
static tn_status join(const json_t *list, const char *key, const char *path, char **joined, tn_error *err)
{
    tn_status status = check_strings(list, key, path, err);
    if (status != TN_OK)
        return status;
    size_t i, size = 1;
    json_t *item;
    json_array_foreach (list, i, item) {
        if (strchr(json_string_value(item), ','))
            return tn_fail(err, TN_E_KERNEL, path, "key '%s': element %zu contains a comma; make it two elements", key,
                           i);
        size += json_string_length(item) + 1;
    }
    char *at = *joined = malloc(size);
    if (!at)
        return no_memory(path, err);
    json_array_foreach (list, i, item) {
        if (i > 0)
            *at++ = ',';
        memcpy(at, json_string_value(item), json_string_length(item));
        at += json_string_length(item);
    }
    *at = '\0';
    return TN_OK;
}

static tn_status parse_json(const char *text, size_t size, const char *path, const char *advice, json_t **root,
                            tn_error *err)
{
    json_error_t where;
    json_memory_watch();
    *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (json_memory_failed())
        return no_memory(path, err);
    if (!*root)
        return tn_fail(err, TN_E_KERNEL, path, "line %d, column %d: %s%s", where.line, where.column, where.text,
                       advice);
    return TN_OK;
}

/* ---- one function per key ------------------------------------------------------------------------------------- */

static tn_status read_plugins(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_status status = check_strings(value, "plugins", path, err);
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
            status = no_memory(path, err);
        free(folder);
    }
    free(file);
    config->folders_said = true;
    return status;
}

/* An error of a setter names the option; here it is a key of a file. */
static tn_status as_key(tn_status status, const tn_error *why, const char *key, const char *path, tn_error *err)
{
    return status == TN_OK ? TN_OK : tn_fail(err, status, path, "key '%s': %s", key, why->message);
}

/* spec is taken. One key of a file says which kernels. */
static tn_status take_spec(tn_config *config, select_spec *spec, const char *key, const char *path, tn_error *err)
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
    select_spec spec;
    tn_status status = as_key(spec_parse(text, &spec, &why), &why, key, path, err);
    return status == TN_OK ? take_spec(config, &spec, key, path, err) : status;
}

static tn_status read_kernels(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    if (json_is_boolean(value))
        return set_kernels(config, json_is_true(value) ? "auto" : "none", "kernels", path, err);
    if (json_is_string(value))
        return set_kernels(config, json_string_value(value), "kernels", path, err);
    if (!json_is_array(value))
        return wrong_type(path, "kernels", "\"auto\", \"none\", or ids as a list or in one string", value, err);
    char *joined = NULL;
    tn_status status = join(value, "kernels", path, &joined, err);
    if (status == TN_OK)
        status = set_kernels(config, joined[0] ? joined : "none", "kernels", path, err);
    free(joined);
    return status;
}

static tn_status read_device(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!json_is_string(value))
        return wrong_type(path, "device", "a string", value, err);
    return as_key(tn_config_set_device(config, json_string_value(value), &why), &why, "device", path, err);
}

static tn_status read_verify(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    static const char *const names[] = {"first-use", "all", "never"}; /* in the order of config_verify */
    if (!json_is_string(value))
        return wrong_type(path, "verify", "a string", value, err);
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
        return wrong_type(path, "max_packed_mb", "an integer", value, err);
    return as_key(tn_config_set_max_packed_mb(config, json_integer_value(value), &why), &why, "max_packed_mb", path,
                  err);
}

static tn_status read_disable(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    tn_status status = check_strings(value, "disable", path, err);
    size_t i;
    json_t *item;
    if (status == TN_OK)
        json_array_foreach (value, i, item)
            if (!text_list_add(&config->disable, json_string_value(item)))
                status = no_memory(path, err);
    return status;
}

static tn_status unknown_key(const char *key, const char *inside, const char *const *names, size_t count,
                             const char *path, tn_error *err)
{
    const char *near = nearest_of(key, names, count);
    return tn_fail(err, TN_E_KERNEL, path, "unknown key '%s'%s%s%s%s%s; correct or remove it", key,
                   inside ? " in " : "", inside ? inside : "", near ? ", did you mean '" : "", near ? near : "",
                   near ? "'?" : "");
}

/* ---- LLaMA-Factory's kernel_config ------------------------------------------------------------------------------ */

/* Strings of true and false are converted there, too. */
static bool is_flag(const json_t *value, bool *flag)
{
    const char *word = json_string_value(value);
    *flag = json_is_true(value) || (word && !strcasecmp(word, "true"));
    return *flag || json_is_false(value) || (word && !strcasecmp(word, "false"));
}

static tn_status add_note(select_spec *spec, const char *note, const char *path, tn_error *err)
{
    return text_list_add(&spec->notes, note) ? TN_OK : no_memory(path, err);
}

static tn_status read_name(const json_t *value, const char *path, select_spec *spec, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!value)
        return tn_fail(err, TN_E_KERNEL, path, "kernel_config has no key 'name'; write \"auto\" or ids like \"a,b\"");
    if (!json_is_string(value))
        return wrong_type(path, "name", "\"auto\" or ids in one string", value, err);
    return as_key(spec_parse_list(json_string_value(value), spec, &why), &why, "name", path, err);
}

/* Ids are those that "auto" stands for, as they were before July 2026. */
static tn_status include(select_spec *spec, select_spec *ids, const char *path, tn_error *err)
{
    if (ids->mode == SELECT_NONE)
        return tn_fail(err, TN_E_KERNEL, path,
                       "key 'include_kernels' leaves no kernels; write none as 'name', or leave the key out");
    if (ids->mode == SELECT_AUTO && ids->count + ids->without_count == 0)
        return TN_OK;
    if (spec->mode != SELECT_AUTO || spec->count + spec->without_count > 0)
        return tn_fail(err, TN_E_KERNEL, path,
                       "key 'include_kernels' has ids, which go with auto alone as 'name'; write them into 'name'");
    select_spec all = *spec;
    *spec = *ids;
    *ids = all;
    return TN_OK;
}

static tn_status read_include(const json_t *value, const char *path, select_spec *spec, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    select_spec ids = {.mode = SELECT_NONE};
    char *joined = NULL;
    bool flag = false;
    tn_status status = TN_OK;
    const char *text = json_string_value(value);
    if (json_is_array(value))
        status = join(value, "include_kernels", path, &joined, err);
    if (joined)
        text = joined[0] ? joined : "none";
    else if (is_flag(value, &flag))
        text = flag ? "auto" : "none";
    if (status == TN_OK && !text)
        status = wrong_type(path, "include_kernels", "\"auto\", true, or ids as a list or in one string", value, err);
    if (status == TN_OK)
        status = as_key(spec_parse_list(text, &ids, &why), &why, "include_kernels", path, err);
    if (status == TN_OK)
        status = include(spec, &ids, path, err);
    spec_free(&ids);
    free(joined);
    return status;
}

static tn_status read_chunk_size(const json_t *value, const char *path, select_spec *spec, tn_error *err)
{
    static const char *const sizes[] = {"16", "32", "64"};
    const char *text = json_string_value(value);
    for (int i = 0; i < 3; i++)
        if (text ? !strcmp(text, sizes[i]) : json_integer_value(value) == 16 << i)
            return add_note(spec, "kernels: chunk_size has no effect here: kernels choose the sizes of their chunks",
                            path, err);
    return tn_fail(err, TN_E_KERNEL, path, "key 'chunk_size' may be 16, 32 or 64; write one of them");
}

static tn_status read_require_logits(const json_t *value, const char *path, select_spec *spec, tn_error *err)
{
    bool flag;
    if (!is_flag(value, &flag))
        return wrong_type(path, "require_logits", "true or false", value, err);
    return add_note(spec, "kernels: require_logits has no effect here: there are always logits", path, err);
}

/* Into a spec that is free to be filled in; the caller frees it where that fails. */
static tn_status read_object(const json_t *object, const char *path, select_spec *spec, tn_error *err)
{
    static const char *const names[] = {"name", "include_kernels", "chunk_size", "require_logits"};
    static tn_status (*const readers[])(const json_t *, const char *, select_spec *,
                                        tn_error *) = {read_name, read_include, read_chunk_size, read_require_logits};
    enum { KEYS = sizeof names / sizeof names[0] };
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) {
        int i = 0;
        while (i < KEYS && strcmp(key, names[i]) != 0)
            i++;
        if (i == KEYS)
            return unknown_key(key, "kernel_config", names, KEYS, path, err);
    }
    tn_status status = TN_OK;
    for (int i = 0; i < KEYS && status == TN_OK; i++)
        if (i == 0 || json_object_get(object, names[i]))
            status = readers[i](json_object_get(object, names[i]), path, spec, err);
    return status;
}

tn_status kernels_config_object(const char *text, select_spec *spec, tn_error *err)
{
    json_t *root = NULL;
    *spec = (select_spec){.mode = SELECT_NONE};
    tn_status status =
        parse_json(text, strlen(text), "kernels", "; write JSON as in '{\"name\": \"auto\"}'", &root, err);
    if (status == TN_OK)
        status = read_object(root, "kernels", spec, err);
    json_decref(root);
    if (status != TN_OK)
        spec_free(spec);
    return status;
}

static tn_status read_kernel_config(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    select_spec spec = {.mode = SELECT_NONE};
    if (!json_is_object(value) && !json_is_null(value))
        return wrong_type(path, "kernel_config", "an object with the key 'name', or null", value, err);
    tn_status status = json_is_object(value) ? read_object(value, path, &spec, err) : TN_OK;
    if (status == TN_OK)
        return take_spec(config, &spec, "kernel_config", path, err);
    spec_free(&spec);
    return status;
}

/* What LLaMA-Factory v0 has instead. */
static tn_status read_use_v1_kernels(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    bool flag;
    if (!is_flag(value, &flag))
        return wrong_type(path, "use_v1_kernels", "true or false", value, err);
    return set_kernels(config, flag ? "auto" : "none", "use_v1_kernels", path, err);
}

static tn_status read_options(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    static const char *const names[] = {"modules"};
    const char *id, *key;
    json_t *option, *modules;
    if (!json_is_object(value))
        return wrong_type(path, "options", "an object of kernel ids", value, err);
    json_object_foreach ((json_t *)(uintptr_t)value, id, option) {
        if (!json_is_object(option))
            return wrong_type(path, id, "an object", option, err);
        /* Without patterns it restricts nothing, but the id is looked at. */
        if (json_object_size(option) == 0 && !kernels_config_pair_add(&config->options, &config->option_count, id, ""))
            return no_memory(path, err);
        json_object_foreach (option, key, modules) {
            if (strcmp(key, "modules") != 0)
                return unknown_key(key, id, names, 1, path, err);
            char *joined = NULL;
            tn_status status = join(modules, "modules", path, &joined, err);
            if (status == TN_OK && !joined[0])
                status = tn_fail(err, TN_E_KERNEL, path, "key 'modules' of '%s' is empty; use disable instead", id);
            if (status == TN_OK && !kernels_config_pair_add(&config->options, &config->option_count, id, joined))
                status = no_memory(path, err);
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
        return wrong_type(path, "pins", "an object of file names", value, err);
    json_object_foreach ((json_t *)(uintptr_t)value, name, pin) {
        const char *text = json_string_value(pin);
        if (!text)
            return wrong_type(path, name, "a string", pin, err);
        if (strncmp(text, "sha256:", 7) != 0 || strlen(text) != 7 + 64 ||
            strspn(text + 7, "0123456789abcdefABCDEF") != 64)
            return tn_fail(err, TN_E_KERNEL, path, "pin of '%s': expected sha256: and 64 hexadecimal digits, got '%s'",
                           name, text);
        if (strchr(name, '/'))
            return tn_fail(err, TN_E_KERNEL, path, "pin of '%s': give the file's name without a folder", name);
        if (!kernels_config_pair_add(&config->pins, &config->pin_count, name, text))
            return no_memory(path, err);
    }
    return TN_OK;
}

static tn_status read_measure(tn_config *config, const json_t *value, const char *path, tn_error *err)
{
    if (!json_is_boolean(value))
        return wrong_type(path, "measure", "true or false", value, err);
    return tn_config_set_measure(config, json_is_true(value), err);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static tn_status read_root(tn_config *config, const json_t *root, const char *path, tn_error *err)
{
    static const char *const names[] = {"plugins", "kernels", "device",  "verify",        "max_packed_mb", "disable",
                                        "options", "pins",    "measure", "kernel_config", "use_v1_kernels"};
    static tn_status (*const readers[])(tn_config *, const json_t *, const char *, tn_error *) = {
        read_plugins, read_kernels, read_device,  read_verify,        read_max_packed_mb, read_disable,
        read_options, read_pins,    read_measure, read_kernel_config, read_use_v1_kernels};
    enum { KEYS = sizeof names / sizeof names[0] };
    const char *key;
    json_t *value;
    if (!json_is_object(root))
        return tn_fail(err, TN_E_KERNEL, path, "expected an object, got %s", type_name(root));
    json_object_foreach ((json_t *)(uintptr_t)root, key, value) {
        int i = 0;
        while (i < KEYS && strcmp(key, names[i]) != 0)
            i++;
        if (i == KEYS)
            return unknown_key(key, NULL, names, KEYS, path, err);
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
        status = no_memory(path, err);
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

tn_status kernels_config_read(tn_config *config, const char *path, tn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    json_t *root = NULL;
    tn_status status = read_text(path, &text, &size, err);
    if (status == TN_OK)
        status = parse_json(text, size, path, "", &root, err);
    if (status == TN_OK)
        status = read_root(config, root, path, err);
    json_decref(root);
    free(text);
    if (status == TN_OK && !(config->file = strdup(path)))
        status = no_memory(path, err);
    return status;
}
