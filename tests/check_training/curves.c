/* Thirty steps of AdamW against the golden curves: loss and norm of the gradients at every step. */
#include "check.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 30, WARMUP = 3, ROWS = 4, SAMPLES = 64, TOKENS = 4096 };

/* The samples of data.jsonl, one behind the other. */
typedef struct samples {
    int64_t ids[TOKENS], labels[TOKENS], first[SAMPLES + 1];
    int64_t count;
} samples;

static void add_sample(samples *s, const json_t *line)
{
    const json_t *ids = json_object_get(line, "input_ids"), *labels = json_object_get(line, "labels");
    int64_t at = s->first[s->count], n = (int64_t)json_array_size(ids);
    if (s->count == SAMPLES || n == 0 || at + n > TOKENS)
        return;
    for (int64_t i = 0; i < n; i++) {
        s->ids[at + i] = json_integer_value(json_array_get(ids, (size_t)i));
        s->labels[at + i] = json_integer_value(json_array_get(labels, (size_t)i));
    }
    s->first[++s->count] = at + n;
}

static bool read_samples(const char *folder, samples *s)
{
    char path[4096 + 32], *line = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/data.jsonl", folder);
    FILE *file = fopen(path, "re");
    s->count = s->first[0] = 0;
    while (file && getline(&line, &size, file) > 0) {
        json_t *object = json_loads(line, 0, NULL);
        add_sample(s, object);
        json_decref(object);
    }
    free(line);
    if (file)
        fclose(file);
    return s->count > 0;
}

static int64_t count_labels(const samples *s, int64_t begin, int64_t end)
{
    int64_t count = 0;
    for (int64_t i = begin + 1; i < end; i++)
        count += s->labels[i] != -100;
    return count;
}

/* Rows of one step, in their order, over and over: in two calls with one divisor. */
static double learn(tn_trainer *trainer, const samples *s, int64_t step, tn_error *err)
{
    static int64_t ids[TOKENS], labels[TOKENS];
    int64_t lengths[ROWS], start[ROWS], at = 0, counted = 0;
    double sum = 0;
    for (int64_t i = 0; i < ROWS; i++) {
        int64_t sample = (step * ROWS + i) % s->count, begin = s->first[sample];
        lengths[i] = s->first[sample + 1] - begin;
        start[i] = at;
        counted += count_labels(s, begin, s->first[sample + 1]);
        memcpy(ids + at, s->ids + begin, (size_t)lengths[i] * sizeof *ids);
        memcpy(labels + at, s->labels + begin, (size_t)lengths[i] * sizeof *labels);
        at += lengths[i];
    }
    for (int64_t i = 0; i < ROWS; i += ROWS / 2) {
        tn_train_loss loss = {.size = sizeof loss};
        const tn_train_texts texts = {.size = sizeof texts,
                                      .ids = ids + start[i],
                                      .labels = labels + start[i],
                                      .lengths = lengths + i,
                                      .count = ROWS / 2,
                                      .divisor = (double)counted};
        if (tn_trainer_backward(trainer, &texts, &loss, err) != TN_OK)
            return NAN;
        sum += loss.loss;
    }
    return sum;
}

static double number_at(const json_t *curve, const char *key, int64_t i)
{
    return json_number_value(json_array_get(json_object_get(curve, key), (size_t)i));
}

/* A curve of curves.json, and how it is followed. */
typedef struct curve_run {
    const char *name, *dtype;
    tn_precision precision;
    double decay;
    const char *adapter; /* or NULL: all weights are trained                                         */
    bool routers;        /* with their loss                                                              */
} curve_run;

/* The largest distance of losses from those of a curve. */
static double farthest(const double *loss, const json_t *curve)
{
    double most = 0;
    for (int64_t i = 0; i < STEPS; i++) {
        double off = fabs(loss[i] - number_at(curve, "loss", i));
        most = off > most || isnan(off) ? off : most;
    }
    return most;
}

