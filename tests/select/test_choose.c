/* What a SPEC chooses where kernels overlap, what is said of those that lose, and names in kernels.json that nothing
 * has. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_model *model;
static tn_config *unchecked; /* these kernels are plain and slow, and right                        */

/* A configuration that checks nothing, with more of a file's keys. */
static tn_config *config_of(const char *json)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"verify\": \"never\"%s%s", json[1] == '}' ? "" : ", ", json + 1);
    return test_config(text);
}

static void setup(void)
{
    unchecked = config_of("{}");
    model = test_model("qwen3", .dtype = "f32");
}

/* Norms 9, MLPs 2 with 3 products each, 9 products beside them, 4 sums before norms. */
static void add(const char *id, tn_op op, int32_t priority)
{
    test_kernel_add(&(test_kernel){.id = id, .op = op, .priority = priority});
}

static tn_report *plan_of(const tn_config *config, const char *spec)
{
    return test_plan(model, config ? config : unchecked, spec);
}

static void __attribute__((sentinel)) expect_error(const tn_config *config, const char *spec, const char *where, ...)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_model_plan(model, config ? config : unchecked, spec, &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_msg(strstr(err.where, where) != NULL, "%s: %s", err.where, err.message);
    va_list words;
    va_start(words, where);
    for (const char *word = va_arg(words, const char *); word; word = va_arg(words, const char *))
        ck_assert_msg(strstr(err.message, word) != NULL, "no '%s' in: %s: %s", word, err.where, err.message);
    va_end(words);
}

/* Who has how many sites; pairs of id and number, NULL at the end. */
static void __attribute__((sentinel)) expect_sites(const char *spec, ...)
{
    tn_report *report = plan_of(NULL, spec);
    va_list pairs;
    va_start(pairs, spec);
    for (const char *id = va_arg(pairs, const char *); id; id = va_arg(pairs, const char *))
        ck_assert_int_eq(test_model_sites_of(report, id), va_arg(pairs, int));
    va_end(pairs);
    test_model_apply(model, unchecked, spec);
}

static const tn_kernel_report *kernel_of(const tn_report *report, const char *id)
{
    for (size_t i = 0; i < report->kernel_count; i++)
        if (!strcmp(report->kernels[i]->kernel, id))
            return report->kernels[i];
    return NULL;
}

static const tn_overlap *overlap_of(const tn_report *report, const char *id)
{
    for (size_t i = 0; i < report->overlap_count; i++)
        if (!strcmp(report->overlaps[i]->kernel, id))
            return report->overlaps[i];
    return NULL;
}

static const char *reason_of(const tn_report *report, tn_op op, const char *id)
{
    for (size_t i = 0; i < report->site_count; i++)
        for (size_t j = 0; report->sites[i]->site->op == op && j < report->sites[i]->verdict_count; j++)
            if (!strcmp(report->sites[i]->verdicts[j]->kernel, id))
                return report->sites[i]->verdicts[j]->reason;
    ck_abort_msg("no verdict of %s", id);
}

