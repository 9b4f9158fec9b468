/* Rotary position embedding in vectors, written once: included by one file per instruction set after the vec_<isa>.h
 * of that file. The angles of VEC_LANES pairs are read once and used for every head of the token. */
#ifndef TENON_ROPE_VEC_H
#define TENON_ROPE_VEC_H

#include <string.h>

#include "rope.h"

typedef struct angles {
    vec c1, s1, c2, s2;
} angles;

VEC_INLINE vec take(const char *p, tn_dtype dtype, int64_t n)
{
    return n == VEC_LANES ? vec_load(p, dtype) : vec_load_part(p, dtype, n);
}

VEC_INLINE void put(char *p, tn_dtype dtype, vec v, int64_t n)
{
    if (n == VEC_LANES)
        vec_store(p, dtype, v);
    else
        vec_store_part(p, dtype, v, n);
}

/* n elements, 0 .. 2 VEC_LANES. */
VEC_INLINE void take_two(const char *p, tn_dtype dtype, int64_t n, vec *a, vec *b)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, first = n < VEC_LANES ? n : VEC_LANES;
    *a = take(p, dtype, first);
    *b = n > first ? take(p + first * size, dtype, n - first) : vec_set(0.0f);
}

VEC_INLINE void put_two(char *p, tn_dtype dtype, int64_t n, vec a, vec b)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, first = n < VEC_LANES ? n : VEC_LANES;
    put(p, dtype, a, first);
    if (n > first)
        put(p + first * size, dtype, b, n - first);
}

/* See rope.c. dtype is that of the roundings in between; the last one is the store's. */
VEC_INLINE void rotate(vec *a, vec *b, const angles *w, tn_dtype dtype)
{
    vec first = vec_sub(vec_round(vec_mul(*a, w->c1), dtype), vec_round(vec_mul(*b, w->s1), dtype));
    vec second = vec_add(vec_round(vec_mul(*b, w->c2), dtype), vec_round(vec_mul(*a, w->s2), dtype));
    *a = first;
    *b = second;
}

/* Pairs i .. i + n - 1, n <= VEC_LANES, of every head. dtype, style and table are constants of the caller. */
VEC_INLINE void rotate_pairs(const rope_token *t, int64_t i, int64_t n, tn_dtype dtype, tn_rope style, tn_dtype table)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, table_size = table == TN_F32 ? 4 : 2, half = t->rotary / 2;
    bool pairs_in = style != TN_ROPE_HALF && style != TN_ROPE_HALF_NARROW;
    bool pairs_out = style == TN_ROPE_INTERLEAVED || style == TN_ROPE_COMPLEX;
    angles w = {.c1 = take(t->cos + i * table_size, table, n), .s1 = take(t->sin + i * table_size, table, n)};
    w.c2 = style == TN_ROPE_HALF ? take(t->cos + (i + half) * table_size, table, n) : w.c1;
    w.s2 = style == TN_ROPE_HALF ? take(t->sin + (i + half) * table_size, table, n) : w.s1;
    const char *x = t->x + (pairs_in ? 2 * i : i) * size;
    char *y = t->y + (pairs_out ? 2 * i : i) * size;
    for (int64_t h = 0; h < t->heads; h++, x += t->x_step, y += t->y_step) {
        vec a, b;
        if (pairs_in) {
            vec low, high;
            take_two(x, dtype, 2 * n, &low, &high);
            vec_split_pairs(low, high, &a, &b);
        } else {
            a = take(x, dtype, n);
            b = take(x + half * size, dtype, n);
        }
        rotate(&a, &b, &w, style == TN_ROPE_COMPLEX ? TN_F32 : table);
        /* Angles in f32 may be NaN of any kind. */
        if (table != dtype) {
            a = vec_quiet(a);
            b = vec_quiet(b);
        }
        if (pairs_out) {
            vec low, high;
            vec_join_pairs(a, b, &low, &high);
            put_two(y, dtype, 2 * n, low, high);
        } else {
            put(y, dtype, a, n);
            put(y + half * size, dtype, b, n);
        }
    }
}

VEC_INLINE void rotate_style(const rope_token *t, tn_dtype dtype, tn_rope style, tn_dtype table)
{
    int64_t half = t->rotary / 2, i = 0;
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
