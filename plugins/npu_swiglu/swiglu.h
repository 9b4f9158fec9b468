/* y = down(act(gate(x)) * up(x)) and its gradients for a whole call: blocks of tokens, threads, scratch. The arithmetic
 * is in plugins/common/product*.c and gate*.c, one file per instruction set. */
#ifndef SWIGLU_H
#define SWIGLU_H

#include "gate.h"
#include "product_grad.h"

/* A layer with the functions that compute it, which swiglu_layer_init fills in when the rest is there. */
typedef struct swiglu_layer {
    product_kernels kernels;
    product_kernels full; /* of f32                                                                */
    gate_kernels gates;
    product_mlp mlp;
    tn_act act;
    bool up_first; /* the rows of up lie before those of gate                                    */
    bool sparse;
    float quantile; /* of a sparse layer                                                           */
    int64_t hidden;
    int64_t max_tokens; /* of a call                                                               */
    int32_t threads;    /* most of a call                                                          */
} swiglu_layer;

void swiglu_layer_init(swiglu_layer *layer, tn_dtype dtype, uint64_t cpu_flags);

/* Bytes of scratch. */
size_t swiglu_scratch_size(const swiglu_layer *layer);
size_t swiglu_backward_scratch_size(const swiglu_layer *layer);

/* x and y [..., hidden] of the layer's dtype, of at most max_tokens tokens, rows dense. */
void swiglu_forward(const swiglu_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
    __attribute__((nonnull(4)));

/* Where gradients come from and go to. A tensor that is NULL or has no data is not wanted; dy without data is zero.
 * gate_up and its bias are those of both in the order of the layer, instead of gate and up. */
typedef struct swiglu_gradients {
    const tn_tensor *dy, *dx;
    const tn_tensor *gate, *up, *gate_up, *down;
    const tn_tensor *gate_bias, *up_bias, *gate_up_bias, *down_bias;
} swiglu_gradients;

void swiglu_backward(const swiglu_layer *layer, const tn_tensor *x, const swiglu_gradients *to, void *scratch)
    __attribute__((nonnull(4)));

/* The implementations on an Ascend device. */
enum { SWIGLU_ASCEND_IMPLS = 2 };
extern const tn_impl swiglu_ascend_impls[SWIGLU_ASCEND_IMPLS];

#endif
