/* Right values for the parameters of public functions, by function, name and type. A type or a name that is not in
 * these tables fails the test: whoever adds a function says here what a right call of it has. */
#include "api.h"
#include "tempdir.h"
#include "test_kernels.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>
#include <unistd.h>

#define LLAMA "tests/data/models/llama"

enum { WIDTH = 4, ROWS = 3 };

static struct {
    char *photo, *sound;
    tn_model *seeing, *hearing;
    tn_media *media; /* of seeing */
    char *root, *folder, *plugins, *plugin, *config_file, *written, *prefix;
    tn_config *config;
    tn_model *model, *running; /* with a kernel applied; with a session */
    tn_session *session;
    tn_tokenizer *tokenizer;
    tn_stream *stream;
    tn_stop_text *stops;
    tn_vocabulary *vocabulary;
    tn_grammar *grammar;
    tn_grammar_state *grammar_state;
    tn_embedder *embedder;
    tn_template *chat_template;
    tn_safetensors *file;
} world;

/* ---- the world -------------------------------------------------------------------------------------------------- */

static void *needed(void *made, const tn_error *err)
{
    ck_assert_msg(made != NULL, "%s: %s", err->where, err->message);
    return made;
}

static void make_files(void)
{
    static const char config[] = "{\"kernels\": \"auto\"}";
    const char *build = getenv("TENON_BUILD");
    char *absolute = realpath(build ? build : "build", NULL);
    world.root = realpath(".", NULL);
    world.folder = tempdir_new();
    world.plugins = tempdir_path(absolute, "plugins");
    free(absolute);
    world.plugin = tempdir_path(world.plugins, "npu_rmsnorm.so");
    world.config_file = tempdir_path(world.folder, "kernels.json");
    world.written = tempdir_path(world.folder, "written.safetensors");
    world.prefix = tempdir_path(world.folder, "shadow");
    tempdir_write(world.config_file, config, sizeof config - 1);
    setenv("HOME", world.folder, 1);
    setenv("XDG_CONFIG_HOME", world.folder, 1);
    setenv("XDG_CACHE_HOME", world.folder, 1);
    setenv("TENON_MEASURE", "no", 1);
    unsetenv("TENON_CONFIG");
}

void values_open(void)
{
    static const char *const texts[] = {"stop"};
    tn_error err = TN_ERROR_INIT;
    tn_model_options options = {.size = sizeof options, .threads = 1, .training = true};
    tn_session_options small = {.size = sizeof small, .context = VALUES_CONTEXT};
    make_files();
    char *llama = tempdir_path(world.root, LLAMA);
    world.config = needed(tn_config_new(), &err);
    tn_config_set_plugins(world.config, world.plugins, &err);
    tn_scan(world.config, &err);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .backward = test_kernel_backward});
    world.model = needed(tn_model_open(llama, &options, &err), &err);
    tn_apply_kernel(world.model, NULL, "norm", NULL, &err);
    world.running = needed(tn_model_open(llama, &options, &err), &err);
    world.session = needed(tn_session_new(world.running, &small, &err), &err);
    world.tokenizer = needed(tn_tokenizer_open("tests/data/tokenizers/gpt-2", &err), &err);
    world.stream = needed(tn_stream_new(world.tokenizer, false, &err), &err);
    world.stops = needed(tn_stop_text_new(texts, 1, &err), &err);
    world.vocabulary = needed(tn_vocabulary_new(world.tokenizer, VALUES_VOCABULARY, NULL, 0, &err), &err);
    world.grammar =
        needed(tn_grammar_new(world.vocabulary, &(tn_grammar_part){TN_GRAMMAR_LITERAL}, texts, 1, &err), &err);
    world.grammar_state = needed(tn_grammar_state_new(world.grammar, &err), &err);
    tn_embedder_options pooling = {.size = sizeof pooling, .pooling = TN_POOLING_MEAN};
    world.embedder = needed(tn_embedder_open(world.model, &pooling, &err), &err);
    world.chat_template = needed(tn_template_open("tests/data/templates/qwen2.5/template.jinja", &err), &err);
    world.photo = tempdir_path(world.root, "tests/data/media/files/tiny_3x5.png");
    char *seeing = tempdir_path(world.root, "tests/data/models/qwen2_vl");
    world.seeing = needed(tn_model_open(seeing, &options, &err), &err);
    world.media = needed(tn_media_images(world.seeing, (const char *const[]){world.photo}, 1, &err), &err);
    free(seeing);
    world.sound = tempdir_path(world.root, "tests/data/media/files/s16_22k_mono.wav");
    char *hearing = tempdir_path(world.root, "tests/data/models/qwen2_5_omni_thinker");
    world.hearing = needed(tn_model_open(hearing, &options, &err), &err);
    free(hearing);
    world.file = needed(tn_safetensors_open(LLAMA "/model.safetensors", &err), &err);
    free(llama);
    needed(err.code == TN_OK ? &world : NULL, &err);
}

