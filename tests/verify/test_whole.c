/* tn_compare_text: rounding passes, in every golden model and type; errors fail, and the sites that bring them are
 * named, also where each kernel passes every check of its own. */
#include "open/model.h"
#include "plugin_box.h"
#include "process.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

enum { TOKENS = 96 };

static int64_t ids[4096];

static tn_model *open_model(const char *name, const char *dtype)
{
    tn_model *m = test_model(name, dtype);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ids[i] = (int64_t)(state % (uint64_t)m->info.vocab);
    }
    return m;
}

/* As "verify": "never" has it: nothing is refused beforehand. */
static void apply(tn_model *m, const char *spec)
{
    tn_config *never = test_config("{\"verify\": \"never\"}");
    test_model_apply(m, never, spec);
}

static void free_report(void *report)
{
    tn_text_report_free(report);
}

static tn_text_report *compare(tn_model *m, int64_t tokens, tn_status wanted)
{
    tn_error err = TN_ERROR_INIT;
    tn_text_report *report = NULL;
    tn_text_options o = {.size = sizeof o, .max_tokens = tokens};
    tn_status status = tn_compare_text(m, ids, sizeof ids / sizeof *ids, &o, &report, &err);
    ck_assert_msg(status == wanted, "%d: %s: %s", (int)status, err.where, err.message);
    ck_assert_ptr_nonnull(report);
    ck_assert_int_eq(report->tokens, tokens);
    ck_assert(report->passed == (wanted == TN_OK));
    suite_keep(report, free_report);
    return report;
}

static void expect_sites(const tn_text_report *r, size_t count, const char *const (*sites)[2])
{
    ck_assert(r->complete);
    for (size_t i = 0; i < r->site_count && i < count; i++) {
        ck_assert_str_eq(r->sites[i]->kernel, sites[i][0]);
        ck_assert_str_eq(r->sites[i]->site->path, sites[i][1]);
    }
    ck_assert_uint_eq(r->site_count, count);
}

/* ---- rounding passes ------------------------------------------------------------------------------------------ */

static const char *const models[] = {"gemma2",
                                     "llama",
                                     "llama_batch_pad",
                                     "llama_dynamic",
                                     "llama_gelu",
                                     "llama_linear",
                                     "llama_llama3_rope",
                                     "llama_relu",
                                     "llama_yarn",
                                     "mixtral",
                                     "qwen2",
                                     "qwen2_pad",
                                     "qwen2_sliding",
                                     "qwen3",
                                     "qwen3_moe",
                                     "qwen3_moe_pad",
                                     "qwen3_moe_step2",
                                     "qwen3_moe_top1",
                                     "qwen3_odd",
                                     "qwen3_win"};
static const char *const dtypes[] = {"f32", "bf16", "f16"};
enum { MODELS = sizeof models / sizeof *models };

START_TEST(this_project_s_kernels_pass)
{
    tn_error err = TN_ERROR_INIT;
    char folder[4200];
    snprintf(folder, sizeof folder, "%s/plugins", process_build());
    char *full = realpath(folder, NULL);
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_plugins(config, full, &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s: %s", err.where, err.message);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        tn_model *m = open_model(models[_i], dtypes[i]);
        apply(m, "auto");
        tn_text_report *r = compare(m, 200, TN_OK);
        bool narrow = strcmp(dtypes[i], "f32") != 0;
        ck_assert_uint_eq(r->row_count, narrow ? 2 : 1);
        for (size_t j = 0; j < r->row_count; j++) {
            const tn_text_row *row = r->rows[j];
            ck_assert_int_eq(row->dtype, j == 0 ? tn_dtype_parse(dtypes[i]) : TN_F32);
            ck_assert(row->passed && row->worst < 1 && row->sites > 0 && row->top1 > 0.85);
            ck_assert(row->distance_eager > 0 && row->distance_kernels > 0 && row->rms > 0 && row->rms <= row->largest);
            ck_assert(row->kl_mean >= 0 && row->kl_mean <= row->kl_max && isfinite(row->perplexity_kernels));
        }
        ck_assert_uint_eq(r->site_count, 0);
    }
    tn_config_free(config);
    free(full);
}
END_TEST

