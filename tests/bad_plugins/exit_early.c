/* Its constructor leaves the process. */
#include "honest.h"

#include <stdlib.h>

__attribute__((constructor)) static void leave(void)
{
    exit(3);
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_exit", impls)};

TN_PLUGIN("exit_early", "1.0.0", .kernels = kernels, .kernel_count = 1);
