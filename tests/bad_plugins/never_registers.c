/* Has the note, but its constructor registers with nobody. */
#include "honest.h"

#define tn_register(plugin) ((void)(plugin))

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_never_registers", impls)};

TN_PLUGIN("never_registers", "1.0.0", .kernels = kernels, .kernel_count = 1);
