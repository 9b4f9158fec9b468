/* Choosing, applying and reverting kernels: who gets a site, what is said when nobody does, and that a change happens
 * completely or not at all. */
#include "op/op.h"
#include "open/model.h"
#include "select/patterns.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many sites of op the kernel has. */
static size_t has_sites(const tn_model *m, const char *id, tn_op op)
{
    size_t n = 0;
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        const graph_site *s = m->target.graph->sites[i];
        n += s->site.op == op && s->bound.impl && !strcmp(s->bound.kernel->kernel.id, id);
    }
    return n;
}

/* Applying spec fails with this code and these words, the last one NULL. */
static void __attribute__((sentinel))
expect_error(tn_model *m, const tn_config *config, const char *spec, tn_status code, ...)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status = tn_apply_kernels(m, config, spec, NULL, &err);
    ck_assert_msg(status == code, "%d: %s: %s", (int)status, err.where, err.message);
    va_list words;
    va_start(words, code);
    for (const char *word = va_arg(words, const char *); word; word = va_arg(words, const char *))
        ck_assert_msg(strstr(err.message, word) || strstr(err.where, word), "no '%s' in: %s: %s", word, err.where,
                      err.message);
    va_end(words);
}

/* The module's own site: the last with its path. */
static const tn_site_report *site_of(const tn_report *report, const char *path)
{
    for (size_t i = report->site_count; i-- > 0;)
        if (!strcmp(report->sites[i]->site->path, path))
            return report->sites[i];
    ck_abort_msg("no site %s", path);
}

static const char *reason_of(const tn_report *report, const char *path, const char *id)
{
    const tn_site_report *site = site_of(report, path);
    for (size_t i = 0; i < site->verdict_count; i++)
        if (!strcmp(site->verdicts[i]->kernel, id))
            return site->verdicts[i]->reason;
    ck_abort_msg("no verdict of %s", id);
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

START_TEST(auto_takes_what_fits)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    test_kernel_add(&(test_kernel){.id = "relu_mlp", .op = TN_OP_MLP, .acts = TN_TAKES(TN_ACT_RELU)});
    tn_report *report = test_report(m, NULL, NULL);
    ck_assert_str_eq(report->summary,
                     "norm 9/9 RMS_NORM, rope 1/1 ROPE; eager: 4 ADD_RMS_NORM, 2 MLP, 15 LINEAR, 2 ATTENTION");
    ck_assert_uint_eq(has_sites(m, "norm", TN_OP_RMS_NORM), 9);
    ck_assert_uint_eq(has_sites(m, "rope", TN_OP_ROPE), 1);
    ck_assert_str_eq(reason_of(report, "model.layers.1.mlp", "relu_mlp"), "act: site has silu, kernel takes relu");
    ck_assert_str_eq(reason_of(report, "model.layers.1.mlp", "norm"), "op: site has MLP, kernel takes RMS_NORM");
    ck_assert_str_eq(reason_of(report, "model.norm", "norm"), "");
    report = tn_model_report(m, NULL);
    ck_assert_str_eq(site_of(report, "model.norm")->kernel, "norm");
    ck_assert_uint_eq(site_of(report, "model.norm")->verdict_count, 0);
    tn_report_free(report);
}
END_TEST

START_TEST(planning_changes_nothing)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    tn_report *report = test_plan(m, NULL, "auto");
    ck_assert_str_eq(site_of(report, "model.norm")->kernel, "norm");
    ck_assert_uint_eq(test_model_bound(m), 0);
}
END_TEST

START_TEST(none_means_none)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_model_apply(m, NULL, "auto");
    tn_report *report = test_report(m, NULL, "none");
    ck_assert_uint_eq(test_model_bound(m), 0);
    ck_assert_msg(strstr(report->summary, "no kernels; eager: 9 RMS_NORM") == report->summary, "%s", report->summary);
    ck_assert_ptr_nonnull(strstr(reason_of(report, "model.norm", "norm"), "none are asked for"));
}
END_TEST

