/* The simulator's fused operators: SwiGlu and rotary embedding, with their gradients. Every test is a process of its
 * own. */
#include "sim_box.h"
#include "suite.h"

/* ---- SwiGlu ---------------------------------------------------------------------------------------------------- */

#define ROWS 4
#define HALF 16

START_TEST(halves_are_gate_and_up)
{
    float x[ROWS * 2 * HALF], g[ROWS * HALF];
    double y[ROWS * HALF], dx[ROWS * 2 * HALF];
    box_open();
    draw(x, ROWS * 2 * HALF, 1);
    draw(g, ROWS * HALF, 2);
    for (int i = 0; i < ROWS * HALF; i++) {
        int a = i / HALF * 2 * HALF + i % HALF;
        double gate = (double)x[a], up = (double)x[a + HALF], s = 1.0 / (1.0 + exp(-gate));
        y[i] = gate * s * up;
        dx[a] = (double)g[i] * (s + gate * s * (1.0 - s)) * up;
        dx[a + HALF] = (double)g[i] * gate * s;
    }
    for (int i = 0; i < 3; i++) {
        box tx = tensor(floats[i], 2, DIMS(ROWS, 2 * HALF), x), tg = tensor(floats[i], 2, DIMS(ROWS, HALF), g);
        box out = tensor(floats[i], 2, DIMS(ROWS, HALF), NULL), back = tensor(floats[i], 2, DIMS(ROWS, 2 * HALF), NULL);
        GO(SwiGlu, tx.tensor, -1, out.tensor);
        expect_near(&out, y, bounds[i]);
        GO(SwiGluGrad, tg.tensor, tx.tensor, -1, back.tensor);
        expect_near(&back, dx, bounds[i]);
        aclTensor *turned = view_of(&tx, 2, DIMS(2 * HALF, ROWS), DIMS(1, 2 * HALF), 0);
        aclTensor *small = view_of(&out, 2, DIMS(HALF, ROWS), NULL, 0);
        BROKEN(FIRST(SwiGlu, turned, 0, small), 161002);
        BROKEN(FIRST(SwiGlu, tx.tensor, 2, out.tensor), 161002);
        BROKEN(FIRST(SwiGlu, tx.tensor, 0, out.tensor), 161002);
        CALL(aclDestroyTensor)(turned);
        CALL(aclDestroyTensor)(small);
        DROP(&tx, &tg, &out, &back);
    }
    box_close(9);
}
END_TEST

/* ---- rotary embedding ------------------------------------------------------------------------------------------ */

#define B 2
#define S 8
#define HEADS 3
#define D 16
#define TOTAL (B * S * HEADS * D)

/* x is B S N D; c and s are S D. */
static void slow_rotary(const float *x, const float *c, const float *s, int mode, double *y)
{
    for (int i = 0; i < TOTAL; i++) {
        int d = i % D, angle = i / (HEADS * D) % S * D + d, row = i - d;
        bool first = mode ? d % 2 == 0 : d < D / 2;
        int other = mode ? (first ? d + 1 : d - 1) : (first ? d + D / 2 : d - D / 2);
        y[i] = (double)x[i] * (double)c[angle] + (first ? -1.0 : 1.0) * (double)x[row + other] * (double)s[angle];
    }
}

START_TEST(rows_are_rotated)
{
    float x[TOTAL], c[S * D], s[S * D];
    double y[TOTAL];
    box_open();
    draw(x, TOTAL, 3);
    draw(c, S * D, 4);
    draw(s, S * D, 5);
    for (int mode = 0; mode < 2; mode++)
        for (int i = 0; i < 3; i++) {
            box tx = tensor(floats[i], 4, DIMS(B, S, HEADS, D), x),
                out = tensor(floats[i], 4, DIMS(B, S, HEADS, D), NULL);
            box tc = tensor(floats[i], 4, DIMS(1, S, 1, D), c), ts = tensor(floats[i], 4, DIMS(1, S, 1, D), s);
            slow_rotary(x, c, s, mode, y);
            GO(RotaryPositionEmbedding, tx.tensor, tc.tensor, ts.tensor, mode, out.tensor);
            expect_near(&out, y, 2 * bounds[i]);
            CALL(aclrtMemset)(out.device, 64, 0, 64);
            GO(RotaryPositionEmbeddingV2, tx.tensor, tc.tensor, ts.tensor, mode, NULL, out.tensor);
            expect_near(&out, y, 2 * bounds[i]);
            DROP(&tx, &out, &tc, &ts);
        }
    box_close(0);
}
END_TEST

