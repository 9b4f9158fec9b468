/* W + s B A for every product that an adapter is beside, of experts for each of them. In f32 and rounded once, but
 * where peft rounds twice. */
#include "train/merge.h"

#include "base/convert.h"

#include <stdlib.h>

/* Some outputs of one product: element (o, i) of its weight is at + o stride_o + i stride_i. */
typedef struct target {
    const tn_tensor *w; /* for its type                                                              */
    const char *at;
    int64_t out, in, stride_o, stride_i;
    const float *a, *b; /* a [rank, in] dense; b element (o, k) at o b_row + k b_column              */
    int64_t rank, b_row, b_column;
    double scale;
    bool twice; /* s B A is rounded before it is added                                               */
} target;

typedef struct merging {
    const peft_adapter *adapter;
    char *copy; /* of bytes from at on; NULL: only looks whether there is anything                   */
    const char *at;
    size_t bytes;
    bool touched;
    const target *target;
} merging;

static void merge_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const merging *m = ctx;
    const target *t = m->target;
    size_t size = tn_dtype_size(t->w->dtype);
    (void)thread;
    for (int64_t o = begin; o < end; o++)
        for (int64_t i = 0; i < t->in; i++) {
            char *w = m->copy + (t->at - m->at) + (o * t->stride_o + i * t->stride_i) * (int64_t)size;
            float sum = 0, value;
            for (int64_t k = 0; k < t->rank; k++)
                sum += t->b[o * t->b_row + k * t->b_column] * t->a[k * t->in + i];
            sum *= (float)t->scale;
            if (t->twice) {
                uint32_t bits = 0;
                convert_from_f32(&sum, t->w->dtype, &bits, 1);
                convert_to_f32(&bits, t->w->dtype, &sum, 1);
            }
            convert_to_f32(w, t->w->dtype, &value, 1);
            value += sum;
            convert_from_f32(&value, t->w->dtype, w, 1);
        }
}

static void merge_target(merging *m, const target *t)
{
    if (t->at < m->at || t->at >= m->at + m->bytes)
        return;
    m->touched = true;
    m->target = t;
    if (m->copy)
        tn_parallel_for(t->out, 1, merge_rows, m);
}

static void merge_linear(merging *m, const tn_site *s)
{
    const tn_tensor *w = s->param[TN_ROLE_WEIGHT].tensors, *a = s->param[TN_ROLE_A_OF(TN_ROLE_WEIGHT)].tensors;
    const tn_tensor *b = s->param[TN_ROLE_B_OF(TN_ROLE_WEIGHT)].tensors;
    const target t = {.w = w,
                      .at = w->data,
                      .out = w->shape[0],
                      .in = w->shape[1],
                      .stride_o = w->stride[0],
                      .stride_i = w->stride[1],
                      .a = a->data,
                      .b = b->data,
                      .rank = a->shape[0],
                      .b_row = b->stride[0],
                      .b_column = 1,
                      .scale = s->num[TN_NUM_SCALE]};
    merge_target(m, &t);
}

/* Does the file have the factors of all experts in one tensor? peft adds those to a parameter in the parameter's type.
 */
static bool is_stacked(const peft_adapter *a, const tn_tensor *b)
{
    for (size_t i = 0; i < a->view_count; i++)
        if (a->views[i].tensor.data == b->data)
            return a->views[i].tensor.shape[1] == b->shape[1];
    return false;
}

/* `count` outputs of every expert, from `first` on of a parameter, which are those of the factors from `from` on. */
static void merge_outputs(merging *m, const tn_site *s, tn_role factors, tn_role role, int64_t first, int64_t from,
                          int64_t count)
{
    const tn_tensor *a = s->param[TN_ROLE_A_OF(factors)].tensors, *b = s->param[TN_ROLE_B_OF(factors)].tensors;
    const tn_param *p = &s->param[role];
    int64_t experts = s->dim[TN_DIM_EXPERTS], rank = a->shape[0] / experts;
    int32_t layout = s->meaning[TN_AXIS_LAYOUT];
    bool stacked = is_stacked(m->adapter, b);
    for (int64_t e = 0; e < experts; e++) {
        const tn_tensor *w = layout == TN_LAYOUT_EXPERT_LIST ? &p->tensors[e] : p->tensors;
        int d = w->ndim - 2, out = layout == TN_LAYOUT_STACKED_IO || layout == TN_LAYOUT_PAIRS_IO ? d + 1 : d;
        int64_t begin = first * w->stride[out] + (d > 0 ? e * w->stride[0] : 0);
        const target t = {.w = w,
                          .at = (const char *)w->data + begin * (int64_t)tn_dtype_size(w->dtype),
                          .out = count,
                          .in = a->shape[1],
                          .stride_o = w->stride[out],
                          .stride_i = w->stride[out == d ? d + 1 : d],
                          .a = (const float *)a->data + e * rank * a->stride[0],
                          .b = (const float *)b->data + from * b->stride[0] + e,
                          .rank = rank,
                          .b_row = b->stride[0],
                          .b_column = experts,
                          .twice = stacked,
                          .scale = s->num[role == TN_ROLE_DOWN ? TN_NUM_SCALE_DOWN : TN_NUM_SCALE]};
        merge_target(m, &t);
    }
}