START_TEST(unknown_ids)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    expect_error(m, NULL, "npu_fused_norm", TN_E_KERNEL, "kernel 'npu_fused_norm' not found", "no plugin", NULL);
    test_kernel_add(&(test_kernel){.id = "npu_fused_rmsnorm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "npu_fused_rope", .op = TN_OP_ROPE});
    expect_error(m, NULL, "npu_fused_rop", TN_E_KERNEL, "kernel 'npu_fused_rop' not found",
                 "did you mean 'npu_fused_rope'?", "npu_fused_rmsnorm, npu_fused_rope", NULL);
    expect_error(m, NULL, "npu_fused_rope,x", TN_E_KERNEL, "kernel 'x' not found", NULL);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "auto", NULL, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "kernel 'auto' not found");
    ck_assert_uint_eq(test_model_bound(m), 0);
}
END_TEST

static tn_status not_here(tn_error *err)
{
    return tn_fail(err, TN_DECLINED, NULL, "this machine has no flux capacitor");
}

START_TEST(unavailable_kernels)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "flux", .op = TN_OP_RMS_NORM, .available = not_here});
    expect_error(m, NULL, "flux", TN_E_KERNEL, "flux", "is not available: this machine has no flux capacitor", NULL);
    tn_report *report = test_plan(m, NULL, "auto");
    ck_assert_str_eq(reason_of(report, "model.norm", "flux"), "not available: this machine has no flux capacitor");
}
END_TEST

static tn_status declines(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)plan;
    return tn_fail(err, TN_DECLINED, site->path, "width %lld is not to my taste", (long long)site->dim[TN_DIM_WIDTH]);
}

START_TEST(named_kernels_without_sites)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "relu_mlp", .op = TN_OP_MLP, .acts = TN_TAKES(TN_ACT_RELU)});
    test_kernel_add(&(test_kernel){.id = "picky", .op = TN_OP_RMS_NORM, .plan = declines});
    expect_error(m, NULL, "relu_mlp", TN_E_KERNEL, "relu_mlp", "takes no site of this model",
                 "act: site has silu, kernel takes relu", NULL);
    expect_error(m, NULL, "picky", TN_E_KERNEL, "takes no site of this model", "plan: width", "is not to my taste",
                 NULL);
    tn_report *report = test_report(m, NULL, "auto");
    ck_assert_ptr_nonnull(strstr(reason_of(report, "model.norm", "picky"), "plan: width"));
    ck_assert_ptr_null(strstr(report->summary, "refused")); /* declining is an answer, not a failure */
}
END_TEST

START_TEST(priority_decides)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "a", .op = TN_OP_RMS_NORM, .priority = 3});
    test_kernel_add(&(test_kernel){.id = "b", .op = TN_OP_RMS_NORM, .priority = 7});
    tn_report *report = test_plan(m, NULL, "auto");
    ck_assert_str_eq(site_of(report, "model.norm")->kernel, "b");
    ck_assert_str_eq(reason_of(report, "model.norm", "a"),
                     "priority: b has 7, this kernel 3; choose with --kernels=auto,a");
    test_kernel_add(&(test_kernel){.id = "c", .op = TN_OP_RMS_NORM, .priority = 7});
    report = test_plan(m, NULL, "auto");
    ck_assert_str_eq(site_of(report, "model.norm")->kernel, "b");
    ck_assert_str_eq(reason_of(report, "model.norm", "c"),
                     "tie: b has the same priority and comes first by id; choose with --kernels=auto,c");
    test_model_apply(m, NULL, "c");
    ck_assert_uint_eq(has_sites(m, "c", TN_OP_RMS_NORM), 9);
}
END_TEST

START_TEST(outer_sites_cover_inner_ones)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_kernel_add(&(test_kernel){.id = "linear", .op = TN_OP_LINEAR, .priority = 100});
    test_kernel_add(&(test_kernel){.id = "mlp", .op = TN_OP_MLP, .priority = 1});
    tn_report *report = test_report(m, NULL, "auto");
    ck_assert_str_eq(site_of(report, "model.layers.0.mlp")->kernel, "mlp");
    ck_assert_ptr_null(site_of(report, "model.layers.0.mlp.up_proj")->kernel);
    ck_assert_str_eq(site_of(report, "model.layers.0.mlp.up_proj")->covered_by, "model.layers.0.mlp");
    ck_assert_str_eq(reason_of(report, "model.layers.0.mlp.up_proj", "linear"),
                     "covered: mlp has the MLP around this site");
    ck_assert_uint_eq(has_sites(m, "linear", TN_OP_LINEAR), 9); /* four of each attention, and the head */
    ck_assert_ptr_nonnull(strstr(report->summary, "linear 9/9 LINEAR"));
}
END_TEST

