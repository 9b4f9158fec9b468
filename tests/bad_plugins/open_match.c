/* A norm that does not say which variant it computes. */
#include "honest.h"

static const tn_impl impls[] = {{.size = sizeof(tn_impl),
                                 .op = TN_OP_RMS_NORM,
                                 .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32)}},
                                 .forward = honest_forward}};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_open_match", impls)};

TN_PLUGIN("open_match", "1.0.0", .kernels = kernels, .kernel_count = 1);
