/* The towers that hear: their features are those of the golden cases, and for clips of other lengths those of a plain
 * computation in double precision that follows the modeling files with all their padding. */
#include "audio_plain.h"
#include "base/convert.h"
#include "broken.h"
#include "eager/eager.h"
#include "far_device.h"
#include "models/tower.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = AUDIO_PLAIN_OUT, MEL = AUDIO_PLAIN_MEL, MAX_CLIPS = 4 };

/* What the tests know of the two cases. */
typedef struct kind {
    const char *model, *outer, *config; /* folder; the module around the tower, or ""; keys of its config */
    const tower_kind *tower;
    int64_t n_window;
    bool planes; /* convolutions in two dimensions                                                */
} kind;

static const kind v2 = {"qwen2_5_omni_thinker", "", "audio_config", &audio_qwen2_5_omni, 8, false};
static const kind v3 = {"qwen3_omni_moe_thinker", "thinker", "thinker_config/audio_config",
                        &audio_qwen3_omni_moe,    50,        true};

/* A tower of a folder, built. */
typedef struct ear {
    const kind *kind;
    const device *device;
    config_file *config;
    shards *weights;
    graph *graph;
    build_copies copies;
    void *state;
    tn_status status;
} ear;

static ear ear_open(const kind *k, const char *folder, const device *device, tn_dtype dtype, tn_error *err)
{
    ear e = {.kind = k, .device = device, .copies.device = device};
    char *path = tempdir_at(folder, "config.json");
    e.config = config_open(path, err);
    e.weights = e.config ? shards_open(folder, err) : NULL;
    ck_assert_msg(e.weights != NULL, "%s: %s", err->where, err->message);
    e.graph = graph_new(dtype, "omni", err);
    graph_builder b = {
        .graph = e.graph, .weights = e.weights, .device = device, .copies = &e.copies, .dtype = dtype, .err = err};
    config_reader config = config_root(e.config, &b.status, err);
    if (k->outer[0])
        config = config_child(&config, "thinker_config");
    config = config_child(&config, "audio_config");
    graph_module *root = e.graph->root;
    e.state = k->tower->build(&b, k->outer[0] ? build_module(&b, root, k->outer, "Thinker") : root, "audio_tower",
                              &config, HIDDEN);
    e.status = b.status;
    ck_assert_int_eq(e.state != NULL, b.status == TN_OK);
    for (size_t i = 0; i < e.graph->site_count && e.state; i++)
        ck_assert_int_eq(op_check_site(&e.graph->sites[i]->site, err), TN_OK);
    return e;
}

static void ear_close(ear *e)
{
    e->kind->tower->free_state(e->state);
    graph_free(e->graph);
    build_copies_free(&e->copies);
    shards_close(e->weights);
    config_close(e->config);
}

static ear ear_of(const kind *k, const char *folder, const device *device, tn_dtype dtype)
{
    tn_error err = TN_ERROR_INIT;
    ear e = ear_open(k, folder, device, dtype, &err);
    ck_assert_msg(e.status == TN_OK, "%s: %s", err.where, err.message);
    return e;
}

