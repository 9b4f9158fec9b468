/* Its constructor never ends and sleeps. */
#include "honest.h"

#include <unistd.h>

__attribute__((constructor)) static void wait_for_nothing(void)
{
    for (;;)
        pause();
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_wait", impls)};

TN_PLUGIN("endless_wait", "1.0.0", .kernels = kernels, .kernel_count = 1);
