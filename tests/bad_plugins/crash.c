/* Its constructor writes to an address where nothing is. */
#include "honest.h"

static volatile int *volatile nowhere = (volatile int *)8;

__attribute__((constructor)) static void crash(void)
{
    *nowhere = 1;
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_crash", impls)};

TN_PLUGIN("crash", "1.0.0", .kernels = kernels, .kernel_count = 1);
