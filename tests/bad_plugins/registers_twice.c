/* It hands the same descriptor over a second time. */
#include "honest.h"

static const tn_plugin again = {.size = sizeof(tn_plugin), .abi_major = TN_ABI_MAJOR};

__attribute__((constructor)) static void once_more(void)
{
    tn_register(&again);
}

HONEST_PLUGIN("registers_twice", "test_registers_twice", honest_forward);
