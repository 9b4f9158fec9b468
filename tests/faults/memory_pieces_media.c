/* Pieces of work for test_memory: pictures and sounds, and answers that must have a form. */
#include "memory_pieces.h"

#include "tempdir.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *seeing; /* the folder of models that see                                              */

tn_status piece_see(const char *path, uint64_t *sum, tn_error *err)
{
    static const char *const files[] = {"tests/data/media/files/exif6_100x60.jpg",
                                        "tests/data/media/files/tiny_3x5.png"};
    static const char said[] = "a<|image_pad|><|image|>b<|image_pad|><|image|>"; /* places of either kind of model */
    char model[4096], *text = NULL;
    size_t length = 0;
    snprintf(model, sizeof model, "%s/%s", seeing, path);
    tn_model *m = tn_model_open(model, NULL, err);
    tn_media *media = m ? tn_media_images(m, files, 2, err) : NULL;
    tn_tokenizer *t = media ? tn_tokenizer_open("tests/data/models/qwen2_vl/tokenizer.json", err) : NULL;
    tn_status status = t ? tn_media_expand(media, t, said, sizeof said - 1, &text, &length, err) : err->code;
    if (status == TN_OK)
        piece_add(sum, text, length);
    free(text);
    tn_tokenizer_free(t);
    tn_media_free(media);
    tn_model_close(m);
    return status;
}

tn_status piece_hear(const char *path, uint64_t *sum, tn_error *err)
{
    static const char *const images[] = {"tests/data/media/files/tiny_3x5.png"};
    static const char *const sounds[] = {"tests/data/media/files/ulaw_8k.wav", "tests/data/media/files/short_16k.wav"};
    static const char said[] = "a<|IMAGE|>b<|AUDIO|>";
    char *text = NULL;
    size_t length = 0;
    tn_model *m = tn_model_open(path, NULL, err);
    tn_media *both = m ? tn_media_files(m, NULL, 0, sounds, 2, err) : NULL;
    tn_media *media = both ? tn_media_files(m, images, 1, sounds, 1, err) : NULL;
    tn_tokenizer *t = media ? tn_tokenizer_open(path, err) : NULL;
    tn_status status = t ? tn_media_expand(media, t, said, sizeof said - 1, &text, &length, err) : err->code;
    if (status == TN_OK) {
        const tn_sounds *s = tn_media_sounds(both);
        piece_add(sum, text, length);
        piece_add(sum, s->mel, (size_t)(s->count * s->bins * s->frames) * sizeof *s->mel);
    }
    free(text);
    tn_tokenizer_free(t);
    tn_media_free(both);
    tn_media_free(media);
    tn_model_close(m);
    return status;
}

/* Something of each kind of place, two that must hold together, and other properties. */
static const char SCHEMA[] =
    "{\"type\": \"object\", \"properties\": {\"id\": {\"allOf\": [{\"$ref\": \"#/$defs/id\"}, {\"pattern\": "
    "\"[a-f]\"}]},"
    " \"kind\": {\"oneOf\": [{\"const\": \"x\"}, {\"enum\": [1, [2], null]}]}, \"n\": {\"type\": \"integer\", "
    "\"minimum\": -3},"
    " \"step\": {\"multipleOf\": 0.5}, \"more\": {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"maxItems\": 2}},"
    " \"required\": [\"kind\"], \"additionalProperties\": true,"
    " \"$defs\": {\"id\": {\"type\": \"string\", \"maxLength\": 4, \"title\": \"a name\"}}}";

static tn_status walk(tn_grammar *grammar, size_t words, uint64_t *sum, tn_error *err)
{
    static const char *const pieces[] = {"{\"id\": \"b", "\", \"ki", "nd\":1,\"n\":-2,\"x", "\":{}}"};
    tn_grammar_state *s = tn_grammar_state_new(grammar, err);
    static uint64_t bits[1 << 12];
    tn_status status = s ? tn_grammar_mask(s, bits, err) : err->code;
    assert(words <= sizeof bits / sizeof *bits);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces && status == TN_OK; i++) {
        status = tn_grammar_accept_bytes(s, pieces[i], strlen(pieces[i]), err);
        if (status == TN_OK)
            status = tn_grammar_mask(s, bits, err);
        if (status == TN_OK)
            piece_add(sum, bits, words * sizeof *bits);
    }
    tn_grammar_state_free(s);
    return status;
}

tn_status piece_constrain(const char *path, uint64_t *sum, tn_error *err)
{
    static const tn_grammar_part parts[] = {TN_GRAMMAR_SCHEMA, TN_GRAMMAR_OR, TN_GRAMMAR_REGEX};
    static const char *const texts[] = {SCHEMA, NULL, "(a|[^b-d]{2,3})+x?"};
    tn_tokenizer *t = tn_tokenizer_open(path, err);
    tn_vocabulary *v = t ? tn_vocabulary_new(t, 0, &(int64_t){0}, 1, err) : NULL;
    tn_grammar *g = v ? tn_grammar_new(v, parts, texts, 3, err) : NULL;
    tn_status status = g ? walk(g, tn_vocabulary_words(v), sum, err) : err->code;
    tn_grammar_free(g);
    tn_vocabulary_free(v);
    tn_tokenizer_free(t);
    return status;
}

/* Models that see, with what says how pictures are prepared. */
void pieces_put_seeing(const char *folder)
{
    static const char *const models[] = {"qwen2_vl", "llava_next", "gemma4", "llama4"};
    static const char *const processors[] = {
        NULL,
        "{\"image_processor_type\": \"LlavaNextImageProcessor\", \"size\": 16, "
        "\"crop_size\": 16, \"image_grid_pinpoints\": [[16, 32], [32, 16], [32, 32]]}",
        "{\"image_processor_type\": \"Gemma4ImageProcessor\", \"patch_size\": 4, "
        "\"pooling_kernel_size\": 2, \"max_soft_tokens\": 70}",
        "{\"image_processor_type\": \"Llama4ImageProcessor\", \"size\": {\"height\": 16, \"width\": 16}, "
        "\"max_patches\": 4}"};
    seeing = folder;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *from = tempdir_path("tests/data/models", models[i]), *to = tempdir_path(folder, models[i]);
        mkdir(to, 0700);
        tempdir_copy(from, to);
        if (processors[i])
            tempdir_put(to, "preprocessor_config.json", processors[i]);
        free(from);
        free(to);
    }
}
