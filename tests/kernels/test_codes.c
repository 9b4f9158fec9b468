/* The decoders of quantised weights against the plain one of core, bit for bit, in every instruction set. */
#include "codes.h"

#include "base/blocks.h"
#include "base/random.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

#define AVX512 (TN_CPU_AVX2 | TN_CPU_AVX512)

static const uint64_t tiers[] = {
    0, TN_CPU_AVX2, TN_CPU_AVX2 | TN_CPU_AVX_VNNI, AVX512, AVX512 | TN_CPU_AVX512_VNNI, TN_CPU_NEON};

enum { TIERS = sizeof tiers / sizeof *tiers, ROWS = 37, FEW = 9, COLUMNS = 544 };

/* Rows of anything: all scales, all codes; the types whose blocks are of 256 have 512 columns. */
typedef struct drawn {
    tn_site site;
    tn_tensor weight, scale, zero;
    unsigned char codes[ROWS * COLUMNS * 2];
    float scales[ROWS * COLUMNS / 16];
    unsigned char zeros[ROWS * COLUMNS / 16];
} drawn;

static int64_t columns_of(tn_dtype dtype)
{
    return tn_dtype_block_elements(dtype) == 256 ? 512 : COLUMNS;
}

static drawn *draw(tn_dtype dtype, int64_t groups, bool zeros)
{
    drawn *d = calloc(1, sizeof *d);
    random_state r = {.state = dtype};
    int64_t n = columns_of(dtype);
    for (size_t i = 0; i < sizeof d->codes; i++)
        d->codes[i] = (unsigned char)random_bits(&r);
    for (size_t i = 0; i < sizeof d->scales / sizeof *d->scales; i++)
        d->scales[i] = (float)random_nearly_normal(&r);
    for (size_t i = 0; i < sizeof d->zeros; i++)
        d->zeros[i] = (unsigned char)(random_bits(&r) & (dtype == TN_U4 ? 15 : 255));
    d->weight = tn_tensor_dense(d->codes, dtype, 2, (int64_t[]){ROWS, n});
    d->scale = tn_tensor_dense(d->scales, TN_F32, 2, (int64_t[]){ROWS, groups});
    d->zero = tn_tensor_dense(d->zeros, dtype == TN_U4 ? TN_U8 : dtype, 2, (int64_t[]){ROWS, groups});
    d->site.param[TN_ROLE_WEIGHT] = (tn_param){&d->weight, 1};
    d->site.path = "test";
    if (groups)
        d->site.param[TN_ROLE_SCALE_OF(TN_ROLE_WEIGHT)] = (tn_param){&d->scale, 1};
    if (zeros)
        d->site.param[TN_ROLE_ZERO_OF(TN_ROLE_WEIGHT)] = (tn_param){&d->zero, 1};
    return d;
}

/* Row r as the contract says: (code - zero) * scale. */
static void wanted(const drawn *d, int64_t r, int64_t groups, bool zeros, float *to)
{
    int64_t n = columns_of(d->weight.dtype), each = groups > 1 ? n / groups : n;
    float nothing = d->weight.dtype == TN_U4 ? 8.0f : 0.0f;
    blocks_to_f32(d->weight.dtype, d->codes + (size_t)r * tn_dtype_bytes(d->weight.dtype, n), 0, n, to);
    while (groups > 1 && each & (each - 1))
        each++;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = r * groups + i / each;
        float zero = !zeros ? nothing : (float)(int8_t)d->zeros[at];
        to[i] = (to[i] - zero) * (groups ? d->scales[at] : 1.0f);
    }
}

static void same(float got, float want, tn_dtype dtype, size_t tier, int64_t r, int64_t i)
{
    if ((isnan(got) && isnan(want)) || got == want)
        return;
    ck_abort_msg("%s, tier %zu, row %d, element %d: %.9g, not %.9g", tn_dtype_name(dtype), tier, (int)r, (int)i,
                 (double)got, (double)want);
}

static void check_type(tn_dtype dtype, int64_t groups, bool zeros)
{
    drawn *d = draw(dtype, groups, zeros);
    int64_t n = columns_of(dtype);
    float want[COLUMNS], got[COLUMNS];
    uint16_t half[COLUMNS], less[COLUMNS];
    codes c;
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(codes_open(&c, &d->site, TN_ROLE_WEIGHT, 0, &err) == TN_OK, "%s", err.message);
    for (size_t t = 0; t < TIERS; t++) {
        codes_kernels kernels;
        if (tiers[t] & ~tn_cpu_flags())
            continue;
        codes_kernels_init(&kernels, tiers[t]);
        for (int64_t r = 0; r < ROWS; r++) {
            wanted(d, r, groups, zeros, want);
            for (int64_t from = 0, some = 32; from < n; from += some, some = some % 224 + 96) {
                some = some < n - from ? some : n - from;
                kernels.unpack(&c, r, from, some, TN_F32, got + from);
                kernels.unpack(&c, r, from, some, TN_BF16, half + from);
                kernels.unpack(&c, r, from, some, TN_F16, less + from);
            }
            for (int64_t i = 0; i < n; i++) {
                same(got[i], want[i], dtype, t, r, i);
                same(tn_f16_to_f32(less[i]), tn_f16_to_f32(tn_f32_to_f16(want[i])), dtype, t, r, i);
                same(tn_bf16_to_f32(half[i]), tn_bf16_to_f32(tn_f32_to_bf16(want[i])), dtype, t, r, i);
            }
        }
    }
    free(d);
}