static void expect_note(const tn_report *report, const char *words)
{
    for (size_t i = 0; i < report->note_count; i++)
        if (strstr(report->notes[i], words))
            return;
    ck_abort_msg("no note '%s' among %zu: %s", words, report->note_count, report->note_count ? report->notes[0] : "");
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

START_TEST(a_tie_is_settled_and_told)
{
    add("one", TN_OP_RMS_NORM, 0);
    add("two", TN_OP_RMS_NORM, 0);
    add("zero", TN_OP_RMS_NORM, -1);
    tn_report *report = plan_of(NULL, "auto");
    ck_assert_int_eq(test_model_sites_of(report, "one"), 9);
    suite_expect_in(report->summary, "one 9/9 RMS_NORM; tie: one before two (9 sites, by id); "
                                     "without a site: zero (one has its sites); eager: ");
    const tn_overlap *o = overlap_of(report, "two");
    ck_assert_str_eq(o->winner, "one");
    ck_assert_int_eq(o->sites, 9);
    ck_assert_str_eq(o->reason, "tie: one has the same priority and comes first by id; choose with --kernels=auto,two");
    ck_assert_str_eq(kernel_of(report, "two")->reason, o->reason);
    ck_assert_int_eq(kernel_of(report, "one")->sites, 9);
    ck_assert_str_eq(kernel_of(report, "one")->reason, "");
    ck_assert_str_eq(overlap_of(report, "zero")->reason,
                     "priority: one has 0, this kernel -1; choose with --kernels=auto,zero");
    ck_assert_uint_eq(report->note_count, 0);
}
END_TEST

START_TEST(named_kernels_come_before_those_of_auto)
{
    add("one", TN_OP_RMS_NORM, 9);
    add("two", TN_OP_RMS_NORM, 0);
    add("rope", TN_OP_ROPE, 0);
    static const char *const specs[] = {"auto,two", "two,auto", "true, two"};
    for (int i = 0; i < 3; i++)
        expect_sites(specs[i], "one", 0, "two", 9, "rope", 1, NULL);
    expect_sites("auto,-one", "one", 0, "two", 9, "rope", 1, NULL);
    expect_sites("auto,-one,-two", "one", 0, "two", 0, "rope", 1, NULL);
    expect_sites("two", "one", 0, "two", 9, "rope", 0, NULL);
    expect_sites("rope,two,-one,auto", "one", 0, "two", 9, "rope", 1, NULL);
    tn_report *report = plan_of(NULL, "auto,two");
    ck_assert_str_eq(kernel_of(report, "one")->reason, "order: two is asked for by name");
    report = plan_of(NULL, "auto,-one");
    ck_assert_str_eq(kernel_of(report, "one")->reason, "left out by -one");
    ck_assert_ptr_null(overlap_of(report, "one"));
    report = plan_of(NULL, "two");
    ck_assert_ptr_null(kernel_of(report, "one")); /* nobody asked for it                            */
}
END_TEST

START_TEST(order_is_preference)
{
    add("one", TN_OP_RMS_NORM, 9);
    add("two", TN_OP_RMS_NORM, 0);
    expect_sites("one,two", "one", 9, "two", 0, NULL);
    expect_sites("two,one", "one", 0, "two", 9, NULL);
    tn_report *report = plan_of(NULL, "two,one");
    expect_note(report, "kernels: one takes no site: two stands before it and has them");
    ck_assert_str_eq(kernel_of(report, "one")->reason, "order: two is asked for first");
    /* The second of two has what the first one's options leave. */
    tn_config *config = config_of("{\"options\": {\"two\": {\"modules\": [\"model.layers.0.*\"]}}}");
    report = plan_of(config, "two,one");
    ck_assert_int_eq(test_model_sites_of(report, "two"), 4);
    ck_assert_int_eq(test_model_sites_of(report, "one"), 5);
    ck_assert_uint_eq(report->note_count, 0);
}
END_TEST

/* ---- inside and outside ----------------------------------------------------------------------------------------- */

START_TEST(a_named_inner_kernel_beats_an_outer_one_of_auto)
{
    add("linear", TN_OP_LINEAR, 0);
    add("mlp", TN_OP_MLP, 100);
    expect_sites("auto", "linear", 9, "mlp", 2, NULL);
    expect_sites("auto,linear", "linear", 15, "mlp", 0, NULL);
    expect_sites("linear,auto", "linear", 15, "mlp", 0, NULL);
    expect_sites("auto,mlp", "linear", 9, "mlp", 2, NULL);
    expect_sites("linear,mlp", "linear", 15, "mlp", 0, NULL);
    expect_sites("mlp,linear", "linear", 9, "mlp", 2, NULL);
    expect_sites("auto,mlp,linear", "linear", 9, "mlp", 2, NULL);
    expect_sites("auto,linear,mlp", "linear", 15, "mlp", 0, NULL);
    tn_report *report = plan_of(NULL, "auto,linear");
    ck_assert_str_eq(reason_of(report, TN_OP_MLP, "mlp"),
                     "inside: linear, asked for by name, takes model.layers.0.mlp.gate_proj inside");
    ck_assert_str_eq(overlap_of(report, "mlp")->winner, "linear");
    ck_assert_int_eq(overlap_of(report, "mlp")->sites, 2);
    suite_expect_in(report->summary, "without a site: mlp (linear has its sites)");
    report = plan_of(NULL, "auto");
    ck_assert_int_eq(overlap_of(report, "linear")->sites, 6);
    ck_assert_str_eq(overlap_of(report, "linear")->winner, "mlp");
}
END_TEST

START_TEST(a_named_inner_kernel_wins_only_where_it_takes_a_site)
{
    add("linear", TN_OP_LINEAR, 0);
    add("mlp", TN_OP_MLP, 0);
    tn_config *config = config_of("{\"options\": {\"linear\": {\"modules\": [\"model.layers.1.mlp.up_proj\"]}}}");
    tn_report *report = plan_of(config, "auto,linear");
    ck_assert_int_eq(test_model_sites_of(report, "linear"), 1);
    ck_assert_int_eq(test_model_sites_of(report, "mlp"), 1);
}
END_TEST

START_TEST(norms_inside_sums)
{
    add("norm", TN_OP_RMS_NORM, 0);
    add("pair", TN_OP_ADD_RMS_NORM, 5);
    expect_sites("auto", "norm", 5, "pair", 4, NULL);
    expect_sites("auto,norm", "norm", 9, "pair", 0, NULL);
    expect_sites("pair,norm", "norm", 5, "pair", 4, NULL);
    expect_sites("norm,pair", "norm", 9, "pair", 0, NULL);
    /* Layers whose reasons differ in their own paths only are shown once. */
    tn_model *demo = test_model("models/demo", .dtype = NULL);
    tn_report *report = test_plan(demo, unchecked, "auto,norm");
    char *text = tn_model_describe(demo, report, TN_GRAPH_TEXT, true, NULL);
    ck_assert_ptr_nonnull(strstr(text, "inside: norm, asked for by name, takes model.layers.1.input_layernorm inside"));
    ck_assert_ptr_nonnull(strstr(text, "    layers.1-3 "));
    free(text);
}
END_TEST

/* ---- names ------------------------------------------------------------------------------------------------------ */

START_TEST(kernels_of_other_devices_only_say_so)
{
    test_kernel_add(&(test_kernel){.id = "far_norm", .op = TN_OP_RMS_NORM, .device = "npu"});
    add("norm", TN_OP_RMS_NORM, 0);
    static const char *const specs[] = {"auto,far_norm", "far_norm,norm", "auto,-far_norm", "far_norm"};
    static const char *const notes[] = {
        "kernels: far_norm is for device npu, and this model is on cpu; it takes no part",
        "kernels: far_norm is for device npu, and this model is on cpu; it takes no part",
        "kernels: far_norm is for device npu, and this model is on cpu; it takes no part anyway",
        "kernels: far_norm is for device npu, and this model is on cpu; no kernel is left"};
    for (int i = 0; i < 4; i++) {
        tn_report *report = plan_of(NULL, specs[i]);
        ck_assert_uint_eq(report->note_count, 1);
        ck_assert_str_eq(report->notes[0], notes[i]);
        ck_assert_int_eq(test_model_sites_of(report, "norm"), i < 3 ? 9 : 0);
    }
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernel(model, NULL, "far_norm", NULL, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.message, "kernel 'far_norm' is for device npu, and this is cpu; there are: norm");
    expect_error(NULL, "far_nor", "kernels", "did you mean 'far_norm'?", NULL);
    expect_error(NULL, "auto,-nrm", "kernels", "kernel 'nrm' not found; did you mean 'norm'?", NULL);
    /* Options of it are no mistake. */
    tn_config *config = config_of("{\"options\": {\"far_norm\": {\"modules\": [\"x\"]}}, \"disable\": [\"far_*\"]}");
    tn_report *report = plan_of(config, "auto");
    ck_assert_uint_eq(report->note_count, 0);
}
END_TEST

/* LLaMA-Factory's: told beside others, an error alone. */
START_TEST(kernels_that_are_declined)
{
#define LIGER "liger_kernel is a collection of Triton kernels for training on GPUs, and Triton does not run here"
#define CUDA "cuda_fused_moe is a Triton kernel for CUDA devices, and Triton does not run here"
    static const struct {
        const char *spec, *note;
        int64_t sites;
    } told[] = {{"auto,liger_kernel", "kernels: " LIGER "; it takes no part", 9},
                {"cuda_fused_moe,norm", "kernels: " CUDA "; it takes no part", 9},
                {"auto,-liger_kernel", "kernels: " LIGER "; it takes no part anyway", 9}};
    add("norm", TN_OP_RMS_NORM, 0);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        tn_report *report = plan_of(NULL, told[i].spec);
        ck_assert_uint_eq(report->note_count, 1);
        ck_assert_str_eq(report->notes[0], told[i].note);
        ck_assert_int_eq(test_model_sites_of(report, "norm"), told[i].sites);
    }
    expect_error(NULL, "liger_kernel", "kernels", LIGER "; write auto or other ids; there are: norm", NULL);
    expect_error(NULL, "cuda_fused_moe,liger_kernel", "kernels", CUDA "; write auto or other ids", NULL);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernel(model, NULL, "liger_kernel", NULL, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.message, LIGER "; write auto or other ids; there are: norm");
    /* Of a device that has it, it is that device's; and who brings it here has it. */
    test_kernel_add(&(test_kernel){.id = "liger_kernel", .op = TN_OP_RMS_NORM, .device = "npu"});
    tn_report *report = plan_of(NULL, "liger_kernel");
    expect_note(report, "kernels: liger_kernel is for device npu, and this model is on cpu; no kernel is left");
    add("liger_kernel", TN_OP_RMS_NORM, 0);
    report = plan_of(NULL, "liger_kernel");
    ck_assert_int_eq(test_model_sites_of(report, "liger_kernel"), 9);
}
END_TEST

