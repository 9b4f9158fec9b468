/* The gated delta rule as a layer. */
#include "models/delta_net.h"

#include "models/gated_conv.h"

typedef struct delta_state {
    graph_site *qkv, *z, *b, *a; /* fused: qkv is that of all but b and a, b that of both          */
    graph_site *conv, *rule, *norm, *out;
    tn_site *copy; /* of fused projections: from a key head's share to where it belongs            */
    int64_t k_heads, v_heads, head_k, head_v;
} delta_state;

void delta_net_read(const config_reader *c, delta_net_spec *s)
{
    enum { MOST_HEADS = 1 << 14, MOST_WIDTH = 1 << 12 };
    s->k_heads = config_i64(c, "linear_num_key_heads", 16, 1, MOST_HEADS);
    s->v_heads = config_i64(c, "linear_num_value_heads", 32, 1, MOST_HEADS);
    s->head_k = config_i64(c, "linear_key_head_dim", 128, 1, MOST_WIDTH);
    s->head_v = config_i64(c, "linear_value_head_dim", 128, 1, MOST_WIDTH);
    s->taps = config_i64(c, "linear_conv_kernel_dim", 4, 1, MOST_WIDTH);
    if (s->v_heads % s->k_heads)
        config_fail(c, "linear_num_value_heads", "is %lld, no multiple of linear_num_key_heads %lld",
                    (long long)s->v_heads, (long long)s->k_heads);
}

bool delta_net_is_layer(const config_reader *c, int64_t i)
{
    static const config_word types[] = {{"full_attention", false}, {"linear_attention", true}, {0}};
    if (config_list(c, "layer_types") >= 0)
        return config_list_choice(c, "layer_types", i, types) != 0;
    return (i + 1) % config_i64(c, "full_attention_interval", 4, 1, 1 << 12) != 0;
}

static int64_t conv_width(const delta_net_spec *s)
{
    return 2 * s->k_heads * s->head_k + s->v_heads * s->head_v;
}

/* Key heads, with their value heads: cut by sums alone. */
static parts_share share_heads(const graph_builder *b, const delta_net_spec *s)
{
    return parts_summed_of(b, s->k_heads, 1);
}

/* The spec with this rank's heads alone. */
static delta_net_spec own_of(const graph_builder *b, const delta_net_spec *s)
{
    const parts_share share = share_heads(b, s);
    delta_net_spec own = *s;
    if (share.cut.group) {
        own.k_heads = build_ranges_rows(&share.ranges);
        own.v_heads = own.k_heads * (s->v_heads / s->k_heads);
    }
    return own;
}

static graph_site *build_rule(graph_builder *b, graph_module *m, const delta_net_spec *s)
{
    const parts_share share = share_heads(b, s), values = parts_share_rows(&share, s->v_heads / s->k_heads);
    const build_form form = {.ranges = share.cut.group ? &values.ranges : NULL};
    const delta_net_spec own = own_of(b, s);
    graph_site *rule = build_site(b, m, TN_OP_GATED_DELTA_RULE, NULL);
    tn_tensor rate, bias;
    if (!rule || !build_tensor_as(b, m, "A_log", 1, &s->v_heads, &form, &rate) ||
        !build_tensor_as(b, m, "dt_bias", 1, &s->v_heads, &form, &bias))
        return NULL;
    build_param(b, rule, TN_ROLE_DECAY, &rate, 1);
    build_param(b, rule, TN_ROLE_BIAS, &bias, 1);
    rule->cut = share.cut;
    rule->stays_cut = true;
    rule->site.dim[TN_DIM_Q_HEADS] = own.k_heads;
    rule->site.dim[TN_DIM_KV_HEADS] = own.v_heads;
    rule->site.dim[TN_DIM_HEAD] = s->head_k;
    rule->site.dim[TN_DIM_HEAD_V] = s->head_v;
    return rule;
}

static void build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const delta_net_spec *s = spec;
    delta_state *d = state;
    graph_module *m = build_module(b, layer, "linear_attn", s->class_name);
    int64_t values = s->v_heads * s->head_v, all = conv_width(s);
    const parts_norm_kind norm = {.class_name = s->norm_class, .variant = TN_NORM_W_GATED, .eps = s->eps};
    const delta_net_spec own = own_of(b, s);
    const parts_share share = share_heads(b, s), heads = parts_share_rows(&share, s->v_heads / s->k_heads),
                      of_v = parts_share_rows(&heads, s->head_v), back = parts_back_of(b, &of_v),
                      of_both = parts_share_rows(&heads, 2),
                      of_all = parts_share_rows(&share, (all + values) / s->k_heads);
    parts_share mixed = parts_share_rows(&share, s->head_k);
    parts_share_again(&mixed, s->k_heads * s->head_k);
    mixed.ranges.at[mixed.ranges.count] = of_v.ranges.at[0];
    mixed.ranges.at[mixed.ranges.count++].first += 2 * s->k_heads * s->head_k;
    *d = (delta_state){.k_heads = own.k_heads, .v_heads = own.v_heads, .head_k = s->head_k, .head_v = s->head_v};
    d->rule = build_rule(b, m, s);
    d->conv = gated_conv_site(b, m, "conv1d", all, s->taps, s->act, false, &mixed);
    if (s->fused) {
        d->qkv = parts_linear_some(NULL, b, m, "in_proj_qkvz", s->hidden, all + values, false, &of_all);
        d->b = parts_linear_some(NULL, b, m, "in_proj_ba", s->hidden, 2 * s->v_heads, false, &of_both);
        d->copy = build_step(b, m, TN_OP_COPY, all);
    }
    d->norm = parts_norm(b, m, "norm", &norm, s->head_v, false);
    d->out = parts_linear_some(NULL, b, m, "out_proj", values, s->hidden, false, &back);
    if (!s->fused) {
        d->qkv = parts_linear_some(NULL, b, m, "in_proj_qkv", s->hidden, all, false, &mixed);
        d->z = parts_linear_some(NULL, b, m, "in_proj_z", s->hidden, values, false, &of_v);
        d->b = parts_linear_some(NULL, b, m, "in_proj_b", s->hidden, s->v_heads, false, &heads);
        d->a = parts_linear_some(NULL, b, m, "in_proj_a", s->hidden, s->v_heads, false, &heads);
    }
}

