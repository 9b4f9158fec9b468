/* The middle of a gated MLP on rows of f32 sums, where it is not done inside of a product: Gaussian sparsity (Gemma 3n)
 * and gradients. Results depend on the row and the instruction set alone. */
#ifndef GATE_H
#define GATE_H

#include <tenon/kernel.h>

/* Where a sparse row is cut: its activation is applied to relu(gate - cut), cut = mean + quantile * deviation. */
typedef struct gate_cut {
    float quantile, mean, deviation, cut;
} gate_cut;

/* n features of one token; a whole row where there is a cut and a gradient. Rows may lie anywhere; results may lie in
 * the memory of what they are computed from, element by element, when their type is not wider. */
typedef struct gate_row {
    tn_act act;     /* TN_ACT_SILU, TN_ACT_GELU_TANH, TN_ACT_GELU; others are linear                 */
    tn_dtype dtype; /* of h, d_gate and d_up                                                         */
    const float *gate, *up;
    const gate_cut *cut; /* NULL: not sparse                                                          */
    void *h;
    /* grad only */
    float *dh;   /* gradient of the unscaled h; used up where there is a cut                          */
    float scale; /* what h is multiplied by, 1 or the weight of an expert                             */
    void *d_gate, *d_up;
} gate_row;

typedef struct gate_kernels {
    /* Mean, population deviation and cut of a row; cut->quantile is given. */
    void (*cut)(const float *gate, int64_t n, gate_cut *cut);

    /* h = act(gate) * up. */
    void (*glu)(const gate_row *row, int64_t n);

    /* h = scale * act(gate) * up, and the gradients of gate and up times scale. Returns the sum of dh * act(gate) * up:
     * the gradient of scale. */
    float (*grad)(const gate_row *row, int64_t n);
} gate_kernels;

/* The best functions among those that cpu_flags allow. */
void gate_kernels_init(gate_kernels *kernels, uint64_t cpu_flags);

/* ---- per instruction set ------------------------------------------------------------------------------- */

void gate_init_c(gate_kernels *kernels);
void gate_init_avx2(gate_kernels *kernels);
void gate_init_avx512(gate_kernels *kernels);
void gate_init_neon(gate_kernels *kernels);

#endif
