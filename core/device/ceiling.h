/* Inside core: what this machine can do at best, by loops that do nothing else. What timings are held against. */
#ifndef TENON_CORE_CEILING_H
#define TENON_CORE_CEILING_H

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

/* Arithmetic in registers, in independent chains that begin with different numbers, none of which stays as it is: a
 * compiler must not find out that two are alike. run returns how many operations (a multiply-add is two) rounds of it
 * are. */
typedef struct ceiling_peak {
    const char *name, *brief;
    uint64_t flags;   /* of the processor                                                        */
    tn_dtype dtype;   /* of the operands: TN_F32 stands for every type that is widened first       */
    bool narrow_sums; /* sums are of that type too, which no operation of kernel.h allows            */
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

/* Memory for measuring, each part near the thread that will use it: four times the last caches that the process can
 * use. Measurements go round it, so that each finds its part outside of every cache. False when there is none. Open
 * once, of the whole process. */
bool ceiling_open(void);
void ceiling_close(void);
int64_t ceiling_memory_bytes(void); /* while it is open                                          */

/* Measured now, by runs of some milliseconds each, on at most this many of the threads that are set; 0: on all. */
void ceiling_measure(ceilings *c, int32_t threads);
/* The larger of each. */
void ceiling_join(ceilings *c, const ceilings *other);

typedef enum ceiling_kind {
    CEILING_READ,
    CEILING_COPY,
    CEILING_TRIAD,
    CEILING_UPDATE,
    CEILING_PEAK /* arithmetic */
} ceiling_kind;

/* Seconds of one pass (read, copy or update) over bytes in cache: on this thread, or by entering the team for each
 * pass. 0: more bytes than there is memory for measuring. */
double ceiling_pass_seconds(ceiling_kind kind, double bytes, bool team);

#endif
