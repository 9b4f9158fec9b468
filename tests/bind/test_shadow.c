/* A shadow: kernels that turn wrong while a model runs are found, and the run goes on as if eager had computed it all
 * along; right ones stay; the call that was wrong can be made again from its file. */
#include "bind/shadow.h"
#include "check/callfile.h"
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 21, CHUNK = 7 };

static bool turns_wrong; /* set once the kernel is applied: the check, in its child, sees a right one  */
static int64_t wrong_calls, calls;

static tn_status forward(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    calls++;
    if (status != TN_OK || !turns_wrong)
        return status;
    wrong_calls++;
    const tn_tensor *last = &call->out[call->out_count - 1];
    unsigned char *element = last->data;
    element[tn_dtype_size(last->dtype) - 1] ^= 0x80; /* the sign of the first element                */
    return TN_OK;
}

/* Logits of some tokens in three chunks. Owned. */
static float *logits_of(tn_model *m, size_t *count)
{
    int64_t ids[TOKENS];
    tn_session *s = test_model_session(m, .context = 32, .chunk = CHUNK);
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = 1 + i * 5 % 17;
    *count = (size_t)(TOKENS * m->info.vocab);
    float *logits = calloc(*count, sizeof *logits);
    test_model_run(s, TOKENS, ids, .logits = logits);
    tn_session_free(s);
    return logits;
}

static void apply(tn_model *m, const char *id, double fraction, const char *prefix)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_apply_kernel(m, NULL, id, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_msg(tn_model_shadow(m, fraction, prefix, &err) == TN_OK, "%s: %s", err.where, err.message);
}

static const struct {
    const char *model;
    tn_op op;
    bool exact; /* the kernel's bits are eager's                                                    */
} subjects[] = {
    {"qwen3", TN_OP_RMS_NORM, true}, {"qwen3", TN_OP_ADD_RMS_NORM, true}, {"qwen3", TN_OP_ROPE, true},
    {"qwen3", TN_OP_LINEAR, false},  {"llama", TN_OP_MLP, false},         {"qwen3_moe", TN_OP_MOE_BLOCK, false},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

START_TEST(a_kernel_that_turns_wrong_is_taken_off)
{
    size_t count;
    char *folder = tempdir_new(), *prefix = tempdir_at(folder, "s"), *file = tempdir_at(folder, "s-k.safetensors");
    tn_model *m = test_model(subjects[_i].model, .dtype = "f32");
    float *eager = logits_of(m, &count);
    test_kernel_add(&(test_kernel){.id = "k", .op = subjects[_i].op, .forward = forward});
    apply(m, "k", 1, prefix);
    ck_assert_uint_gt(test_model_bound(m), 0);
    turns_wrong = true;
    float *logits = logits_of(m, &count);
    ck_assert_int_eq(wrong_calls, 1);
    ck_assert_uint_eq(test_model_bound(m), 0);
    if (subjects[_i].exact)
        ck_assert_mem_eq(logits, eager, count * sizeof *logits);
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_ptr_null(tn_notice_get(1));
    ck_assert_ptr_nonnull(strstr(tn_notice_get(0), "k is wrong at model"));
    ck_assert_ptr_nonnull(strstr(tn_notice_get(0), ", row 0, element 0 is "));
    ck_assert_ptr_nonnull(strstr(tn_notice_get(0), "tenon check test --replay "));
    callfile c;
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(callfile_open(&c, file, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_str_eq(c.facts.kernel, "k");
    ck_assert_int_eq(c.site.op, subjects[_i].op);
    ck_assert(c.facts.worst > 1 && strstr(c.facts.detail, "row 0, element 0"));
    callfile_close(&c);
    /* Reverting finds nothing any more, and applying again works. */
    turns_wrong = false;
    ck_assert_int_eq(tn_revert_kernel(m, "k", NULL), TN_E_KERNEL);
    apply(m, "k", 0, NULL);
    free(eager);
    free(logits);
}
END_TEST

START_TEST(a_right_kernel_stays)
{
    size_t count;
    tn_model *m = test_model(subjects[_i].model, .dtype = "bf16");
    test_kernel_add(&(test_kernel){.id = "k", .op = subjects[_i].op, .forward = forward});
    apply(m, "k", 1, NULL);
    size_t bound = test_model_bound(m);
    free(logits_of(m, &count));
    ck_assert_uint_eq(test_model_bound(m), bound);
    ck_assert_uint_eq(tn_notice_count(), 0);
}
END_TEST

/* With a fraction, a kernel that turned wrong with sizes that it was right with is found after about as many calls as
 * the fraction says; 0 finds nothing. */
START_TEST(a_fraction_of_the_calls)
{
    size_t count;
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_kernel_add(&(test_kernel){.id = "k", .op = TN_OP_RMS_NORM, .forward = forward});
    apply(m, "k", 0, NULL);
    free(logits_of(m, &count));
    turns_wrong = true;
    free(logits_of(m, &count));
    ck_assert_uint_eq(tn_notice_count(), 0);
    int64_t all = wrong_calls;
    wrong_calls = 0;
    ck_assert_int_eq(tn_model_shadow(m, 0.02, NULL, NULL), TN_OK);
    for (int i = 0; i < 40 && tn_notice_count() == 0; i++)
        free(logits_of(m, &count));
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_int_gt(wrong_calls, 1);
    ck_assert_int_lt(wrong_calls, 40 * all);
    ck_assert_ptr_null(strstr(tn_notice_get(0), "the call is in"));
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3", .dtype = NULL);
    ck_assert_int_eq(tn_model_shadow(NULL, 1, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_model_shadow(m, 1.5, NULL, &err), TN_E_USAGE);
    suite_expect_in(err.message, "give 0 to 1");
    ck_assert_int_eq(tn_model_shadow(m, -1, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_model_shadow(m, 0.0 / 0.0, NULL, NULL), TN_E_USAGE);
    tn_session *s = tn_session_new(m, NULL, NULL);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_model_shadow(m, 1, NULL, &err), TN_E_USAGE);
    suite_expect_in(err.message, "sessions");
    tn_session_free(s);
}
END_TEST

/* What is no such file is refused with its name; nothing in it is trusted. */
START_TEST(other_files_are_no_calls)
{
    callfile c;
    tn_error err = TN_ERROR_INIT;
    tn_replay result = {.size = sizeof result};
    ck_assert_int_eq(callfile_open(&c, "tests/data/models/qwen3/model.safetensors", &err), TN_E_INPUT);
    suite_expect_in(err.message, "is this a file that --shadow wrote?");
    callfile_close(&c);
    ck_assert_int_eq(tn_check_replay(NULL, "/nowhere", &result, NULL), TN_E_INPUT);
    ck_assert_int_eq(tn_check_replay(NULL, NULL, &result, NULL), TN_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("shadow", 300);
    tcase_add_loop_test(tc, a_kernel_that_turns_wrong_is_taken_off, 0, SUBJECTS);
    tcase_add_loop_test(tc, a_right_kernel_stays, 0, SUBJECTS);
    suite_add(tc, a_fraction_of_the_calls, what_cannot_be_is_refused, other_files_are_no_calls);
    return suite_run();
}
