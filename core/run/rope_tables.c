/* Inverse frequencies of each rope_type and the tables made of them. Single precision where transformers computes in
 * single precision: a rounding here is a rotation there. */
#include "run/rope_tables.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static float base_frequency(double theta, int64_t i, int64_t dim)
{
    float exponent = (float)(2 * i) / (float)dim;
    return 1.0f / powf((float)theta, exponent);
}

static void init_linear(rope_params *rope)
{
    for (int64_t i = 0; i < rope->dim / 2; i++)
        rope->inv_freq[i] /= (float)rope->factor;
}

static void init_llama3(rope_params *rope)
{
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        float f = rope->inv_freq[i], wave = (float)(2 * PI) / f;
        if (wave > (float)(rope->original / rope->low)) {
            rope->inv_freq[i] = f / (float)rope->factor;
        } else if (!(wave < (float)(rope->original / rope->high))) {
            float smooth = ((float)rope->original / wave - (float)rope->low) / (float)(rope->high - rope->low);
            rope->inv_freq[i] = (1 - smooth) * f / (float)rope->factor + smooth * f;
        }
    }
}

/* The frequency index at which r rotations fit into the original context. */
static double yarn_index(const rope_params *rope, double rotations)
{
    return (double)rope->dim * log(rope->original / (rotations * 2 * PI)) / (2 * log(rope->theta));
}

double rope_tables_yarn_scale(double scale, double mscale)
{
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

static void init_yarn(rope_params *rope)
{
    double lo = yarn_index(rope, rope->fast), hi = yarn_index(rope, rope->slow);
    if (rope->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0);
    hi = fmin(hi, (double)rope->dim - 1);
    if (lo == hi)
        hi += 0.001;
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        float ramp = ((float)i - (float)lo) / (float)(hi - lo);
        ramp = fminf(fmaxf(ramp, 0), 1);
        float f = rope->inv_freq[i], inter = 1.0f / ((float)rope->factor * (1.0f / f));
        rope->inv_freq[i] = inter * ramp + f * (1 - ramp);
    }
}

void rope_tables_init(rope_params *rope)
{
    for (int64_t i = 0; i < rope->dim / 2; i++)
        rope->inv_freq[i] = base_frequency(rope->theta, i, rope->dim);
    if (rope->kind == ROPE_LINEAR)
        init_linear(rope);
    if (rope->kind == ROPE_LLAMA3)
        init_llama3(rope);
    if (rope->kind == ROPE_YARN)
        init_yarn(rope);
    if (!rope->scaling_given)
        rope->scaling = rope->kind == ROPE_YARN ? (float)rope_tables_yarn_scale(rope->factor, 1) : 1;
}

void rope_tables_frequencies(const rope_params *rope, int64_t length, float *inv_freq)
{
    int64_t half = rope->dim / 2;
    memcpy(inv_freq, rope->inv_freq, (size_t)half * sizeof *inv_freq);
    if (rope->kind != ROPE_DYNAMIC || length <= rope->max_positions)
        return;
    double ratio = rope->factor * (double)length / (double)rope->max_positions - (rope->factor - 1);
    double theta = rope->theta * pow(ratio, (double)rope->dim / (double)(rope->dim - 2));
    for (int64_t i = 0; i < half; i++)
        inv_freq[i] = base_frequency(theta, i, rope->dim);
}

void rope_tables_row(const rope_params *rope, const float *inv_freq, const float position[ROPE_AXES], float *cosine,
                     float *sine)
{
    int64_t half = rope->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float angle = position[rope->axis[i]] * inv_freq[i];
        cosine[i] = cosine[half + i] = cosf(angle) * rope->scaling;
        sine[i] = sine[half + i] = sinf(angle) * rope->scaling;
    }
}