START_TEST(a_name_that_stands_for_an_operation)
{
    static const char *const names[] = {"flash-linear-attention", "chunk_gated_delta_rule",
                                        "fused_recurrent_gated_delta_rule"};
    char words[128];
    add("norm", TN_OP_RMS_NORM, 0);
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words, "'%s' stands for kernels of GATED_DELTA_RULE, and none is here; there are: norm",
                 names[i]);
        expect_error(NULL, names[i], "kernels", words, NULL);
    }
    expect_error(NULL, "flash_linear_atention", "kernels", "did you mean 'flash-linear-attention'?", NULL);
}
END_TEST

START_TEST(a_file_that_names_no_kernel)
{
    static const struct {
        const char *json, *words, *near;
    } wrong[] = {
        {"{\"options\": {\"npu_norn\": {\"modules\": [\"*\"]}}}", "key 'options': 'npu_norn' is no kernel",
         "did you mean 'npu_norm'?"},
        {"{\"options\": {\"npu_norn\": {}}}", "key 'options': 'npu_norn' is no kernel", "did you mean 'npu_norm'?"},
        {"{\"disable\": [\"npu_nrm\"]}", "key 'disable': 'npu_nrm' is no kernel", "did you mean 'npu_norm'?"},
        {"{\"pins\": {\"npu_norm.so\": \"sha256:"
         "0000000000000000000000000000000000000000000000000000000000000000\"}}",
         "key 'pins': 'npu_norm.so' is no file of the plugin folders", ""},
        {"{\"kernels\": \"npu_nrm\"}", "key 'kernels': kernel 'npu_nrm' not found", "did you mean 'npu_norm'?"},
        {"{\"kernels\": [\"auto\", \"-npu_nrm\"]}", "key 'kernels': kernel 'npu_nrm' not found",
         "did you mean 'npu_norm'?"},
        {"{\"kernels\": [\"npu_relu\"]}", "key 'kernels': npu_relu: takes no site of this model; act: site has silu",
         ""},
    };
    add("npu_norm", TN_OP_RMS_NORM, 0);
    test_kernel_add(&(test_kernel){.id = "npu_relu", .op = TN_OP_MLP, .acts = TN_TAKES(TN_ACT_RELU)});
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_config *config = config_of(wrong[i].json);
        expect_error(config, NULL, "/kernels.json", wrong[i].words, wrong[i].near, NULL);
        plan_of(config, "none"); /* no kernels, no mistakes                        */
    }
    tn_config *config = config_of("{\"disable\": [\"acme_*\", \"npu_n*\"]}");
    tn_report *report = plan_of(config, NULL);
    ck_assert_uint_eq(report->note_count, 1);
    expect_note(report, "/kernels.json: key 'disable': 'acme_*' matches no kernel that a plugin brought");
    ck_assert_int_eq(test_model_sites_of(report, "npu_norm"), 0);
}
END_TEST

