/* Its constructor takes over a signal. */
#include "honest.h"

#include <signal.h>

__attribute__((constructor)) static void ignore_interrupts(void)
{
    signal(SIGUSR1, SIG_IGN);
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_changes_signals", impls)};

TN_PLUGIN("changes_signals", "1.0.0", .kernels = kernels, .kernel_count = 1);
