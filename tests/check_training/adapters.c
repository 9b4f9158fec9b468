/* Adapters of a golden case: losses and gradients of their factors, in f32 and over a model in bf16; what they are
 * after training; and logits of a model that one was merged into. */
#include "check.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/half.h>
#include <unistd.h>

enum { PATH = 4096 + 128, SAMPLES = 251 };

static double figure(const char *folder, const char *kind, const char *key)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/case.json", folder);
    json_t *root = json_load_file(path, 0, NULL);
    double value = json_number_value(json_object_get(json_object_get(json_object_get(root, "lora"), kind), key));
    json_decref(root);
    return value;
}

/* ---- losses and gradients ------------------------------------------------------------------------- */

static void check_adapter(options *o, golden *g, const char *adapter, const char *dtype)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200];
    const tn_model_options mo = {.size = sizeof mo, .dtype = dtype, .training = true, .adapter = adapter};
    tn_model *model = tn_model_open(g->model, &mo, &err);
    for (int i = 0; model && i < o->spec_count; i++)
        check_spec(o, g, model, o->specs[i], !strcmp(dtype, "f32"));
    if (!model) {
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
        check_say(o, g->name, g->kind, "-", false, line);
    }
    tn_model_close(model);
}

/* Gradients over a model in bf16, where the case has them. */
static void check_rough(options *o, const golden *g, const char *folder, const char *adapter)
{
    static const struct {
        const char *name;
        tn_precision precision;
    } kinds[] = {{"amp", TN_PRECISION_MIXED}, {"pure", TN_PRECISION_PURE}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        golden rough = *g;
        char kind[64];
        snprintf(kind, sizeof kind, "%s.%s", g->kind, kinds[i].name);
        rough.rough = kinds[i].name;
        rough.precision = kinds[i].precision;
        if (figure(folder, kind, "loss") > 0)
            check_adapter(o, &rough, adapter, "bf16");
    }
}

/* The loss with another factor: the same adapter with use_rslora. */
static void check_rslora(options *o, const golden *g, const char *folder, const char *adapter)
{
    tn_error err = TN_ERROR_INIT;
    char path[PATH], from[PATH], to[64] = "/tmp/check-training-XXXXXX", line[1200];
    double want = figure(folder, "padded.b.rslora", "loss");
    if (strcmp(g->kind, "padded.b") != 0 || want == 0 || !mkdtemp(to))
        return;
    snprintf(path, sizeof path, "%.4096s/adapter_config.json", adapter);
    json_t *config = json_load_file(path, 0, NULL);
    json_object_set_new(config, "use_rslora", json_true());
    snprintf(path, sizeof path, "%s/adapter_config.json", to);
    json_dump_file(config, path, 0);
    json_decref(config);
    char *whole = realpath(adapter, NULL);
    snprintf(from, sizeof from, "%s/adapter_model.safetensors", whole ? whole : "");
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", to);
    free(whole);
    if (symlink(from, path) != 0)
        return;
    const tn_model_options mo = {.size = sizeof mo, .dtype = "f32", .training = true, .adapter = to};
    const tn_train_texts texts = {.size = sizeof texts,
                                  .ids = g->ids,
                                  .labels = g->labels,
                                  .lengths = g->lengths,
                                  .count = g->texts,
                                  .divisor = g->items};
    tn_train_loss loss = {.size = sizeof loss, .loss = NAN};
    tn_model *model = tn_model_open(g->model, &mo, &err);
    tn_trainer *trainer = model ? tn_trainer_open(model, NULL, &err) : NULL;
    if (trainer)
        tn_trainer_evaluate(trainer, &texts, &loss, &err);
    snprintf(line, sizeof line, "%s: loss %.7g, expected %.7g", err.message[0] ? err.message : "rslora", loss.loss,
             want);
    check_say(o, g->name, g->kind, "none", fabs(loss.loss - want) <= 1e-5 * want, line);
    tn_trainer_close(trainer);
    tn_model_close(model);
    unlink(path);
    snprintf(path, sizeof path, "%s/adapter_config.json", to);
    unlink(path);
    rmdir(to);
}

/* ---- logits of merged weights ---------------------------------------------------------------------- */

