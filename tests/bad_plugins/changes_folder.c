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

HONEST_PLUGIN("changes_folder", "test_changes_folder", honest_forward);
