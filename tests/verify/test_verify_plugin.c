/* Can `tenon check` fail? A kernel with one fault at a time is caught with the right words, and passes without. */
#include "process.h"
#include "sanitizer.h"
#include "suite.h"

#include "check/draw_site.h"
#include "op/match.h"
#include "verify/verify_plugin_sites.h"
#include "op/op.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 2 };

/* What the last run said. */
static struct {
    tn_check_row row;
    char reason[1024], shape[256];
    int rows;
} seen;

static int keep(void *ctx, const tn_check_row *row)
{
    (void)ctx;
    ck_assert_uint_eq(row->size, sizeof *row);
    seen.row = *row;
    snprintf(seen.reason, sizeof seen.reason, "%s", row->reason);
    snprintf(seen.shape, sizeof seen.shape, "%s", row->shape);
    seen.rows++;
    return 0;
}

static const char *built(const char *file)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", process_build(), file);
    return path;
}

static tn_status check_file(const char *file, tn_check_options options, tn_error *err)
{
    options.size = sizeof options;
    options.threads = THREADS;
    memset(&seen, 0, sizeof seen);
    return tn_check_plugin(built(file), &options, keep, NULL, err);
}

#define BAD_KERNEL "tests/bad_kernels/bad_kernel.so"

/* ---- faults --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *fault, *says, *also;
    /* A sanitizer ends the process by itself, so what reads address 0 "crashed" or "called exit". */
} faults[] = {
    {"beside", "forward: wrote outside its outputs", " thread"},
    {"gap", "forward: wrote outside its outputs", " thread"},
    {"input", "wrote to its inputs, which are read-only", "tokens"},
    {"weight", "forward: wrote to its parameters, which are read-only", "thread"},
    {"scratch", "wrote outside its scratch", "tokens"},
    {"NaN", "wrong numbers", "is nan, eager has"},
    {"crash", "forward: crashed with SIGSEGV", "1 thread"},
    {"error", "forward: failed: no reason", "0 tokens"},
    {"inaccurate", "forward: wrong numbers", "times the tolerance"},
    {"threads", "other bits on more threads", "2 threads"},
    {"alignment", "other bits in memory elsewhere", "1 thread"},
#if defined(__x86_64__)
    {"control", "left the floating-point control changed", "1 thread"},
    {"control of a worker", "left the floating-point control changed", "2 threads"},
#endif
    {"gradient", "backward: wrong gradients", "gradient of input 0"},
    {"no weight gradient", "backward: wrong gradients", "gradient of weight 0, row 0, element 0 was never written"},
    {"many rows", "forward: wrong numbers", "140 tokens"},
    {"block", "forward: wrong numbers", "row 64, element"},
    {"scratch of one thread", "wrote outside its scratch", "2 threads"},
    {"thread number", "other bits on more threads", "threads"},
    {"first weights", "forward: wrong numbers", "3 threads"},
    {"adds up", "backward: wrong gradients", "gradient of input 0, row 0, element 0 was never written"},
    {"no tokens", "forward: crashed with SIGFPE (0 tokens)", "1 thread"},
    {"absent upstream", "backward: c", "(3 tokens), 1 thread"},
    {"unwanted", "backward: c", "(3 tokens), 1 thread"},
    {"eps", "forward: wrong numbers", "times the tolerance"},
    {"capped sum", "forward: wrong numbers", "times the tolerance"},
    {"no zero row", "forward: wrong numbers", "nan, eager has "},
    {"squares of 16 bits", "forward: wrong numbers", "times the tolerance"},
    {"256 rows", "forward: wrong numbers", "tokens"},
    {"511 rows", "forward: wrong numbers", "600 tokens"},
    {"odd rows", "forward: wrong numbers", "tokens"},
    {"rows of the call before", "forward: keeps state between calls: its variable 'before'", "tokens"},
    {"sums by threads", "other bits on more threads", "2 threads"},
    {"second call", "forward: keeps state between calls: its variable 'calls'", "1 thread"},
    {"barrier in a branch", "did not finish within", "2 threads"},
    {"exit", "forward: called exit(0) (0 tokens)", "1 thread"},
};
enum { FAULTS = sizeof faults / sizeof *faults };

