/* ATTENTION against a plain reference. q and k hold multiples of 1/64 below 2, so with the head sizes used here their
 * products sum exactly in f32, in any order: scores must then round exactly as the reference's do, and what may differ
 * is the last bit of the softmax and of the product with v. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attention_case {
    int64_t batch, tokens, keys, heads, kv_heads, d, dv, window, chunk;
    double softcap;
    bool sinks, strided, both_sides, chosen;
    int slopes; /* 1: ALiBi with slopes in f32, 2: in bf16                                         */
} attention_case;

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static double at4(const tn_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return optest_at(t, ((a * t->shape[1] + b) * t->shape[2] + c) * t->shape[3] + d);
}

/* What a position adds to a score. */
static double leaning(const tn_call *call, const attention_case *c, int64_t head, int64_t position)
{
    const tn_tensor *slopes = call->site->param[TN_ROLE_DECAY].tensors;
    double p = c->slopes == 2 ? optest_rounded((double)position, TN_BF16) : (double)position;
    double bias = optest_rounded(optest_at(slopes, head) * p, slopes->dtype);
    return optest_rounded(bias, call->in[0].dtype) * call->site->num[TN_NUM_ALPHA];
}

/* One query's probabilities; returns how many keys it sees. */
static int64_t reference_scores(const tn_call *call, const attention_case *c, int64_t b, int64_t t, int64_t h,
                                double *p)
{
    tn_dtype dtype = call->in[0].dtype;
    int64_t seen = 0, q = (int64_t)optest_at(&call->in[3], b * c->tokens + t);
    double max = -INFINITY, sum = 0.0;
    for (int64_t s = 0; s < c->keys; s++) {
        int64_t kv = (int64_t)optest_at(&call->in[4], b * c->keys + s);
        p[s] = -INFINITY;
        int64_t apart = c->both_sides && kv > q ? kv - q : q - kv;
        if (kv < 0 || apart < 0 || q < 0 || (c->window && apart >= c->window) ||
            (c->chunk && q / c->chunk != kv / c->chunk) ||
            (c->chosen && optest_at(&call->in[5], (b * c->tokens + t) * c->keys + s) == 0))
            continue;
        double score = 0.0;
        for (int64_t i = 0; i < c->d; i++)
            score += at4(&call->in[0], b, t, h, i) * at4(&call->in[1], b, s, h / (c->heads / c->kv_heads), i);
        if (c->slopes && c->softcap == 0.0) {
            p[s] =
                optest_rounded(score * (double)(float)call->site->num[TN_NUM_SCALE] + leaning(call, c, h, kv), dtype);
            max = fmax(max, p[s]);
            seen++;
            continue;
        }
        score =
            optest_rounded((double)((float)optest_rounded(score, dtype) * (float)call->site->num[TN_NUM_SCALE]), dtype);
        if (c->softcap != 0.0) {
            score = optest_rounded((double)((float)score / (float)c->softcap), dtype);
            score = optest_rounded(optest_rounded(tanh(score), dtype) * c->softcap, dtype);
        }
        if (c->slopes)
            score = optest_rounded(score + leaning(call, c, h, kv), dtype);
        p[s] = score;
        max = fmax(max, score);
        seen++;
    }
    double sink = c->sinks ? optest_at(call->site->param[TN_ROLE_SINKS].tensors, h) : -INFINITY;
    max = fmax(max, sink);
    for (int64_t s = 0; s < c->keys; s++)
        sum += p[s] = seen ? exp(p[s] - max) : 0.0;
    sum += c->sinks ? exp(sink - max) : 0.0;
    for (int64_t s = 0; s < c->keys && seen; s++)
        p[s] = optest_rounded(p[s] / sum, dtype);
    return seen;
}

