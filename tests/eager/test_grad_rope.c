/* Gradients of ROPE: every style, partial heads, narrow and f32 tables, tables whose halves differ. Rotating is linear,
 * so differences of a forward in double precision are exact up to double's own rounding; and products of two numbers of
 * at most 11 bits are exact in double, so that in bf16 and f16 every rounding is known. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* Pairs of halves with tables of the whole width; pairs that lie next to each other. */
static bool is_wide(tn_rope style)
{
    return style == TN_ROPE_HALF || style == TN_ROPE_HALF_F32;
}

static bool is_paired(tn_rope style)
{
    return !is_wide(style) && style != TN_ROPE_HALF_NARROW;
}

enum { BATCH = 2, TOKENS = 5, HEAD_MAX = 41 };

static tn_call make_call(tn_rope style, tn_dtype dtype, tn_dtype table, int64_t d, int64_t r)
{
    tn_call call = optest_call(TN_OP_ROPE, dtype, 2, 2);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_ROPE] = (int32_t)style;
    int64_t width = style == TN_ROPE_HALF_NARROW ? r / 2 : r;
    for (int i = 0; i < 2; i++) {
        call.in[i] = optest_zeros(dtype, 4, (int64_t[]){BATCH, TOKENS, i ? 1 : 3, d});
        call.out[i] = call.in[i];
    }
    optest_grads(&call, 1);
    for (int i = 0; i < 2; i++) {
        call.in[i].data = NULL; /* not read                                                      */
        call.out[i].data = NULL;
    }
    call.in_count = 4;
    /* One row of tables for all batches in f32, one each otherwise. */
    int64_t rows = table == TN_F32 ? 1 : BATCH;
    for (int i = 2; i < 4; i++) {
        call.in[i] = optest_zeros(table, 3, (int64_t[]){rows, TOKENS, width});
        for (int64_t j = 0; j < rows * TOKENS * width; j++)
            optest_set(&call.in[i], j, i == 2 ? cos((double)j) : sin((double)j + 0.5));
    }
    return call;
}

/* One head at one position, in double. */
typedef struct head {
    tn_rope style;
    int64_t d, r, moving;
    double x[HEAD_MAX], g[HEAD_MAX], c[HEAD_MAX], s[HEAD_MAX];
} head;

static double head_loss(void *ctx, double value)
{
    head h = *(const head *)ctx;
    int64_t half = h.r / 2;
    bool paired = is_paired(h.style), apart = paired && h.style != TN_ROPE_DEINTERLEAVED;
    double sum = 0.0;
    h.x[h.moving] = value;
    for (int64_t i = 0; i < half; i++) {
        double x1 = h.x[paired ? 2 * i : i], x2 = h.x[paired ? 2 * i + 1 : i + half];
        int64_t second = is_wide(h.style) ? i + half : i;
        sum += h.g[apart ? 2 * i : i] * (x1 * h.c[i] - x2 * h.s[i]);
        sum += h.g[apart ? 2 * i + 1 : i + half] * (x2 * h.c[second] + x1 * h.s[second]);
    }
    for (int64_t i = h.r; i < h.d; i++)
        sum += h.g[i] * h.x[i];
    return sum;
}

static void load_head(const tn_call *call, int which, int64_t b, int64_t t, int64_t n, head *h)
{
    const tn_tensor *g = &call->grads->out[which], *c = &call->in[2];
    int64_t width = c->shape[2], position = (c->shape[0] == 1 ? 0 : b) * TOKENS + t;
    h->style = (tn_rope)call->site->meaning[TN_AXIS_ROPE];
    h->d = g->shape[3];
    h->r = h->style == TN_ROPE_HALF_NARROW ? 2 * width : width;
    for (int64_t i = 0; i < h->d; i++) {
        h->x[i] = 0.25; /* any: the derivative is the same everywhere                                */
        h->g[i] = optest_at(g, ((b * TOKENS + t) * g->shape[2] + n) * h->d + i);
    }
    for (int64_t i = 0; i < width; i++) {
        h->c[i] = optest_at(c, position * width + i);
        h->s[i] = optest_at(&call->in[3], position * width + i);
    }
}

/* Two products and a sum, in the roundings of forward: the terms of the derivative by element i. */
static double head_rounded(const head *h, int64_t i, tn_dtype step, tn_dtype dtype)
{
    if (i >= h->r)
        return h->g[i];
    int64_t half = h->r / 2;
    bool paired = is_paired(h->style), apart = paired && h->style != TN_ROPE_DEINTERLEAVED;
    int64_t pair = paired ? i / 2 : i % half, second = is_wide(h->style) ? pair + half : pair;
    bool first = paired ? i % 2 == 0 : i < half;
    double g1 = h->g[apart ? 2 * pair : pair], g2 = h->g[apart ? 2 * pair + 1 : pair + half];
    double own = first ? g1 * h->c[pair] : g2 * h->c[second], other = first ? g2 * h->s[second] : -g1 * h->s[pair];
    return optest_rounded(optest_rounded(optest_rounded(own, step) + optest_rounded(other, step), step), dtype);
}

