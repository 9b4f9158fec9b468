/* Modules, sites and their tensors, taken from a checkpoint. What they are called is said in models. */
#include "graph/build.h"

#include "base/blocks.h"
#include "base/convert.h"
#include "base/mapped.h"
#include "base/tensor.h"
#include "graph/codes.h"
#include "graph/elsewhere.h"
#include "graph/lacks.h"
#include "graph/placing.h"
#include "op/op.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

graph_module *build_module(graph_builder *b, graph_module *parent, const char *name, const char *class_name)
{
    if (b->status != TN_OK)
        return NULL;
    graph_module *m = graph_add_module(b->graph, parent, name, class_name, b->err);
    if (!m)
        b->status = TN_E_MEMORY;
    return m;
}

/* ---- tensors -------------------------------------------------------------------------------- */

#define NAME_SIZE 512

static bool tensor_name(const graph_module *module, const char *name, char out[NAME_SIZE])
{
    int n = snprintf(out, NAME_SIZE, "%s%s%s", module->path, module->path[0] ? "." : "", name);
    return n > 0 && n < NAME_SIZE;
}

/* name with the first tree of an alias replaced by its file; false where it does not occur or does not fit. */
static bool other_name(const build_alias *alias, const char *name, char out[NAME_SIZE])
{
    const char *at = strstr(name, alias->tree);
    if (!at)
        return false;
    int n = snprintf(out, NAME_SIZE, "%.*s%s%s", (int)(at - name), name, alias->file, at + strlen(alias->tree));
    return n > 0 && n < NAME_SIZE;
}

/* Finds the tensor of that name. A base class saves its own without the "model." that a causal model has them under,
 * and some files have one more. Leaves in name what the file calls it. */
static bool get_based(graph_builder *b, char name[NAME_SIZE], tn_tensor *t)
{
    static const char prefix[] = "model.";
    const size_t length = sizeof prefix - 1, size = strlen(name) + 1;
    b->bare = false;
    if (shards_get(b->weights, name, t))
        return true;
    if (!strncmp(name, prefix, length) && shards_get(b->weights, name + length, t)) {
        memmove(name, name + length, size - length);
        return b->bare = true;
    }
    char longer[NAME_SIZE + sizeof prefix];
    snprintf(longer, sizeof longer, "%s%s", prefix, name);
    if (size + length > NAME_SIZE || !shards_get(b->weights, longer, t))
        return false;
    memcpy(name, longer, size + length);
    return true;
}

/* Finds the tensor of that name, or as a wrapper calls it; leaves in name what the file does. */
static bool get_wrapped(graph_builder *b, char name[NAME_SIZE], tn_tensor *t)
{
    char other[NAME_SIZE];
    if (get_based(b, name, t))
        return true;
    for (const build_alias *alias = b->outer; alias && alias->tree; alias++)
        if (other_name(alias, name, other) && get_based(b, other, t)) {
            memcpy(name, other, NAME_SIZE);
            return true;
        }
    return false;
}

/* Finds the tensor called full in the tree and leaves in full what the file calls it, also where it lacks it. */
static bool find_tensor(graph_builder *b, char full[NAME_SIZE], tn_tensor *t)
{
    char other[NAME_SIZE];
    if (get_wrapped(b, full, t))
        return true;
    for (const build_alias *alias = b->aliases; alias && alias->tree; alias++) {
        if (!other_name(alias, full, other))
            continue;
        memcpy(full, other, NAME_SIZE);
        if (get_wrapped(b, full, t))
            return true;
    }
    return false;
}

bool build_has(graph_builder *b, const graph_module *module, const char *name)
{
    char full[NAME_SIZE];
    tn_tensor t;
    return b->status == TN_OK && tensor_name(module, name, full) && find_tensor(b, full, &t);
}

bool build_find(graph_builder *b, const graph_module *module, const char *name, char *full, size_t size, tn_tensor *out)
{
    char found[NAME_SIZE];
    bool fits = b->status == TN_OK && tensor_name(module, name, found), there = fits && find_tensor(b, found, out);
    snprintf(full, size, "%s", fits ? found : "");
    return there;
}

/* The last of the names that files have: that of today. */
void build_published(const graph_builder *b, const char *path, char *out, size_t size)
{
    char name[NAME_SIZE];
    snprintf(out, size, "%s", path);
    for (const build_alias *alias = b->outer; alias && alias->tree; alias++)
        if (!strncmp(path, alias->tree, strlen(alias->tree)) && strncmp(alias->tree, "lm_head", 7) != 0 &&
            other_name(alias, path, name))
            snprintf(out, size, "%s", name);
}

