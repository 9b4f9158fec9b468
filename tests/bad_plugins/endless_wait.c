/* Its constructor never ends and sleeps. */
#include "honest.h"

#include <unistd.h>

__attribute__((constructor)) static void wait_for_nothing(void)
{
    for (;;)
        pause();
}

HONEST_PLUGIN("endless_wait", "test_wait", honest_forward);
