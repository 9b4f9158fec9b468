/* A run on a tape: what is written over, read twice, read in part, and gone back over. Gradients of a few calls against
 * differences; those of whole models are check_training's. */
#include "run/tape.h"

#include "eager/eager.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { ROWS = 3, WIDTH = 6, COUNT = ROWS * WIDTH };

static float *no_sums(void *ctx, const tn_tensor *t)
{
    (void)ctx;
    (void)t;
    return NULL;
}

static void open_tape(tape *t, arena *a, size_t bytes)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tape_open(t, a, &cpu_device, bytes, (tape_sums){no_sums, NULL}, &err) == TN_OK, "%s", err.message);
}

static tn_tensor take(arena *a, int64_t rows, int64_t width)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor t = tn_tensor_dense(NULL, TN_F32, 2, (int64_t[]){rows, width});
    ck_assert_int_eq(arena_take(a, (size_t)(rows * width) * sizeof(float), &t.data, &err), TN_OK);
    return t;
}

static tn_site act_site(void)
{
    tn_site site = {.size = sizeof site, .op = TN_OP_ACT, .path = "test", .class_name = "test"};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    return site;
}

static void perform(tape *t, tn_op op, const tn_site *site, run_tensors in, run_tensors out)
{
    tn_error err = TN_ERROR_INIT;
    const tn_call call = run_make_call(op, site, in, out);
    ck_assert_int_eq(tape_record(t, NULL, &call, &err), TN_OK);
    ck_assert_msg(run_eager_call(&cpu_device, t->arena, &call, &err) == TN_OK, "%s", err.message);
}

/* Left and right half of x: the left one through SiLU in place, then gates of the right one in place; what comes of it
 * is added to x's first values, which a copy holds, and x to that once more. */
static tn_tensor compute(tape *t, const tn_site *site, const float *values, tn_tensor *x)
{
    *x = take(t->arena, ROWS, WIDTH);
    memcpy(x->data, values, COUNT * sizeof *values);
    tn_tensor copy = take(t->arena, ROWS, WIDTH), left = *x, right = *x;
    left.shape[1] = right.shape[1] = WIDTH / 2;
    right.data = (float *)x->data + WIDTH / 2;
    perform(t, TN_OP_COPY, site, RUN_TENSORS(x), RUN_TENSORS(&copy));
    perform(t, TN_OP_ACT, site, RUN_TENSORS(&left), RUN_TENSORS(&left));
    perform(t, TN_OP_GLU, site, RUN_TENSORS(&left, &right), RUN_TENSORS(&right));
    perform(t, TN_OP_ADD, site, RUN_TENSORS(&copy, x), RUN_TENSORS(&copy));
    perform(t, TN_OP_ADD, site, RUN_TENSORS(&copy, x), RUN_TENSORS(&copy));
    return copy;
}

/* The sum of all results, each times a number of its own. */
static double loss_of(const float *values)
{
    tape t;
    arena a;
    tn_tensor x;
    const tn_site site = act_site();
    open_tape(&t, &a, 1 << 16);
    tn_tensor y = compute(&t, &site, values, &x);
    double sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += (1 + i % 5) * (double)((const float *)y.data)[i];
    tape_close(&t);
    return sum;
}

START_TEST(gradients_of_what_is_gone)
{
    float values[COUNT];
    tn_error err = TN_ERROR_INIT;
    const tn_site site = act_site();
    tape t;
    arena a;
    tn_tensor x;
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)((i * 7) % 11 - 5) / 4;
    open_tape(&t, &a, 1 << 16);
    for (int again = 0; again < 2; again++) {
        tape_reset(&t);
        tn_tensor y = compute(&t, &site, values, &x), dy = tape_gradient(&t, &y);
        for (int i = 0; i < COUNT; i++)
            ((float *)dy.data)[i] = (float)(1 + i % 5);
        ck_assert_msg(tape_backward(&t, 0, 0, &err) == TN_OK, "%s", err.message);
        tn_tensor dx = tape_place(&t, &x);
        for (int i = 0; i < COUNT; i++) {
            float moved[COUNT];
            memcpy(moved, values, sizeof moved);
            moved[i] = values[i] + 0.01F;
            double up = loss_of(moved);
            moved[i] = values[i] - 0.01F;
            double slope = (up - loss_of(moved)) / 0.02, got = ((const float *)dx.data)[i];
            ck_assert_msg(fabs(slope - got) < 2e-3 * (1 + fabs(slope)), "%d: %g, not %g", i, got, slope);
        }
        for (int i = 0; i < COUNT; i++) /* what was used up is zero again                             */
            ck_assert_float_eq(((const float *)dy.data)[i], 0);
    }
    tape_close(&t);
}
END_TEST

START_TEST(memory_that_nobody_has)
{
    tape t;
    arena a;
    void *more;
    tn_error err = TN_ERROR_INIT;
    open_tape(&t, &a, 1 << 12);
    ck_assert_int_eq(arena_take(&a, 1 << 13, &more, &err), TN_E_MEMORY);
    suite_expect_in(err.message, "use fewer tokens at once");
    tape_close(&t);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tape_open(&t, &a, &cpu_device, (size_t)1 << 60, (tape_sums){no_sums, NULL}, &err), TN_E_MEMORY);
    suite_expect_in(err.message, "bytes of addresses");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("tape", 0);
    suite_add(tc, gradients_of_what_is_gone, memory_that_nobody_has);
    return suite_run();
}