static bool has_shape(const tn_tensor *t, int32_t ndim, const int64_t *shape)
{
    return t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape);
}

bool build_has_shape(graph_builder *b, const graph_module *module, const char *name, int32_t ndim, const int64_t *shape)
{
    char full[NAME_SIZE];
    tn_tensor t;
    return b->status == TN_OK && tensor_name(module, name, full) && find_tensor(b, full, &t) &&
           has_shape(&t, ndim, shape);
}

/* Where no files are and what a model asks for is recorded: the tensor called full, as files have it. */
static bool promise_tensor(graph_builder *b, const graph_module *module, const char *name, const char *full,
                           tn_dtype dtype, int32_t ndim, const int64_t *shape, tn_tensor *out)
{
    char path[NAME_SIZE];
    *out = (tn_tensor){.dtype = dtype, .ndim = ndim};
    memcpy(out->shape, shape, (size_t)ndim * sizeof *shape);
    return tensor_name(module, name, path) && shards_promise(b->weights, full, path, out);
}

bool build_tensor(graph_builder *b, graph_module *module, const char *name, int32_t ndim, const int64_t *shape,
                  tn_tensor *out)
{
    return build_tensor_as(b, module, name, ndim, shape, &(build_form){0}, out);
}

/* As a whole, but for what is taken in ranges as it lies. */
static bool bring(graph_builder *b, const char *full, tn_dtype dtype, const build_form *form, tn_tensor *t)
{
    if (codes_are(t))
        return codes_place(b, full, form, t);
    if (form->turned)
        return placing_turned(b, full, dtype, t);
    return form->ranges || placing_tensor(b, full, dtype, false, t);
}

int64_t build_columns_unit(graph_builder *b, const graph_module *module, const char *name)
{
    char full[NAME_SIZE];
    tn_tensor t;
    if (!build_find(b, module, name, full, sizeof full, &t) || !codes_are(&t) || b->dequantise)
        return 1;
    const shards_parts parts = shards_parts_of(b->weights, full);
    return codes_columns_unit(&t, &parts);
}

static bool take_ranges(graph_builder *b, const char *full, tn_dtype dtype, const build_form *form, tn_tensor *t)
{
    const shards_parts parts = codes_parts(b, t);
    const build_ranges *ranges = form->ranges;
    bool beside = codes_beside(&parts);
    if (!codes_are(t) || (!beside && ranges->count > 1))
        return placing_ranges(b, full, codes_are(t) ? t->dtype : dtype, ranges, form->dim, t);
    if (ranges->count > 1) {
        build_fail(
            b, TN_E_INPUT, full,
            "is quantised (%s) and holds several projections, whose scales lie apart, which is not cut over ranks; "
            "open it with --dequantise",
            tn_dtype_name(t->dtype));
        return false;
    }
    *t = build_rows(b, t, ranges->at[0].first, ranges->at[0].rows);
    return b->status == TN_OK;
}

/* Brings the file's tensor called full to where the device computes, as module's. What several modules have counts with
 * the first. */
static bool place(graph_builder *b, graph_module *module, const char *full, tn_dtype dtype, const build_form *form,
                  int32_t ndim, const int64_t *shape, tn_tensor *out)
{
    bool again = shards_used(b->weights, full, TN_DTYPE_NONE);
    const void *file = out->data;
    size_t bytes = tn_dtype_bytes(out->dtype, tn_tensor_count(out));
    b->done_bytes += again ? 0 : (int64_t)bytes;
    placing_mark(b, full, form, out);
    if (shards_is_record(b->weights))
        *out = tn_tensor_dense(out->data, dtype, ndim, shape);
    else if (form->ranges && form->dim > 0 && codes_are(out) && !form->turned) {
        if (!codes_columns(b, full, form, out))
            return false;
    } else if (!bring(b, full, dtype, form, out) || (form->ranges && !take_ranges(b, full, dtype, form, out)))
        return false;
    if ((const char *)out->data < (const char *)file || (const char *)out->data >= (const char *)file + bytes)
        mapped_forget(file, bytes); /* all of it was copied                                              */
    shards_take(b->weights, full, out->data, form->turned || form->ranges ? TN_DTYPE_NONE : out->dtype);
    if (b->progress && b->progress(b->progress_ctx, "loading", b->done_bytes, b->total_bytes)) {
        build_fail(b, TN_E_CANCELLED, full, "loading was cancelled");
        return false;
    }
    module->parameters += again ? 0 : tn_tensor_count(out);
    module->bytes += again ? 0 : (int64_t)tn_dtype_bytes(out->dtype, tn_tensor_count(out));
    return true;
}

