/* Reading and building the tower of Gemma 4 (modeling_gemma4). */
#include "models/gemma4_vision.h"

#include "models/multimodal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that no real tower comes near. */
enum { MAX_WIDTH = 1 << 20, MAX_DEPTH = 1 << 12, MAX_HEADS = 1 << 14, MAX_HEAD = 1024 };
enum { MAX_PATCH = 1 << 10, MAX_PLACES = 1 << 20, MAX_POOL = 64 };

static const parts_linear_kind clippable = {"Gemma4ClippableLinear", false, "linear"};

/* ---- reading ------------------------------------------------------------------------------------ */

static void read_heads(const config_reader *c, gemma4_vision_spec *s)
{
    s->heads = config_i64(c, "num_attention_heads", 12, 1, MAX_HEADS);
    s->kv_heads = config_i64(c, "num_key_value_heads", 12, 1, MAX_HEADS);
    s->head_dim = config_i64(c, "head_dim", 64, 1, MAX_HEAD);
    if (s->heads % s->kv_heads)
        config_fail(c, "num_key_value_heads", "is %lld, which does not divide num_attention_heads %lld",
                    (long long)s->kv_heads, (long long)s->heads);
    if (s->head_dim % 4)
        config_fail(c, "head_dim", "is %lld; it must be a multiple of 4, half of it turns with each axis",
                    (long long)s->head_dim);
}

static void read_rope(const config_reader *c, gemma4_vision_spec *s)
{
    static const config_word types[] = {{"axial", 1}, {"default", 1}, {0}};
    const config_reader rope = config_child(c, "rope_parameters");
    config_choice(&rope, "rope_type", "axial", types);
    s->theta = config_f64(&rope, "rope_theta", 100);
    if (!(s->theta > 0))
        config_fail(&rope, "rope_theta", "is %g, must be positive", s->theta);
}

static void read_spec(const config_reader *c, gemma4_vision_spec *s)
{
    s->depth = config_i64(c, "num_hidden_layers", 16, 1, MAX_DEPTH);
    s->hidden = config_i64(c, "hidden_size", 768, 1, MAX_WIDTH);
    s->inter = config_i64(c, "intermediate_size", 3072, 1, MAX_WIDTH);
    s->patch = config_i64(c, "patch_size", 16, 1, MAX_PATCH);
    s->places = config_i64(c, "position_embedding_size", 10240, 1, MAX_PLACES);
    s->pool = config_i64(c, "pooling_kernel_size", 3, 1, MAX_POOL);
    s->act = parts_act(c, "hidden_activation", "gelu_pytorch_tanh");
    s->clipped = config_bool(c, "use_clipped_linears", false);
    s->standard = config_bool(c, "standardize", false);
    s->norm = (parts_norm_kind){
        .class_name = "Gemma4RMSNorm", .variant = TN_NORM_W_F32, .eps = config_f64(c, "rms_norm_eps", 1e-6)};
    if (!(s->norm.eps >= 0 && s->norm.eps < 1))
        config_fail(c, "rms_norm_eps", "is %g, which is out of range", s->norm.eps);
    read_heads(c, s);
    read_rope(c, s);
}

static multimodal_sight read_sight(const config_reader *config)
{
    static const config_word attended[] = {{"vision", SIGHT_NEAR}, {"none", SIGHT_BACK}, {"all", SIGHT_BACK}, {0}};
    const config_reader text = config_child(config, "text_config");
    return (multimodal_sight)config_choice(&text, "use_bidirectional_attention", "none", attended);
}

/* ---- building ----------------------------------------------------------------------------------- */

/* The step that keeps rows within name_min and name_max of m; NULL: they have no end. */
static const tn_site *build_limits(graph_builder *b, graph_module *m, const char *name, int64_t width)
{
    float limit[2] = {-INFINITY, INFINITY};
    char full[2][24];
    for (int i = 0; i < 2; i++) {
        snprintf(full[i], sizeof full[i], "%s_%s", name, i ? "max" : "min");
        build_number(b, m, full[i], 0, &limit[i]);
    }
    if (b->status == TN_OK && !(limit[0] <= limit[1]))
        return build_fail(b, TN_E_INPUT, m->path, "%s is %g, above %s, %g", full[0], (double)limit[0], full[1],
                          (double)limit[1]);
    tn_site *step = isinf(limit[0]) && isinf(limit[1]) ? NULL : build_step(b, m, TN_OP_CLAMP, width);
    if (step) {
        step->features |= TN_HAS_STEP_LIMITS;
        step->num[TN_NUM_LEAST] = (double)limit[0];
        step->num[TN_NUM_LIMIT] = (double)limit[1];
    }
    return step;
}

