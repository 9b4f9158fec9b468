/* RMS norm in vectors, written once: included by one file per instruction set after the vec_<isa>.h of that file. The
 * formulas are those of rmsnorm.c. */
#ifndef TENON_RMSNORM_VEC_H
#define TENON_RMSNORM_VEC_H

#include "rmsnorm.h"

/* Partial sums: as in rmsnorm.c, which explains the order. The packs of a round of PARTS are independent sums, which
 * hides the latency of the additions. */
enum { PARTS = 64, PACKS = PARTS / PACK };

typedef struct parts {
    pack part[PACKS];
} parts;

/* What is constant in a loop over a row: each combination that occurs is a loop of its own. Which of them a row needs
 * is decided once per row. */
typedef struct norm_kind {
    tn_dtype dtype;
    tn_norm norm;
    bool add;
} norm_kind;

/* One row: its tensors, and what all rows share. Given by value, so that no store through a pointer can change it. */
typedef struct norm_row {
    char *at[NORM_TENSORS];
    const char *normalised; /* x or, forward, the sum that the first pass has written                  */
    const char *weight;
    float *dw;
    int64_t width;
    float plus; /* what the kind TN_NORM_1_PLUS_W adds to weights: 1 or, which changes none, -0            */
} norm_row;

/* What the first pass over a row leaves for the second. */
typedef struct norm_factors {
    float scale, mean; /* mean: backward                                                        */
} norm_factors;

VEC_INLINE norm_row row_of(const rmsnorm_rows *a, int64_t row)
{
    norm_row r = {.weight = a->weight, .dw = a->dw, .width = a->width};
    r.plus = a->norm == TN_NORM_1_PLUS_W ? 1.0f : -0.0f;
    for (int t = 0; t < NORM_TENSORS; t++)
        r.at[t] = a->row[t] ? a->row[t] + row * a->step[t] : NULL;
    r.normalised = r.at[NORM_SUM] ? r.at[NORM_SUM] : r.at[NORM_X];
    return r;
}

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

VEC_INLINE pack pack_set(float value)
{
    return (pack){vec_set(value), vec_set(value)};
}

VEC_INLINE pack pack_add(pack x, pack y)
{
    return (pack){vec_add(x.a, y.a), vec_add(x.b, y.b)};
}

VEC_INLINE pack pack_mul(pack x, pack y)
{
    return (pack){vec_mul(x.a, y.a), vec_mul(x.b, y.b)};
}

VEC_INLINE pack pack_fma(pack x, pack y, pack z)
{
    return (pack){vec_fma(x.a, y.a, z.a), vec_fma(x.b, y.b, z.b)};
}

VEC_INLINE pack pack_round(pack x, tn_dtype dtype)
{
    return (pack){vec_round(x.a, dtype), vec_round(x.b, dtype)};
}

VEC_INLINE parts parts_zero(void)
{
    parts p;
    for (int k = 0; k < PACKS; k++)
        p.part[k] = pack_set(0.0f);
    return p;
}

VEC_INLINE float parts_sum(parts *p, tn_dtype dtype)
{
    for (int half = PACKS / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            p->part[k] = pack_add(p->part[k], p->part[k + half]);
    return pack_sum(p->part[0], dtype);
}

VEC_INLINE vec silu(vec v)
{
    return vec_div(v, vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_set(0.0f), v))));
}

VEC_INLINE vec silu_slope(vec v)
{
    vec one = vec_set(1.0f), s = vec_div(one, vec_add(one, vec_exp(vec_sub(vec_set(0.0f), v))));
    return vec_mul(s, vec_fma(v, vec_sub(one, s), one));
}

/* x w, with the w of this variant. */
VEC_INLINE pack times_weight(norm_row r, pack x, int64_t i, int64_t n, norm_kind kind)
{
    if (kind.norm == TN_NORM_NO_WEIGHT)
        return x;
    pack w = take(r.weight, i, n, kind.dtype);
    return pack_mul(x, kind.norm == TN_NORM_1_PLUS_W ? pack_add(pack_set(r.plus), w) : w);
}