static void check_case(const tn_call *call, const attention_case *c)
{
    double *p = malloc((size_t)(c->keys + 1) * sizeof *p);
    tn_dtype dtype = call->in[0].dtype;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t t = 0; t < c->tokens; t++)
            for (int64_t h = 0; h < c->heads; h++) {
                int64_t seen = reference_scores(call, c, b, t, h, p);
                for (int64_t i = 0; i < c->dv; i++) {
                    double o = 0.0, magnitude = 0.0;
                    for (int64_t s = 0; s < c->keys; s++) {
                        double v = p[s] == 0.0 ? 0.0 : at4(&call->in[2], b, s, h / (c->heads / c->kv_heads), i);
                        o += p[s] * v;
                        magnitude += fabs(p[s] * v);
                    }
                    double got = at4(&call->out[0], b, t, h, i);
                    /* f32 sums of the softmax and of the product: an ulp for each of their terms at worst. Then a
                     * probability or the result may round to the other side: an ulp of the model's type. */
                    double bound = magnitude * ((double)(2 * seen + 16) * 0x1p-24 +
                                                (dtype == TN_F32 ? 0 : 2) * optest_epsilon(dtype));
                    if (!(fabs(got - o) <= bound) || (seen == 0 && got != 0.0))
                        ck_abort_msg("%s, query %d head %d dim %d: %.9g, expected %.9g +- %.2g", tn_dtype_name(dtype),
                                     (int)t, (int)h, (int)i, got, o, bound);
                }
            }
    free(p);
}

/* A prompt of all tokens at the end of the keys, keys in order. */
static tn_call make_call(const attention_case *c, tn_dtype dtype)
{
    tn_call call = optest_call(TN_OP_ATTENTION, dtype, c->chosen ? 6 : 5, 1);
    tn_site *site = optest_site_of(&call);
    site->num[TN_NUM_SCALE] = 0.17677669529663687;
    site->dim[TN_DIM_WINDOW] = c->window;
    site->dim[TN_DIM_CHUNK] = c->chunk;
    site->num[TN_NUM_SOFTCAP] = c->softcap;
    site->features = (c->window ? TN_HAS_WINDOW : 0) | (c->chunk ? TN_HAS_CHUNK : 0) |
                     (c->softcap != 0.0 ? TN_HAS_SOFTCAP : 0) | (c->sinks ? TN_HAS_SINKS : 0) |
                     (c->both_sides ? TN_HAS_BOTH_SIDES : 0) | (c->slopes ? TN_HAS_ALIBI : 0) |
                     (c->chosen ? TN_HAS_CHOSEN_KEYS : 0);
    site->num[TN_NUM_ALPHA] = 0.25;
    tn_tensor sinks = optest_random(dtype, 1, &c->heads, 5);
    optest_param(site, TN_ROLE_SINKS, &sinks, 1);
    tn_tensor slopes = optest_random(c->slopes == 2 ? TN_BF16 : TN_F32, 1, &c->heads, 7);
    for (int64_t h = 0; h < c->heads; h++) /* so that sums with scores are exact                  */
        optest_set(&slopes, h, ldexp(3, -(int)h - 6));
    optest_param(site, TN_ROLE_DECAY, &slopes, 1);
    call.in[0] = optest_random(dtype, 4, (int64_t[]){c->batch, c->tokens, c->heads, c->d}, 1);
    call.in[1] = optest_random(dtype, 4, (int64_t[]){c->batch, c->keys, c->kv_heads, c->d}, 2);
    call.in[2] = optest_random(dtype, 4, (int64_t[]){c->batch, c->keys, c->kv_heads, c->dv}, 3);
    call.out[0] = optest_zeros(dtype, 4, (int64_t[]){c->batch, c->tokens, c->heads, c->dv});
    if (c->strided) {
        call.in[0] =
            optest_transpose(optest_random(dtype, 4, (int64_t[]){c->batch, c->heads, c->tokens, c->d}, 1), 1, 2);
        call.in[1] =
            optest_transpose(optest_random(dtype, 4, (int64_t[]){c->batch, c->kv_heads, c->keys, c->d}, 2), 1, 2);
        call.in[2] =
            optest_transpose(optest_random(dtype, 4, (int64_t[]){c->batch, c->kv_heads, c->keys, c->dv}, 3), 1, 2);
        call.out[0] = optest_transpose(optest_zeros(dtype, 4, (int64_t[]){c->batch, c->heads, c->tokens, c->dv}), 1, 2);
    }
    call.in[3] = optest_zeros(TN_I32, 2, (int64_t[]){c->batch, c->tokens});
    call.in[4] = optest_zeros(TN_I32, 2, (int64_t[]){c->batch, c->keys});
    for (int64_t b = 0; b < c->batch; b++) {
        for (int64_t t = 0; t < c->tokens; t++)
            optest_set(&call.in[3], b * c->tokens + t, (double)(c->keys - c->tokens + t));
        for (int64_t s = 0; s < c->keys; s++)
            optest_set(&call.in[4], b * c->keys + s, (double)s);
    }
    if (c->chosen) { /* others for each query; of the last query of each row none                       */
        call.in[5] = optest_zeros(TN_I32, 3, (int64_t[]){c->batch, c->tokens, c->keys});
        for (int64_t i = 0; i < c->batch * c->tokens * c->keys; i++)
            optest_set(&call.in[5], i, i / c->keys % c->tokens < c->tokens - 1 && i * i % 11 < 4);
    }
    return call;
}

