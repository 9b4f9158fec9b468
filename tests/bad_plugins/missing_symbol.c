/* It calls a function that nobody has; linked without -z defs. */
#include "honest.h"

void tn_function_that_nobody_has(void);

__attribute__((constructor)) static void call_it(void)
{
    tn_function_that_nobody_has();
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_missing", impls)};

TN_PLUGIN("missing_symbol", "1.0.0", .kernels = kernels, .kernel_count = 1);
