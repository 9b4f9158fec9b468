/* Vectors of texts: a batch at once, with its padding on the other side, and each text without it. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double BOUND = 1e-5; /* absolute: vectors have length 1                                */

static double largest_distance(const float *a, const float *b, int64_t n)
{
    double error = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        error = d <= error ? error : d; /* a NaN stays */
    }
    return error;
}

static double rms_distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum / (double)n);
}

/* The vectors of these rows, [rows, width]. Owned; NULL with err filled. */
static float *vectors_of(tn_model *model, const tn_batch *batch, int64_t width, tn_error *err)
{
    tn_embedder *e = tn_embedder_open(model, NULL, err);
    tn_embedder_info info = {.size = sizeof info};
    float *out = NULL;
    if (e && tn_embedder_get_info(e, &info) == TN_OK && info.width != width)
        tn_fail(err, TN_E_INPUT, "embedding", "has a width of %lld, expected %lld", (long long)info.width,
                (long long)width);
    else if (e && (out = calloc((size_t)(batch->rows * width), sizeof *out)) &&
             tn_embed(e, batch, 0, out, err) != TN_OK) {
        free(out);
        out = NULL;
    }
    tn_embedder_close(e);
    return out;
}

/* Real tokens of each row first, or last. */
static void move(const golden *g, bool to_front, int64_t *ids, int64_t *mask)
{
    int64_t rows = g->ids.shape[0], tokens = g->ids.shape[1];
    for (int64_t b = 0; b < rows; b++) {
        int64_t real = 0, at = b * tokens;
        for (int64_t t = 0; t < tokens; t++)
            real += !golden_masked(g, at + t);
        int64_t next = to_front ? 0 : tokens - real;
        for (int64_t t = 0; t < tokens; t++) {
            mask[at + t] = to_front ? t < real : t >= tokens - real;
            if (!golden_masked(g, at + t))
                ids[at + next++] = ((const int64_t *)g->ids.data)[at + t];
        }
    }
}

static void check_side(const golden *g, tn_model *model, const char *spec, bool to_front)
{
    char text[128];
    tn_error err = TN_ERROR_INIT;
    int64_t count = tn_tensor_count(&g->ids), n = tn_tensor_count(&g->embedding);
    int64_t *ids = calloc((size_t)count, sizeof *ids), *mask = calloc((size_t)count, sizeof *mask);
    if (ids && mask)
        move(g, to_front, ids, mask);
    tn_batch batch = {
        .size = sizeof batch, .rows = g->ids.shape[0], .tokens = g->ids.shape[1], .ids = ids, .mask = mask};
    float *got = vectors_of(model, &batch, g->embedding.shape[1], &err);
    if (got) {
        double error = largest_distance(got, g->embedding.data, n);
        snprintf(text, sizeof text, "padding on the %s: max error %.2e, bound %.0e", to_front ? "right" : "left", error,
                 BOUND);
        check_report(g, "side", spec, error <= BOUND, text);
    } else {
        check_fail(g, "side", spec, &err);
    }
    free(got);
    free(ids);
    free(mask);
}

/* The states behind the final norm, of all rows in one call with their padding. */
static void check_states(const golden *g, tn_model *model, const char *spec)
{
    char text[128];
    tn_error err = TN_ERROR_INIT;
    run_results r = {0};
    tn_session_options so = {.size = sizeof so, .rows = g->ids.shape[0], .context = g->ids.shape[1]};
    tn_batch batch = {.size = sizeof batch,
                      .rows = g->ids.shape[0],
                      .tokens = g->ids.shape[1],
                      .ids = g->ids.data,
                      .mask = g->mask.data};
    tn_session *s = tn_session_new(model, &so, &err);
    tn_outputs out = {.size = sizeof out};
    bool ok = s && run_allocate(g, model, true, &r);
    out.hidden = r.hidden;
    if (ok && tn_session_run(s, &batch, &out, &err) == TN_OK) {
        double error = 0, largest = 0;
        const float *expected = g->last_hidden.data;
        for (int64_t i = 0; i < tn_tensor_count(&g->ids); i++)
            for (int64_t j = 0; j < r.width && !golden_masked(g, i); j++) {
                double d = fabs((double)r.hidden[r.layers][i * r.width + j] - expected[i * r.width + j]);
                double m = fabs((double)expected[i * r.width + j]);
                error = d <= error ? error : d;
                largest = m > largest ? m : largest;
            }
        double bound = BOUND * (largest > 1 ? largest : 1);
        snprintf(text, sizeof text, "max error %.2e, bound %.2e (largest %.3g)", error, bound, largest);
        check_report(g, "states", spec, r.width == g->last_hidden.shape[2] && error <= bound, text);
    } else {
        check_fail(g, "states", spec, &err);
    }
    tn_session_free(s);
    run_free(&r);
}

void check_embedding(const golden *g, tn_model *model, tn_dtype dtype, const char *spec)
{
    char text[128];
    tn_error err = TN_ERROR_INIT;
    int64_t n = tn_tensor_count(&g->embedding);
    tn_batch batch = {.size = sizeof batch,
                      .rows = g->ids.shape[0],
                      .tokens = g->ids.shape[1],
                      .ids = g->ids.data,
                      .mask = g->mask.data};
    float *got = vectors_of(model, &batch, g->embedding.shape[1], &err);
    if (!got) {
        check_fail(g, tn_dtype_name(dtype), spec, &err);
        return;
    }
    if (dtype == TN_BF16) {
        double ours = rms_distance(got, g->embedding.data, n);
        double theirs = rms_distance(g->embedding_bf16.data, g->embedding.data, n);
        snprintf(text, sizeof text, "rms error %.3e, bound %.3e (%.2f times transformers')", ours, 1.5 * theirs,
                 theirs > 0 ? ours / theirs : 0);
        check_report(g, "bf16", spec, ours <= 1.5 * theirs, text);
    } else {
        double error = largest_distance(got, g->embedding.data, n);
        snprintf(text, sizeof text, "max error %.2e, bound %.0e", error, BOUND);
        check_report(g, "f32", spec, error <= BOUND, text);
        check_side(g, model, spec, true);
        check_side(g, model, spec, false);
        if (g->last_hidden.data)
            check_states(g, model, spec);
    }
    free(got);
}
