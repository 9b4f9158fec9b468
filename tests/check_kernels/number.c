/* Element types done the obvious way, through double arithmetic, so that nothing of it is shared with what is checked;
 * and random contents. */
#include "check_kernels.h"

#include <math.h>
#include <string.h>

const tn_dtype check_dtypes[CHECK_DTYPES] = {TN_F32, TN_BF16, TN_F16};

/* Significant bits and the exponent of the smallest number. */
static int precision(tn_dtype dtype)
{
    return dtype == TN_F32 ? 24 : dtype == TN_BF16 ? 8 : dtype == TN_F16 ? 11 : 53;
}

static int least_exponent(tn_dtype dtype)
{
    return dtype == TN_F32 ? -149 : dtype == TN_BF16 ? -133 : dtype == TN_F16 ? -24 : -1074;
}

double unit_roundoff(tn_dtype dtype)
{
    return dtype <= TN_F64 ? ldexp(1, -precision(dtype)) : 0;
}

double smallest(tn_dtype dtype)
{
    return dtype <= TN_F64 ? ldexp(1, least_exponent(dtype)) : 0;
}

/* value * 2^exponent, as ldexp has it, which takes ten times as long. */
static double scaled(double value, int exponent)
{
    if (exponent < -1022 || exponent > 1023)
        return ldexp(value, exponent);
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return value * power;
}

double round_to(tn_dtype dtype, double value)
{
    if (!isfinite(value) || value == 0 || dtype == TN_F64)
        return value;
    int exponent;
    frexp(value, &exponent);
    int grid = exponent - precision(dtype);
    if (grid < least_exponent(dtype))
        grid = least_exponent(dtype);
    double rounded = scaled(nearbyint(scaled(value, -grid)), grid);
    double limit = dtype == TN_F16 ? 0x1p16 : 0x1p128;
    return fabs(rounded) >= limit ? copysign(INFINITY, value) : rounded;
}

static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double v = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? scaled(1024 + mantissa, exponent - 25)
                              : scaled(mantissa, -24);
    return bits & 0x8000 ? -v : v;
}

static uint16_t f16_bits(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return sign | 0x7e00;
    if (isinf(value))
        return sign | 0x7c00;
    int exponent;
    double fraction = frexp(fabs(value), &exponent); /* 0.5 <= fraction < 1 */
    if (value == 0)
        return sign;
    if (exponent < -13)
        return sign | (uint16_t)scaled(fabs(value), 24);
    return sign | (uint16_t)(((exponent + 14) << 10) + ((int)scaled(fraction, 11) - 1024));
}

double element_get(const tn_tensor *t, int64_t offset)
{
    union {
        float f32;
        double f64;
        uint32_t u32;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
    } u;
    const char *data = t->data;
    switch (t->dtype) {
    case TN_F32:
        return memcpy(&u, data + 4 * offset, 4), u.f32;
    case TN_F64:
        return memcpy(&u, data + 8 * offset, 8), u.f64;
    case TN_BF16:
        memcpy(&u, data + 2 * offset, 2);
        u.u32 = (uint32_t)u.u16 << 16;
        return u.f32;
    case TN_F16:
        return memcpy(&u, data + 2 * offset, 2), f16_value(u.u16);
    case TN_I32:
        return memcpy(&u, data + 4 * offset, 4), u.i32;
    case TN_I64:
        return memcpy(&u, data + 8 * offset, 8), (double)u.i64;
    default:
        return NAN;
    }
}

void element_set(tn_tensor *t, int64_t offset, double value)
{
    char *p = (char *)t->data + offset * (int64_t)tn_dtype_size(t->dtype);
    union {
        float f32;
        double f64;
        uint32_t u32;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
    } u = {.i64 = 0};
    double rounded = t->dtype <= TN_F64 ? round_to(t->dtype, value) : value;
    if (t->dtype == TN_F32) {
        u.f32 = (float)rounded;
    } else if (t->dtype == TN_F64) {
        u.f64 = rounded;
    } else if (t->dtype == TN_BF16) {
        u.f32 = (float)rounded;
        u.u16 = (uint16_t)(u.u32 >> 16);
    } else if (t->dtype == TN_F16) {
        u.u16 = f16_bits(rounded);
    } else if (t->dtype == TN_I32) {
        u.i32 = (int32_t)value;
    } else {
        u.i64 = (int64_t)value;
    }
    memcpy(p, &u, tn_dtype_size(t->dtype));
}

static bool is_dense(const tn_tensor *t)
{
    int64_t want = 1;
    for (int32_t d = t->ndim - 1; d >= 0; want *= t->shape[d--])
        if (t->stride[d] != want)
            return false;
    return true;
}

int64_t element_offset(const tn_tensor *t, int64_t index)
{
    if (is_dense(t))
        return index;
    int64_t offset = 0;
    for (int32_t d = t->ndim - 1; d >= 0 && index > 0; d--) {
        int64_t rest = index / t->shape[d];
        offset += (index - rest * t->shape[d]) * t->stride[d];
        index = rest;
    }
    return offset;
}

/* Box and Muller. */
double random_normal(random_state *r)
{
    double radius = sqrt(-2 * log(random_uniform(r) + 0x1p-35));
    return radius * cos(2 * 3.14159265358979323846 * random_uniform(r));
}

int64_t random_below(random_state *r, int64_t end)
{
    return (int64_t)(random_bits(r) >> 1) % end;
}

/* Making numbers takes longer than timing what is done with them. A period of a prime number of elements keeps rows
 * from being equal. */
void fill_normal(tn_tensor *t, random_state *r, double mean, double deviation)
{
    enum { LARGE = 1 << 20, PERIOD = 65537 };
    int64_t count = tn_tensor_count(t), made = count > LARGE && is_dense(t) ? PERIOD : count;
    for (int64_t i = 0; i < made; i++)
        element_set(t, element_offset(t, i), mean + deviation * random_normal(r));
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t more; made < count; made += more) {
        more = made < count - made ? made : count - made;
        memcpy((char *)t->data + (size_t)made * size, t->data, (size_t)more * size);
    }
}

void fill_specials(tn_tensor *t, random_state *r, int64_t count)
{
    double largest = t->dtype == TN_F16 ? 65504 : 0x1.fep127;
    const double special[] = {INFINITY, -INFINITY, NAN, 0, -0.0, smallest(t->dtype), -3 * smallest(t->dtype), largest};
    int64_t elements = tn_tensor_count(t);
    for (int64_t i = 0; i < count && elements; i++)
        element_set(t, element_offset(t, random_below(r, elements)),
                    special[random_below(r, (int64_t)(sizeof special / sizeof *special))]);
}
