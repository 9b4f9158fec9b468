/* Reading and building the tower of Gemma 3n (timm's mobilenetv5, modeling_gemma3n). */
#include "models/gemma3n_vision.h"

#include "models/multimodal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that no real tower comes near. */
enum { MAX_BLOCKS = 1 << 10, MAX_CHANNELS = 1 << 16, MAX_SIDE = 15, MAX_HEADS = 1 << 10, MAX_HEAD = 1024 };
enum { MAX_SHRINKING = 32, MAX_SQUARE = 64, DIVISOR = 8 };

static const parts_norm_kind norm = {.class_name = "RmsNormAct2d", .variant = TN_NORM_W, .eps = 1e-6};

/* ---- which blocks ------------------------------------------------------------------------------- */

/* A run of one block, or of two in turn. */
typedef struct block_run {
    int64_t stage, times;
    gemma3n_block_spec block[2]; /* the second of out 0: there is one alone                           */
} block_run;

#define EDGE(c, s)                                                                                                     \
    {                                                                                                                  \
        .kind = GEMMA3N_EDGE, .out = (c), .stride = (s), .ratio = 4, .side = 3                                         \
    }
#define INVERTED(c, s, before, between, by)                                                                            \
    {                                                                                                                  \
        .kind = GEMMA3N_INVERTED, .out = (c), .stride = (s), .ratio = (by), .start = (before), .mid = (between)        \
    }
#define ATTENTION(c, n, d, thin)                                                                                       \
    {                                                                                                                  \
        .kind = GEMMA3N_ATTENTION, .out = (c), .stride = 1, .side = 3, .heads = (n), .key = (d), .value = (d),         \
        .thinned = (thin)                                                                                              \
    }

/* mobilenetv5_300m_enc. */
static const block_run runs[] = {{0, 1, {EDGE(128, 2)}},
                                 {0, 2, {EDGE(128, 1)}},
                                 {1, 1, {INVERTED(256, 2, 3, 5, 6)}},
                                 {1, 2, {INVERTED(256, 1, 5, 0, 4), INVERTED(256, 1, 3, 0, 4)}},
                                 {2, 1, {INVERTED(640, 2, 5, 5, 6)}},
                                 {2, 7, {INVERTED(640, 1, 5, 0, 4)}},
                                 {2, 1, {INVERTED(640, 1, 0, 0, 1)}},
                                 {2, 14, {ATTENTION(640, 12, 64, 2), INVERTED(640, 1, 0, 0, 2)}},
                                 {3, 1, {INVERTED(1280, 2, 5, 5, 6)}},
                                 {3, 19, {ATTENTION(1280, 16, 96, 1), INVERTED(1280, 1, 0, 0, 2)}}};

/* The nearest multiple of DIVISOR that is not much smaller, as timm rounds numbers of channels. */
static int64_t whole_channels(double count)
{
    int64_t rounded = (int64_t)(count + DIVISOR / 2.0) / DIVISOR * DIVISOR;
    rounded = rounded > DIVISOR ? rounded : DIVISOR;
    return (double)rounded < 0.9 * count ? rounded + DIVISOR : rounded;
}

/* Where blocks are gathered: those of a tower, of which the next is that of stage number `stages`. */
typedef struct gathering {
    const config_reader *c; /* for errors                                                            */
    gemma3n_tower *t;
    int64_t shrinking;
} gathering;

static void add_block(gathering *g, const gemma3n_block_spec *spec, bool begins)
{
    gemma3n_tower *t = g->t;
    if (*g->c->status != TN_OK)
        return;
    if (t->count == MAX_BLOCKS) {
        config_fail(g->c, "block_args", "has more than %d blocks", MAX_BLOCKS);
        return;
    }
    gemma3n_block *b = &t->blocks[t->count++];
    b->spec = *spec;
    b->spec.out = whole_channels((double)spec->out);
    b->spec.stride = begins ? spec->stride : 1;
    b->ends = true;
    g->shrinking *= b->spec.stride;
    if (begins)
        t->stages++;
    else
        b[-1].ends = false;
    if (begins && spec->stride != 2)
        config_fail(g->c, "block_args", "has a stage that does not begin with stride 2");
    if (g->shrinking > MAX_SHRINKING)
        config_fail(g->c, "block_args", "makes pictures more than %d times smaller", MAX_SHRINKING);
}