static gemma4_linear build_linear(graph_builder *b, graph_module *parent, const char *name, int64_t in, int64_t out,
                                  const gemma4_vision_spec *s)
{
    gemma4_linear l = {.site = parts_linear_of(&clippable, b, parent, name, in, out, false, NULL)};
    if (l.site && s->clipped) {
        l.in = build_limits(b, l.site->module->parent, "input", in);
        l.out = build_limits(b, l.site->module->parent, "output", out);
    }
    return l;
}

static void build_attention(graph_builder *b, graph_module *layer, const gemma4_vision_spec *s, gemma4_block *out)
{
    graph_module *m = build_module(b, layer, "self_attn", "Gemma4VisionAttention");
    parts_norm_kind plain = s->norm;
    int64_t dim = s->head_dim, q = s->heads * dim, kv = s->kv_heads * dim;
    out->attention = build_site(b, m, TN_OP_ATTENTION, NULL);
    if (!out->attention)
        return;
    tn_site *site = &out->attention->site;
    site->dim[TN_DIM_HEAD] = site->dim[TN_DIM_HEAD_V] = dim;
    site->dim[TN_DIM_Q_HEADS] = s->heads;
    site->dim[TN_DIM_KV_HEADS] = s->kv_heads;
    site->num[TN_NUM_SCALE] = 1;
    plain.variant = TN_NORM_NO_WEIGHT;
    out->q = build_linear(b, m, "q_proj", s->hidden, q, s);
    out->k = build_linear(b, m, "k_proj", s->hidden, kv, s);
    out->v = build_linear(b, m, "v_proj", s->hidden, kv, s);
    out->o = build_linear(b, m, "o_proj", q, s->hidden, s);
    out->q_norm = parts_norm(b, m, "q_norm", &s->norm, dim, false);
    out->k_norm = parts_norm(b, m, "k_norm", &s->norm, dim, false);
    out->v_norm = parts_norm(b, m, "v_norm", &plain, dim, false);
}

static void build_mlp(graph_builder *b, graph_module *layer, const gemma4_vision_spec *s, gemma4_block *out)
{
    static const char class_name[] = "Gemma4VisionMLP";
    const parts_mlp_spec mlp = {
        .class_name = class_name, .hidden = s->hidden, .inter = s->inter, .act = s->act, .linear = &clippable};
    if (!s->clipped) {
        out->mlp = parts_mlp(b, layer, "mlp", &mlp, NULL);
        return;
    }
    graph_module *m = build_module(b, layer, "mlp", class_name);
    out->gate = build_linear(b, m, "gate_proj", s->hidden, s->inter, s);
    out->up = build_linear(b, m, "up_proj", s->hidden, s->inter, s);
    out->down = build_linear(b, m, "down_proj", s->inter, s->hidden, s);
    out->act = parts_act_step(b, m, TN_OP_GLU, s->act, s->inter);
}

static void build_block(graph_builder *b, graph_module *list, const gemma4_vision_spec *s, int64_t i, gemma4_block *out)
{
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                        "post_feedforward_layernorm"};
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    graph_module *m = build_module(b, list, name, "Gemma4VisionEncoderLayer");
    build_attention(b, m, s, out);
    build_mlp(b, m, s, out);
    for (int n = 0; n < 4; n++)
        out->norm[n] = parts_norm(b, m, norms[n], &s->norm, s->hidden, n == 2);
}

static void build_positions(graph_builder *b, graph_module *m, gemma4_tower *t)
{
    const int64_t places = t->spec.places, hidden = t->spec.hidden;
    tn_tensor *table = &t->positions;
    if (build_tensor(b, m, "position_embedding_table", 3, (int64_t[]){2, places, hidden}, table))
        *table = tn_tensor_dense(table->data, table->dtype, 2, (int64_t[]){2 * places, hidden});
}

/* Rows less std_bias, times std_scale. */
static void build_standard(graph_builder *b, graph_module *m, gemma4_tower *t)
{
    int64_t hidden = t->spec.hidden;
    t->minus = parts_factor(b, m, -1, hidden);
    t->times = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, hidden);
    build_tensor(b, m, "std_bias", 1, &hidden, &t->mean);
    build_tensor(b, m, "std_scale", 1, &hidden, &t->factor);
}

