/* The machine in words and numbers. */
#include "base/structs.h"
#include "device/ceiling.h"
#include "device/machine.h"

#include <tenon/kernel.h>
#include <tenon/machine.h>

/* Measurements for tn_measure_machine, of which the best count: neighbours disturb some. */
enum { TIMES = 4 };

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
