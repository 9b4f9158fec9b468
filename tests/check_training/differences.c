/* Gradients against central differences of the loss, with that of routers where the type has one: a half of a
 * parameter's elements, drawn by chance, is moved along the gradient and against it. What the loss changes by is what
 * the gradient says, but for rounding and curvature. */
#include "check.h"

#include "open/model.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenon/half.h>
#include <unistd.h>

enum { TOKENS = 12 };

typedef struct moved {
    float *data; /* of the model, writable                                                           */
    float *before, *step;
    int64_t count;
    double squares; /* of the gradient's elements that are moved                                       */
} moved;

const float *check_weight(const tn_model *model, const char *name)
{
    return shards_used(model->weights, name, TN_F32);
}

static uint32_t draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void make_writable(void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);
    mprotect((void *)begin, (uintptr_t)data + bytes - begin, PROT_READ | PROT_WRITE);
}

static double loss_of(tn_trainer *trainer, const tn_train_texts *texts)
{
    tn_train_loss loss = {.size = sizeof loss};
    return tn_trainer_evaluate(trainer, texts, &loss, NULL) == TN_OK ? loss.loss : NAN;
}

/* The parameter of that name, and a step along its gradient: false where it has none, or is not in f32. */
static bool moved_open(moved *m, tn_model *model, const tn_trainer *trainer, const char *name, uint32_t *seed)
{
    tn_tensor gradient;
    *m = (moved){0};
    if (tn_trainer_gradient(trainer, name, &gradient, NULL) != TN_OK || !check_weight(model, name))
        return false;
    m->count = tn_tensor_count(&gradient);
    m->data = (float *)(uintptr_t)check_weight(model, name);
    m->before = malloc((size_t)m->count * sizeof *m->before);
    m->step = malloc((size_t)m->count * sizeof *m->step);
    make_writable(m->data, (size_t)m->count * sizeof *m->data);
    memcpy(m->before, m->data, (size_t)m->count * sizeof *m->before);
    for (int64_t i = 0; i < m->count; i++) {
        m->step[i] = m->count < 4 || draw(seed) & 1 ? ((const float *)gradient.data)[i] : 0;
        m->squares += (double)m->step[i] * (double)m->step[i];
    }
    return true;
}

static void moved_close(moved *m)
{
    for (int64_t i = 0; i < m->count; i++)
        m->data[i] = m->before[i];
    free(m->before);
    free(m->step);
}

static void move(const moved *m, double by)
{
    for (int64_t i = 0; i < m->count; i++)
        m->data[i] = (float)(m->before[i] + by * (double)m->step[i]);
}

/* The slope of the loss along the step, by so much of it. */
static double slope_of(const moved *m, tn_trainer *trainer, const tn_train_texts *texts, double by)
{
    move(m, by);
    double up = loss_of(trainer, texts);
    move(m, -by);
    return (up - loss_of(trainer, texts)) / (2 * by);
}

/* Is the slope along the step the sum of the step's squares? The first step moves neither the loss nor the weights by
 * more than about a hundredth; where others of experts, keys or gates are chosen on the way, a
 * smaller one is the answer, as long as the error of losses, 2^-20, is below a tenth of what they differ by. One choice
 * that is nearly even adds the same to what losses differ by at two steps: what is between these is without it. */
static bool moved_is_right(const moved *m, tn_trainer *trainer, const tn_train_texts *texts, double loss, char *why,
                           size_t size)
{
    double weight = 0, length = sqrt(m->squares), slope = 0, before = 0;
    for (int64_t i = 0; i < m->count; i++)
        weight += (double)m->before[i] * (double)m->before[i];
    double by = 0.01 * (loss > 1 ? loss : 1) / m->squares, most = 0.01 * (sqrt(weight) + 0.01) / length;
    by = by < most ? by : most;
    for (int n = 0; n < 6; n++, by /= 4) {
        double rounding = ldexp(fabs(loss), -20) / by;
        if (n > 0 && rounding > 0.1 * m->squares)
            break;
        slope = slope_of(m, trainer, texts, by);
        double smooth = n > 0 ? (4 * before - slope) / 3 : slope; /* what by times either slope differ by        */
        if (fabs(slope - m->squares) <= 0.02 * m->squares + rounding ||
            fabs(smooth - m->squares) <= 0.02 * m->squares + rounding)
            return true;
        before = slope;
    }
    snprintf(why, size, "the loss, %.4g, changes by %.6g, the gradient says %.6g", loss, slope, m->squares);
    return false;
}

static void check_params(options *o, const char *name, tn_model *model, tn_trainer *trainer,
                         const tn_train_texts *texts)
{
    int64_t right = 0, wrong = 0;
    char why[256], line[1200] = "";
    size_t count = shards_count(model->weights);
    uint32_t seed = 7;
    for (size_t i = 0; i < count; i++) {
        moved m;
        const char *tensor = shards_name(model->weights, i);
        tn_train_loss loss = {.size = sizeof loss};
        tn_trainer_clear(trainer);
        if (tn_trainer_backward(trainer, texts, &loss, NULL) != TN_OK)
            loss.loss = NAN;
        if (!moved_open(&m, model, trainer, tensor, &seed))
            continue;
        bool ok = m.squares == 0 || moved_is_right(&m, trainer, texts, loss.loss, why, sizeof why);
        if (!ok && wrong++ == 0)
            snprintf(line, sizeof line, "%s: %s", tensor, why);
        right += ok;
        moved_close(&m);
    }
    snprintf(line + strlen(line), sizeof line - strlen(line), "%s%lld of %lld gradients", wrong ? "; " : "",
             (long long)right, (long long)(right + wrong));
    check_say(o, name, "slopes", "none", wrong == 0 && right > 0, line);
}

void check_differences(options *o, const char *folder, const char *name)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200];
    const tn_model_options mo = {.size = sizeof mo, .dtype = "f32", .training = true};
    tn_model *model = tn_model_open(folder, &mo, &err);
    const tn_train_options balanced = {.size = sizeof balanced, .router_loss = 0.1};
    tn_trainer *trainer = model ? tn_trainer_open(model, &balanced, NULL) : NULL; /* NULL: there is no such loss   */
    if (model && !trainer)
        trainer = tn_trainer_open(model, NULL, &err);
    tn_model_info info = {.size = sizeof info};
    int64_t ids[TOKENS], lengths[2] = {TOKENS - 5, 5};
    uint32_t seed = 3;
    if (!trainer && model && strstr(err.message, "has no head")) {
        printf("SKIP %-24s %s\n", name, err.message);
    } else if (!trainer) {
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
        check_say(o, name, "slopes", "none", false, line);
    } else {
        tn_model_get_info(model, &info);
        for (int i = 0; i < TOKENS; i++)
            ids[i] = 3 + draw(&seed) % (info.vocab < 200 ? info.vocab - 3 : 200);
        const tn_train_texts texts = {.size = sizeof texts, .ids = ids, .labels = ids, .lengths = lengths, .count = 2};
        check_params(o, name, model, trainer, &texts);
    }
    tn_trainer_close(trainer);
    tn_model_close(model);
}
