/* Its constructor never ends and uses the processor all the time. */
#include "honest.h"

__attribute__((constructor)) static void spin(void)
{
    for (volatile unsigned i = 0;; i++)
        continue;
}

HONEST_PLUGIN("endless_loop", "test_loop", honest_forward);
