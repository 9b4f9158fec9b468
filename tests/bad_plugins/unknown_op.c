/* An operation that is no contract. */
#include "honest.h"

static const tn_impl impls[] = {
    {.size = sizeof(tn_impl), .op = TN_OP_EMBEDDING, .match = HONEST_MATCH, .forward = honest_forward}};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_unknown_op", impls)};

TN_PLUGIN("unknown_op", "1.0.0", .kernels = kernels, .kernel_count = 1);
