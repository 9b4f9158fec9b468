/* RMS norm in vectors, written once: included by one file per instruction set after the vec_<isa>.h of that file. */
#ifndef TENON_RMSNORM_VEC_H
#define TENON_RMSNORM_VEC_H

#include <math.h>

#include "rmsnorm.h"

/* Partial sums of squares: as in rmsnorm.c, which explains the order. */
enum { PARTS = 64, VECS = PARTS / VEC_LANES };

/* One vector of a row, n <= VEC_LANES elements at index i. */
VEC_INLINE vec take(const char *row, int64_t i, int64_t n, tn_dtype dtype)
{
    const char *p = row + i * (dtype == TN_F32 ? 4 : 2);
    return n == VEC_LANES ? vec_load(p, dtype) : vec_load_part(p, dtype, n);
}

VEC_INLINE void put(char *row, int64_t i, int64_t n, tn_dtype dtype, vec v)
{
    char *p = row + i * (dtype == TN_F32 ? 4 : 2);
    if (n == VEC_LANES)
        vec_store(p, dtype, v);
    else
        vec_store_part(p, dtype, v, n);
}

/* x, or with r: x + r, which also goes to sum. */
VEC_INLINE vec first_pass(const char *x, const char *r, char *sum, int64_t i, int64_t n, tn_dtype dtype)
{
    vec v = take(x, i, n, dtype);
    if (r) {
        v = vec_round(vec_add(v, take(r, i, n, dtype)), dtype);
        put(sum, i, n, dtype, v);
    }
    return v;
}

/* The vectors of a whole round of PARTS are independent sums, which hides the latency of the additions. */
VEC_INLINE float sum_squares(const char *x, const char *r, char *sum, int64_t width, tn_dtype dtype)
{
    vec part[VECS];
    int64_t i = 0;
    for (int k = 0; k < VECS; k++)
        part[k] = vec_set(0.0f);
    for (; i + PARTS <= width; i += PARTS)
        for (int k = 0; k < VECS; k++) {
            vec v = first_pass(x, r, sum, i + k * VEC_LANES, VEC_LANES, dtype);
            part[k] = vec_add(part[k], vec_mul(v, v));
        }
    for (int k = 0; k < VECS; k++) {
        int64_t n = width - i < VEC_LANES ? width - i : VEC_LANES;
        if (n > 0) {
            vec v = first_pass(x, r, sum, i, n, dtype);
            part[k] = vec_add(part[k], vec_mul(v, v));
            i += n;
        }
    }
    for (int half = VECS / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            part[k] = vec_add(part[k], part[k + half]);
    return vec_sum(part[0]);
}

VEC_INLINE vec silu(vec v)
{
    return vec_div(v, vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_set(0.0f), v))));
}

VEC_INLINE void second_pass(const rmsnorm_rows *a, const char *x, const char *gate, char *y, vec scale, int64_t i,
                            int64_t n, tn_dtype dtype, tn_norm norm)
{
    vec v = vec_mul(take(x, i, n, dtype), scale);
    vec w = norm == TN_NORM_NO_WEIGHT ? v : take(a->weight, i, n, dtype);
    if (norm == TN_NORM_W)
        v = vec_mul(vec_round(v, dtype), w);
    else if (norm == TN_NORM_1_PLUS_W)
        v = vec_mul(v, vec_add(vec_set(1.0f), w));
    else if (norm == TN_NORM_W_F32)
        v = vec_mul(v, w);
    else if (norm == TN_NORM_W_GATED)
        v = vec_mul(vec_round(vec_mul(vec_round(v, dtype), w), dtype), silu(take(gate, i, n, dtype)));
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
        vec scale = vec_set(1.0f / sqrtf(mean + a->eps));
        const char *from = add ? sum : x;
        int64_t i = 0;
        for (; i + VEC_LANES <= a->width; i += VEC_LANES)
            second_pass(a, from, gate, y, scale, i, VEC_LANES, dtype, norm);
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
