/* Parsing SPEC: "auto", "none", or a list of ids, "auto" and -id, in the order of preference. "true" and "false" are
 * other words for "auto" and "none". Or LLaMA-Factory's kernel_config, an object in JSON. */
#include "plugin/spec.h"

#include "base/nearest.h"
#include "plugin/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char blanks[] = " \t\r\n";

/* One item of the list, as it is written. */
typedef struct item {
    const char *text;
    size_t n;
} item;

static bool is_word(item i, const char *word, const char *other)
{
    return (strlen(word) == i.n && !memcmp(i.text, word, i.n)) || (strlen(other) == i.n && !memcmp(i.text, other, i.n));
}

static bool has(char *const *ids, size_t count, item id)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(ids[i]) == id.n && !memcmp(ids[i], id.text, id.n))
            return true;
    return false;
}

static tn_status add_id(char ***list, size_t *count, item id, tn_error *err)
{
    char **ids = realloc(*list, (*count + 1) * sizeof *ids);
    if (ids)
        *list = ids;
    if (!ids || !(ids[*count] = strndup(id.text, id.n)))
        return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory");
    ++*count;
    return TN_OK;
}

static tn_status add_named(kernel_spec *spec, item id, tn_error *err)
{
    if (has(spec->ids, spec->count, id))
        return tn_fail(err, TN_E_KERNEL, "kernels", "'%.*s' stands there twice; write it once", (int)id.n, id.text);
    if (has(spec->without, spec->without_count, id))
        return tn_fail(err, TN_E_KERNEL, "kernels", "'%.*s' is asked for and left out; write one of the two", (int)id.n,
                       id.text);
    return add_id(&spec->ids, &spec->count, id, err);
}

static tn_status add_without(kernel_spec *spec, item id, tn_error *err)
{
    if (has(spec->without, spec->without_count, id))
        return tn_fail(err, TN_E_KERNEL, "kernels", "'-%.*s' stands there twice; write it once", (int)id.n, id.text);
    if (has(spec->ids, spec->count, id))
        return tn_fail(err, TN_E_KERNEL, "kernels", "'%.*s' is asked for and left out; write one of the two", (int)id.n,
                       id.text);
    return add_id(&spec->without, &spec->without_count, id, err);
}

/* alone: it is the whole SPEC. */
static tn_status add_item(kernel_spec *spec, item i, bool alone, const char *whole, tn_error *err)
{
    if (is_word(i, "none", "false"))
        return alone ? TN_OK
                     : tn_fail(err, TN_E_KERNEL, "kernels", "'%.*s' cannot be combined with anything; write it alone",
                               (int)i.n, i.text);
    if (is_word(i, "auto", "true")) {
        if (spec->mode == SPEC_AUTO)
            return tn_fail(err, TN_E_KERNEL, "kernels", "'auto' stands there twice; write it once");
        spec->mode = SPEC_AUTO;
        return TN_OK;
    }
    if (i.n > 0 && i.text[0] == '{')
        return tn_fail(err, TN_E_KERNEL, "kernels", "'%s' has a JSON object among ids; write one of the two alone",
                       whole);
    bool without = i.n > 0 && i.text[0] == '-';
    if (i.n == (without ? 1 : 0))
        return tn_fail(err, TN_E_KERNEL, "kernels", "'%s' has an empty id; write auto, none or ids like a,b", whole);
    if (without)
        return add_without(spec, (item){i.text + 1, i.n - 1}, err);
    tn_status status = add_named(spec, i, err);
    if (spec->mode == SPEC_NONE)
        spec->mode = SPEC_IDS;
    return status;
}

static tn_status parse_items(const char *text, kernel_spec *spec, tn_error *err)
{
    bool alone = !strchr(text, ',');
    tn_status status = TN_OK;
    for (const char *at = text; status == TN_OK; at++) {
        at += strspn(at, blanks);
        size_t whole = strcspn(at, ","), n = whole;
        while (n > 0 && strchr(blanks, at[n - 1]))
            n--;
        status = add_item(spec, (item){at, n}, alone, text, err);
        at += whole;
        if (!*at)
            break;
    }
    if (status == TN_OK && spec->without_count > 0 && spec->mode != SPEC_AUTO)
        return tn_fail(err, TN_E_KERNEL, "kernels",
                       "'-%s' leaves a kernel out of auto, which is not asked for; write auto,-%s", spec->without[0],
                       spec->without[0]);
    return status;
}