VEC_INLINE pack times_gate(norm_row r, pack x, int64_t i, int64_t n, norm_kind kind)
{
    if (kind.norm != TN_NORM_W_GATED)
        return x;
    pack z = take(r.at[NORM_GATE], i, n, kind.dtype);
    return pack_mul(x, (pack){silu(z.a), silu(z.b)});
}

/* x, or rnd(x + r): what is normalised. */
VEC_INLINE pack value(norm_row r, int64_t i, int64_t n, norm_kind kind)
{
    pack v = take(r.at[NORM_X], i, n, kind.dtype);
    return kind.add ? pack_round(pack_add(v, take(r.at[NORM_R], i, n, kind.dtype)), kind.dtype) : v;
}

/* sum + v^2. The squares of narrow numbers are exact in f32: there one instruction gives the same bits as two. */
VEC_INLINE pack add_square(pack sum, pack v, tn_dtype dtype)
{
    return dtype == TN_F32 ? pack_add(sum, pack_mul(v, v)) : pack_fma(v, v, sum);
}

/* Sums of squares and, backward, of products. */
typedef struct norm_sums {
    parts squares, products;
} norm_sums;

/* ---- forward ------------------------------------------------------------------------------------ */

VEC_INLINE pack forward_first(norm_row r, pack sum, int64_t i, int64_t n, norm_kind kind)
{
    pack v = value(r, i, n, kind);
    if (kind.add)
        put(r.at[NORM_SUM], i, n, kind.dtype, v);
    return add_square(sum, v, kind.dtype);
}

VEC_INLINE void forward_second(norm_row r, pack scale, int64_t i, int64_t n, norm_kind kind)
{
    pack v = pack_mul(take(r.normalised, i, n, kind.dtype), scale);
    put(r.at[NORM_Y], i, n, kind.dtype, times_gate(r, times_weight(r, v, i, n, kind), i, n, kind));
}

/* ---- backward ----------------------------------------------------------------------------------- */

/* Adds to the sums of squares and of h v. */
VEC_INLINE void backward_first(norm_row r, pack *square, pack *product, int64_t i, int64_t n, norm_kind kind)
{
    pack v = value(r, i, n, kind);
    pack h = times_gate(r, times_weight(r, take(r.at[NORM_DY], i, n, kind.dtype), i, n, kind), i, n, kind);
    *square = add_square(*square, v, kind.dtype);
    *product = pack_fma(h, v, *product);
}

VEC_INLINE void backward_second(norm_row r, pack scale, pack mean, int64_t i, int64_t n, norm_kind kind)
{
    pack x = pack_mul(value(r, i, n, kind), scale), dy = take(r.at[NORM_DY], i, n, kind.dtype);
    pack active = times_gate(r, dy, i, n, kind);
    pack h = times_weight(r, active, i, n, kind);
    pack d = pack_mul((pack){vec_fnma(x.a, mean.a, h.a), vec_fnma(x.b, mean.b, h.b)}, scale);
    if (kind.add && r.at[NORM_DSUM])
        d = pack_add(d, take(r.at[NORM_DSUM], i, n, kind.dtype));
    if (r.dw) {
        char *dw = (char *)(r.dw + i);
        pack_store(dw, TN_F32, pack_fma(active, x, pack_load(dw, TN_F32)));
    }
    if (kind.norm == TN_NORM_W_GATED && r.at[NORM_DGATE]) {
        pack z = take(r.at[NORM_GATE], i, n, kind.dtype);
        pack slope = pack_mul(pack_mul(dy, x), (pack){silu_slope(z.a), silu_slope(z.b)});
        put(r.at[NORM_DGATE], i, n, kind.dtype, times_weight(r, slope, i, n, kind));
    }
    if (r.at[NORM_DX])
        put(r.at[NORM_DX], i, n, kind.dtype, d);
    if (kind.add && r.at[NORM_DR])
        put(r.at[NORM_DR], i, n, kind.dtype, d);
}

