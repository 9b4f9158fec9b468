/* Sites of the four contracts: what they say, with their weights, and whether it fits together. */
#ifndef SITE_H
#define SITE_H

#include "gmm.h"
#include "moe.h"

/* Not to be moved: layer points into it. */
typedef struct moe_site {
    product_kernels own, wide, f32; /* for the dtype of activations; with f32 as native type; for f32         */
    gate_kernels gates;
    moe_layer layer;
} moe_site;

/* MOE_ROUTE, MOE_EXPERTS, MOE_BLOCK. flags: the instruction sets to use. */
void site_open(moe_site *s, const tn_site *site, uint64_t flags);

/* TN_DECLINED with the reason where the site's weights contradict what it says, or are of a kind that is not taken. */
tn_status site_check(const tn_site *site, tn_error *err);

/* GROUPED_MATMUL. */
gmm_layer site_gmm(const product_kernels *kernels, const tn_site *site);
tn_status site_check_gmm(const tn_site *site, tn_error *err);

#endif