START_TEST(without_any_kernel_names_are_warned_of)
{
    tn_config *config = config_of("{\"options\": {\"npu_norm\": {\"modules\": [\"*\"]}}}");
    tn_report *report = plan_of(config, "auto");
    expect_note(report, "/kernels.json: key 'options': 'npu_norm' is no kernel that a plugin brought");
}
END_TEST

START_TEST(patterns_that_match_no_module)
{
    add("norm", TN_OP_RMS_NORM, 0);
    tn_config *one = config_of("{\"options\": {\"norm\": {\"modules\": [\"model.layer.0.*\"]}}}");
    tn_config *two = config_of("{\"options\": {\"norm\": {\"modules\": [\"model.layer.0.*\", \"model.norm\"]}}}");
    static const char words[] = "key 'options': norm: 'model.layer.0.*' matches no module of this model, did you mean "
                                "'model.layers.0.";
    tn_report *report = plan_of(one, "auto");
    expect_note(report, words);
    ck_assert_int_eq(test_model_sites_of(report, "norm"), 0);
    expect_error(one, "norm", "/kernels.json", "key 'options': norm takes no site: 'model.layer.0.*' matches no module",
                 NULL);
    report = plan_of(two, "norm"); /* the other pattern does */
    expect_note(report, words);
    ck_assert_int_eq(test_model_sites_of(report, "norm"), 1);
    plan_of(one, "none");
}
END_TEST

