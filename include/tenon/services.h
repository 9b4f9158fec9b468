/* Tenon: services of the host. What a kernel may use while it runs: the team of threads and the processor's flags. Work
 * is divided by the caller's numbers only, never by how many threads there are, wherever the division could change a
 * result. */
#ifndef TENON_SERVICES_H
#define TENON_SERVICES_H

#include <stdint.h>
#include <tenon/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls body on [begin, end) pieces that cover 0..count-1, each piece at most once and at least
 * grain long except the last; threads run 0 .. tn_thread_count()-1. Nested or concurrent calls run on the caller alone.
 * Nothing to do where count is not positive or body is NULL. [any thread] */
TN_API void tn_parallel_for(int64_t count, int64_t grain,
                            void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread), void *ctx);

/* Calls body once on every thread of the team; threads says how many take part. NULL: nothing to do. [any thread] */
TN_API void tn_parallel(void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx);

/* Inside tn_parallel: waits until all threads of the region have called it as often. [threads of a region] */
TN_API void tn_barrier(void);

/* The most threads that a region of the calling thread gets. [any thread] */
TN_API int32_t tn_thread_count(void);

#define TN_CPU_AVX2 (UINT64_C(1) << 0)   /* AVX2, FMA and F16C                            */
#define TN_CPU_AVX512 (UINT64_C(1) << 1) /* F, BW, CD, DQ, VL                             */
#define TN_CPU_AVX512_BF16 (UINT64_C(1) << 2)
#define TN_CPU_AVX512_FP16 (UINT64_C(1) << 3)
#define TN_CPU_AMX_BF16 (UINT64_C(1) << 4) /* tiles permitted by the system for this process */
#define TN_CPU_AVX512_VNNI (UINT64_C(1) << 5)
#define TN_CPU_NEON (UINT64_C(1) << 6)
#define TN_CPU_AVX_VNNI (UINT64_C(1) << 7) /* of 256 bits */
/* Beside TN_CPU_AVX512_BF16: its dot products take as long as multiply-adds of twice as many numbers in f32 do. */
#define TN_CPU_SLOW_BF16 (UINT64_C(1) << 8)

/* What processor and operating system offer, less what TENON_CPU=c|avx2|avx512|avx512bf16|... takes
 * away, and TN_CPU_SLOW_BF16 with it. The same during the life of the process. [any thread] */
TN_API uint64_t tn_cpu_flags(void);

#ifdef __cplusplus
}
#endif
#endif
