/* Two kernels: one says what it misses, one crashes when it is asked. */
#include "honest.h"

static volatile int *volatile nowhere = (volatile int *)8;

static tn_status says_why(tn_error *err)
{
    return tn_fail(err, TN_DECLINED, NULL, "needs an abacus with at least 12 rods");
}

static tn_status crashes(tn_error *err)
{
    (void)err;
    *nowhere = 1;
    return TN_OK;
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "test_not_available",
                                     .version = "1.0.0",
                                     .summary = "needs what is not there",
                                     .device = "cpu",
                                     .available = says_why,
                                     .impls = impls,
                                     .impl_count = 1},
                                    {.size = sizeof(tn_kernel),
                                     .id = "test_crashes_when_asked",
                                     .version = "1.0.0",
                                     .device = "cpu",
                                     .available = crashes,
                                     .impls = impls,
                                     .impl_count = 1}};

TN_PLUGIN("not_available", "1.0.0", .kernels = kernels, .kernel_count = 2);
