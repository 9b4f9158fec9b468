/* RMS norm in vectors, written once: included by one file per instruction set after the vec_<isa>.h of that file. The
 * formulas are those of rmsnorm.c. */
#ifndef TENON_RMSNORM_VEC_H
#define TENON_RMSNORM_VEC_H

#include "rmsnorm.h"

#include <math.h>

/* Partial sums: as in rmsnorm.c, which explains the order. The packs of a round of PARTS are independent sums, which
 * hides the latency of the additions. */
enum { PARTS = 64, PACKS = PARTS / PACK };

typedef struct parts {
    pack part[PACKS];
} parts;

/* What is constant in a loop over rows, so that each combination becomes code of its own. */
typedef struct norm_kind {
    tn_dtype dtype;
    tn_norm norm;
    bool add;
} norm_kind;

/* The tensors of one row. */
typedef struct norm_row {
    char *at[NORM_TENSORS];
} norm_row;

VEC_INLINE norm_row row_of(const rmsnorm_rows *a, int64_t row)
{
    norm_row r;
    for (int t = 0; t < NORM_TENSORS; t++)
        r.at[t] = a->row[t] ? a->row[t] + row * a->step[t] : NULL;
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
VEC_INLINE pack times_weight(const rmsnorm_rows *a, pack x, int64_t i, int64_t n, norm_kind kind)
{
    if (kind.norm == TN_NORM_NO_WEIGHT)
        return x;
    pack w = take(a->weight, i, n, kind.dtype);
    return pack_mul(x, kind.norm == TN_NORM_1_PLUS_W ? pack_add(pack_set(1.0f), w) : w);
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

/* ---- the first pass over a row ------------------------------------------------------------------ */

/* Sums of squares and, backward, of products. */
typedef struct norm_sums {
    parts squares, products;
} norm_sums;

/* What the first pass over a row leaves for the second. */
typedef struct norm_factors {
    float scale, mean; /* mean: backward                                                        */
} norm_factors;

/* What n <= PACK elements add to the sums: v^2 and, backward, h v. */
typedef struct norm_terms {
    pack v, h;
} norm_terms;

VEC_INLINE norm_terms first_pack(const rmsnorm_rows *a, norm_row r, int64_t i, int64_t n, norm_kind kind, bool backward)
{
    norm_terms t = {value(r, i, n, kind), pack_set(0.0f)};
    if (backward)
        t.h = times_gate(r, times_weight(a, take(r.at[NORM_DY], i, n, kind.dtype), i, n, kind), i, n, kind);
    else if (kind.add)
        put(r.at[NORM_SUM], i, n, kind.dtype, t.v);
    return t;
}

VEC_INLINE void add_terms(norm_sums *s, int k, norm_terms t, tn_dtype dtype, bool backward)
{
    s->squares.part[k] = add_square(s->squares.part[k], t.v, dtype);
    if (backward)
        s->products.part[k] = pack_fma(t.h, t.v, s->products.part[k]);
}

/* The rest of a row, behind the rounds of PARTS, is whole packs and then at most one that is not, which is written once
 * for whichever part it belongs to. All of it is in one function: sums that another one takes or returns would leave
 * their registers. */
VEC_INLINE norm_factors first_pass(const rmsnorm_rows *a, norm_row r, norm_kind kind, bool backward)
{
    norm_sums s = {parts_zero(), parts_zero()};
    int64_t i = 0;
    for (; i + PARTS <= a->width; i += PARTS)
        for (int k = 0; k < PACKS; k++)
            add_terms(&s, k, first_pack(a, r, i + k * PACK, PACK, kind, backward), kind.dtype, backward);
    int whole = 0;
    for (; whole < PACKS - 1 && i + PACK <= a->width; whole++, i += PACK)
        add_terms(&s, whole, first_pack(a, r, i, PACK, kind, backward), kind.dtype, backward);
    if (i < a->width) {
        norm_terms last = first_pack(a, r, i, a->width - i, kind, backward);
        for (int k = 0; k < PACKS; k++)
            if (k == whole)
                add_terms(&s, k, last, kind.dtype, backward);
    }
    float scale = vec_inverse_sqrt(parts_sum(&s.squares, kind.dtype) / (float)a->width + a->eps);
    return (norm_factors){scale, backward ? parts_sum(&s.products, kind.dtype) * scale / (float)a->width : 0.0f};
}

/* ---- the second --------------------------------------------------------------------------------- */

VEC_INLINE void forward_second(const rmsnorm_rows *a, norm_row r, pack scale, int64_t i, int64_t n, norm_kind kind)
{
    pack v = pack_mul(take(r.at[kind.add ? NORM_SUM : NORM_X], i, n, kind.dtype), scale);
    if (kind.norm == TN_NORM_W && kind.dtype != TN_F32)
        v = pack_round(v, kind.dtype);
    put(r.at[NORM_Y], i, n, kind.dtype, times_gate(r, times_weight(a, v, i, n, kind), i, n, kind));
}

VEC_INLINE void backward_second(const rmsnorm_rows *a, norm_row r, pack scale, pack mean, int64_t i, int64_t n,
                                norm_kind kind)
{
    pack x = pack_mul(value(r, i, n, kind), scale), dy = take(r.at[NORM_DY], i, n, kind.dtype);
    pack active = times_gate(r, dy, i, n, kind);
    pack h = times_weight(a, active, i, n, kind);
    pack d = pack_mul((pack){vec_fnma(x.a, mean.a, h.a), vec_fnma(x.b, mean.b, h.b)}, scale);
    if (kind.add && r.at[NORM_DSUM])
        d = pack_add(d, take(r.at[NORM_DSUM], i, n, kind.dtype));
    if (a->dw) {
        char *dw = (char *)(a->dw + i);
        pack_store(dw, TN_F32, pack_fma(active, x, pack_load(dw, TN_F32)));
    }
    if (kind.norm == TN_NORM_W_GATED && r.at[NORM_DGATE]) {
        pack z = take(r.at[NORM_GATE], i, n, kind.dtype);
        pack slope = pack_mul(pack_mul(dy, x), (pack){silu_slope(z.a), silu_slope(z.b)});
        put(r.at[NORM_DGATE], i, n, kind.dtype, times_weight(a, slope, i, n, kind));
    }
    if (r.at[NORM_DX])
        put(r.at[NORM_DX], i, n, kind.dtype, d);
    if (kind.add && r.at[NORM_DR])
        put(r.at[NORM_DR], i, n, kind.dtype, d);
}

VEC_INLINE void second_pack(const rmsnorm_rows *a, norm_row r, norm_factors f, int64_t i, int64_t n, norm_kind kind,
                            bool backward)
{
    if (backward)
        backward_second(a, r, pack_set(f.scale), pack_set(f.mean), i, n, kind);
    else
        forward_second(a, r, pack_set(f.scale), i, n, kind);
}

VEC_INLINE void second_pass(const rmsnorm_rows *a, norm_row r, norm_factors f, norm_kind kind, bool backward)
{
    int64_t i = 0;
    for (; i + PACK <= a->width; i += PACK)
        second_pack(a, r, f, i, PACK, kind, backward);
    if (i < a->width)
        second_pack(a, r, f, i, a->width - i, kind, backward);
}

/* ---- rows --------------------------------------------------------------------------------------- */

/* The first pass over a row comes before the second over the row before it: nothing then waits for the sums, the root
 * and the division. Each pass is in the code once per kind, a constant of the caller. a is copied so that no store can
 * change it. */
VEC_INLINE void rows_of_kind(rmsnorm_rows a, norm_kind kind, bool backward)
{
    norm_row row = {.at = {NULL}};
    norm_factors f = {0.0f, 0.0f};
    for (int64_t next = 0; next <= a.count; next++) {
        norm_row this_row = row;
        norm_factors these = f;
        if (next < a.count) {
            row = row_of(&a, next);
            f = first_pass(&a, row, kind, backward);
            if (backward && !isfinite(f.mean))
                f.mean = rmsnorm_mean(&a, next, kind.dtype, f.scale);
        }
        if (next > 0)
            second_pass(&a, this_row, these, kind, backward);
    }
}

/* There is no gated form with a sum. */
VEC_INLINE void rows_of_norm(const rmsnorm_rows *a, tn_dtype dtype, tn_norm norm, bool backward)
{
    if (norm != TN_NORM_W_GATED && a->row[NORM_R])
        rows_of_kind(*a, (norm_kind){dtype, norm, true}, backward);
    else
        rows_of_kind(*a, (norm_kind){dtype, norm, false}, backward);
}

VEC_INLINE void rows_of_type(const rmsnorm_rows *a, tn_dtype dtype, bool backward)
{
    switch (a->norm) {
    case TN_NORM_W:
        rows_of_norm(a, dtype, TN_NORM_W, backward);
        break;
    case TN_NORM_W_F32: /* the same where nothing is rounded on the way */
        rows_of_norm(a, dtype, dtype == TN_F32 || backward ? TN_NORM_W : TN_NORM_W_F32, backward);
        break;
    case TN_NORM_1_PLUS_W:
        rows_of_norm(a, dtype, TN_NORM_1_PLUS_W, backward);
        break;
    case TN_NORM_W_GATED:
        rows_of_norm(a, dtype, TN_NORM_W_GATED, backward);
        break;
    case TN_NORM_NO_WEIGHT:
        rows_of_norm(a, dtype, TN_NORM_NO_WEIGHT, backward);
        break;
    default: /* what the kernels' match leaves out                                            */
        break;
    }
}

VEC_INLINE void rows_of(const rmsnorm_rows *a, bool backward)
{
    if (a->dtype == TN_F32)
        rows_of_type(a, TN_F32, backward);
    else if (a->dtype == TN_BF16)
        rows_of_type(a, TN_BF16, backward);
    else
        rows_of_type(a, TN_F16, backward);
}

static void forward_rows(const rmsnorm_rows *a)
{
    rows_of(a, false);
}

static void backward_rows(const rmsnorm_rows *a)
{
    rows_of(a, true);
}

VEC_INLINE void add_blocks_of(const rmsnorm_blocks *b, int64_t begin, int64_t end, tn_dtype dtype)
{
    for (int64_t i = begin; i < end; i += PACK) {
        pack total = pack_set(0.0f);
        for (int64_t block = 0; block < b->count; block++)
            total = pack_add(total, pack_load((const char *)(b->sums + block * b->step + i), TN_F32));
        put(b->dw, i, end - i < PACK ? end - i : PACK, dtype, total);
    }
}

static void add_blocks(const rmsnorm_blocks *b, int64_t begin, int64_t end)
{
    if (b->dtype == TN_F32)
        add_blocks_of(b, begin, end, TN_F32);
    else if (b->dtype == TN_BF16)
        add_blocks_of(b, begin, end, TN_BF16);
    else
        add_blocks_of(b, begin, end, TN_F16);
}

static const rmsnorm_kernels vec_kernels = {forward_rows, backward_rows, add_blocks};

#endif
