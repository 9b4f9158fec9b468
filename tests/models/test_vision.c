/* Vision towers on their own, against what transformers computes: picture features, and those of deep layers. What goes
 * wrong with pictures and files is told by name. */
#include "broken.h"
#include "checkpoint/checkpoint.h"
#include "eager/eager.h"
#include "far_device.h"
#include "models/tower.h"
#include "optest.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS "tests/data/models/"

static const struct {
    const char *name;
    const tower_kind *kind;
    int64_t hidden; /* of the text model, and what the tower's config calls it */
    const char *key;
} cases[] = {{"qwen2_5_vl", &vision_qwen2_5_vl, 64, "out_hidden_size"},
             {"qwen3_vl", &vision_qwen3_vl, 64, "out_hidden_size"},
             {"glm4v_moe", &vision_glm4v_moe, 64, "out_hidden_size"},
             {"qwen2_vl", &vision_qwen2_vl, 48, "hidden_size"}};

enum { CASES = sizeof cases / sizeof *cases };

/* A tower, built of a model's checkpoint. */
typedef struct tower {
    const tower_kind *kind;
    config_file *file;
    shards *weights;
    graph *graph;
    build_copies copies;
    tn_safetensors *expected;
    void *state;
    tn_status status;
    tn_error err;
} tower;

/* The tower of the case's kind, of the checkpoint in folder. */
static void tower_open_at(tower *t, int index, const char *folder, int64_t text_hidden)
{
    /* The names of a tree and of files: with and without the level above, or below a thinker. */
    static const build_alias aliases[] = {{"model.visual.", "visual."}, {0}};
    char path[300];
    snprintf(path, sizeof path, "%s/config.json", folder);
    *t = (tower){.kind = cases[index].kind, .err = TN_ERROR_INIT};
    t->file = config_open(path, &t->err);
    ck_assert_msg(t->file, "%s", t->err.message);
    t->weights = shards_open(folder, &t->err);
    ck_assert_msg(t->weights, "%s", t->err.message);
    t->graph = graph_new(TN_F32, "test", &t->err);
    t->copies.device = &cpu_device;
    graph_builder b = {.graph = t->graph,
                       .weights = t->weights,
                       .device = &cpu_device,
                       .copies = &t->copies,
                       .dtype = TN_F32,
                       .aliases = aliases,
                       .err = &t->err};
    const config_reader root = config_root(t->file, &b.status, &t->err), vision = config_child(&root, "vision_config");
    graph_module *model = build_module(&b, t->graph->root, "model", "Model");
    t->state = t->kind->build(&b, model, "visual", &vision, text_hidden);
    t->status = b.status;
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    t->expected = tn_safetensors_open(path, &t->err);
}

static void tower_open(tower *t, int index, int64_t text_hidden)
{
    char folder[256];
    snprintf(folder, sizeof folder, MODELS "%s", cases[index].name);
    tower_open_at(t, index, folder, text_hidden);
}

static void tower_close(tower *t)
{
    if (t->state)
        t->kind->free_state(t->state);
    tn_safetensors_close(t->expected);
    graph_free(t->graph);
    build_copies_free(&t->copies);
    shards_close(t->weights);
    config_close(t->file);
}

static tn_tensor expected(const tower *t, const char *name)
{
    tn_tensor tensor;
    ck_assert_msg(tn_safetensors_get(t->expected, name, &tensor), "there is no %s", name);
    return tensor;
}

/* All pictures of a case. */
static tower_media media_of(const tower *t, tower_grid *grids, int64_t most)
{
    tn_tensor grid = expected(t, "image_grid_thw");
    ck_assert_int_le(grid.shape[0], most);
    for (int64_t i = 0; i < grid.shape[0]; i++) {
        const int64_t *g = (const int64_t *)grid.data + 3 * i;
        grids[i] = (tower_grid){g[0], g[1], g[2]};
    }
    return (tower_media){.pixels = expected(t, "pixel_values"), .grids = grids, .grid_count = grid.shape[0]};
}

