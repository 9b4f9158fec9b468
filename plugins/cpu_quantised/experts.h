/* Inside cpu_quantised: experts whose weights are quantised, a few tokens at a time. */
#ifndef EXPERTS_H
#define EXPERTS_H

#include "codes.h"
#include "product.h"

/* The experts of a site with the functions that compute them. */
typedef struct experts_layer {
    product_kernels kernels;
    codes_kernels unpacks;
    const tn_site *site;
    int64_t hidden, inter, top_k;
} experts_layer;

void experts_open(experts_layer *layer, const tn_site *site, uint64_t flags);

/* Declines what codes_open does, and types whose codes are no integers. */
tn_status experts_check(const experts_layer *layer, tn_error *err);

size_t experts_scratch_size(const experts_layer *layer, int64_t max_tokens, int32_t threads);
tn_status experts_forward(const experts_layer *layer, const tn_call *call, tn_error *err);

/* experts_many.c: more than PRODUCT_FEW_TOKENS, whose experts were checked. */
size_t experts_many_scratch_size(const experts_layer *layer, int64_t max_tokens, int32_t threads);
void experts_many(const experts_layer *layer, const tn_call *call);

/* Features f .. f + n - 1 of h (n <= PRODUCT_FEW_ROWS), in f32, from sums of gates and ups, which are used up; biases
 * of outputs from column on, added to y. */
void experts_glu(const experts_layer *layer, int64_t expert, int64_t f, int64_t n, float *gate, float *up, float *h);
void experts_add_bias(const experts_layer *layer, int64_t expert, int64_t column, int64_t n, float *y);

/* The expert of a slot, and the weights of all slots, of the tokens from `first` on. */
int32_t experts_id(const experts_layer *layer, const tn_call *call, int64_t first, int64_t slot);
void experts_weights(const experts_layer *layer, const tn_call *call, int64_t first, int64_t tokens, float *weights);

#endif
