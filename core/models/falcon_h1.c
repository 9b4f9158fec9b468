/* modeling_falcon_h1: FalconH1ForCausalLM. In each layer attention and the mixer of Mamba-2 side by side over the same
 * rows, their sum added to the residual; factors nearly everywhere. */
#include "models/decoder.h"
#include "models/mamba_mixer.h"

static const decoder_classes classes = {DECODER_CLASSES("falcon_h1", "FalconH1")};

static tn_tensor scaled(graph_run *r, const tn_site *step, const tn_site *copy, const tn_tensor *x)
{
    if (!step)
        return *x;
    tn_tensor y = steps_take(r, r->dtype, 2, x->shape);
    steps_copy(r, copy, x, &y);
    steps_change(r, step, &y);
    return y;
}

/* ---- attention and Mamba-2 --------------------------------------------------------------------------------------- */

enum { ATTENTION_IN, ATTENTION_OUT, SSM_IN, SSM_OUT, FACTORS };

typedef struct both_spec {
    gqa_spec attention;
    mamba_mixer_spec mamba;
    double factors[FACTORS];
} both_spec;

typedef struct both {
    gqa attention;
    mamba_mixer_state mamba;
    tn_site *factors[FACTORS], *copy;
} both;

static void both_build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const both_spec *s = spec;
    both *t = state;
    for (int i = 0; i < FACTORS; i++)
        t->factors[i] = parts_factor(b, layer, s->factors[i], s->mamba.hidden);
    t->copy = build_step(b, layer, TN_OP_COPY, s->mamba.hidden);
    mamba_mixer.build(b, layer, &s->mamba, &t->mamba);
    gqa_build(b, layer, &s->attention, &t->attention);
}

static model_layer both_cache(const graph_builder *b, const void *spec)
{
    const both_spec *s = spec;
    return mamba_mixer_beside(&s->mamba, gqa_cache(b, &s->attention));
}

/* Attention comes last: it narrows the run to the tokens that are wanted. */
static tn_tensor both_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x)
{
    const both *t = state;
    tn_tensor in = scaled(r, t->factors[SSM_IN], t->copy, x);
    tn_tensor m = mamba_mixer.forward(r, &t->mamba, at, &in);
    steps_change(r, t->factors[SSM_OUT], &m);
    in = scaled(r, t->factors[ATTENTION_IN], t->copy, x);
    tn_tensor a = gqa_forward(r, &t->attention, at, &in);
    if (a.shape[0] == 0)
        return a;
    steps_change(r, t->factors[ATTENTION_OUT], &a);
    m = steps_last(&m, a.shape[0]);
    steps_add(r, &m, &a);
    return m;
}

static const mixer_kind attention_and_mamba = {sizeof(both), both_build, both_cache, both_forward, NULL};

/* ---- the MLP ----------------------------------------------------------------------------------------------------- */

typedef struct feed_spec {
    parts_mlp_spec mlp;
    double gate, down; /* factors                                                                     */
} feed_spec;

typedef struct feed {
    graph_site *gate, *up, *down;
    tn_site *glu, *gate_factor, *down_factor;
} feed;

static void feed_build(graph_builder *b, graph_module *layer, const void *spec, void *state)
{
    const feed_spec *s = spec;
    const parts_mlp_spec *mlp = &s->mlp;
    feed *f = state;
    graph_module *m = build_module(b, layer, "feed_forward", mlp->class_name);
    f->gate = parts_linear(b, m, "gate_proj", mlp->hidden, mlp->inter, mlp->bias, NULL);
    f->up = parts_linear(b, m, "up_proj", mlp->hidden, mlp->inter, mlp->bias, NULL);
    f->down = parts_linear(b, m, "down_proj", mlp->inter, mlp->hidden, mlp->bias, NULL);
    f->gate_factor = parts_factor(b, m, s->gate, mlp->inter);
    f->down_factor = parts_factor(b, m, s->down, mlp->hidden);
    f->glu = parts_act_step(b, m, TN_OP_GLU, mlp->act, mlp->inter);
}