/* Runs it in an arena of just the size that measuring found. rows lie in it. */
static void forward(const tower *t, const tower_media *media, arena *a, tower_rows *rows)
{
    tn_error err = TN_ERROR_INIT;
    arena_init(a, &cpu_device, 0, &err);
    graph_run r = {.device = &cpu_device, .arena = a, .dtype = TN_F32, .err = &err};
    tower_media measured = *media;
    measured.pixels.data = NULL;
    t->kind->forward(&r, t->state, &measured, rows);
    size_t size = a->peak;
    arena_close(a);
    ck_assert_int_eq(arena_init(a, &cpu_device, size, &err), TN_OK);
    t->kind->forward(&r, t->state, media, rows);
    ck_assert_msg(r.status == TN_OK, "%s: %s", err.where, err.message);
}

/* f32 sums in another order: 1e-4 of the largest. */
static void expect_like(const tn_tensor *got, const tn_tensor *want, const char *what)
{
    double largest = 0, worst = 0;
    int64_t n = tn_tensor_count(want);
    ck_assert_int_eq(tn_tensor_count(got), n);
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(optest_at(want, i)));
        worst = fmax(worst, fabs(optest_at(got, i) - optest_at(want, i)));
    }
    ck_assert_msg(worst <= 1e-4 * largest, "%s: %g from what is expected, whose largest is %g", what, worst, largest);
}

START_TEST(features)
{
    tower t;
    arena a;
    tower_grid grids[8];
    tower_rows rows;
    tower_open(&t, _i, cases[_i].hidden);
    ck_assert_msg(t.state, "%s: %s", t.err.where, t.err.message);
    tower_media media = media_of(&t, grids, 8);
    tn_tensor want = expected(&t, "image_features");
    ck_assert_int_eq(t.kind->tokens(t.state, &media, &t.err), want.shape[0]);
    forward(&t, &media, &a, &rows);
    expect_like(&rows.features, &want, cases[_i].name);
    for (int32_t i = 0; i < rows.deep_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "deepstack.%d", (int)i);
        want = expected(&t, name);
        expect_like(&rows.deep[i], &want, name);
    }
    arena_close(&a);
    tower_close(&t);
}
END_TEST

/* Pictures do not see each other: the last one alone gives its rows of all. */
START_TEST(pictures_are_apart)
{
    tower t;
    arena a, alone;
    tower_grid grids[8];
    tower_rows rows, last;
    tower_open(&t, _i, cases[_i].hidden);
    tower_media media = media_of(&t, grids, 8), one = media;
    const tower_grid *g = &grids[media.grid_count - 1];
    int64_t patches = g->t * g->h * g->w, before = media.pixels.shape[0] - patches;
    one.grids = g;
    one.grid_count = 1;
    one.pixels.shape[0] = patches;
    one.pixels.data = (float *)media.pixels.data + before * media.pixels.shape[1];
    forward(&t, &media, &a, &rows);
    forward(&t, &one, &alone, &last);
    int64_t tokens = last.features.shape[0];
    tn_tensor tail = rows.features;
    tail.data = (float *)tail.data + (tail.shape[0] - tokens) * tail.shape[1];
    tail.shape[0] = tokens;
    expect_like(&last.features, &tail, cases[_i].name);
    arena_close(&alone);
    arena_close(&a);
    tower_close(&t);
}
END_TEST

/* got is want over and over. */
static void expect_repeated(const tn_tensor *got, const tn_tensor *want, const char *what)
{
    int64_t rows = want->shape[0], times = got->shape[0] / rows;
    for (int64_t i = 0; i < times; i++) {
        tn_tensor part = *got;
        part.shape[0] = rows;
        part.data = (float *)part.data + i * rows * part.shape[1];
        expect_like(&part, want, what);
    }
}

