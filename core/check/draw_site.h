/* Inside core: made-up sites, from the table of operations alone: for trying kernels without a model. */
#ifndef TENON_CORE_DRAW_SITE_H
#define TENON_CORE_DRAW_SITE_H

#include <tenon/operation.h>

#include <stdbool.h>

/* A site with parameters of its own. */
typedef struct draw_site {
    tn_site site;
    tn_tensor *tensors; /* what site.param[].tensors point into                                   */
    void *memory;
} draw_site;

/* Completes like, whose op, meaning, features, dim and num are set, with parameters as its row asks: matrices whose
 * products have the size of what goes in, norms near 1, biases small; the same for the same seed. Parameters have the
 * type of TN_AXIS_WEIGHT (set to that of the activations where the operation has weights and like says none).
 * TN_E_USAGE when like contradicts its row. Close with draw_site_close. */
tn_status draw_site_open(draw_site *d, const tn_site *like, uint64_t seed, tn_error *err);
void draw_site_close(draw_site *d);

/* A small site of an operation with everything but parameters: f32, the first value of each axis that it has, no
 * feature, small dimensions that are no multiples of each other. path and class_name are the operation's name. */
tn_site draw_site_plain(tn_op op);

/* Gives it a feature, with the dimensions and numbers that go with it. */
void draw_site_add(tn_site *site, uint64_t feature);

/* The type of a matrix: with TN_HAS_MIXED those of gate, up and down differ, where there are three of a kind. */
tn_dtype draw_site_type(const tn_site *site, tn_role role);

/* Can a site of the operation have this value of the axis? */
bool draw_site_has_value(tn_op op, tn_axis axis, int32_t value);

#endif
