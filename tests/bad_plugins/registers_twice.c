/* It hands the same descriptor over a second time. */
#include "honest.h"

static const tn_plugin again = {.size = sizeof(tn_plugin), .abi_major = TN_ABI_MAJOR};

__attribute__((constructor)) static void once_more(void)
{
    tn_register(&again);
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_registers_twice", impls)};

TN_PLUGIN("registers_twice", "1.0.0", .kernels = kernels, .kernel_count = 1);