START_TEST(codes_are_those_of_core)
{
    for (int dtype = 1; dtype < TN_DTYPE_COUNT; dtype++)
        if (CODES_DTYPES >> dtype & 1)
            check_type((tn_dtype)dtype, 0, false);
}
END_TEST

START_TEST(scales_and_zeros_beside)
{
    static const tn_dtype types[] = {TN_I8, TN_U4, TN_F8_E4M3, TN_F8_E5M2, TN_NF4, TN_E2M1};
    static const int64_t groups[] = {1, 34, 17, 9, 5};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
            check_type(types[i], groups[g], false);
            if (types[i] == TN_I8 || types[i] == TN_U4)
                check_type(types[i], groups[g], true);
        }
}
END_TEST

/* Rows of activations, one with zeros, one with outliers; rounded, and what they are then. */
enum { TOKENS = 7 };
typedef struct rounded_rows {
    ints_group memory[TOKENS][COLUMNS / CODES_GROUP];
    const ints_group *rows[TOKENS];
    float x[TOKENS][COLUMNS];
} rounded_rows;

static void round_rows(const codes_kernels *kernels, rounded_rows *rows, int64_t n)
{
    random_state r = {.state = 5};
    for (int t = 0; t < TOKENS; t++) {
        for (int64_t i = 0; i < n; i++)
            rows->x[t][i] = t == 1 && i < 64 ? 0 : (float)random_nearly_normal(&r) * (t == 2 && i % 29 == 0 ? 1000 : 1);
        rows->rows[t] = rows->memory[t];
        ck_assert(kernels->round(rows->x[t], n, sizeof(ints_group), rows->memory[t]));
        for (int64_t i = 0; i < n; i++) {
            const ints_group *g = &rows->memory[t][i / CODES_GROUP];
            float is = (float)g->q[i % CODES_GROUP] * g->factor;
            ck_assert_msg(fabsf(is - rows->x[t][i]) <= g->factor * 0.5001f, "%g is %g", (double)rows->x[t][i],
                          (double)is);
            rows->x[t][i] = is;
        }
    }
}

/* A sum of values with a rounded token, in double: what is added in f32 goes through n / 8 + 16 additions at most, and
 * codes and what is taken from them apart may be larger than the values. */
static void check_sum(double got, const float *w, const float *x, int64_t n, const char *what)
{
    double want = 0, size = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        want += (double)w[i] * (double)x[i];
        largest = fabs((double)w[i]) > largest ? fabs((double)w[i]) : largest;
        size += fabs((double)x[i]);
    }
    double bound = 4 * largest * size * 0x1p-24 * ((double)n / 8 + 16);
    ck_assert_msg(fabs(got - want) <= bound || !isfinite(want) || !(largest * size < 1e36), "%s: %g, not %g", what, got,
                  want);
}

static void open_drawn(const drawn *d, size_t tier, codes *c, codes_kernels *kernels)
{
    ck_assert(codes_open(c, &d->site, TN_ROLE_WEIGHT, 0, NULL) == TN_OK);
    codes_kernels_init(kernels, tiers[tier]);
}

static void check_ints(tn_dtype dtype, size_t tier, bool zeros)
{
    drawn *d = draw(dtype, tn_dtype_block_elements(dtype) > 2 ? 0 : 17, zeros);
    int64_t n = columns_of(dtype);
    static rounded_rows x;
    float sums[TOKENS * 16], w[COLUMNS];
    char what[96];
    codes_kernels kernels;
    codes c;
    open_drawn(d, tier, &c, &kernels);
    round_rows(&kernels, &x, n);
    for (int tokens = 1; tokens <= TOKENS; tokens++) {
        kernels.ints(&c, 0, FEW, n, x.rows, tokens, sums);
        for (int row = 0; row < FEW; row++) {
            kernels.unpack(&c, row, 0, n, TN_F32, w);
            for (int t = 0; t < tokens; t++) {
                snprintf(what, sizeof what, "%s, tier %zu, row %d, token %d of %d", tn_dtype_name(dtype), tier, row, t,
                         tokens);
                check_sum((double)sums[t * 16 + row], w, x.x[t], n, what);
            }
        }
    }
    free(d);
}

