/* Made-up quantised weights: any codes, behind scales that give values of the size asked for. */
#include "check/draw_weight.h"

#include "base/blocks.h"
#include "base/convert.h"
#include "op/op.h"

#include <math.h>
#include <string.h>
#include <tenon/half.h>

/* Where a block has its scale and, if it takes a minimum away or adds one, that; as halves. minimum: about the mean of
 * the values of a block whose halves are 1, in terms of the other half. */
static const struct {
    tn_dtype dtype;
    int scale, other; /* bytes; -1: none                                                           */
    float minimum;
} layouts[] = {
    {TN_Q4_0, 0, -1, 0},    {TN_Q4_1, 0, 2, -7.5f},  {TN_Q5_0, 0, -1, 0},   {TN_Q5_1, 0, 2, -15.5f},
    {TN_Q8_0, 0, -1, 0},    {TN_Q2_K, 80, 82, 1.5f}, {TN_Q3_K, 108, -1, 0}, {TN_Q4_K, 0, 2, 7.5f},
    {TN_Q5_K, 0, 2, 15.5f}, {TN_Q6_K, 208, -1, 0},   {TN_IQ4_NL, 0, -1, 0}, {TN_IQ4_XS, 0, -1, 0},
    {TN_IQ1_S, 0, -1, 0},   {TN_IQ2_XXS, 0, -1, 0},  {TN_IQ2_XS, 0, -1, 0}, {TN_IQ2_S, 0, -1, 0},
    {TN_IQ3_XXS, 0, -1, 0}, {TN_IQ3_S, 0, -1, 0},    {TN_TQ1_0, 52, -1, 0}, {TN_TQ2_0, 64, -1, 0},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, LONGEST = 256 };

static int layout_of(tn_dtype dtype)
{
    int i = 0;
    while (i < LAYOUTS && layouts[i].dtype != dtype)
        i++;
    return i;
}

bool draw_weight_has_scales(tn_dtype dtype)
{
    return dtype == TN_F8_E4M3 || dtype == TN_F8_E5M2 || dtype == TN_I8 || dtype == TN_U4 || dtype == TN_I4 ||
           dtype == TN_E2M1 || dtype == TN_NF4;
}

bool draw_weight_can(tn_dtype dtype)
{
    return draw_weight_has_scales(dtype) || layout_of(dtype) < LAYOUTS || dtype == TN_MXFP4;
}

static float rms_of(tn_dtype dtype, const unsigned char *block)
{
    float x[LONGEST];
    double sum = 0;
    int64_t n = tn_dtype_block_elements(dtype);
    blocks_to_f32(dtype, block, 0, n, x);
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrtf((float)(sum / (double)n));
}

static void set_half(unsigned char *block, int at, float value)
{
    uint16_t half = tn_f32_to_f16(value);
    if (at >= 0)
        memcpy(block + at, &half, sizeof half);
}

/* Random codes are there: gives them scales of either sign. */
static void scale_block(tn_dtype dtype, unsigned char *block, float size, random_state *r)
{
    int i = layout_of(dtype);
    if (dtype == TN_MXFP4) { /* the levels are around 3 */
        block[0] = (unsigned char)(127 + ilogbf(size / 3.0f) + (int)(random_bits(r) % 2));
        return;
    }
    float one = random_bits(r) % 2 ? 1.0f : -1.0f;
    set_half(block, layouts[i].scale, one);
    set_half(block, layouts[i].other, one * layouts[i].minimum);
    float is = rms_of(dtype, block), factor = is > 0 ? one * size / is : 0;
    set_half(block, layouts[i].scale, factor);
    set_half(block, layouts[i].other, factor * layouts[i].minimum);
}

/* Codes of types without blocks, not beyond what numbers are. */
static unsigned char code_of(tn_dtype dtype, random_state *r)
{
    unsigned char code = (unsigned char)random_bits(r);
    return dtype == TN_F8_E4M3 || dtype == TN_F8_E5M2 ? code & 0xbf : code;
}

void draw_weight_codes(const tn_tensor *t, float size, random_state *r)
{
    size_t bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(t)), block = tn_dtype_block_bytes(t->dtype);
    unsigned char *p = t->data;
    for (size_t i = 0; i < bytes; i++)
        p[i] = code_of(t->dtype, r);
    for (size_t i = 0; i < bytes && !draw_weight_has_scales(t->dtype); i += block)
        scale_block(t->dtype, p + i, size, r);
}

/* Groups of 16 to 128 columns, or one. */
static int64_t groups_of(const tn_tensor *weight, int64_t columns)
{
    int64_t size = INT64_C(16) << weight->shape[0] % 5;
    return size > 128 ? 1 : (columns + size - 1) / size;
}

tn_tensor draw_weight_scale(const tn_tensor *weight)
{
    static const tn_dtype types[] = {TN_F32, TN_BF16, TN_F16};
    int64_t rows = weight->shape[0], columns = weight->shape[1];
    tn_dtype dtype = weight->dtype == TN_E2M1 ? TN_F8_E4M3 : types[rows % 3];
    return tn_tensor_dense(NULL, dtype, 2, (int64_t[]){rows, groups_of(weight, columns)});
}

tn_tensor draw_weight_zero(const tn_tensor *weight)
{
    tn_tensor t = draw_weight_scale(weight);
    t.dtype = weight->dtype == TN_U4 ? TN_U8 : weight->dtype;
    return weight->dtype == TN_E2M1 ? tn_tensor_dense(NULL, TN_F32, 1, (int64_t[]){1}) : t;
}

bool draw_weight_has_zeros(tn_dtype dtype)
{
    return dtype == TN_U4 || dtype == TN_I8 || dtype == TN_E2M1;
}

/* About what codes are off zero. */
static float usual_code(tn_dtype dtype)
{
    return dtype == TN_I8 ? 74.0f : dtype == TN_U4 || dtype == TN_I4 ? 5.0f : dtype == TN_E2M1 ? 3.0f : 0.5f;
}

void draw_weight_parts(const tn_tensor *weight, const tn_tensor *scale, const tn_tensor *zero, float size,
                       random_state *r)
{
    float divisor = zero && weight->dtype == TN_E2M1 ? 512.0f : 1.0f; /* scales of E4M3 are small numbers then, too */
    for (int64_t i = 0; i < tn_tensor_count(scale); i++) {
        float value = size / usual_code(weight->dtype) * divisor * (0.75f + 0.5f * (float)random_uniform(r));
        if (scale->dtype == TN_F8_E4M3) /* an exponent of four bits, about right */
            ((unsigned char *)scale->data)[i] = (unsigned char)((7 + ilogbf(value)) << 3 | (random_bits(r) & 7));
        else
            convert_from_f32(&value, scale->dtype, (char *)scale->data + (size_t)i * tn_dtype_size(scale->dtype), 1);
    }
    if (zero && weight->dtype == TN_E2M1)
        *(float *)zero->data = divisor;
    for (int64_t i = 0; zero && weight->dtype != TN_E2M1 && i < tn_tensor_count(zero); i++)
        ((unsigned char *)zero->data)[i] = (unsigned char)(random_bits(r) & 15);
}
