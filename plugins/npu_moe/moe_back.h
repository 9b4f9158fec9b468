/* Inside npu_moe: gradients of experts. Each in four steps:
 *
 *   rows      x and g = dL/dy of its n tokens side by side, and as panels
 *   features  gate, up and h = act(gate) * up again; p = g down; dL/dweight = p . h;
 *             then w h, dgate = w p up act'(gate), dup = w p act(gate), rounded to the model's dtype
 *   weights   dgate^T x, dup^T x, g^T (w h); panels of dgate and dup
 *   columns   dx += dgate gate + dup up
 *
 * Experts with few tokens go to whoever is free, whole; their dx are kept apart and added up in the order of a token's
 * slots. The others are done one after the other, each by all threads with barriers between the steps: a step is
 * divided into pieces that whoever is free takes. How it is divided changes no result. */
#ifndef MOE_BACK_H
#define MOE_BACK_H

#include "moe_run.h"
#include "router_back.h"

/* Features of one sum of p . h; the sums of a token are then added up in order. */
#define MOE_FEATURES 64

/* Tokens of an expert that one thread does alone, where a call has so few that all slots' dx fill no more than this. */
#define MOE_ALONE 128
#define MOE_ALONE_BYTES ((int64_t)64 << 20)

enum { BACK_ROWS, BACK_FEATURES, BACK_WEIGHTS, BACK_COLUMNS, BACK_STEPS };

typedef struct moe_back {
    const moe_layer *layer;
    const moe_input *in;
    const tn_grads *grads;
    int64_t tokens, inter; /* inter: the wider of the experts' and the shared one's                           */
    bool want_dx;
    bool columns; /* what comes back to inputs is needed: for dx, or for weights that are factors of them    */
    routes routed;
    float *scale;
    int64_t *offsets;
    int32_t *slots;
    float *dweights; /* [tokens, slots]                                                                      */
    float *sums;     /* [tokens, H]: dL/dx                                                                   */
    int64_t *bad;
    /* Of the expert of the moment, in the model's dtype: [n,H], [n,H], [n,I], [n,2I]; and in f32 [n, I / 64]. */
    char *x, *g, *h, *both;
    float *dots;
    float *input_dots; /* weights that are factors of inputs: [tokens * slots, H / 128] parts of d . x        */
    char *x_panel, *g_panel, *gate_panel, *up_panel; /* few tokens: rows of native type                       */
    float *slot_sums; /* [tokens, slots, H]: dL/dx of experts done alone; NULL: of this one it goes to sums   */
    char *alone;      /* memory of each thread's expert of the moment                                        */
    size_t alone_size;
    char *thread;
    size_t strips, x_rows, y_rows, product, router, grad; /* within one thread's memory                      */
    size_t thread_size, total;
    product_queue *queues;  /* BACK_STEPS                                                                     */
    product_queue *experts; /* those that are done alone                                                      */
    router_back *back;
} moe_back;

/* moe_back_expert.c: all steps of expert e, for one thread; and zeros for experts without tokens. */
void moe_back_expert(const moe_back *b, int64_t e, int32_t thread, int32_t threads);

/* Everything that is wanted becomes zeros. */
void moe_zero_grads(const tn_grads *grads);

#endif