/* ---- errors fail ------------------------------------------------------------------------------------------------- */

/* A kernel that is right but for a scale of its results at some sites. */
static const char *bad_paths[4];
static double bad_scale = 1.01;
static int64_t bad_tokens = INT64_MAX; /* in calls of at most so many                                */
static bool only_narrow;

static void scale_output(const tn_call *call)
{
    const tn_tensor *y = &call->out[call->out_count - 1];
    for (int64_t i = 0; i < tn_tensor_count(y); i++)
        if (y->dtype == TN_F32)
            ((float *)y->data)[i] *= (float)bad_scale;
        else if (y->dtype == TN_BF16)
            ((uint16_t *)y->data)[i] = tn_f32_to_bf16(tn_bf16_to_f32(((uint16_t *)y->data)[i]) * (float)bad_scale);
}

static tn_status wrong_somewhere(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    for (size_t i = 0; i < sizeof bad_paths / sizeof *bad_paths; i++)
        if (bad_paths[i] && !strcmp(call->site->path, bad_paths[i]) && call->in[0].shape[0] <= bad_tokens &&
            !(only_narrow && call->out[0].dtype == TN_F32))
            scale_output(call);
    return status;
}

START_TEST(wrong_layers_are_named)
{
    static const char *const sites[][2] = {{"norm", "model.layers.0.post_attention_layernorm"},
                                           {"norm", "model.layers.1.input_layernorm"}};
    tn_model *m = open_model("qwen3", dtypes[_i]);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_somewhere});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    apply(m, "auto");
    compare(m, TOKENS, TN_OK);
    bad_paths[0] = sites[0][1];
    bad_paths[1] = sites[1][1];
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    expect_sites(r, 2, sites);
}
END_TEST

/* Each in its own way. */
START_TEST(two_kernels_are_named)
{
    static const char *const sites[][2] = {{"norm", "model.layers.1.input_layernorm"},
                                           {"rope", "modeling_qwen3.apply_rotary_pos_emb"}};
    tn_model *m = open_model("qwen3", "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_somewhere});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE, .forward = wrong_somewhere});
    bad_paths[0] = sites[0][1];
    bad_paths[1] = sites[1][1];
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    ck_assert_uint_eq(r->site_count, 2);
    for (size_t i = 0; i < 2; i++)
        ck_assert_str_eq(r->sites[i]->site->path, sites[strcmp(r->sites[i]->kernel, "norm") ? 1 : 0][1]);
}
END_TEST

static tn_model *pair_model;

static bool has_kernel(const char *path)
{
    const graph *g = pair_model->target.graph;
    for (size_t i = 0; i < g->site_count; i++)
        if (!strcmp(g->sites[i]->site.path, path) && g->sites[i]->bound.impl)
            return true;
    return false;
}

/* Wrong at one site only while the kernel of another one is there, as kernels are that share a buffer. */
static tn_status wrong_together(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (!strcmp(call->site->path, "model.layers.1.self_attn.k_norm") &&
        has_kernel("modeling_qwen3.apply_rotary_pos_emb"))
        scale_output(call);
    return status;
}

START_TEST(a_pair_is_named)
{
    tn_model *m = pair_model = open_model("qwen3", "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_together});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    static const char *const specs[] = {"norm", "rope"};
    for (size_t i = 0; i < 2; i++) {
        apply(m, specs[i]);
        compare(m, TOKENS, TN_OK);
    }
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    ck_assert(r->complete);
    ck_assert_uint_eq(r->site_count, 2);
    for (size_t i = 0; i < 2; i++)
        ck_assert_str_eq(r->sites[i]->site->path, strcmp(r->sites[i]->kernel, "norm")
                                                      ? "modeling_qwen3.apply_rotary_pos_emb"
                                                      : "model.layers.1.self_attn.k_norm");
}
END_TEST

/* The last tokens of a window come one by one. */
START_TEST(errors_of_decoding_fail)
{
    static const char *const sites[][2] = {{"norm", "model.norm"}};
    tn_model *m = open_model("qwen2", "bf16");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_somewhere});
    bad_paths[0] = sites[0][1];
    bad_tokens = 1;
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    expect_sites(r, 1, sites);
}
END_TEST

