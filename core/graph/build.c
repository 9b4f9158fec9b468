/* Modules, tensors and the common kinds of sites, taken from a checkpoint. */
#include "graph/build.h"

#include "eager/eager.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *build_fail(graph_builder *b, tn_status code, const char *where, const char *format, ...)
{
    char text[sizeof((tn_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tn_status status = tn_fail(b->err, code, where, "%s", text);
    if (b->status == TN_OK)
        b->status = status;
    return NULL;
}

void build_copies_free(build_copies *copies)
{
    if (copies->device)
        device_sync(copies->device, NULL);
    for (size_t i = 0; i < copies->count; i++)
        device_free(copies->device, copies->memory[i], copies->bytes[i]);
    free(copies->memory);
    free(copies->bytes);
    *copies = (build_copies){.device = copies->device};
}

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

bool build_has(const graph_builder *b, const graph_module *module, const char *name)
{
    char full[NAME_SIZE];
    tn_tensor t;
    return b->status == TN_OK && tensor_name(module, name, full) && shards_get(b->weights, full, &t);
}

static void shape_text(char *out, size_t size, int32_t ndim, const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int32_t i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? "," : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static bool keep_copy(graph_builder *b, size_t bytes, void **memory)
{
    build_copies *c = b->copies;
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 64;
        void **list = realloc(c->memory, capacity * sizeof *list);
        if (list)
            c->memory = list;
        size_t *sizes = realloc(c->bytes, capacity * sizeof *sizes);
        if (sizes)
            c->bytes = sizes;
        if (!list || !sizes) {
            build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
            return false;
        }
        c->capacity = capacity;
    }
    if ((b->status = device_alloc(b->device, bytes, memory, b->err)) != TN_OK)
        return false;
    c->memory[c->count] = *memory;
    c->bytes[c->count++] = bytes;
    c->total += (int64_t)bytes;
    return true;
}

typedef struct convert_job {
    const char *src;
    char *dst;
    tn_dtype from, to;
} convert_job;

enum { CONVERT_BLOCK = 4096 };

/* From one floating type to another by way of f32, which holds every value of the narrower ones. */
static void convert_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const convert_job *job = ctx;
    size_t from = tn_dtype_size(job->from), to = tn_dtype_size(job->to);
    float block[CONVERT_BLOCK];
    for (int64_t i = begin; i < end; i += CONVERT_BLOCK) {
        int64_t n = end - i < CONVERT_BLOCK ? end - i : CONVERT_BLOCK;
        if (job->from == job->to) {
            memcpy(job->dst + (size_t)i * to, job->src + (size_t)i * from, (size_t)n * to);
            continue;
        }
        if (job->from == TN_F64)
            for (int64_t j = 0; j < n; j++) {
                double value;
                memcpy(&value, job->src + (size_t)(i + j) * from, sizeof value);
                block[j] = (float)value;
            }
        else
            convert_to_f32(job->src + (size_t)i * from, job->from, block, n);
        convert_from_f32(block, job->to, job->dst + (size_t)i * to, n);
    }
}

static bool is_floating(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16 || dtype == TN_F64;
}

/* Leaves t where it is mapped when it can be used there, else copies it into the device's memory in the model's dtype.
 */
static bool place_tensor(graph_builder *b, const char *name, tn_tensor *t)
{
    size_t element = tn_dtype_size(t->dtype);
    bool usable = t->dtype == b->dtype && b->device->ops->host_memory && (uintptr_t)t->data % element == 0;
    if (usable)
        return true;
    size_t bytes = (size_t)tn_tensor_count(t) * tn_dtype_size(b->dtype);
    void *memory = NULL, *host = NULL;
    if (!keep_copy(b, bytes, &memory))
        return false;
    host = b->device->ops->host_memory ? memory : malloc(bytes ? bytes : 1);
    if (!host) {
        build_fail(b, TN_E_MEMORY, name, "out of memory for a tensor of %zu bytes; free some memory", bytes);
        return false;
    }
    convert_job job = {t->data, host, t->dtype, b->dtype};
    tn_parallel_for(tn_tensor_count(t), 16 * CONVERT_BLOCK, convert_piece, &job);
    if (!b->device->ops->host_memory) {
        b->status = device_upload(b->device, memory, host, bytes, b->err);
        free(host);
    }
    t->data = memory;
    t->dtype = b->dtype;
    return b->status == TN_OK;
}

bool build_tensor(graph_builder *b, graph_module *module, const char *name, int32_t ndim, const int64_t *shape,
                  tn_tensor *out)
{
    if (b->status != TN_OK)
        return false;
    char full[NAME_SIZE];
    if (!tensor_name(module, name, full)) {
        build_fail(b, TN_E_INPUT, module->path, "the name of tensor '%s' is too long", name);
        return false;
    }
    if (!shards_get(b->weights, full, out)) {
        build_fail(b, TN_E_INPUT, full, "the checkpoint has no such tensor; is config.json that of these weights?");
        return false;
    }
    if (!is_floating(out->dtype)) {
        build_fail(b, TN_E_INPUT, full, "has dtype %s, expected f32, bf16 or f16 (quantised weights are not supported)",
                   tn_dtype_name(out->dtype));
        return false;
    }
    bool same = out->ndim == ndim;
    for (int32_t i = 0; same && i < ndim; i++)
        same = out->shape[i] == shape[i];
    if (!same) {
        char got[128], want[128];
        shape_text(got, sizeof got, out->ndim, out->shape);
        shape_text(want, sizeof want, ndim, shape);
        build_fail(b, TN_E_INPUT, full, "has shape %s in %s, config.json implies %s", got,
                   shards_file_of(b->weights, full), want);
        return false;
    }
    b->done_bytes += tn_tensor_count(out) * (int64_t)tn_dtype_size(out->dtype);
    if (!place_tensor(b, full, out))
        return false;
    if (b->progress && b->progress(b->progress_ctx, "loading", b->done_bytes, b->total_bytes)) {
        build_fail(b, TN_E_CANCELLED, full, "loading was cancelled");
        return false;
    }
    module->parameters += tn_tensor_count(out);
    module->bytes += tn_tensor_count(out) * (int64_t)tn_dtype_size(out->dtype);
    return true;
}

/* ---- sites ------------------------------------------------------------------------------------ */

static graph_site *add_site(graph_builder *b, graph_module *m, tn_op op, graph_site *outer)
{
    if (b->status != TN_OK || !m)
        return NULL;
    graph_site *s = graph_add_site(b->graph, m, op, outer, b->err);
    if (!s)
        b->status = TN_E_MEMORY;
    return s;
}

static void set_param(graph_builder *b, graph_site *s, tn_role role, const tn_tensor *tensors, int64_t count)
{
    if (b->status != TN_OK)
        return;
    b->status = graph_set_param(b->graph, s, role, tensors, count, b->err);
    s->site.meaning[TN_AXIS_WEIGHT] = (int32_t)tensors[0].dtype;
}

graph_site *build_linear(graph_builder *b, graph_module *parent, const char *name, int64_t in, int64_t out, bool bias,
                         graph_site *outer)
{
    graph_module *m = build_module(b, parent, name, "Linear");
    graph_site *s = add_site(b, m, TN_OP_LINEAR, outer);
    tn_tensor weight, bias_tensor;
    if (!s || !build_tensor(b, m, "weight", 2, (int64_t[]){out, in}, &weight))
        return NULL;
    set_param(b, s, TN_ROLE_WEIGHT, &weight, 1);
    if (bias && build_tensor(b, m, "bias", 1, &out, &bias_tensor)) {
        set_param(b, s, TN_ROLE_BIAS, &bias_tensor, 1);
        s->site.features |= TN_HAS_BIAS;
    }
    s->site.dim[TN_DIM_HIDDEN] = in;
    s->site.dim[TN_DIM_OUT] = out;
    return b->status == TN_OK ? s : NULL;
}

static void fill_norm(graph_builder *b, graph_site *s, const build_norm_spec *spec, const tn_tensor *weight)
{
    if (weight)
        set_param(b, s, TN_ROLE_WEIGHT, weight, 1);
    s->site.meaning[TN_AXIS_NORM] = spec->variant;
    s->site.dim[TN_DIM_WIDTH] = spec->width;
    s->site.num[TN_NUM_EPS] = spec->eps;
}

graph_site *build_norm(graph_builder *b, graph_module *parent, const build_norm_spec *spec)
{
    graph_module *m = build_module(b, parent, spec->name, spec->class_name);
    graph_site *sum = spec->of_sum ? add_site(b, m, TN_OP_ADD_RMS_NORM, NULL) : NULL;
    graph_site *s = add_site(b, m, TN_OP_RMS_NORM, sum);
    tn_tensor tensor;
    const tn_tensor *weight = spec->variant == TN_NORM_NO_WEIGHT ? NULL : &tensor;
    if (!s || (weight && !build_tensor(b, m, "weight", 1, &spec->width, &tensor)))
        return NULL;
    fill_norm(b, s, spec, weight);
    if (sum) {
        fill_norm(b, sum, spec, weight);
        sum->part[GRAPH_PART_NORM] = s;
    }
    return b->status == TN_OK ? s : NULL;
}

static void lend_param(graph_builder *b, graph_site *to, tn_role role, const graph_site *from, tn_role from_role)
{
    if (b->status == TN_OK && from && from->site.param[from_role].count > 0)
        set_param(b, to, role, from->site.param[from_role].tensors, 1);
}

graph_site *build_mlp(graph_builder *b, graph_module *parent, const build_mlp_spec *spec, graph_site *outer)
{
    graph_module *m = build_module(b, parent, spec->name, spec->class_name);
    graph_site *s = add_site(b, m, TN_OP_MLP, outer);
    if (!s)
        return NULL;
    graph_site *gate = build_linear(b, m, "gate_proj", spec->hidden, spec->inter, spec->bias, s);
    graph_site *up = build_linear(b, m, "up_proj", spec->hidden, spec->inter, spec->bias, s);
    graph_site *down = build_linear(b, m, "down_proj", spec->inter, spec->hidden, spec->bias, s);
    if (b->status != TN_OK)
        return NULL;
    s->part[GRAPH_PART_GATE] = gate;
    s->part[GRAPH_PART_UP] = up;
    s->part[GRAPH_PART_DOWN] = down;
    lend_param(b, s, TN_ROLE_GATE, gate, TN_ROLE_WEIGHT);
    lend_param(b, s, TN_ROLE_UP, up, TN_ROLE_WEIGHT);
    lend_param(b, s, TN_ROLE_DOWN, down, TN_ROLE_WEIGHT);
    lend_param(b, s, TN_ROLE_GATE_BIAS, gate, TN_ROLE_BIAS);
    lend_param(b, s, TN_ROLE_UP_BIAS, up, TN_ROLE_BIAS);
    lend_param(b, s, TN_ROLE_DOWN_BIAS, down, TN_ROLE_BIAS);
    s->site.meaning[TN_AXIS_ACT] = spec->act;
    s->site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    s->site.features = spec->bias ? TN_HAS_BIAS : 0;
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_INTER] = spec->inter;
    return b->status == TN_OK ? s : NULL;
}

/* ---- mixtures of experts ------------------------------------------------------------------------- */

static void fill_route(graph_site *s, const build_moe_spec *spec)
{
    s->site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    s->site.features |= spec->renorm ? TN_HAS_RENORM : 0;
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_EXPERTS] = spec->experts;
    s->site.dim[TN_DIM_TOP_K] = spec->top_k;
}

