/* Decoding quantised weights in plain C, and which weights of a site can be read. */
#include "codes.h"
#include "vec_scalar.h"

VEC_INLINE float half_value(const char *p)
{
    return scalar_load(p, 0, TN_F16);
}

VEC_INLINE vec vec_of_bytes(const int8_t *p)
{
    return *p;
}

/* As in codes_avx2.c. */
VEC_INLINE void bytes_of_nibbles(const int8_t *levels, const uint8_t *q, bool high, int8_t *code)
{
    for (int i = 0; i < 16; i++)
        code[i] = levels[high ? q[i] >> 4 : q[i] & 15];
}

VEC_INLINE void bytes_of_pairs(const int8_t *levels, const uint8_t *q, int8_t *code)
{
    for (int i = 0; i < 32; i++)
        code[i] = levels[i % 2 ? q[i / 2] >> 4 : q[i / 2] & 15];
}

/* As in codes_avx2.h. */
typedef struct bytes {
    uint8_t b[CODES_GROUP];
} bytes;

VEC_INLINE bytes bytes_load(const void *p)
{
    bytes a;
    memcpy(&a, p, sizeof a);
    return a;
}

VEC_INLINE bytes bytes_and(bytes a, int mask)
{
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] &= (uint8_t)mask;
    return a;
}

VEC_INLINE bytes bytes_or(bytes a, bytes b)
{
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] |= b.b[i];
    return a;
}

VEC_INLINE bytes bytes_right(bytes a, int bits)
{
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] = (uint8_t)(a.b[i] >> bits);
    return a;
}

VEC_INLINE bytes bytes_left(bytes a, int bits)
{
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] = (uint8_t)(a.b[i] << bits);
    return a;
}

VEC_INLINE bytes bytes_bits(const uint8_t *p, int apart, int value)
{
    bytes a;
    (void)apart;
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] = (uint8_t)(p[i / 8] >> i % 8 & 1 ? value : 0);
    return a;
}

VEC_INLINE bytes bytes_split(const uint8_t *p, int apart)
{
    bytes a;
    (void)apart;
    for (int i = 0; i < 16; i++) {
        a.b[i] = p[i];
        a.b[i + 16] = (uint8_t)(p[i] >> 4);
    }
    return a;
}

VEC_INLINE bytes bytes_pairs(const uint8_t *p)
{
    bytes a;
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] = (uint8_t)(i % 2 ? p[i / 2] >> 4 : p[i / 2]);
    return a;
}

VEC_INLINE bytes bytes_look_up(const int8_t *levels, bytes a)
{
    for (int i = 0; i < CODES_GROUP; i++)
        a.b[i] = (uint8_t)levels[a.b[i]];
    return a;
}

/* Sums of sixteen products each. */
typedef struct quads {
    int32_t sum[2];
} quads;

VEC_INLINE quads quads_dot(bytes code, bytes x, bool below)
{
    quads q = {{0, 0}};
    (void)below; /* what is not negative is below 128, too                                             */
    for (int j = 0; j < CODES_GROUP; j++)
        q.sum[j / 16] += (int8_t)code.b[j] * (int8_t)x.b[j];
    return q;
}

typedef int32_t ints_vec;

VEC_INLINE void quads_turn(const quads q[VEC_LANES], ints_vec out[2])
{
    memcpy(out, q->sum, sizeof q->sum);
}

VEC_INLINE vec vec_of_ints(ints_vec a)
{
    return (vec)a;
}

typedef uint32_t words_vec;

VEC_INLINE vec vec_of_halves(words_vec a)
{
    uint16_t half = (uint16_t)a;
    return half_value((const char *)&half);
}

VEC_INLINE void vec_transpose(vec v[VEC_LANES])
{
    (void)v;
}

#include "codes_ints.h"

static void init_c(codes_kernels *kernels)
{
    *kernels = (codes_kernels){.unpack = unpack};
    init_ints(kernels);
}

#define INTS_TAKES(type, turn, codes_of, size, below, halves, adds) TN_TAKES(type) |
_Static_assert((INTS_TYPES(INTS_TAKES) 0) == INTS_DTYPES, "codes.h has the types");

