/* Projectors: from rows of patches to rows of the text model, one for each kind of model around. */
#include "models/vit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MERGE = 64 };

/* What they have, some of them each. */
typedef struct projector {
    graph_site *norm, *merge, *first, *second;
    const tn_site *act, *copy, *mean;
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
    p->first = parts_linear(b, m, "linear_1", width, v->text_hidden, bias, NULL);
    p->second = parts_linear(b, m, "linear_2", v->text_hidden, v->text_hidden, bias, NULL);
    tn_site *step = build_step(b, m, TN_OP_ACT, v->text_hidden);
    if (step)
        step->meaning[TN_AXIS_ACT] = (int32_t)act;
    p->act = step;
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

static void *build_internvl(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v,
                            int64_t width)
{
    projector *p = allocate(b, width);
    if (!p)
        return NULL;
    const parts_norm_kind norm = {.class_name = "LayerNorm", .eps = 1e-5, .layer_norm = true, .bias = true};
    double ratio = config_f64(c, "downsample_ratio", 0.5);
    p->side = ratio > 0.01 && ratio <= 1 ? (int64_t)(1 / ratio + 0.5) : 0;
    if (p->side < 1 || (double)p->side * ratio != 1.0) {
        config_fail(c, "downsample_ratio", "is %g; it must be 1, 1/2, 1/4 ...", ratio);
        p->side = 1;
    }
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
        if (p->first) {
            part = steps_linear(r, p->first, &part);
            steps_change(r, p->act, &part);
        }
        steps_linear_into(r, p->second, &part, &to);
        arena_release(r->arena, mark);
    }
}

/* As transformers' processors write them (processing_gemma3, processing_internvl). */
static const vit_marks gemma3_marks = {.place = "<start_of_image>",
                                       .before = "\n\n<start_of_image>",
                                       .after = "<end_of_image>\n\n",
                                       .whole = "Here is the original image ",
                                       .crops = " and here are some crops to help you see better "};
static const vit_marks internvl_marks = {.before = "<img>", .after = "</img>"};

static const vit_projector projectors[] = {
    {"llava", -2, false, true, SIGHT_BACK, NULL, false, build_llava},
    {"llava_next", -2, false, true, SIGHT_BACK, NULL, true, build_llava},
    {"mistral3", -1, false, false, SIGHT_BACK, NULL, false, build_mistral3},
    {"gemma3", -1, true, false, SIGHT_PICTURE, &gemma3_marks, false, build_gemma3},
    {"internvl", -1, true, true, SIGHT_BACK, &internvl_marks, false, build_internvl},
    {"paligemma", -1, true, false, SIGHT_PROMPT, NULL, false, build_paligemma},
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
