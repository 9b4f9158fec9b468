/* Inside cpu_quantised: experts whose weights are quantised. */
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
    int32_t terms;  /* of int8 that activations are rounded to for products of integers: 1 or 2             */
    bool many_ints; /* many tokens are, too, and a token's bits are the same in any call                    */
} experts_layer;

void experts_open(experts_layer *layer, const tn_site *site, uint64_t flags, int32_t terms, bool many_ints);

/* Declines what codes_open does, and other types than these. */
tn_status experts_check(const experts_layer *layer, uint64_t dtypes, tn_error *err);

size_t experts_scratch_size(const experts_layer *layer, int64_t max_tokens, int32_t threads);
tn_status experts_forward(const experts_layer *layer, const tn_call *call, tn_error *err);

/* experts_many.c: more than PRODUCT_FEW_TOKENS, whose experts were checked. */
size_t experts_many_scratch_size(const experts_layer *layer, int64_t max_tokens, int32_t threads);
void experts_many(const experts_layer *layer, const tn_call *call);

/* Features f .. f + n - 1 of h (n <= PRODUCT_FEW_ROWS), in f32, from sums of gates and ups, which are used up; biases
 * of outputs from column on, added to y. */
void experts_glu(const experts_layer *layer, int64_t expert, int64_t f, int64_t n, float *gate, float *up, float *h);
void experts_add_bias(const experts_layer *layer, int64_t expert, int64_t column, int64_t n, float *y);

/* experts_ints.c: rows of activations that are rounded to `terms` rows of int8 each, in tiles for products with so many
 * of them. */
int64_t experts_tile(const experts_layer *layer, int64_t tokens);

/* Row i of n; rest: k floats. False, and zeros: it is not finite. */
bool experts_round(const experts_layer *layer, const float *x, int64_t k, int64_t i, int64_t n, float *rest,
                   ints_group *tiles);

/* sums[i * CODES_ROWS + r] = row + r of c times row i of n for r < rows <= CODES_ROWS; laid: memory for
 * many_laid_bytes, aligned to 64. Sums have room for CODES_TOKENS rows more. */
void experts_multiply(const experts_layer *layer, const codes *c, int64_t row, int64_t rows, int64_t k,
                      ints_group *tiles, int64_t n, void *laid, float *sums);

/* sums[r] = row + r of c times x as it is, for r < n; unpacked: k floats. */
void experts_multiply_plain(const experts_layer *layer, const codes *c, int64_t row, int64_t n, const float *x,
                            int64_t k, float *unpacked, float *sums);

/* The expert of a slot, and the weights of all slots, of the tokens from `first` on. */
int32_t experts_id(const experts_layer *layer, const tn_call *call, int64_t first, int64_t slot);
void experts_weights(const experts_layer *layer, const tn_call *call, int64_t first, int64_t tokens, float *weights);

#endif
