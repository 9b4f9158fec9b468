/* Its constructor takes over a signal. */
#include "honest.h"

#include <signal.h>

__attribute__((constructor)) static void ignore_interrupts(void)
{
    signal(SIGUSR1, SIG_IGN);
}

HONEST_PLUGIN("changes_signals", "test_changes_signals", honest_forward);
