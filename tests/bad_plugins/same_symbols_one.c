/* Exports helper, as same_symbols_two does. */
#include "same_symbols.h"

int helper(void)
{
    return 1;
}

static const tn_kernel kernels[] = {SAYS_HELPER("test_same_one")};
TN_PLUGIN("same_symbols_one", "1.0.0", .kernels = kernels, .kernel_count = 1);