/* Runs the tower in an arena of the size that measuring says. Features as f32, owned. */
static float *listen(const ear *e, const tn_tensor *features, const int64_t *frames, tn_dtype dtype, int64_t *tokens)
{
    tn_error err = TN_ERROR_INIT;
    int64_t count = tn_tensor_count(features);
    size_t element = tn_dtype_size(dtype), bytes = (size_t)count * element, size = 0;
    tower_media media = {.pixels = tn_tensor_dense(NULL, dtype, 3, features->shape), .frames = frames};
    tower_rows rows = {0};
    arena a;
    *tokens = e->kind->tower->tokens(e->state, &media, &err);
    int64_t numbers = *tokens * HIDDEN;
    void *host = malloc(bytes + (size_t)numbers * element), *data;
    convert_from_f32(features->data, dtype, host, count);
    ck_assert_int_eq(device_alloc(e->device, bytes, &data, &err), TN_OK);
    ck_assert_int_eq(device_upload(e->device, data, host, bytes, &err), TN_OK);
    for (int real = 0; real < 2; real++) {
        ck_assert_int_eq(arena_init(&a, e->device, size, &err), TN_OK);
        graph_run r = {.device = e->device, .arena = &a, .dtype = dtype, .err = &err};
        e->kind->tower->forward(&r, e->state, &media, &rows);
        ck_assert_msg(r.status == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_int_eq(rows.features.shape[0], *tokens);
        ck_assert_int_eq(rows.features.shape[1], HIDDEN);
        size = a.peak;
        media.pixels.data = data;
        if (!real)
            arena_close(&a);
    }
    float *out = malloc((size_t)(numbers + 1) * sizeof *out);
    ck_assert_int_eq(device_download(e->device, host, rows.features.data, (size_t)numbers * element, &err), TN_OK);
    convert_to_f32(host, dtype, out, numbers);
    arena_close(&a);
    device_free(e->device, data, bytes);
    free(host);
    return out;
}

/* Largest difference, as a share of the largest number expected. */
static double difference(const float *got, const float *expected, int64_t count)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)expected[i]));
        largest = fmax(largest, fabs((double)expected[i]));
    }
    return largest > 0 ? worst / largest : worst;
}

/* ---- golden cases ------------------------------------------------------------------------------- */

static void golden(const kind *k, const device *device, tn_dtype dtype, double bound)
{
    tn_error err = TN_ERROR_INIT;
    char folder[256], path[512];
    snprintf(folder, sizeof folder, "tests/data/models/%s", k->model);
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    tn_safetensors *file = tn_safetensors_open(path, &err);
    ck_assert_msg(file != NULL, "%s: %s", err.where, err.message);
    tn_tensor features, mask, expected;
    ck_assert(tn_safetensors_get(file, "input_features", &features));
    ck_assert(tn_safetensors_get(file, "feature_attention_mask", &mask));
    ck_assert(tn_safetensors_get(file, "audio_features", &expected));
    int64_t frames[MAX_CLIPS] = {0}, tokens;
    for (int64_t i = 0; i < tn_tensor_count(&mask); i++)
        frames[i / mask.shape[1]] += ((const int64_t *)mask.data)[i];
    ear e = ear_of(k, folder, device, dtype);
    float *got = listen(&e, &features, frames, dtype, &tokens);
    ck_assert_int_eq(tokens, expected.shape[0]);
    double far = difference(got, expected.data, tokens * HIDDEN);
    ck_assert_msg(far <= bound, "%s: %g of the largest, allowed are %g", k->model, far, bound);
    free(got);
    ear_close(&e);
    tn_safetensors_close(file);
}

START_TEST(golden_features)
{
    golden(_i ? &v3 : &v2, &cpu_device, TN_F32, 1e-4);
}
END_TEST

/* Where the host can touch nothing, and work waits until somebody looks. */
START_TEST(far_away)
{
    tn_error err = TN_ERROR_INIT;
    int32_t ordinal;
    device far;
    far_device_add(&(far_options){.name = "far"});
    const tn_device *found = registry_device("far", &ordinal, &err);
    ck_assert_int_eq(device_open(&far, found, ordinal, false, &err), TN_OK);
    golden(_i ? &v3 : &v2, &far, TN_F32, 1e-4);
    device_close(&far);
    ck_assert_int_gt(far_seen.most_waiting, 1);
    ck_assert_int_eq(far_seen.held, 0);
}
END_TEST

/* Sums of this many roundings of 2^-8 and 2^-11. */
START_TEST(narrow_types)
{
    golden(_i ? &v3 : &v2, &cpu_device, TN_BF16, 5e-2);
    golden(_i ? &v3 : &v2, &cpu_device, TN_F16, 5e-3);
}
END_TEST

