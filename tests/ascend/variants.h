/* Variants of made-up sites: what a site has beyond the plain one of its operation. */
#ifndef TESTS_VARIANTS_H
#define TESTS_VARIANTS_H

#include "check/draw_site.h"

typedef struct variant {
    const char *name;
    tn_op op;
    uint64_t features;
    int32_t layout, act, score, norm, rope, weight; /* 0: the first one                            */
    struct {
        tn_dim dim;
        int64_t size;
    } dims[4];
    bool spread; /* GLU: one gate for all features of a token                                      */
    double eps;
} variant;

static inline tn_site variant_site(const variant *v, tn_dtype dtype)
{
    bool step = v->op >= TN_OP_FIRST_STEP;
    tn_site site = draw_site_plain(step ? TN_OP_MLP : v->op);
    const int32_t values[][2] = {{TN_AXIS_LAYOUT, v->layout}, {TN_AXIS_ACT, v->act},   {TN_AXIS_SCORE, v->score},
                                 {TN_AXIS_NORM, v->norm},     {TN_AXIS_ROPE, v->rope}, {TN_AXIS_WEIGHT, v->weight}};
    site.meaning[TN_AXIS_DTYPE] = dtype;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i][1])
            site.meaning[values[i][0]] = values[i][1];
    if (v->features)
        draw_site_add(&site, v->features);
    for (size_t i = 0; i < sizeof v->dims / sizeof *v->dims && v->dims[i].size; i++)
        site.dim[v->dims[i].dim] = v->dims[i].size;
    if (v->op == TN_OP_MOE_ROUTE)
        site.num[TN_NUM_EPS] = v->eps;
    if (v->act == TN_ACT_CLAMPED_SWIGLU) {
        site.num[TN_NUM_LIMIT] = 0.5;
        site.num[TN_NUM_ALPHA] = 1.702;
    }
    if (v->op == TN_OP_SOFTCAP)
        site.num[TN_NUM_SOFTCAP] = 3;
    return site;
}

#endif
