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

/* Rows of one step, in their order, over and over. */
static tn_train_loss learn(tn_trainer *trainer, const samples *s, int64_t step, tn_error *err)
{
    static int64_t ids[TOKENS], labels[TOKENS];
    int64_t lengths[ROWS], at = 0;
    for (int64_t i = 0; i < ROWS; i++) {
        int64_t sample = (step * ROWS + i) % s->count, begin = s->first[sample];
        lengths[i] = s->first[sample + 1] - begin;
        memcpy(ids + at, s->ids + begin, (size_t)lengths[i] * sizeof *ids);
        memcpy(labels + at, s->labels + begin, (size_t)lengths[i] * sizeof *labels);
        at += lengths[i];
    }
    tn_train_loss loss = {.size = sizeof loss};
    const tn_train_texts texts = {
        .size = sizeof texts, .ids = ids, .labels = labels, .lengths = lengths, .count = ROWS};
    if (tn_trainer_backward(trainer, &texts, &loss, err) != TN_OK)
        loss.loss = NAN;
    return loss;
}

static double number_at(const json_t *curve, const char *key, int64_t i)
{
    return json_number_value(json_array_get(json_object_get(curve, key), (size_t)i));
}

static void follow(options *o, const char *name, const char *run, const char *spec, tn_trainer *trainer,
                   const samples *s, const json_t *curve, double decay)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200] = "";
    double worst_loss = 0, worst_norm = 0;
    bool same_rates = true;
    for (int64_t i = 0; i < STEPS && err.code == TN_OK; i++) {
        double norm = NAN, rate = 1e-3 * tn_schedule_at(TN_SCHEDULE_COSINE, i, WARMUP, STEPS);
        double loss = learn(trainer, s, i, &err).loss;
        const tn_train_step step = {.size = sizeof step, .rate = rate, .decay = decay, .max_norm = 1};
        if (err.code == TN_OK)
            tn_trainer_step(trainer, &step, &norm, &err);
        double off = fabs(loss / number_at(curve, "loss", i) - 1),
               far = fabs(norm / number_at(curve, "grad_norm", i) - 1);
        worst_loss = off > worst_loss || isnan(off) ? off : worst_loss;
        worst_norm = far > worst_norm || isnan(far) ? far : worst_norm;
        same_rates &= fabs(rate - number_at(curve, "lr", i)) <= 1e-18;
    }
    if (err.code != TN_OK)
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
    else
        snprintf(line, sizeof line, "%s: loss within %.1g, norm within %.1g%s", run, worst_loss, worst_norm,
                 same_rates ? "" : ", other rates");
    check_say(o, name, "curve", spec, err.code == TN_OK && same_rates && worst_loss <= 1e-4 && worst_norm <= 1e-3,
              line);
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

void check_curves(options *o, const char *folder, const char *name, const char *weights)
{
    static const struct {
        const char *name;
        double decay;
    } runs[] = {{"full.decay0", 0}, {"full.decay0.01", 0.01}};
    static samples s;
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/curves.json", folder);
    json_t *curves = json_load_file(path, 0, NULL);
    for (int i = 0; curves && read_samples(folder, &s) && i < 2; i++)
        for (int k = 0; k < o->spec_count; k++) {
            tn_error err = TN_ERROR_INIT;
            const json_t *curve = json_object_get(curves, runs[i].name);
            const tn_model_options mo = {.size = sizeof mo, .dtype = "f32", .training = true};
            tn_model *model = tn_model_open(weights, &mo, &err);
            tn_trainer *trainer = NULL;
            if (model && tn_apply_kernels(model, o->config, o->specs[k], NULL, &err) == TN_OK)
                trainer = tn_trainer_open(model, NULL, &err);
            if (trainer)
                follow(o, name, runs[i].name, o->specs[k], trainer, &s, curve, runs[i].decay);
            else
                check_say(o, name, "curve", o->specs[k], false, err.message);
            if (trainer && runs[i].decay > 0)
                compare_weights(o, folder, name, o->specs[k], model, curve);
            tn_trainer_close(trainer);
            tn_model_close(model);
        }
    json_decref(curves);
}