/* The tensor of a layer that another rank has, or what of it would be this one's. */
static bool place_elsewhere(graph_builder *b, graph_module *module, const char *full, tn_dtype dtype,
                            const build_form *form, int32_t ndim, const int64_t *shape, tn_tensor *out)
{
    int64_t own[TN_MAX_DIMS];
    memcpy(own, shape, (size_t)ndim * sizeof *own);
    if (form->ranges)
        own[form->dim] = build_ranges_rows(form->ranges);
    if (!elsewhere_tensor(b->graph, dtype, ndim, own, out)) {
        build_fail(b, TN_E_MEMORY, full, "no addresses for a layer of another rank; see ulimit -v");
        return false;
    }
    module->parameters += shards_used(b->weights, full, TN_DTYPE_NONE) ? 0 : tn_tensor_count(out);
    shards_take(b->weights, full, out->data, TN_DTYPE_NONE);
    return true;
}

bool build_performs(const graph_builder *b, tn_op op)
{
    tn_site site = {.size = sizeof site, .op = op, .path = "model"};
    site.meaning[TN_AXIS_DTYPE] = (int32_t)b->dtype;
    return device_supports(b->device, &site, NULL) == TN_OK;
}

bool build_tensor_as(graph_builder *b, graph_module *module, const char *name, int32_t ndim, const int64_t *shape,
                     const build_form *form, tn_tensor *out)
{
    tn_dtype dtype = form->dtype ? form->dtype : b->dtype;
    int64_t want[TN_MAX_DIMS];
    memcpy(want, shape, (size_t)ndim * sizeof *want);
    if (form->turned) {
        want[ndim - 2] = shape[ndim - 1];
        want[ndim - 1] = shape[ndim - 2];
    }
    if (b->status != TN_OK)
        return false;
    char full[NAME_SIZE];
    int32_t file_ndim = form->file ? form->file_ndim : ndim;
    const int64_t *file = form->file ? form->file : want;
    if (!tensor_name(module, name, full)) {
        build_fail(b, TN_E_INPUT, module->path, "the name of tensor '%s' is too long", name);
        return false;
    }
    bool found = find_tensor(b, full, out);
    if (b->lacks && (!found || has_shape(out, file_ndim, file)) &&
        !lacks_usable(b, full, found, dtype, form->turned, ndim, shape, out))
        return b->status == TN_OK;
    if (b->status != TN_OK)
        return false;
    if (!found && !promise_tensor(b, module, name, full, dtype, file_ndim, file, out)) {
        build_fail(b, TN_E_INPUT, full, "the checkpoint has no such tensor; is config.json that of these weights?");
        return false;
    }
    if (!tensor_is_float(out->dtype) && out->dtype != TN_F64 && !codes_are(out)) {
        build_fail(b, TN_E_INPUT, full, "has dtype %s, expected f32, bf16 or f16", tn_dtype_name(out->dtype));
        return false;
    }
    if (!has_shape(out, file_ndim, file)) {
        char got[128], implied[128];
        tensor_shape_text(out->ndim, out->shape, got, sizeof got);
        tensor_shape_text(file_ndim, file, implied, sizeof implied);
        build_fail(b, TN_E_INPUT, full, "has shape %s in %s, config.json implies %s", got,
                   shards_file_of(b->weights, full), implied);
        return false;
    }
    if (b->elsewhere)
        return place_elsewhere(b, module, full, dtype, form, ndim, shape, out);
    if (form->file)
        *out = tn_tensor_dense(out->data, out->dtype, ndim, want);
    const void *placed = form->turned || form->ranges ? NULL : shards_used(b->weights, full, dtype);
    if (placed) /* one copy for all                                                               */
        *out = tn_tensor_dense((void *)(uintptr_t)placed, dtype, ndim, shape);
    else if (!place(b, module, full, dtype, form, ndim, shape, out))
        return false;
    if (!module->dtype && ndim > 1)
        module->dtype = out->dtype;
    placing_note(b, out);
    return b->status == TN_OK;
}

bool build_number(graph_builder *b, graph_module *module, const char *name, int32_t ndim, float *out)
{
    const int64_t one = 1;
    uint32_t bits = 0;
    tn_tensor t;
    if (!module || !build_tensor(b, module, name, ndim, &one, &t))
        return false;
    if (b->lacks)
        lacks_number(b, module, name);
    b->status = device_download(b->device, &bits, t.data, tn_dtype_size(t.dtype), b->err);
    convert_to_f32(&bits, t.dtype, out, 1);
    return b->status == TN_OK;
}

/* ---- sites ------------------------------------------------------------------------------------ */

