/* Rotary position embedding in vectors, written once: included by one file per instruction set after the vec_<isa>.h
 * of that file. The angles of a few pairs are read once and used for every head of the token. */
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

/* The pairs (i, i + R/2) .. (i + n - 1, ...), n <= PACK, of every head. Tables of the type of x: element orders within
 * a pack are then the same. wide: the second half has angles of its own. */
VEC_INLINE void rotate_halves(const rope_token *t, int64_t i, int64_t n, tn_dtype dtype, bool wide)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, far = t->rotary / 2 * size;
    const char *x = t->x + i * size, *cos = t->cos + i * size, *sin = t->sin + i * size;
    char *y = t->y + i * size;
    pack c1 = take(cos, dtype, n), s1 = take(sin, dtype, n);
    pack c2 = wide ? take(cos + far, dtype, n) : c1, s2 = wide ? take(sin + far, dtype, n) : s1;
    for (int64_t h = 0; h < t->heads; h++, x += t->x_step, y += t->y_step) {
        pack a = take(x, dtype, n), b = take(x + far, dtype, n);
        pack first = {rotate_first(a.a, b.a, c1.a, s1.a, dtype, dtype),
                      rotate_first(a.b, b.b, c1.b, s1.b, dtype, dtype)};
        pack second = {rotate_second(a.a, b.a, c2.a, s2.a, dtype, dtype),
                       rotate_second(a.b, b.b, c2.b, s2.b, dtype, dtype)};
        put(y, dtype, first, n);
        put(y + far, dtype, second, n);
    }
}

/* n <= VEC_LANES pairs from pair i on, of every head, in any style and with tables of any type. */
VEC_INLINE void rotate_pairs(const rope_token *t, int64_t i, int64_t n, tn_dtype dtype, tn_rope style, tn_dtype table)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, table_size = table == TN_F32 ? 4 : 2, half = t->rotary / 2;
    bool pairs_in = style != TN_ROPE_HALF && style != TN_ROPE_HALF_NARROW;
    bool pairs_out = style == TN_ROPE_INTERLEAVED || style == TN_ROPE_COMPLEX;
    tn_dtype step = style == TN_ROPE_COMPLEX ? TN_F32 : table;
    const char *x = t->x + (pairs_in ? 2 * i : i) * size, *cos = t->cos + i * table_size,
               *sin = t->sin + i * table_size;
    char *y = t->y + (pairs_out ? 2 * i : i) * size;
    int64_t second = style == TN_ROPE_HALF ? half * table_size : 0;
    vec c1 = take_vec(cos, table, n), s1 = take_vec(sin, table, n);
    vec c2 = take_vec(cos + second, table, n), s2 = take_vec(sin + second, table, n);
    for (int64_t h = 0; h < t->heads; h++, x += t->x_step, y += t->y_step) {
        pack p;
        if (pairs_in)
            p = pack_split_pairs(take(x, dtype, 2 * n), dtype);
        else
            p = (pack){take_vec(x, dtype, n), take_vec(x + half * size, dtype, n)};
        p = (pack){rotate_first(p.a, p.b, c1, s1, step, dtype), rotate_second(p.a, p.b, c2, s2, step, dtype)};
        if (pairs_out) {
            put(y, dtype, pack_join_pairs(p, dtype), 2 * n);
        } else {
            put_vec(y, dtype, p.a, n);
            put_vec(y + half * size, dtype, p.b, n);
        }
    }
}

/* dtype, style and table are constants of the caller. */
VEC_INLINE void rotate_style(const rope_token *t, tn_dtype dtype, tn_rope style, tn_dtype table)
{
    int64_t half = t->rotary / 2, i = 0;
    bool halves = (style == TN_ROPE_HALF || style == TN_ROPE_HALF_NARROW) && table == dtype;
    for (; halves && i + PACK <= half; i += PACK)
        rotate_halves(t, i, PACK, dtype, style == TN_ROPE_HALF);
    for (; i + VEC_LANES <= half; i += VEC_LANES)
        rotate_pairs(t, i, VEC_LANES, dtype, style, table);
    if (i < half)
        rotate_pairs(t, i, half - i, dtype, style, table);
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
