/* What the system says of the machine. */
#include "device/machine.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

/* Every key of what is remembered has it. */
static char cpu_name[128];
static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;

static void read_cpu_name(void)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    struct utsname system;
    snprintf(cpu_name, sizeof cpu_name, "%s", uname(&system) == 0 ? system.machine : "unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(cpu_name, sizeof cpu_name, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file)
        fclose(file);
}

void machine_cpu_name(char *name, size_t size)
{
    pthread_once(&cpu_once, read_cpu_name);
    snprintf(name, size, "%s", cpu_name);
}

/* The first number in a file of this processor's cache; 0: no such file. */
static long long cache_number(int processor, int level, const char *what)
{
    char path[128];
    long long value = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", processor, level, what);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%lld", &value) != 1)
        value = 0;
    if (file)
        fclose(file);
    return value;
}

/* As the kernel says: what the C library makes of the processor's own tables is too large in virtual machines. A cache
 * is named by the first processor that shares it. */
int64_t machine_cache_bytes(int32_t threads)
{
    enum { UNKNOWN = 32 << 20 };
    cpu_set_t may, seen;
    int64_t kilobytes = 0;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof may, &may) != 0)
        return UNKNOWN;
    for (int p = 0; p < CPU_SETSIZE && threads > 0; p++) {
        int level = CPU_ISSET(p, &may) ? 3 : 0;
        while (level > 0 && cache_number(p, level, "size") <= 0)
            level--;
        long long first = level > 0 ? cache_number(p, level, "shared_cpu_list") : CPU_SETSIZE;
        if (first < 0 || first >= CPU_SETSIZE || CPU_ISSET((size_t)first, &seen))
            continue;
        CPU_SET((size_t)first, &seen);
        kilobytes += cache_number(p, level, "size");
        threads--;
    }
    return kilobytes > 0 ? kilobytes << 10 : UNKNOWN;
}