/* Blocks and tiles of all sizes: right, and the same bits in each. */
static void check_many(tn_dtype dtype, size_t tier, bool zeros)
{
    static _Alignas(64) char laid[CODES_ROWS * COLUMNS * 3 / 2];
    static ints_group token[CODES_TOKENS * COLUMNS / CODES_GROUP];
    static rounded_rows x;
    drawn *d = draw(dtype, tn_dtype_block_elements(dtype) > 2 ? 0 : 17, zeros);
    int64_t n = columns_of(dtype);
    float sums[CODES_TOKENS * CODES_ROWS], first[CODES_TOKENS][ROWS], w[COLUMNS];
    char what[96];
    codes_kernels kernels;
    codes c;
    open_drawn(d, tier, &c, &kernels);
    ck_assert_int_le(many_laid_bytes(n), (int64_t)sizeof laid);
    round_rows(&kernels, &x, n); /* what they are then is rounded to itself, nearly */
    for (int width = CODES_TOKENS; width >= 1; width--)
        for (int row = 0; row<ROWS; row += width> 3 ? CODES_ROWS : width) {
            int rows = ROWS - row < CODES_ROWS ? ROWS - row : CODES_ROWS;
            for (int t = 0; t < width; t++)
                ck_assert(kernels.round(x.x[t], n, width * (int64_t)sizeof *token, token + t));
            memset(laid, 0x7f, sizeof laid);
            kernels.many_lay(&c, row, rows, n, laid);
            kernels.many_multiply(&c, laid, rows, n, token, width, sums);
            for (int i = 0; i < width * rows; i++) {
                int t = i / rows, r = i % rows;
                snprintf(what, sizeof what, "%s, tier %zu, row %d + %d, token %d of %d", tn_dtype_name(dtype), tier,
                         row, r, t, width);
                if (width == CODES_TOKENS) {
                    float is[COLUMNS];
                    for (int64_t j = 0; j < n; j++)
                        is[j] = token[j / CODES_GROUP * width + t].factor *
                                (float)token[j / CODES_GROUP * width + t].q[j % CODES_GROUP];
                    kernels.unpack(&c, row + r, 0, n, TN_F32, w);
                    check_sum((double)sums[t * CODES_ROWS + r], w, is, n, what);
                    first[t][row + r] = sums[t * CODES_ROWS + r];
                }
                if (width == 1) {
                    float one[16];
                    kernels.ints(&c, row + r, 1, n, (const ints_group *[]){token}, 1, one);
                    ck_assert_msg(memcmp(&sums[r], one, sizeof *one) == 0, "%s: %a, %a by rows", what, (double)sums[r],
                                  (double)one[0]);
                }
                ck_assert_msg(memcmp(&sums[t * CODES_ROWS + r], &first[t][row + r], sizeof *sums) == 0,
                              "%s: other bits", what);
            }
        }
    free(d);
}

START_TEST(products_of_integers)
{
    for (int dtype = 1; dtype < TN_DTYPE_COUNT; dtype++)
        for (size_t tier = 0; tier < TIERS; tier++)
            if ((INTS_DTYPES >> dtype & 1) && !(tiers[tier] & ~tn_cpu_flags())) {
                check_ints((tn_dtype)dtype, tier, false);
                if (dtype == TN_I8 || dtype == TN_U4)
                    check_ints((tn_dtype)dtype, tier, true);
            }
}
END_TEST

START_TEST(products_of_ints_groups)
{
    for (size_t tier = 0; tier < TIERS; tier++) {
        codes_kernels kernels;
        codes_kernels_init(&kernels, tiers[tier]);
        if (tiers[tier] & ~tn_cpu_flags())
            continue;
        for (int dtype = 1; dtype < TN_DTYPE_COUNT; dtype++)
            if (kernels.many_dtypes >> dtype & 1)
                check_many((tn_dtype)dtype, tier, dtype == TN_U4);
    }
}
END_TEST

START_TEST(what_is_not_finite_is_not_rounded)
{
    float x[64] = {0};
    for (size_t tier = 0; tier < TIERS; tier++) {
        codes_kernels kernels;
        ints_group token[2];
        codes_kernels_init(&kernels, tiers[tier] & tn_cpu_flags());
        static const float last[] = {1e-44f, INFINITY, NAN};
        for (int i = 0; i < 3; i++) {
            x[40] = last[i];
            ck_assert(kernels.round(x, 64, sizeof *token, token) == (i == 0));
        }
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("codes", 0);
    suite_add(tc, codes_are_those_of_core, scales_and_zeros_beside, products_of_integers, products_of_ints_groups,
              what_is_not_finite_is_not_rounded);
    return suite_run();
}
