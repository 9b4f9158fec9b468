/* Tenon: what the machine can do at best, which timings are held against. Included by tenon.h. */
#ifndef TENON_MACHINE_H
#define TENON_MACHINE_H

#include <tenon/error.h>
#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rates per second: [0] on one thread, [1] on all threads of the process. Each is the best of several runs of a loop
 * that does nothing else. A byte that is written counts as one, a multiply-add as two operations; 0: this machine, or
 * TENON_CPU, does not have it. */
typedef struct tn_machine {
    uint32_t size; /* set by the caller                                                         */
    int32_t threads[2];
    char cpu[128];           /* name of the processor                                               */
    int64_t cache_bytes;     /* of the last caches that the process reaches, as the system says       */
    int64_t memory_bytes;    /* that reading and copying went round                                  */
    double read[2], copy[2]; /* bytes of memory, outside of every cache                           */
    double f32[2];           /* multiply-adds with the widest vectors                             */
    double bf16[2];          /* AVX512-BF16's dot products, sums in f32                           */
    double f16[2];           /* AVX512-FP16's multiply-adds, sums in f16                          */
    double amx_bf16[2];      /* AMX's tile products, sums in f32                                  */
} tn_machine;

/* Measures all of it, which takes a second or some, and for that time memory of four times the last cache (half a
 * gigabyte at least, an eighth of the machine's at most). Nothing else should run; one call at a time. */
TN_API tn_status tn_measure_machine(tn_machine *machine, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
