/* Towers of whole pictures beside a text model: keys that lie, pictures that do not fit, other places to compute, what
 * is left of them where a file has none. Their numbers are those of golden cases (check_models). */
#include "broken.h"
#include "far_device.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include "open/model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS "tests/data/models/"

static const char *const cases[] = {"llava",     "llava_next",     "mistral3", "internvl", "gemma3",
                                    "paligemma", "gemma4_clipped", "llama4",   "gemma3n"};
enum { LLAVA, LLAVA_NEXT, MISTRAL3, INTERNVL, GEMMA3, PALIGEMMA, GEMMA4, LLAMA4, GEMMA3N, CASES };

/* A case's tensors, and a batch of them. */
typedef struct given {
    tn_safetensors *file;
    tn_tensor ids, pixels, sizes, places, features;
    int64_t shape[5], size[8], place[256];
    tn_pictures images;
    tn_batch batch;
} given;

static void close_file(void *file)
{
    tn_safetensors_close(file);
}

static given *take(int which)
{
    char path[256];
    tn_error err = TN_ERROR_INIT;
    given *g = calloc(1, sizeof *g);
    snprintf(path, sizeof path, MODELS "%s/expected.safetensors", cases[which]);
    g->file = tn_safetensors_open(path, &err);
    ck_assert_msg(g->file, "%s", err.message);
    suite_keep(g->file, close_file);
    suite_keep(g, free);
    ck_assert(tn_safetensors_get(g->file, "input_ids", &g->ids));
    ck_assert(tn_safetensors_get(g->file, "pixel_values", &g->pixels));
    ck_assert(tn_safetensors_get(g->file, "image_features", &g->features));
    bool sized = tn_safetensors_get(g->file, "image_sizes", &g->sizes);
    bool placed = tn_safetensors_get(g->file, "image_position_ids", &g->places);
    memcpy(g->shape, g->pixels.shape, sizeof g->shape);
    if (sized)
        memcpy(g->size, g->sizes.data, (size_t)tn_tensor_count(&g->sizes) * sizeof *g->size);
    ck_assert(!placed || (size_t)tn_tensor_count(&g->places) * sizeof *g->place <= sizeof g->place);
    if (placed)
        memcpy(g->place, g->places.data, (size_t)tn_tensor_count(&g->places) * sizeof *g->place);
    g->images = (tn_pictures){.size = sizeof g->images,
                              .count = sized ? g->sizes.shape[0] : g->pixels.shape[0],
                              .pixels = g->pixels.data,
                              .pixel_ndim = g->pixels.ndim,
                              .pixel_shape = g->shape,
                              .sizes = sized ? g->size : NULL,
                              .places = placed ? g->place : NULL};
    g->batch = (tn_batch){
        .size = sizeof g->batch, .rows = 1, .tokens = g->ids.shape[1], .ids = g->ids.data, .images = &g->images};
    return g;
}

static tn_status run(const given *g, const char *folder, const char *device, float *features, tn_error *err)
{
    tn_model *m = test_model(folder, .dtype = "f32", .device = device);
    const tn_outputs out = {.size = sizeof out, .image_features = features};
    return tn_session_run(test_session(m, .context = g->batch.tokens), &g->batch, &out, err);
}

static float *room(const given *g)
{
    float *rows = calloc((size_t)tn_tensor_count(&g->features), sizeof *rows);
    suite_keep(rows, free);
    return rows;
}

