/* How far results are from what is expected. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Largest |a - b| and largest |b| over the positions that count. */
static void distance(const golden *g, const float *a, const float *b, int64_t width, int64_t from, double *error,
                     double *largest)
{
    int64_t tokens = g->ids.shape[1], positions = g->ids.shape[0] * tokens;
    *error = *largest = 0;
    for (int64_t i = 0; i < positions; i++)
        for (int64_t j = 0; j < width && i % tokens >= from && !golden_masked(g, i); j++) {
            double d = fabs((double)a[i * width + j] - b[i * width + j]), m = fabs((double)b[i * width + j]);
            *error = d <= *error ? *error : d; /* a NaN stays */
            *largest = m > *largest ? m : *largest;
        }
}

bool compare_logits(const golden *g, const float *got, const float *expected, int64_t from, char text[static 128])
{
    double error, largest;
    distance(g, got, expected, g->logits.shape[2], from, &error, &largest);
    double bound = g->bound * (largest < 1 ? largest : 1);
    snprintf(text, 128, "max error %.2e, bound %.2e (largest logit %.3g)", error, bound, largest);
    return error <= bound;
}

void check_f32(const golden *g, const run_results *r, const char *what, const char *spec)
{
    char text[128];
    bool ok = compare_logits(g, r->logits, g->logits.data, 0, text);
    check_report(g, what, spec, ok, text);
}

static void check_features(const golden *g, const tn_tensor *expected, const float *got, const char *what,
                           const char *spec)
{
    char text[128];
    double error = 0, largest = 0;
    const float *e = expected->data;
    for (int64_t i = 0, n = e ? tn_tensor_count(expected) : 0; i < n; i++) {
        double d = fabs((double)got[i] - e[i]);
        error = d <= error ? error : d;
        largest = fabs((double)e[i]) > largest ? fabs((double)e[i]) : largest;
    }
    if (!e)
        return;
    double bound = g->bound * (largest < 1 ? 1 : largest);
    snprintf(text, sizeof text, "max error %.2e, bound %.2e", error, bound);
    check_report(g, what, spec, error <= bound, text);
}

void check_media(const golden *g, const run_results *r, const char *spec)
{
    char name[16], text[64];
    check_features(g, &g->image_features, r->image, "image", spec);
    check_features(g, &g->video_features, r->video, "video", spec);
    check_features(g, &g->audio_features, r->sound, "sound", spec);
    for (int i = 0; i < GOLDEN_DEEP; i++) {
        snprintf(name, sizeof name, "deep%d", i);
        check_features(g, &g->deepstack[i], r->deep[i], name, spec);
    }
    if (!r->axes || g->positions.ndim != 3)
        return;
    int64_t count = tn_tensor_count(&g->positions), plane = count / 3, same = 0;
    for (int64_t i = 0; i < count; i++)
        same += golden_masked(g, i % plane) || r->axes[i] == golden_position(g, i);
    snprintf(text, sizeof text, "%lld of %lld positions on three axes", (long long)same, (long long)count);
    check_report(g, "axes", spec, same == count, text);
}

/* Cases that were made without hidden states. */
static bool is_without_states(const char *name)
{
    static const char *const names[] = {"bloom_normed",   "falcon_one_norm", "falcon_rw",  "gpt2_scaled",
                                        "gpt_neox_turns", "opt_bare",        "opt_behind", "phi_norms"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

void check_hidden(const golden *g, const run_results *r, const char *spec)
{
    char text[128];
    double worst = 0;
    int64_t found = 0;
    tn_tensor hidden;
    if (is_without_states(g->name) && !tn_safetensors_get(g->expected, "hidden.0", &hidden)) {
        printf("SKIPPED %s: its file has no hidden states\n", g->name);
        return;
    }
    for (int64_t i = 0; i <= r->layers; i++) {
        double error, largest;
        if (!golden_hidden(g, i, r->width, &hidden))
            continue;
        distance(g, r->hidden[i], hidden.data, r->width, 0, &error, &largest);
        double relative = error / (largest < 1 ? 1 : largest);
        worst = relative <= worst ? worst : relative;
        found++;
    }
    snprintf(text, sizeof text, "max error %.2e of %lld states, bound %.0e", worst, (long long)found, g->bound);
    check_report(g, "hidden", spec, worst <= g->bound && found == r->layers + 1, text);
}

void check_bf16(const golden *g, const run_results *r, const near_tokens *n, const char *what, const char *spec,
                bool rounds)
{
    char text[192];
    bool right = rounding_is_right(g, r, n, rounds, text);
    check_report(g, what, spec, right, text);
}
