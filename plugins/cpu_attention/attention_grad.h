/* Gradients of cpu_attention: what its instruction sets bring beside forward's. */
#ifndef CPU_ATTENTION_GRAD_H
#define CPU_ATTENTION_GRAD_H

#include "attention.h"

/* What is known of sixteen rows of gradients: the largest score, 1 / the sum of powers of two, and sum_s p dp. While
 * these are being summed, inverse is the sum and inner sum_s 2^(x - max) dp. */
typedef struct attention_grad_lanes {
    _Alignas(64) float max[ATTENTION_LANES];
    float inverse[ATTENTION_LANES], inner[ATTENTION_LANES];
} attention_grad_lanes;

/* Scores of count keys by sixteen rows and the gradients of their probabilities, [key][16]. */
typedef struct attention_grad_block {
    const float *x, *dp;
    float scale, cap_out; /* of scores; softcap                                                      */
    float natural;        /* of products, to their gradients                                         */
    int64_t count;
    void *p, *ds;   /* [key][ATTENTION_ROWS], from the first of these rows on: left operands          */
    void *ds_panel; /* [key][16], or [key / 2][16][2]: a right operand                                */
} attention_grad_block;

typedef struct attention_grad_kernels {
    /* Adds a block to the sums. */
    void (*sum)(attention_grad_lanes *lanes, const attention_grad_block *block);
    /* p = 2^(x - max) / sum, ds = p (dp - inner), back through softcap and scale. */
    void (*soften)(const attention_grad_lanes *lanes, const attention_grad_block *block);
    /* Sixteen rows as right operands whose lanes are columns: [column / 16][ATTENTION_ROWS][16], by pairs of rows where
     * products take pairs. */
    void (*rows)(const char *const *row, tn_dtype dtype, int64_t n, void *panel);
    /* rows of n elements that lie as [n / 16][ATTENTION_KEYS][16] f32. */
    void (*narrow)(const float *from, int64_t n, tn_dtype dtype, char *to);
} attention_grad_kernels;

void attention_grad_init_c(attention_grad_kernels *kernels);
void attention_grad_init_avx2(attention_grad_kernels *kernels);
void attention_grad_init_avx512(attention_grad_kernels *kernels);
void attention_grad_init_avx512bf16(attention_grad_kernels *kernels);
void attention_grad_init_neon(attention_grad_kernels *kernels);

size_t attention_backward_scratch(const attention_layer *layer);
void attention_backward(const attention_layer *layer, const tn_call *call);

#endif
