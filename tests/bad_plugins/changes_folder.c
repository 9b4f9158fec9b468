/* Its constructor changes the working directory and the locale. */
#include "honest.h"

#include <locale.h>
#include <unistd.h>

__attribute__((constructor)) static void wander_off(void)
{
    if (chdir("/") != 0)
        _exit(1);
    setlocale(LC_ALL, "C.UTF-8");
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static const tn_kernel kernels[] = {HONEST_KERNEL("test_changes_folder", impls)};

TN_PLUGIN("changes_folder", "1.0.0", .kernels = kernels, .kernel_count = 1);