static void merge_experts(merging *m, const tn_site *s)
{
    int64_t inter = s->dim[TN_DIM_INTER];
    bool list = s->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_EXPERT_LIST;
    if (s->param[TN_ROLE_A_OF(TN_ROLE_GATE_UP)].count > 0 && !list)
        merge_outputs(m, s, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP, 0, 0, 2 * inter);
    if (s->param[TN_ROLE_A_OF(TN_ROLE_GATE_UP)].count > 0 && list) {
        merge_outputs(m, s, TN_ROLE_GATE_UP, TN_ROLE_GATE, 0, 0, inter);
        merge_outputs(m, s, TN_ROLE_GATE_UP, TN_ROLE_UP, 0, inter, inter);
    }
    if (s->param[TN_ROLE_A_OF(TN_ROLE_GATE)].count > 0)
        merge_outputs(m, s, TN_ROLE_GATE, list ? TN_ROLE_GATE : TN_ROLE_GATE_UP, 0, 0, inter);
    if (s->param[TN_ROLE_A_OF(TN_ROLE_UP)].count > 0)
        merge_outputs(m, s, TN_ROLE_UP, list ? TN_ROLE_UP : TN_ROLE_GATE_UP, list ? 0 : inter, 0, inter);
    if (s->param[TN_ROLE_A_OF(TN_ROLE_DOWN)].count > 0)
        merge_outputs(m, s, TN_ROLE_DOWN, TN_ROLE_DOWN, 0, 0, s->dim[TN_DIM_HIDDEN]);
}

static void merge_sites(const tn_model *model, merging *m)
{
    const graph *g = model->target.graph;
    for (size_t i = 0; i < g->site_count; i++) {
        const tn_site *s = &g->sites[i]->site;
        if (s->op == TN_OP_LORA_LINEAR)
            merge_linear(m, s);
        if (s->op == TN_OP_MOE_EXPERTS && s->features & TN_HAS_ADAPTER)
            merge_experts(m, s);
    }
}

void merge_into(const tn_model *model, const char *at, size_t bytes, char *copy)
{
    merging m = {.adapter = model->adapter, .copy = copy, .at = at, .bytes = bytes};
    merge_sites(model, &m);
}

bool merge_touches(const tn_model *model, const char *at, size_t bytes)
{
    merging m = {.adapter = model->adapter, .at = at, .bytes = bytes};
    merge_sites(model, &m);
    return m.touched;
}

/* Is the weight used by a step (an embedding), or by a product without an adapter? */
static bool is_shared(const graph *g, const graph_site *lora)
{
    const void *data = lora->site.param[TN_ROLE_WEIGHT].tensors->data;
    for (size_t i = 0; i < g->step_count; i++)
        if (g->steps[i]->site.param[TN_ROLE_WEIGHT].count > 0 &&
            g->steps[i]->site.param[TN_ROLE_WEIGHT].tensors->data == data)
            return true;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *s = g->sites[i];
        if (s->site.op == TN_OP_LINEAR && s->outer != lora && s->site.param[TN_ROLE_WEIGHT].tensors->data == data)
            return true;
    }
    return false;
}

tn_status merge_check(const tn_model *model, tn_error *err)
{
    const graph *g = model->target.graph;
    if (!model->adapter)
        return tn_fail(err, TN_E_USAGE, model->folder, "was opened without an adapter, so there is nothing to merge");
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i]->site.op == TN_OP_LORA_LINEAR && is_shared(g, g->sites[i]))
            return tn_fail(err, TN_E_INPUT, g->sites[i]->site.path,
                           "shares its weight with something that the adapter is not beside; it cannot be merged");
    return TN_OK;
}
