/* Projectors: from rows of patches to rows of the text model, one for each kind of model around. */
#include "models/vit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MERGE = 64, MAX_SIZE = 1 << 20 };

/* What they have, some of them each. */
typedef struct projector {
    graph_site *norm, *merge, *inner[2], *second; /* inner: with act behind each                       */
    const tn_site *act, *copy;
    int64_t side;    /* patches by side that become one row; 1: each its own                          */
    bool means;      /* ... their mean; else side by side:                                            */
    bool by_channel; /* all of one channel together; else all of one patch                            */
    int64_t width;   /* of what is given                                                              */
} projector;

/* ---- building ------------------------------------------------------------------------------------ */

static projector *allocate(graph_builder *b, int64_t width)
{
    projector *p = b->status == TN_OK ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return b->status == TN_OK ? build_fail(b, TN_E_MEMORY, "graph", "out of memory for a projector") : NULL;
    p->side = 1;
    p->width = width;
    return p;
}

static projector *built(const graph_builder *b, projector *p)
{
    if (b->status == TN_OK)
        return p;
    free(p);
    return NULL;
}

static graph_module *module_of(graph_builder *b, graph_module *root, const char *class_name)
{
    graph_module *m = build_module(b, root, "multi_modal_projector", class_name);
    if (m)
        m->apart = true;
    return m;
}

/* linear_1, an activation, linear_2. */
static void build_two(graph_builder *b, graph_module *m, const config_reader *c, const vit_tower *v, int64_t width,
                      bool bias, projector *p)
{
    tn_act act = parts_act(c, "projector_hidden_act", "gelu");
    p->inner[0] = parts_linear(b, m, "linear_1", width, v->text_hidden, bias, NULL);
    p->second = parts_linear(b, m, "linear_2", v->text_hidden, v->text_hidden, bias, NULL);
    p->act = parts_act_step(b, m, TN_OP_ACT, act, v->text_hidden);
    p->copy = build_step(b, m, TN_OP_COPY, width);
}

static void *build_llava(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                         int64_t width)
{
    projector *p = allocate(b, width);
    if (!p)
        return NULL;
    graph_module *m =
        module_of(b, root, v->projector->tiled ? "LlavaNextMultiModalProjector" : "LlavaMultiModalProjector");
    build_two(b, m, c, v, width, config_bool(c, "multimodal_projector_bias", true), p);
    return built(b, p);
}

static void *build_mistral3(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                            int64_t width)
{
    projector *p = allocate(b, width);
    config_reader text = config_child(c, "text_config");
    if (!p)
        return NULL;
    const parts_norm_kind norm = {
        .class_name = "Mistral3RMSNorm", .variant = TN_NORM_W, .eps = config_f64(&text, "rms_norm_eps", 1e-6)};
    p->side = config_i64(c, "spatial_merge_size", 2, 1, MAX_MERGE);
    p->by_channel = true;
    graph_module *m = module_of(b, root, "Mistral3MultiModalProjector");
    p->norm = parts_norm(b, m, "norm", &norm, width, false);
    graph_module *merger = build_module(b, m, "patch_merger", "Mistral3PatchMerger");
    p->merge = parts_linear(b, merger, "merging_layer", width * p->side * p->side, width, false, NULL);
    build_two(b, m, c, v, width, config_bool(c, "multimodal_projector_bias", false), p);
    return built(b, p);
}

/* Patches by side of a square that becomes one row: key says how many rows become of one, by side. */
static int64_t shuffle_side(const config_reader *c, const char *key)
{
    double ratio = config_f64(c, key, 0.5);
    int64_t side = ratio > 0.01 && ratio <= 1 ? (int64_t)(1 / ratio + 0.5) : 0;
    if (side >= 1 && (double)side * ratio == 1.0)
        return side;
    config_fail(c, key, "is %g; it must be 1, 1/2, 1/4 ...", ratio);
    return 1;
}

static void *build_internvl(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                            int64_t width)
{
    projector *p = allocate(b, width);
    if (!p)
        return NULL;
    const parts_norm_kind norm = {.class_name = "LayerNorm", .eps = 1e-5, .layer_norm = true, .bias = true};
    p->side = shuffle_side(c, "downsample_ratio");
    graph_module *m = module_of(b, root, "InternVLMultiModalProjector");
    width *= p->side * p->side;
    p->norm = parts_norm(b, m, "layer_norm", &norm, width, false);
    build_two(b, m, c, v, width, true, p);
    return built(b, p);
}

