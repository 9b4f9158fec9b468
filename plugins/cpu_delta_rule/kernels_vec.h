/* The arithmetic of the delta rule over the vectors of one instruction set: the lanes are columns of what a product
 * gives, so that a column's result does not depend on which others are computed with it. */
#ifndef DELTA_RULE_KERNELS_VEC_H
#define DELTA_RULE_KERNELS_VEC_H

#include "kernels.h"

#include <string.h>

/* A tile of a product is ROWS x 2 vectors of sums: as many registers as there are, less those of its operands. So are
 * as many rows of a state with an element of the key and of the query each. */
enum { ROWS = VEC_LANES == 8 ? 4 : 8, WIDTH = 2 * VEC_LANES };
_Static_assert(2 * VEC_LANES <= DELTA_PANEL, "a panel holds two vectors of each k");

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
        vec_store((char *)(to + i), TN_F32, vec_load(from + i * size, dtype));
    if (i < n)
        vec_store_part((char *)(to + i), TN_F32, vec_load_part(from + i * size, dtype, n - i), n - i);
}

VEC_INLINE void store_as(const float *from, tn_dtype dtype, int64_t n, char *to)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(to + i * size, dtype, vec_load((const char *)(from + i), TN_F32));
    if (i < n)
        vec_store_part(to + i * size, dtype, vec_load_part((const char *)(from + i), TN_F32, n - i), n - i);
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

static float dot(const float *x, const float *y, int64_t n)
{
    vec sum = vec_set(0.0f), more = vec_set(0.0f);
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        sum = vec_fma(take(x + i, true, 0), take(y + i, true, 0), sum);
        more = vec_fma(take(x + i + VEC_LANES, true, 0), take(y + i + VEC_LANES, true, 0), more);
    }
    if (i + VEC_LANES <= n) {
        sum = vec_fma(take(x + i, true, 0), take(y + i, true, 0), sum);
        i += VEC_LANES;
    }
    if (i < n)
        more = vec_fma(take(x + i, false, n - i), take(y + i, false, n - i), more);
    return vec_sum(vec_add(sum, more));
}

static void scale(float *x, float factor, int64_t n)
{
    vec f = vec_set(factor);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        put(x + i, vec_mul(f, take(x + i, true, 0)), true, 0);
    if (i < n)
        put(x + i, vec_mul(f, take(x + i, false, n - i)), false, n - i);
}

static void add_scaled(float *y, const float *x, float factor, int64_t n)
{
    vec f = vec_set(factor);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        put(y + i, vec_fma(f, take(x + i, true, 0), take(y + i, true, 0)), true, 0);
    if (i < n)
        put(y + i, vec_fma(f, take(x + i, false, n - i), take(y + i, false, n - i)), false, n - i);
}

VEC_INLINE void decays_some(float high, float low, float sign, const float *highs, const float *lows, float *e,
                            bool whole, int64_t n)
{
    vec far = vec_sub(vec_set(high), take(highs, whole, n)), near = vec_sub(vec_set(low), take(lows, whole, n));
    vec x = vec_mul(vec_set(sign), vec_add(far, near));
    put(e, vec_where_greater(vec_set(DELTA_FORGOTTEN), x, vec_set(0.0f), vec_exp(x)), whole, n);
}

