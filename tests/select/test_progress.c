/* Whoever applies kernels is told how far it is: with figures that are known before, never go back and end complete,
 * and may say that it is enough. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* What was told of checks, [0], and of timings. */
typedef struct told {
    int calls[2];
    int64_t done[2], total[2];
    bool verifies;
    int stop; /* at this call of checks (positive) or timings (negative); 0: never                         */
} told;

static int on_applying(void *ctx, const char *what, int64_t done, int64_t total)
{
    told *t = ctx;
    int which = strcmp(what, "timing kernels") == 0;
    const char *other =
        t->verifies ? "verifying kernels" : "checking kernels"; /* nothing is kept of those in no file */
    ck_assert_msg(which || strcmp(what, other) == 0, "%s", what);
    ck_assert_msg(which || t->calls[1] == 0 || done == total, "checks come before timings");
    ck_assert(t->calls[which] ? total == t->total[which] && done >= t->done[which] : done == 0);
    ck_assert(total > 0 && done <= total);
    t->done[which] = done;
    t->total[which] = total;
    return ++t->calls[which] == (which ? -t->stop : t->stop);
}

static tn_model *open_model(told *t)
{
    tn_model *m = test_model("qwen3", .progress_ctx = t, .applying = on_applying);
    setenv("XDG_CACHE_HOME", "/nonexistent", 1);
    return m;
}

static tn_status wrong(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    memset(call->out[0].data, 0, 8);
    return status;
}

static tn_status apply(tn_model *m, const char *measure, tn_error *err)
{
    setenv("TENON_MEASURE", measure, 1);
    test_kernel_add(&(test_kernel){.id = "one", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "other", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    return tn_apply_kernels(m, NULL, "auto", NULL, err);
}

/* Without timing only what is chosen is checked: RMS norms have two shapes. */
START_TEST(checks_are_counted_before)
{
    bool timed = _i;
    told t = {0};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model(&t);
    ck_assert_msg(apply(m, timed ? "yes" : "no", &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(t.total[0], timed ? 5 : 3);
    ck_assert_int_eq(t.done[0], t.total[0]);
    ck_assert_int_ge(t.calls[0], (int)t.total[0] + 1); /* each is told before and behind                     */
    ck_assert_int_eq(t.total[1], timed ? 3 : 0);       /* shapes                                             */
    ck_assert_int_eq(t.done[1], t.total[1]);
}
END_TEST

/* It is counted as well, and who takes its place is beyond the count. */
START_TEST(one_that_fails_does_not_turn_it_back)
{
    told t = {0};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model(&t);
    test_kernel_add(&(test_kernel){.id = "bad", .op = TN_OP_RMS_NORM, .priority = 9, .forward = wrong});
    ck_assert_msg(apply(m, _i ? "yes" : "no", &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(t.total[0], _i ? 7 : 3);
    ck_assert_int_eq(t.done[0], t.total[0]);
}
END_TEST

START_TEST(it_can_be_cancelled)
{
    static const struct {
        int stop;
        const char *said;
    } ends[] = {{1, "checking kernels was cancelled"},
                {3, "checking kernels was cancelled"},
                {-1, "timing kernels was cancelled"},
                {-2, "timing kernels was cancelled"}};
    told t = {.stop = ends[_i].stop};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model(&t);
    ck_assert_int_eq(apply(m, "yes", &err), TN_E_CANCELLED);
    ck_assert_msg(err.code == TN_E_CANCELLED && strstr(err.message, ends[_i].said), "%s", err.message);
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        ck_assert_ptr_null(m->target.graph->sites[i]->bound.impl);
    /* The next one is none of its business. */
    t = (told){0};
    test_model_apply(m, NULL, "auto");
    ck_assert_int_eq(t.done[1], 3);
}
END_TEST

/* Of what is applied, or of all that match, which one kernel more does: the mistaken one is tried at each site, too. */
START_TEST(verifying_is_told)
{
    told t = {0};
    tn_error err = TN_ERROR_INIT;
    tn_verify_row **rows = NULL;
    size_t count;
    tn_model *m = open_model(&t);
    ck_assert_msg(apply(m, "no", &err) == TN_OK, "%s", err.message);
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        t = (told){.verifies = true, .stop = cancelled ? 2 : 0};
        tn_status status =
            _i ? tn_verify_kernels(m, NULL, "auto", NULL, &rows, &count, &err) : tn_verify(m, &rows, &count, &err);
        ck_assert_msg(status == (cancelled ? TN_E_CANCELLED : TN_OK), "%s: %s", err.where, err.message);
        ck_assert_int_eq(t.done[0], cancelled ? 1 : t.total[0]);
        ck_assert_int_eq(t.total[0], _i ? 2 * 9 + 1 : 9 + 1); /* norms, and the rotation */
        free(rows);
        rows = NULL;
    }
    suite_expect_in(err.message, "verifying kernels was cancelled");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("progress of applying", 300);
    tcase_add_loop_test(tc, checks_are_counted_before, 0, 2);
    tcase_add_loop_test(tc, one_that_fails_does_not_turn_it_back, 0, 2);
    tcase_add_loop_test(tc, it_can_be_cancelled, 0, 4);
    tcase_add_loop_test(tc, verifying_is_told, 0, 2);
    return suite_run();
}
