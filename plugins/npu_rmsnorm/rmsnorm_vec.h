/* RMS norm in vectors, written once: included by one file per instruction set after the vec_<isa>.h of that file. */
#ifndef TENON_RMSNORM_VEC_H
#define TENON_RMSNORM_VEC_H

#include "rmsnorm.h"

/* Partial sums of squares: as in rmsnorm.c, which explains the order. */
enum { PARTS = 64, PACKS = PARTS / PACK };

/* n <= PACK elements of a row from index i on. */
VEC_INLINE pack take(const char *row, int64_t i, int64_t n, tn_dtype dtype)
{
    const char *p = row + i * (dtype == TN_F32 ? 4 : 2);
    return n == PACK ? pack_load(p, dtype) : pack_load_part(p, dtype, n);
}

VEC_INLINE void put(char *row, int64_t i, int64_t n, tn_dtype dtype, pack x)
{
    char *p = row + i * (dtype == TN_F32 ? 4 : 2);
    if (n == PACK)
        pack_store(p, dtype, x);
    else
        pack_store_part(p, dtype, x, n);
}

VEC_INLINE pack pack_add(pack x, pack y)
{
    return (pack){vec_add(x.a, y.a), vec_add(x.b, y.b)};
}

VEC_INLINE pack pack_mul(pack x, pack y)
{
    return (pack){vec_mul(x.a, y.a), vec_mul(x.b, y.b)};
}

VEC_INLINE pack pack_round(pack x, tn_dtype dtype)
{
    return (pack){vec_round(x.a, dtype), vec_round(x.b, dtype)};
}

VEC_INLINE pack pack_set(float value)
{
    return (pack){vec_set(value), vec_set(value)};
}

/* part plus the squares of x or, with r, of x + r, which also goes to sum. */
VEC_INLINE pack first_pass(pack part, const char *x, const char *r, char *sum, int64_t i, int64_t n, tn_dtype dtype)
{
    pack v = take(x, i, n, dtype);
    if (r) {
        v = pack_round(pack_add(v, take(r, i, n, dtype)), dtype);
        put(sum, i, n, dtype, v);
    }
    return pack_add(part, pack_mul(v, v));
}

/* The packs of a round of PARTS are independent sums, which hides the latency of the additions. */
VEC_INLINE float sum_squares(const char *x, const char *r, char *sum, int64_t width, tn_dtype dtype)
{
    pack part[PACKS];
    int64_t i = 0;
    for (int k = 0; k < PACKS; k++)
        part[k] = pack_set(0.0f);
    for (; i + PARTS <= width; i += PARTS)
        for (int k = 0; k < PACKS; k++)
            part[k] = first_pass(part[k], x, r, sum, i + k * PACK, PACK, dtype);
    for (int k = 0; k < PACKS && i < width; k++, i += PACK)
        part[k] = first_pass(part[k], x, r, sum, i, width - i < PACK ? width - i : PACK, dtype);
    for (int half = PACKS / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            part[k] = pack_add(part[k], part[k + half]);
    return pack_sum(part[0], dtype);
}

VEC_INLINE vec silu(vec v)
{
    return vec_div(v, vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_set(0.0f), v))));
}

VEC_INLINE void second_pass(const rmsnorm_rows *a, const char *x, const char *gate, char *y, pack scale, int64_t i,
                            int64_t n, tn_dtype dtype, tn_norm norm)
{
    pack v = pack_mul(take(x, i, n, dtype), scale);
    pack w = norm == TN_NORM_NO_WEIGHT ? v : take(a->weight, i, n, dtype);
    if (norm == TN_NORM_W)
        v = pack_mul(pack_round(v, dtype), w);
    else if (norm == TN_NORM_1_PLUS_W)
        v = pack_mul(v, pack_add(pack_set(1.0f), w));
    else if (norm == TN_NORM_W_F32)
        v = pack_mul(v, w);
    else if (norm == TN_NORM_W_GATED) {
        pack g = take(gate, i, n, dtype);
        g = (pack){silu(g.a), silu(g.b)};
        v = pack_mul(pack_round(pack_mul(pack_round(v, dtype), w), dtype), g);
    }
    put(y, i, n, dtype, v);
}

/* dtype, norm and add are constants of the caller. */
VEC_INLINE void rows_of_norm(const rmsnorm_rows *a, tn_dtype dtype, tn_norm norm, bool add)
{
    for (int64_t row = 0; row < a->count; row++) {
        const char *x = a->x + row * a->x_step;
        const char *r = add ? a->r + row * a->r_step : NULL;
        const char *gate = norm == TN_NORM_W_GATED ? a->gate + row * a->gate_step : NULL;
        char *sum = add ? a->sum + row * a->sum_step : NULL, *y = a->y + row * a->y_step;
        float mean = sum_squares(x, r, sum, a->width, dtype) / (float)a->width;
        pack scale = pack_set(vec_inverse_sqrt(mean + a->eps));
        const char *from = add ? sum : x;
        int64_t i = 0;
        for (; i + PACK <= a->width; i += PACK)
            second_pass(a, from, gate, y, scale, i, PACK, dtype, norm);
        if (i < a->width)
            second_pass(a, from, gate, y, scale, i, a->width - i, dtype, norm);
    }
}

VEC_INLINE void norm_rows(const rmsnorm_rows *a, tn_dtype dtype)
{
    switch (a->norm) {
    case TN_NORM_W:
        rows_of_norm(a, dtype, TN_NORM_W, false);
        break;
    case TN_NORM_1_PLUS_W:
        rows_of_norm(a, dtype, TN_NORM_1_PLUS_W, false);
        break;
    case TN_NORM_W_F32:
        rows_of_norm(a, dtype, TN_NORM_W_F32, false);
        break;
    case TN_NORM_W_GATED:
        rows_of_norm(a, dtype, TN_NORM_W_GATED, false);
        break;
    case TN_NORM_NO_WEIGHT:
        rows_of_norm(a, dtype, TN_NORM_NO_WEIGHT, false);
        break;
    }
}

/* There is no gated form of this operation. */
VEC_INLINE void add_norm_rows(const rmsnorm_rows *a, tn_dtype dtype)
{
    switch (a->norm) {
    case TN_NORM_W:
        rows_of_norm(a, dtype, TN_NORM_W, true);
        break;
    case TN_NORM_1_PLUS_W:
        rows_of_norm(a, dtype, TN_NORM_1_PLUS_W, true);
        break;
    case TN_NORM_W_F32:
        rows_of_norm(a, dtype, TN_NORM_W_F32, true);
        break;
    default:
        rows_of_norm(a, dtype, TN_NORM_NO_WEIGHT, true);
        break;
    }
}

#endif