START_TEST(the_same_far_away)
{
    static const far_options far = {.name = "far"};
    tn_error err = TN_ERROR_INIT;
    const given *g = take(_i);
    float *here = room(g), *there = room(g);
    far_device_add(&far);
    ck_assert_msg(run(g, cases[_i], "cpu", here, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(run(g, cases[_i], "far", there, &err) == TN_OK, "%s", err.message);
    ck_assert_mem_eq(here, there, (size_t)tn_tensor_count(&g->features) * sizeof *here);
    ck_assert_uint_eq(tn_notice_count(), 0);
}
END_TEST

static void expect_refused(const given *g, int which, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(run(g, cases[which], "cpu", NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, words);
}

START_TEST(pictures_that_do_not_fit)
{
    given *g = take(LLAVA);
    g->shape[3] = 12;
    g->shape[2] = 20;
    expect_refused(g, LLAVA, "pictures are 20 by 12 pixels, the tower takes 16 by 16");
    g = take(LLAVA);
    g->shape[1] = 1;
    g->shape[0] = 3;
    expect_refused(g, LLAVA, "has 1 channels, the tower 3");
    g = take(LLAVA);
    g->images.pixel_ndim = 3;
    expect_refused(g, LLAVA, "must be [pictures, channels, height, width]");
    g = take(LLAVA);
    g->images.count = 2;
    expect_refused(g, LLAVA, "has 1 pictures or tiles, there should be 2");
    g = take(LLAVA);
    g->images.pixel_shape = NULL;
    expect_refused(g, LLAVA, "needs the shape of whole pictures");
    g = take(LLAVA);
    g->shape[3] = INT64_MAX;
    expect_refused(g, LLAVA, "needs the shape of whole pictures");
    g = take(LLAVA);
    g->images.pixels = NULL;
    expect_refused(g, LLAVA, "images need pixel_values, or features");
    g = take(LLAVA);
    g->batch.axes = calloc((size_t)(3 * g->batch.tokens), sizeof(float));
    suite_keep((void *)g->batch.axes, free);
    expect_refused(g, LLAVA, "positions have one axis");
}
END_TEST

START_TEST(sizes_that_do_not_fit)
{
    given *g = take(MISTRAL3);
    g->size[0] = 20;
    expect_refused(g, MISTRAL3, "picture 0 is 20 by 24 pixels, its planes 16 by 24");
    g = take(MISTRAL3);
    g->size[2] = 3;
    expect_refused(g, MISTRAL3, "picture 1 is 3 by 16 pixels");
    g = take(MISTRAL3);
    g->size[1] = -1;
    expect_refused(g, MISTRAL3, "has a picture without pixels");
    g = take(MISTRAL3);
    g->size[2] = 4;
    expect_refused(g, MISTRAL3, "cannot be projected");
    g = take(MISTRAL3);
    g->size[1] = 16;
    expect_refused(g, MISTRAL3, "8 tokens stand for images");
    g = take(LLAVA_NEXT);
    g->images.sizes = NULL;
    expect_refused(g, LLAVA_NEXT, "is missing: the sizes of the pictures");
    g = take(LLAVA_NEXT);
    g->size[0] = 32;
    g->size[1] = 32;
    expect_refused(g, LLAVA_NEXT, "is made of 5 tiles, pixel_values has 3");
    g = take(LLAVA_NEXT);
    g->size[0] = INT64_MAX;
    expect_refused(g, LLAVA_NEXT, "more than any has");
}
END_TEST

/* Pictures of 9 by 6 and 6 by 3 patches, 63 with padding; squares of 3 by 3. */
START_TEST(places_that_do_not_fit)
{
    given *g = take(GEMMA4);
    ck_assert_int_eq(g->shape[1], 63);
    g->images.places = NULL;
    expect_refused(g, GEMMA4, "is missing: where the patches of the pictures lie");
    g = take(GEMMA4);
    g->place[1] = -1;
    expect_refused(g, GEMMA4, "patch 0 lies at 0, -1; it must be within 32 by 32, or -1, -1");
    g = take(GEMMA4);
    g->place[0] = 32;
    expect_refused(g, GEMMA4, "patch 0 lies at 32, 0");
    g = take(GEMMA4);
    g->place[0] = 31;
    expect_refused(g, GEMMA4, "the 54 patches of a picture make no squares of 3 by 3");
    g = take(GEMMA4);
    for (int i = 0; i < 2 * 54; i++)
        g->place[i] = 0;
    expect_refused(g, GEMMA4, "the 54 patches of a picture make no squares of 3 by 3");
    g = take(GEMMA4);
    memset(g->place, 0xff, sizeof g->place);
    expect_refused(g, GEMMA4, "has a picture without patches");
    g = take(GEMMA4);
    g->shape[1] = 126;
    g->shape[0] = g->images.count = 1;
    for (int i = 63; i < 126; i++)
        g->place[2 * i] = g->place[2 * i + 1] = -1;
    expect_refused(g, GEMMA4, "8 tokens stand for images");
    g = take(GEMMA4);
    g->shape[1] = 62;
    expect_refused(g, GEMMA4, "is [2, 62, 12]; it must be 2 pictures of a multiple of 9 patches of 12 numbers");
    g = take(GEMMA4);
    g->images.pixel_ndim = 2;
    expect_refused(g, GEMMA4, "must be [pictures, patches, 3 * patch_size * patch_size]");
}
END_TEST

/* Patches say where they lie, so their order does not matter, nor where padding stands. */
START_TEST(patches_in_another_order)
{
    tn_error err = TN_ERROR_INIT;
    given *g = take(GEMMA4);
    int64_t patches = g->shape[1], width = g->shape[2], count = 2 * patches;
    float *pixels = calloc((size_t)(count * width), sizeof *pixels), *plain = room(g), *turned = room(g);
    suite_keep(pixels, free);
    ck_assert_msg(run(g, cases[GEMMA4], "cpu", plain, &err) == TN_OK, "%s", err.message);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = i / patches * patches + patches - 1 - i % patches;
        memcpy(pixels + i * width, (const float *)g->pixels.data + from * width, (size_t)width * sizeof *pixels);
        memcpy(g->place + 2 * i, (const int64_t *)g->places.data + 2 * from, 2 * sizeof *g->place);
    }
    g->images.pixels = pixels;
    ck_assert_msg(run(g, cases[GEMMA4], "cpu", turned, &err) == TN_OK, "%s", err.message);
    for (int64_t i = 0; i < tn_tensor_count(&g->features); i++)
        ck_assert_float_eq_tol(plain[i], turned[i], 1e-5f);
}
END_TEST

/* Frames of a video are pictures with a token of their own. */
START_TEST(frames_are_pictures)
{
    tn_error err = TN_ERROR_INIT;
    given *g = take(GEMMA4);
    int64_t ids[64], tokens = g->batch.tokens;
    float *images = room(g), *frames = room(g);
    ck_assert_msg(run(g, cases[GEMMA4], "cpu", images, &err) == TN_OK, "%s", err.message);
    for (int64_t t = 0; t < tokens; t++)
        ids[t] = g->batch.ids[t] == 5 ? 6 : g->batch.ids[t];
    tn_model *m = test_model(cases[GEMMA4], .dtype = "f32");
    const tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = ids, .videos = &g->images};
    const tn_outputs out = {.size = sizeof out, .video_features = frames};
    ck_assert_msg(tn_session_run(test_session(m, .context = tokens), &batch, &out, &err) == TN_OK, "%s", err.message);
    ck_assert_mem_eq(images, frames, (size_t)tn_tensor_count(&g->features) * sizeof *frames);
}
END_TEST

/* Tiles behind each other instead of picture by picture. */
START_TEST(tiles_in_one_row)
{
    tn_error err = TN_ERROR_INIT;
    given *g = take(LLAVA_NEXT);
    float *nested = room(g), *flat = room(g);
    ck_assert_msg(run(g, "llava_next", "cpu", nested, &err) == TN_OK, "%s", err.message);
    g->images.pixel_ndim = 4;
    g->images.pixel_shape = g->shape + 1;
    ck_assert_msg(run(g, "llava_next", "cpu", flat, &err) == TN_OK, "%s", err.message);
    ck_assert_mem_eq(nested, flat, (size_t)tn_tensor_count(&g->features) * sizeof *flat);
    g->shape[1] = 2;
    expect_refused(g, LLAVA_NEXT, "has 2 pictures or tiles, there should be 3");
}
END_TEST

/* A tower of one block. */
#define UIR(more) "[[{\"block_type\": \"uir\", \"out_chs\": 8, " more "}]]"

/* What config.json says, taken away or changed; words: what the error names, NULL: the model opens. */
static const struct {
    int which;
    const char *key, *value, *words;
} keys[] = {
    {LLAVA, "vision_config/patch_size", "5", "patch_embedding.weight"},
    {LLAVA, "vision_config/patch_size", "[4, 5]", "squares"},
    {LLAVA, "vision_config/image_size", "3", "image_size"},
    {LLAVA, "vision_config/image_size", "[16, 16, 16]", "image_size"},
    {LLAVA, "vision_config/image_size", "32", "position_embedding.weight"},
    {LLAVA, "vision_config/num_attention_heads", "3", "num_attention_heads"},
    {LLAVA, "vision_config/num_hidden_layers", "0", "num_hidden_layers"},
    {LLAVA, "vision_config/num_channels", "4", "patch_embedding.weight"},
    {LLAVA, "vision_config/layer_norm_eps", "7", "layer_norm_eps"},
    {LLAVA, "vision_config/hidden_act", "\"swoosh\"", "hidden_act"},
    {LLAVA, "vision_feature_layer", "-9", "the tower has 3 layers"},
    {LLAVA, "vision_feature_layer", "[]", "vision_feature_layer"},
    {LLAVA, "vision_feature_layer", "[-2, -1]", "linear_1.weight"},
    {LLAVA, "vision_feature_select_strategy", "\"some\"", "vision_feature_select_strategy"},
    {LLAVA, "projector_hidden_act", "\"swoosh\"", "projector_hidden_act"},
    {LLAVA, "vision_feature_layer", NULL, NULL},
    {LLAVA, "vision_feature_select_strategy", NULL, NULL},
    {LLAVA, "multimodal_projector_bias", "null", NULL},
    {LLAVA_NEXT, "image_grid_pinpoints", "[]", "image_grid_pinpoints"},
    {LLAVA_NEXT, "image_grid_pinpoints", "[[16]]", "two integers"},
    {LLAVA_NEXT, "image_grid_pinpoints", "[[16, 0]]", "a canvas of 0 pixels"},
    {LLAVA_NEXT, "image_grid_pinpoints", "[[16, 16000]]", "image_grid_pinpoints"},
    {LLAVA_NEXT, "vision_feature_select_strategy", "\"full\"", "must be 'default'"},
    {MISTRAL3, "spatial_merge_size", "0", "spatial_merge_size"},
    {MISTRAL3, "spatial_merge_size", "3", "merging_layer.weight"},
    {MISTRAL3, "vision_config/rope_parameters/rope_theta", "-1", "rope_theta"},
    {MISTRAL3, "vision_config/rope_parameters/rope_type", "\"yarn\"", "axial"},
    {MISTRAL3, "vision_config/head_dim", "8", "head_dim"},
    {INTERNVL, "downsample_ratio", "0.3", "downsample_ratio"},
    {INTERNVL, "downsample_ratio", "0", "downsample_ratio"},
    {INTERNVL, "vision_config/attention_bias", "true", "q_proj.bias"},
    {INTERNVL, "vision_config/use_qk_norm", "true", "q_norm.weight"},
    {INTERNVL, "vision_config/use_mean_pooling", "false", "layernorm.weight"},
    {INTERNVL, "vision_config/norm_type", "\"batch_norm\"", "norm_type"},
    {INTERNVL, "vision_config/patch_size", "4", NULL},
    {GEMMA3, "mm_tokens_per_image", "5", "it must be a square of at most 4 by side"},
    {GEMMA3, "mm_tokens_per_image", "25", "it must be a square of at most 4 by side"},
    {GEMMA3, "mm_tokens_per_image", "0", "mm_tokens_per_image"},
    {GEMMA3, "mm_tokens_per_image", "9", NULL},
    {GEMMA3, "vision_config/hidden_size", "16", "vision_tower"},
    {GEMMA4, "vision_config/head_dim", "6", "it must be a multiple of 4"},
    {GEMMA4, "vision_config/num_key_value_heads", "3", "which does not divide num_attention_heads 2"},
    {GEMMA4, "vision_config/pooling_kernel_size", "0", "pooling_kernel_size"},
    {GEMMA4, "vision_config/position_embedding_size", "8", "position_embedding_table"},
    {GEMMA4, "vision_config/patch_size", "4", "input_proj.weight"},
    {GEMMA4, "vision_config/rms_norm_eps", "7", "rms_norm_eps"},
    {GEMMA4, "vision_config/rope_parameters/rope_theta", "0", "rope_theta"},
    {GEMMA4, "vision_config/rope_parameters/rope_type", "\"yarn\"", "axial"},
    {GEMMA4, "vision_config/hidden_activation", "\"swoosh\"", "hidden_activation"},
    {GEMMA4, "text_config/pad_token_id", "64", "pad_token_id"},
    {GEMMA4, "text_config/use_bidirectional_attention", "\"some\"", "use_bidirectional_attention"},
    {GEMMA4, "text_config/use_bidirectional_attention", "null", NULL},
    {GEMMA4, "text_config/use_bidirectional_attention", "\"all\"", NULL},
    {GEMMA4, "vision_config/use_clipped_linears", "false", NULL},
    {GEMMA4, "vision_config/standardize", NULL, NULL},
    {PALIGEMMA, "text_config/use_bidirectional_attention", "null", NULL},
    {PALIGEMMA, "vision_config/model_type", "\"other_vision_model\"",
     "the tower of 'PaliGemmaForConditionalGeneration' is"},
    {LLAMA4, "vision_config/pixel_shuffle_ratio", "0.3", "pixel_shuffle_ratio"},
    {LLAMA4, "vision_config/pixel_shuffle_ratio", "1", "is 128, the rows there are 32 wide"},
    {LLAMA4, "vision_config/pixel_shuffle_ratio", "0.125", "does not divide the 4 by 4 patches"},
    {LLAMA4, "vision_config/image_size", "[8, 32]", "does not divide the 2 by 8 patches"},
    {LLAMA4, "vision_config/image_size", "24", "positional_embedding_vlm"},
    {LLAMA4, "vision_config/projector_input_dim", "48", "is 40, the rows there are 48 wide"},
    {LLAMA4, "vision_config/projector_output_dim", NULL, "is 4096, the rows there are 40 wide"},
    {LLAMA4, "vision_config/vision_output_dim", NULL, "is 7680, the rows there are 40 wide"},
    {LLAMA4, "vision_config/num_attention_heads", "16", "of a multiple of 4"},
    {LLAMA4, "vision_config/patch_size", "3", "patch_embedding.linear.weight"},
    {GEMMA3N, "vision_config/model_args", "null", "vision_soft_tokens_per_image"},
    {GEMMA3N, "vision_config/model_args/channel_multiplier", "0.5", "channel_multiplier"},
    {GEMMA3N, "vision_config/model_args/stem_size", "16", "conv_stem.conv.weight"},
    {GEMMA3N, "vision_config/model_args/msfa_output_resolution", "3", "is 4, the tower makes 3 by 3 of a picture"},
    {GEMMA3N, "vision_config/model_args/block_args", "[]", "has 0 stages"},
    {GEMMA3N, "vision_config/model_args/block_args", "[[]]", "has 0 stages"},
    {GEMMA3N, "vision_config/model_args/block_args", "{}", "must be a list"},
    {GEMMA3N, "vision_config/model_args/block_args", "[[3]]", "block_args.0.0' must be an object"},
    {GEMMA3N, "vision_config/model_args/block_args", "[[{\"block_type\": \"ir\"}]]", "block_args.0.0.block_type"},
    {GEMMA3N, "vision_config/model_args/block_args", "[[{\"block_type\": \"uir\"}]]", "block_args.0.0.out_chs"},
    {GEMMA3N, "vision_config/model_args/block_args", UIR("\"stride\": 1"), "does not begin with stride 2"},
    {GEMMA3N, "vision_config/model_args/block_args", UIR("\"stride\": 2, \"dw_kernel_size_mid\": 0"), "no filter"},
    {GEMMA3N, "vision_config/model_args/block_args", UIR("\"stride\": 2, \"se_ratio\": 0.25"), "se_ratio"},
    {GEMMA3N, "vision_config/model_args/block_args", UIR("\"stride\": 2, \"exp_ratio\": -1"), "exp_ratio"},
    {GEMMA3N, "vision_config/model_args/block_args", UIR("\"stride\": 2, \"pooling\": 1"), "pooling"},
    {GEMMA3N, "vision_config/model_args/block_args", UIR("\"stride\": 2"), "has 1 stages"},
    {GEMMA3N, "vision_config/rms_norm_eps", "7", "rms_norm_eps"},
    {GEMMA3N, "vision_config/vocab_size", "5", "embed_vision.embedding.weight"},
    {GEMMA3N, "vision_config/vocab_offset", "-1", "vocab_offset"},
};

START_TEST(a_key)
{
    char *folder = broken_copy(cases[keys[_i].which]);
    tn_error err = TN_ERROR_INIT;
    broken_json(folder, "config.json", keys[_i].key, keys[_i].value);
    tn_model *m = tn_model_open(folder, NULL, &err);
    if (keys[_i].words)
        broken_expect(&err, TN_E_INPUT, keys[_i].words, NULL);
    else
        ck_assert_msg(m, "%s: %s", err.where, err.message);
    tn_model_close(m);
}
END_TEST

/* Keys that a modeling file does not look at, or that say what is so without them. */
static const struct {
    int which;
    const char *key, *value;
} silent[] = {
    {LLAMA4, "vision_feature_layer", "0"},
    {LLAMA4, "vision_feature_select_strategy", "\"full\""},
    {LLAMA4, "vision_config/vision_feature_select_strategy", "\"full\""},
    {LLAMA4, "vision_config/hidden_act", "\"relu\""},
    {LLAMA4, "vision_config/norm_eps", "0.5"},
    {LLAMA4, "vision_config/layer_norm_eps", "0.5"},
    {LLAMA4, "vision_config/multi_modal_projector_bias", "true"},
    {LLAMA4, "vision_config/rope_parameters", NULL},
    {LLAMA4, "vision_config/model_type", NULL},
    {GEMMA3, "vision_feature_layer", "0"},
    {GEMMA3, "vision_config/model_type", NULL},
    {PALIGEMMA, "vision_feature_layer", "0"},
    {PALIGEMMA, "vision_config/model_type", NULL},
    {MISTRAL3, "vision_config/model_type", NULL},
    {INTERNVL, "vision_config/model_type", NULL},
    {LLAVA, "vision_config/model_type", NULL},
    {GEMMA3N, "vision_config/model_type", NULL},
    {GEMMA3N, "vision_config/architecture", NULL},
    {GEMMA3N, "vision_config/num_classes", "7"},
};

START_TEST(a_key_that_says_nothing)
{
    int which = silent[_i].which;
    const given *g = take(which);
    char *folder = broken_copy(cases[which]);
    float *with = room(g), *without = room(g);
    tn_error err = TN_ERROR_INIT;
    broken_json(folder, "config.json", silent[_i].key, silent[_i].value);
    ck_assert_msg(run(g, cases[which], "cpu", with, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(run(g, folder, "cpu", without, &err) == TN_OK, "%s", err.message);
    ck_assert_mem_eq(with, without, (size_t)tn_tensor_count(&g->features) * sizeof *with);
}
END_TEST

/* Another tower is left unread, and said so; pictures are refused then. */
static const struct {
    int which;
    const char *key, *value;
} unknown[] = {{LLAVA, "vision_config/model_type", "\"other_vision_model\""},
               {GEMMA3N, "vision_config/architecture", "\"mobilenetv5_base\""}};

START_TEST(a_tower_that_is_unknown)
{
    char *folder = broken_copy(cases[unknown[_i].which]);
    tn_error err = TN_ERROR_INIT;
    const given *g = take(unknown[_i].which);
    broken_json(folder, "config.json", unknown[_i].key, unknown[_i].value);
    ck_assert_int_eq(run(g, folder, "cpu", NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, "the model has no tokens for images");
    suite_expect_in(tn_notice_get(0), ": its text model is used; what sees and hears beside it is not read");
}
END_TEST

int main(void)
{
    TCase *c = suite_open("whole pictures", 120);
    tcase_add_loop_test(c, the_same_far_away, 0, CASES);
    tcase_add_loop_test(c, a_key, 0, sizeof keys / sizeof *keys);
    tcase_add_loop_test(c, a_key_that_says_nothing, 0, sizeof silent / sizeof *silent);
    tcase_add_loop_test(c, a_tower_that_is_unknown, 0, sizeof unknown / sizeof *unknown);
    suite_add(c, pictures_that_do_not_fit, sizes_that_do_not_fit, tiles_in_one_row, places_that_do_not_fit,
              patches_in_another_order, frames_are_pictures);
    return suite_run();
}