void values_enter(void)
{
    if (chdir(world.folder) != 0)
        abort();
}

void values_close(void)
{
    char *const names[] = {world.photo,  world.sound,       world.root,    world.plugins,
                           world.plugin, world.config_file, world.written, world.prefix};
    tn_safetensors_close(world.file);
    tn_media_free(world.media);
    tn_model_close(world.seeing);
    tn_model_close(world.hearing);
    tn_template_free(world.chat_template);
    tn_grammar_state_free(world.grammar_state);
    tn_grammar_free(world.grammar);
    tn_vocabulary_free(world.vocabulary);
    tn_stop_text_free(world.stops);
    tn_stream_free(world.stream);
    tn_tokenizer_free(world.tokenizer);
    tn_session_free(world.session);
    tn_embedder_close(world.embedder);
    tn_model_close(world.running);
    tn_model_close(world.model);
    tn_config_free(world.config);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        free(names[i]);
    tempdir_remove(world.folder);
}

/* ---- memory: it goes with the process that makes the call ------------------------------------------------------- */

static void *copied(const void *data, size_t size)
{
    void *memory = malloc(size);
    if (!memory)
        abort();
    return memcpy(memory, data, size);
}

static void *zeros(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory)
        abort();
    return memory;
}

static void *make_error(void)
{
    return copied(&(tn_error)TN_ERROR_INIT, sizeof(tn_error));
}

static void *make_pointer(void)
{
    return zeros(sizeof(void *));
}

static void *make_count(void)
{
    return zeros(sizeof(size_t));
}

static void *make_flag(void)
{
    return zeros(sizeof(bool));
}

enum { WORDS = 64 };

static void *make_words(void)
{
    return zeros(WORDS);
}

static void *make_ids(void)
{
    return copied((const int64_t[]){1, 2, 3, 4}, 4 * sizeof(int64_t));
}

static void *make_room(void)
{
    return zeros(2 * VALUES_CONTEXT * sizeof(int64_t));
}

static void *make_shape(void)
{
    return copied((const int64_t[]){ROWS, WIDTH}, 2 * sizeof(int64_t));
}

static void *make_counts(void)
{
    return copied((const int64_t[]){ROWS - 1, 1}, 2 * sizeof(int64_t));
}

static void *tensor_of(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++)
        count *= shape[i];
    tn_tensor t = tn_tensor_dense(zeros((size_t)count * sizeof(float)), TN_F32, ndim, shape);
    return copied(&t, sizeof t);
}

static void *make_matrix(void)
{
    return tensor_of(2, (const int64_t[]){ROWS, WIDTH});
}

static void *make_weights(void)
{
    return tensor_of(3, (const int64_t[]){2, WIDTH, WIDTH});
}

/* What model.norm reads and writes. */
static void *make_row(void)
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(world.model, &info);
    return tensor_of(2, (const int64_t[]){ROWS, info.hidden});
}

static void *make_grads(void)
{
    tn_grads *grads = zeros(sizeof *grads);
    grads->size = sizeof *grads;
    grads->out[0] = *(tn_tensor *)make_row();
    grads->in[0] = *(tn_tensor *)make_row();
    return grads;
}

static void *make_named_tensor(void)
{
    tn_tensor *matrix = make_matrix();
    return copied(&(tn_named_tensor){"t", *matrix}, sizeof(tn_named_tensor));
}

static void *make_texts(void)
{
    static const char *const texts[] = {"stop"};
    return copied(texts, sizeof texts);
}

static void *make_batch(void)
{
    return copied(&(tn_batch){.size = sizeof(tn_batch), .rows = 1, .tokens = 4, .ids = make_ids()}, sizeof(tn_batch));
}

static void *make_generation(void)
{
    return copied(&(tn_generate_options){.size = sizeof(tn_generate_options), .max_tokens = 4},
                  sizeof(tn_generate_options));
}

static void *make_small_check(void)
{
    return copied(
        &(tn_check_options){
            .size = sizeof(tn_check_options), .op = "ADD_RMS_NORM", .threads = 1, .site = 3, .quick = true},
        sizeof(tn_check_options));
}

static void *make_threads(void)
{
    return copied(&(tn_model_options){.size = sizeof(tn_model_options), .threads = 1}, sizeof(tn_model_options));
}