START_TEST(a_fault_is_caught)
{
    tn_error err = TN_ERROR_INIT;
    setenv("BAD_KERNEL", faults[_i].fault, 1);
    tn_status status = check_file(BAD_KERNEL, (tn_check_options){.quick = true}, &err);
    ck_assert_msg(status == TN_E_VERIFY, "%s: %d: %s", faults[_i].fault, (int)status, err.message);
    ck_assert_int_eq(seen.rows, 1);
    ck_assert_int_eq(seen.row.result, TN_CHECK_FAILED);
    ck_assert_msg(strstr(seen.reason, faults[_i].says) && strstr(seen.reason, faults[_i].also), "%s: %s",
                  faults[_i].fault, seen.reason);
    ck_assert_int_ge(seen.row.failed, 1);
    ck_assert_int_ge(seen.row.site, 1);
    ck_assert_ptr_nonnull(strstr(seen.shape, "f32, norm w, width "));
}
END_TEST

START_TEST(without_a_fault_it_passes)
{
    tn_error err = TN_ERROR_INIT;
    unsetenv("BAD_KERNEL");
    tn_status status = check_file(BAD_KERNEL, (tn_check_options){0}, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.message, seen.reason);
    ck_assert_int_eq(seen.rows, 1);
    ck_assert_int_eq(seen.row.result, TN_CHECK_PASSED);
    ck_assert_int_ge(seen.row.sites, 12);
    ck_assert_int_eq(seen.row.max_tokens, 600);
    ck_assert_int_eq(seen.row.max_threads, 3);
    ck_assert(seen.row.gradients && seen.row.worst > 0 && seen.row.worst <= 1);
}
END_TEST

/* Kernels of other operations: right without a fault, and caught with one. */
static const struct {
    const char *file, *faults[6];
} others[] = {
    {"bad_add_norm", {"256 rows", "511 rows", "odd rows", "capped sum", "no eps", "large eps"}},
    {"bad_mlp", {"kept weights", "scratch of one thread", "sum by threads", "sigmoid of large numbers"}},
    {"bad_rope", {"first 300", "one row of tables", "tables of length one", "tokens of the call before"}},
    {"bad_attention",
     {"no rescaling", "whole blocks of keys", "many keys", "window edge", "slots are positions", "no maximum"}},
    {"bad_route", {"many tokens"}},
    {"bad_experts", {"64 tokens of an expert", "clamped gates"}},
};
enum { OTHERS = sizeof others / sizeof *others };

START_TEST(other_operations_are_tried_as_hard)
{
    char file[64];
    snprintf(file, sizeof file, "tests/bad_kernels/%s.so", others[_i].file);
    for (int i = 0; i < 6 && others[_i].faults[i]; i++) {
        setenv("BAD_KERNEL", others[_i].faults[i], 1);
        tn_status status = check_file(file, (tn_check_options){0}, NULL);
        ck_assert_msg(status == TN_E_VERIFY, "%s, %s: %d", file, others[_i].faults[i], (int)status);
    }
    tn_error err = TN_ERROR_INIT;
    unsetenv("BAD_KERNEL");
    tn_status status = check_file(file, (tn_check_options){0}, &err);
    ck_assert_msg(status == TN_OK, "%s: %s: %s", file, err.message, seen.reason);
    ck_assert_int_eq(seen.row.result, TN_CHECK_PASSED);
}
END_TEST

/* No fault of one process. */
START_TEST(parts_with_other_bits_are_told)
{
    static const char *const fault[] = {NULL, "other bits of few heads"};
    for (int i = 0; i < 2; i++) {
        fault[i] ? setenv("BAD_KERNEL", fault[i], 1) : unsetenv("BAD_KERNEL");
        tn_error err = TN_ERROR_INIT;
        tn_status status = check_file("tests/bad_kernels/bad_attention.so", (tn_check_options){0}, &err);
        ck_assert_msg(status == TN_OK, "%s: %s", err.message, seen.reason);
        ck_assert_int_eq(seen.row.result, TN_CHECK_PASSED);
        ck_assert_msg(i ? seen.row.apart > 0 : seen.row.apart == 0, "%lld of %lld", (long long)seen.row.apart,
                      (long long)seen.row.sites);
    }
}
END_TEST

/* ---- options ---------------------------------------------------------------------------------------------------- */

START_TEST(one_site_is_tried_again)
{
    tn_error err = TN_ERROR_INIT;
    setenv("BAD_KERNEL", "many rows", 1);
    ck_assert_int_eq(check_file(BAD_KERNEL, (tn_check_options){.quick = true}, &err), TN_E_VERIFY);
    int64_t site = seen.row.site;
    char shape[256], reason[1024];
    memcpy(shape, seen.shape, sizeof shape);
    memcpy(reason, seen.reason, sizeof reason);
    ck_assert_int_eq(check_file(BAD_KERNEL, (tn_check_options){.quick = true, .site = site}, NULL), TN_E_VERIFY);
    ck_assert_int_eq(seen.row.sites, 1);
    ck_assert_str_eq(seen.shape, shape);
    ck_assert_str_eq(seen.reason, reason);
    tn_error_clear(&err);
    ck_assert_int_eq(check_file(BAD_KERNEL, (tn_check_options){.site = 1000}, &err), TN_E_USAGE);
    suite_expect_in(err.message, "there is no site 1000; give 1 to ");
}
END_TEST

