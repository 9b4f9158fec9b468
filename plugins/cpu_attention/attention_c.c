/* The plain C reference of what the instruction sets bring: one element after the other. */
#include "attention.h"
#include "scalar.h"

#include <float.h>
#include <math.h>

enum { LANES = ATTENTION_LANES };

static void queries(const char *const *row, tn_dtype dtype, int64_t d, void *panel)
{
    for (int64_t i = 0; i < d; i++)
        for (int l = 0; l < LANES; l++)
            ((float *)panel)[i * LANES + l] = scalar_load(row[l], i, dtype);
}

static void widen(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            to[r * n + i] = scalar_load(from + r * step, i, dtype);
}

static bool finite_rows(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(scalar_load(from + r * step, i, dtype)))
                return false;
    return true;
}

/* out[row][16] (+)= w . panel. */
static void products(const attention_operand *w, int64_t rows, int64_t depth, const float *panel, bool add, float *out)
{
    for (int64_t r = 0; r < rows; r++, out += LANES) {
        float sum[LANES] = {0};
        if (add)
            memcpy(sum, out, sizeof sum);
        for (int64_t i = 0; i < depth; i++) {
            float one = ((const float *)w->data)[r * w->row + i * w->step];
            for (int l = 0; l < LANES; l++)
                sum[l] += one * panel[i * LANES + l];
        }
        memcpy(out, sum, sizeof sum);
    }
}

static void scores_of(const attention_operand *keys, int64_t count, int64_t depth, const void *panel, int32_t groups,
                      float *to)
{
    for (int32_t g = 0; g < groups; g++)
        products(keys, count, depth, (const float *)panel + g * depth * LANES, false, to + g * ATTENTION_KEYS * LANES);
}

static void mix(const attention_operand *values, int64_t dv, int64_t count, const void *panel, int64_t panel_group,
                int32_t groups, float *o, int64_t o_group)
{
    for (int32_t g = 0; g < groups; g++)
        products(values, dv, count, (const float *)panel + g * panel_group, true, o + g * o_group);
}

static void cap(float *x, int64_t n, float in, float out)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = out * tanhf(in * x[i]);
}

static void mask(attention_lanes *lanes, const int32_t *index, int64_t count, float *x)
{
    for (int64_t s = 0; s < count; s++)
        for (int l = 0; l < LANES; l++) {
            bool sees = index[s] >= lanes->low[l] && index[s] <= lanes->high[l];
            lanes->seen[l] |= sees;
            if (!sees)
                x[s * LANES + l] = -INFINITY;
        }
}

static bool soften(attention_lanes *lanes, float scale, int64_t count, const float *x, void *panel)
{
    bool raised = false;
    float *p = panel;
    for (int l = 0; l < LANES; l++) {
        float top = -INFINITY, before = lanes->max[l], sum[ATTENTION_SUMS] = {0};
        for (int64_t s = 0; s < count; s++)
            top = x[s * LANES + l] > top ? x[s * LANES + l] : top;
        if (top * scale > before + ATTENTION_RAISE)
            lanes->max[l] = top * scale;
        lanes->factor[l] = exp2f(before - lanes->max[l]);
        raised |= lanes->factor[l] != 1.0f;
        for (int64_t s = 0; s < count; s++) {
            p[s * LANES + l] = exp2f(fmaf(x[s * LANES + l], scale, -lanes->max[l]));
            sum[s % ATTENTION_SUMS] += p[s * LANES + l];
        }
        lanes->sum[l] = fmaf(lanes->sum[l], lanes->factor[l], sum[0] + sum[2] + (sum[1] + sum[3]));
    }
    return raised;
}

static float score_of(const attention_rule *rule, float x)
{
    x = scalar_round(scalar_round(x, rule->dtype) * rule->scale, rule->dtype);
    if (rule->softcap == 0.0f)
        return x;
    x = scalar_round(tanhf(scalar_round(x / rule->softcap, rule->dtype)), rule->dtype);
    return scalar_round(x * rule->softcap, rule->dtype);
}

static void as_eager(attention_lanes *lanes, const attention_rule *rule, const int32_t *index, int64_t count, float *x,
                     float *p)
{
    for (int64_t i = 0; i < count * LANES; i++)
        x[i] = score_of(rule, x[i]);
    mask(lanes, index, count, x);
    for (int l = 0; l < LANES; l++) {
        float max = rule->has_sink ? rule->sink[l] : -FLT_MAX, sum = 0.0f;
        for (int64_t s = 0; s < count; s++)
            max = x[s * LANES + l] > max ? x[s * LANES + l] : max;
        if (rule->has_sink)
            sum = expf(scalar_round(rule->sink[l] - max, rule->dtype));
        for (int64_t s = 0; s < count; s++) {
            float away = x[s * LANES + l] - max;
            p[s * LANES + l] = expf(rule->has_sink ? scalar_round(away, rule->dtype) : away);
            sum += p[s * LANES + l];
        }
        for (int64_t s = 0; s < count; s++)
            p[s * LANES + l] = lanes->seen[l] ? scalar_round(p[s * LANES + l] / sum, rule->dtype) : 0.0f;
        lanes->max[l] = 0.0f;
        lanes->sum[l] = 1.0f;
    }
}

static void rescale(const float *factor, int64_t dv, float *o)
{
    for (int64_t i = 0; i < dv; i++)
        for (int l = 0; l < LANES; l++)
            o[i * LANES + l] *= factor[l];
}

static void join(float *all, const float *before, const float *o, const float *factor, int64_t n)
{
    for (int64_t i = 0; i < n * LANES; i++)
        all[i] = fmaf(o[i], factor[i % LANES], all[i] * before[i % LANES]);
}

static void store(const float *o, const float *factor, int64_t dv, tn_dtype dtype, int32_t rows, char *const *to)
{
    for (int32_t l = 0; l < rows; l++)
        for (int64_t i = 0; i < dv; i++)
            scalar_store(to[l], i, dtype, fmaf(o[i * LANES + l], factor[l], 0.0f));
}

static void store_row(const float *o, float factor, int64_t dv, tn_dtype dtype, char *to)
{
    for (int64_t i = 0; i < dv; i++)
        scalar_store(to, i, dtype, fmaf(o[i], factor, 0.0f));
}

void attention_init_c(attention_kernels *kernels)
{
    *kernels = (attention_kernels){ATTENTION_KERNELS};
}