static const attention_case cases[] = {
    {.batch = 1, .tokens = 1, .keys = 1, .heads = 1, .kv_heads = 1, .d = 1, .dv = 1},
    {.batch = 1, .tokens = 7, .keys = 7, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16},
    {.batch = 2, .tokens = 1, .keys = 300, .heads = 4, .kv_heads = 4, .d = 32, .dv = 24},
    {.batch = 1, .tokens = 1, .keys = 130, .heads = 6, .kv_heads = 1, .d = 16, .dv = 16},
    {.batch = 1, .tokens = 150, .keys = 150, .heads = 2, .kv_heads = 1, .d = 16, .dv = 8, .strided = true},
    {.batch = 2, .tokens = 40, .keys = 290, .heads = 6, .kv_heads = 2, .d = 16, .dv = 17, .window = 9},
    {.batch = 1, .tokens = 1, .keys = 400, .heads = 2, .kv_heads = 2, .d = 64, .dv = 64, .window = 100},
    {.batch = 2, .tokens = 40, .keys = 290, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16, .chunk = 7},
    {.batch = 1, .tokens = 12, .keys = 30, .heads = 2, .kv_heads = 1, .d = 16, .dv = 8, .window = 5, .chunk = 8},
    {.batch = 1, .tokens = 20, .keys = 33, .heads = 2, .kv_heads = 2, .d = 16, .dv = 16, .softcap = 50.0},
    {.batch = 1, .tokens = 20, .keys = 20, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16, .sinks = true, .window = 6},
    {.batch = 1, .tokens = 3, .keys = 140, .heads = 2, .kv_heads = 2, .d = 8, .dv = 8, .window = 4, .strided = true},
    {.batch = 2, .tokens = 150, .keys = 150, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16, .both_sides = true},
    {.batch = 1,
     .tokens = 290,
     .keys = 290,
     .heads = 2,
     .kv_heads = 1,
     .d = 16,
     .dv = 8,
     .window = 9,
     .both_sides = true},
    {.batch = 1,
     .tokens = 12,
     .keys = 30,
     .heads = 2,
     .kv_heads = 1,
     .d = 16,
     .dv = 8,
     .window = 5,
     .chunk = 8,
     .both_sides = true},
    {.batch = 1,
     .tokens = 9,
     .keys = 9,
     .heads = 2,
     .kv_heads = 1,
     .d = 16,
     .dv = 8,
     .chunk = 4,
     .sinks = true,
     .both_sides = true},
    {.batch = 2, .tokens = 20, .keys = 33, .heads = 6, .kv_heads = 2, .d = 16, .dv = 16, .slopes = 1},
    {.batch = 1, .tokens = 1, .keys = 700, .heads = 2, .kv_heads = 2, .d = 16, .dv = 8, .slopes = 2},
    {.batch = 1, .tokens = 30, .keys = 600, .heads = 4, .kv_heads = 1, .d = 16, .dv = 8, .slopes = 2, .sinks = true},
    {.batch = 1, .tokens = 9, .keys = 40, .heads = 2, .kv_heads = 1, .d = 8, .dv = 8, .slopes = 1, .softcap = 30.0},
    {.batch = 2, .tokens = 30, .keys = 600, .heads = 4, .kv_heads = 2, .d = 16, .dv = 8, .chosen = true},
    {.batch = 2, .tokens = 30, .keys = 600, .heads = 4, .kv_heads = 2, .d = 16, .dv = 8, .chosen = true, .window = 200},
};

START_TEST(equals_the_reference)
{
    for (int d = 0; d < 3; d++) {
        tn_call call = make_call(&cases[_i], dtypes[d]);
        optest_threads(&call);
        check_case(&call, &cases[_i]);
    }
}
END_TEST