static void gather_usual(gathering *g)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        for (int64_t k = 0; k < runs[i].times; k++)
            for (int j = 0; j < 2 && runs[i].block[j].out; j++)
                add_block(g, &runs[i].block[j], runs[i].stage == g->t->stages);
}

/* ---- reading ------------------------------------------------------------------------------------ */

/* Refuses a key that says more than nothing. */
static void refuse(const config_reader *c, const char *key, double nothing)
{
    char text[64];
    if (*c->status == TN_OK && config_says(c, key, nothing, text, sizeof text))
        config_fail(c, key, "is %s, which is not supported", text);
}

static int64_t read_side(const config_reader *c, const char *key, int64_t fallback, int64_t least)
{
    return config_i64(c, key, fallback, least, MAX_SIDE);
}

/* A block as timm's create_model takes it, an element of block_args. */
static gemma3n_block_spec read_block(const config_reader *c)
{
    static const char *const keys[] = {"block_type",
                                       "out_chs",
                                       "stride",
                                       "act_layer",
                                       "exp_kernel_size",
                                       "pw_kernel_size",
                                       "exp_ratio",
                                       "force_in_chs",
                                       "se_ratio",
                                       "noskip",
                                       "dw_kernel_size_start",
                                       "dw_kernel_size_mid",
                                       "dw_kernel_size_end",
                                       "dw_kernel_size",
                                       "num_heads",
                                       "key_dim",
                                       "value_dim",
                                       "kv_stride",
                                       NULL};
    static const config_word kinds[] = {
        {"er", GEMMA3N_EDGE}, {"uir", GEMMA3N_INVERTED}, {"mqa", GEMMA3N_ATTENTION}, {0}};
    config_only(c, keys);
    gemma3n_block_spec s = {.kind = (gemma3n_kind)config_choice(c, "block_type", "", kinds),
                            .out = config_need_i64(c, "out_chs", 1, MAX_CHANNELS),
                            .stride = config_i64(c, "stride", 1, 1, 2)};
    refuse(c, "act_layer", 0);
    refuse(c, "noskip", 0);
    refuse(c, "se_ratio", 0);
    refuse(c, "force_in_chs", 0);
    refuse(c, "dw_kernel_size_end", 0);
    refuse(c, "pw_kernel_size", 1);
    s.ratio = config_f64(c, "exp_ratio", 1);
    if (!(s.ratio > 0 && s.ratio <= 64))
        config_fail(c, "exp_ratio", "is %g, it must be above 0 and at most 64", s.ratio);
    if (s.kind == GEMMA3N_ATTENTION) {
        s.side = read_side(c, "dw_kernel_size", 3, 1);
        s.heads = config_need_i64(c, "num_heads", 1, MAX_HEADS);
        s.key = config_i64(c, "key_dim", 64, 1, MAX_HEAD);
        s.value = config_i64(c, "value_dim", 64, 1, MAX_HEAD);
        s.thinned = config_i64(c, "kv_stride", 1, 1, 2);
        if (s.stride != 1)
            config_fail(c, "stride", "is %lld, attention has 1", (long long)s.stride);
    } else if (s.kind == GEMMA3N_EDGE) {
        s.side = read_side(c, "exp_kernel_size", 3, 1);
    } else {
        s.start = read_side(c, "dw_kernel_size_start", 0, 0);
        s.mid = read_side(c, "dw_kernel_size_mid", 3, 0);
        if (s.stride > 1 && !s.start && !s.mid)
            config_fail(c, "stride", "is %lld, and the block has no filter to take it", (long long)s.stride);
    }
    return s;
}