/* The first phase with undefined values; the executor that a right call leaves is destroyed. */
static int try_rotary(const int64_t *x, const int64_t *cos, int64_t mode)
{
    box tx = tensor(ACL_FLOAT16, 4, x, NULL), tc = tensor(ACL_FLOAT16, 4, cos, NULL),
        out = tensor(ACL_FLOAT16, 4, x, NULL);
    int code = FIRST(RotaryPositionEmbedding, tx.tensor, tc.tensor, tc.tensor, mode, out.tensor);
    if (!code) {
        CALL(aclSetAclOpExecutorRepeatable)(executor);
        CALL(aclDestroyAclOpExecutor)(executor);
    }
    DROP(&tx, &tc, &out);
    return code;
}

START_TEST(rotation_has_limits)
{
    box_open();
    ck_assert_int_eq(try_rotary(DIMS(2, 3, 8, 64), DIMS(1, 1, 8, 64), 0), 0); /* BNSD */
    ck_assert_int_eq(try_rotary(DIMS(2, 3, 8, 64), DIMS(2, 1, 8, 64), 0), 0);
    ck_assert_int_eq(try_rotary(DIMS(8, 2, 3, 64), DIMS(8, 1, 1, 64), 1), 0); /* SBND */
    ck_assert_int_eq(try_rotary(DIMS(1, 5, 7, 894), DIMS(1, 5, 1, 894), 0), 0);
    BROKEN(try_rotary(DIMS(1, 5, 7, 896), DIMS(1, 5, 1, 896), 0), 561002);
    BROKEN(try_rotary(DIMS(1, 5, 7, 33), DIMS(1, 5, 1, 33), 0), 561002);
    BROKEN(try_rotary(DIMS(1, 5, 7, 64), DIMS(1, 5, 1, 32), 0), 561002); /* partial */
    BROKEN(try_rotary(DIMS(2, 5, 7, 64), DIMS(1, 5, 7, 64), 0), 561002); /* no layout has it */
    BROKEN(try_rotary(DIMS(2, 5, 7, 64), DIMS(2, 5, 1, 64), 1), 561002);
    BROKEN(try_rotary(DIMS(2, 5, 1000, 64), DIMS(1, 5, 1, 64), 0), 561002);
    BROKEN(try_rotary(DIMS(2, 5, 500, 64), DIMS(1, 5, 1, 64), 1), 561002);
    BROKEN(try_rotary(DIMS(2, 9, 2, 64), DIMS(1, 1, 2, 64), 0), 561002); /* B * N > 8 * S in BNSD */
    BROKEN(try_rotary(DIMS(2, 5, 7, 64), DIMS(1, 5, 1, 64), 2), 561002);
    setenv("ASCEND_SIM_SOC", "Ascend310P3", 1);
    BROKEN(try_rotary(DIMS(2, 5, 7, 64), DIMS(1, 5, 1, 64), 0), 561003);
    box_close(10);
}
END_TEST

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { QUERIES = 2, KEYS = 3, HEADS_Q = 4, HEADS_KV = 2, WIDE = 16 };

static int attention(const box *q, aclTensorList *k, aclTensorList *v, const box *mask, char *layout, const box *out)
{
    return FIRST(FusedInferAttentionScoreV2, q->tensor, k, v, NULL, mask ? mask->tensor : NULL, NULL, NULL, NULL, NULL,
                 NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, HEADS_Q,
                 0.25, INT32_MAX, INT32_MAX, layout, HEADS_KV, 0, 0, 0, 0, false, 0, 0, out->tensor, NULL);
}