graph_site *build_site(graph_builder *b, graph_module *module, tn_op op, graph_site *outer)
{
    if (b->status != TN_OK || !module)
        return NULL;
    graph_site *s = graph_add_site(b->graph, module, op, outer, b->err);
    if (!s) {
        b->status = TN_E_MEMORY;
        return NULL;
    }
    s->staged = b->staged;
    s->lacking = b->elsewhere;
    s->declined = b->elsewhere ? "another rank has its layer" : NULL;
    return s;
}

tn_site *build_step(graph_builder *b, const graph_module *module, tn_op op, int64_t width)
{
    if (b->status != TN_OK || !module)
        return NULL;
    graph_step *step = graph_add_step(b->graph, module, op, width, b->err);
    if (!step)
        b->status = TN_E_MEMORY;
    return step ? &step->site : NULL;
}

/* Scales, zero points or groups of a list of tensors: all of them have any, or none. */
static void set_part(graph_builder *b, tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count,
                     size_t member, uint64_t feature)
{
    tn_tensor *list = NULL;
    for (int64_t i = 0; i < count && b->status == TN_OK; i++) {
        shards_parts parts = codes_parts(b, &tensors[i]);
        const tn_tensor *t = (const tn_tensor *)(const void *)((const char *)&parts + member);
        if (i == 0 && !t->dtype)
            return;
        if (!list && !(list = calloc((size_t)count, sizeof *list)))
            build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
        else if (!t->dtype)
            build_fail(b, TN_E_INPUT, site->path, "only some of its weights have scales; the checkpoint is damaged");
        else
            list[i] = *t;
    }
    if (b->status == TN_OK && list)
        b->status = graph_set_site_param(site, role, list, count, b->err);
    site->features |= feature;
    free(list);
}

static bool has_other_weights(const tn_site *site, tn_role role)
{
    for (int other = 0; other < TN_ROLE_FIRST_GROUP; other++)
        if (other != (int)role && site->param[other].count > 0 && op_group_role((tn_role)other))
            return true;
    return false;
}

/* The type of a site's weights: of several, one that is quantised. */
static void set_weight_type(tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count)
{
    int32_t *type = &site->meaning[TN_AXIS_WEIGHT];
    bool matrix = op_group_role(role), others = has_other_weights(site, role);
    for (int64_t i = 0; i < count; i++) {
        int32_t dtype = (int32_t)tensors[i].dtype;
        bool quantised = blocks_is_quantised((tn_dtype)dtype), was = blocks_is_quantised((tn_dtype)*type);
        if (matrix && (i > 0 || others) && dtype != *type && (quantised || was))
            site->features |= TN_HAS_MIXED;
        if (!was || (matrix && i == 0 && !others))
            *type = dtype;
    }
}

static void set_param(graph_builder *b, tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count)
{
    b->status = graph_set_site_param(site, role, tensors, count, b->err);
    if (b->status == TN_OK && site->meaning[TN_AXIS_DTYPE] == (int32_t)b->graph->narrow) {
        tn_tensor *own = (tn_tensor *)(uintptr_t)site->param[role].tensors;
        placing_narrow(b, site, role, own, count);
        tensors = own;
    }
    set_weight_type(site, role, tensors, count);
    if (count < 1 || !op_group_role(role))
        return;
    set_part(b, site, TN_ROLE_SCALE_OF(role), tensors, count, offsetof(shards_parts, scale), TN_HAS_SCALES);
    set_part(b, site, TN_ROLE_ZERO_OF(role), tensors, count, offsetof(shards_parts, zero), TN_HAS_ZERO_POINTS);
    set_part(b, site, op_group_role(role), tensors, count, offsetof(shards_parts, group), 0);
}

void build_step_params(graph_builder *b, tn_site *step, tn_role role, const tn_tensor *tensors, int64_t count)
{
    if (b->status == TN_OK && step)
        set_param(b, step, role, tensors, count);
}

void build_step_param(graph_builder *b, tn_site *step, tn_role role, const tn_tensor *tensor)
{
    build_step_params(b, step, role, tensor, 1);
}

void build_param(graph_builder *b, graph_site *site, tn_role role, const tn_tensor *tensors, int64_t count)
{
    if (b->status != TN_OK)
        return;
    set_param(b, &site->site, role, tensors, count);
}

void build_lend(graph_builder *b, graph_site *to, tn_role role, const graph_site *from, tn_role from_role)
{
    const tn_param *param = from ? &from->site.param[from_role] : NULL;
    if (b->status == TN_OK && param && param->count > 0)
        build_param(b, to, role, param->tensors, param->count);
}