static void gather_given(gathering *g)
{
    const config_reader stages = config_child_list(g->c, "block_args");
    for (int64_t i = 0; config_key(&stages, i); i++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        const config_reader stage = config_child_list(&stages, name);
        for (int64_t j = 0; config_key(&stage, j); j++) {
            snprintf(name, sizeof name, "%lld", (long long)j);
            const config_reader block = config_child(&stage, name);
            gemma3n_block_spec spec = read_block(&block);
            add_block(g, &spec, j == 0);
        }
    }
    if (g->t->stages < 2)
        config_fail(g->c, "block_args", "has %lld stages; the last two of them make the tower's rows",
                    (long long)g->t->stages);
}

/* What of timm's create_model config.json may say: another structure. */
static void read_blocks(const config_reader *config, const config_reader *vision, gemma3n_tower *t)
{
    static const char *const keys[] = {"block_args", "stem_size", "msfa_output_resolution", NULL};
    const config_reader args = config_child(vision, "model_args");
    gathering g = {&args, t, 2};
    int64_t rows = config_i64(config, "vision_soft_tokens_per_image", 256, 1, MAX_SQUARE * MAX_SQUARE);
    config_only(&args, keys);
    t->stem = (gemma3n_conv){
        .out = whole_channels((double)config_i64(&args, "stem_size", 64, 1, MAX_CHANNELS)), .side = 3, .stride = 2};
    t->side = config_i64(&args, "msfa_output_resolution", 16, 1, MAX_SQUARE);
    if (t->side * t->side != rows)
        config_fail(config, "vision_soft_tokens_per_image", "is %lld, the tower makes %lld by %lld of a picture",
                    (long long)rows, (long long)t->side, (long long)t->side);
    if (config_has(&args, "block_args"))
        gather_given(&g);
    else
        gather_usual(&g);
}

/* ---- building ----------------------------------------------------------------------------------- */

/* The weights of a convolution called name, each place's channels side by side, as those of rows that filters see. */
static graph_module *build_filters(graph_builder *b, graph_module *parent, const char *name, int64_t in, bool alone,
                                   const gemma3n_conv *conv, tn_tensor *weight)
{
    int64_t side = conv->side, out = conv->out, file[] = {out, alone ? 1 : in, side, side};
    const build_form form = {.turned = side > 1 || alone, .file_ndim = 4, .file = file};
    graph_module *m = build_module(b, parent, name, "Conv2d");
    bool there = alone       ? build_tensor_as(b, m, "weight", 2, (int64_t[]){side * side, out}, &form, weight)
                 : side == 1 ? build_tensor_as(b, m, "weight", 2, (int64_t[]){out, in}, &form, weight)
                             : build_tensor_as(b, m, "weight", 3, (int64_t[]){out, side * side, in}, &form, weight);
    if (there && !alone)
        *weight = tn_tensor_dense(weight->data, weight->dtype, 2, (int64_t[]){out, side * side * in});
    return there ? m : NULL;
}

/* conv->out, side and stride are given. norm, act: whether there are; norm_name: what the norm is called. */
static void build_conv(graph_builder *b, graph_module *parent, const char *name, const char *norm_name, int64_t in,
                       bool act, gemma3n_conv *conv)
{
    tn_tensor weight, bias;
    graph_module *m = b->status == TN_OK ? build_filters(b, parent, name, in, false, conv, &weight) : NULL;
    if (!m || !(conv->site = build_site(b, m, TN_OP_LINEAR, NULL)))
        return;
    tn_site *site = &conv->site->site;
    build_param(b, conv->site, TN_ROLE_WEIGHT, &weight, 1);
    site->dim[TN_DIM_HIDDEN] = weight.shape[1];
    site->dim[TN_DIM_OUT] = conv->out;
    if (build_has(b, m, "bias") && build_tensor(b, m, "bias", 1, &conv->out, &bias)) {
        build_param(b, conv->site, TN_ROLE_BIAS, &bias, 1);
        site->features |= TN_HAS_BIAS;
    }
    if (norm_name)
        conv->norm = parts_norm(b, parent, norm_name, &norm, conv->out, false);
    if (act)
        conv->act = parts_act_step(b, m, TN_OP_ACT, TN_ACT_GELU_TANH, conv->out);
}