static void fill_experts(graph_site *s, const build_moe_spec *spec, tn_layout layout)
{
    s->site.meaning[TN_AXIS_ACT] = spec->act;
    s->site.meaning[TN_AXIS_LAYOUT] = layout;
    s->site.dim[TN_DIM_HIDDEN] = spec->hidden;
    s->site.dim[TN_DIM_INTER] = spec->inter;
    s->site.dim[TN_DIM_EXPERTS] = spec->experts;
    s->site.dim[TN_DIM_TOP_K] = spec->top_k;
}

static bool read_stacked(graph_builder *b, graph_module *m, const build_moe_spec *spec, graph_site *s)
{
    tn_tensor gate_up, down;
    if (!build_tensor(b, m, "gate_up_proj", 3, (int64_t[]){spec->experts, 2 * spec->inter, spec->hidden}, &gate_up) ||
        !build_tensor(b, m, "down_proj", 3, (int64_t[]){spec->experts, spec->hidden, spec->inter}, &down))
        return false;
    set_param(b, s, TN_ROLE_GATE_UP, &gate_up, 1);
    set_param(b, s, TN_ROLE_DOWN, &down, 1);
    return b->status == TN_OK;
}

static bool read_list(graph_builder *b, graph_module *m, const build_moe_spec *spec, graph_site *s)
{
    static const struct {
        const char *name;
        tn_role role;
    } kinds[] = {{"gate_proj", TN_ROLE_GATE}, {"up_proj", TN_ROLE_UP}, {"down_proj", TN_ROLE_DOWN}};
    tn_tensor *list = calloc((size_t)spec->experts, sizeof *list);
    if (!list)
        build_fail(b, TN_E_MEMORY, m->path, "out of memory for %lld experts", (long long)spec->experts);
    for (int kind = 0; list && kind < 3 && b->status == TN_OK; kind++) {
        bool down = kinds[kind].role == TN_ROLE_DOWN;
        int64_t shape[2] = {down ? spec->hidden : spec->inter, down ? spec->inter : spec->hidden};
        for (int64_t e = 0; e < spec->experts && b->status == TN_OK; e++) {
            char name[64];
            snprintf(name, sizeof name, "%lld.%s.weight", (long long)e, kinds[kind].name);
            build_tensor(b, m, name, 2, shape, &list[e]);
        }
        set_param(b, s, kinds[kind].role, list, spec->experts);
    }
    free(list);
    return b->status == TN_OK;
}