/* ---- other lengths ------------------------------------------------------------------------------ */

static const struct {
    const kind *kind;
    int64_t frames[MAX_CLIPS]; /* 0 ends them                                                     */
    int64_t n_window, n_window_infer;
} lengths[] = {
    {&v2, {3}, 8, 0},
    {&v2, {16}, 8, 0},
    {&v2, {17, 1, 31}, 8, 0}, /* the second leaves nothing                                        */
    {&v2, {5, 44, 2, 16}, 8, 0},
    {&v2, {50, 7}, 11, 0}, /* pairs lie across chunks                                           */
    {&v2, {5, 20}, 64, 0},
    {&v2, {9000, 100}, 8, 0}, /* more rows than one call takes                                    */
    {&v3, {30}, 50, 100},
    {&v3, {1}, 50, 100},
    {&v3, {7, 100, 33}, 50, 100},
    {&v3, {250, 40}, 50, 800},
    {&v3, {450, 201, 8}, 50, 200},
    {&v3, {5, 3}, 50, 800},    /* padded to 5 frames only                                           */
    {&v3, {32000}, 50, 100},   /* more rows than one call takes, after the convolutions              */
    {&v3, {4000}, 2048, 4096}, /* ... and in them                                                 */
    {&v3, {90, 30}, 40, 100},  /* rows that the file takes for others than they are                */
};

/* A copy of the case with other numbers in the tower's config. */
static char *copy_with(const kind *k, const char *const *key, const int64_t *value, int count)
{
    char *folder = broken_copy(k->model), path[128], number[32];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", k->config, key[i]);
        snprintf(number, sizeof number, "%lld", (long long)value[i]);
        broken_json(folder, "config.json", path, number);
    }
    return folder;
}

START_TEST(other_lengths)
{
    static const char *const keys[] = {"n_window", "n_window_infer", "max_source_positions"};
    const kind *k = lengths[_i].kind;
    int64_t clips = 0, most = 0, tokens, values[3] = {lengths[_i].n_window, lengths[_i].n_window_infer, 512};
    for (; clips < MAX_CLIPS && lengths[_i].frames[clips]; clips++)
        most = lengths[_i].frames[clips] > most ? lengths[_i].frames[clips] : most;
    char *folder = copy_with(k, keys, values, 3);
    tn_tensor features = tn_tensor_dense(NULL, TN_F32, 3, (int64_t[]){clips, MEL, most + 5});
    float *data = malloc((size_t)tn_tensor_count(&features) * sizeof *data);
    for (int64_t n = 0; n < tn_tensor_count(&features); n++)
        data[n] = sinf((float)(n * n % 1009) * 0.7f);
    features.data = data;
    ear e = ear_of(k, folder, &cpu_device, TN_F32);
    audio_plain_tower plain = {e.weights, k->outer, k->planes, lengths[_i].n_window, lengths[_i].n_window_infer};
    int64_t rows;
    double *expected = audio_plain(&plain, &features, lengths[_i].frames, clips, &rows);
    float *got = listen(&e, &features, lengths[_i].frames, TN_F32, &tokens);
    ck_assert_int_eq(tokens, rows);
    double worst = 0, largest = 0;
    for (int64_t n = 0; n < tokens * HIDDEN; n++) {
        worst = fmax(worst, fabs((double)got[n] - expected[n]));
        largest = fmax(largest, fabs(expected[n]));
    }
    ck_assert_msg(worst <= 1e-5 * largest, "%g, the largest is %g", worst, largest);
    free(got);
    free(expected);
    free(data);
    ear_close(&e);
}
END_TEST

/* ---- what does not fit -------------------------------------------------------------------------- */

