/* What of a model over borrowed memory cannot be used. */
#include "graph/lacks.h"

#include "base/reserved.h"
#include "base/tensor.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Addresses, no memory: all that a large model may lack at once. */
static const size_t ZEROS = (size_t)1 << 38, ALIGN = 64;

enum { WHY = 512 };

static bool no_memory(graph_builder *b)
{
    build_fail(b, TN_E_MEMORY, "graph", "out of memory while a model is borrowed; free some memory");
    return false;
}

static build_lack *add(graph_builder *b, const char *why, const char *path)
{
    build_lacks *l = b->lacks;
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 64;
        build_lack *more = realloc(l->list, capacity * sizeof *more);
        if (!more)
            return NULL;
        l->list = more;
        l->capacity = capacity;
    }
    build_lack *lack = &l->list[l->count];
    *lack = (build_lack){.why = strdup(why), .path = path ? strdup(path) : NULL, .data = l->zeros + l->used};
    if (lack->why && (!path || lack->path)) {
        l->count++;
        return lack;
    }
    free(lack->why);
    free(lack->path);
    return NULL;
}

/* Addresses for a tensor. Always false. */
static bool stand_in(graph_builder *b, const char *why, tn_dtype dtype, int32_t ndim, const int64_t *shape,
                     tn_tensor *t)
{
    build_lacks *l = b->lacks;
    if (!l->zeros && !(l->zeros = reserved_zeros(ZEROS)))
        return no_memory(b);
    tn_tensor dense = tn_tensor_dense(l->zeros + l->used, dtype, ndim, shape);
    size_t bytes = tensor_padded_bytes(&dense);
    build_lack *lack = bytes < ZEROS - l->used ? add(b, why, NULL) : NULL;
    if (!lack)
        return no_memory(b);
    lack->bytes = bytes > 0 ? bytes : ALIGN;
    l->used += lack->bytes;
    *t = dense;
    return false;
}

/* Why the tensor cannot be used where it lies; "": it can. *copy: it can be copied. */
static void judge(const graph_builder *b, const tn_tensor *t, tn_dtype dtype, bool turned, bool *copy, char *why,
                  size_t size)
{
    tn_tensor dense = tn_tensor_dense(NULL, t->dtype, t->ndim, t->shape);
    char strides[128];
    const char *follow = "a copy would not follow what is written to it";
    *copy = false;
    why[0] = '\0';
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] > 1 && t->stride[i] != dense.stride[i]) {
            tensor_shape_text(t->ndim, t->stride, strides, sizeof strides);
            text_cut(why, size, "has strides %s; only dense tensors are read where they lie", strides);
            return;
        }
    if (!tensor_is_float(t->dtype) && t->dtype != TN_F64) {
        text_cut(why, size, "has dtype %s; f32, bf16 or f16 can be computed with", tn_dtype_name(t->dtype));
        return;
    }
    if ((uintptr_t)t->data % tn_dtype_size(t->dtype) != 0) {
        text_cut(why, size, "is not aligned to its elements");
        return;
    }
    *copy = true;
    if (t->dtype != dtype)
        text_cut(why, size, "has dtype %s where the model has %s; %s", tn_dtype_name(t->dtype), tn_dtype_name(dtype),
                 follow);
    else if (turned)
        text_cut(why, size, "has its dimensions changed over; %s", follow);
    else if (!b->device->ops->host_memory)
        text_cut(why, size, "is not in the memory of device %s; %s", b->device->ops->name, follow);
}

bool lacks_usable(graph_builder *b, const char *name, bool found, tn_dtype dtype, bool turned, int32_t ndim,
                  const int64_t *shape, tn_tensor *t)
{
    char what[WHY] = "is not lent; is config.json that of these tensors?", why[WHY + 256];
    bool copy = false;
    if (found)
        judge(b, t, dtype, turned, &copy, what, sizeof what);
    if (!what[0] || (copy && !b->lacks->weights_change))
        return true;
    if (!copy && !b->lacks->partial) {
        build_fail(b, TN_E_INPUT, name, "%s", what);
        return true;
    }
    text_cut(why, sizeof why, "%s %s", name, found ? what : "is not lent");
    return stand_in(b, why, dtype, ndim, shape, t);
}

void lacks_number(graph_builder *b, const graph_module *module, const char *name)
{
    char why[WHY];
    if (b->status != TN_OK || !b->lacks->weights_change)
        return;
    text_cut(why, sizeof why, "%s.%s is read once, and would not follow what is written to it", module->path, name);
    if (!add(b, why, module->path))
        no_memory(b);
}

static const char *lack_of(const build_lacks *l, const void *data)
{
    size_t low = 0, high = l->count;
    if (!l->zeros || (const char *)data < l->zeros || (const char *)data >= l->zeros + l->used)
        return NULL;
    while (low + 1 < high) { /* the last that begins no later: numbers stand before who begins where they do */
        size_t middle = (low + high) / 2;
        if (l->list[middle].data <= (const char *)data)
            low = middle;
        else
            high = middle;
    }
    return l->list[low].why;
}

bool lacks_stack(graph_builder *b, const tn_tensor *rows, int64_t count, tn_tensor *out)
{
    const char *why = b->lacks->weights_change ? "vectors are copied to lie side by side, and would not follow what is "
                                                 "written to them"
                                               : NULL;
    for (int64_t i = 0; i < count; i++)
        if (lack_of(b->lacks, rows[i].data))
            why = lack_of(b->lacks, rows[i].data);
    return !why || stand_in(b, why, rows->dtype, 2, (int64_t[]){count, rows->shape[0]}, out);
}

/* Is the module this one, or inside it? */
static bool is_inside(const char *path, const char *of)
{
    size_t length = strlen(of);
    return strncmp(path, of, length) == 0 && (path[length] == '.' || path[length] == '\0');
}

static const char *what_lacks(const build_lacks *l, const tn_site *site)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            const char *why = lack_of(l, site->param[role].tensors[i].data);
            if (why)
                return why;
        }
    for (size_t i = 0; i < l->count; i++)
        if (l->list[i].path && is_inside(l->list[i].path, site->path))
            return l->list[i].why;
    return NULL;
}

void lacks_settle(graph_builder *b)
{
    const build_lacks *l = b->lacks;
    const graph *g = b->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        graph_site *s = g->sites[i];
        s->declined = what_lacks(l, &s->site);
        s->lacking = s->declined;
        if (!s->declined && l->dtype == TN_F64)
            s->declined = "the model is f64, which no kernel computes in";
        if (!s->declined && l->per_module && s->site.op == TN_OP_ADD_RMS_NORM)
            s->declined = "it spans two modules, which are used one by one here (per_module)";
    }
}

const char *lacks_first(const build_lacks *lacks)
{
    return lacks->count > 0 ? lacks->list[0].why : NULL;
}

void lacks_free(build_lacks *lacks)
{
    for (size_t i = 0; i < lacks->count; i++) {
        free(lacks->list[i].why);
        free(lacks->list[i].path);
    }
    free(lacks->list);
    reserved_free(lacks->zeros, ZEROS);
    *lacks = (build_lacks){0};
}