static void *make_report(void)
{
    return tn_model_report(world.model, NULL);
}

static void *make_text_report(void)
{
    tn_text_report *report = NULL;
    tn_compare_text(world.model, (const int64_t[]){1, 2}, 2, NULL, &report, NULL);
    return report;
}

static void *make_config(void)
{
    return tn_config_new();
}

static void *get_config(void)
{
    return world.config;
}

static void *get_model(void)
{
    return world.model;
}

static void *get_running(void)
{
    tn_session_free(world.session);
    return world.running;
}

static void *get_seeing(void)
{
    return world.seeing;
}

static void *get_media(void)
{
    return world.media;
}

static void *get_hearing(void)
{
    return world.hearing;
}

static void *make_photos(void)
{
    return copied(&world.photo, sizeof world.photo);
}

static void *make_recordings(void)
{
    return copied(&world.sound, sizeof world.sound);
}

static void *get_session(void)
{
    return world.session;
}

static void *get_tokenizer(void)
{
    return world.tokenizer;
}

static void *get_stream(void)
{
    return world.stream;
}

static void *get_vocabulary(void)
{
    return world.vocabulary;
}

static void *get_grammar(void)
{
    return world.grammar;
}

static void *get_grammar_state(void)
{
    return world.grammar_state;
}

static void *make_parts(void)
{
    return copied(&(tn_grammar_part){TN_GRAMMAR_LITERAL}, sizeof(tn_grammar_part));
}

static void *make_bits(void)
{
    return zeros(VALUES_VOCABULARY);
}

static void *get_stops(void)
{
    return world.stops;
}

static void *get_embedder(void)
{
    return world.embedder;
}

static void *make_pooling(void)
{
    return copied(&(tn_embedder_options){.size = sizeof(tn_embedder_options), .pooling = TN_POOLING_LAST},
                  sizeof(tn_embedder_options));
}

static void *make_vector(void)
{
    return zeros((1 << 16) * sizeof(float));
}

static void *get_template(void)
{
    return world.chat_template;
}

static void *get_file(void)
{
    return world.file;
}

static void *nothing(void)
{
    return NULL;
}

/* NULL: any. The first that fits. */
static const struct {
    const char *function, *name, *base;
    void *(*make)(void);
} pointers[] = {
    {NULL, NULL, "tn_error", make_error},
    {"tn_session_new", NULL, "tn_model", get_running},
    {"tn_media_images", NULL, "tn_model", get_seeing},
    {NULL, NULL, "tn_media", get_media},
    {"tn_media_images", "files", "char *const", make_photos},
    {"tn_media_images", "files", "const char *const", make_photos},
    {"tn_media_files", NULL, "tn_model", get_hearing},
    {"tn_media_files", "images", "char *const", make_photos},
    {"tn_media_files", "images", "const char *const", make_photos},
    {"tn_media_files", "sounds", "char *const", make_recordings},
    {"tn_media_files", "sounds", "const char *const", make_recordings},
    {NULL, NULL, "tn_model", get_model},
    {NULL, NULL, "tn_session", get_session},
    {"tn_scan", NULL, "tn_config", get_config},
    {NULL, NULL, "tn_config", make_config},
    {NULL, NULL, "tn_tokenizer", get_tokenizer},
    {NULL, NULL, "tn_stream", get_stream},
    {NULL, NULL, "tn_stop_text", get_stops},
    {NULL, NULL, "tn_vocabulary", get_vocabulary},
    {NULL, NULL, "tn_grammar", get_grammar},
    {NULL, NULL, "tn_grammar_state", get_grammar_state},
    {NULL, NULL, "tn_grammar_part", make_parts},
    {NULL, NULL, "uint64_t", make_bits},
    {NULL, "logits", "float", make_vector},
    {NULL, "ends", "int64_t", make_ids},
    {NULL, NULL, "tn_template", get_template},
    {NULL, NULL, "tn_embedder", get_embedder},
    {NULL, NULL, "tn_embedder_options", make_pooling},
    {NULL, "out", "float", make_vector},
    {NULL, NULL, "tn_safetensors", get_file},
    {NULL, NULL, "tn_report", make_report},
    {NULL, NULL, "tn_text_report", make_text_report},
    {"tn_site_forward", NULL, "tn_tensor", make_row},
    {"tn_site_backward", NULL, "tn_tensor", make_row},
    {NULL, "w", "tn_tensor", make_weights},
    {NULL, "grad_w", "tn_tensor", make_weights},
    {NULL, NULL, "tn_tensor", make_matrix},
    {NULL, NULL, "tn_grads", make_grads},
    {NULL, NULL, "tn_named_tensor", make_named_tensor},
    {NULL, NULL, "tn_batch", make_batch},
    {NULL, NULL, "tn_generate_options", make_generation},
    {NULL, NULL, "tn_check_options", make_small_check},
    {NULL, NULL, "tn_model_options", make_threads},
    {NULL, "ids", "int64_t", make_ids},
    {NULL, "prompt", "int64_t", make_ids},
    {NULL, "out", "int64_t", make_room},
    {NULL, "shape", "int64_t", make_shape},
    {NULL, "counts", "int64_t", make_counts},
    {NULL, "texts", "const char *const", make_texts},
    {NULL, NULL, "char *const", make_texts},
    {NULL, "text", "char", make_words},
    {NULL, NULL, "size_t", make_count},
    {NULL, NULL, "bool", make_flag},
    {NULL, NULL, "int64_t *", make_pointer},
    {NULL, NULL, "char *", make_pointer},
    {NULL, NULL, "tn_report *", make_pointer},
    {NULL, NULL, "tn_text_report *", make_pointer},
    {NULL, NULL, "tn_verify_row **", make_pointer},
    {NULL, NULL, "tn_calls_row **", make_pointer},
    {NULL, NULL, "tn_generate_result **", make_pointer},
    {NULL, NULL, "tn_packed **", make_pointer},
    {NULL, NULL, "tn_cache_kind **", make_pointer},
    {NULL, NULL, "tn_kernel_info **", make_pointer},
    {NULL, NULL, "void", nothing},
};