/* ---- the configuration ------------------------------------------------------------------------------------------ */

START_TEST(options_limit_modules)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    tn_config *config = test_config("{\"options\": {\"norm\": {\"modules\": [\"model.layers.1.*\", \"model.norm\"]}}}");
    tn_report *report = test_report(m, config, "auto");
    ck_assert_uint_eq(test_model_bound(m), 5);
    ck_assert_ptr_nonnull(site_of(report, "model.norm")->kernel);
    ck_assert_ptr_null(site_of(report, "model.layers.0.input_layernorm")->kernel);
    const char *reason = reason_of(report, "model.layers.0.input_layernorm", "norm");
    suite_expect_in(reason, "modules: site is model.layers.0.input_layernorm, options name model.layers.1.*");
    /* The call's own patterns count instead. */
    ck_assert_int_eq(tn_revert_kernel(m, NULL, NULL), TN_OK);
    ck_assert_int_eq(tn_apply_kernel(m, config, "norm", "model.layers.0.*,model.layers.1.post*", NULL), TN_OK);
    ck_assert_uint_eq(test_model_bound(m), 5);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernel(m, config, "norm", "vision.*", &err), TN_E_KERNEL);
    suite_expect_in(err.message, "takes no site");
    tn_error_clear(&err);
    ck_assert_int_eq(tn_apply_kernel(m, config, "norm", "model.norm,vision.*", &err), TN_E_KERNEL);
    suite_expect_in(err.message, "'vision.*' matches no module of this model");
    ck_assert_uint_eq(test_model_bound(m), 5);
}
END_TEST

START_TEST(disabled_kernels)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "acme_norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    tn_config *config = test_config("{\"disable\": [\"acme_*\"]}");
    tn_report *report = test_plan(m, config, NULL);
    ck_assert_ptr_null(site_of(report, "model.norm")->kernel);
    ck_assert_str_eq(reason_of(report, "model.norm", "acme_norm"), "disabled by the configuration");
    test_model_apply(m, config, "acme_norm"); /* a name on the command line overrides the file */
    ck_assert_uint_eq(has_sites(m, "acme_norm", TN_OP_RMS_NORM), 9);
}
END_TEST

/* ---- transactions ----------------------------------------------------------------------------------------------- */

static tn_status wrong(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (tn_tensor_count(&call->out[0]) > 0)
        memset(call->out[0].data, 0, 16);
    return status;
}

static tn_status plan_packed(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->packed_bytes = (size_t)site->dim[TN_DIM_WIDTH] * 4;
    return TN_OK;
}

/* Fails at one site only, whose weights no check has seen: the first of its shape is another. */
static tn_status pack_fails_late(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    memset(packed, 1, plan->packed_bytes);
    if (strcmp(site->path, "model.layers.1.input_layernorm"))
        return TN_OK;
    return tn_fail(err, TN_E_INTERNAL, site->path, "this weight does not fold");
}

static tn_status pack_fine(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)site;
    (void)err;
    memset(packed, 1, plan->packed_bytes);
    return TN_OK;
}

/* What is bound, byte for byte. */
static graph_binding *snapshot(const tn_model *m)
{
    graph_binding *all = calloc(m->target.graph->site_count, sizeof *all);
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        all[i] = m->target.graph->sites[i]->bound;
    return all;
}

static void expect_unchanged(const tn_model *m, graph_binding *before)
{
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        ck_assert_mem_eq(&m->target.graph->sites[i]->bound, &before[i], sizeof before[i]);
    free(before);
}

