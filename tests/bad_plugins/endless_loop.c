/* Its constructor never ends and uses the processor all the time. */
#include "honest.h"

__attribute__((constructor)) static void spin(void)
{
    for (volatile unsigned i = 0;; i++)
        continue;
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_loop", impls)};

TN_PLUGIN("endless_loop", "1.0.0", .kernels = kernels, .kernel_count = 1);
