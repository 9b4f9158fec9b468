/* Vision towers on their own, against what transformers computes: picture features, and those of deep layers. What goes
 * wrong with pictures and files is told by name. */
#include "checkpoint/checkpoint.h"
#include "eager/eager.h"
#include "models/tower.h"
#include "optest.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS "tests/data/models/"

static const struct {
    const char *name;
    const tower_kind *kind;
} cases[] = {{"qwen2_5_vl", &vision_qwen2_5_vl}, {"qwen3_vl", &vision_qwen3_vl}, {"glm4v_moe", &vision_glm4v_moe}};

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

static void tower_open(tower *t, int index, int64_t text_hidden)
{
    /* The names of a tree and of files: with and without the level above, or below a thinker. */
    static const build_alias aliases[] = {{"model.visual.", "visual."}, {0}};
    char folder[256], path[300];
    snprintf(folder, sizeof folder, MODELS "%s", cases[index].name);
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
    tower_open(&t, _i, 64);
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
    tower_open(&t, _i, 64);
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
    tower_open(&t, _i, 64);
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
    tower_open(&t, _i, 48);
    ck_assert_ptr_null(t.state);
    ck_assert_int_eq(t.status, TN_E_INPUT);
    ck_assert_msg(strstr(t.err.message, "out_hidden_size"), "%s", t.err.message);
    tower_close(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("vision towers");
    TCase *tc = tcase_create("towers");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, features, 0, CASES);
    tcase_add_loop_test(tc, pictures_are_apart, 0, CASES);
    tcase_add_loop_test(tc, grids_that_do_not_fit, 0, CASES);
    tcase_add_loop_test(tc, a_text_model_of_another_width, 0, CASES);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