static void *build_gemma3(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                          int64_t width)
{
    projector *p = allocate(b, width);
    if (!p)
        return NULL;
    const parts_norm_kind norm = {.class_name = "Gemma3RMSNorm", .variant = TN_NORM_1_PLUS_W, .eps = v->spec.norm.eps};
    const int64_t shape[2] = {v->text_hidden, width};
    const build_form turned = {.turned = true};
    int64_t tokens = config_i64(c, "mm_tokens_per_image", 256, 1, 1 << 20), side = (int64_t)sqrt((double)tokens);
    p->side = side > 0 ? v->spec.rows / side : 0;
    if (side * side != tokens || p->side < 1 || p->side > MAX_MERGE || v->spec.rows != v->spec.columns) {
        config_fail(c, "mm_tokens_per_image", "is %lld; it must be a square of at most %lld by side", (long long)tokens,
                    (long long)v->spec.rows);
        p->side = 1;
    }
    p->means = true;
    graph_module *m = module_of(b, root, "Gemma3MultiModalProjector");
    p->norm = parts_norm(b, m, "mm_soft_emb_norm", &norm, width, false);
    tn_tensor matrix;
    p->second = build_site(b, m, TN_OP_LINEAR, NULL);
    if (p->second && build_tensor_as(b, m, "mm_input_projection_weight", 2, shape, &turned, &matrix)) {
        build_param(b, p->second, TN_ROLE_WEIGHT, &matrix, 1);
        p->second->site.dim[TN_DIM_HIDDEN] = width;
        p->second->site.dim[TN_DIM_OUT] = v->text_hidden;
    }
    return built(b, p);
}

static void *build_paligemma(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                             int64_t width)
{
    projector *p = allocate(b, width);
    (void)c;
    if (!p)
        return NULL;
    p->second = parts_linear(b, module_of(b, root, "PaliGemmaMultiModalProjector"), "linear", width, v->text_hidden,
                             true, NULL);
    return built(b, p);
}

/* A size of vision_config that the shapes of what is around it leave no choice. */
static void need_size(const config_reader *c, const char *key, int64_t fallback, int64_t needed)
{
    int64_t size = config_i64(c, key, fallback, 1, MAX_SIZE);
    if (size != needed)
        config_fail(c, key, "is %lld, the rows there are %lld wide", (long long)size, (long long)needed);
}

/* Squares of patches, two matrices inside the tower, one more behind it. */
static void *build_llama4(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                          int64_t width)
{
    projector *p = allocate(b, width);
    config_reader vision = config_child(c, "vision_config");
    if (!p)
        return NULL;
    p->side = shuffle_side(&vision, "pixel_shuffle_ratio");
    if (v->spec.rows != v->spec.columns || v->spec.rows % p->side)
        config_fail(&vision, "pixel_shuffle_ratio", "is 1/%lld, which does not divide the %lld by %lld patches",
                    (long long)p->side, (long long)v->spec.rows, (long long)v->spec.columns);
    int64_t inner = config_i64(&vision, "projector_input_dim", 4096, 1, MAX_SIZE);
    width *= p->side * p->side;
    need_size(&vision, "intermediate_size", v->spec.inter, width);
    need_size(&vision, "projector_output_dim", 4096, inner);
    need_size(&vision, "vision_output_dim", 7680, inner);
    graph_module *m = build_module(b, v->module, "vision_adapter", "Llama4VisionPixelShuffleMLP");
    m = build_module(b, m, "mlp", "Llama4VisionMLP2");
    p->inner[0] = parts_linear(b, m, "fc1", width, inner, false, NULL);
    p->inner[1] = parts_linear(b, m, "fc2", inner, inner, false, NULL);
    p->act = parts_act_step(b, m, TN_OP_ACT, TN_ACT_GELU, inner);
    p->copy = build_step(b, m, TN_OP_COPY, width);
    p->second = parts_linear(b, module_of(b, root, "Llama4MultiModalProjector"), "linear_1", inner, v->text_hidden,
                             false, NULL);
    return built(b, p);
}

/* ---- running ------------------------------------------------------------------------------------- */

int64_t vit_project_rows(const void *state, const vit_picture *picture, int64_t count)
{
    int64_t side = ((const projector *)state)->side;
    if (count != picture->rows * picture->columns)
        return side == 1 ? count : 0; /* squares are of patches alone                                     */
    return (picture->rows / side) * (picture->columns / side);
}

/* Squares of patches as rows: x [rows * columns, W], y [squares, W side side]. What is left over at the right and below
 * is left out. */
static void square(graph_run *r, const projector *p, const vit_picture *picture, const tn_tensor *x, const tn_tensor *y)
{
    int64_t n = p->side, w = x->shape[1], down = picture->rows / n, across = picture->columns / n;
    for (int64_t i = 0; i < n * n; i++) {
        tn_tensor from = steps_part(x, 0, i / n * picture->columns + i % n, 1);
        from = tn_tensor_dense(from.data, x->dtype, 4, (int64_t[]){down, across, w, 1});
        from.stride[0] = n * picture->columns * x->stride[0];
        from.stride[1] = n * x->stride[0];
        tn_tensor to = steps_columns(y, p->by_channel ? i : i * w, 1);
        to = tn_tensor_dense(to.data, y->dtype, 4, from.shape);
        to.stride[0] = across * y->stride[0];
        to.stride[1] = y->stride[0];
        to.stride[2] = p->by_channel ? n * n : 1;
        steps_copy(r, p->copy, &from, &to);
    }
}

