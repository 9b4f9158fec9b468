/* What calls are given that must be open: models, a session, tokenizers, files. */
#include "tempdir.h"
#include "test_kernels.h"
#include "values.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

values_opened values_world;

static void *needed(void *made, const tn_error *err)
{
    ck_assert_msg(made != NULL, "%s: %s", err->where, err->message);
    return made;
}

/* The Hub's, with a model org/m of no files. */
static void make_cache(void)
{
    static const char *const folders[] = {"models--org--m", "models--org--m/refs", "models--org--m/snapshots",
                                          "models--org--m/snapshots/abc"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = tempdir_path(values_world.folder, folders[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
        free(path);
    }
    char *main = tempdir_path(values_world.folder, "models--org--m/refs/main");
    tempdir_write(main, "abc", 3);
    free(main);
    setenv("HF_HUB_CACHE", values_world.folder, 1);
}

static void make_files(void)
{
    static const char config[] = "{\"kernels\": \"auto\"}";
    const char *build = getenv("TENON_BUILD");
    char *absolute = realpath(build ? build : "build", NULL);
    values_world.root = realpath(".", NULL);
    values_world.folder = tempdir_new();
    values_world.plugins = tempdir_path(absolute, "plugins");
    free(absolute);
    values_world.plugin = tempdir_path(values_world.plugins, "npu_rmsnorm.so");
    values_world.config_file = tempdir_path(values_world.folder, "kernels.json");
    values_world.written = tempdir_path(values_world.folder, "written.safetensors");
    values_world.prefix = tempdir_path(values_world.folder, "shadow");
    tempdir_write(values_world.config_file, config, sizeof config - 1);
    make_cache();
    setenv("HOME", values_world.folder, 1);
    setenv("XDG_CONFIG_HOME", values_world.folder, 1);
    setenv("XDG_CACHE_HOME", values_world.folder, 1);
    setenv("TENON_MEASURE", "no", 1);
    unsetenv("TENON_CONFIG");
}

/* Zeros are rank 0's order to end. */
static tn_status tell_the_end(void *self, void *data, int64_t bytes, bool idle, tn_error *err)
{
    (void)self, (void)idle, (void)err;
    memset(data, 0, (size_t)bytes);
    return TN_OK;
}

static tn_status gather_nothing(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    (void)self, (void)all, (void)bytes, (void)err;
    return TN_OK;
}

void values_open(void)
{
    static const char *const texts[] = {"stop"};
    tn_error err = TN_ERROR_INIT;
    tn_model_options options = {.size = sizeof options, .threads = 1, .training = true};
    tn_session_options small = {.size = sizeof small, .context = VALUES_CONTEXT};
    make_files();
    char *llama = tempdir_path(values_world.root, VALUES_LLAMA);
    values_world.config = needed(tn_config_new(), &err);
    tn_config_set_plugins(values_world.config, values_world.plugins, &err);
    tn_scan(values_world.config, &err);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .backward = test_kernel_backward});
    values_world.model = needed(tn_model_open(llama, &options, &err), &err);
    tn_apply_kernel(values_world.model, NULL, "norm", NULL, &err);
    values_world.bound = needed(tn_site_bind(values_world.model, "model.norm", TN_OP_RMS_NORM, 4, &err), &err);
    values_world.running = needed(tn_model_open(llama, &options, &err), &err);
    values_world.session = needed(tn_session_new(values_world.running, &small, &err), &err);
    const tn_group end = {.size = sizeof end, .rank = 1, .ranks = 2, .gather = gather_nothing, .tell = tell_the_end};
    const tn_model_options cut = {.size = sizeof cut, .threads = 1, .parallel = "tensor", .group = &end};
    values_world.following = needed(tn_model_open(llama, &cut, &err), &err);
    values_world.followed = needed(tn_session_new(values_world.following, &small, &err), &err);
    values_world.served = needed(tn_model_open(llama, &options, &err), &err);
    values_world.engine = needed(
        tn_engine_new(values_world.served,
                      &(tn_engine_options){
                          .size = sizeof(tn_engine_options), .sequences = 2, .context = VALUES_CONTEXT, .budget = 8},
                      &err),
        &err);
    const int64_t ids[] = {1, 2, 3, 4}, length = 4;
    const tn_train_texts texts_of_it = {
        .size = sizeof texts_of_it, .ids = ids, .labels = ids, .lengths = &length, .count = 1};
    values_world.trainer = needed(tn_trainer_open(values_world.served, NULL, &err), &err);
    tn_trainer_backward(values_world.trainer, &texts_of_it, NULL, &err);
    values_world.state = tempdir_path(values_world.folder, "state.safetensors");
    tn_trainer_save_state(values_world.trainer, values_world.state, &err);
    const tn_lora lora = {.size = sizeof lora, .rank = 1};
    tn_model_options adapted = options;
    adapted.lora = &lora;
    values_world.adapted = needed(tn_model_open(llama, &adapted, &err), &err);
    values_world.adapting = needed(tn_trainer_open(values_world.adapted, NULL, &err), &err);

    values_world.dataset = needed(
        tn_dataset_open(values_world.served, (const char *const[]){"tests/data/dataset/tokens.jsonl"}, 1, NULL, &err),
        &err);
    values_world.tokenizer = needed(tn_tokenizer_open("tests/data/tokenizers/gpt-2", &err), &err);
    values_world.stream = needed(tn_stream_new(values_world.tokenizer, false, &err), &err);
    values_world.stops = needed(tn_stop_text_new(texts, 1, &err), &err);
    values_world.vocabulary = needed(tn_vocabulary_new(values_world.tokenizer, VALUES_VOCABULARY, NULL, 0, &err), &err);
    values_world.grammar =
        needed(tn_grammar_new(values_world.vocabulary, &(tn_grammar_part){TN_GRAMMAR_LITERAL}, texts, 1, &err), &err);
    values_world.grammar_state = needed(tn_grammar_state_new(values_world.grammar, &err), &err);
    tn_embedder_options pooling = {.size = sizeof pooling, .pooling = TN_POOLING_MEAN};
    values_world.embedder = needed(tn_embedder_open(values_world.model, &pooling, &err), &err);
    values_world.chat_template = needed(tn_template_open("tests/data/templates/qwen2.5/template.jinja", &err), &err);
    values_world.photo = tempdir_path(values_world.root, "tests/data/media/files/tiny_3x5.png");
    char *seeing = tempdir_path(values_world.root, "tests/data/models/qwen2_vl");
    values_world.seeing = needed(tn_model_open(seeing, &options, &err), &err);
    values_world.media =
        needed(tn_media_images(values_world.seeing, (const char *const[]){values_world.photo}, 1, &err), &err);
    free(seeing);
    values_world.sound = tempdir_path(values_world.root, "tests/data/media/files/s16_22k_mono.wav");
    char *hearing = tempdir_path(values_world.root, "tests/data/models/qwen2_5_omni_thinker");
    values_world.hearing = needed(tn_model_open(hearing, &options, &err), &err);
    free(hearing);
    values_world.file = needed(tn_safetensors_open(VALUES_LLAMA "/model.safetensors", &err), &err);
    free(llama);
    needed(err.code == TN_OK ? &values_world : NULL, &err);
}

