/* The gated delta rule with a decay for each channel. */
#include "models/channel_delta.h"

#include "models/gated_conv.h"

enum { Q, K, V, PARTS };

typedef struct channel_delta_state {
    graph_site *in[PARTS], *conv[PARTS];
    graph_site *f_a, *f_b, *b, *g_a, *g_b, *rule, *norm, *out;
    tn_site *gate; /* step                                                                        */
    int64_t heads, dim;
} channel_delta_state;

/* Which are cut by sums alone. */
static parts_share share_heads(const graph_builder *b, const channel_delta_spec *s)
{
    return parts_summed_of(b, s->heads, 1);
}

static int64_t own_heads(const graph_builder *b, const channel_delta_spec *s)
{
    const parts_share own = share_heads(b, s);
    return own.cut.group ? build_ranges_rows(&own.ranges) : s->heads;
}

static graph_site *build_rule(graph_builder *b, graph_module *m, graph_module *gate, const channel_delta_spec *s)
{
    const parts_share share = share_heads(b, s), channels = parts_share_rows(&share, s->dim);
    const build_form by_head = {.ranges = share.cut.group ? &share.ranges : NULL, .dim = 2},
                     by_channel = {.ranges = share.cut.group ? &channels.ranges : NULL};
    const int64_t heads = own_heads(b, s), per_channel[2] = {heads, s->dim}, all = s->heads * s->dim;
    graph_site *rule = build_site(b, m, TN_OP_GATED_DELTA_RULE, NULL);
    tn_tensor rate, bias;
    if (!rule || !build_tensor_as(b, gate, "A_log", 4, (int64_t[]){1, 1, s->heads, 1}, &by_head, &rate) ||
        !build_tensor_as(b, gate, "dt_bias", 1, &all, &by_channel, &bias))
        return NULL;
    rate = tn_tensor_dense(rate.data, rate.dtype, 1, &heads);
    bias = tn_tensor_dense(bias.data, bias.dtype, 2, per_channel);
    build_param(b, rule, TN_ROLE_DECAY, &rate, 1);
    build_param(b, rule, TN_ROLE_BIAS, &bias, 1);
    rule->cut = share.cut;
    rule->stays_cut = true;
    rule->site.features = TN_HAS_CHANNEL_DECAY;
    rule->site.dim[TN_DIM_Q_HEADS] = rule->site.dim[TN_DIM_KV_HEADS] = heads;
    rule->site.dim[TN_DIM_HEAD] = rule->site.dim[TN_DIM_HEAD_V] = s->dim;
    return rule;
}

static void build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    static const char *const names[PARTS][2] = {{"q_proj", "q_conv1d"}, {"k_proj", "k_conv1d"}, {"v_proj", "v_conv1d"}};
    const channel_delta_spec *s = spec;
    channel_delta_state *d = state;
    int64_t width = s->heads * s->dim;
    const parts_share share = share_heads(b, s), own = parts_share_rows(&share, s->dim), back = parts_back_of(b, &own);
    const parts_share each = parts_share_rows(&share, 1);
    const parts_norm_kind norm = {.class_name = s->norm_class, .variant = TN_NORM_W_F32, .eps = s->eps};
    graph_module *m = build_module(b, layer, "self_attn", s->class_name);
    d->heads = own_heads(b, s);
    d->dim = s->dim;
    for (int i = 0; i < PARTS; i++) {
        d->in[i] = parts_linear_some(NULL, b, m, names[i][0], s->hidden, width, false, &own);
        d->conv[i] = gated_conv_site(b, m, names[i][1], width, s->taps, s->act, false, &own);
    }
    graph_module *gate = build_module(b, m, "forget_gate", s->gate_class);
    d->f_a = parts_linear(b, gate, "f_a_proj", s->hidden, s->dim, false, NULL);
    d->f_b = parts_linear_some(NULL, b, gate, "f_b_proj", s->dim, width, false, &own);
    d->b = parts_linear_some(NULL, b, m, "b_proj", s->hidden, s->heads, false, &each);
    d->rule = build_rule(b, m, gate, s);
    d->g_a = parts_linear(b, m, "g_a_proj", s->hidden, s->dim, false, NULL);
    d->g_b = parts_linear_some(NULL, b, m, "g_b_proj", s->dim, width, false, &own);
    d->norm = parts_norm(b, m, "o_norm", &norm, s->dim, false);
    d->out = parts_linear_some(NULL, b, m, "o_proj", width, s->hidden, false, &back);
    d->gate = parts_act_step(b, m, TN_OP_GLU, TN_ACT_SIGMOID, s->dim);
}

static model_layer cache(const graph_builder *b, const void *spec)
{
    const channel_delta_spec *s = spec;
    return (model_layer){.conv_width = PARTS * own_heads(b, s) * s->dim,
                         .conv_taps = s->taps,
                         .state_heads = own_heads(b, s),
                         .state_k = s->dim,
                         .state_v = s->dim};
}

/* Through both matrices. */
static tn_tensor narrow(graph_run *r, const graph_site *first, const graph_site *second, const tn_tensor *x)
{
    tn_tensor inner = steps_linear(r, first, x);
    return steps_linear(r, second, &inner);
}

static tn_tensor forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const channel_delta_state *d = state;
    int64_t width = d->heads * d->dim, heads[4] = {r->rows, r->tokens, d->heads, d->dim};
    tn_tensor part[PARTS];
    for (int i = 0; i < PARTS; i++) {
        tn_tensor in = steps_linear(r, d->in[i], x);
        in = steps_short_conv_part(r, d->conv[i], at->layer, &in, i * width);
        part[i] = steps_view(&in, 4, heads);
    }
    tn_tensor a = narrow(r, d->f_a, d->f_b, x), b = steps_linear(r, d->b, x), gate = narrow(r, d->g_a, d->g_b, x);
    const steps_delta in = {
        .q = part[Q], .k = part[K], .v = part[V], .a = steps_view(&a, 4, heads), .b = steps_view(&b, 3, heads)};
    tn_tensor o = steps_delta_rule(r, d->rule, at->layer, &in);
    steps_norm_in_place(r, d->norm, &o);
    const int64_t rows[2] = {x->shape[0] * d->heads, d->dim};
    tn_tensor up = steps_view(&o, 2, rows), by = steps_view(&gate, 2, rows);
    steps_glu(r, d->gate, &by, &up);
    o = steps_view(&o, 2, (int64_t[]){x->shape[0], width});
    return steps_linear(r, d->out, &o);
}

const mixer_kind channel_delta = {sizeof(channel_delta_state), build, cache, forward, NULL};
