/* Right values for the parameters of public functions, by function, name and type. A type or a name that is not in
 * these tables fails the test: whoever adds a function says here and in values_pointers.c what a right call of it has.
 */
#include "values.h"

#include "tempdir.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

#define VALUES_CONFIG                                                                                                  \
    "{\"model_type\": \"llama\", \"vocab_size\": 9, \"hidden_size\": 4, \"intermediate_size\": 8, "                    \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2}"

static const struct {
    const char *function, *name;
    const char *value;
    char **made;
    bool fresh; /* not the same twice                                                             */
} texts[] = {
    {"tn_template_open", "path", "tests/data/templates/qwen2.5/template.jinja", NULL, false},
    {"tn_config_load", "path", NULL, &values_world.config_file, false},
    {"tn_config_set_lock", "file", "tests/data/fuzz/lock/plain", NULL, false},
    {"tn_lock_model", "folder", VALUES_LLAMA, NULL, false},
    {"tn_safetensors_open", "path", VALUES_LLAMA "/model.safetensors", NULL, false},
    {"tn_safetensors_write", "path", NULL, &values_world.written, false},
    {"tn_tokenizer_open", "path", "tests/data/tokenizers/gpt-2", NULL, false},
    {NULL, "path", "model.norm", NULL, false},
    {NULL, "source", "{{ messages[0].content }}", NULL, false},
    {NULL, "messages", "[{\"role\": \"user\", \"content\": \"Hello\"}]", NULL, false},
    {"tn_safetensors_get", "name", "model.norm.weight", NULL, false},
    {"tn_trainer_save", "folder", NULL, &values_world.written, true},
    {"tn_trainer_save_adapter", "folder", NULL, &values_world.written, true},
    {"tn_model_merge", "folder", NULL, &values_world.written, true},
    {"tn_trainer_save_state", "file", NULL, &values_world.written, false},
    {"tn_trainer_load_state", "file", NULL, &values_world.state, false},
    {"tn_trainer_gradient", "name", "model.norm.weight", NULL, false},
    {"tn_dtype_parse", "name", "f32", NULL, false},
    {"tn_embedder_prompt", "name", NULL, NULL, false},
    {"tn_template_parse", "name", "a template", NULL, false},
    {"tn_check_replay", "plugin", NULL, NULL, false},
    {"tn_check_replay", "file", VALUES_LLAMA "/model.safetensors", NULL, false},
    {NULL, "file", NULL, &values_world.plugin, false},
    {"tn_model_open", "folder", VALUES_LLAMA, NULL, false},
    {"tn_model_borrow", "config_json", VALUES_CONFIG, NULL, false},
    {"tn_hub_folder", "id", "org/m", NULL, false},
    {"tn_hub_folder", "revision", "main", NULL, false},
    {"tn_quantize", "model", VALUES_LLAMA, NULL, false},
    {"tn_quantize", "out", NULL, &values_world.written, false},
    {"tn_quantize", "type", "Q8_0", NULL, false},
    {"tn_continue_text", "folder", "models/demo", NULL, false},
    {NULL, "prompt", "Hello", NULL, false},
    {NULL, "folder", NULL, &values_world.plugins, false},
    {NULL, "where", "where", NULL, false},
    {NULL, "format", "what is wrong", NULL, false},
    {NULL, "spec", "norm", NULL, false},
    {NULL, "id", "norm", NULL, false},
    {NULL, "modules", "*", NULL, false},
    {NULL, "prefix", NULL, &values_world.prefix, false},
    {NULL, "device", "cpu", NULL, false},
    {NULL, "kind", "trials", NULL, false},
    {NULL, "kernel", "none", NULL, false},
    {"tn_media_expand", "text", "Hello & you", NULL, false}, /* & is 5 in GPT-2's vocabulary                    */
    {NULL, "text", "Hello", NULL, false},
    {NULL, "word", "stp", NULL, false},
    {NULL, "parallel", "pipeline=2,tensor=2", NULL, false},
    {NULL, "bytes", "st", NULL, false},
};

static const struct {
    const char *function, *name;
    int64_t value;
} numbers[] = {
    {NULL, "code", TN_E_INPUT},
    {"tn_ranks_share", "status", TN_OK},
    {"tn_ranks_share", "bytes", VALUES_WORDS},
    {NULL, "index", 0},
    {"tn_safetensors_write", "count", 1},
    {"tn_stop_text_new", "count", 1},
    {"tn_grammar_new", "count", 1},
    {"tn_grammar_constrain", "count", VALUES_VOCABULARY},
    {NULL, "end_count", 4},
    {"tn_nearest_name", "count", 1},
    {"tn_model_borrow", "count", 1},
    {"tn_bound_point", "count", 1},
    {"tn_bound_unclear", "count", 3},
    {NULL, "tokens", 4},
    {"tn_media_images", "count", 1},
    {"tn_dataset_open", "count", 1},
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
    {NULL, "size", VALUES_WORDS},
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
    {NULL, "seed", 1},
    {NULL, "epoch", 1},
    {NULL, "schedule", TN_SCHEDULE_COSINE},
    {NULL, "step", 4},
    {NULL, "warmup", 2},
    {NULL, "steps", 10},
};

/* ---- finding them ----------------------------------------------------------------------------------------------- */

bool values_fit(const char *function, const char *name, const api_function *f, const api_param *p)
{
    return (!function || !strcmp(function, f->name)) && (!name || !strcmp(name, p->name));
}

/* A path that no other call has had. */
static const char *make_fresh(const char *path)
{
    static char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s-%d", path, (int)getpid());
    return fresh;
}

static bool make_text(const api_function *f, const api_param *p, const char **out)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (values_fit(texts[i].function, texts[i].name, f, p)) {
            const char *value = texts[i].made ? *texts[i].made : texts[i].value;
            if (texts[i].fresh)
                value = make_fresh(value);
            if (value && (!strncmp(value, "tests/", 6) || !strncmp(value, "models/", 7)))
                value = tempdir_path(values_world.root, value);
            *out = value ? values_copied(value, strlen(value) + 1) : NULL;
            return true;
        }
    return false;
}

static bool make_number(const api_function *f, const api_param *p, void *out)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (values_fit(numbers[i].function, numbers[i].name, f, p)) {
            memcpy(out, &numbers[i].value, p->size); /* the low bytes come first on what this runs on */
            return true;
        }
    return false;
}

static bool make_callback(const api_function *f, const api_param *p, any_function **out)
{
    for (size_t i = 0; i < sizeof callbacks / sizeof *callbacks; i++)
        if (values_fit(callbacks[i].function, callbacks[i].name, f, p)) {
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
        return values_pointer(function, p, out);
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