/* ---- one row ------------------------------------------------------------------------------------ */

VEC_INLINE void first_pack(norm_row r, pack *square, pack *product, int64_t i, int64_t n, norm_kind kind, bool backward)
{
    if (backward)
        backward_first(r, square, product, i, n, kind);
    else
        *square = forward_first(r, *square, i, n, kind);
}

VEC_INLINE norm_factors factors_of_sums(norm_row r, norm_sums s, float eps, tn_dtype dtype, bool backward)
{
    float scale = vec_inverse_sqrt(parts_sum(&s.squares, dtype) / (float)r.width + eps);
    return (norm_factors){scale, backward ? parts_sum(&s.products, dtype) * scale / (float)r.width : 0.0f};
}

/* With what is left of a row behind its rounds of PARTS. */
VEC_INLINE norm_factors first_rest(norm_row r, norm_sums s, int64_t i, float eps, norm_kind kind, bool backward)
{
    for (int k = 0; k < PACKS && i < r.width; k++, i += PACK)
        first_pack(r, &s.squares.part[k], &s.products.part[k], i, r.width - i < PACK ? r.width - i : PACK, kind,
                   backward);
    return factors_of_sums(r, s, eps, kind.dtype, backward);
}

/* Backward, one function serves all norms: gradients of rows with a rest are rare. */
VEC_OUTLINE norm_factors backward_first_rest(norm_row r, norm_sums s, int64_t i, float eps, norm_kind kind)
{
    return first_rest(r, s, i, eps, kind, true);
}

/* The sums of the rounds stay in registers because those of the rest are a copy. */
VEC_INLINE norm_factors first_pass(norm_row r, float eps, norm_kind kind, bool backward)
{
    norm_sums s = {parts_zero(), parts_zero()};
    int64_t i = 0;
    for (; i + PARTS <= r.width; i += PARTS)
        for (int k = 0; k < PACKS; k++)
            first_pack(r, &s.squares.part[k], &s.products.part[k], i + k * PACK, PACK, kind, backward);
    if (i < r.width)
        return backward ? backward_first_rest(r, s, i, eps, kind) : first_rest(r, s, i, eps, kind, false);
    return factors_of_sums(r, s, eps, kind.dtype, backward);
}

VEC_INLINE void second_pack(norm_row r, norm_factors f, int64_t i, int64_t n, norm_kind kind, bool backward)
{
    if (backward)
        backward_second(r, pack_set(f.scale), pack_set(f.mean), i, n, kind);
    else
        forward_second(r, pack_set(f.scale), i, n, kind);
}

VEC_OUTLINE void backward_second_rest(norm_row r, norm_factors f, int64_t i, norm_kind kind)
{
    second_pack(r, f, i, r.width - i, kind, true);
}

VEC_INLINE void second_pass(norm_row r, norm_factors f, norm_kind kind, bool backward)
{
    int64_t i = 0;
    for (; i + PACK <= r.width; i += PACK)
        second_pack(r, f, i, PACK, kind, backward);
    if (i < r.width && backward)
        backward_second_rest(r, f, i, kind);
    else if (i < r.width)
        second_pack(r, f, i, r.width - i, kind, false);
}

/* ---- rows --------------------------------------------------------------------------------------- */

/* The norm as the loops tell norms apart. W_F32 rounds in other places in eager only. Backward, where an addition more
 * costs nothing that can be measured, w is taken for 1 + w with a 1 that is 0. */
VEC_INLINE tn_norm norm_of(tn_norm norm, bool backward)
{
    tn_norm plain = norm == TN_NORM_W_F32 ? TN_NORM_W : norm;
    return plain == TN_NORM_W && backward ? TN_NORM_1_PLUS_W : plain;
}