/* Right for whole tiles of rows and for most remainders; and right for one row of a batch. */
static bool is_remainder(const tn_call *call)
{
    return call->site->op == TN_OP_RMS_NORM && call->in[0].shape[0] % 8 == 7;
}

static bool is_batch(const tn_call *call)
{
    return call->site->op == TN_OP_ROPE && call->in[0].shape[0] > 1;
}

static bool (*is_wrong)(const tn_call *call);

static tn_status wrong_at_some_sizes(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (is_wrong(call) && strcmp(call->site->path, bad_paths[0]) == 0)
        scale_output(call);
    return status;
}

/* Calls are made in all ways that sessions make them. */
START_TEST(errors_of_other_calls_fail)
{
    static const struct {
        bool (*wrong)(const tn_call *call);
        const char *site[1][2], *manner;
    } kinds[] = {{is_remainder, {{"norm", "model.norm"}}, "in a call of few tokens"},
                 {is_batch, {{"rope", "modeling_qwen2.apply_rotary_pos_emb"}}, "in a batch"}};
    tn_model *m = open_model("qwen2", dtypes[_i / 2]);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_at_some_sizes});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE, .forward = wrong_at_some_sizes});
    is_wrong = kinds[_i % 2].wrong;
    bad_paths[0] = kinds[_i % 2].site[0][1];
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    ck_assert(r->single_tokens == TOKENS / 4 && r->few_tokens == TOKENS / 4 && r->most_few == 7 && r->batch_rows == 3);
    const tn_text_row *row = r->rows[r->row_count - 1];
    suite_expect_in(row->reason, kinds[_i % 2].manner);
    expect_sites(r, 1, kinds[_i % 2].site);
}
END_TEST

/* Where f32 shows nothing, what is far beyond rounding to 16 bits fails. */
START_TEST(errors_of_16_bits_fail)
{
    static const char *const sites[][2] = {{"norm", "model.layers.0.input_layernorm"}};
    tn_model *m = open_model(_i ? "qwen3" : "qwen3_moe", "bf16");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_somewhere});
    bad_paths[0] = sites[0][1];
    bad_scale = 1.5;
    only_narrow = true;
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    ck_assert(!r->rows[0]->passed && r->rows[0]->worst > 1 && r->rows[1]->passed);
    suite_expect_in(r->rows[0]->reason, "the logits in bf16 are ");
    expect_sites(r, 1, sites);
}
END_TEST

/* eps 1e-3 for 1e-6, at one layer: it changes a row of usual size by 5 in 10000. */
static tn_status other_eps(const tn_call *call, tn_error *err)
{
    tn_call with = *call;
    tn_site site = *call->site;
    site.num[TN_NUM_EPS] = 1e-3;
    with.site = &site;
    return test_kernel_forward(strstr(site.path, "layers.1.input") ? &with : call, err);
}

START_TEST(small_errors_fail)
{
    static const char *const sites[][2] = {{"norm", "model.layers.1.input_layernorm"}};
    tn_model *m = open_model("qwen3_moe", dtypes[_i]);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = other_eps});
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    expect_sites(r, 1, sites);
}
END_TEST

static tn_status one_nan(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (!strcmp(call->site->path, "model.norm"))
        ((float *)call->out[0].data)[0] = NAN;
    return status;
}