static void remove_all(const char *folder)
{
    char command[PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", folder);
}

/* The largest distance of the merged model's logits from the last ones of `want`; NAN: it cannot be told. */
static double distance(const char *folder, const tn_tensor *ids, const tn_tensor *want, tn_error *err)
{
    const tn_model_options mo = {.size = sizeof mo, .dtype = "f32"};
    int64_t tokens = ids->shape[1], last = want->shape[1], vocab = want->shape[2];
    tn_model *model = tn_model_open(folder, &mo, err);
    const tn_session_options so = {.size = sizeof so, .rows = 1, .context = tokens};
    tn_session *session = model ? tn_session_new(model, &so, err) : NULL;
    float *logits = calloc((size_t)(tokens * vocab), sizeof *logits);
    const tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = ids->data};
    tn_outputs outputs = {.size = sizeof outputs, .logits = logits};
    double most = NAN;
    if (session && logits && tn_session_run(session, &batch, &outputs, err) == TN_OK) {
        most = 0;
        for (int64_t i = 0; i < last * vocab; i++) {
            double off = fabs((double)logits[(tokens - last) * vocab + i] - (double)((const float *)want->data)[i]);
            most = off > most || isnan(off) ? off : most;
        }
    }
    free(logits);
    tn_session_free(session);
    tn_model_close(model);
    return most;
}

void check_merged(options *o, const char *name, tn_model *model, const char *what, const tn_safetensors *file,
                  const char *prefix, double bound)
{
    tn_error err = TN_ERROR_INIT;
    char key[NAME], base[64] = "/tmp/check-training-XXXXXX", folder[96], line[1200];
    tn_tensor ids, want;
    snprintf(key, sizeof key, "%slogits", prefix);
    bool there = tn_safetensors_get(file, key, &want) && mkdtemp(base);
    there =
        there && (tn_safetensors_get(file, "merged.input_ids", &ids) || tn_safetensors_get(file, "input_ids", &ids));
    if (!there)
        return;
    snprintf(folder, sizeof folder, "%s/merged", base);
    double off = tn_model_merge(model, folder, &err) == TN_OK ? distance(folder, &ids, &want, &err) : NAN;
    if (err.code != TN_OK)
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
    else
        snprintf(line, sizeof line, "%s: logits within %.2g (of %.2g)", what, off, bound);
    check_say(o, name, "merged", "none", off <= bound, line);
    remove_all(base);
}

/* What torch's rounding of Gemma's embedding scale, the root of the width, in a model that is made in bf16 and widened
 * afterwards can change of logits; merged weights are not about it. */
static double scale_rounding(const char *model, const tn_safetensors *file)
{
    char path[4096 + 16];
    double most = 0;
    tn_tensor logits;
    snprintf(path, sizeof path, "%s/config.json", model);
    json_t *config = json_load_file(path, 0, NULL);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    float root = sqrtf((float)json_integer_value(json_object_get(config, "hidden_size")));
    bool scaled = type && !strncmp(type, "gemma", 5) && tn_safetensors_get(file, "merged.logits", &logits);
    json_decref(config);
    for (int64_t i = 0; scaled && i < tn_tensor_count(&logits); i++)
        most = fmax(most, fabs((double)((const float *)logits.data)[i]));
    return scaled ? 2 * most * fabs((double)(tn_bf16_to_f32(tn_f32_to_bf16(root)) / root - 1)) : 0;
}

/* Torch's own logits with the adapter beside the weights are `beside` from those of merged ones, and `bf16` is what
 * rounding the merged weights changes; a sum in another order turns some of those roundings over. */
static void check_merging(options *o, const golden *g, const char *folder, const char *adapter)
{
    static const char *const types[] = {"f32", "bf16"}, *const prefixes[] = {"merged.", "merged_bf16."};
    const double bounds[] = {4 * figure(folder, "merged", "beside"),
                             0.05 * figure(folder, "merged", "bf16") + scale_rounding(g->model, g->file)};
    for (int i = 0; i < 2 && !strcmp(g->kind, "padded.b"); i++) {
        tn_error err = TN_ERROR_INIT;
        const tn_model_options mo = {.size = sizeof mo, .dtype = types[i], .adapter = adapter};
        tn_model *model = tn_model_open(g->model, &mo, &err);
        if (model)
            check_merged(o, g->name, model, types[i], g->file, prefixes[i], bounds[i]);
        else
            check_say(o, g->name, "merged", "none", false, err.message);
        tn_model_close(model);
    }
}

