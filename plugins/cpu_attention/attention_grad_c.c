/* The plain C reference of the middle of backward. */
#include "attention_grad.h"
#include "scalar.h"

#include <math.h>

enum { LANES = ATTENTION_LANES };

static void sum(attention_grad_lanes *lanes, const attention_grad_block *b)
{
    for (int l = 0; l < LANES; l++) {
        float max = lanes->max[l];
        for (int64_t s = 0; s < b->count; s++) {
            float x = b->x[s * LANES + l] * b->scale;
            max = x > max ? x : max;
        }
        float factor = exp2f(lanes->max[l] - max);
        lanes->inverse[l] *= factor;
        lanes->inner[l] *= factor;
        lanes->max[l] = max;
        for (int64_t s = 0; s < b->count; s++) {
            float x = b->x[s * LANES + l] * b->scale, p = exp2f(x - max);
            lanes->inverse[l] += p;
            lanes->inner[l] += p > 0 ? p * b->dp[s * LANES + l] : p;
        }
    }
}

static void soften(const attention_grad_lanes *lanes, const attention_grad_block *b)
{
    for (int64_t s = 0; s < b->count; s++)
        for (int l = 0; l < LANES; l++) {
            float x = b->x[s * LANES + l], scaled = x * b->scale, slope = b->natural;
            float p = exp2f(scaled - lanes->max[l]) * lanes->inverse[l];
            if (b->cap_out != 0.0f)
                slope *= 1.0f - x / b->cap_out * (x / b->cap_out);
            float ds = p > 0 ? p * (b->dp[s * LANES + l] - lanes->inner[l]) * slope : p;
            ((float *)b->p)[s * ATTENTION_ROWS + l] = p;
            ((float *)b->ds)[s * ATTENTION_ROWS + l] = ds;
            ((float *)b->ds_panel)[s * LANES + l] = ds;
        }
}

static void rows(const char *const *row, tn_dtype dtype, int64_t n, void *panel)
{
    for (int r = 0; r < LANES; r++)
        for (int64_t c = 0; c < attention_up(n, LANES); c++)
            ((float *)panel)[(c / LANES * ATTENTION_ROWS + r) * LANES + c % LANES] =
                c < n ? scalar_load(row[r], c, dtype) : 0.0f;
}

static void narrow(const float *from, int64_t n, tn_dtype dtype, char *to)
{
    for (int64_t c = 0; c < n; c++)
        scalar_store(to, c, dtype, from[c / LANES * ATTENTION_KEYS * LANES + c % LANES]);
}

void attention_grad_init_c(attention_grad_kernels *kernels)
{
    *kernels = (attention_grad_kernels){sum, soften, rows, narrow};
}