/* The block's site lends from those inside it, so that a kernel for the whole block finds all it needs in one place. */
static void gather_block(graph_builder *b, graph_site *block, const graph_site *route, const graph_site *experts)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *from = &route->site.param[role];
        if (from->count == 0)
            from = &experts->site.param[role];
        if (from->count > 0)
            set_param(b, block, (tn_role)role, from->tensors, from->count);
    }
}

graph_site *build_moe(graph_builder *b, graph_module *parent, const build_moe_spec *spec)
{
    graph_module *m = build_module(b, parent, spec->name, spec->block_class);
    graph_site *block = add_site(b, m, TN_OP_MOE_BLOCK, NULL);
    graph_module *gate_module = build_module(b, m, "gate", spec->router_class);
    graph_site *route = add_site(b, gate_module, TN_OP_MOE_ROUTE, block);
    graph_module *experts_module = build_module(b, m, "experts", spec->experts_class);
    graph_site *experts = add_site(b, experts_module, TN_OP_MOE_EXPERTS, block);
    tn_tensor router;
    if (b->status != TN_OK ||
        !build_tensor(b, gate_module, "weight", 2, (int64_t[]){spec->experts, spec->hidden}, &router))
        return NULL;
    set_param(b, route, TN_ROLE_ROUTER, &router, 1);
    bool stacked = build_has(b, experts_module, "gate_up_proj");
    tn_layout layout = stacked ? TN_LAYOUT_STACKED_OI : TN_LAYOUT_EXPERT_LIST;
    if (!(stacked ? read_stacked : read_list)(b, experts_module, spec, experts))
        return NULL;
    fill_route(route, spec);
    fill_experts(experts, spec, layout);
    fill_route(block, spec);
    fill_experts(block, spec, layout);
    gather_block(b, block, route, experts);
    block->part[GRAPH_PART_ROUTE] = route;
    block->part[GRAPH_PART_EXPERTS] = experts;
    return b->status == TN_OK ? block : NULL;
}