static void feed_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h, const tn_tensor *x,
                         const tn_tensor *y)
{
    const feed *f = state;
    tn_tensor gate = steps_linear(r, f->gate, x), up = steps_linear(r, f->up, x);
    (void)at;
    (void)h;
    steps_change(r, f->gate_factor, &gate);
    steps_glu(r, f->glu, &gate, &up);
    steps_linear_into(r, f->down, &up, y);
    steps_change(r, f->down_factor, y);
}

static const feed_kind scaled_mlp = {sizeof(feed), feed_build, feed_forward};

/* ---- the model ------------------------------------------------------------------------------------------------- */

/* Of a factor of 0 nothing would be left. */
static double not_zero(const config_reader *config, const char *key, double by)
{
    if (by == 0)
        config_fail(config, key, "is 0");
    return by;
}

static double multiplier(const config_reader *config, const char *key)
{
    return not_zero(config, key, config_f64(config, key, 1));
}

/* Element i of a list of count factors; all are 1 where there is none. */
static double listed(const config_reader *config, const char *key, int64_t i, int64_t count)
{
    int64_t has = config_list(config, key);
    if (has >= 0 && has != count)
        config_fail(config, key, "has %lld elements, it must have %lld", (long long)has, (long long)count);
    return has < 0 ? 1 : not_zero(config, key, config_list_f64(config, key, i));
}

static void read_mamba(const config_reader *config, const decoder_spec *s, mamba_mixer_spec *m)
{
    bool whole = config_is_null(config, "mamba_d_ssm");
    *m = (mamba_mixer_spec){.class_name = "FalconH1Mixer",
                            .norm_class = config_bool(config, "mamba_rms_norm", false) ? "FalconH1RMSNormGated" : NULL,
                            .norm_first = config_bool(config, "mamba_norm_before_gate", true),
                            .hidden = s->hidden,
                            .eps = s->norm.eps,
                            .act = s->layer.mlp.act,
                            .in_bias = config_bool(config, "mamba_proj_bias", false),
                            .out_bias = config_bool(config, "projectors_bias", false)};
    mamba_mixer_read(config, &mamba_mixer_usual, whole ? 0 : config_i64(config, "mamba_d_ssm", 1024, 1, 1 << 20), m);
    for (int i = 0; i < MAMBA_PARTS; i++)
        m->factors[i] = listed(config, "ssm_multipliers", i, MAMBA_PARTS);
}

static void *build(graph_builder *b, const config_reader *config)
{
    decoder_spec s = {.classes = &classes,
                      .norm.eps = 1e-5,
                      .norms = {.attention = "input_layernorm", .mlp = "pre_ff_layernorm"},
                      .final_norm = "final_layernorm",
                      .kv_heads = 8};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.k_scale = multiplier(config, "key_multiplier");
    s.layer.mlp.bias = config_bool(config, "mlp_bias", false);
    both_spec both = {.attention = s.layer.attention,
                      .factors = {multiplier(config, "attention_in_multiplier"),
                                  multiplier(config, "attention_out_multiplier"),
                                  multiplier(config, "ssm_in_multiplier"), multiplier(config, "ssm_out_multiplier")}};
    read_mamba(config, &s, &both.mamba);
    const feed_spec feed = {.mlp = s.layer.mlp,
                            .gate = listed(config, "mlp_multipliers", 0, 2),
                            .down = listed(config, "mlp_multipliers", 1, 2)};
    s.layer.mixer = &attention_and_mamba;
    s.layer.mixer_spec = &both;
    s.layer.feed = &scaled_mlp;
    s.layer.feed_spec = &feed;
    s.embed_factor = multiplier(config, "embedding_multiplier");
    s.logit_scale = multiplier(config, "lm_head_multiplier");
    return decoder_build(b, config, &s);
}

const model_arch falcon_h1_arch = {"falcon_h1", "FalconH1ForCausalLM", build, NULL};
