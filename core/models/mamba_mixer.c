/* The mixer of Mamba-2. What the scan gives goes in f32 into gate and norm, whatever the model's type is; only what
 * these make of it is rounded. */
#include "models/mamba_mixer.h"

#include "models/gated_conv.h"

#include <float.h>
#include <string.h>

const mamba_mixer_keys mamba_mixer_usual = {.heads = "mamba_n_heads",
                                            .head = "mamba_d_head",
                                            .groups = "mamba_n_groups",
                                            .state = "mamba_d_state",
                                            .taps = "mamba_d_conv",
                                            .expand = "mamba_expand",
                                            .conv_bias = "mamba_conv_bias",
                                            .default_heads = 128,
                                            .default_groups = 1,
                                            .default_state = 256};

static void read_limits(const config_reader *c, mamba_mixer_spec *s)
{
    static const char key[] = "time_step_limit";
    s->limit = FLT_MAX;
    if (config_list(c, key) < 0)
        return;
    s->least = config_list_f64(c, key, 0);
    s->limit = config_list_f64(c, key, 1);
    s->least = s->least > 0 ? s->least : 0;
    s->limit = s->limit < FLT_MAX ? s->limit : FLT_MAX;
    if (!(s->least <= s->limit))
        config_fail(c, key, "is %g, %g, which nothing lies between", s->least, s->limit);
}

/* "auto" means what is left for a head. */
static int64_t head_size(const config_reader *c, const mamba_mixer_keys *k, int64_t inner, int64_t heads, int64_t most)
{
    bool named = config_is_str(c, k->head);
    int64_t fallback = k->default_head ? k->default_head : inner / heads;
    if (named && strcmp(config_str(c, k->head, "auto"), "auto"))
        config_fail(c, k->head, "is '%s', it must be a number or auto", config_str(c, k->head, "auto"));
    return named ? inner / heads : config_i64(c, k->head, fallback, 1, most);
}

void mamba_mixer_read(const config_reader *c, const mamba_mixer_keys *k, int64_t inner, mamba_mixer_spec *s)
{
    enum { MOST_HEADS = 1 << 14, MOST_WIDTH = 1 << 12, MOST_EXPAND = 64 };
    bool given = inner != 0;
    double times = given ? 1 : config_f64(c, k->expand, 2);
    if (!(times > 0 && times <= MOST_EXPAND)) {
        config_fail(c, k->expand, "is %g, must be above 0 and at most %d", times, (int)MOST_EXPAND);
        times = 1;
    }
    inner = given ? inner : (int64_t)(times * (double)s->hidden);
    s->heads = config_i64(c, k->heads, k->default_heads, 1, MOST_HEADS);
    s->head = head_size(c, k, inner, s->heads, MOST_WIDTH);
    s->groups = config_i64(c, k->groups, k->default_groups, 1, MOST_HEADS);
    s->state = config_i64(c, k->state, k->default_state, 1, MOST_WIDTH);
    s->taps = config_i64(c, k->taps, 4, 1, MOST_WIDTH);
    s->conv_bias = config_bool(c, k->conv_bias, true);
    read_limits(c, s);
    if (s->head < 1 || s->heads * s->head != inner)
        config_fail(c, k->heads, "is %lld: so many of %s %lld do not make up %lld%s%s", (long long)s->heads, k->head,
                    (long long)s->head, (long long)inner, given ? "" : ", hidden_size times ", given ? "" : k->expand);
    if (s->heads % s->groups)
        config_fail(c, k->heads, "is %lld, no multiple of %s %lld", (long long)s->heads, k->groups,
                    (long long)s->groups);
}

static int64_t inner_width(const mamba_mixer_spec *s)
{
    return s->heads * s->head;
}

static int64_t conv_width(const mamba_mixer_spec *s)
{
    return inner_width(s) + 2 * s->groups * s->state;
}

static graph_site *build_scan(graph_builder *b, graph_module *m, const mamba_mixer_spec *s)
{
    graph_site *scan = build_site(b, m, TN_OP_SELECTIVE_SCAN, NULL);
    tn_tensor decay, bias, skip;
    if (!scan || !build_tensor(b, m, "A_log", 1, &s->heads, &decay) ||
        !build_tensor(b, m, "dt_bias", 1, &s->heads, &bias) || !build_tensor(b, m, "D", 1, &s->heads, &skip))
        return NULL;
    build_param(b, scan, TN_ROLE_DECAY, &decay, 1);
    build_param(b, scan, TN_ROLE_BIAS, &bias, 1);
    build_param(b, scan, TN_ROLE_WEIGHT, &skip, 1);
    scan->site.features |= b->dtype == TN_F32 ? 0 : TN_HAS_F32_RESULT;
    scan->site.dim[TN_DIM_Q_HEADS] = s->groups;
    scan->site.dim[TN_DIM_KV_HEADS] = s->heads;
    scan->site.dim[TN_DIM_HEAD] = s->state;
    scan->site.dim[TN_DIM_HEAD_V] = s->head;
    if (s->least > 0 || s->limit < FLT_MAX) {
        scan->site.features |= TN_HAS_STEP_LIMITS;
        scan->site.num[TN_NUM_LEAST] = s->least;
        scan->site.num[TN_NUM_LIMIT] = s->limit;
    }
    return scan;
}