/* The same of filters that see a channel each. */
static void build_alone(graph_builder *b, graph_module *parent, const char *name, const char *norm_name, bool act,
                        gemma3n_conv *conv)
{
    tn_tensor weight;
    graph_module *m = b->status == TN_OK ? build_filters(b, parent, name, 1, true, conv, &weight) : NULL;
    tn_site *step = m ? build_step(b, m, TN_OP_DEPTHWISE, conv->out) : NULL;
    if (!step)
        return;
    build_step_param(b, step, TN_ROLE_WEIGHT, &weight);
    step->dim[TN_DIM_TAPS] = conv->side;
    step->dim[TN_DIM_STRIDE] = conv->stride;
    conv->filter = step;
    conv->norm = parts_norm(b, parent, norm_name, &norm, conv->out, false);
    if (act)
        conv->act = parts_act_step(b, m, TN_OP_ACT, TN_ACT_GELU_TANH, conv->out);
}

static void build_edge(graph_builder *b, graph_module *m, int64_t in, gemma3n_block *block)
{
    const gemma3n_block_spec *s = &block->spec;
    int64_t mid = whole_channels((double)in * s->ratio);
    block->conv[0] = (gemma3n_conv){.out = mid, .side = s->side, .stride = s->stride};
    block->conv[1] = (gemma3n_conv){.out = s->out, .side = 1, .stride = 1};
    build_conv(b, m, "conv_exp", "bn1", in, true, &block->conv[0]);
    build_conv(b, m, "conv_pwl", "bn2", mid, false, &block->conv[1]);
}

static void build_inverted(graph_builder *b, graph_module *m, int64_t in, gemma3n_block *block)
{
    static const char class_name[] = "ConvNormAct";
    const gemma3n_block_spec *s = &block->spec;
    int64_t mid = whole_channels((double)in * s->ratio);
    block->conv[0] = (gemma3n_conv){.out = in, .side = s->start, .stride = s->mid ? 1 : s->stride};
    block->conv[1] = (gemma3n_conv){.out = mid, .side = 1, .stride = 1};
    block->conv[2] = (gemma3n_conv){.out = mid, .side = s->mid, .stride = s->stride};
    block->conv[3] = (gemma3n_conv){.out = s->out, .side = 1, .stride = 1};
    if (s->start)
        build_alone(b, build_module(b, m, "dw_start", class_name), "conv", "bn", false, &block->conv[0]);
    build_conv(b, build_module(b, m, "pw_exp", class_name), "conv", "bn", in, true, &block->conv[1]);
    if (s->mid)
        build_alone(b, build_module(b, m, "dw_mid", class_name), "conv", "bn", true, &block->conv[2]);
    build_conv(b, build_module(b, m, "pw_proj", class_name), "conv", "bn", mid, false, &block->conv[3]);
}

static void build_attention(graph_builder *b, graph_module *m, int64_t in, gemma3n_block *block)
{
    static const char *const names[] = {"query", "key", "value", "output"};
    const gemma3n_block_spec *s = &block->spec;
    int64_t out[] = {s->heads * s->key, s->key, s->value, s->out};
    block->norm = parts_norm(b, m, "norm", &norm, in, false);
    graph_module *attn = build_module(b, m, "attn", "MultiQueryAttention2d");
    block->attention = build_site(b, attn, TN_OP_ATTENTION, NULL);
    if (!block->attention)
        return;
    tn_site *site = &block->attention->site;
    site->dim[TN_DIM_HEAD] = s->key;
    site->dim[TN_DIM_HEAD_V] = s->value;
    site->dim[TN_DIM_Q_HEADS] = s->heads;
    site->dim[TN_DIM_KV_HEADS] = 1;
    site->num[TN_NUM_SCALE] = 1 / sqrt((double)s->key);
    for (int i = 0; i < GEMMA3N_CONVS; i++) {
        graph_module *part = build_module(b, attn, names[i], "Sequential");
        if ((i == 1 || i == 2) && s->thinned > 1) {
            block->thin[i - 1] = (gemma3n_conv){.out = in, .side = s->side, .stride = s->thinned};
            build_alone(b, part, "down_conv", "norm", false, &block->thin[i - 1]);
        }
        block->conv[i] = (gemma3n_conv){.out = out[i], .side = 1, .stride = 1};
        build_conv(b, part, "proj", NULL, i == 3 ? s->heads * s->value : in, false, &block->conv[i]);
    }
}