START_TEST(failures_leave_everything)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "fine", .op = TN_OP_RMS_NORM, .plan = plan_packed, .pack = pack_fine});
    test_kernel_add(&(test_kernel){.id = "late", .op = TN_OP_RMS_NORM, .plan = plan_packed, .pack = pack_fails_late});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    test_kernel_add(&(test_kernel){.id = "wrong_rope", .op = TN_OP_ROPE, .forward = wrong});
    test_model_apply(m, NULL, "fine");
    int64_t packed = m->target.packed_bytes;
    ck_assert_int_gt(packed, 0);
    graph_binding *before = snapshot(m);
    tn_config *never = test_config("{\"verify\": \"never\"}");
    expect_error(m, NULL, "late,rope", TN_E_KERNEL, "late", "is refused at model.layers.1.input_layernorm",
                 "this weight does not fold", NULL);
    expect_error(m, never, "late,rope", TN_E_KERNEL, "late", "cannot be applied at model.layers.1.input_layernorm",
                 "this weight does not fold", NULL);
    ck_assert_int_eq(m->target.packed_bytes, packed);
    expect_unchanged(m, before);
    before = snapshot(m);
    expect_error(m, NULL, "fine,wrong_rope", TN_E_VERIFY, "wrong_rope", "wrong numbers", NULL);
    expect_error(m, NULL, "fine,nothing", TN_E_KERNEL, "not found", NULL);
    expect_unchanged(m, before);
    /* What stays keeps its packed memory. */
    const void *kept = graph_find_site(m->target.graph, "model.norm")->bound.packed;
    test_model_apply(m, NULL, "fine,rope");
    ck_assert_ptr_eq(graph_find_site(m->target.graph, "model.norm")->bound.packed, kept);
    ck_assert_int_eq(m->target.packed_bytes, packed);
    test_model_apply(m, NULL, "rope");
    ck_assert_int_eq(m->target.packed_bytes, 0);
}
END_TEST

START_TEST(one_by_one)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "other", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "linear", .op = TN_OP_LINEAR});
    test_kernel_add(&(test_kernel){.id = "mlp", .op = TN_OP_MLP});
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "norm", NULL, NULL), TN_OK);
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "linear", NULL, NULL), TN_OK);
    ck_assert_uint_eq(test_model_bound(m), 9 + 15);
    /* The newer one takes what it matches; an outer site takes over from those inside. */
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "other", "model.layers.0.*", NULL), TN_OK);
    ck_assert_uint_eq(has_sites(m, "other", TN_OP_RMS_NORM), 4);
    ck_assert_uint_eq(has_sites(m, "norm", TN_OP_RMS_NORM), 5);
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "mlp", NULL, NULL), TN_OK);
    ck_assert_uint_eq(has_sites(m, "linear", TN_OP_LINEAR), 9);
    ck_assert_uint_eq(has_sites(m, "mlp", TN_OP_MLP), 2);
    tn_report *report = tn_model_report(m, NULL);
    ck_assert_str_eq(site_of(report, "model.layers.1.mlp.gate_proj")->covered_by, "model.layers.1.mlp");
    tn_report_free(report);
    ck_assert_int_eq(tn_revert_kernel(m, "norm", NULL), TN_OK);
    ck_assert_uint_eq(has_sites(m, "norm", TN_OP_RMS_NORM), 0);
    ck_assert_uint_eq(test_model_bound(m), 4 + 9 + 2);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_revert_kernel(m, "norm", &err), TN_E_KERNEL);
    suite_expect_in(err.message, "is not applied");
    ck_assert_int_eq(tn_revert_kernel(m, NULL, NULL), TN_OK);
    ck_assert_uint_eq(test_model_bound(m), 0);
    ck_assert_int_eq(tn_revert_kernel(m, NULL, NULL), TN_OK);
}
END_TEST

START_TEST(sessions_hold_kernels)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    tn_session_options o = {.size = sizeof o, .context = 8};
    tn_session *s = tn_session_new(m, &o, NULL);
    ck_assert_ptr_nonnull(s);
    expect_error(m, NULL, "auto", TN_E_USAGE, "cannot change while 1 sessions", NULL);
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "norm", NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_revert_kernel(m, NULL, NULL), TN_E_USAGE);
    tn_session_free(s);
    test_model_apply(m, NULL, "auto");
    ck_assert_uint_eq(test_model_bound(m), 9);
}
END_TEST

static void logits_of(tn_model *m, float *logits)
{
    enum { TOKENS = 12 };
    int64_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = 5 * i + 1;
    tn_session *s = test_model_session(m, .context = 16);
    test_model_run(s, TOKENS, ids, .last_logits = logits);
    tn_session_free(s);
}

/* Within its tolerance, but not what eager computes: the difference must show, and be gone after a revert. */
static tn_status slightly_off(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    float *y = call->out[0].data;
    if (tn_tensor_count(&call->out[0]) > 0)
        y[0] += y[0] * 0x1p-20f;
    return status;
}

