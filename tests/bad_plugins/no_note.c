/* Registers by hand, without the note that TN_PLUGIN writes. */
#include "honest.h"

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_no_note", impls)};
static const tn_plugin plugin = {.size = sizeof(tn_plugin),
                                 .abi_major = TN_ABI_MAJOR,
                                 .name = "no_note",
                                 .version = "1.0.0",
                                 .kernels = kernels,
                                 .kernel_count = 1};

__attribute__((constructor)) static void by_hand(void)
{
    tn_register(&plugin);
}
