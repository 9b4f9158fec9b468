/* Quantised weights, read as they lie in the checkpoint: rows of codes, decoded in registers or into a buffer in cache.
 * The numbers are exactly those of docs/quantised.md, in every instruction set: (code - zero) * scale in f32. */
#ifndef TENON_COMMON_CODES_H
#define TENON_COMMON_CODES_H

#include <tenon/kernel.h>

#define CODES_GROUP 32 /* elements that are decoded at once: rows and pieces of rows are multiples of it */

/* A matrix [out, in] of codes. Borrowed. */
typedef struct codes {
    tn_dtype dtype;
    const char *data;
    int64_t row_bytes;             /* from row to row                                                         */
    const tn_tensor *scale, *zero; /* beside the codes (meaning.h), or NULL                                   */
    int group_shift;               /* a scale is that of 2^group_shift columns                                */
} codes;

/* The types that are read. */
#define CODES_DTYPES                                                                                                   \
    (TN_TAKES(TN_Q4_0) | TN_TAKES(TN_Q4_1) | TN_TAKES(TN_Q5_0) | TN_TAKES(TN_Q5_1) | TN_TAKES(TN_Q8_0) |               \
     TN_TAKES(TN_Q2_K) | TN_TAKES(TN_Q3_K) | TN_TAKES(TN_Q4_K) | TN_TAKES(TN_Q5_K) | TN_TAKES(TN_Q6_K) |               \
     TN_TAKES(TN_IQ4_NL) | TN_TAKES(TN_IQ4_XS) | TN_TAKES(TN_MXFP4) | TN_TAKES(TN_F8_E4M3) | TN_TAKES(TN_F8_E5M2) |    \
     TN_TAKES(TN_I8) | TN_TAKES(TN_U4) | TN_TAKES(TN_E2M1) | TN_TAKES(TN_NF4))

/* Those whose codes are integers times factors of 16 columns at least, or of 32. */
#define INTS_DTYPES                                                                                                    \
    (CODES_DTYPES &                                                                                                    \
     ~(TN_TAKES(TN_Q4_1) | TN_TAKES(TN_Q5_1) | TN_TAKES(TN_F8_E4M3) | TN_TAKES(TN_F8_E5M2) | TN_TAKES(TN_NF4)))

/* Of these, those whose formats multiply with activations as they are: 8 bits of them would be too few. */
#define INTS_FINE_DTYPES (TN_TAKES(TN_U4) | TN_TAKES(TN_I8) | TN_TAKES(TN_E2M1))

/* CODES_GROUP activations, rounded to int8. */
typedef struct ints_group {
    int8_t q[CODES_GROUP];
    float factor;
    float sum, halves[2]; /* of all, and of each sixteen, times the factor                         */
    int32_t start;        /* -128 times the sum of q                                                */
} ints_group;

static inline int64_t ints_space(int64_t k)
{
    return k / CODES_GROUP * (int64_t)sizeof(ints_group);
}

/* The matrix of a role (of expert `index`); declines what is not read, with the reason. */
tn_status codes_open(codes *c, const tn_site *site, tn_role role, int64_t index, tn_error *err);

/* Products of many tokens: rows of a block, tokens of a tile; from how many on it pays to lay rows. */
enum { CODES_ROWS = 32, CODES_TOKENS = 6, CODES_LAID_FROM = 3 };

/* Where the first group of rounded row i of n is, in tiles of `most` rows, and what lies from each to its next. */
static inline ints_group *codes_tile_row(ints_group *tiles, int64_t k, int64_t i, int64_t n, int64_t most,
                                         int64_t *step)
{
    int64_t tile = i / most * most, width = n - tile < most ? n - tile : most;
    *step = width * (int64_t)sizeof(ints_group);
    return tiles + tile * (k / CODES_GROUP) + i - tile;
}

/* Bytes of a block of rows as many_lay leaves it, a multiple of 64. */
static inline int64_t many_laid_bytes(int64_t k)
{
    return CODES_ROWS * (k + k / CODES_GROUP * 16);
}

typedef struct codes_kernels {
    /* n elements of a row from `from` on, both multiples of CODES_GROUP, as f32 or rounded to bf16 or f16. */
    void (*unpack)(const codes *c, int64_t row, int64_t from, int64_t n, tn_dtype to, void *out);

    /* k activations, a multiple of CODES_GROUP, to groups that lie `step` bytes apart. False where some are no finite
     * numbers, or so large that products might not be. */
    bool (*round)(const float *x, int64_t k, int64_t step, void *to);

    /* sums[t * 16 + r] = row r . x[t] for r < rows <= 16, t < tokens; k elements; x: rounded tokens, their groups side
     * by side. For INTS_DTYPES. */
    void (*ints)(const codes *c, int64_t row, int32_t rows, int64_t k, const ints_group *const *x, int32_t tokens,
                 float *sums);

    /* The same, bit for bit, for many tokens, with weights of many_dtypes; 0: this instruction set has no such way. A
     * tile of tokens has the first group of each, then the second ... */
    uint64_t many_dtypes;

    /* rows <= CODES_ROWS rows of codes in the order of many_multiply, to many_laid_bytes(k) bytes, aligned to 64. */
    void (*many_lay)(const codes *c, int64_t row, int32_t rows, int64_t k, void *laid);

    /* sums[t * CODES_ROWS + r] = row r . x[t] for r < rows, t < width <= CODES_TOKENS; the other sums of the block are
     * anything. */
    void (*many_multiply)(const codes *c, const void *laid, int32_t rows, int64_t k, const ints_group *x, int32_t width,
                          float *sums);
} codes_kernels;

/* x becomes what rounding it to groups that lie `step` bytes apart has left. */
void codes_leave_rest(float *x, int64_t k, int64_t step, const ints_group *rounded);

/* Sums of two terms for each token, `rows` of each, become those of the tokens. */
void codes_add_terms(float *sums, int64_t tokens, int64_t rows);

void codes_kernels_init(codes_kernels *kernels, uint64_t cpu_flags);

void codes_init_avx2(codes_kernels *kernels);
void codes_init_avx512(codes_kernels *kernels);
void codes_init_avxvnni(codes_kernels *kernels);
void codes_init_avx512vnni(codes_kernels *kernels);
void codes_init_neon(codes_kernels *kernels);

#endif
