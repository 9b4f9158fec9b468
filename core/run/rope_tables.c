/* Inverse frequencies of each rope_type and the tables made of them. Single precision where transformers computes in
 * single precision: a rounding here is a rotation there. */
#include "run/rope_tables.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* The wave length of frequency i, but for 2 pi. */
static float base_wave(double theta, int64_t i, int64_t dim)
{
    float exponent = (float)(2 * i) / (float)dim;
    return powf((float)theta, exponent);
}

static float base_frequency(double theta, int64_t i, int64_t dim)
{
    return 1.0f / base_wave(theta, i, dim);
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
        float f = rope->inv_freq[i], inter = 1.0f / ((float)rope->factor * base_wave(rope->theta, i, rope->dim));
        rope->inv_freq[i] = inter * ramp + f * (1 - ramp);
    }
}

static void init_long(rope_params *rope)
{
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        float wave = base_wave(rope->theta, i, rope->dim);
        rope->inv_freq[i] = 1.0f / (rope->inv_freq[i] * wave);
        rope->long_freq[i] = 1.0f / (rope->long_freq[i] * wave);
    }
}

/* Angles beyond the share that rotates stand still. */
static void init_proportional(rope_params *rope)
{
    int64_t angles = (int64_t)floor(rope->partial * (double)rope->dim / 2);
    for (int64_t i = 0; i < rope->dim / 2; i++)
        rope->inv_freq[i] = i < angles ? rope->inv_freq[i] / (float)rope->factor : 0;
}

static double default_scaling(const rope_params *rope)
{
    if (rope->kind == ROPE_YARN)
        return rope_tables_yarn_scale(rope->factor, 1);
    if (rope->kind == ROPE_LONG && rope->factor > 1)
        return sqrt(1 + log(rope->factor) / log(rope->original));
    return 1;
}

void rope_tables_init(rope_params *rope)
{
    static void (*const init[])(rope_params *) = {[ROPE_LINEAR] = init_linear,
                                                  [ROPE_LLAMA3] = init_llama3,
                                                  [ROPE_YARN] = init_yarn,
                                                  [ROPE_LONG] = init_long,
                                                  [ROPE_PROPORTIONAL] = init_proportional};
    for (int64_t i = 0; i < rope->dim / 2 && rope->kind != ROPE_LONG; i++)
        rope->inv_freq[i] = base_frequency(rope->theta, i, rope->dim);
    if (init[rope->kind])
        init[rope->kind](rope);
    if (!rope->scaling_given)
        rope->scaling = (float)default_scaling(rope);
}

bool rope_tables_follow(const rope_params *rope)
{
    return rope->kind == ROPE_DYNAMIC || rope->kind == ROPE_LONG;
}

int64_t rope_tables_length(const rope_params *rope, int64_t before, int64_t length)
{
    bool keeps = rope->kind == ROPE_DYNAMIC && length <= before && length >= rope->max_positions;
    return keeps ? before : length;
}

bool rope_tables_moved(const rope_params *rope, int64_t length)
{
    return (rope->kind == ROPE_DYNAMIC && length > rope->max_positions) ||
           (rope->kind == ROPE_LONG && (double)length > rope->original);
}

static void dynamic_frequencies(const rope_params *rope, int64_t length, float *inv_freq)
{
    double ratio = rope->factor * (double)length / (double)rope->max_positions - (rope->factor - 1);
    double theta = rope->theta * pow(ratio, (double)rope->dim / (double)(rope->dim - 2));
    for (int64_t i = 0; i < rope->dim / 2; i++)
        inv_freq[i] = base_frequency(theta, i, rope->dim);
}

void rope_tables_frequencies(const rope_params *rope, int64_t length, float *inv_freq)
{
    bool is_long = rope->kind == ROPE_LONG && (double)length > rope->original;
    if (rope->kind == ROPE_DYNAMIC && length > rope->max_positions)
        dynamic_frequencies(rope, length, inv_freq);
    else
        memcpy(inv_freq, is_long ? rope->long_freq : rope->inv_freq, (size_t)(rope->dim / 2) * sizeof *inv_freq);
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
