/* The public functions given NULL, and structs without a size or from other versions: errors, never a crash. */

#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static const int64_t ids[2] = {1, 2};
static float logits[4096];

static void expect_usage(tn_error *err, const char *where, const char *message)
{
    ck_assert_int_eq(err->code, TN_E_USAGE);
    ck_assert_str_eq(err->where, where);
    suite_expect_in(err->message, message);
    tn_error_clear(err);
}

#define NULL_SAYS "is NULL; pass one"

/* ---- NULL ------------------------------------------------------------------------------------------ */

START_TEST(no_model)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report;
    tn_verify_row **rows;
    tn_packed **packed;
    size_t count;
    tn_tensor t = {0};
    ck_assert_ptr_null(tn_model_open(NULL, NULL, &err));
    expect_usage(&err, "folder", NULL_SAYS);
    ck_assert_ptr_null(tn_model_plan(NULL, NULL, NULL, &err));
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_ptr_null(tn_model_report(NULL, &err));
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_ptr_null(tn_model_describe(NULL, NULL, TN_GRAPH_TEXT, false, &err));
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_apply_kernels(NULL, NULL, NULL, &report, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_apply_kernel(NULL, NULL, "a", NULL, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_revert_kernel(NULL, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_verify(NULL, &rows, &count, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_model_packed(NULL, &packed, &count, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_site_forward(NULL, "a", TN_OP_LINEAR, &t, 1, &t, 1, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_site_backward(NULL, "a", TN_OP_LINEAR, &t, 1, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_ptr_null(tn_session_new(NULL, NULL, &err));
    expect_usage(&err, "model", NULL_SAYS);
    ck_assert_int_eq(tn_model_get_info(NULL, NULL), TN_E_USAGE);
    tn_model_close(NULL);
    tn_report_free(NULL);
}
END_TEST

START_TEST(nothing_else_to_work_with)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3_moe", .dtype = NULL);
    size_t count;
    tn_packed **packed;
    ck_assert_int_eq(tn_model_get_info(m, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_verify(m, NULL, &count, &err), TN_E_USAGE);
    expect_usage(&err, "rows", NULL_SAYS);
    ck_assert_int_eq(tn_model_packed(m, &packed, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "count", NULL_SAYS);
    ck_assert_int_eq(tn_site_forward(m, "model.norm", TN_OP_RMS_NORM, NULL, 1, NULL, 1, &err), TN_E_USAGE);
    expect_usage(&err, "in", NULL_SAYS);
    ck_assert_int_eq(tn_kernels_available("cpu", NULL, &count, &err), TN_E_USAGE);
    expect_usage(&err, "list", NULL_SAYS);
    ck_assert_int_eq(tn_plugin_get(0, NULL), TN_E_USAGE);
}
END_TEST

START_TEST(no_session_or_batch)
{
    tn_error err = TN_ERROR_INIT;
    int64_t out[4];
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 2, .ids = ids};
    ck_assert_int_eq(tn_session_run(NULL, &batch, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "session", NULL_SAYS);
    ck_assert_int_eq(tn_generate(NULL, ids, 2, NULL, out, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "session", NULL_SAYS);
    ck_assert_int_eq(tn_generate_rows(NULL, &batch, NULL, out, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "session", NULL_SAYS);
    tn_session_free(NULL);
    tn_session_reset(NULL);
    ck_assert_int_eq(tn_session_length(NULL), 0);
    ck_assert_uint_eq(tn_session_cache_bytes(NULL) + tn_session_arena_bytes(NULL), 0);
    tn_model *m = test_model("qwen3_moe", .dtype = NULL);
    tn_session *s = tn_session_new(m, NULL, NULL);
    ck_assert_int_eq(tn_session_run(s, NULL, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "tn_batch", NULL_SAYS);
    batch.ids = NULL;
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "tn_batch.ids", NULL_SAYS);
    ck_assert_int_eq(tn_generate(s, NULL, 2, NULL, out, NULL, &err), TN_E_INPUT);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_generate_rows(s, NULL, NULL, out, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "tn_batch", NULL_SAYS);
    ck_assert_int_eq(tn_generate_rows(s, &batch, NULL, out, NULL, &err), TN_E_INPUT);
    tn_error_clear(&err);
    tn_session_free(s);
}
END_TEST

START_TEST(no_configuration)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_config_set_plugins(NULL, "/a", &err), TN_E_USAGE);
    expect_usage(&err, "config", NULL_SAYS);
    ck_assert_int_eq(tn_config_add_plugins(NULL, "/a", &err), TN_E_USAGE);
    expect_usage(&err, "config", NULL_SAYS);
    ck_assert_int_eq(tn_config_set_kernels(NULL, "auto", &err), TN_E_USAGE);
    expect_usage(&err, "config", NULL_SAYS);
    ck_assert_int_eq(tn_config_set_device(NULL, "cpu", &err), TN_E_USAGE);
    expect_usage(&err, "config", NULL_SAYS);
    ck_assert_int_eq(tn_config_set_max_packed_mb(NULL, 1, &err), TN_E_USAGE);
    expect_usage(&err, "config", NULL_SAYS);
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_kernels(config, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "kernels", NULL_SAYS);
    ck_assert_int_eq(tn_config_set_device(config, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "device", NULL_SAYS);
    tn_config_free(config);
    tn_config_free(NULL);
    ck_assert_int_eq(tn_config_max_packed_mb(NULL), -1);
    ck_assert_uint_eq(tn_config_folder_count(NULL), 0);
    ck_assert(!tn_config_file(NULL) && !tn_config_folder(NULL, 0) && !tn_config_kernels(NULL) &&
              !tn_config_device(NULL));
}
END_TEST

START_TEST(no_text_or_file)
{
    tn_error err = TN_ERROR_INIT;
    int64_t *list;
    size_t count;
    char *text;
    tn_tensor t;
    ck_assert_ptr_null(tn_tokenizer_open(NULL, &err));
    expect_usage(&err, "path", NULL_SAYS);
    ck_assert_int_eq(tn_tokenizer_encode(NULL, "a", 1, false, &list, &count, &err), TN_E_USAGE);
    expect_usage(&err, "tokenizer", NULL_SAYS);
    ck_assert_int_eq(tn_tokenizer_decode(NULL, ids, 2, false, &text, &count, &err), TN_E_USAGE);
    expect_usage(&err, "tokenizer", NULL_SAYS);
    ck_assert_ptr_null(tn_stream_new(NULL, false, &err));
    expect_usage(&err, "tokenizer", NULL_SAYS);
    ck_assert_ptr_null(tn_stream_push(NULL, 1, &count, &err));
    expect_usage(&err, "stream", NULL_SAYS);
    ck_assert_ptr_null(tn_stream_flush(NULL, &count, &err));
    expect_usage(&err, "stream", NULL_SAYS);
    ck_assert_int_eq(tn_tokenizer_size(NULL), 0);
    tn_tokenizer_free(NULL);
    tn_stream_free(NULL);
    tn_tokenizer *tokenizer = tn_tokenizer_open("tests/data/tokenizers/gpt-2", &err);
    ck_assert_msg(tokenizer != NULL, "%s", err.message);
    ck_assert_int_eq(tn_tokenizer_encode(tokenizer, NULL, 1, false, &list, &count, &err), TN_E_USAGE);
    expect_usage(&err, "text", NULL_SAYS);
    ck_assert_int_eq(tn_tokenizer_decode(tokenizer, NULL, 1, false, &text, &count, &err), TN_E_USAGE);
    expect_usage(&err, "ids", NULL_SAYS);
    tn_tokenizer_free(tokenizer);
    ck_assert_ptr_null(tn_safetensors_open(NULL, NULL));
    ck_assert_uint_eq(tn_safetensors_count(NULL), 0);
    ck_assert_ptr_null(tn_safetensors_name(NULL, 0));
    ck_assert(!tn_safetensors_get(NULL, "a", &t));
    tn_safetensors_close(NULL);
    ck_assert_int_eq(tn_safetensors_write("/tmp/never-written", NULL, 1, NULL), TN_E_USAGE);
    ck_assert_ptr_null(tn_tensor_to_dlpack(NULL, NULL, NULL, NULL));
}
END_TEST

/* ---- sizes ------------------------------------------------------------------------------------------ */

static const uint32_t wrong[] = {0, 1, 3, 1u << 20, UINT32_MAX};
#define SIZES (sizeof wrong / sizeof *wrong)

static const char *message_of(uint32_t size)
{
    return size ? "which no version has; set .size" : "its size is 0; set .size = sizeof(";
}

START_TEST(sizes_of_what_callers_fill)
{
    uint32_t size = wrong[_i];
    const char *message = message_of(size);
    tn_error err = TN_ERROR_INIT;
    int64_t out[4];
    ck_assert_ptr_null(tn_model_open("tests/data/models/llama", &(tn_model_options){.size = size}, &err));
    expect_usage(&err, "tn_model_options", message);
    tn_model_options training = {.size = sizeof training, .training = true};
    tn_model *m = tn_model_open("tests/data/models/llama", &training, NULL);
    ck_assert_ptr_null(tn_session_new(m, &(tn_session_options){.size = size}, &err));
    expect_usage(&err, "tn_session_options", message);
    tn_session *s = tn_session_new(m, NULL, NULL);
    tn_batch batch = {.size = size, .rows = 1, .tokens = 2, .ids = ids};
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "tn_batch", message);
    batch.size = sizeof batch;
    ck_assert_int_eq(tn_session_run(s, &batch, &(tn_outputs){.size = size}, &err), TN_E_USAGE);
    expect_usage(&err, "tn_outputs", message);
    ck_assert_int_eq(tn_generate(s, ids, 2, &(tn_generate_options){.size = size}, out, NULL, &err), TN_E_USAGE);
    expect_usage(&err, "tn_generate_options", message);
    ck_assert_int_eq(tn_generate(s, ids, 2, NULL, out, &(tn_generate_result){.size = size}, &err), TN_E_USAGE);
    expect_usage(&err, "tn_generate_result", message);
    tn_tensor x = {0};
    tn_grads grads = {.size = size};
    ck_assert_int_eq(tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err), TN_E_USAGE);
    expect_usage(&err, "tn_grads", message);
    ck_assert_int_eq(tn_model_get_info(m, &(tn_model_info){.size = size}), TN_E_USAGE);
    tn_session_free(s);
    tn_model_close(m);
}
END_TEST

/* A caller of an earlier version, whose struct ends earlier, and one of a later. */
START_TEST(shorter_and_longer_structs)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3_moe", .dtype = NULL);
    tn_model_info full = {.size = sizeof full}, early = {.size = offsetof(tn_model_info, eos)};
    struct {
        tn_model_info info;
        char more[16];
    } late = {.info = {.size = sizeof late}};
    memset(late.more, 1, sizeof late.more);
    early.eos[0] = 77;
    ck_assert_int_eq(tn_model_get_info(m, &full), TN_OK);
    ck_assert_int_eq(tn_model_get_info(m, &early), TN_OK);
    ck_assert_int_eq(tn_model_get_info(m, &late.info), TN_OK);
    ck_assert_uint_eq(early.size, offsetof(tn_model_info, eos));
    ck_assert_uint_eq(late.info.size, sizeof late);
    ck_assert_str_eq(early.device, "cpu");
    ck_assert_int_eq(early.eos[0], 77); /* not one byte more than asked for                      */
    ck_assert_int_eq(late.info.hidden, full.hidden);
    for (size_t i = 0; i < sizeof late.more; i++)
        ck_assert_int_eq(late.more[i], 0);
    struct {
        tn_session_options options;
        uint64_t more;
    } later = {{.size = sizeof later, .context = 16}, 0};
    tn_session *s = tn_session_new(m, &later.options, &err);
    ck_assert_msg(s != NULL, "%s", err.message);
    later.more = 1;
    ck_assert_ptr_null(tn_session_new(m, &later.options, &err));
    expect_usage(&err, "tn_session_options", "is in use and unknown to this library");
    tn_session_options earlier = {.size = offsetof(tn_session_options, chunk), .context = 16, .chunk = -1};
    tn_session *t = tn_session_new(m, &earlier, &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 2, .ids = ids};
    tn_outputs outputs = {.size = offsetof(tn_outputs, hidden), .last_logits = logits, .hidden = (float *const *)1};
    ck_assert_msg(tn_session_run(t, &batch, &outputs, &err) == TN_OK, "%s", err.message);
    tn_session_free(s);
    tn_session_free(t);
}
END_TEST

START_TEST(what_is_returned_has_its_size)
{
    tn_model *m = test_model("qwen3_moe", .dtype = NULL);
    tn_report *report = tn_model_plan(m, NULL, "auto", NULL);
    ck_assert_uint_eq(report->size, sizeof *report);
    for (size_t i = 0; i < report->site_count; i++)
        ck_assert_uint_eq(report->sites[i]->size, sizeof *report->sites[i]);
    tn_report_free(report);
    tn_verify_row **rows;
    tn_packed **packed;
    tn_kernel_info **kernels;
    size_t count;
    ck_assert_int_eq(tn_verify(m, &rows, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 0);
    free(rows);
    ck_assert_int_eq(tn_model_packed(m, &packed, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 0);
    free(packed);
    ck_assert_int_eq(tn_kernels_available(NULL, &kernels, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 0);
    free(kernels);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("wrong use", 60);
    suite_add(tc, no_model, nothing_else_to_work_with, no_session_or_batch, no_configuration, no_text_or_file);
    tcase_add_loop_test(tc, sizes_of_what_callers_fill, 0, SIZES);
    suite_add(tc, shorter_and_longer_structs, what_is_returned_has_its_size);
    return suite_run();
}
