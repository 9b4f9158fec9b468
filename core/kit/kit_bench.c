/* Timing (to come). */
#include "kit/kit.h"
tn_status kit_bench_impl(kit *k, const registry_kernel *kernel, int32_t impl, tn_dtype dtype, tn_error *err)
{
    (void)k, (void)kernel, (void)impl, (void)dtype, (void)err;
    return TN_OK;
}