static void check_call(const tn_call *call, int which)
{
    const tn_tensor *dx = &call->grads->in[which];
    tn_dtype dtype = dx->dtype;
    tn_rope style = (tn_rope)call->site->meaning[TN_AXIS_ROPE];
    bool wide = style == TN_ROPE_COMPLEX || style == TN_ROPE_HALF_F32;
    tn_dtype step = wide || call->in[2].dtype != dtype ? TN_F32 : dtype;
    for (int64_t at = 0; at < BATCH * TOKENS * dx->shape[2]; at++) {
        int64_t n = at % dx->shape[2], t = at / dx->shape[2] % TOKENS, b = at / dx->shape[2] / TOKENS;
        head h;
        load_head(call, which, b, t, n, &h);
        for (h.moving = 0; h.moving < h.d; h.moving++) {
            double got = optest_at(dx, at * h.d + h.moving), expected = head_rounded(&h, h.moving, step, dtype);
            double truth = optest_derivative(head_loss, &h, h.x[h.moving], 1.0);
            /* Three roundings of at most eps of terms below 2. */
            double bound = 4.0 * 3.0 * optest_epsilon(dtype);
            if (got != expected || !(fabs(got - truth) <= bound))
                ck_abort_msg("style %d in %s, element %d: %.9g, expected %.9g, truth %.9g", (int)style,
                             tn_dtype_name(dtype), (int)h.moving, got, expected, truth);
        }
    }
}

START_TEST(ropes)
{
    tn_rope style = (tn_rope)_i;
    for (int d = 0; d < 3; d++)
        for (int f32_tables = 0; f32_tables < 2; f32_tables++)
            for (int64_t r = 2; r <= 34; r += 16) {
                tn_call call = make_call(style, dtypes[d], f32_tables ? TN_F32 : dtypes[d], r + (r > 2 ? 7 : 0), r);
                tn_grads *grads = optest_grads_of(&call);
                optest_backward_threads(&call);
                for (int i = 0; i < 2; i++) {
                    check_call(&call, i);
                    /* In the memory of the upstream gradient. */
                    tn_tensor kept = grads->in[i], other = grads->in[1 - i];
                    grads->in[i] = grads->out[i];
                    grads->in[1 - i].data = NULL;
                    optest_backward(&call);
                    optest_close(&grads->in[i], &kept, 0.0, 0.0, "in place");
                    grads->in[i] = kept;
                    grads->in[1 - i] = other;
                }
            }
}
END_TEST

/* Heads before tokens, as projections leave them to attention. */
START_TEST(strided)
{
    tn_call call = make_call(TN_ROPE_HALF, TN_BF16, TN_BF16, 23, 18);
    tn_grads *grads = optest_grads_of(&call);
    optest_backward(&call);
    tn_tensor kept = optest_from(TN_BF16, &grads->in[0]), up = grads->out[0];
    grads->out[0] = optest_transpose(optest_zeros(TN_BF16, 4, (int64_t[]){BATCH, 3, TOKENS, 23}), 1, 2);
    grads->in[0] = optest_transpose(optest_zeros(TN_BF16, 4, (int64_t[]){BATCH, 3, TOKENS, 23}), 1, 2);
    for (int64_t i = 0; i < tn_tensor_count(&up); i++)
        optest_set(&grads->out[0], i, optest_at(&up, i));
    optest_backward(&call);
    optest_close(&grads->in[0], &kept, 0.0, 0.0, "strided");
}
END_TEST

START_TEST(absent_tensors)
{
    tn_call call = make_call(TN_ROPE_COMPLEX, TN_F16, TN_F32, 9, 8);
    tn_grads *grads = optest_grads_of(&call);
    grads->out[1].data = NULL;
    optest_backward_threads(&call);
    optest_expect_zero(&grads->in[1]);
    /* Tables are constants. */
    grads->in[2] = optest_zeros(TN_F32, 3, call.in[2].shape);
    ck_assert_int_eq(optest_try_backward(&call, NULL), TN_E_INTERNAL);
    grads->in[2].data = NULL;
    for (int i = 0; i < 2; i++)
        grads->in[i].shape[1] = grads->out[i].shape[1] = call.in[i].shape[1] = 0;
    optest_backward(&call);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of rotary embeddings", 120);
    tcase_add_loop_test(tc, ropes, TN_ROPE_HALF, TN_ROPE_HALF_F32 + 1);
    suite_add(tc, strided, absent_tensors);
    return suite_run();
}
