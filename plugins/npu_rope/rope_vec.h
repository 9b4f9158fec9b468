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

/* See rope.c. Angles in f32 may be NaN of any kind. */
VEC_INLINE vec rotate_first(vec a, vec b, vec c, vec s, tn_dtype table, tn_dtype dtype)
{
    vec y = vec_sub(vec_round(vec_mul(a, c), table), vec_round(vec_mul(b, s), table));
    return table == dtype ? y : vec_quiet(y);
}

VEC_INLINE vec rotate_second(vec a, vec b, vec c, vec s, tn_dtype table, tn_dtype dtype)
{
    vec y = vec_add(vec_round(vec_mul(b, c), table), vec_round(vec_mul(a, s), table));
    return table == dtype ? y : vec_quiet(y);
}

/* The angles of BLOCK pairs are widened once for all heads of a token: 4 KB of the stack. Heads are then walked one by
 * one, since that is how they lie in memory: going through all heads with the angles in registers is a little faster
 * while everything is in a cache, and half as fast when it is not. */
enum { BLOCK = 256 };

typedef struct block {
    vec c1[BLOCK / VEC_LANES], s1[BLOCK / VEC_LANES], c2[BLOCK / VEC_LANES], s2[BLOCK / VEC_LANES];
} block;

/* Tables whose halves are alike, as they nearly always are, are read as those of one half: fewer angles to load. */
VEC_INLINE bool halves_differ(const rope_token *t, tn_dtype table)
{
    size_t half = (size_t)(t->rotary / 2) * (table == TN_F32 ? 4 : 2);
    return t->wide && (memcmp(t->cos, t->cos + half, half) != 0 || memcmp(t->sin, t->sin + half, half) != 0);
}

/* n pairs as packs of the type's order, which is what elements of the same type are loaded as; or in order. */
VEC_INLINE void load_angles(vec *to, const char *from, tn_dtype table, int64_t n, bool packs)
{
    int64_t size = table == TN_F32 ? 4 : 2;
    for (int64_t i = 0; packs && i < n; i += PACK) {
        pack p = take(from + i * size, table, n - i < PACK ? n - i : PACK);
        to[i / VEC_LANES] = p.a;
        to[i / VEC_LANES + 1] = p.b;
    }
    for (int64_t i = 0; !packs && i < n; i += VEC_LANES)
        to[i / VEC_LANES] = take_vec(from + i * size, table, n - i < VEC_LANES ? n - i : VEC_LANES);
}

/* n as the loops that load and use angles count it: by whole packs, or by whole vectors. */
VEC_INLINE void negate(vec *v, int64_t n, bool packs)
{
    int64_t step = packs ? PACK : VEC_LANES;
    for (int64_t i = 0; i < (n + step - 1) / step * step; i += VEC_LANES)
        v[i / VEC_LANES] = vec_sub(vec_set(-0.0f), v[i / VEC_LANES]);
}

/* own: the second results have angles of their own; otherwise c2 and s2 are not set. */
VEC_INLINE void load_block(block *w, const rope_token *t, int64_t begin, int64_t n, tn_dtype table, bool packs,
                           bool own)
{
    int64_t size = table == TN_F32 ? 4 : 2, second = own ? t->rotary / 2 * size : 0;
    const char *cos = t->cos + begin * size, *sin = t->sin + begin * size;
    load_angles(w->c1, cos, table, n, packs);
    load_angles(w->s1, t->inverse ? sin + second : sin, table, n, packs);
    if (t->inverse)
        negate(w->s1, n, packs);
    if (!own)
        return;
    load_angles(w->c2, cos + second, table, n, packs);
    load_angles(w->s2, t->inverse ? sin : sin + second, table, n, packs);
    if (t->inverse)
        negate(w->s2, n, packs);
}

/* The pairs (i, i + R/2) with i in one pack of a head: x and y point to i, far is R/2 in bytes. */
VEC_INLINE void rotate_pack(const char *x, char *y, int64_t far, int64_t n, tn_dtype dtype, const block *w, int64_t k,
                            bool own)
{
    const vec *c2 = own ? w->c2 : w->c1, *s2 = own ? w->s2 : w->s1;
    pack a = take(x, dtype, n), b = take(x + far, dtype, n);
    pack first = {rotate_first(a.a, b.a, w->c1[k], w->s1[k], dtype, dtype),
                  rotate_first(a.b, b.b, w->c1[k + 1], w->s1[k + 1], dtype, dtype)};
    pack second = {rotate_second(a.a, b.a, c2[k], s2[k], dtype, dtype),
                   rotate_second(a.b, b.b, c2[k + 1], s2[k + 1], dtype, dtype)};
    put(y, dtype, first, n);
    put(y + far, dtype, second, n);
}

