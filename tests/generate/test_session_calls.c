/* A session whose calls are larger than those of a first use: what is applied is checked with them, too. */
#include "op/op.h"
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static int64_t wrong_from;

static tn_status wrong_above(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (op_tokens(call) >= wrong_from)
        ((float *)call->out[0].data)[0] += 1;
    return status;
}

static tn_model *open_with(int64_t from, const tn_config *config)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    wrong_from = from;
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE, .forward = wrong_above});
    test_model_apply(m, config, "rope");
    return m;
}

static tn_session *open_session(tn_model *m, int64_t rows, int64_t chunk, tn_error *err)
{
    tn_session_options o = {.size = sizeof o, .rows = rows, .context = 4096, .chunk = chunk};
    *err = (tn_error)TN_ERROR_INIT;
    return tn_session_new(m, &o, err);
}

static void expect_refused(tn_model *m, int64_t rows, int64_t chunk)
{
    tn_error err;
    ck_assert_ptr_null(open_session(m, rows, chunk, &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_str_eq(err.where, "rope");
    ck_assert_msg(strstr(err.message, "smaller chunk") && strstr(err.message, "apply_rotary_pos_emb"), "%s",
                  err.message);
}

static void expect_made(tn_model *m, int64_t rows, int64_t chunk)
{
    tn_error err;
    tn_session *s = open_session(m, rows, chunk, &err);
    ck_assert_msg(s != NULL, "%s: %s", err.where, err.message);
    tn_session_free(s);
}

START_TEST(long_chunks_are_checked)
{
    tn_model *m = open_with(600, NULL);
    expect_made(m, 1, 0);
    expect_refused(m, 1, 640);
    expect_refused(m, 2, 320);
    expect_made(m, 1, 599);
    expect_made(m, 2, 256);
}
END_TEST

START_TEST(right_kernels_have_long_chunks)
{
    tn_model *m = open_with(INT64_MAX, NULL);
    expect_made(m, 1, 2048);
    expect_made(m, 2, 640);
}
END_TEST

START_TEST(unless_nothing_is_checked)
{
    tn_config *config = test_config("{\"verify\": \"never\"}");
    tn_model *m = open_with(600, config);
    expect_made(m, 1, 640);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("calls of sessions", 0);
    suite_add(all, long_chunks_are_checked, right_kernels_have_long_chunks, unless_nothing_is_checked);
    return suite_run();
}