static void widen(tn_site *site)
{
    if (site)
        site->meaning[TN_AXIS_DTYPE] = TN_F32;
}

static void build_norm(graph_builder *b, graph_module *m, const mamba_mixer_spec *s, mamba_mixer_state *d)
{
    const parts_norm_kind kind = {
        .class_name = s->norm_class, .variant = s->norm_first ? TN_NORM_W_GATED_F32 : TN_NORM_GATED_W, .eps = s->eps};
    int64_t width = inner_width(s);
    if (!s->norm_class) {
        d->act = parts_act_step(b, m, TN_OP_ACT, TN_ACT_SILU, width);
        d->gate = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, width);
        widen(d->gate);
        return;
    }
    d->norm = parts_norm(b, m, "norm", &kind, width, false);
    widen(d->norm ? &d->norm->site : NULL);
    if (d->norm && s->groups > 1) {
        d->norm->site.features |= TN_HAS_GROUPS;
        d->norm->site.dim[TN_DIM_GROUPS] = s->groups;
    }
}

static void widths_of(int64_t inner, int64_t group_width, int64_t heads, int64_t widths[MAMBA_PARTS])
{
    const int64_t all[MAMBA_PARTS] = {inner, inner, group_width, group_width, heads};
    memcpy(widths, all, sizeof all);
}

static void build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const mamba_mixer_spec *s = spec;
    mamba_mixer_state *d = state;
    graph_module *m = build_module(b, layer, s->name ? s->name : "mamba", s->class_name);
    int64_t inner = inner_width(s), conv = conv_width(s), widths[MAMBA_PARTS];
    d->heads = s->heads;
    d->head = s->head;
    d->groups = s->groups;
    d->state = s->state;
    d->scan = build_scan(b, m, s);
    d->conv = gated_conv_site(b, m, "conv1d", conv, s->taps, s->act, s->conv_bias, &(parts_share){0});
    d->in = parts_linear(b, m, "in_proj", s->hidden, inner + conv + s->heads, s->in_bias, NULL);
    build_norm(b, m, s, d);
    d->out = parts_linear(b, m, "out_proj", inner, s->hidden, s->out_bias, NULL);
    d->copy = b->dtype == TN_F32 ? NULL : build_step(b, m, TN_OP_COPY, inner);
    widths_of(inner, s->groups * s->state, s->heads, widths);
    for (int i = 0; i < MAMBA_PARTS; i++)
        d->scale[i] = parts_factor(b, m, s->factors[i], widths[i]);
}

model_layer mamba_mixer_beside(const mamba_mixer_spec *s, model_layer attention)
{
    model_layer all = attention;
    all.conv_width = conv_width(s);
    all.conv_taps = s->taps;
    all.state_heads = s->heads;
    all.state_k = s->state;
    all.state_v = s->head;
    return all;
}

static model_layer cache(const graph_builder *b, const void *spec)
{
    (void)b;
    return mamba_mixer_beside(spec, (model_layer){0});
}

/* x in that type. */
static tn_tensor as_type(graph_run *r, const mamba_mixer_state *d, tn_dtype dtype, const tn_tensor *x)
{
    if (!d->copy)
        return *x;
    tn_tensor y = steps_take(r, dtype, 2, x->shape);
    steps_copy(r, d->copy, x, &y);
    return y;
}

static tn_tensor forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const mamba_mixer_state *d = state;
    tn_tensor all = steps_linear(r, d->in, x), part[MAMBA_PARTS];
    int64_t inner = d->heads * d->head, group_width = d->groups * d->state, widths[MAMBA_PARTS], begin = 0;
    widths_of(inner, group_width, d->heads, widths);
    for (int i = 0; i < MAMBA_PARTS; begin += widths[i++]) {
        part[i] = steps_columns(&all, begin, widths[i]);
        steps_change(r, d->scale[i], &part[i]);
    }
    tn_tensor mixed = steps_columns(&all, inner, inner + 2 * group_width);
    tn_tensor y = steps_short_conv(r, d->conv, at->layer, &mixed);
    steps_scan_inputs in = {.x = steps_heads(r, &y, 0, d->heads, d->head, d->head),
                            .b = steps_heads(r, &y, inner, d->groups, d->state, d->state),
                            .c = steps_heads(r, &y, inner + group_width, d->groups, d->state, d->state),
                            .dt = steps_heads(r, &all, begin - d->heads, d->heads, 1, 1)};
    in.dt.ndim = 3; /* a number for each head                                                       */
    tn_tensor o = steps_scan(r, d->scan, at->layer, &in);
    o = steps_view(&o, 2, (int64_t[]){x->shape[0], inner});
    steps_change(r, d->act, &part[0]);
    tn_tensor z = as_type(r, d, o.dtype, &part[0]);
    if (d->norm)
        steps_gated_norm(r, d->norm, &o, &z);
    else
        steps_glu(r, d->gate, &z, &o);
    o = as_type(r, d, r->dtype, &o);
    return steps_linear(r, d->out, &o);
}

const mixer_kind mamba_mixer = {sizeof(mamba_mixer_state), build, cache, forward, NULL};
