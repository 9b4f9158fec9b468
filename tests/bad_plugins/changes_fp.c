/* Its constructor flushes denormals to zero, as code linked with -ffast-math does. */
#include "honest.h"

#include <fenv.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

__attribute__((constructor)) static void flush_denormals(void)
{
#ifdef __SSE__
    _mm_setcsr(_mm_getcsr() | 0x8040);
#else
    fesetround(FE_DOWNWARD);
#endif
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_changes_fp", impls)};

TN_PLUGIN("changes_fp", "1.0.0", .kernels = kernels, .kernel_count = 1);