/* More patches than one call of a site has: all pictures many times over, and the first one as frames of a video. */
START_TEST(many_pictures)
{
    enum { TIMES = 23 };
    tower t;
    arena a, once;
    tower_grid grids[8], repeated[8 * TIMES];
    tower_rows all, rows;
    tower_open(&t, _i, cases[_i].hidden);
    tower_media media = media_of(&t, grids, 8), many = media;
    int64_t patches = media.pixels.shape[0], width = media.pixels.shape[1], first = grids[0].h * grids[0].w;
    int64_t bytes = patches * width * (int64_t)sizeof(float);
    float *pixels = malloc((size_t)(TIMES * bytes));
    forward(&t, &media, &once, &rows);
    many.grids = repeated;
    many.grid_count = TIMES * media.grid_count;
    many.pixels.data = pixels;
    many.pixels.shape[0] = TIMES * patches;
    for (int64_t i = 0; i < TIMES; i++) {
        memcpy(repeated + i * media.grid_count, grids, (size_t)media.grid_count * sizeof *grids);
        memcpy((char *)pixels + i * bytes, media.pixels.data, (size_t)bytes);
    }
    ck_assert_int_gt(many.pixels.shape[0], 1024);
    forward(&t, &many, &a, &all);
    expect_repeated(&all.features, &rows.features, cases[_i].name);
    ck_assert_uint_le(a.size, TIMES * once.size); /* memory grows with the patches, not with their square */
    arena_close(&a);
    ck_assert_int_eq(grids[0].t, 1);
    many.grid_count = 1;
    repeated[0].t = TIMES;
    many.pixels.shape[0] = TIMES * first;
    for (int64_t i = 0; i < TIMES; i++)
        memcpy(pixels + i * first * width, media.pixels.data, (size_t)(first * width) * sizeof *pixels);
    forward(&t, &many, &a, &all);
    rows.features.shape[0] = all.features.shape[0] / TIMES;
    expect_repeated(&all.features, &rows.features, cases[_i].name);
    free(pixels);
    arena_close(&a);
    arena_close(&once);
    tower_close(&t);
}
END_TEST

static void expect_refused(const tower *t, const tower_media *media, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(t->kind->tokens(t->state, media, &err), -1);
    ck_assert_msg(strstr(err.message, words), "%s: %s", err.where, err.message);
}

START_TEST(grids_that_do_not_fit)
{
    tower t;
    tower_grid grids[8];
    tower_open(&t, _i, cases[_i].hidden);
    tower_media media = media_of(&t, grids, 8);
    tower_grid kept = grids[0];
    grids[0].h++;
    expect_refused(&t, &media, "multiples of spatial_merge_size 2");
    grids[0].h = 0;
    expect_refused(&t, &media, "at least 1");
    grids[0].h = INT64_MAX - 1;
    expect_refused(&t, &media, "at most");
    grids[0] = kept;
    grids[0].t++;
    expect_refused(&t, &media, "the grids ask for");
    grids[0] = kept;
    media.pixels.shape[1]--;
    expect_refused(&t, &media, "patch_size");
    media.grid_count = 0;
    expect_refused(&t, &media, "the grids ask for [0,");
    tower_close(&t);
}
END_TEST

START_TEST(a_text_model_of_another_width)
{
    tower t;
    tower_open(&t, _i, 80);
    ck_assert_ptr_null(t.state);
    ck_assert_int_eq(t.status, TN_E_INPUT);
    suite_expect_in(t.err.message, cases[_i].key);
    tower_close(&t);
}
END_TEST

/* Logits and features of a case's first row, by the whole model on a device. Owned. */
static float *results_on(const char *device, int index, int64_t *count)
{
    tn_error err = TN_ERROR_INIT;
    char path[256];
    snprintf(path, sizeof path, MODELS "%s/expected.safetensors", cases[index].name);
    tower t = {.expected = tn_safetensors_open(path, &err)};
    tn_tensor pixels = expected(&t, "pixel_values"), grids = expected(&t, "image_grid_thw");
    tn_tensor ids = expected(&t, "input_ids"), like = expected(&t, "image_features");
    tn_model *m = test_model_open_with(cases[index].name, .dtype = "f32", .device = device);
    int64_t vocab = test_model_vocab(m);
    int64_t logits = ids.shape[1] * vocab;
    *count = logits + tn_tensor_count(&like);
    float *all = calloc((size_t)*count, sizeof *all);
    tn_session *s = test_model_session(m, .context = ids.shape[1]);
    tn_pictures images = {.size = sizeof images,
                          .count = grids.shape[0],
                          .grids = grids.data,
                          .pixels = pixels.data,
                          .patches = pixels.shape[0],
                          .width = pixels.shape[1]};
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = ids.shape[1], .ids = ids.data, .images = &images};
    tn_outputs out = {.size = sizeof out, .logits = all, .image_features = all + logits};
    ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_session_free(s);
    tn_model_close(m);
    tn_safetensors_close(t.expected);
    return all;
}