/* A beginning that is missing is put before the pattern; else it is one of what paths begin with. */
START_TEST(patterns_that_lack_a_part)
{
    static const char *const pairs[][2] = {{"layers.0.*", "did you mean 'model.layers.0.*'?"},
                                           {"layers.9*", "did you mean 'model.layers.*'?"},
                                           {"model.layers.9.*", "did you mean 'model.layers."},
                                           {"zzzz", "matches no module of this model; see tenon inspect"}};
    add("norm", TN_OP_RMS_NORM, 0);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"options\": {\"norm\": {\"modules\": [\"%s\"]}}}", pairs[i][0]);
        tn_config *config = config_of(text);
        tn_report *report = plan_of(config, "auto");
        expect_note(report, pairs[i][1]);
    }
}
END_TEST

START_TEST(reports_hold_what_is_told)
{
    add("linear", TN_OP_LINEAR, 0);
    add("mlp", TN_OP_MLP, 0);
    add("moe_block", TN_OP_MOE_BLOCK, 0);
    tn_report *report = plan_of(NULL, "auto");
    ck_assert_str_eq(kernel_of(report, "moe_block")->reason, "this model has no MOE_BLOCK");
    char *text = tn_model_describe(model, report, TN_GRAPH_TEXT, false, NULL);
    suite_expect_in(text, "\nlinear     lost 6 sites to mlp: covered: mlp has the MLP around this site\n");
    suite_expect_in(text, "\nmoe_block  0 sites: this model has no MOE_BLOCK\n");
    free(text);
    text = tn_model_describe(model, report, TN_GRAPH_JSON, false, NULL);
    suite_expect_in(text, "{\"kernel\": \"linear\", \"winner\": \"mlp\", \"sites\": 6, \"reason\": \"covered: ");
    suite_expect_in(text, "{\"id\": \"moe_block\", \"sites\": 0, \"reason\": \"this model has no MOE_BLOCK\"}");
    free(text);
    report = tn_model_report(model, NULL);
    ck_assert_uint_eq(report->kernel_count + report->overlap_count + report->note_count, 0);
    tn_report_free(report);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("choosing", 120);
    tcase_add_checked_fixture(c, setup, NULL);
    suite_add(c, a_tie_is_settled_and_told, named_kernels_come_before_those_of_auto, order_is_preference,
              a_named_inner_kernel_beats_an_outer_one_of_auto, a_named_inner_kernel_wins_only_where_it_takes_a_site,
              norms_inside_sums, kernels_of_other_devices_only_say_so, kernels_that_are_declined,
              a_name_that_stands_for_an_operation, a_file_that_names_no_kernel, without_any_kernel_names_are_warned_of,
              patterns_that_match_no_module, patterns_that_lack_a_part, reports_hold_what_is_told);
    return suite_run();
}