/* ---- what training made of them --------------------------------------------------------------------- */

/* Golden values of a factor: all of them, or some. */
static bool wanted(const tn_safetensors *whole, const tn_safetensors *some, const char *name, tn_tensor *t)
{
    char key[NAME];
    snprintf(key, sizeof key, "final.sample.%s", name);
    return whole ? tn_safetensors_get(whole, name, t) : tn_safetensors_get(some, key, t);
}

static double worst_factor(const tn_safetensors *ours, const tn_safetensors *whole, const tn_safetensors *some,
                           const json_t *change)
{
    double worst = 0;
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)change, key, value) {
        tn_tensor mine, want;
        double squares = 0;
        if (!tn_safetensors_get(ours, key, &mine) || !wanted(whole, some, key, &want))
            return INFINITY;
        int64_t n = tn_tensor_count(&mine), count = tn_tensor_count(&want);
        for (int64_t i = 0; i < count; i++) {
            double d = (double)((const float *)mine.data)[i * n / count] - (double)((const float *)want.data)[i];
            squares += d * d;
        }
        double off = sqrt(squares * (double)n / (double)count) / json_number_value(value);
        worst = off > worst ? off : worst;
    }
    return worst;
}

void check_factors(options *o, const char *folder, const char *name, const char *spec, const tn_trainer *trainer,
                   tn_model *model, const json_t *change)
{
    tn_error err = TN_ERROR_INIT;
    char path[PATH], base[64] = "/tmp/check-training-XXXXXX", out[96], line[1200];
    snprintf(path, sizeof path, "%s/adapter_trained/adapter_model.safetensors", folder);
    tn_safetensors *whole = tn_safetensors_open(path, NULL), *some = NULL, *ours = NULL, *logits = NULL;
    snprintf(path, sizeof path, "%s/lora_trained_sample.safetensors", folder);
    if (!whole)
        some = tn_safetensors_open(path, NULL);
    if ((whole || some) && mkdtemp(base)) {
        snprintf(out, sizeof out, "%s/adapter", base);
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", out);
        double worst = INFINITY;
        if (tn_trainer_save_adapter(trainer, out, &err) == TN_OK && (ours = tn_safetensors_open(path, &err)))
            worst = worst_factor(ours, whole, some, change);
        snprintf(line, sizeof line, "%s factors within %.1g of what training changed", err.message, worst);
        check_say(o, name, "curve", spec, worst <= 1e-3, line);
        remove_all(base);
    }
    snprintf(path, sizeof path, "%s/trained_merged.safetensors", folder);
    if ((logits = tn_safetensors_open(path, NULL))) /* losses are within 1e-4; so much is between logits, too     */
        check_merged(o, name, model, "trained", logits, "", 1e-3);
    tn_safetensors_close(whole);
    tn_safetensors_close(some);
    tn_safetensors_close(ours);
    tn_safetensors_close(logits);
}

/* ---- a case ------------------------------------------------------------------------------------------- */

void check_adapters(options *o, const char *folder, const char *name)
{
    static const char *const batches[] = {"padded", "packed"}, *const kinds[] = {"zero", "b", "per_expert"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0; i < 2; i++) {
            golden g;
            char kind[64], adapter[PATH];
            struct stat st;
            snprintf(kind, sizeof kind, "%s.%s", batches[i], kinds[k]);
            snprintf(adapter, sizeof adapter, "%s/adapter_%s", folder, kinds[k]);
            if (stat(adapter, &st) != 0)
                continue;
            if (golden_open(&g, folder, name, batches[i], "lora", kind)) {
                check_adapter(o, &g, adapter, "f32");
                check_rough(o, &g, folder, adapter);
                check_rslora(o, &g, folder, adapter);
                check_merging(o, &g, folder, adapter);
            } else {
                check_say(o, name, kind, "-", false, "is no case");
            }
            golden_close(&g);
        }
}