/* In f32 losses within 1e-4 and norms within 1e-3 of torch's. In 16 bits losses within 3 times what other kernels of
 * torch or another order of rows change, and no further from those of f32 than 1.5 times torch's, or than its other
 * runs may be by what they change: the farthest of thirty steps is one draw, and with the file's two other draws torch
 * itself is at up to 2.0 times (lora_pure of demo: 0.0061, rows in the other order 0.0081, fused attention 0.0124). */
static bool is_right(const double *loss, double worst_loss, double worst_norm, const json_t *curve, const json_t *exact,
                     char *line, size_t size)
{
    double from_f32 = json_number_value(json_object_get(curve, "loss_from_f32"));
    double swapped = json_number_value(json_object_get(curve, "loss_rows_swapped")),
           sdpa = json_number_value(json_object_get(curve, "loss_sdpa"));
    double other = swapped > sdpa ? swapped : sdpa, most = 3 * other, off = farthest(loss, curve),
           from_exact = farthest(loss, exact), most_exact = from_f32 + (other > from_f32 / 2 ? other : from_f32 / 2);
    if (from_f32 == 0) {
        snprintf(line, size, "loss within %.1g, norm within %.1g", worst_loss, worst_norm);
        return worst_loss <= 1e-4 && worst_norm <= 1e-3;
    }
    snprintf(line, size, "loss within %.2g (of %.2g), from f32 %.2g (of %.2g; torch %.2g)", off, most, from_exact,
             most_exact, from_f32);
    return off <= most && from_exact <= most_exact;
}

static void follow(options *o, const char *name, const curve_run *run, const char *spec, tn_trainer *trainer,
                   const samples *s, const json_t *curve, const json_t *exact)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200] = "", how[256] = "";
    double worst_loss = 0, worst_norm = 0, loss[STEPS];
    bool same_rates = true;
    for (int64_t i = 0; i < STEPS && err.code == TN_OK; i++) {
        double norm = NAN, rate = 1e-3 * tn_schedule_at(TN_SCHEDULE_COSINE, i, WARMUP, STEPS);
        loss[i] = learn(trainer, s, i, &err);
        const tn_train_step step = {.size = sizeof step, .rate = rate, .decay = run->decay, .max_norm = 1};
        if (err.code == TN_OK)
            tn_trainer_step(trainer, &step, &norm, &err);
        double off = fabs(loss[i] / number_at(curve, "loss", i) - 1),
               far = fabs(norm / number_at(curve, "grad_norm", i) - 1);
        worst_loss = off > worst_loss || isnan(off) ? off : worst_loss;
        worst_norm = far > worst_norm || isnan(far) ? far : worst_norm;
        same_rates &= fabs(rate - number_at(curve, "lr", i)) <= 1e-18;
    }
    bool right = err.code == TN_OK && is_right(loss, worst_loss, worst_norm, curve, exact, how, sizeof how);
    if (err.code != TN_OK)
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
    else
        snprintf(line, sizeof line, "%s: %s%s", run->name, how, same_rates ? "" : ", other rates");
    check_say(o, name, "curve", spec, right && same_rates, line);
}

/* Weights that were trained, of the one case that has them: within a thousandth of what training changed. */
static void compare_weights(options *o, const char *folder, const char *name, const char *spec, tn_model *model,
                            const json_t *curve)
{
    char path[4096 + 64], line[128];
    snprintf(path, sizeof path, "%s/full_trained.safetensors", folder);
    tn_safetensors *want = tn_safetensors_open(path, NULL);
    double worst = 0;
    const char *key;
    json_t *change;
    if (!want)
        return;
    json_object_foreach (json_object_get(curve, "change"), key, change) {
        tn_tensor trained;
        double squares = 0;
        const float *now = check_weight(model, key);
        if (!now || !tn_safetensors_get(want, key, &trained)) {
            worst = INFINITY;
            break;
        }
        for (int64_t i = 0; i < tn_tensor_count(&trained); i++) {
            double d = (double)now[i] - (double)((const float *)trained.data)[i];
            squares += d * d;
        }
        double off = sqrt(squares) / json_number_value(change);
        worst = off > worst ? off : worst;
    }
    snprintf(line, sizeof line, "weights within %.1g of what training changed", worst);
    check_say(o, name, "curve", spec, worst <= 1e-3, line);
    tn_safetensors_close(want);
}

