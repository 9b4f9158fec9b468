/* Rotary position embedding in vectors, written once: included by one file per instruction set after the vec_<isa>.h
 * of that file. */
#ifndef TENON_ROPE_VEC_H
#define TENON_ROPE_VEC_H

#include <string.h>

#include "rope.h"

/* n <= PACK elements. */
VEC_INLINE pack take(const char *p, tn_dtype dtype, int64_t n)
{
    return n == PACK ? pack_load(p, dtype) : pack_load_part(p, dtype, n);
}

VEC_INLINE void put(char *p, tn_dtype dtype, pack x, int64_t n)
{
    if (n == PACK)
        pack_store(p, dtype, x);
    else
        pack_store_part(p, dtype, x, n);
}

/* n <= VEC_LANES elements in order. */
VEC_INLINE vec take_vec(const char *p, tn_dtype dtype, int64_t n)
{
    return n == VEC_LANES ? vec_load(p, dtype) : vec_load_part(p, dtype, n);
}

VEC_INLINE void put_vec(char *p, tn_dtype dtype, vec x, int64_t n)
{
    if (n == VEC_LANES)
        vec_store(p, dtype, x);
    else
        vec_store_part(p, dtype, x, n);
}

/* See rope.c: first = a c - b s, second = a s + b c, products rounded to step. The last rounding to dtype is the
 * store's; angles in f32 may be NaN of any kind. */
VEC_INLINE vec rotate_first(vec a, vec b, vec c, vec s, tn_dtype step, tn_dtype dtype)
{
    vec y = vec_sub(vec_round(vec_mul(a, c), step), vec_round(vec_mul(b, s), step));
    return step == dtype ? y : vec_quiet(y);
}

VEC_INLINE vec rotate_second(vec a, vec b, vec c, vec s, tn_dtype step, tn_dtype dtype)
{
    vec y = vec_add(vec_round(vec_mul(b, c), step), vec_round(vec_mul(a, s), step));
    return step == dtype ? y : vec_quiet(y);
}

/* The angles of BLOCK pairs are widened once for all heads of a token: 4 KB of the stack. Heads are then walked one by
 * one, since that is how they lie in memory: going through all heads with the angles in registers is a little faster
 * while everything is in a cache, and half as fast when it is not. */
enum { BLOCK = 256 };

typedef struct block {
    vec c1[BLOCK / VEC_LANES], s1[BLOCK / VEC_LANES], c2[BLOCK / VEC_LANES], s2[BLOCK / VEC_LANES];
} block;

/* n pairs as packs of the type's order: what elements of the same type are loaded as. */
VEC_INLINE void load_packs(vec *to, const char *from, tn_dtype dtype, int64_t n)
{
    for (int64_t i = 0; i < n; i += PACK) {
        pack p = take(from + i * (dtype == TN_F32 ? 4 : 2), dtype, n - i < PACK ? n - i : PACK);
        to[i / VEC_LANES] = p.a;
        to[i / VEC_LANES + 1] = p.b;
    }
}

/* n pairs in order. */
VEC_INLINE void load_vecs(vec *to, const char *from, tn_dtype dtype, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC_LANES)
        to[i / VEC_LANES] =
            take_vec(from + i * (dtype == TN_F32 ? 4 : 2), dtype, n - i < VEC_LANES ? n - i : VEC_LANES);
}

/* The pairs (i, i + R/2) with i in one pack of a head: x and y point to i, far is R/2 in bytes. */
VEC_INLINE void rotate_pack(const char *x, char *y, int64_t far, int64_t n, tn_dtype dtype, const block *w, int64_t k)
{
    pack a = take(x, dtype, n), b = take(x + far, dtype, n);
    pack first = {rotate_first(a.a, b.a, w->c1[k], w->s1[k], dtype, dtype),
                  rotate_first(a.b, b.b, w->c1[k + 1], w->s1[k + 1], dtype, dtype)};
    pack second = {rotate_second(a.a, b.a, w->c2[k], w->s2[k], dtype, dtype),
                   rotate_second(a.b, b.b, w->c2[k + 1], w->s2[k + 1], dtype, dtype)};
    put(y, dtype, first, n);
    put(y + far, dtype, second, n);
}

/* The half forms with tables of the type of x, pairs begin .. begin + n - 1 of every head. wide: the second half has
 * angles of its own. */
VEC_INLINE void rotate_halves(const rope_token *t, int64_t begin, int64_t n, tn_dtype dtype, bool wide)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, far = t->rotary / 2 * size, whole = n - n % PACK;
    const char *cos = t->cos + begin * size, *sin = t->sin + begin * size;
    block w;
    load_packs(w.c1, cos, dtype, n);
    load_packs(w.s1, sin, dtype, n);
    load_packs(w.c2, wide ? cos + far : cos, dtype, n);
    load_packs(w.s2, wide ? sin + far : sin, dtype, n);
    for (int64_t h = 0; h < t->heads; h++) {
        const char *x = t->x + h * t->x_step + begin * size;
        char *y = t->y + h * t->y_step + begin * size;
        for (int64_t i = 0; i < whole; i += PACK)
            rotate_pack(x + i * size, y + i * size, far, PACK, dtype, &w, i / VEC_LANES);
        if (whole < n)
            rotate_pack(x + whole * size, y + whole * size, far, n - whole, dtype, &w, whole / VEC_LANES);
    }
}