START_TEST(far_away)
{
    static const far_options far = {.name = "far"};
    int64_t count, again;
    far_device_add(&far);
    float *here = results_on("cpu", _i, &count), *there = results_on("far", _i, &again);
    ck_assert_int_eq(count, again);
    ck_assert_mem_eq(here, there, (size_t)count * sizeof *here);
    ck_assert_int_eq(far_seen.held, 0);
    free(here);
    free(there);
}
END_TEST

/* What config.json says about a tower, taken away or changed; words: what the error names, NULL: nothing changes. */
static const struct {
    int index;
    const char *key, *value, *words;
} keys[] = {
    {0, "num_heads", "3", "num_heads"},
    {0, "num_heads", "16", "multiple of 4"},
    {0, "head_dim", "8", "head_dim"},
    {0, "window_size", "7", "window_size"},
    {0, "hidden_act", "\"swoosh\"", "hidden_act"},
    {0, "rope_parameters/rope_type", "\"yarn\"", "axial"},
    {0, "rope_parameters/rope_theta", "-1", "rope_theta"},
    {0, "patch_size", "5", "patch_embed.proj.weight"},
    {0, "spatial_merge_size", "0", "spatial_merge_size"},
    {0, "depth", "3", "blocks.2"},
    {0, "in_channels", "1", "patch_embed.proj.weight"},
    {0, "intermediate_size", "57", "mlp.gate_proj.weight"},
    {0, "rope_parameters", NULL, NULL},
    {0, "rope_parameters", "null", NULL},
    {0, "rope_parameters/rope_type", "\"default\"", NULL},
    {0, "temporal_patch_size", NULL, NULL},
    {0, "in_channels", "null", NULL},
    {1, "num_position_embeddings", "63", "pos_embed.weight"},
    {1, "deepstack_visual_indexes", "[0, 1, 0]", "deepstack_merger_list.2"},
    {1, "deepstack_visual_indexes", "[0, 1, 0, 1, 0, 1, 0, 1, 0]", "deepstack_visual_indexes"},
    {1, "hidden_act", NULL, NULL},
    {2, "image_size", "36", "position_embedding.weight"},
    {2, "image_size", "3", "image_size"},
    {2, "attention_bias", "true", "qkv.bias"},
    {2, "rms_norm_eps", "2", "rms_norm_eps"},
    {2, "rms_norm_eps", NULL, NULL},
    {2, "attention_bias", NULL, NULL},
    {3, "embed_dim", "36", "num_heads"},
    {3, "mlp_ratio", "0", "mlp_ratio"},
    {3, "mlp_ratio", "1e300", "mlp_ratio"},
    {3, "mlp_ratio", "2.03", NULL},
    {3, "mlp_ratio", NULL, "mlp.fc1.weight"},
};

START_TEST(a_key)
{
    char *folder = broken_copy(cases[keys[_i].index].name), path[64];
    tower t;
    snprintf(path, sizeof path, "vision_config/%s", keys[_i].key);
    broken_json(folder, "config.json", path, keys[_i].value);
    tower_open_at(&t, keys[_i].index, folder, cases[keys[_i].index].hidden);
    if (keys[_i].words) {
        ck_assert_ptr_null(t.state);
        broken_expect(&t.err, TN_E_INPUT, keys[_i].words, NULL);
    } else {
        arena a;
        tower_grid grids[8];
        tower_rows rows;
        ck_assert_msg(t.state, "%s: %s", t.err.where, t.err.message);
        tower_media media = media_of(&t, grids, 8);
        tn_tensor want = expected(&t, "image_features");
        forward(&t, &media, &a, &rows);
        expect_like(&rows.features, &want, keys[_i].key);
        arena_close(&a);
    }
    tower_close(&t);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("vision towers", 60);
    tcase_add_loop_test(tc, features, 0, CASES);
    tcase_add_loop_test(tc, pictures_are_apart, 0, CASES);
    tcase_add_loop_test(tc, many_pictures, 0, CASES);
    tcase_add_loop_test(tc, far_away, 0, CASES);
    tcase_add_loop_test(tc, grids_that_do_not_fit, 0, CASES);
    tcase_add_loop_test(tc, a_text_model_of_another_width, 0, CASES);
    tcase_add_loop_test(tc, a_key, 0, (int)(sizeof keys / sizeof *keys));
    return suite_run();
}