static void build_tower(graph_builder *b, graph_module *root, gemma4_tower *t)
{
    const gemma4_vision_spec *s = &t->spec;
    graph_module *m = build_module(b, root, "vision_tower", "Gemma4VisionModel");
    graph_module *patches = build_module(b, m, "patch_embedder", "Gemma4VisionPatchEmbedder");
    if (!patches)
        return;
    m->apart = true;
    t->patch = parts_linear(b, patches, "input_proj", 3 * s->patch * s->patch, s->hidden, false, NULL);
    build_positions(b, patches, t);
    graph_module *list = build_module(b, build_module(b, m, "encoder", "Gemma4VisionEncoder"), "layers", "ModuleList");
    for (int64_t i = 0; i < s->depth && b->status == TN_OK; i++)
        build_block(b, list, s, i, &t->blocks[i]);
    const parts_rope_spec rope = {.function = "apply_multidimensional_rope",
                                  .style = TN_ROPE_HALF,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim / 2,
                                  .rotary = s->head_dim / 2};
    t->rope = parts_rope(b, "modeling_gemma4", &rope);
    t->copy = build_step(b, m, TN_OP_COPY, s->hidden);
    t->root = parts_factor(b, m, sqrt((double)s->hidden), s->hidden);
    if (s->standard)
        build_standard(b, m, t);
}

static void build_projector(graph_builder *b, graph_module *root, gemma4_tower *t)
{
    graph_module *m = build_module(b, root, "embed_vision", "Gemma4MultimodalEmbedder");
    parts_norm_kind plain = t->spec.norm;
    plain.variant = TN_NORM_NO_WEIGHT;
    if (!m)
        return;
    m->apart = true;
    t->norm = parts_norm(b, m, "embedding_pre_projection_norm", &plain, t->spec.hidden, false);
    t->projection = parts_linear(b, m, "embedding_projection", t->spec.hidden, t->text_hidden, false, NULL);
}

static void free_tower(void *state)
{
    gemma4_tower *t = state;
    if (t)
        free(t->blocks);
    free(t);
}

static void *build(graph_builder *b, graph_module *root, const char *name, const config_reader *config,
                   int64_t text_hidden)
{
    const config_reader vision = config_child(config, "vision_config");
    gemma4_tower *t = b->status == TN_OK ? calloc(1, sizeof *t) : NULL;
    (void)name;
    if (t) {
        t->text_hidden = text_hidden;
        t->sight = read_sight(config);
        t->marks = (tower_marks){.token_key = {"boi_token_id", "eoi_token_id"},
                                 .token = {config_i64(config, "boi_token_id", 255999, 0, INT32_MAX),
                                           config_i64(config, "eoi_token_id", 258882, 0, INT32_MAX)}};
        read_spec(&vision, &t->spec);
    }
    if (t && b->status == TN_OK)
        t->blocks = calloc((size_t)t->spec.depth, sizeof *t->blocks);
    if (t && t->blocks) {
        build_tower(b, root, t);
        build_projector(b, root, t);
    } else if (b->status == TN_OK) {
        build_fail(b, TN_E_MEMORY, "graph", "out of memory for a vision tower");
    }
    if (b->status == TN_OK)
        return t;
    free_tower(t);
    return NULL;
}

static bool knows(const config_reader *config)
{
    const config_reader vision = config_child(config, "vision_config");
    return config_has(config, "vision_config") &&
           !strcmp(config_str(&vision, "model_type", "gemma4_vision"), "gemma4_vision");
}

static multimodal_sight sight(const void *state)
{
    return ((const gemma4_tower *)state)->sight;
}

static const tower_marks *marks(const void *state)
{
    return &((const gemma4_tower *)state)->marks;
}

/* Frames of videos are pictures, with a token of their own. Sounds have one that nothing is made of. */
static void read_tokens(const config_reader *config, multimodal *m)
{
    const config_reader text = config_child(config, "text_config");
    m->token_key[MULTIMODAL_VIDEO] = "video_token_id";
    m->token[MULTIMODAL_VIDEO] = config_i64(config, "video_token_id", 258884, 0, INT32_MAX);
    m->token[MULTIMODAL_SOUND] = config_i64(config, "audio_token_id", 258881, 0, INT32_MAX);
    m->replaced = true;
    m->pad = config_i64(&text, "pad_token_id", 0, 0, config_i64(&text, "vocab_size", 262144, 1, INT32_MAX) - 1);
}

static const tower_beside beside = {
    .knows = knows, .sight = sight, .marks = marks, .read_tokens = read_tokens, .centred = true};

const tower_kind vision_gemma4 = {"gemma4_vision",       build, free_tower, gemma4_vision_tokens, gemma4_vision_forward,
                                  gemma4_vision_largest, false, &beside};
