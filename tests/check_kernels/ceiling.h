/* What this machine can do at best, by loops that do nothing else: what timings are held against. */
#ifndef TENON_CHECK_CEILING_H
#define TENON_CHECK_CEILING_H

#include <stdbool.h>
#include <stdint.h>
#include <tenon/tensor.h>

/* Loops over memory; n is a multiple of 128 floats for each stream. Sequential loads and stores, no store goes around
 * the caches. a is read in streams that lie n / streams apart, which keep more of the memory's banks busy than one
 * does. */
typedef struct ceiling_loops {
    float (*read)(const float *a, int64_t n, int streams);
    void (*copy)(float *to, const float *a, int64_t n, int streams);
    void (*triad)(float *to, const float *a, const float *b, int64_t n, int streams); /* to = a + 3 b  */
    void (*update)(float *a, int64_t n, int streams);                                 /* a = 3 a       */
} ceiling_loops;

/* Arithmetic in registers; returns how many operations (an FMA is two) rounds of it are. */
typedef struct ceiling_peak {
    const char *name, *brief;
    uint64_t flags; /* of the processor                                                          */
    tn_dtype dtype; /* of the operands: TN_F32 stands for every type that is widened first         */
    double (*run)(int64_t rounds);
} ceiling_peak;

enum { CEILING_PEAKS_MAX = 8 };

/* On some number of threads, in bytes and operations per second. A byte that is written counts once. */
typedef struct ceilings {
    int threads;
    double read, copy, triad, update; /* of memory                                               */
    double cached;                    /* copy of a quarter of the second cache, on each thread     */
    double peak[CEILING_PEAKS_MAX];   /* in the order of ceiling_peak_at; 0: not on this machine    */
} ceilings;

/* The kinds of arithmetic; NULL after the last. */
const ceiling_peak *ceiling_peak_at(int index);

/* Memory for measuring, spread over the threads of now. False when there is none. */
bool ceilings_open(void);
void ceilings_close(void);

/* Measured now, by runs of some milliseconds each on the threads that are set. */
void ceilings_measure(ceilings *c, int threads);
/* The larger of each. */
void ceilings_join(ceilings *c, const ceilings *other);

/* Bytes of the last cache. */
int64_t ceiling_cache_bytes(void);

/* The least time for operands of dtype and this many operations with what the flags allow; which: its brief name. */
double ceiling_flops_seconds(const ceilings *c, uint64_t flags, tn_dtype dtype, double flops, const char **which);
/* Out of memory: the bytes that are read and written; in_place: the same ones. */
double ceiling_memory_seconds(const ceilings *c, double read, double written, bool in_place);
/* The same in cache, measured now on one thread or on all of c: whichever is faster. */
double ceiling_cached_seconds(const ceilings *c, double read, double written, bool in_place);

#endif