tn_status spec_parse_list(const char *text, kernel_spec *spec, tn_error *err)
{
    *spec = (kernel_spec){.mode = SPEC_NONE};
    if (!text)
        return tn_fail(err, TN_E_KERNEL, "kernels", "no kernels given; write auto, none or ids like a,b");
    tn_status status = parse_items(text, spec, err);
    if (status != TN_OK)
        spec_free(spec);
    return status;
}

/* "auto", ids and -ids behind each other. */
static size_t write_items(const kernel_spec *spec, char *out, size_t size)
{
    int n = snprintf(out, size, "%s", spec->mode == SPEC_AUTO ? "auto" : spec->mode == SPEC_NONE ? "none" : "");
    size_t used = (size_t)n;
    for (size_t i = 0; i < spec->count + spec->without_count; i++) {
        bool named = i < spec->count;
        n = snprintf(out ? out + used : NULL, out ? size - used : 0, "%s%s%s", used ? "," : "", named ? "" : "-",
                     named ? spec->ids[i] : spec->without[i - spec->count]);
        used += (size_t)n;
    }
    return used;
}

char *spec_text(const kernel_spec *spec)
{
    size_t size = write_items(spec, NULL, 0) + 1;
    char *text = malloc(size);
    if (text)
        write_items(spec, text, size);
    return text;
}

static void free_ids(char **ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(ids[i]);
    free(ids);
}

void spec_free(kernel_spec *spec)
{
    if (!spec)
        return;
    free_ids(spec->ids, spec->count);
    free_ids(spec->without, spec->without_count);
    text_list_clear(&spec->notes);
    *spec = (kernel_spec){.mode = SPEC_NONE};
}

/* ---- names that LLaMA-Factory has -------------------------------------------------------------------------------- */

const char *const spec_linear_attention[SPEC_LINEAR_ATTENTION] = {"flash-linear-attention", "chunk_gated_delta_rule",
                                                                  "fused_recurrent_gated_delta_rule"};

const char *spec_shared_name(const char *name, tn_op *op)
{
    for (int i = 0; i < SPEC_LINEAR_ATTENTION; i++) {
        if (strcmp(name, spec_linear_attention[i]) != 0)
            continue;
        if (op)
            *op = TN_OP_GATED_DELTA_RULE;
        return spec_linear_attention[i];
    }
    return NULL;
}

bool spec_stands_for(const char *name, const registry_kernel *kernel)
{
    tn_op op = TN_OP_NONE;
    bool stands = !strcmp(name, kernel->kernel.id);
    for (uint32_t i = 0; spec_shared_name(name, &op) && i < kernel->kernel.impl_count; i++)
        stands |= kernel->kernel.impls[i].op == op;
    return stands;
}

registry_kernel *spec_first_kernel(const char *device, const char *name)
{
    for (size_t i = 0; i < registry_count(device); i++)
        if (spec_stands_for(name, registry_at(device, i)))
            return registry_at(device, i);
    return NULL;
}

const char *spec_declined(const char *name)
{
    static const char *const others[][2] = {
        {"liger_kernel", "is a collection of Triton kernels for training on GPUs, and Triton does not run here"},
        {"cuda_fused_moe", "is a Triton kernel for CUDA devices, and Triton does not run here"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i][0]))
            return others[i][1];
    return NULL;
}

const char *spec_nearest(const char *name)
{
    nearest n = {0};
    const char *best = registry_nearest(NULL, name);
    if (best)
        nearest_closer(&n, name, best);
    for (int i = 0; i < SPEC_LINEAR_ATTENTION; i++)
        if (nearest_closer(&n, name, spec_linear_attention[i]))
            best = spec_linear_attention[i];
    return best;
}
