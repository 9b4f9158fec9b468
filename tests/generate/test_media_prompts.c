/* What stands in a prompt for a picture or a sound from a file: its rows, and the processor's own marks. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/media.h>

#define FILES "tests/data/media/files/"
#define PHOTO FILES "exif6_100x60.jpg" /* upright: 60 pixels wide, 100 high                               */

/* The tokenizer of the case qwen2_vl with another text for the token 5, which stands for pictures in each case. */
static tn_tokenizer *tokenizer(const char *folder, const char *token)
{
    size_t size;
    tn_error err = TN_ERROR_INIT;
    char *text = tempdir_read("tests/data/models/qwen2_vl/tokenizer.json", &size), *at = strstr(text, "<|image_pad|>");
    ck_assert_ptr_nonnull(at);
    char *made = calloc(size + 64, 1);
    memcpy(made, text, (size_t)(at - text));
    strcat(made, token);
    strcat(made, at + strlen("<|image_pad|>"));
    tempdir_put(folder, "tokenizer.json", made);
    free(made);
    free(text);
    tn_tokenizer *t = tn_tokenizer_open(folder, &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    return t;
}

#define TEN "<P><P><P><P><P><P><P><P><P><P>"
#define LLAMA4_TILES(most)                                                                                             \
    "{\"image_processor_type\": \"Llama4ImageProcessorFast\", \"size\": {\"height\": 16, \"width\": 16}, "             \
    "\"max_patches\": " most "}"

static const struct {
    const char *model, *processor, *token, *text, *expected;
} cases[] = {
    /* Two tiles of 16 by 16 and the whole picture, each of four rows. */
    {"internvl",
     "{\"image_processor_type\": \"GotOcr2ImageProcessorFast\", \"size\": {\"height\": 16, \"width\": 16}, "
     "\"crop_to_patches\": true, \"min_patches\": 1, \"max_patches\": 2}",
     "<P>", "a<P>b", "a<img><P><P><P><P><P><P><P><P><P><P><P><P></img>b"},
    {"internvl",
     "{\"image_processor_type\": \"GotOcr2ImageProcessorFast\", \"size\": {\"height\": 16, \"width\": 16}, "
     "\"crop_to_patches\": false}",
     "<P>", "<P>", "<img><P><P><P><P></img>"},
    /* 24 high, 14.4 wide: patches of 4 are merged by twos, whatever the file says of patches. */
    {"mistral3",
     "{\"image_processor_type\": \"PixtralImageProcessor\", \"size\": {\"longest_edge\": 24}, \"patch_size\": 4}",
     "[IMG]", "a[IMG]b", "a[IMG][IMG][IMG_BREAK][IMG][IMG][IMG_BREAK][IMG][IMG][IMG_END]b"},
    {"gemma3", "{\"image_processor_type\": \"Gemma3ImageProcessor\", \"size\": {\"height\": 32, \"width\": 32}}", "<P>",
     "a<start_of_image>b", "a\n\n<start_of_image><P><P><P><P><end_of_image>\n\nb"},
    {"gemma3",
     "{\"image_processor_type\": \"Gemma3ImageProcessor\", \"size\": {\"height\": 32, \"width\": 32}, "
     "\"do_pan_and_scan\": true, \"pan_and_scan_min_crop_size\": 8, \"pan_and_scan_max_num_crops\": 2, "
     "\"pan_and_scan_min_ratio_to_activate\": 1.2}",
     "<P>", "<start_of_image>",
     "Here is the original image \n\n<start_of_image><P><P><P><P><end_of_image>\n\n and here are some crops to help "
     "you "
     "see better \n\n<start_of_image><P><P><P><P><end_of_image>\n\n "
     "\n\n<start_of_image><P><P><P><P><end_of_image>\n\n"},
    /* Of 60 by 100 pixels as many squares of 6 as keep the ratio within 70: six by ten. Marks as the tokenizer has
       them. */
    {"gemma4_clipped",
     "{\"image_processor_type\": \"Gemma4ImageProcessor\", \"patch_size\": 2, \"pooling_kernel_size\": 3, "
     "\"max_soft_tokens\": 70}",
     "<P>", "a<P>b", "a<|vision_start|>" TEN TEN TEN TEN TEN TEN "<|vision_end|>b"},
    {"gemma3n",
     "{\"image_processor_type\": \"SiglipImageProcessorFast\", \"size\": {\"height\": 64, \"width\": 96}, "
     "\"resample\": 2, \"do_normalize\": false}",
     "<P>", "a<P>b", "a\n\n<start_of_image><P><P><P><P><end_of_image>\n\nb"},
    /* Two lines of two tiles and the whole picture, each of four rows; or that alone. */
    {"llama4", LLAMA4_TILES("4"), "<P>", "a<|image|>b",
     "a<|image_start|><P><P><P><P><|tile_x_separator|><P><P><P><P><|tile_y_separator|>"
     "<P><P><P><P><|tile_x_separator|><P><P><P><P><|tile_y_separator|><|image|><P><P><P><P><|image_end|>b"},
    {"llama4", LLAMA4_TILES("2"), "<P>", "<|image|>",
     "<|image_start|><P><P><P><P><|tile_y_separator|><P><P><P><P><|tile_y_separator|><|image|><P><P><P><P>"
     "<|image_end|>"},
    {"llama4", LLAMA4_TILES("1"), "<P>", "<|image|>", "<|image_start|><|image|><P><P><P><P><|image_end|>"},
    {"llava",
     "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"shortest_edge\": 16}, "
     "\"crop_size\": {\"height\": 16, \"width\": 16}}",
     "<P>", "a<P>b", NULL},
};
enum { CASES = sizeof cases / sizeof *cases };

/* The tokens that are written are as many as the session asks for. */
static void run(tn_model *m, const tn_media *media, const char *text, const char *token)
{
    int64_t ids[256], count = 0;
    tn_error err = TN_ERROR_INIT;
    for (const char *at = text; (at = strstr(at, token)); at += strlen(token))
        ids[count++] = 5;
    ck_assert_int_gt(count, 0);
    ids[count++] = 9;
    const tn_batch batch = {
        .size = sizeof batch, .rows = 1, .tokens = count, .ids = ids, .images = tn_media_pictures(media)};
    ck_assert_msg(tn_session_run(test_session(m, .context = count), &batch, NULL, &err) == TN_OK, "%s", err.message);
}

START_TEST(marks_of_the_processor)
{
    static const char *const files[] = {PHOTO};
    char *folder = broken_copy(cases[_i].model), *out;
    size_t length;
    tn_error err = TN_ERROR_INIT;
    tempdir_put(folder, "preprocessor_config.json", cases[_i].processor);
    if (!strcmp(cases[_i].model, "gemma3n"))
        broken_json(folder, "config.json", "image_token_id", "5");
    tn_tokenizer *t = tokenizer(folder, cases[_i].token);
    tn_model *m = test_model(folder, .dtype = "f32");
    tn_media *media = tn_media_images(m, files, 1, &err);
    ck_assert_msg(media != NULL, "%s: %s", err.where, err.message);
    const char *text = cases[_i].text;
    ck_assert_msg(tn_media_expand(media, t, text, strlen(text), &out, &length, &err) == TN_OK, "%s", err.message);
    ck_assert_uint_eq(length, strlen(out));
    if (cases[_i].expected)
        ck_assert_str_eq(out, cases[_i].expected);
    run(m, media, out, cases[_i].token);
    free(out);
    ck_assert_int_eq(tn_media_expand(media, t, "none", 4, &out, &length, &err), TN_E_INPUT);
    suite_expect_in(err.message, "has 0 places for pictures ('");
    ck_assert_ptr_null(out);
    tn_media_free(media);
    tn_tokenizer_free(t);
}
END_TEST

#define SIXTEEN "<P><P><P><P><P><P><P><P><P><P><P><P><P><P><P><P>"

/* A prompt that sees itself: pictures, the tokenizer's first token, the text and the end of a line. */
START_TEST(pictures_stand_in_front)
{
    static const char *const files[] = {PHOTO, FILES "tiny_3x5.png"};
    static const struct {
        int64_t pictures;
        const char *text, *expected;
    } prompts[] = {{1, "ab", SIXTEEN "<|endoftext|>ab\n"},
                   {2, "ab", SIXTEEN SIXTEEN "<|endoftext|>ab\n"},
                   {1, "<P>ab", SIXTEEN "<|endoftext|>ab\n"},
                   {2, "<P>a<P>b", SIXTEEN "a" SIXTEEN "<|endoftext|>b\n"},
                   {2, "<P>ab", NULL}};
    char *folder = broken_copy("paligemma"), *out;
    size_t length;
    tn_error err = TN_ERROR_INIT;
    tempdir_put(folder, "preprocessor_config.json",
                "{\"image_processor_type\": \"SiglipImageProcessor\", \"size\": {\"height\": 32, \"width\": 32}}");
    tn_tokenizer_free(tokenizer(folder, "<P>"));
    broken_json(folder, "tokenizer.json", "post_processor",
                "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<|endoftext|>\", "
                "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], "
                "\"special_tokens\": {\"<|endoftext|>\": {\"id\": \"<|endoftext|>\", \"ids\": [0], \"tokens\": "
                "[\"<|endoftext|>\"]}}}");
    tn_tokenizer *t = tn_tokenizer_open(folder, &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    tn_model *m = test_model(folder, .dtype = "f32");
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        const char *text = prompts[i].text, *expected = prompts[i].expected;
        tn_media *media = tn_media_images(m, files, prompts[i].pictures, &err);
        ck_assert_msg(media != NULL, "%s", err.message);
        tn_status status = tn_media_expand(media, t, text, strlen(text), &out, &length, &err);
        ck_assert_int_eq(status, expected ? TN_OK : TN_E_INPUT);
        if (expected)
            ck_assert_str_eq(out, expected);
        free(out);
        tn_media_free(media);
    }
    tn_tokenizer_free(t);
}
END_TEST

/* Each picture has tiles of its own. */
START_TEST(pictures_of_several_tiles)
{
    static const char *const files[] = {FILES "tiny_3x5.png", PHOTO, FILES "wide_180x20.png"};
    static const char text[] = "<|image|>a<|image|><|image|>";
    char *folder = broken_copy("llama4"), *out;
    size_t length;
    tn_error err = TN_ERROR_INIT;
    tempdir_put(folder, "preprocessor_config.json", LLAMA4_TILES("3"));
    tn_tokenizer *t = tokenizer(folder, "<P>");
    tn_model *m = test_model(folder, .dtype = "f32");
    tn_media *media = tn_media_images(m, files, 3, &err);
    ck_assert_msg(media != NULL, "%s: %s", err.where, err.message);
    ck_assert_int_eq(tn_media_pictures(media)->count, 1 + 3 + 4);
    ck_assert_msg(tn_media_expand(media, t, text, strlen(text), &out, &length, &err) == TN_OK, "%s", err.message);
    ck_assert_str_eq(out, "<|image_start|><|image|><P><P><P><P><|image_end|>a"
                          "<|image_start|><P><P><P><P><|tile_y_separator|><P><P><P><P><|tile_y_separator|>"
                          "<|image|><P><P><P><P><|image_end|>"
                          "<|image_start|><P><P><P><P><|tile_x_separator|><P><P><P><P><|tile_x_separator|>"
                          "<P><P><P><P><|tile_y_separator|><|image|><P><P><P><P><|image_end|>");
    run(m, media, out, "<P>");
    free(out);
    tn_media_free(media);
    tn_tokenizer_free(t);
}
END_TEST

static const struct {
    const char *model, *token, *words;
} others[] = {{"mistral3", "[IMG]", "makes pictures of one size"}, {"llama4", "<|image|>", "makes no tiles"}};

/* A processor of another model, whose pictures have no sizes or tiles of their own. */
START_TEST(a_processor_of_another_model)
{
    static const char *const files[] = {PHOTO};
    const char *token = others[_i].token;
    char *folder = broken_copy(others[_i].model), *out;
    size_t length;
    tn_error err = TN_ERROR_INIT;
    tempdir_put(folder, "preprocessor_config.json",
                "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"shortest_edge\": 16}, "
                "\"crop_size\": 16}");
    tn_tokenizer *t = tokenizer(folder, token);
    tn_model *m = test_model(folder, .dtype = "f32");
    tn_media *media = tn_media_images(m, files, 1, &err);
    ck_assert_msg(media != NULL, "%s", err.message);
    ck_assert_int_eq(tn_media_expand(media, t, token, strlen(token), &out, &length, &err), TN_E_INPUT);
    suite_expect_in(err.message, others[_i].words);
    tn_media_free(media);
    tn_tokenizer_free(t);
}
END_TEST

/* ---- sounds ---- */

#define SOUND FILES "s16_22k_mono.wav"    /* 50 frames                                                    */
#define STEREO FILES "s16_16k_stereo.wav" /* 50 frames                                                  */

static const struct {
    const char *model, *config; /* NULL: the folder's own                                               */
    size_t rows;                /* of 50 frames                                                        */
} hearing[] = {
    {"qwen2_5_omni_thinker", NULL, 12},
    {"qwen3_omni_moe_thinker",
     "{\"feature_extractor_type\": \"WhisperFeatureExtractor\", \"feature_size\": 16, \"chunk_length\": 1}", 7},
};

static size_t times(const char *text, const char *token)
{
    size_t n = 0;
    for (; (text = strstr(text, token)); text += strlen(token))
        n++;
    return n;
}

/* As many tokens as the tower gives rows, which the session then takes. */
START_TEST(rows_of_sounds)
{
    static const char *const images[] = {PHOTO}, *const sounds[] = {SOUND, STEREO};
    char *folder = broken_copy(hearing[_i].model), *out;
    size_t length, rows;
    tn_error err = TN_ERROR_INIT;
    if (hearing[_i].config)
        tempdir_put(folder, "preprocessor_config.json", hearing[_i].config);
    tn_tokenizer *t = tn_tokenizer_open("tests/data/models/qwen2_5_omni_thinker", &err);
    tn_model *m = test_model(folder, .dtype = "f32");
    int64_t pictures = hearing[_i].config ? 0 : 1;
    tn_media *media = tn_media_files(m, pictures ? images : NULL, pictures, sounds, 2, &err);
    ck_assert_msg(media != NULL, "%s: %s", err.where, err.message);
    ck_assert_int_eq(tn_media_sounds(media)->frames, 50);
    ck_assert_msg((tn_media_pictures(media) != NULL) == (pictures > 0), "pictures");
    const char *said = pictures ? "<|AUDIO|>a<|IMAGE|>b<|AUDIO|>" : "<|AUDIO|>ab<|AUDIO|>";
    ck_assert_msg(tn_media_expand(media, t, said, strlen(said), &out, &length, &err) == TN_OK, "%s", err.message);
    rows = times(out, "<|AUDIO|>");
    ck_assert_uint_eq(rows, 2 * hearing[_i].rows);
    int64_t *ids;
    size_t count;
    ck_assert_int_eq(tn_tokenizer_encode(t, out, length, false, &ids, &count, &err), TN_OK);
    const tn_batch batch = {.size = sizeof batch,
                            .rows = 1,
                            .tokens = (int64_t)count,
                            .ids = ids,
                            .images = tn_media_pictures(media),
                            .sounds = tn_media_sounds(media)};
    tn_session *s = test_session(m, .context = (int64_t)count);
    ck_assert_msg(tn_session_run(s, &batch, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    free(ids);
    free(out);
    ck_assert_int_eq(tn_media_expand(media, t, "<|AUDIO|>", 9, &out, &length, &err), TN_E_INPUT);
    ck_assert_ptr_null(out);
    tn_media_free(media);
    tn_tokenizer_free(t);
}
END_TEST

START_TEST(files_that_a_model_cannot_take)
{
    static const char *const photos[] = {PHOTO}, *const sounds[] = {SOUND}, *const none[] = {NULL};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("tests/data/models/llama", .dtype = "f32");
    ck_assert_ptr_null(tn_media_files(m, photos, 1, NULL, 0, &err));
    suite_expect_in(err.message, "LlamaForCausalLM sees none; leave them out");
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_media_files(m, NULL, 0, sounds, 1, &err));
    suite_expect_in(err.message, "LlamaForCausalLM hears none; leave them out");
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_media_files(m, NULL, 0, NULL, 0, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    tn_error_clear(&err);
    m = test_model("tests/data/models/qwen2_5_omni_thinker", .dtype = "f32");
    ck_assert_ptr_null(tn_media_files(m, NULL, 0, none, 1, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    suite_expect_in(err.message, "file 0 is NULL");
    ck_assert_ptr_null(tn_media_files(m, photos, 1, photos, 1, NULL));
}
END_TEST

int main(void)
{
    TCase *c = suite_open("pictures and sounds in prompts", 60);
    tcase_add_loop_test(c, rows_of_sounds, 0, 2);
    suite_add(c, files_that_a_model_cannot_take);
    tcase_add_loop_test(c, marks_of_the_processor, 0, CASES);
    tcase_add_loop_test(c, a_processor_of_another_model, 0, sizeof others / sizeof *others);
    suite_add(c, pictures_of_several_tiles, pictures_stand_in_front);
    return suite_run();
}
