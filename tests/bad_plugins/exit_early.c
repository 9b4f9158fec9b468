/* Its constructor leaves the process. */
#include "honest.h"

#include <stdlib.h>

__attribute__((constructor)) static void leave(void)
{
    exit(3);
}

HONEST_PLUGIN("exit_early", "test_exit", honest_forward);
