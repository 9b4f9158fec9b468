/* Do libraries come in, and what do they bring about? The dynamic linker counts them, and the kernel knows the stack.
 */
#include "device/libraries.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

static int take_count(struct dl_phdr_info *info, size_t size, void *arg)
{
    unsigned long long *count = arg;
    (void)size;
    *count = info->dlpi_adds;
    return 1;
}

unsigned long long libraries_loaded(void)
{
    unsigned long long count = 0;
    dl_iterate_phdr(take_count, &count);
    return count;
}

/* "START-END rwxp OFFSET DEVICE INODE [stack]" */
bool libraries_stack_runs(void)
{
    char line[512], rights[5];
    bool runs = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]") && sscanf(line, "%*s %4s", rights) == 1)
            runs = rights[2] == 'x';
    if (maps)
        fclose(maps);
    return runs;
}
