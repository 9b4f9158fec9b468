/* measure_machine: what this machine can do now, as one JSON object: how fast THREADS threads read memory, and the
 * fastest arithmetic on bf16. What scripts/bench_peers measures before each program that it runs. */
#include "device/ceiling.h"
#include "device/device.h"
#include "device/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <tenon/kernel.h>

/* Sums in f32: no kernel may use others. */
static double fastest(const ceilings *c)
{
    double rate = 0;
    for (int p = 0; ceiling_peak_at(p); p++)
        if (ceiling_peak_at(p)->dtype != TN_F16 && c->peak[p] > rate)
            rate = c->peak[p];
    return rate;
}

int main(int argc, char **argv)
{
    char cpu[128];
    ceilings c, again;
    long threads = argc == 2 ? strtol(argv[1], NULL, 10) : argc == 1 ? 0 : -1;
    if (threads < 0 || threads > 1024) {
        fprintf(stderr, "usage: measure_machine [THREADS]\n");
        return 2;
    }
    threads_set((int32_t)threads);
    if (!ceiling_open()) {
        fprintf(stderr, "measure_machine: out of memory\n");
        return 6;
    }
    ceiling_measure(&c, 0);
    ceiling_measure(&again, 0);
    ceiling_join(&c, &again);
    ceiling_close();
    machine_cpu_name(cpu, sizeof cpu);
    for (char *at = cpu; *at; at++)
        if (*at == '"' || *at == '\\')
            *at = ' ';
    printf("{\"cpu\": \"%s\", \"threads\": %d, \"read_gb_per_second\": %.2f, \"bf16_gflops\": %.1f}\n", cpu,
           (int)c.threads, c.read * 1e-9, fastest(&c) * 1e-9);
    return 0;
}