/* A factor of each channel. */
static tn_site *build_scale(graph_builder *b, graph_module *block, int64_t width)
{
    graph_module *m = build_module(b, block, "layer_scale", "LayerScale2d");
    tn_site *step = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, width);
    tn_tensor factors;
    if (!step || !build_tensor(b, m, "gamma", 1, &width, &factors))
        return NULL;
    build_step_param(b, step, TN_ROLE_WEIGHT, &factors);
    return step;
}

static void build_block(graph_builder *b, graph_module *stage, int64_t number, int64_t in, gemma3n_block *block)
{
    static const char *const classes[] = {"EdgeResidual", "UniversalInvertedResidual", "MobileAttention"};
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)number);
    graph_module *m = build_module(b, stage, name, classes[block->spec.kind]);
    block->skip = in == block->spec.out && block->spec.stride == 1;
    if (block->spec.kind == GEMMA3N_EDGE)
        build_edge(b, m, in, block);
    else if (block->spec.kind == GEMMA3N_INVERTED)
        build_inverted(b, m, in, block);
    else
        build_attention(b, m, in, block);
    if (block->spec.kind != GEMMA3N_EDGE)
        block->scale = build_scale(b, m, block->spec.out);
}

static void build_fusion(graph_builder *b, graph_module *tower, gemma3n_tower *t)
{
    static const char class_name[] = "ConvNormAct";
    graph_module *m = build_module(b, tower, "msfa", "MobileNetV5MultiScaleFusionAdapter");
    graph_module *ffn = build_module(b, m, "ffn", "UniversalInvertedResidual");
    t->widen = (gemma3n_conv){.out = whole_channels((double)t->fused * 2), .side = 1, .stride = 1};
    t->narrow = (gemma3n_conv){.out = GEMMA3N_VISION_WIDTH, .side = 1, .stride = 1};
    build_conv(b, build_module(b, ffn, "pw_exp", class_name), "conv", "bn", t->fused, true, &t->widen);
    build_conv(b, build_module(b, ffn, "pw_proj", class_name), "conv", "bn", t->widen.out, false, &t->narrow);
    t->norm = parts_norm(b, m, "norm", &norm, GEMMA3N_VISION_WIDTH, false);
    t->copy = build_step(b, m, TN_OP_COPY, t->fused);
    t->root = parts_factor(b, m, sqrt((double)GEMMA3N_VISION_WIDTH), GEMMA3N_VISION_WIDTH);
}

static void build_tower(graph_builder *b, graph_module *root, gemma3n_tower *t)
{
    graph_module *m = build_module(b, root, "vision_tower", "TimmWrapperModel");
    if (!m)
        return;
    m->apart = true;
    graph_module *tower = build_module(b, m, "timm_model", "MobileNetV5Encoder");
    build_conv(b, build_module(b, tower, "conv_stem", "ConvNormAct"), "conv", "bn", 3, true, &t->stem);
    graph_module *list = build_module(b, tower, "blocks", "Sequential"), *stage = NULL;
    int64_t in = t->stem.out, stages = 0, number = 0;
    for (int64_t i = 0; i < t->count && b->status == TN_OK; i++) {
        gemma3n_block *block = &t->blocks[i];
        if (i == 0 || block[-1].ends) {
            char name[24];
            snprintf(name, sizeof name, "%lld", (long long)stages++);
            stage = build_module(b, list, name, "Sequential");
            number = 0;
        }
        build_block(b, stage, number++, in, block);
        in = block->spec.out;
        if (block->ends && stages + 1 >= t->stages)
            t->fused += in;
    }
    build_fusion(b, tower, t);
}