static void decays(float high, float low, float sign, const float *highs, const float *lows, int64_t n, float *e)
{
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        decays_some(high, low, sign, highs + i, lows + i, e + i, true, 0);
    if (i < n)
        decays_some(high, low, sign, highs + i, lows + i, e + i, false, n - i);
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* Lines of the state that comes next, while this one is worked on: row of it, and as many bytes as a row of this. */
VEC_INLINE void look_ahead(const delta_token *t, int64_t row)
{
    const char *next = (const char *)(t->ahead + row * t->from_row);
    for (int64_t at = 0; t->ahead && at < t->dv * 4; at += 64)
        __builtin_prefetch(next + at, 0, 2);
}

/* seen += M^T k, o += M^T q for some rows of M from m on. */
VEC_INLINE void see(const float *m, int64_t m_row, const vec *k, const vec *q, int rows, float *seen, float *o,
                    bool whole, int64_t n)
{
    vec s = take(seen, whole, n), p = take(o, whole, n);
    for (int r = 0; r < rows; r++) {
        vec v = take(m + r * m_row, whole, n);
        s = vec_fma(k[r], v, s);
        p = vec_fma(q[r], v, p);
    }
    put(seen, s, whole, n);
    put(o, p, whole, n);
}

/* rows is a constant. */
VEC_INLINE void see_rows(const delta_token *t, int64_t row, int rows)
{
    const float *m = t->from + row * t->from_row;
    float *seen = t->seen, *o = t->o;
    int64_t m_row = t->from_row, dv = t->dv, c = 0;
    vec k[ROWS], q[ROWS];
    for (int r = 0; r < rows; r++) {
        k[r] = vec_set(t->k[row + r]);
        q[r] = vec_set(t->q[row + r]);
    }
    for (; c + VEC_LANES <= dv; c += VEC_LANES)
        see(m + c, m_row, k, q, rows, seen + c, o + c, true, 0);
    if (c < dv)
        see(m + c, m_row, k, q, rows, seen + c, o + c, false, dv - c);
}

/* d in the place of v; o = decay M^T q + (k q) d. */
VEC_INLINE void correct(const delta_token *t, float kq, int64_t c, bool whole, int64_t n)
{
    vec decay = vec_set(t->decay);
    vec d = vec_mul(vec_set(t->beta), vec_fnma(decay, take(t->seen + c, whole, n), take(t->v + c, whole, n)));
    put(t->v + c, d, whole, n);
    put(t->o + c, vec_fma(vec_set(kq), d, vec_mul(decay, take(t->o + c, whole, n))), whole, n);
}

/* M = decay M + k d^T in some rows. */
VEC_INLINE void write(const float *m, int64_t m_row, vec decay, const vec *k, int rows, const float *d, float *to,
                      int64_t to_row, bool whole, int64_t n)
{
    vec v = take(d, whole, n);
    for (int r = 0; r < rows; r++)
        put(to + r * to_row, vec_fma(k[r], v, vec_mul(decay, take(m + r * m_row, whole, n))), whole, n);
}

VEC_INLINE void write_rows(const delta_token *t, int64_t row, int rows)
{
    const float *m = t->from + row * t->from_row, *d = t->v;
    float *to = t->to + row * t->to_row;
    int64_t m_row = t->from_row, to_row = t->to_row, dv = t->dv, c = 0;
    vec k[ROWS], decay = vec_set(t->decay);
    for (int r = 0; r < rows; r++)
        k[r] = vec_set(t->k[row + r]);
    for (; c + VEC_LANES <= dv; c += VEC_LANES)
        write(m + c, m_row, decay, k, rows, d + c, to + c, to_row, true, 0);
    if (c < dv)
        write(m + c, m_row, decay, k, rows, d + c, to + c, to_row, false, dv - c);
}

/* The state comes from memory once: what is written was read a moment ago. Half of the next one is asked for by each of
 * the two passes. */
static void token(const delta_token *t)
{
    int64_t row = 0, c = 0, half = (t->dk + 1) / 2;
    memset(t->seen, 0, (size_t)t->dv * sizeof(float));
    memset(t->o, 0, (size_t)t->dv * sizeof(float));
    for (; row + ROWS <= t->dk; row += ROWS) {
        for (int64_t r = row / 2; r < (row + ROWS) / 2; r++)
            look_ahead(t, r);
        see_rows(t, row, ROWS);
    }
    for (; row < t->dk; row++)
        see_rows(t, row, 1);
    float kq = dot(t->k, t->q, t->dk);
    for (; c + VEC_LANES <= t->dv; c += VEC_LANES)
        correct(t, kq, c, true, 0);
    if (c < t->dv)
        correct(t, kq, c, false, t->dv - c);
    for (row = 0; row + ROWS <= t->dk; row += ROWS) {
        for (int64_t r = row / 2; r < (row + ROWS) / 2; r++)
            look_ahead(t, half + r);
        write_rows(t, row, ROWS);
    }
    for (; row < t->dk; row++)
        write_rows(t, row, 1);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Columns col .. col + n - 1 of b, and zeros beside them: what a tile reads lies close together. */
VEC_INLINE void pack_panel(const delta_product *p, int64_t col, int64_t n, float *panel)
{
    const float *b = p->b + col * p->b_col;
    if (n < WIDTH)
        memset(panel, 0, (size_t)(p->k * WIDTH) * sizeof(float));
    if (p->b_col == 1 && n == WIDTH) {
        for (int64_t k = 0; k < p->k; k++) {
            put(panel + k * WIDTH, take(b + k * p->b_k, true, 0), true, 0);
            put(panel + k * WIDTH + VEC_LANES, take(b + k * p->b_k + VEC_LANES, true, 0), true, 0);
        }
        return;
    }
    for (int64_t c = 0; c < n; c++)
        for (int64_t k = 0; k < p->k; k++)
            panel[k * WIDTH + c] = b[k * p->b_k + c * p->b_col];
}

VEC_INLINE void finish(const delta_product *p, int64_t row, int64_t col, vec sum, bool whole, int64_t n)
{
    if (p->scale != 0)
        sum = vec_fma(vec_set(p->scale), take(p->from + row * p->from_row + col, whole, n), sum);
    put(p->c + row * p->c_row + col, sum, whole, n);
}

VEC_INLINE void finish_row(const delta_product *p, int64_t row, int64_t col, int64_t n, vec first, vec second)
{
    if (n >= WIDTH) {
        finish(p, row, col, first, true, 0);
        finish(p, row, col + VEC_LANES, second, true, 0);
    } else if (n >= VEC_LANES) {
        finish(p, row, col, first, true, 0);
        if (n > VEC_LANES)
            finish(p, row, col + VEC_LANES, second, false, n - VEC_LANES);
    } else {
        finish(p, row, col, first, false, n);
    }
}

/* rows is a constant. */
VEC_INLINE void tile(const delta_product *p, const float *panel, int64_t row, int rows, int64_t col, int64_t n)
{
    vec first[ROWS], second[ROWS];
    int64_t begin = p->form == DELTA_UPPER ? row : 0, end = p->k;
    if (p->form == DELTA_LOWER && row + rows < end)
        end = row + rows;
    for (int r = 0; r < rows; r++)
        first[r] = second[r] = vec_set(0.0f);
    const float *a = p->a + row * p->a_row;
    for (int64_t k = begin; k < end; k++) {
        vec b = take(panel + k * WIDTH, true, 0), more = take(panel + k * WIDTH + VEC_LANES, true, 0);
        for (int r = 0; r < rows; r++) {
            vec factor = vec_set(a[r * p->a_row + k * p->a_k]);
            first[r] = vec_fma(factor, b, first[r]);
            second[r] = vec_fma(factor, more, second[r]);
        }
    }
    for (int r = 0; r < rows; r++)
        finish_row(p, row + r, col, n, first[r], second[r]);
}

static void product(const delta_product *p, float *panel)
{
    for (int64_t col = 0; col < p->n; col += WIDTH) {
        int64_t n = p->n - col < WIDTH ? p->n - col : WIDTH, row = 0;
        pack_panel(p, col, n, panel);
        for (; row + ROWS <= p->m; row += ROWS)
            tile(p, panel, row, ROWS, col, n);
        for (; row + ROWS / 2 <= p->m; row += ROWS / 2)
            tile(p, panel, row, ROWS / 2, col, n);
        for (; row < p->m; row++)
            tile(p, panel, row, 1, col, n);
    }
}

/* ---- triangular systems ------------------------------------------------------------------------------------------ */

/* n is a constant, or whole is not: a column of all rows stays in registers. */
VEC_INLINE void solve_column(const float *l, int64_t l_row, int64_t n, float *x, int64_t x_row, bool whole,
                             int64_t part)
{
    vec v[DELTA_SOLVE];
    for (int64_t i = 0; i < n; i++)
        v[i] = take(x + i * x_row, whole, part);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = j + 1; i < n; i++)
            v[i] = vec_fma(vec_set(l[i * l_row + j]), v[j], v[i]);
    for (int64_t i = 0; i < n; i++)
        put(x + i * x_row, v[i], whole, part);
}

static void solve(const float *l, int64_t l_row, int64_t n, float *x, int64_t x_row, int64_t width)
{
    int64_t c = 0;
    for (; n == DELTA_SOLVE && c + VEC_LANES <= width; c += VEC_LANES)
        solve_column(l, l_row, DELTA_SOLVE, x + c, x_row, true, 0);
    for (; c + VEC_LANES <= width; c += VEC_LANES)
        solve_column(l, l_row, n, x + c, x_row, true, 0);
    if (c < width)
        solve_column(l, l_row, n, x + c, x_row, false, width - c);
}

VEC_INLINE void set_table(delta_kernels *kernels)
{
    *kernels = (delta_kernels){.load = load,
                               .store = store,
                               .dot = dot,
                               .scale = scale,
                               .add_scaled = add_scaled,
                               .decays = decays,
                               .token = token,
                               .product = product,
                               .solve = solve};
}

#endif
