/* Memory that the machine has free. */
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static size_t pretended;

void memory_pretend(size_t bytes)
{
    pretended = bytes;
}

size_t memory_available(size_t otherwise)
{
    char line[128];
    unsigned long long kilobytes = 0;
    bool found = false;
    FILE *file = pretended ? NULL : fopen("/proc/meminfo", "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1;
    if (file)
        fclose(file);
    if (pretended)
        return pretended;
    return found ? (size_t)kilobytes << 10 : otherwise;
}
