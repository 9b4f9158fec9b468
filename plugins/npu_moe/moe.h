/* Mixture of experts: y_t = sum over the k experts of token t of weight * expert(x_t), where an expert is a gated MLP;
 * with a router that chooses them, and with a shared expert that every token has besides. The products are those of
 * plugins/common/product*.c, one file per instruction set. */
#ifndef MOE_H
#define MOE_H

#include "gate.h"
#include "router.h"

/* What a site says, with its weights. Borrowed from the site. */
typedef struct moe_layer {
    const product_kernels *kernels;
    const gate_kernels *gates; /* for gradients                                                     */
    tn_act act;
    int64_t hidden, inter, experts, top_k;
    bool scaled; /* a routing weight is a factor of its expert's input, not of its output             */
    tn_layout layout;
    const tn_tensor *gate, *up, *down, *gate_up; /* arrays of one per expert, or stacked tensors   */
    const tn_tensor *gate_up_bias, *down_bias;   /* [E,2I], [E,H], or NULL                          */
    float limit, alpha;                          /* of the clamped activation                       */
    router router;                               /* router.weight NULL: the caller routes            */
    int64_t shared_inter;                        /* 0: no shared expert                               */
    const tn_tensor *shared_gate, *shared_up, *shared_down;
    const tn_tensor *shared_scale; /* [1,H]: the shared expert counts sigmoid(x . it) times; or NULL */
} moe_layer;

/* Expert e, or the shared one for e == layer->experts. */
product_mlp moe_expert(const moe_layer *layer, int64_t e);

/* Slots per token: one per chosen expert, then the shared expert. */
static inline int64_t moe_slots(const moe_layer *layer)
{
    return layer->top_k + (layer->shared_inter > 0);
}

/* Tokens by expert: slots[offsets[e] .. offsets[e + 1] - 1] are the places token * slots-per-token + j of expert e's
 * tokens, ascending; e runs to the number of experts, the shared one included. experts: top_k ids per token; those
 * below 0 have no slot. */
void moe_group(const moe_layer *layer, const int32_t *experts, int64_t tokens, int64_t *offsets, int32_t *slots);

/* The input of a call. weights [T,k] (f32 or dtype) and experts [T,k] i32 are NULL for a layer with a router. */
typedef struct moe_input {
    const tn_tensor *x, *weights, *experts;
    int64_t max_tokens; /* that scratch was sized for, */
    int32_t threads;    /* and threads                                                              */
    const char *where;  /* the site's path, for errors: an expert id out of range, a score that is NaN */
} moe_input;

/* Bytes of scratch for calls of at most max_tokens tokens on at most `threads` threads. */
size_t moe_scratch_size(const moe_layer *layer, int64_t max_tokens, int32_t threads);

/* One call. After an error nothing is written. */
tn_status moe_forward(const moe_layer *layer, const moe_input *in, const tn_tensor *y, void *scratch, tn_error *err)
    __attribute__((nonnull(4)));

/* Its gradients, those that grads asks for: dL/dx, dL/dweights of the caller's routing, and of every parameter. */
size_t moe_backward_scratch_size(const moe_layer *layer, int64_t max_tokens, int32_t threads);
tn_status moe_backward(const moe_layer *layer, const moe_input *in, const tn_grads *grads, void *scratch, tn_error *err)
    __attribute__((nonnull(4)));

/* Refuses ids of experts that come from outside and name none. */
tn_status moe_check_ids(const moe_layer *layer, const moe_input *in, tn_error *err);

#endif
