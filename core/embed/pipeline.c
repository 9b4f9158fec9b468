/* Reading what sentence-transformers writes beside a model. */
#include "embed/pipeline.h"

#include "base/convert.h"
#include "base/file.h"
#include "base/place.h"
#include "base/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* More than any file has: it is broken then, or wants to keep somebody busy. */
enum { MAX_WIDTH = 1 << 20, MAX_MODULES = 64, MAX_PROMPTS = 1024 };

/* folder/name where it is there; NULL also where memory is short, which status tells. */
static char *find(const char *folder, const char *name, tn_status *status, tn_error *err)
{
    struct stat st;
    char *path = file_join(folder, name);
    if (!path)
        *status = tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (path && lstat(path, &st) == 0)
        return path;
    free(path);
    return NULL;
}

/* ---- pooling ----------------------------------------------------------------------------------- */

static const struct {
    const char *key, *word;
    uint32_t kind;
    bool usual;
} poolings[] = {{"pooling_mode_cls_token", "cls", TN_POOLING_CLS, false},
                {"pooling_mode_max_tokens", "max", TN_POOLING_MAX, false},
                {"pooling_mode_mean_tokens", "mean", TN_POOLING_MEAN, true},
                {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", TN_POOLING_MEAN_SQRT_LEN, false},
                {"pooling_mode_weightedmean_tokens", "weightedmean", TN_POOLING_WEIGHTED_MEAN, false},
                {"pooling_mode_lasttoken", "lasttoken", TN_POOLING_LAST, false}};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

static void read_pooling(const config_reader *c, pipeline *p)
{
    static const char *const keys[] = {"word_embedding_dimension",
                                       "embedding_dimension",
                                       "include_prompt",
                                       "pooling_mode",
                                       "pooling_mode_cls_token",
                                       "pooling_mode_max_tokens",
                                       "pooling_mode_mean_tokens",
                                       "pooling_mode_mean_sqrt_len_tokens",
                                       "pooling_mode_weightedmean_tokens",
                                       "pooling_mode_lasttoken",
                                       NULL};
    config_word words[POOLINGS + 1] = {{0}};
    const char *width = config_has(c, "embedding_dimension") ? "embedding_dimension" : "word_embedding_dimension";
    config_only(c, keys);
    for (int i = 0; i < POOLINGS; i++) {
        words[i] = (config_word){poolings[i].word, (int32_t)poolings[i].kind};
        if (config_bool(c, poolings[i].key, poolings[i].usual))
            p->pooling |= poolings[i].kind;
    }
    if (config_has(c, "pooling_mode"))
        p->pooling = (uint32_t)config_choice(c, "pooling_mode", "mean", words);
    p->include_prompt = config_bool(c, "include_prompt", true);
    int64_t given = config_i64(c, width, p->hidden, 1, MAX_WIDTH);
    if (given != p->hidden)
        config_fail(c, width, "is %lld, the model has hidden_size %lld", (long long)given, (long long)p->hidden);
    if (!p->pooling)
        config_fail(c, "pooling_mode_mean_tokens", "and all other kinds of pooling are false; one must be true");
}

int64_t pipeline_pooled(const pipeline *p)
{
    return p->hidden * __builtin_popcount(p->pooling);
}

/* ---- dense layers ------------------------------------------------------------------------------ */

/* A tensor as floats of its own. */
static tn_status take(const tn_safetensors *file, const char *path, const char *name, int32_t ndim,
                      const int64_t *shape, float **out, tn_error *err)
{
    tn_tensor t;
    char text[128], wanted[128];
    if (!tn_safetensors_get(file, name, &t))
        return tn_fail(err, TN_E_INPUT, path, "has no tensor '%s'; copy the folder again", name);
    tensor_shape_text(t.ndim, t.shape, text, sizeof text);
    tensor_shape_text(ndim, shape, wanted, sizeof wanted);
    if (!tensor_is_float(t.dtype) || t.ndim != ndim || memcmp(t.shape, shape, (size_t)ndim * sizeof *shape) != 0)
        return tn_fail(err, TN_E_INPUT, path, "tensor '%s' is %s %s, its config.json implies %s of f32, bf16 or f16",
                       name, tn_dtype_name(t.dtype), text, wanted);
    int64_t count = tn_tensor_count(&t);
    size_t bytes = (size_t)count * tn_dtype_size(t.dtype);
    void *aligned = malloc(bytes + 1);
    *out = malloc((size_t)count * sizeof(float) + 1);
    if (aligned && *out) {
        memcpy(aligned, t.data, bytes);
        convert_to_f32(aligned, t.dtype, *out, count);
    }
    free(aligned);
    return aligned && *out ? tn_safetensors_check(file, err) : tn_fail(err, TN_E_MEMORY, path, "out of memory");
}

static tn_status take_weights(const char *folder, bool bias, pipeline_step *s, tn_error *err)
{
    tn_status status = place_check_weights(folder, err);
    char *path = status == TN_OK ? file_join(folder, "model.safetensors") : NULL;
    tn_safetensors *file = path ? tn_safetensors_open(path, err) : NULL;
    if (status == TN_OK && !path)
        status = tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    else if (status == TN_OK && !file)
        status = err && err->code != TN_OK ? err->code : TN_E_INPUT;
    if (status == TN_OK)
        status = take(file, path, "linear.weight", 2, (int64_t[]){s->out, s->in}, &s->weight, err);
    if (status == TN_OK && bias)
        status = take(file, path, "linear.bias", 1, &s->out, &s->bias, err);
    tn_safetensors_close(file);
    free(path);
    return status;
}

/* The class at the end of a dotted path, as of torch.nn.modules.activation.Tanh. */
static const char *class_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static void read_dense(const config_reader *c, int64_t in, pipeline_step *s, bool *bias)
{
    static const char *const keys[] = {"in_features",       "out_features",       "bias", "activation_function",
                                       "module_input_name", "module_output_name", NULL};
    static const char *const acts[] = {"Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid"};
    static const char *const names[] = {"module_input_name", "module_output_name"};
    const char *act = config_str(c, "activation_function", "torch.nn.modules.activation.Tanh");
    int32_t i = 0;
    config_only(c, keys);
    s->in = config_need_i64(c, "in_features", 1, MAX_WIDTH);
    s->out = config_need_i64(c, "out_features", 1, MAX_WIDTH);
    *bias = config_bool(c, "bias", true);
    if (s->in != in)
        config_fail(c, "in_features", "is %lld, what comes before gives %lld", (long long)s->in, (long long)in);
    for (int j = 0; j < 2; j++)
        if (strcmp(config_str(c, names[j], "sentence_embedding"), "sentence_embedding") != 0)
            config_fail(c, names[j], "is '%s', only 'sentence_embedding' is supported", config_str(c, names[j], ""));
    while (i < (int32_t)(sizeof acts / sizeof *acts) && strcmp(acts[i], class_of(act)) != 0)
        i++;
    if (i == (int32_t)(sizeof acts / sizeof *acts))
        config_fail(c, "activation_function",
                    "is '%s', which is not supported, only Identity, Tanh, ReLU, GELU, SiLU "
                    "and Sigmoid of torch.nn",
                    act);
    s->act = (pipeline_act)i;
}

/* ---- modules ------------------------------------------------------------------------------------ */

/* The config.json of a module's folder. */
static config_file *open_module(const char *folder, tn_error *err)
{
    char *path = file_join(folder, "config.json");
    config_file *file = path ? config_open(path, err) : NULL;
    if (!path)
        tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    free(path);
    return file;
}

static tn_status add_dense(pipeline *p, const char *folder, tn_error *err)
{
    tn_status status = TN_OK;
    bool bias = false;
    config_file *file = open_module(folder, err);
    if (!file)
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    config_reader c = config_root(file, &status, err);
    pipeline_step *s = &p->step[p->step_count++];
    read_dense(&c, p->width, s, &bias);
    config_close(file);
    if (status == TN_OK)
        status = take_weights(folder, bias, s, err);
    p->width = s->out;
    p->widest = s->out > p->widest ? s->out : p->widest;
    return status;
}

static tn_status set_pooling(pipeline *p, const char *folder, tn_error *err)
{
    tn_status status = TN_OK;
    config_file *file = open_module(folder, err);
    if (!file)
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    config_reader c = config_root(file, &status, err);
    read_pooling(&c, p);
    config_close(file);
    p->width = p->widest = pipeline_pooled(p);
    return status;
}

/* Does a path stay below the folder that it is of? */
static bool stays(const char *path)
{
    for (const char *at = path; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL)
        if (!strncmp(at, "..", 2) && (at[2] == '/' || !at[2]))
            return false;
    return path[0] != '/';
}

/* Module i: the model itself first, then pooling, then the others. */
static void add_module(const config_reader *modules, const char *key, bool first, const char *folder, pipeline *p)
{
    config_reader m = config_child(modules, key);
    const char *type = class_of(config_str(&m, "type", "")), *place = config_str(&m, "path", "");
    if (*m.status != TN_OK)
        return;
    if (first != !strcmp(type, "Transformer") || (first && place[0]))
        config_fail(&m, "type", "is '%s' at '%s'; the first module, and no other, is the Transformer, at ''", type,
                    place);
    else if (!stays(place))
        config_fail(&m, "path", "is '%s', which leads out of the folder", place);
    else if (!first && !p->pooling != !strcmp(type, "Pooling"))
        config_fail(&m, "type", "is '%s'; the second module, and no other, is the Pooling", type);
    else if (p->step_count == PIPELINE_STEPS)
        config_fail(&m, "type", "is that of one module too many, only %d are supported", PIPELINE_STEPS);
    if (*m.status != TN_OK || first || !strcmp(type, "Dropout"))
        return;
    char *below = file_join(folder, place);
    if (!below)
        *m.status = tn_fail(m.err, TN_E_MEMORY, folder, "out of memory");
    else if (!strcmp(type, "Pooling"))
        *m.status = set_pooling(p, below, m.err);
    else if (!strcmp(type, "Dense"))
        *m.status = add_dense(p, below, m.err);
    else if (!strcmp(type, "Normalize"))
        p->step[p->step_count++] = (pipeline_step){.normalise = true, .in = p->width, .out = p->width};
    else
        config_fail(&m, "type",
                    "is '%s', which is not supported, only Transformer, Pooling, Dense, Normalize and Dropout", type);
    free(below);
}

static tn_status read_modules(pipeline *p, const char *path, const char *folder, tn_error *err)
{
    tn_status status = TN_OK;
    const char *key;
    config_file *file = config_open_list(path, err);
    if (!file)
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    config_reader c = config_root(file, &status, err);
    for (int64_t i = 0; status == TN_OK && (key = config_key(&c, i)) != NULL; i++)
        if (i == MAX_MODULES)
            config_fail(&c, key, "is one module too many; at most %d are supported", MAX_MODULES);
        else
            add_module(&c, key, i == 0, folder, p);
    config_close(file);
    if (status == TN_OK && !p->pooling)
        status =
            tn_fail(err, TN_E_INPUT, path, "names no Pooling, so there is no vector of a text; copy the file again");
    return status;
}

/* ---- prompts and limits -------------------------------------------------------------------------- */

static tn_status read_settings(pipeline *p, const char *path, tn_error *err)
{
    tn_status status = TN_OK;
    if (!(p->settings = config_open(path, err)))
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    config_reader c = config_root(p->settings, &status, err), prompts = config_child(&c, "prompts");
    while (status == TN_OK && config_key(&prompts, (int64_t)p->prompt_count))
        if (++p->prompt_count > MAX_PROMPTS)
            config_fail(&c, "prompts", "has more than %d entries", MAX_PROMPTS);
    if (!(p->prompts = calloc(p->prompt_count + 1, sizeof *p->prompts)))
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    for (size_t i = 0; i < p->prompt_count && status == TN_OK; i++) {
        p->prompts[i] = config_key(&prompts, (int64_t)i);
        config_str(&prompts, p->prompts[i], "");
    }
    p->default_prompt = config_str(&c, "default_prompt_name", NULL);
    if (status == TN_OK && p->default_prompt && !config_has(&prompts, p->default_prompt))
        config_fail(&c, "default_prompt_name", "is '%s', which is not among the prompts", p->default_prompt);
    return status;
}

static tn_status read_limits(pipeline *p, const char *path, tn_error *err)
{
    tn_status status = TN_OK;
    config_file *file = config_open(path, err);
    if (!file)
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    config_reader c = config_root(file, &status, err);
    p->max_tokens = config_i64(&c, "max_seq_length", 0, 1, INT32_MAX);
    if (config_bool(&c, "do_lower_case", false))
        config_fail(&c, "do_lower_case", "is true, only false is supported");
    config_close(file);
    return status;
}

const char *pipeline_prompt(const pipeline *p, const char *name, tn_error *err)
{
    tn_status status = TN_OK;
    char known[256] = "none";
    name = name ? name : p->default_prompt;
    if (!name)
        return "";
    config_reader c = {0}, prompts = {0};
    if (p->settings) {
        c = config_root(p->settings, &status, err);
        prompts = config_child(&c, "prompts");
        if (config_has(&prompts, name))
            return config_str(&prompts, name, "");
    }
    for (size_t i = 0, used = 0; i < p->prompt_count && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", p->prompts[i]);
    tn_fail(err, TN_E_USAGE, "prompt", "'%s' is not among those of config_sentence_transformers.json: %s", name, known);
    return NULL;
}

/* ---- all of it --------------------------------------------------------------------------------------- */

static tn_status read_file(pipeline *p, const char *folder, const char *name,
                           tn_status (*read)(pipeline *, const char *, tn_error *), tn_error *err)
{
    tn_status status = TN_OK;
    char *path = find(folder, name, &status, err);
    if (path)
        status = read(p, path, err);
    free(path);
    return status;
}

tn_status pipeline_open(pipeline *p, const char *folder, int64_t hidden, uint32_t pooling, tn_error *err)
{
    tn_status status = TN_OK;
    *p = (pipeline){.pooling = pooling, .include_prompt = true, .hidden = hidden};
    if (pooling) {
        p->width = p->widest = pipeline_pooled(p);
        p->step[p->step_count++] = (pipeline_step){.normalise = true, .in = p->width, .out = p->width};
        return TN_OK;
    }
    char *path = find(folder, "modules.json", &status, err);
    if (path)
        status = read_modules(p, path, folder, err);
    else if (status == TN_OK)
        status = tn_fail(err, TN_E_INPUT, folder,
                         "has no modules.json, which would say how the states of a text's tokens become one vector; "
                         "give --pooling mean, last, cls or max");
    free(path);
    if (status == TN_OK)
        status = read_file(p, folder, "config_sentence_transformers.json", read_settings, err);
    return status == TN_OK ? read_file(p, folder, "sentence_bert_config.json", read_limits, err) : status;
}

void pipeline_close(pipeline *p)
{
    for (int32_t i = 0; i < p->step_count; i++) {
        free(p->step[i].weight);
        free(p->step[i].bias);
    }
    free(p->prompts);
    config_close(p->settings);
    *p = (pipeline){0};
}