static model_layer cache(const graph_builder *b, const void *spec)
{
    const delta_net_spec s = own_of(b, spec);
    return (model_layer){.conv_width = conv_width(&s),
                         .conv_taps = s.taps,
                         .state_heads = s.v_heads,
                         .state_k = s.head_k,
                         .state_v = s.head_v};
}

/* What the projections give: rows of [q|k|v], the gate as [B*T, key heads, value heads of one, dv], b and a. */
typedef struct projected {
    tn_tensor qkv, z, b, a;
} projected;

/* width columns of each key head's share, from begin on, become columns of a tensor of their own. */
static void gather(graph_run *r, const delta_state *d, const tn_tensor *from, int64_t begin, int64_t width,
                   const tn_tensor *to, int64_t at)
{
    tn_tensor x = steps_heads(r, from, begin, d->k_heads, width, from->shape[1] / d->k_heads);
    tn_tensor y = steps_heads(r, to, at, d->k_heads, width, width);
    steps_copy(r, d->copy, &x, &y);
}

static tn_tensor gate_of(const delta_state *d, const tn_tensor *x, int64_t begin, int64_t step)
{
    tn_tensor first = steps_columns(x, begin, x->shape[1] - begin);
    tn_tensor z = tn_tensor_dense(first.data, x->dtype, 4,
                                  (int64_t[]){x->shape[0], d->k_heads, d->v_heads / d->k_heads, d->head_v});
    z.stride[0] = x->stride[0];
    z.stride[1] = step;
    return z;
}

static projected project_fused(graph_run *r, const delta_state *d, const tn_tensor *x)
{
    tn_tensor all = steps_linear(r, d->qkv, x), ba = steps_linear(r, d->b, x);
    int64_t keys = d->k_heads * d->head_k, group = d->v_heads / d->k_heads, values = group * d->head_v;
    int64_t rows = x->shape[0], narrow[2] = {rows, d->v_heads};
    projected p = {.qkv = steps_take(r, r->dtype, 2, (int64_t[]){rows, 2 * keys + d->k_heads * values}),
                   .b = steps_take(r, r->dtype, 2, narrow),
                   .a = steps_take(r, r->dtype, 2, narrow)};
    gather(r, d, &all, 0, d->head_k, &p.qkv, 0);
    gather(r, d, &all, d->head_k, d->head_k, &p.qkv, keys);
    gather(r, d, &all, 2 * d->head_k, values, &p.qkv, 2 * keys);
    gather(r, d, &ba, 0, group, &p.b, 0);
    gather(r, d, &ba, group, group, &p.a, 0);
    p.z = gate_of(d, &all, 2 * d->head_k + values, all.shape[1] / d->k_heads);
    return p;
}

static projected project(graph_run *r, const delta_state *d, const tn_tensor *x)
{
    if (d->copy)
        return project_fused(r, d, x);
    projected p = {.qkv = steps_linear(r, d->qkv, x), .b = steps_linear(r, d->b, x), .a = steps_linear(r, d->a, x)};
    tn_tensor z = steps_linear(r, d->z, x);
    p.z = gate_of(d, &z, 0, d->v_heads / d->k_heads * d->head_v);
    return p;
}

static tn_tensor forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const delta_state *d = state;
    projected p = project(r, d, x);
    int64_t keys = d->k_heads * d->head_k, narrow[3] = {r->rows, r->tokens, d->v_heads};
    tn_tensor y = steps_short_conv(r, d->conv, at->layer, &p.qkv);
    const steps_delta in = {.q = steps_heads(r, &y, 0, d->k_heads, d->head_k, d->head_k),
                            .k = steps_heads(r, &y, keys, d->k_heads, d->head_k, d->head_k),
                            .v = steps_heads(r, &y, 2 * keys, d->v_heads, d->head_v, d->head_v),
                            .a = steps_view(&p.a, 3, narrow),
                            .b = steps_view(&p.b, 3, narrow)};
    tn_tensor o = steps_delta_rule(r, d->rule, at->layer, &in);
    tn_tensor heads = steps_view(&o, 4, p.z.shape);
    steps_gated_norm(r, d->norm, &heads, &p.z);
    o = steps_view(&o, 2, (int64_t[]){x->shape[0], d->v_heads * d->head_v});
    return steps_linear(r, d->out, &o);
}

const mixer_kind delta_net = {sizeof(delta_state), build, cache, forward, NULL};
