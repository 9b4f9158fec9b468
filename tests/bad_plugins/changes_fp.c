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

HONEST_PLUGIN("changes_fp", "test_changes_fp", honest_forward);
