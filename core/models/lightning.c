/* MiniMax's linear attention (modeling_minimax, MiniMaxLightningAttention): the state S of a head forgets by e^-slope
 * from token to token and takes in k v^T, and q reads it. That is SELECTIVE_SCAN with steps of 1. */
#include "models/lightning.h"

#include "models/parts.h"

#include <math.h>
#include <stdlib.h>

typedef struct lightning_state {
    graph_site *qkv, *scan, *norm, *gate, *out;
    const tn_site *act, *times;
    int64_t heads, head;
} lightning_state;

/* slope = 2^(-8 (h + 1) / H) (1 - layer / (L - 1 + 1e-5) + 1e-5). Files hold it, too, with what follows from it. */
static graph_site *build_scan(graph_builder *b, graph_module *m, const lightning_spec *s, int64_t layer)
{
    graph_site *scan = build_site(b, m, TN_OP_SELECTIVE_SCAN, NULL);
    float *values = scan ? calloc((size_t)(3 * s->heads), sizeof *values) : NULL;
    double factor = 1 - (double)layer / ((double)s->layers - 1 + 1e-5) + 1e-5;
    tn_tensor decay, bias, skip;
    if (scan && !values)
        build_fail(b, TN_E_MEMORY, "graph", "out of memory");
    for (int64_t h = 0; values && h < s->heads; h++) {
        values[h] = (float)(log(factor) - log(2) * 8 * (double)(h + 1) / (double)s->heads);
        values[s->heads + h] = (float)log(expm1(1)); /* softplus gives 1                                  */
    }
    if (values && build_values(b, TN_F32, s->heads, values, &decay) &&
        build_values(b, TN_F32, s->heads, values + s->heads, &bias) &&
        build_values(b, TN_F32, s->heads, values + 2 * s->heads, &skip)) {
        build_param(b, scan, TN_ROLE_DECAY, &decay, 1);
        build_param(b, scan, TN_ROLE_BIAS, &bias, 1);
        build_param(b, scan, TN_ROLE_WEIGHT, &skip, 1);
        scan->site.dim[TN_DIM_Q_HEADS] = scan->site.dim[TN_DIM_KV_HEADS] = s->heads;
        scan->site.dim[TN_DIM_HEAD] = scan->site.dim[TN_DIM_HEAD_V] = s->head;
    }
    free(values);
    return scan;
}

static void build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const lightning_spec *s = spec;
    lightning_state *l = state;
    const parts_norm_kind norm = {.class_name = "MiniMaxRMSNorm", .variant = TN_NORM_W, .eps = 1e-6};
    graph_module *m = build_module(b, layer, "self_attn", "MiniMaxLightningAttention");
    if (!m)
        return;
    int64_t inner = s->heads * s->head;
    l->heads = s->heads;
    l->head = s->head;
    l->qkv = parts_linear(b, m, "qkv_proj", s->hidden, 3 * inner, false, NULL);
    l->scan = build_scan(b, m, s, strtoll(layer->name, NULL, 10));
    l->norm = parts_norm(b, m, "norm", &norm, inner, false);
    l->gate = parts_linear(b, m, "output_gate", s->hidden, inner, false, NULL);
    l->out = parts_linear(b, m, "out_proj", inner, s->hidden, false, NULL);
    l->act = parts_act_step(b, m, TN_OP_ACT, s->act, 3 * inner);
    l->times = parts_act_step(b, m, TN_OP_GLU, TN_ACT_SIGMOID, inner);
}

static model_layer cache(const graph_builder *b, const void *spec)
{
    (void)b;
    const lightning_spec *s = spec;
    return (model_layer){.state_heads = s->heads, .state_k = s->head, .state_v = s->head};
}

static tn_tensor forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const lightning_state *l = state;
    int64_t n = l->heads, d = l->head;
    tn_tensor qkv = steps_linear(r, l->qkv, x), gate = steps_linear(r, l->gate, x);
    steps_change(r, l->act, &qkv);
    const steps_scan_inputs in = {.c = steps_heads(r, &qkv, 0, n, d, 3 * d),
                                  .b = steps_heads(r, &qkv, d, n, d, 3 * d),
                                  .x = steps_heads(r, &qkv, 2 * d, n, d, 3 * d),
                                  .dt = steps_upload(r, r->dtype, 3, (int64_t[]){r->rows, r->tokens, n}, NULL)};
    tn_tensor o = steps_scan(r, l->scan, at->layer, &in);
    o = steps_view(&o, 2, (int64_t[]){x->shape[0], n * d});
    steps_norm_in_place(r, l->norm, &o);
    steps_glu(r, l->times, &gate, &o);
    return steps_linear(r, l->out, &o);
}

const mixer_kind lightning = {sizeof(lightning_state), build, cache, forward, NULL};