void codes_kernels_init(codes_kernels *kernels, uint64_t cpu_flags)
{
    init_c(kernels);
#if defined(__x86_64__)
    if (cpu_flags & TN_CPU_AVX2)
        codes_init_avx2(kernels);
    if (cpu_flags & TN_CPU_AVX2 && cpu_flags & TN_CPU_AVX_VNNI)
        codes_init_avxvnni(kernels);
    if (cpu_flags & TN_CPU_AVX2 && cpu_flags & TN_CPU_AVX512)
        codes_init_avx512(kernels);
    if (cpu_flags & TN_CPU_AVX2 && cpu_flags & TN_CPU_AVX512 && cpu_flags & TN_CPU_AVX512_VNNI)
        codes_init_avx512vnni(kernels);
#elif defined(__aarch64__)
    if (cpu_flags & TN_CPU_NEON)
        codes_init_neon(kernels);
#endif
}

#define TAKES_CASE(type, open, values, bytes) TN_TAKES(type) |
_Static_assert((CODES_TYPES(TAKES_CASE) 0) == CODES_DTYPES, "codes.h has the types");

/* ---- the weights of a site ------------------------------------------------------------------------------------ */

static const tn_tensor *beside(const tn_site *site, tn_role role, int64_t index)
{
    const tn_param *p = &site->param[role];
    return p->count > index ? &p->tensors[index] : NULL;
}

/* The least power of two of columns that gives so many groups. */
static int shift_of(int64_t columns, int64_t groups)
{
    int shift = 0;
    while (groups > 1 && (columns + (INT64_C(1) << shift) - 1) >> shift > groups)
        shift++;
    return groups > 1 ? shift : 62;
}

tn_status codes_open(codes *c, const tn_site *site, tn_role role, int64_t index, tn_error *err)
{
    const tn_tensor *w = &site->param[role].tensors[index];
    int64_t columns = w->shape[1];
    *c = (codes){.dtype = w->dtype,
                 .data = w->data,
                 .row_bytes = (int64_t)tn_dtype_bytes(w->dtype, w->stride[0]),
                 .scale = beside(site, TN_ROLE_SCALE_OF(role), index),
                 .zero = beside(site, TN_ROLE_ZERO_OF(role), index)};
    c->group_shift = c->scale ? shift_of(columns, c->scale->shape[c->scale->ndim - 1]) : 62;
    if (!(CODES_DTYPES >> w->dtype & 1))
        return tn_fail(err, TN_DECLINED, site->path, "%s: %s weights are not read here", tn_role_name(role),
                       tn_dtype_name(w->dtype));
    if (c->scale && tn_dtype_block_elements(w->dtype) > 2)
        return tn_fail(err, TN_DECLINED, site->path, "%s: %s weights have scales beside those of their blocks",
                       tn_role_name(role), tn_dtype_name(w->dtype));
    if (site->param[TN_ROLE_GROUP_OF(role)].count > 0)
        return tn_fail(err, TN_DECLINED, site->path,
                       "%s: its columns have groups in any order (act-order), kernel takes groups of neighbours",
                       tn_role_name(role));
    if (columns % CODES_GROUP)
        return tn_fail(err, TN_DECLINED, site->path, "%s: site has rows of %lld, kernel takes multiples of %d",
                       tn_role_name(role), (long long)columns, CODES_GROUP);
    if (c->group_shift < 4)
        return tn_fail(err, TN_DECLINED, site->path, "%s: site has scales of %d columns, kernel takes 16 and more",
                       tn_role_name(role), 1 << c->group_shift);
    return TN_OK;
}

/* ---- two terms ------------------------------------------------------------------------------------------------- */

void codes_leave_rest(float *x, int64_t k, int64_t step, const ints_group *rounded)
{
    for (int64_t i = 0; i < k; i++) {
        const ints_group *group = (const ints_group *)(const void *)((const char *)rounded + i / CODES_GROUP * step);
        x[i] -= group->factor * (float)group->q[i % CODES_GROUP];
    }
}

void codes_add_terms(float *sums, int64_t tokens, int64_t rows)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t r = 0; r < rows; r++)
            sums[t * rows + r] = sums[2 * t * rows + r] + sums[(2 * t + 1) * rows + r];
}