static void build_projector(graph_builder *b, const config_reader *vision, graph_module *root, gemma3n_tower *t)
{
    const int64_t width = GEMMA3N_VISION_WIDTH, marks = config_i64(vision, "vocab_size", 128, 1, 1 << 24);
    parts_norm_kind kind = {
        .class_name = "Gemma3nRMSNorm", .variant = TN_NORM_W_F32, .eps = config_f64(vision, "rms_norm_eps", 1e-6)};
    if (!(kind.eps >= 0 && kind.eps < 1))
        config_fail(vision, "rms_norm_eps", "is %g, which is out of range", kind.eps);
    graph_module *m = build_module(b, root, "embed_vision", "Gemma3nMultimodalEmbedder");
    graph_module *table = build_module(b, m, "embedding", "Embedding");
    if (!table || !build_tensor(b, table, "weight", 2, (int64_t[]){marks, width}, &t->marks))
        return;
    m->apart = true;
    t->hard = parts_norm(b, m, "hard_embedding_norm", &kind, width, false);
    t->soft = parts_norm(b, m, "soft_embedding_norm", &kind, width, false);
    t->projection = parts_linear(b, m, "embedding_projection", width, t->text_hidden, false, NULL);
    kind.variant = TN_NORM_NO_WEIGHT;
    t->plain = parts_norm(b, m, "embedding_post_projection_norm", &kind, t->text_hidden, false);
}

static void *build(graph_builder *b, graph_module *root, const char *name, const config_reader *config,
                   int64_t text_hidden)
{
    const config_reader vision = config_child(config, "vision_config");
    gemma3n_tower *t = calloc(1, sizeof *t + MAX_BLOCKS * sizeof *t->blocks);
    (void)name;
    if (!t)
        return build_fail(b, TN_E_MEMORY, "graph", "out of memory for a vision tower");
    t->text_hidden = text_hidden;
    read_blocks(config, &vision, t);
    build_tower(b, root, t);
    build_projector(b, &vision, root, t);
    if (b->status == TN_OK)
        return t;
    free(t);
    return NULL;
}

/* ---- beside a text model ------------------------------------------------------------------------- */

static bool knows(const config_reader *config)
{
    const config_reader vision = config_child(config, "vision_config");
    return !strcmp(config_str(&vision, "architecture", "mobilenetv5_300m_enc"), "mobilenetv5_300m_enc") &&
           !config_bool(&vision, "do_pooling", false) &&
           config_i64(&vision, "hidden_size", GEMMA3N_VISION_WIDTH, 1, INT32_MAX) == GEMMA3N_VISION_WIDTH;
}

static multimodal_sight sight(const void *state)
{
    (void)state;
    return SIGHT_BACK;
}

/* As processing_gemma3n writes them. */
static const tower_marks *marks(const void *state)
{
    static const tower_marks texts = {.before = "\n\n<start_of_image>", .after = "<end_of_image>\n\n"};
    (void)state;
    return &texts;
}

/* Ids from vocab_offset on have embeddings in the tower's own table, up to those of sounds. */
static void read_tokens(const config_reader *config, multimodal *m)
{
    const config_reader vision = config_child(config, "vision_config"), audio = config_child(config, "audio_config");
    int64_t first = config_i64(&vision, "vocab_offset", 262144, 0, INT32_MAX);
    int64_t sounds = config_i64(&audio, "vocab_offset", 262272, 0, INT32_MAX);
    int64_t count = config_i64(&vision, "vocab_size", 128, 1, 1 << 24), below = sounds > first ? sounds - first : 0;
    m->embedded = (marked_ids){first, count < below ? count : below};
}

static const tower_beside beside = {.knows = knows,
                                    .sight = sight,
                                    .marks = marks,
                                    .read_tokens = read_tokens,
                                    .part = "embed_vision.embedding_projection.",
                                    .needs = TN_OP_DEPTHWISE,
                                    .embed = gemma3n_vision_embed};

const tower_kind vision_gemma3n = {.name = "gemma3n_vision",
                                   .build = build,
                                   .free_state = free,
                                   .tokens = gemma3n_vision_tokens,
                                   .forward = gemma3n_vision_forward,
                                   .largest = gemma3n_vision_largest,
                                   .beside = &beside};