static const struct {
    const kind *kind;
    const char *key;
    int64_t value;
    const char *word; /* what the error says beside the key                                        */
} wrong_keys[] = {
    {&v2, "output_dim", 32, "hidden_size"},
    {&v2, "encoder_attention_heads", 3, "d_model"},
    {&v2, "d_model", 34, "has shape"},
    {&v2, "n_window", 0, "between"},
    {&v3, "n_window_infer", 99, "n_window"},
    {&v3, "num_mel_bins", 40, "conv_out"},
    {&v3, "downsample_hidden_size", 4, "conv2d1"},
    {&v3, "encoder_layers", 3, "layers.2"},
};

START_TEST(a_wrong_key)
{
    tn_error err = TN_ERROR_INIT;
    bool of_tensors = wrong_keys[_i].word[0] == 'c' || wrong_keys[_i].word[0] == 'l' || wrong_keys[_i].value == 34;
    char *folder = copy_with(wrong_keys[_i].kind, &wrong_keys[_i].key, &wrong_keys[_i].value, 1);
    ear e = ear_open(wrong_keys[_i].kind, folder, &cpu_device, TN_F32, &err);
    ck_assert_ptr_null(e.state);
    broken_expect(&err, TN_E_INPUT, of_tensors ? "audio_tower" : wrong_keys[_i].key, wrong_keys[_i].word, NULL);
    ear_close(&e);
}
END_TEST

START_TEST(an_unknown_activation)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = broken_copy(v2.model);
    broken_json(folder, "config.json", "audio_config/activation_function", "\"swoosh\"");
    ear e = ear_open(&v2, folder, &cpu_device, TN_F32, &err);
    broken_expect(&err, TN_E_INPUT, "activation_function", "swoosh", "gelu", NULL);
    ear_close(&e);
}
END_TEST

static const struct {
    const kind *kind;
    int64_t mel, frames; /* of 20                                                                  */
    int64_t n_window, positions;
    const char *word;
} wrong_media[] = {
    {&v2, MEL + 1, 20, 8, 64, "num_mel_bins"},
    {&v2, MEL, 0, 8, 64, "real frames"},
    {&v3, MEL, 21, 50, 64, "real frames"},
    {&v2, MEL, 20, 8, 7, "max_source_positions"},
    {&v3, MEL, 20, 50, 2, "max_source_positions"},
    {&v3, MEL, 20, 10, 64, "n_window"}, /* 3 rows are left of 20 frames                            */
};

START_TEST(media_that_do_not_fit)
{
    static const char *const keys[] = {"n_window", "max_source_positions"};
    tn_error err = TN_ERROR_INIT;
    const kind *k = wrong_media[_i].kind;
    char *folder = copy_with(k, keys, (int64_t[]){wrong_media[_i].n_window, wrong_media[_i].positions}, 2);
    ear e = ear_of(k, folder, &cpu_device, TN_F32);
    tower_media media = {.pixels = tn_tensor_dense(NULL, TN_F32, 3, (int64_t[]){1, wrong_media[_i].mel, 20}),
                         .frames = &wrong_media[_i].frames};
    ck_assert_int_eq(k->tower->tokens(e.state, &media, &err), -1);
    broken_expect(&err, TN_E_INPUT, wrong_media[_i].word, NULL);
    ear_close(&e);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("audio", 60);
    tcase_add_loop_test(tc, golden_features, 0, 2);
    tcase_add_loop_test(tc, far_away, 0, 2);
    tcase_add_loop_test(tc, narrow_types, 0, 2);
    tcase_add_loop_test(tc, other_lengths, 0, (int)(sizeof lengths / sizeof lengths[0]));
    tcase_add_loop_test(tc, a_wrong_key, 0, (int)(sizeof wrong_keys / sizeof wrong_keys[0]));
    suite_add(tc, an_unknown_activation);
    tcase_add_loop_test(tc, media_that_do_not_fit, 0, (int)(sizeof wrong_media / sizeof wrong_media[0]));
    return suite_run();
}