/* n <= VEC_LANES pairs from pair i of one head, in any style and with tables of any type. */
VEC_INLINE void rotate_vec(const char *x, char *y, int64_t i, int64_t half, int64_t n, tn_dtype dtype, tn_rope style,
                           tn_dtype step, const block *w, int64_t k)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    bool pairs_in = style != TN_ROPE_HALF && style != TN_ROPE_HALF_NARROW;
    bool pairs_out = style == TN_ROPE_INTERLEAVED || style == TN_ROPE_COMPLEX;
    pack p;
    if (pairs_in)
        p = pack_split_pairs(take(x + 2 * i * size, dtype, 2 * n), dtype);
    else
        p = (pack){take_vec(x + i * size, dtype, n), take_vec(x + (i + half) * size, dtype, n)};
    p = (pack){rotate_first(p.a, p.b, w->c1[k], w->s1[k], step, dtype),
               rotate_second(p.a, p.b, w->c2[k], w->s2[k], step, dtype)};
    if (pairs_out) {
        put(y + 2 * i * size, dtype, pack_join_pairs(p, dtype), 2 * n);
    } else {
        put_vec(y + i * size, dtype, p.a, n);
        put_vec(y + (i + half) * size, dtype, p.b, n);
    }
}

VEC_INLINE void rotate_pairs(const rope_token *t, int64_t begin, int64_t n, tn_dtype dtype, tn_rope style,
                             tn_dtype table)
{
    int64_t table_size = table == TN_F32 ? 4 : 2, half = t->rotary / 2, whole = n - n % VEC_LANES;
    int64_t second = style == TN_ROPE_HALF ? half * table_size : 0;
    const char *cos = t->cos + begin * table_size, *sin = t->sin + begin * table_size;
    tn_dtype step = style == TN_ROPE_COMPLEX ? TN_F32 : table;
    block w;
    load_vecs(w.c1, cos, table, n);
    load_vecs(w.s1, sin, table, n);
    load_vecs(w.c2, cos + second, table, n);
    load_vecs(w.s2, sin + second, table, n);
    for (int64_t h = 0; h < t->heads; h++) {
        const char *x = t->x + h * t->x_step;
        char *y = t->y + h * t->y_step;
        for (int64_t i = 0; i < whole; i += VEC_LANES)
            rotate_vec(x, y, begin + i, half, VEC_LANES, dtype, style, step, &w, i / VEC_LANES);
        if (whole < n)
            rotate_vec(x, y, begin + whole, half, n - whole, dtype, style, step, &w, whole / VEC_LANES);
    }
}

/* dtype, style and table are constants of the caller. */
VEC_INLINE void rotate_style(const rope_token *t, tn_dtype dtype, tn_rope style, tn_dtype table)
{
    int64_t half = t->rotary / 2;
    bool halves = (style == TN_ROPE_HALF || style == TN_ROPE_HALF_NARROW) && table == dtype;
    for (int64_t i = 0; i < half; i += BLOCK) {
        int64_t n = half - i < BLOCK ? half - i : BLOCK;
        if (halves)
            rotate_halves(t, i, n, dtype, style == TN_ROPE_HALF);
        else
            rotate_pairs(t, i, n, dtype, style, table);
    }
    size_t size = dtype == TN_F32 ? 4 : 2, rotated = (size_t)t->rotary * size;
    if (t->y != t->x && t->rotary < t->head)
        for (int64_t h = 0; h < t->heads; h++)
            memcpy(t->y + h * t->y_step + rotated, t->x + h * t->x_step + rotated, (size_t)t->head * size - rotated);
}

VEC_INLINE void rotate_table(const rope_token *t, tn_dtype dtype, tn_dtype table)
{
    switch (t->style) {
    case TN_ROPE_HALF:
        rotate_style(t, dtype, TN_ROPE_HALF, table);
        break;
    case TN_ROPE_HALF_NARROW:
        rotate_style(t, dtype, TN_ROPE_HALF_NARROW, table);
        break;
    case TN_ROPE_INTERLEAVED:
        rotate_style(t, dtype, TN_ROPE_INTERLEAVED, table);
        break;
    case TN_ROPE_COMPLEX:
        rotate_style(t, dtype, TN_ROPE_COMPLEX, table);
        break;
    case TN_ROPE_DEINTERLEAVED:
        rotate_style(t, dtype, TN_ROPE_DEINTERLEAVED, table);
        break;
    }
}

VEC_INLINE void rotate_heads(const rope_token *t, tn_dtype dtype)
{
    if (t->table == dtype)
        rotate_table(t, dtype, dtype);
    else
        rotate_table(t, dtype, TN_F32);
}

#endif
