/* LLaMA-Factory's kernel_config, an object in JSON: under that name in kernels.json, or a SPEC. */
#include "base/nearest.h"
#include "plugin/kernels_json.h"
#include "plugin/spec.h"

#include <stdlib.h>
#include <string.h>

static tn_status add_note(kernel_spec *spec, const char *note, const char *path, tn_error *err)
{
    return text_list_add(&spec->notes, note) ? TN_OK : kernels_json_no_memory(path, err);
}

static tn_status read_name(const json_t *value, const char *path, kernel_spec *spec, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!value)
        return tn_fail(err, TN_E_KERNEL, path, "kernel_config has no key 'name'; write \"auto\" or ids like \"a,b\"");
    if (!json_is_string(value))
        return kernels_json_wrong_type(path, "name", "\"auto\" or ids in one string", value, err);
    return kernels_json_as_key(spec_parse_list(json_string_value(value), spec, &why), &why, "name", path, err);
}

static bool is_operator(const char *name)
{
    return spec_shared_name(name, NULL) && strcmp(name, spec_linear_attention[0]) != 0;
}

/* One kernel has both operators of flash-linear-attention, whichever are asked for. */
static tn_status include_operators(kernel_spec *spec, const kernel_spec *names, const char *path, tn_error *err)
{
    const char *const *operators = &spec_linear_attention[1];
    for (size_t i = 0; i < names->count; i++) {
        const char *name = names->ids[i];
        const char *near = nearest_of(name, operators, SPEC_LINEAR_ATTENTION - 1);
        if (!is_operator(name))
            return tn_fail(
                err, TN_E_KERNEL, path,
                "key 'include_kernels': '%s' is no operator of flash-linear-attention%s%s%s; write %s, %s or "
                "auto",
                name, near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "", operators[0], operators[1]);
    }
    if (names->count > 1)
        return TN_OK;
    return add_note(spec,
                    "kernels: include_kernels has no effect here: one kernel has both operators of "
                    "flash-linear-attention",
                    path, err);
}

/* Ids: operators where flash-linear-attention is asked for, which alone has the key since July 2026. Others are those
 * that "auto" stands for, as they were before. */
static tn_status include(kernel_spec *spec, kernel_spec *ids, const char *path, tn_error *err)
{
    if (ids->mode == SPEC_NONE)
        return tn_fail(err, TN_E_KERNEL, path,
                       "key 'include_kernels' leaves no kernels; write none as 'name', or leave the key out");
    if (ids->mode == SPEC_AUTO && ids->count + ids->without_count == 0)
        return TN_OK;
    for (size_t i = 0; i < spec->count && ids->without_count == 0; i++)
        if (!strcmp(spec->ids[i], spec_linear_attention[0]))
            return include_operators(spec, ids, path, err);
    bool operators = ids->mode == SPEC_IDS;
    for (size_t i = 0; i < ids->count; i++)
        operators &= is_operator(ids->ids[i]);
    if (operators)
        return add_note(spec,
                        "kernels: include_kernels has no effect here: its operators are of flash-linear-attention, "
                        "which 'name' does not have",
                        path, err);
    if (spec->mode != SPEC_AUTO || spec->count + spec->without_count > 0)
        return tn_fail(err, TN_E_KERNEL, path,
                       "key 'include_kernels' has ids, which go with auto alone as 'name'; write them into 'name'");
    kernel_spec all = *spec;
    *spec = *ids;
    *ids = all;
    return TN_OK;
}

static tn_status read_include(const json_t *value, const char *path, kernel_spec *spec, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    kernel_spec ids = {.mode = SPEC_NONE};
    char *joined = NULL;
    bool flag = false;
    tn_status status = TN_OK;
    const char *text = json_string_value(value);
    if (json_is_array(value))
        status = kernels_json_join(value, "include_kernels", path, &joined, err);
    if (joined)
        text = joined[0] ? joined : "none";
    else if (kernels_json_flag(value, &flag))
        text = flag ? "auto" : "none";
    if (status == TN_OK && !text)
        status = kernels_json_wrong_type(path, "include_kernels", "\"auto\", true, or ids as a list or in one string",
                                         value, err);
    if (status == TN_OK)
        status = kernels_json_as_key(spec_parse_list(text, &ids, &why), &why, "include_kernels", path, err);
    if (status == TN_OK)
        status = include(spec, &ids, path, err);
    spec_free(&ids);
    free(joined);
    return status;
}

static tn_status read_chunk_size(const json_t *value, const char *path, kernel_spec *spec, tn_error *err)
{
    static const char *const sizes[] = {"16", "32", "64"};
    const char *text = json_string_value(value);
    for (int i = 0; i < 3; i++)
        if (text ? !strcmp(text, sizes[i]) : json_integer_value(value) == 16 << i)
            return add_note(spec, "kernels: chunk_size has no effect here: kernels choose the sizes of their chunks",
                            path, err);
    return tn_fail(err, TN_E_KERNEL, path, "key 'chunk_size' may be 16, 32 or 64; write one of them");
}

static tn_status read_require_logits(const json_t *value, const char *path, kernel_spec *spec, tn_error *err)
{
    bool flag;
    if (!kernels_json_flag(value, &flag))
        return kernels_json_wrong_type(path, "require_logits", "true or false", value, err);
    return add_note(spec, "kernels: require_logits has no effect here: there are always logits", path, err);
}

tn_status kernels_config_read_object(const json_t *object, const char *path, kernel_spec *spec, tn_error *err)
{
    static const char *const names[] = {"name", "include_kernels", "chunk_size", "require_logits"};
    static tn_status (*const readers[])(const json_t *, const char *, kernel_spec *,
                                        tn_error *) = {read_name, read_include, read_chunk_size, read_require_logits};
    enum { KEYS = sizeof names / sizeof names[0] };
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) {
        int i = 0;
        while (i < KEYS && strcmp(key, names[i]) != 0)
            i++;
        if (i == KEYS)
            return kernels_json_unknown_key(key, "kernel_config", names, KEYS, path, err);
    }
    tn_status status = TN_OK;
    for (int i = 0; i < KEYS && status == TN_OK; i++)
        if (i == 0 || json_object_get(object, names[i]))
            status = readers[i](json_object_get(object, names[i]), path, spec, err);
    return status;
}

/* The spec of an object as text. */
static tn_status read_text(const char *text, kernel_spec *spec, tn_error *err)
{
    json_t *root = NULL;
    *spec = (kernel_spec){.mode = SPEC_NONE};
    tn_status status =
        kernels_json_parse(text, strlen(text), "kernels", "; write JSON as in '{\"name\": \"auto\"}'", &root, err);
    if (status == TN_OK)
        status = kernels_config_read_object(root, "kernels", spec, err);
    json_decref(root);
    if (status != TN_OK)
        spec_free(spec);
    return status;
}

tn_status spec_parse(const char *text, kernel_spec *spec, tn_error *err)
{
    bool object = text && text[strspn(text, " \t\r\n")] == '{';
    return object ? read_text(text, spec, err) : spec_parse_list(text, spec, err);
}