/* ---- callbacks -------------------------------------------------------------------------------------------------- */

static int on_row(void *ctx, const tn_check_row *row)
{
    (void)ctx;
    (void)row;
    return 0;
}

static void on_release(void *ctx)
{
    (void)ctx;
}

static void on_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)ctx;
    (void)begin;
    (void)end;
    (void)thread;
}

static void on_thread(void *ctx, int32_t thread, int32_t threads)
{
    (void)ctx;
    (void)thread;
    (void)threads;
}

static void on_event(void *ctx, const tn_event *event)
{
    (void)ctx;
    (void)event;
}

typedef void any_function(void);

static const struct {
    const char *function, *name;
    any_function *value;
} callbacks[] = {
    {"tn_check_plugin", "on_row", (any_function *)on_row},
    {"tn_tensor_to_dlpack", "release", (any_function *)on_release},
    {"tn_parallel_for", "body", (any_function *)on_piece},
    {"tn_parallel", "body", (any_function *)on_thread},
    {"tn_session_observe", "observer", (any_function *)on_event},
};

/* ---- texts and numbers ------------------------------------------------------------------------------------------ */

static const struct {
    const char *function, *name;
    const char *value;
    char **made;
} texts[] = {
    {"tn_template_open", "path", "tests/data/templates/qwen2.5/template.jinja", NULL},
    {"tn_config_load", "path", NULL, &world.config_file},
    {"tn_safetensors_open", "path", LLAMA "/model.safetensors", NULL},
    {"tn_safetensors_write", "path", NULL, &world.written},
    {"tn_tokenizer_open", "path", "tests/data/tokenizers/gpt-2", NULL},
    {NULL, "path", "model.norm", NULL},
    {NULL, "source", "{{ messages[0].content }}", NULL},
    {NULL, "messages", "[{\"role\": \"user\", \"content\": \"Hello\"}]", NULL},
    {"tn_safetensors_get", "name", "model.norm.weight", NULL},
    {"tn_dtype_parse", "name", "f32", NULL},
    {"tn_embedder_prompt", "name", NULL, NULL},
    {"tn_template_parse", "name", "a template", NULL},
    {"tn_check_replay", "plugin", NULL, NULL},
    {"tn_check_replay", "file", LLAMA "/model.safetensors", NULL},
    {NULL, "file", NULL, &world.plugin},
    {"tn_model_open", "folder", LLAMA, NULL},
    {"tn_quantize", "model", LLAMA, NULL},
    {"tn_quantize", "out", NULL, &world.written},
    {"tn_quantize", "type", "Q8_0", NULL},
    {"tn_continue_text", "folder", "models/demo", NULL},
    {NULL, "prompt", "Hello", NULL},
    {NULL, "folder", NULL, &world.plugins},
    {NULL, "where", "where", NULL},
    {NULL, "format", "what is wrong", NULL},
    {NULL, "spec", "norm", NULL},
    {NULL, "id", "norm", NULL},
    {NULL, "modules", "*", NULL},
    {NULL, "prefix", NULL, &world.prefix},
    {NULL, "device", "cpu", NULL},
    {NULL, "kind", "trials", NULL},
    {NULL, "kernel", "none", NULL},
    {"tn_media_expand", "text", "Hello & you", NULL}, /* & is 5 in GPT-2's vocabulary                    */
    {NULL, "text", "Hello", NULL},
    {NULL, "word", "stp", NULL},
    {NULL, "bytes", "st", NULL},
};

