/* Sites of the four contracts: what they say, with their weights. */
#ifndef SITE_H
#define SITE_H

#include "gmm.h"
#include "moe.h"

/* Not to be moved: layer points into it. */
typedef struct moe_site {
    product_kernels own, f32; /* for the dtype of activations; for f32                              */
    gate_kernels gates;
    moe_layer layer;
} moe_site;

/* MOE_ROUTE, MOE_EXPERTS, MOE_BLOCK. flags: the instruction sets to use. */
void site_open(moe_site *s, const tn_site *site, uint64_t flags);

/* GROUPED_MATMUL. */
gmm_layer site_gmm(const product_kernels *kernels, const tn_site *site);

#endif