/* The same as means: x [rows * columns, W], y [squares, W]. */
static void average(graph_run *r, const projector *p, const vit_picture *picture, const tn_tensor *x,
                    const tn_tensor *y)
{
    int64_t n = p->side, taps = n * n, across = picture->columns / n, shape[] = {y->shape[0], taps};
    int64_t count = shape[0] * taps, *ids = NULL;
    float *weights = NULL;
    if (r->status == TN_OK && !r->arena->measuring) {
        ids = malloc((size_t)count * sizeof *ids);
        weights = malloc((size_t)count * sizeof *weights);
        if (!ids || !weights)
            r->status = tn_fail(r->err, TN_E_MEMORY, "pixels", "out of memory for the order of patches");
    }
    for (int64_t i = 0; ids && weights && i < count; i++) {
        int64_t square = i / taps, tap = i % taps;
        ids[i] = (square / across * n + tap / n) * picture->columns + square % across * n + tap % n;
        weights[i] = 1.0f / (float)taps;
    }
    tn_tensor places = steps_upload(r, TN_I64, 2, shape, ids), factors = steps_upload(r, TN_F32, 2, shape, weights);
    steps_gather_sums(r, x, &places, &factors, y);
    free(ids);
    free(weights);
}

void vit_project_run(graph_run *r, const void *state, const vit_picture *picture, const tn_tensor *x,
                     const tn_tensor *y)
{
    const projector *p = state;
    tn_tensor z = *x;
    if (p->merge)
        steps_norm_in_place(r, p->norm, &z);
    if (p->means) {
        z = steps_take(r, r->dtype, 2, (int64_t[]){y->shape[0], x->shape[1]});
        average(r, p, picture, x, &z);
    } else if (p->side > 1 || p->merge) {
        z = steps_take(r, r->dtype, 2, (int64_t[]){y->shape[0], x->shape[1] * p->side * p->side});
        square(r, p, picture, x, &z);
    }
    for (int64_t at = 0; at < y->shape[0] && r->status == TN_OK; at += TOWER_PIECE) {
        size_t mark = arena_mark(r->arena);
        int64_t left = y->shape[0] - at, count = left < TOWER_PIECE ? left : TOWER_PIECE;
        tn_tensor part = steps_part(&z, 0, at, count), to = steps_part(y, 0, at, count);
        if (p->merge)
            part = steps_linear(r, p->merge, &part);
        else if (p->norm)
            steps_norm_in_place(r, p->norm, &part);
        for (int i = 0; i < 2 && p->inner[i]; i++) {
            part = steps_linear(r, p->inner[i], &part);
            steps_change(r, p->act, &part);
        }
        steps_linear_into(r, p->second, &part, &to);
        arena_release(r->arena, mark);
    }
}

/* As transformers' processors write them (processing_gemma3, processing_internvl, processing_llama4). */
static const tower_marks gemma3_marks = {.place = "<start_of_image>",
                                         .before = "\n\n<start_of_image>",
                                         .after = "<end_of_image>\n\n",
                                         .whole = "Here is the original image ",
                                         .crops = " and here are some crops to help you see better "};
static const tower_marks internvl_marks = {.before = "<img>", .after = "</img>"};

static const tower_marks llama4_marks = {.place = "<|image|>",
                                         .before = "<|image_start|>",
                                         .across = "<|tile_x_separator|>",
                                         .down = "<|tile_y_separator|>",
                                         .whole = "<|image|>",
                                         .after = "<|image_end|>"};

static const vit_projector projectors[] = {
    {"llava", "clip_vision_model", -2, false, true, SIGHT_BACK, NULL, false, build_llava},
    {"llava_next", "clip_vision_model", -2, false, true, SIGHT_BACK, NULL, true, build_llava},
    {"llama4", "llama4_vision_model", 0, true, false, SIGHT_BACK, &llama4_marks, false, build_llama4},
    {"mistral3", "pixtral", -1, false, false, SIGHT_BACK, NULL, false, build_mistral3},
    {"gemma3", "siglip_vision_model", 0, true, false, SIGHT_PICTURE, &gemma3_marks, false, build_gemma3},
    {"internvl", "internvl_vision", -1, true, true, SIGHT_BACK, &internvl_marks, false, build_internvl},
    {"paligemma", "siglip_vision_model", 0, true, false, SIGHT_PROMPT, NULL, false, build_paligemma},
};

int64_t vit_unit(const void *state)
{
    const vit_tower *v = state;
    return v->spec.patch * ((const projector *)v->project)->side;
}

const vit_projector *vit_projector_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof projectors / sizeof *projectors; i++)
        if (!strcmp(projectors[i].model_type, model_type))
            return &projectors[i];
    return NULL;
}
