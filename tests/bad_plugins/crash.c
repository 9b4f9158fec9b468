/* Its constructor writes to an address where nothing is. */
#include "honest.h"

static volatile int *volatile nowhere = (volatile int *)8;

__attribute__((constructor)) static void crash(void)
{
    *nowhere = 1;
}

HONEST_PLUGIN("crash", "test_crash", honest_forward);
