/* The arithmetic of the scan over the vectors of one instruction set: the lanes are columns of a state, which do not
 * depend on each other. */
#ifndef SELECTIVE_SCAN_KERNELS_VEC_H
#define SELECTIVE_SCAN_KERNELS_VEC_H

#include "kernels.h"

/* Rows of a state whose vector of columns stays in registers from token to token: half of the registers there are, of
 * NEON's a quarter. */
enum { ROWS = VEC_LANES == 16 ? 16 : 8 };

/* n <= VEC_LANES floats; whole is a constant: all of them. */
VEC_INLINE vec take(const float *p, bool whole, int64_t n)
{
    return whole ? vec_load((const char *)p, TN_F32) : vec_load_part((const char *)p, TN_F32, n);
}

VEC_INLINE void put(float *p, vec v, bool whole, int64_t n)
{
    if (whole)
        vec_store((char *)p, TN_F32, v);
    else
        vec_store_part((char *)p, TN_F32, v, n);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

VEC_INLINE void load_as(const char *from, tn_dtype dtype, int64_t n, float *to)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        put(to + i, vec_load(from + i * size, dtype), true, 0);
    if (i < n)
        put(to + i, vec_load_part(from + i * size, dtype, n - i), false, n - i);
}

VEC_INLINE void store_as(const float *from, tn_dtype dtype, int64_t n, char *to)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(to + i * size, dtype, take(from + i, true, 0));
    if (i < n)
        vec_store_part(to + i * size, dtype, take(from + i, false, n - i), n - i);
}

static void load(const void *from, tn_dtype dtype, int64_t n, float *to)
{
    if (dtype == TN_F32)
        load_as(from, TN_F32, n, to);
    else if (dtype == TN_BF16)
        load_as(from, TN_BF16, n, to);
    else
        load_as(from, TN_F16, n, to);
}

static void store(const float *from, tn_dtype dtype, int64_t n, void *to)
{
    if (dtype == TN_F32)
        store_as(from, TN_F32, n, to);
    else if (dtype == TN_BF16)
        store_as(from, TN_BF16, n, to);
    else
        store_as(from, TN_F16, n, to);
}

VEC_INLINE void split_some(float *x, float *y, vec step, vec skip, bool whole, int64_t n)
{
    vec v = take(x, whole, n);
    put(y, vec_mul(skip, v), whole, n);
    put(x, vec_mul(step, v), whole, n);
}

static void split(float *x, float *y, float step, float skip, int64_t n)
{
    vec s = vec_set(step), k = vec_set(skip);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        split_some(x + i, y + i, s, k, true, 0);
    if (i < n)
        split_some(x + i, y + i, s, k, false, n - i);
}

/* ---- the recurrence ---------------------------------------------------------------------------------------------- */

/* Some rows of a vector of columns, through all tokens. rows is a constant. Two sums go to y, of every other row: one
 * would make each token wait for as many additions as there are rows. */
VEC_INLINE void tile(const scan_piece *s, int64_t row, int rows, int64_t col, bool whole, int64_t part)
{
    vec m[ROWS];
    const float *b = s->b + row, *c = s->c + row, *x = s->x + col;
    float *y = s->y + col;
    for (int r = 0; r < rows; r++)
        m[r] = take(s->from + (row + r) * s->from_row + col, whole, part);
    for (int64_t t = 0; t < s->tokens; t++, b += s->n, c += s->n, x += s->p, y += s->p) {
        vec keep = vec_set(s->keep[t]), v = take(x, whole, part), even = take(y, whole, part), odd = vec_set(0.0f);
        for (int r = 0; r < rows; r++) {
            m[r] = vec_fma(keep, m[r], vec_mul(vec_set(b[r]), v));
            if (r % 2)
                odd = vec_fma(vec_set(c[r]), m[r], odd);
            else
                even = vec_fma(vec_set(c[r]), m[r], even);
        }
        put(y, vec_add(even, odd), whole, part);
    }
    for (int r = 0; r < rows; r++)
        put(s->to + (row + r) * s->to_row + col, m[r], whole, part);
}

/* Along rows of the state as they lie in memory. */
VEC_INLINE void tiles(const scan_piece *s, int64_t row, int rows)
{
    int64_t col = 0;
    for (; col + VEC_LANES <= s->p; col += VEC_LANES)
        tile(s, row, rows, col, true, 0);
    if (col < s->p)
        tile(s, row, rows, col, false, s->p - col);
}

static void scan(const scan_piece *s)
{
    int64_t row = 0;
    for (; row + ROWS <= s->n; row += ROWS)
        tiles(s, row, ROWS);
    for (; row + 4 <= s->n; row += 4)
        tiles(s, row, 4);
    for (; row < s->n; row++)
        tiles(s, row, 1);
}

VEC_INLINE void set_table(scan_kernels *kernels)
{
    *kernels = (scan_kernels){.load = load, .store = store, .split = split, .scan = scan};
}

#endif
