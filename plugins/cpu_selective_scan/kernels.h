/* The arithmetic of the scan in f32, one table of functions for each instruction set. What is done with them is in
 * selective_scan.c, once for all. */
#ifndef SELECTIVE_SCAN_KERNELS_H
#define SELECTIVE_SCAN_KERNELS_H

#include <tenon/kernel.h>

/* What decays by less than e to this power is forgotten: as a factor it would make numbers below the normal ones, which
 * take a processor a hundred times as long. */
#define SCAN_FORGOTTEN (-78.0f)

/* Some tokens of a head, one after the other: M = keep M + b x^T, y += M^T c. M [n,p] is read from `from` and written
 * to `to`, which may be the same; rows of b, c [tokens,n], x, y [tokens,p] are dense. Of an element of y the sum over n
 * runs from the first to the last in an order that n alone decides. */
typedef struct scan_piece {
    const float *from, *b, *c, *x, *keep;
    float *to, *y;
    int64_t from_row, to_row, n, p, tokens;
} scan_piece;

typedef struct scan_kernels {
    void (*load)(const void *from, tn_dtype dtype, int64_t n, float *to);
    void (*store)(const float *from, tn_dtype dtype, int64_t n, void *to);
    /* y = skip x, x = step x */
    void (*split)(float *x, float *y, float step, float skip, int64_t n);
    void (*scan)(const scan_piece *piece);
} scan_kernels;

/* Fills every entry with the best that these flags allow. */
void scan_kernels_init(scan_kernels *kernels, uint64_t cpu_flags);
void scan_kernels_init_avx2(scan_kernels *kernels);
void scan_kernels_init_avx512(scan_kernels *kernels);
void scan_kernels_init_neon(scan_kernels *kernels);

#endif
