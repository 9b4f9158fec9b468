/* A kernel that fulfils nothing. */
#include "honest.h"

static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel), .id = "test_no_impl", .device = "cpu"}};

TN_PLUGIN("no_impl", "1.0.0", .kernels = kernels, .kernel_count = 1);