/* Halves with tables of the type of x, pairs begin .. begin + n - 1 of every head. */
VEC_INLINE void rotate_halves(const rope_token *t, int64_t begin, int64_t n, tn_dtype dtype, bool own)
{
    int64_t size = dtype == TN_F32 ? 4 : 2, far = t->rotary / 2 * size, whole = n - n % PACK;
    block w;
    load_block(&w, t, begin, n, dtype, true, own);
    for (int64_t h = 0; h < t->heads; h++) {
        const char *x = t->x + h * t->x_step + begin * size;
        char *y = t->y + h * t->y_step + begin * size;
        for (int64_t i = 0; i < whole; i += PACK)
            rotate_pack(x + i * size, y + i * size, far, PACK, dtype, &w, i / VEC_LANES, own);
        if (whole < n)
            rotate_pack(x + whole * size, y + whole * size, far, n - whole, dtype, &w, whole / VEC_LANES, own);
    }
}

/* n <= VEC_LANES pairs from pair i of one head, in any form and with tables of any type. */
VEC_INLINE void rotate_vec(const char *x, char *y, int64_t i, int64_t half, int64_t n, tn_dtype dtype, tn_dtype table,
                           bool pairs_in, bool pairs_out, const block *w, int64_t k, bool own)
{
    int64_t size = dtype == TN_F32 ? 4 : 2;
    pack p;
    if (pairs_in)
        p = pack_split_pairs(take(x + 2 * i * size, dtype, 2 * n), dtype);
    else
        p = (pack){take_vec(x + i * size, dtype, n), take_vec(x + (i + half) * size, dtype, n)};
    p = (pack){rotate_first(p.a, p.b, w->c1[k], w->s1[k], table, dtype),
               rotate_second(p.a, p.b, own ? w->c2[k] : w->c1[k], own ? w->s2[k] : w->s1[k], table, dtype)};
    if (pairs_out) {
        put(y + 2 * i * size, dtype, pack_join_pairs(p, dtype), 2 * n);
    } else {
        put_vec(y + i * size, dtype, p.a, n);
        put_vec(y + (i + half) * size, dtype, p.b, n);
    }
}

VEC_INLINE void rotate_pairs(const rope_token *t, int64_t begin, int64_t n, tn_dtype dtype, tn_dtype table,
                             bool pairs_in, bool pairs_out, bool own)
{
    int64_t half = t->rotary / 2, whole = n - n % VEC_LANES;
    block w;
    load_block(&w, t, begin, n, table, false, own);
    for (int64_t h = 0; h < t->heads; h++) {
        const char *x = t->x + h * t->x_step;
        char *y = t->y + h * t->y_step;
        for (int64_t i = 0; i < whole; i += VEC_LANES)
            rotate_vec(x, y, begin + i, half, VEC_LANES, dtype, table, pairs_in, pairs_out, &w, i / VEC_LANES, own);
        if (whole < n)
            rotate_vec(x, y, begin + whole, half, n - whole, dtype, table, pairs_in, pairs_out, &w, whole / VEC_LANES,
                       own);
    }
}

/* All but t is constant. Halves of heads of 4 packs, the commonest, are a loop of its own: its angles stay in
 * registers where there are enough. */
VEC_INLINE void rotate_blocks(const rope_token *t, tn_dtype dtype, tn_dtype table, bool pairs_in, bool pairs_out,
                              bool own)
{
    int64_t half = t->rotary / 2;
    for (int64_t i = 0; i < half; i += BLOCK) {
        int64_t n = half - i < BLOCK ? half - i : BLOCK;
        if (pairs_in || pairs_out || table != dtype)
            rotate_pairs(t, i, n, dtype, table, pairs_in, pairs_out, own);
        else if (n == 2 * PACK && !own)
            rotate_halves(t, i, 2 * PACK, dtype, own);
        else
            rotate_halves(t, i, n, dtype, own);
    }
}

/* dtype, table and the two forms are constants of the caller. */
VEC_INLINE void rotate_form(const rope_token *t, tn_dtype dtype, tn_dtype table, bool pairs_in, bool pairs_out)
{
    if (!pairs_in && !pairs_out && halves_differ(t, table))
        rotate_blocks(t, dtype, table, false, false, true);
    else
        rotate_blocks(t, dtype, table, pairs_in, pairs_out, false);
    size_t size = dtype == TN_F32 ? 4 : 2, rotated = (size_t)t->rotary * size;
    if (t->y != t->x && t->rotary < t->head)
        for (int64_t h = 0; h < t->heads; h++)
            memcpy(t->y + h * t->y_step + rotated, t->x + h * t->x_step + rotated, (size_t)t->head * size - rotated);
}

VEC_INLINE void rotate_table(const rope_token *t, tn_dtype dtype, tn_dtype table)
{
    if (t->pairs_in && t->pairs_out)
        rotate_form(t, dtype, table, true, true);
    else if (t->pairs_in)
        rotate_form(t, dtype, table, true, false);
    else if (t->pairs_out)
        rotate_form(t, dtype, table, false, true);
    else
        rotate_form(t, dtype, table, false, false);
}

VEC_INLINE void rotate_type(const rope_token *t, tn_dtype dtype)
{
    if (t->table == dtype)
        rotate_table(t, dtype, dtype);
    else
        rotate_table(t, dtype, TN_F32);
}

static void rotate(const rope_token *t)
{
    if (t->dtype == TN_F32)
        rotate_type(t, TN_F32);
    else if (t->dtype == TN_BF16)
        rotate_type(t, TN_BF16);
    else
        rotate_type(t, TN_F16);
}

static const rope_kernels vec_kernels = {rotate};

#endif
