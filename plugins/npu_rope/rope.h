/* Rotary position embedding of the heads of one token: the table of functions and their argument. */
#ifndef TENON_ROPE_H
#define TENON_ROPE_H

#include <tenon/kernel.h>

/* Heads of `head` elements of one dtype, each dense, at a constant step in bytes; the first `rotary` (even, at most
 * head) elements of each are rotated and the rest copied. A pair lies at (2i, 2i + 1) where pairs_in or pairs_out says
 * so, else at (i, i + rotary / 2). cos and sin: [rotary / 2], or with wide [rotary], the second half being the angles
 * of the second results. Any alignment. y may be x at the same step if pairs_in is pairs_out; heads do not overlap
 * otherwise. */
typedef struct rope_token {
    const char *x, *cos, *sin;
    char *y;
    ptrdiff_t x_step, y_step;
    int64_t heads, head, rotary;
    tn_dtype dtype; /* of x and y: f32, bf16 or f16                                               */
    tn_dtype table; /* of cos and sin: that of x, or f32                                          */
    bool pairs_in, pairs_out, wide;
    bool inverse; /* turns back: the gradient of what was rotated                               */
} rope_token;

typedef void rope_fn(const rope_token *token);

typedef struct rope_kernels {
    rope_fn *rotate;
} rope_kernels;

/* Fills every entry with the best that these flags allow. All variants give the same bits. */
void rope_kernels_init(rope_kernels *table, uint64_t cpu_flags);
void rope_kernels_init_avx2(rope_kernels *table);
void rope_kernels_init_avx512(rope_kernels *table);
void rope_kernels_init_avx512bf16(rope_kernels *table);
void rope_kernels_init_neon(rope_kernels *table);

/* The implementations on an Ascend device. */
enum { ROPE_ASCEND_IMPLS = 2 };
extern const tn_impl rope_ascend_impls[ROPE_ASCEND_IMPLS];

#endif