START_TEST(revert_is_exact)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    int64_t vocab = test_model_vocab(m);
    size_t bytes = (size_t)vocab * sizeof(float);
    float *before = malloc(bytes), *with = malloc(bytes), *after = malloc(bytes);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = slightly_off});
    test_kernel_add(&(test_kernel){.id = "mlp", .op = TN_OP_MLP});
    logits_of(m, before);
    test_model_apply(m, NULL, "auto");
    logits_of(m, with);
    ck_assert_mem_ne(before, with, bytes);
    ck_assert_int_eq(tn_revert_kernel(m, NULL, NULL), TN_OK);
    logits_of(m, after);
    ck_assert_mem_eq(before, after, bytes);
    free(before);
    free(with);
    free(after);
}
END_TEST

/* ---- checking and verifying ------------------------------------------------------------------------------------- */

/* Wrong at one layer only, which is not the first of its shape, with more tokens than each site sees at a first use. */
static tn_status wrong_at_layer_1(const tn_call *call, tn_error *err)
{
    bool here = strstr(call->site->path, "layers.1.") && op_tokens(call) > 3;
    return (here ? wrong : test_kernel_forward)(call, err);
}

START_TEST(the_configuration_says_how_much_is_checked)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_at_layer_1});
    test_kernel_add(&(test_kernel){.id = "wrong", .op = TN_OP_ROPE, .forward = wrong});
    tn_config *all = test_config("{\"verify\": \"all\"}"), *never = test_config("{\"verify\": \"never\"}");
    tn_config *first = test_config("{\"verify\": \"first-use\"}");
    expect_error(m, all, "norm", TN_E_VERIFY, "norm", "is refused at model.layers.1", NULL);
    test_model_apply(m, first, "norm");
    ck_assert_uint_eq(test_model_bound(m), 9);
    expect_error(m, first, "wrong", TN_E_VERIFY, "wrong", NULL);
    test_model_apply(m, never, "wrong");
    ck_assert_uint_eq(test_model_bound(m), 1);
}
END_TEST

START_TEST(verify_covers_every_site)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    tn_verify_row **rows = NULL;
    size_t count = 7;
    ck_assert_int_eq(tn_verify(m, &rows, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 0);
    free(rows);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = wrong_at_layer_1});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    test_model_apply(m, NULL, "auto");
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_verify(m, &rows, &count, &err), TN_E_VERIFY);
    ck_assert_str_eq(err.where, "norm");
    ck_assert_uint_eq(count, 2);
    for (size_t i = 0; i < count; i++) {
        bool norm = !strcmp(rows[i]->kernel, "norm");
        ck_assert_int_eq(rows[i]->op, norm ? TN_OP_RMS_NORM : TN_OP_ROPE);
        ck_assert_int_eq(rows[i]->sites, norm ? 9 : 1);
        ck_assert(rows[i]->passed == !norm);
        ck_assert(norm ? rows[i]->largest_error > 1 : rows[i]->largest_error <= 1);
        ck_assert(rows[i]->tolerance_ulps == 64);
        ck_assert_int_eq(rows[i]->tokens, 16);
        ck_assert_msg(!norm || strstr(rows[i]->worst_site, "model.layers.1."), "%s", rows[i]->worst_site);
        ck_assert(!norm || strstr(rows[i]->reason, "wrong numbers with 16 tokens"));
        ck_assert(rows[i]->eager_seconds > 0 && (norm || rows[i]->kernel_seconds > 0));
    }
    free(rows);
}
END_TEST

START_TEST(patterns)
{
    ck_assert(plan_modules_match(NULL, "a.b"));
    ck_assert(plan_modules_match("x, a.*", "a.b"));
    ck_assert(plan_modules_match("a.b", "a.b"));
    ck_assert(!plan_modules_match("", "a.b"));
    ck_assert(!plan_modules_match("a,b", "a.b"));
    ck_assert(!plan_modules_match(" , ,", "a.b"));
}
END_TEST

int main(void)
{
    TCase *c = suite_open("apply", 120);
    suite_add(c, auto_takes_what_fits, planning_changes_nothing, none_means_none, unknown_ids, unavailable_kernels,
              named_kernels_without_sites, priority_decides, outer_sites_cover_inner_ones, options_limit_modules,
              disabled_kernels, failures_leave_everything, one_by_one, sessions_hold_kernels, revert_is_exact,
              the_configuration_says_how_much_is_checked, verify_covers_every_site, patterns);
    return suite_run();
}