static const struct {
    const char *function, *name;
    int64_t value;
} numbers[] = {
    {NULL, "code", TN_E_INPUT},
    {NULL, "index", 0},
    {"tn_safetensors_write", "count", 1},
    {"tn_stop_text_new", "count", 1},
    {"tn_grammar_new", "count", 1},
    {"tn_grammar_constrain", "count", VALUES_VOCABULARY},
    {NULL, "end_count", 4},
    {"tn_nearest_name", "count", 1},
    {"tn_media_images", "count", 1},
    {NULL, "image_count", 1},
    {NULL, "sound_count", 1},
    {NULL, "count", 4},
    {NULL, "axis", TN_AXIS_DTYPE},
    {NULL, "dim", 1},
    {NULL, "num", 1},
    {NULL, "bit", 1},
    {NULL, "role", TN_ROLE_WEIGHT},
    {NULL, "op", TN_OP_RMS_NORM},
    {NULL, "format", TN_GRAPH_TEXT},
    {NULL, "layout", TN_LAYOUT_STACKED_OI},
    {NULL, "dtype", TN_F32},
    {NULL, "value", 1},
    {NULL, "mb", 10},
    {NULL, "grain", 1},
    {NULL, "size", WORDS},
    {NULL, "length", 0},
    {NULL, "messages_length", 0},
    {NULL, "prompt_count", 4},
    {NULL, "prompt", 0},
    {NULL, "in_count", 1},
    {NULL, "out_count", 1},
    {NULL, "w_count", 1},
    {NULL, "groups", 2},
    {NULL, "elements", 64},
    {NULL, "ndim", 2},
    {NULL, "id", 1},
};

/* ---- finding them ----------------------------------------------------------------------------------------------- */

static bool fits(const char *function, const char *name, const api_function *f, const api_param *p)
{
    return (!function || !strcmp(function, f->name)) && (!name || !strcmp(name, p->name));
}

static bool make_address(const api_function *f, const api_param *p, void **out)
{
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        if (fits(pointers[i].function, pointers[i].name, f, p) && !strcmp(pointers[i].base, p->base)) {
            *out = pointers[i].make();
            return true;
        }
    if (p->kind != API_SIZED)
        return false;
    /* A struct that says nothing but its size. */
    uint32_t size = (uint32_t)p->pointed;
    *out = zeros(p->pointed);
    memcpy(*out, &size, sizeof size);
    return true;
}

static bool make_text(const api_function *f, const api_param *p, const char **out)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (fits(texts[i].function, texts[i].name, f, p)) {
            const char *value = texts[i].made ? *texts[i].made : texts[i].value;
            if (value && (!strncmp(value, "tests/", 6) || !strncmp(value, "models/", 7)))
                value = tempdir_path(world.root, value);
            *out = value ? copied(value, strlen(value) + 1) : NULL;
            return true;
        }
    return false;
}

static bool make_number(const api_function *f, const api_param *p, void *out)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (fits(numbers[i].function, numbers[i].name, f, p)) {
            memcpy(out, &numbers[i].value, p->size); /* the low bytes come first on what this runs on */
            return true;
        }
    return false;
}

static bool make_callback(const api_function *f, const api_param *p, any_function **out)
{
    for (size_t i = 0; i < sizeof callbacks / sizeof *callbacks; i++)
        if (fits(callbacks[i].function, callbacks[i].name, f, p)) {
            *out = callbacks[i].value;
            return true;
        }
    return false;
}

bool values_make(const api_function *function, size_t param, void *out)
{
    const api_param *p = &function->params[param];
    switch (p->kind) {
    case API_STRING:
        return make_text(function, p, out);
    case API_SIZED:
    case API_POINTER:
        return make_address(function, p, out);
    case API_FUNCTION:
        return make_callback(function, p, out);
    case API_INTEGER:
    case API_ENUM:
        return make_number(function, p, out);
    case API_DOUBLE:
        memcpy(out, &(double){0.5}, sizeof(double));
        return true;
    case API_BOOL:
        memcpy(out, &(bool){true}, sizeof(bool));
        return true;
    default:
        return false;
    }
}