/* ---- scopes and activations ------------------------------------------------------------------------- */

graph_site *build_function(graph_builder *b, const char *scope, const char *name, tn_op op)
{
    graph_module *file = NULL;
    for (graph_module *m = b->graph->scopes->first_child; m; m = m->next)
        if (!strcmp(m->name, scope))
            file = m;
    if (!file)
        file = build_module(b, b->graph->scopes, scope, "scope");
    return add_site(b, build_module(b, file, name, "function"), op, NULL);
}

tn_act build_act(graph_builder *b, const config_node *config, const char *key, const char *fallback)
{
    static const struct {
        const char *name;
        tn_act act;
    } names[] = {{"silu", TN_ACT_SILU},         {"swish", TN_ACT_SILU},
                 {"gelu", TN_ACT_GELU},         {"gelu_pytorch_tanh", TN_ACT_GELU_TANH},
                 {"gelu_new", TN_ACT_GELU_NEW}, {"quick_gelu", TN_ACT_QUICK_GELU},
                 {"relu", TN_ACT_RELU},         {"relu2", TN_ACT_RELU2},
                 {"relu6", TN_ACT_RELU6},       {"sigmoid", TN_ACT_SIGMOID},
                 {"tanh", TN_ACT_TANH},         {"linear", TN_ACT_LINEAR},
                 {"mish", TN_ACT_MISH}};
    const char *value = fallback;
    if (b->status == TN_OK)
        b->status = config_str(config, key, &value, b->err);
    for (size_t i = 0; b->status == TN_OK && i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(value, names[i].name))
            return names[i].act;
    build_fail(b, TN_E_INPUT, "config.json", "%s: unknown activation '%s'", key, value);
    return 0;
}