START_TEST(each_site_has_a_row)
{
    ck_assert_int_eq(check_file(BAD_KERNEL, (tn_check_options){.quick = true, .each_site = true}, NULL), TN_OK);
    ck_assert_int_eq(seen.rows, 1 + seen.row.sites);
    ck_assert_int_eq(seen.row.kind, TN_CHECK_IMPL);
}
END_TEST

START_TEST(other_operations_are_left_out)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(check_file(BAD_KERNEL, (tn_check_options){.op = "ROPE"}, NULL), TN_OK);
    ck_assert_int_eq(seen.rows, 0);
    ck_assert_int_eq(check_file(BAD_KERNEL, (tn_check_options){.op = "ROOPE"}, &err), TN_E_USAGE);
    suite_expect_in(err.message, "'ROOPE' is no operation");
}
END_TEST

static int stop(void *ctx, const tn_check_row *row)
{
    (void)row;
    return ++*(int *)ctx;
}

START_TEST(a_callback_ends_it)
{
    int calls = 0;
    tn_check_options options = {.size = sizeof options, .quick = true, .each_site = true};
    ck_assert_int_eq(tn_check_plugin(built(BAD_KERNEL), &options, stop, &calls, NULL), TN_E_CANCELLED);
    ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(no_usable_plugin)
{
    static const struct {
        const char *file, *says;
    } files[] = {{"tests/bad_plugins/crash.so", "crashed with SIG"},
                 {"tests/bad_plugins/no_note.so", "no usable plugin: "},
                 {"tests/bad_plugins/open_match.so", "match is open-ended"},
                 {"tests/bad_plugins/not_there.so", "cannot be read: No such file"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(check_file(files[i].file, (tn_check_options){0}, &err), TN_E_KERNEL);
        suite_expect_in(err.message, files[i].says);
        ck_assert_int_eq(seen.rows, 0);
    }
}
END_TEST

START_TEST(a_kernel_that_is_not_available_is_not_tried)
{
    ck_assert_int_eq(check_file("tests/bad_plugins/not_available.so", (tn_check_options){0}, NULL), TN_OK);
    ck_assert_int_eq(seen.row.result, TN_CHECK_DECLINED);
    ck_assert_str_ne(seen.reason, "");
}
END_TEST

START_TEST(times_are_plausible)
{
    tn_check_options options = {.quick = true, .bench = true, .site = 1};
    ck_assert_int_eq(check_file(BAD_KERNEL, options, NULL), TN_OK);
    ck_assert_int_eq(seen.rows, 7);
    ck_assert_int_eq(seen.row.kind, TN_CHECK_TIME);
    ck_assert_int_eq(seen.row.result, TN_CHECK_PASSED);
    ck_assert(seen.row.eager_seconds > 0 && seen.row.kernel_seconds > 0);
    ck_assert(seen.row.operations > 0 && seen.row.bytes > 0 && seen.row.ceiling >= 0);
}
END_TEST

/* ---- sites ------------------------------------------------------------------------------------------------------ */

/* An implementation of a row that takes everything. */
static tn_impl taking_all(const op_row *row)
{
    tn_impl impl = {.size = sizeof impl, .op = row->op, .match = {.size = sizeof impl.match}};
    for (int axis = 0; axis < TN_AXIS_MAX; axis++)
        if (row->needs >> axis & 1)
            impl.match.takes[axis] = (UINT64_C(2) << op_last_value((tn_axis)axis)) - 2;
    impl.match.features = row->features;
    return impl;
}

/* Every value of every axis and every feature is met, and each site is one that the implementation takes. */
START_TEST(sites_cover_what_is_taken)
{
    const op_row *row = op_at((size_t)_i);
    tn_site sites[VERIFY_PLUGIN_SITES_MAX];
    char reason[256], text[256];
    if (row->kind != OP_CONTRACT)
        return;
    tn_impl impl = taking_all(row);
    uint64_t values[TN_AXIS_MAX] = {0}, features = 0;
    size_t count = verify_plugin_sites_draw(&impl, TN_BF16, false, sites);
    ck_assert_uint_ge(count, 12);
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(match_site(&sites[i], &impl, reason, sizeof reason) == TN_OK, "%s", reason);
        for (int axis = 0; axis < TN_AXIS_MAX; axis++)
            values[axis] |= TN_TAKES(sites[i].meaning[axis]);
        features |= sites[i].features;
        verify_plugin_sites_text(&sites[i], text, sizeof text);
        ck_assert_int_eq(strncmp(text, "bf16, ", 6), 0);
    }
    for (int axis = TN_AXIS_NORM; axis < TN_AXIS_MAX; axis++)
        for (int32_t v = 1; (row->needs >> axis & 1) && v <= op_last_value((tn_axis)axis); v++)
            if (draw_site_has_value(row->op, (tn_axis)axis, v))
                ck_assert_msg(values[axis] & TN_TAKES(v), "%s: %s %s is missing", row->name,
                              tn_axis_name((tn_axis)axis), tn_axis_value_name((tn_axis)axis, v));
    ck_assert_uint_eq(features, row->features & ~(TN_HAS_SCALES | TN_HAS_ZERO_POINTS | TN_HAS_MIXED));
}
END_TEST

/* Matrices of other types are met: kernels that say so and read one as another fail. */
START_TEST(matrices_of_several_types_are_drawn)
{
    tn_impl impl = taking_all(op_find(_i ? TN_OP_MOE_EXPERTS : TN_OP_MLP));
    tn_site sites[VERIFY_PLUGIN_SITES_MAX];
    tn_error err = TN_ERROR_INIT;
    int mixed = 0;
    impl.match.takes[TN_AXIS_WEIGHT] = TN_TAKES(TN_Q4_K) | TN_TAKES(TN_Q8_0) | TN_TAKES(TN_U4);
    impl.match.takes[TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU); /* xielu has no gate                       */
    impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(_i ? TN_LAYOUT_EXPERT_LIST : TN_LAYOUT_SPLIT);
    size_t count = verify_plugin_sites_draw(&impl, TN_BF16, false, sites);
    for (size_t i = 0; i < count; i++) {
        draw_site d;
        ck_assert_msg(draw_site_open(&d, &sites[i], 1, &err) == TN_OK, "%s", err.message);
        bool other = d.site.param[TN_ROLE_DOWN].tensors->dtype != d.site.param[TN_ROLE_GATE].tensors->dtype;
        ck_assert_int_eq(other, !!(d.site.features & TN_HAS_MIXED));
        mixed += other;
        tn_dtype up = d.site.param[TN_ROLE_UP].tensors->dtype;
        if (other && tn_dtype_block_elements(up) >= 32) {
            ck_assert_int_ne(up, d.site.param[TN_ROLE_GATE].tensors->dtype);
            ck_assert_int_ne(up, d.site.param[TN_ROLE_DOWN].tensors->dtype);
        }
        draw_site_close(&d);
    }
    ck_assert_int_ge(mixed, 2);
}
END_TEST

START_TEST(sites_keep_to_rules)
{
    static const tn_dim_rule rules[] = {{TN_DIM_WIDTH, 48, 100, 16}};
    tn_impl impl = taking_all(op_find(TN_OP_RMS_NORM));
    tn_site sites[VERIFY_PLUGIN_SITES_MAX];
    impl.match.dims = rules;
    impl.match.dim_count = 1;
    for (size_t i = verify_plugin_sites_draw(&impl, TN_F32, false, sites); i-- > 0;) {
        int64_t width = sites[i].dim[TN_DIM_WIDTH];
        ck_assert_msg(width >= 48 && width <= 96 && width % 16 == 0, "width %lld", (long long)width);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("verify a plugin", 300);
    int count = 0;
    while (op_at((size_t)count))
        count++;
    suite_add(tc, without_a_fault_it_passes);
    ADD_SLOW_LOOP(tc, a_fault_is_caught, FAULTS);
    ADD_SLOW_LOOP(tc, other_operations_are_tried_as_hard, OTHERS);
    suite_add(tc, parts_with_other_bits_are_told, one_site_is_tried_again, each_site_has_a_row,
              other_operations_are_left_out, a_callback_ends_it, no_usable_plugin,
              a_kernel_that_is_not_available_is_not_tried, times_are_plausible);
    tcase_add_loop_test(tc, sites_cover_what_is_taken, 0, count);
    tcase_add_loop_test(tc, matrices_of_several_types_are_drawn, 0, 2);
    suite_add(tc, sites_keep_to_rules);
    return process_main();
}