/* y of one query and head; hidden: [T,S]. */
static void slow_attention(const float *q, const float *k, const float *v, const float *hidden, double *y)
{
    for (int i = 0; i < QUERIES * HEADS_Q; i++) {
        int t = i / HEADS_Q, of = i % HEADS_Q / (HEADS_Q / HEADS_KV);
        double p[KEYS], sum = 0;
        for (int s = 0; s < KEYS; s++) {
            double product = 0;
            for (int d = 0; d < WIDE; d++)
                product += (double)q[i * WIDE + d] * (double)k[(s * HEADS_KV + of) * WIDE + d];
            sum += p[s] = hidden[t * KEYS + s] != 0 ? 0 : exp(0.25 * product);
        }
        for (int d = 0; d < WIDE; d++) {
            y[i * WIDE + d] = 0;
            for (int s = 0; s < KEYS; s++)
                y[i * WIDE + d] += p[s] / sum * (double)v[(s * HEADS_KV + of) * WIDE + d];
        }
    }
}

START_TEST(queries_see_the_keys_that_are_not_hidden)
{
    static float q[QUERIES * HEADS_Q * WIDE], k[KEYS * HEADS_KV * WIDE], v[KEYS * HEADS_KV * WIDE];
    static double y[QUERIES * HEADS_Q * WIDE];
    const float hidden[QUERIES * KEYS] = {0, 0, 1, 0, 0, 0};
    char layout[] = "BSND", other[] = "BNSD";
    box_open();
    for (int i = 0; i < QUERIES * HEADS_Q * WIDE; i++)
        q[i] = (float)(i % 7 - 3) / 4;
    for (int i = 0; i < KEYS * HEADS_KV * WIDE; i++) {
        k[i] = (float)(i % 5 - 2) / 4;
        v[i] = (float)(i % 11 - 5) / 8;
    }
    slow_attention(q, k, v, hidden, y);
    for (int i = 0; i < 3; i++) {
        box tq = tensor(floats[i], 4, DIMS(1, QUERIES, HEADS_Q, WIDE), q);
        box tk = tensor(floats[i], 4, DIMS(1, KEYS, HEADS_KV, WIDE), k);
        box tv = tensor(floats[i], 4, DIMS(1, KEYS, HEADS_KV, WIDE), v);
        box mask = tensor(ACL_BOOL, 2, DIMS(QUERIES, KEYS), hidden),
            turned = tensor(ACL_BOOL, 2, DIMS(KEYS, QUERIES), hidden);
        box out = tensor(floats[i], 4, DIMS(1, QUERIES, HEADS_Q, WIDE), NULL);
        aclTensorList *keys = CALL(aclCreateTensorList)((const aclTensor *const[]){tk.tensor}, 1);
        aclTensorList *values = CALL(aclCreateTensorList)((const aclTensor *const[]){tv.tensor}, 1);
        if (floats[i] == ACL_FLOAT) {
            BROKEN(attention(&tq, keys, values, &mask, layout, &out), 161002);
        } else {
            ck_assert_int_eq(go("aclnnFusedInferAttentionScoreV2", attention(&tq, keys, values, &mask, layout, &out)),
                             0);
            expect_near(&out, y, bounds[i]);
            BROKEN(attention(&tq, keys, values, &turned, layout, &out), 161002);
            BROKEN(attention(&tq, keys, values, &mask, other, &out), 161002);
            BROKEN(attention(&tq, keys, NULL, &mask, layout, &out), 161002);
        }
        tk.tensor = tv.tensor = NULL; /* the lists' */
        CALL(aclDestroyTensorList)(keys);
        CALL(aclDestroyTensorList)(values);
        DROP(&tq, &tk, &tv, &mask, &turned, &out);
    }
    box_close(7);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim_fused", 0);
    suite_add(tests, queries_see_the_keys_that_are_not_hidden);
    suite_add(tests, halves_are_gate_and_up, rows_are_rotated, rotation_has_limits);
    return process_main();
}
