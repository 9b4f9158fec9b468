/* The machine in words and numbers. */
#include "device/machine.h"

#include "base/structs.h"
#include "device/ceiling.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <tenon/kernel.h>
#include <tenon/machine.h>

/* Measurements for tn_measure_machine, of which the best count: neighbours disturb some. */
enum { TIMES = 4 };

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

static double *rates_of(tn_machine *m, const ceiling_peak *peak)
{
    if (peak->flags & TN_CPU_AMX_BF16)
        return m->amx_bf16;
    return peak->dtype == TN_BF16 ? m->bf16 : peak->dtype == TN_F16 ? m->f16 : m->f32;
}

static void fill(tn_machine *m, int at, const ceilings *c)
{
    m->threads[at] = c->threads;
    m->read[at] = c->read;
    m->copy[at] = c->copy;
    for (int p = 0; ceiling_peak_at(p); p++) {
        double *to = rates_of(m, ceiling_peak_at(p));
        to[at] = c->peak[p] > to[at] ? c->peak[p] : to[at];
    }
}

tn_status tn_measure_machine(tn_machine *machine, tn_error *err)
{
    if (!machine || machine->size < sizeof machine->size)
        return tn_fail(err, TN_E_USAGE, "machine", "needs a struct whose size is set; set it to sizeof(tn_machine)");
    tn_machine m = {.size = machine->size};
    ceilings one, all, again;
    machine_cpu_name(m.cpu, sizeof m.cpu);
    m.cache_bytes = machine_cache_bytes(INT32_MAX);
    if (!ceiling_open())
        return tn_fail(err, TN_E_MEMORY, "machine", "out of memory; measuring needs four times the last cache");
    m.memory_bytes = ceiling_memory_bytes();
    ceiling_measure(&one, 1);
    ceiling_measure(&all, 0);
    for (int i = 1; i < TIMES; i++) {
        ceiling_measure(&again, 1);
        ceiling_join(&one, &again);
        ceiling_measure(&again, 0);
        ceiling_join(&all, &again);
    }
    ceiling_close();
    fill(&m, 0, &one);
    fill(&m, 1, &all);
    return structs_give(machine, &m, sizeof m, "tn_machine", err);
}