START_TEST(a_nan_fails)
{
    tn_model *m = open_model("qwen3_moe", "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = one_nan});
    apply(m, "auto");
    tn_text_report *r = compare(m, TOKENS, TN_E_VERIFY);
    ck_assert(isinf(r->rows[0]->worst) && isinf(r->rows[0]->rms));
    ck_assert_uint_eq(r->site_count, 1);
}
END_TEST

/* ---- use -------------------------------------------------------------------------------------------------------- */

START_TEST(windows_begin_anew)
{
    tn_model *m = open_model("llama", "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    apply(m, "auto");
    tn_text_options o = {.size = sizeof o, .max_tokens = 70, .window = 32};
    tn_text_report *r = NULL;
    ck_assert_int_eq(tn_compare_text(m, ids, 70, &o, &r, NULL), TN_OK);
    ck_assert(r->tokens == 70 && r->window == 32);
    tn_text_report_free(r);
}
END_TEST

static int stop(void *ctx, const char *what, int64_t done, int64_t total)
{
    (void)total;
    return !strcmp(what, ctx) && done > 0;
}

START_TEST(wrong_use_and_cancelling)
{
    tn_model *m = open_model("llama", "f32");
    tn_error err = TN_ERROR_INIT;
    tn_text_report *r = NULL;
    ck_assert_int_eq(tn_compare_text(NULL, ids, 5, NULL, &r, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_text(m, NULL, 5, NULL, &r, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_text(m, ids, 5, NULL, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_text(m, ids, 5, NULL, &r, &err), TN_E_USAGE);
    suite_expect_in(err.message, "no kernel is applied");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_somewhere});
    apply(m, "auto");
    ck_assert_int_eq(tn_compare_text(m, ids, 0, NULL, &r, NULL), TN_E_INPUT);
    ck_assert_int_eq(tn_compare_text(m, (const int64_t[]){1, 1 << 30}, 2, NULL, &r, NULL), TN_E_INPUT);
    bad_paths[0] = "model.norm";
    static const char *const steps[] = {"without kernels", "with kernels", "searching"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        tn_text_options o = {.size = sizeof o, .progress = stop, .progress_ctx = (void *)steps[i]};
        ck_assert_int_eq(tn_compare_text(m, ids, 40, &o, &r, NULL), TN_E_CANCELLED);
        ck_assert_ptr_null(r);
    }
    tn_text_options o = {.size = sizeof o, .no_search = true};
    ck_assert_int_eq(tn_compare_text(m, ids, 40, &o, &r, NULL), TN_E_VERIFY);
    ck_assert(r && r->site_count == 0);
    tn_text_report_free(r);
}
END_TEST

START_TEST(kernels_stay_as_they_were)
{
    tn_model *m = open_model("qwen3", "bf16");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_somewhere});
    bad_paths[0] = "model.norm";
    apply(m, "auto");
    size_t sites = m->target.graph->site_count;
    graph_binding *before = malloc(sites * sizeof *before);
    for (size_t i = 0; i < sites; i++)
        before[i] = m->target.graph->sites[i]->bound;
    compare(m, TOKENS, TN_E_VERIFY);
    for (size_t i = 0; i < sites; i++)
        ck_assert_mem_eq(&before[i], &m->target.graph->sites[i]->bound, sizeof *before);
    ck_assert_int_eq(m->target.session_count, 0);
    free(before);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("whole", 300);
    tcase_add_checked_fixture(c, plugin_box_open, NULL);
    tcase_add_loop_test(c, this_project_s_kernels_pass, 0, MODELS);
    tcase_add_loop_test(c, wrong_layers_are_named, 0, 2);
    suite_add(c, two_kernels_are_named, a_pair_is_named, errors_of_decoding_fail);
    tcase_add_loop_test(c, errors_of_other_calls_fail, 0, 4);
    tcase_add_loop_test(c, errors_of_16_bits_fail, 0, 2);
    tcase_add_loop_test(c, small_errors_fail, 0, 2);
    suite_add(c, a_nan_fails, windows_begin_anew, wrong_use_and_cancelling, kernels_stay_as_they_were);
    return suite_run();
}
