/* What pointers of public functions point to, by function, name and type. Memory goes with the process that makes the
 * call. */
#include "values.h"

#include "tempdir.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 4, ROWS = 3 };

void *values_copied(const void *data, size_t size)
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
    return values_copied(&(tn_error)TN_ERROR_INIT, sizeof(tn_error));
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

static void *make_words(void)
{
    return zeros(VALUES_WORDS);
}

static void *make_ids(void)
{
    return values_copied((const int64_t[]){1, 2, 3, 4}, 4 * sizeof(int64_t));
}

static void *make_room(void)
{
    return zeros(2 * VALUES_CONTEXT * sizeof(int64_t));
}

static void *make_shape(void)
{
    return values_copied((const int64_t[]){ROWS, WIDTH}, 2 * sizeof(int64_t));
}

static void *make_counts(void)
{
    return values_copied((const int64_t[]){ROWS - 1, 1}, 2 * sizeof(int64_t));
}

static void *tensor_of(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++)
        count *= shape[i];
    tn_tensor t = tn_tensor_dense(zeros((size_t)count * sizeof(float)), TN_F32, ndim, shape);
    return values_copied(&t, sizeof t);
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
    tn_model_get_info(values_world.model, &info);
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
    return values_copied(&(tn_named_tensor){"t", *matrix}, sizeof(tn_named_tensor));
}

static void *make_texts(void)
{
    static const char *const texts[] = {"stop"};
    return values_copied(texts, sizeof texts);
}

static void *make_batch(void)
{
    return values_copied(&(tn_batch){.size = sizeof(tn_batch), .rows = 1, .tokens = 4, .ids = make_ids()},
                         sizeof(tn_batch));
}

static void *make_generation(void)
{
    return values_copied(&(tn_generate_options){.size = sizeof(tn_generate_options), .max_tokens = 4},
                         sizeof(tn_generate_options));
}

static void *make_small_check(void)
{
    return values_copied(
        &(tn_check_options){
            .size = sizeof(tn_check_options), .op = "ADD_RMS_NORM", .threads = 1, .site = 3, .quick = true},
        sizeof(tn_check_options));
}

static void *make_threads(void)
{
    return values_copied(&(tn_model_options){.size = sizeof(tn_model_options), .threads = 1}, sizeof(tn_model_options));
}

static void *make_report(void)
{
    return tn_model_report(values_world.model, NULL);
}

static void *make_text_report(void)
{
    tn_text_report *report = NULL;
    tn_compare_text(values_world.model, (const int64_t[]){1, 2}, 2, NULL, &report, NULL);
    return report;
}

static void *make_config(void)
{
    return tn_config_new();
}

static void *get_config(void)
{
    return values_world.config;
}

static void *get_model(void)
{
    return values_world.model;
}

static void *get_following(void)
{
    return values_world.following;
}

static void *get_followed(void)
{
    return values_world.followed;
}

static void *get_running(void)
{
    tn_session_free(values_world.session);
    return values_world.running;
}

static void *get_seeing(void)
{
    return values_world.seeing;
}

static void *get_media(void)
{
    return values_world.media;
}

static void *get_hearing(void)
{
    return values_world.hearing;
}

static void *make_photos(void)
{
    return values_copied(&values_world.photo, sizeof values_world.photo);
}

static void *make_recordings(void)
{
    return values_copied(&values_world.sound, sizeof values_world.sound);
}

static void *get_session(void)
{
    return values_world.session;
}

static void on_end(void *ctx, const tn_engine_result *result)
{
    (void)ctx;
    (void)result;
}

static void *make_request(void)
{
    return values_copied(&(tn_engine_request){.size = sizeof(tn_engine_request),
                                              .prompt = make_ids(),
                                              .prompt_count = 3,
                                              .options = make_generation(),
                                              .on_end = on_end},
                         sizeof(tn_engine_request));
}

static void *get_engine(void)
{
    return values_world.engine;
}

static void *get_trainer(void)
{
    return values_world.trainer;
}

static void *get_adapted(void)
{
    return values_world.adapted;
}

static void *get_adapting(void)
{
    return values_world.adapting;
}

static void *get_dataset(void)
{
    return values_world.dataset;
}

static void *make_tokens(void)
{
    return values_copied((const char *const[]){tempdir_path(values_world.root, "tests/data/dataset/tokens.jsonl")},
                         sizeof(char *));
}

static void *make_train_texts(void)
{
    static const int64_t length = 4;
    return values_copied(
        &(tn_train_texts){
            .size = sizeof(tn_train_texts), .ids = make_ids(), .labels = make_ids(), .lengths = &length, .count = 1},
        sizeof(tn_train_texts));
}

static void *make_train_step(void)
{
    return values_copied(&(tn_train_step){.size = sizeof(tn_train_step), .rate = 1e-3}, sizeof(tn_train_step));
}

