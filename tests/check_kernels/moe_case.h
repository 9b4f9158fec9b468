/* What the checks of MOE_EXPERTS and MOE_BLOCK and their golden files have in common. */
#ifndef TENON_CHECK_MOE_CASE_H
#define TENON_CHECK_MOE_CASE_H

#include "check_kernels.h"

/* Which experts the tokens of an experts case ask for: TWICE names one for all places of a token. */
typedef enum moe_pattern { SPREAD, ONE_EXPERT, LAST_ONLY, TWICE, CROWDED } moe_pattern;

typedef struct moe_shape {
    int64_t tokens, hidden, inter, experts, top_k, gap, shared; /* shared: 0 or the shared expert's width */
    moe_pattern ids;
    uint64_t features;
    tn_act act;     /* 0: TN_ACT_SILU                                                                  */
    tn_score score; /* 0: TN_SCORE_SOFTMAX; sigmoid with groups: 4, of which 2                      */
} moe_shape;

/* A case with the site's meaning and dimensions, and no tensors yet. */
check_case moe_open_case(tn_op op, tn_layout layout, tn_dtype dtype, const moe_shape *s);

/* check_test.golden of "moe". */
bool moe_golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype);

#endif