void values_enter(void)
{
    if (chdir(values_world.folder) != 0)
        abort();
}

void values_close(void)
{
    char *const names[] = {values_world.photo,   values_world.sound,  values_world.root,
                           values_world.plugins, values_world.plugin, values_world.config_file,
                           values_world.written, values_world.prefix, values_world.state};
    tn_safetensors_close(values_world.file);
    tn_trainer_close(values_world.trainer);
    tn_trainer_close(values_world.adapting);
    tn_model_close(values_world.adapted);
    tn_dataset_close(values_world.dataset);
    tn_media_free(values_world.media);
    tn_model_close(values_world.seeing);
    tn_model_close(values_world.hearing);
    tn_template_free(values_world.chat_template);
    tn_grammar_state_free(values_world.grammar_state);
    tn_grammar_free(values_world.grammar);
    tn_vocabulary_free(values_world.vocabulary);
    tn_stop_text_free(values_world.stops);
    tn_stream_free(values_world.stream);
    tn_tokenizer_free(values_world.tokenizer);
    tn_engine_free(values_world.engine);
    tn_model_close(values_world.served);
    tn_session_free(values_world.session);
    tn_embedder_close(values_world.embedder);
    tn_model_close(values_world.running);
    tn_bound_close(values_world.bound);
    tn_model_close(values_world.model);
    tn_config_free(values_world.config);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        free(names[i]);
    tempdir_remove(values_world.folder);
}