static void *get_tokenizer(void)
{
    return values_world.tokenizer;
}

static void *get_stream(void)
{
    return values_world.stream;
}

static void *get_vocabulary(void)
{
    return values_world.vocabulary;
}

static void *get_grammar(void)
{
    return values_world.grammar;
}

static void *get_grammar_state(void)
{
    return values_world.grammar_state;
}

static void *make_parts(void)
{
    return values_copied(&(tn_grammar_part){TN_GRAMMAR_LITERAL}, sizeof(tn_grammar_part));
}

static void *make_bits(void)
{
    return zeros(VALUES_VOCABULARY);
}

static void *get_stops(void)
{
    return values_world.stops;
}

static void *get_embedder(void)
{
    return values_world.embedder;
}

static void *make_pooling(void)
{
    return values_copied(&(tn_embedder_options){.size = sizeof(tn_embedder_options), .pooling = TN_POOLING_LAST},
                         sizeof(tn_embedder_options));
}

static void *make_vector(void)
{
    return zeros((1 << 16) * sizeof(float));
}

static void *get_template(void)
{
    return values_world.chat_template;
}

static void *get_file(void)
{
    return values_world.file;
}

static void *get_bound(void)
{
    return values_world.bound;
}

static void *make_name(void)
{
    static const char *const names[] = {"model.norm.weight"};
    return values_copied(names, sizeof names);
}

/* Of VALUES_CONFIG's norm. */
static void *make_norm(void)
{
    return tensor_of(1, (const int64_t[]){WIDTH});
}

/* Of model's. */
static void *make_norm_weight(void)
{
    return tensor_of(1, tn_bound_site(values_world.bound)->param[TN_ROLE_WEIGHT].tensors->shape);
}

static void *make_partial(void)
{
    return values_copied(&(tn_model_options){.size = sizeof(tn_model_options), .threads = 1, .partial = true},
                         sizeof(tn_model_options));
}

static void run_alone(void *context, int32_t threads, void (*body)(void *arg, int32_t index, int32_t count), void *arg)
{
    (void)context;
    (void)threads;
    body(arg, 0, 1);
}

static void *make_team(void)
{
    return values_copied(&(tn_team){.size = sizeof(tn_team), .width = 2, .run = run_alone}, sizeof(tn_team));
}

static void *make_double(void)
{
    return zeros(sizeof(double));
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
    {"tn_engine_new", NULL, "tn_model", get_running},
    {"tn_follow", NULL, "tn_model", get_following},
    {"tn_session_forecast", NULL, "tn_session", get_followed},
    {NULL, NULL, "tn_engine", get_engine},
    {NULL, NULL, "tn_engine_request", make_request},
    {"tn_model_merge", NULL, "tn_model", get_adapted},
    {"tn_trainer_save_adapter", NULL, "tn_trainer", get_adapting},
    {NULL, NULL, "tn_trainer", get_trainer},
    {NULL, NULL, "tn_dataset", get_dataset},
    {"tn_dataset_open", "paths", "char *const", make_tokens},
    {"tn_dataset_open", "paths", "const char *const", make_tokens},
    {NULL, "order", "int64_t", make_ids},
    {"tn_parallel_ranks", "each", "int64_t", make_ids},
    {"tn_dataset_pack", "samples", "int64_t", make_room},
    {"tn_dataset_pack", "first", "int64_t", make_room},
    {NULL, NULL, "tn_train_texts", make_train_texts},
    {NULL, NULL, "tn_train_step", make_train_step},
    {"tn_trainer_step", "norm", "double", make_vector},
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
    {NULL, NULL, "tn_bound", get_bound},
    {NULL, NULL, "tn_team", make_team},
    {NULL, NULL, "double", make_double},
    {"tn_model_borrow", "names", "const char *const", make_name},
    {"tn_model_borrow", "names", "char *const", make_name},
    {"tn_model_borrow", NULL, "tn_tensor", make_norm},
    {"tn_model_borrow", NULL, "tn_model_options", make_partial},
    {"tn_bound_point", NULL, "tn_tensor", make_norm_weight},
    {"tn_bound_forward", NULL, "tn_tensor", make_row},
    {"tn_bound_backward", NULL, "tn_tensor", make_row},
    {"tn_bound_compare", NULL, "tn_tensor", make_row},
    {"tn_bound_compare_grads", NULL, "tn_tensor", make_row},
    {"tn_bound_unclear", NULL, "tn_tensor", make_row},
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
    {"tn_ranks_share", NULL, "void", make_words},
    {NULL, NULL, "void", nothing},
};

bool values_pointer(const api_function *f, const api_param *p, void **out)
{
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        if (values_fit(pointers[i].function, pointers[i].name, f, p) && !strcmp(pointers[i].base, p->base)) {
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