/* One curve with one choice of kernels. */
static void check_run(options *o, const char *folder, const char *name, const char *weights, const curve_run *run,
                      const char *spec, const samples *s, const json_t *curves, double router)
{
    tn_error err = TN_ERROR_INIT;
    const json_t *curve = json_object_get(curves, run->name);
    char adapter[4096 + 32];
    snprintf(adapter, sizeof adapter, "%s/adapter_%s", folder, run->adapter ? run->adapter : "");
    const tn_model_options mo = {
        .size = sizeof mo, .dtype = run->dtype, .training = true, .adapter = run->adapter ? adapter : NULL};
    const tn_train_options to = {
        .size = sizeof to, .precision = run->precision, .router_loss = run->routers ? router : 0};
    tn_model *model = tn_model_open(weights, &mo, &err);
    tn_trainer *trainer = NULL;
    if (model && tn_apply_kernels(model, o->config, spec, NULL, &err) == TN_OK)
        trainer = tn_trainer_open(model, &to, &err);
    if (trainer)
        follow(o, name, run, spec, trainer, s, curve,
               json_object_get(curves, run->adapter ? "lora.decay0" : "full.decay0"));
    else
        check_say(o, name, "curve", spec, false, err.message);
    if (trainer && !strcmp(run->name, "lora.decay0"))
        check_factors(o, folder, name, spec, trainer, model, json_object_get(curve, "change"));
    if (trainer && run->decay > 0 && !run->adapter && !run->routers)
        compare_weights(o, folder, name, spec, model, curve);
    tn_trainer_close(trainer);
    tn_model_close(model);
}

void check_curves(options *o, const char *folder, const char *name, const char *weights, double router)
{
    static const curve_run runs[] = {
        {.name = "full.decay0", .dtype = "f32"},
        {.name = "full.decay0.01", .dtype = "f32", .decay = 0.01},
        {.name = "full_aux.decay0", .dtype = "f32", .routers = true},
        {.name = "full_aux.decay0.01", .dtype = "f32", .decay = 0.01, .routers = true},
        {.name = "lora_aux.decay0", .dtype = "f32", .adapter = "zero", .routers = true},
        {.name = "lora_aux.decay0.01", .dtype = "f32", .decay = 0.01, .adapter = "zero", .routers = true},
        {.name = "full_amp", .dtype = "mixed", .precision = TN_PRECISION_MIXED},
        {.name = "full_pure", .dtype = "bf16", .precision = TN_PRECISION_PURE},
        {.name = "lora.decay0", .dtype = "f32", .adapter = "zero"},
        {.name = "lora.decay0.01", .dtype = "f32", .adapter = "zero", .decay = 0.01},
        {.name = "lora_per_expert.decay0", .dtype = "f32", .adapter = "per_expert"},
        {.name = "lora_amp", .dtype = "bf16", .precision = TN_PRECISION_MIXED, .adapter = "zero"},
        {.name = "lora_pure", .dtype = "bf16", .precision = TN_PRECISION_PURE, .adapter = "zero"}};
    static samples s;
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/curves.json", folder);
    json_t *curves = json_load_file(path, 0, NULL);
    for (size_t i = 0; curves && read_samples(folder, &s) && i < sizeof runs / sizeof *runs; i++)
        for (int k = 0; json_object_get(curves, runs[i].name) && k < o->spec_count; k++)
            check_run(o, folder, name, weights, &runs[i], o->specs[k], &s, curves, router);
    json_decref(curves);
}