VEC_INLINE norm_factors factors_of(norm_row r, float eps, norm_kind kind, bool backward)
{
    if (r.at[NORM_R])
        return first_pass(r, eps, (norm_kind){kind.dtype, kind.norm, true}, backward);
    return first_pass(r, eps, (norm_kind){kind.dtype, kind.norm, false}, backward);
}

VEC_INLINE norm_factors row_factors(norm_row r, const rmsnorm_rows *a, tn_dtype dtype, bool backward)
{
    if (!backward)
        return factors_of(r, a->eps, (norm_kind){dtype, TN_NORM_NO_WEIGHT, false}, false);
    switch (norm_of(a->norm, true)) {
    case TN_NORM_W_GATED: /* there is no gated form with a sum */
        return first_pass(r, a->eps, (norm_kind){dtype, TN_NORM_W_GATED, false}, true);
    case TN_NORM_NO_WEIGHT:
        return factors_of(r, a->eps, (norm_kind){dtype, TN_NORM_NO_WEIGHT, false}, true);
    default:
        return factors_of(r, a->eps, (norm_kind){dtype, TN_NORM_1_PLUS_W, false}, true);
    }
}

VEC_INLINE void results_of(norm_row r, norm_factors f, norm_kind kind, bool backward)
{
    if (backward && r.at[NORM_R])
        second_pass(r, f, (norm_kind){kind.dtype, kind.norm, true}, backward);
    else
        second_pass(r, f, (norm_kind){kind.dtype, kind.norm, false}, backward);
}

VEC_INLINE void row_results(norm_row r, norm_factors f, tn_norm norm, tn_dtype dtype, bool backward)
{
    switch (norm_of(norm, backward)) {
    case TN_NORM_1_PLUS_W:
        results_of(r, f, (norm_kind){dtype, TN_NORM_1_PLUS_W, false}, backward);
        break;
    case TN_NORM_W_GATED:
        second_pass(r, f, (norm_kind){dtype, TN_NORM_W_GATED, false}, backward);
        break;
    case TN_NORM_NO_WEIGHT:
        results_of(r, f, (norm_kind){dtype, TN_NORM_NO_WEIGHT, false}, backward);
        break;
    default: /* forward */
        if (!backward)
            second_pass(r, f, (norm_kind){dtype, TN_NORM_W, false}, false);
    }
}

/* The first pass over a row comes before the second over the row before it: nothing then waits for the sums, the root
 * and the division. dtype and backward are constants of the caller. */
VEC_INLINE void all_rows(const rmsnorm_rows *given, tn_dtype dtype, bool backward)
{
    const rmsnorm_rows a = *given; /* which no store can change */
    norm_row row = {.width = 0};
    norm_factors f = {0.0f, 0.0f};
    for (int64_t next = 0; next <= a.count; next++) {
        norm_row this_row = row;
        norm_factors these = f;
        if (next < a.count) {
            row = row_of(&a, next);
            f = row_factors(row, &a, dtype, backward);
        }
        if (next > 0)
            row_results(this_row, these, a.norm, dtype, backward);
    }
}

VEC_INLINE void forward_rows(const rmsnorm_rows *a, tn_dtype dtype)
{
    all_rows(a, dtype, false);
}

VEC_INLINE void backward_rows(const rmsnorm_rows *a, tn_dtype dtype)
{
    all_rows(a, dtype, true);
}

VEC_INLINE void add_blocks(const rmsnorm_blocks *b, int64_t begin, int64_t end, tn_dtype dtype)
{
    for (int64_t i = begin; i < end; i += PACK) {
        pack total = pack_set(0.0f);
        for (int64_t block = 0; block < b->count; block++)
            total = pack_add(total, pack_load((const char *)(b->sums + block * b->step + i), TN_F32));
        put(b->dw, i, end - i < PACK ? end - i : PACK, dtype, total);
    }
}

#endif