/* A ring: keys in any order, slots not in use hold NaN, some queries are padding. */
START_TEST(slots_come_in_any_order)
{
    const attention_case ring = {
        .batch = 2, .tokens = 9, .keys = 300, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16, .window = _i ? 200 : 0};
    for (int d = 0; d < 3; d++) {
        tn_call call = make_call(&ring, dtypes[d]);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t s = 0; s < ring.keys; s++) {
                bool used = s % 5 != 3 && (s < 128 || s >= 256);
                optest_set(&call.in[4], b * ring.keys + s, used ? (double)((s * 7 + 100 + b) % 300) : -1.0);
                for (int64_t i = 0; i < 32 && !used; i++) {
                    optest_set(&call.in[1], (b * ring.keys + s) * 32 + i, (double)NAN);
                    optest_set(&call.in[2], (b * ring.keys + s) * 32 + i, (double)NAN);
                }
            }
        optest_set(&call.in[3], 0, -1.0);
        optest_threads(&call);
        check_case(&call, &ring);
    }
}
END_TEST

/* A full ring of three blocks: the window's keys lie in the first and the last, the middle one is left out. */
START_TEST(blocks_between_are_left_out)
{
    for (int d = 0; d < 3; d++)
        for (int64_t tokens = 1; tokens <= 9; tokens += 8) {
            const attention_case ring = {
                .batch = 1, .tokens = tokens, .keys = 384, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16, .window = 200};
            tn_call call = make_call(&ring, dtypes[d]);
            for (int64_t s = 0; s < ring.keys; s++)
                optest_set(&call.in[4], s, (double)((s + 256) % 384));
            optest_threads(&call);
            check_case(&call, &ring);
        }
}
END_TEST

START_TEST(a_row_of_one_is_independent_of_its_neighbours)
{
    /* The last token of a prompt alone, as decoding computes it: another path, the same rule. */
    const attention_case whole = {.batch = 1, .tokens = 60, .keys = 60, .heads = 4, .kv_heads = 2, .d = 16, .dv = 16};
    tn_call call = make_call(&whole, TN_F32);
    optest_run(&call);
    attention_case one = whole;
    one.tokens = 1;
    tn_call last = make_call(&one, TN_F32);
    for (int64_t i = 0; i < 64; i++)
        optest_set(&last.in[0], i, optest_at(&call.in[0], 59 * 64 + i));
    optest_run(&last);
    for (int64_t i = 0; i < 64; i++)
        ck_assert_double_eq_tol(optest_at(&last.out[0], i), optest_at(&call.out[0], 59 * 64 + i), 1e-5);
}
END_TEST

START_TEST(nothing_to_do)
{
    const attention_case none[] = {
        {.batch = 1, .tokens = 0, .keys = 5, .heads = 2, .kv_heads = 1, .d = 8, .dv = 8},
        {.batch = 0, .tokens = 3, .keys = 5, .heads = 2, .kv_heads = 1, .d = 8, .dv = 8},
        {.batch = 1, .tokens = 3, .keys = 0, .heads = 2, .kv_heads = 1, .d = 8, .dv = 8},
    };
    for (int i = 0; i < 3; i++) {
        tn_call call = make_call(&none[i], TN_BF16);
        for (int64_t j = 0; j < tn_tensor_count(&call.out[0]); j++)
            optest_set(&call.out[0], j, 7.0);
        optest_run(&call);
        optest_expect_zero(&call.out[0]);
    }
}
END_TEST

START_TEST(nan_stays_with_its_query)
{
    const attention_case c = {.batch = 1, .tokens = 40, .keys = 40, .heads = 2, .kv_heads = 2, .d = 16, .dv = 16};
    for (int d = 0; d < 3; d++) {
        tn_call call = make_call(&c, dtypes[d]);
        optest_set(&call.in[0], (20 * 2 + 1) * 16 + 3, (double)NAN);
        optest_run(&call);
        for (int64_t i = 0; i < tn_tensor_count(&call.out[0]); i++)
            ck_assert_int_eq(isnan(optest_at(&call.out[0], i)) != 0, i / 16 == 20 * 2 + 1);
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: attention", 120);
    tcase_add_loop_test(tc, equals_the_reference, 0, (int)(sizeof cases / sizeof *cases));
    tcase_add_loop_test(tc, slots_come_in_any_order, 0, 2);
    suite_add(tc, blocks_between_are_left_out, a_row_of_one_is_independent_of_its_neighbours, nothing_to_do,
              nan_stays_with_its_query);
    return suite_run();
}
