/* Which sites a kernel takes, and what it says of the others. */
#include "op/match.h"
#include "plugin/spec.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    return TN_OK;
}

/* A site and an impl of the same meaning, with every axis that any operation has. */
static tn_site site;
static tn_impl impl;

static void both(tn_op op, const int32_t *meaning)
{
    site = (tn_site){.size = sizeof site, .op = op, .path = "p", .class_name = "Qwen3MLP", .model_type = "qwen3"};
    impl = (tn_impl){
        .size = sizeof impl, .op = op, .match = {.size = sizeof(tn_match)}, .forward = forward, .tolerance = {1, 1, 1}};
    for (int axis = 0; axis <= TN_AXIS_LAYOUT; axis++) {
        site.meaning[axis] = meaning[axis];
        impl.match.takes[axis] = meaning[axis] ? TN_TAKES(meaning[axis]) : 0;
    }
}

static const int32_t norm_meaning[] = {
    [TN_AXIS_DTYPE] = TN_BF16, [TN_AXIS_WEIGHT] = TN_BF16, [TN_AXIS_NORM] = TN_NORM_W, [TN_AXIS_LAYOUT] = 0};
static const int32_t block_meaning[] = {[TN_AXIS_DTYPE] = TN_BF16,
                                        [TN_AXIS_WEIGHT] = TN_BF16,
                                        [TN_AXIS_ACT] = TN_ACT_SILU,
                                        [TN_AXIS_SCORE] = TN_SCORE_SOFTMAX,
                                        [TN_AXIS_LAYOUT] = TN_LAYOUT_EXPERT_LIST};
static const int32_t rope_meaning[] = {[TN_AXIS_DTYPE] = TN_BF16, [TN_AXIS_ROPE] = TN_ROPE_HALF, [TN_AXIS_LAYOUT] = 0};

static void setup(void)
{
    both(TN_OP_MOE_BLOCK, block_meaning);
}

static void expect_taken(void)
{
    char reason[512] = "old";
    ck_assert_int_eq(match_site(&site, &impl, reason, sizeof reason), TN_OK);
    ck_assert_str_eq(reason, "");
}

static void expect_declined(const char *why)
{
    char reason[512];
    ck_assert_int_eq(match_site(&site, &impl, reason, sizeof reason), TN_DECLINED);
    ck_assert_str_eq(reason, why);
}

static void expect_valid(void)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(match_validate(&impl, &err) == TN_OK, "%s", err.message);
}

static void expect_invalid(const char *why)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(match_validate(&impl, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.message, why);
}

/* ---- matching ------------------------------------------------------------------------------------------------ */

START_TEST(a_kernel_takes_what_it_names)
{
    expect_valid();
    expect_taken();
    both(TN_OP_RMS_NORM, norm_meaning);
    expect_valid();
    expect_taken();
    both(TN_OP_ROPE, rope_meaning);
    expect_valid();
    expect_taken();
}
END_TEST

START_TEST(the_operation_is_the_first_rule)
{
    impl.op = TN_OP_MLP;
    site.meaning[TN_AXIS_DTYPE] = TN_F64;
    expect_declined("op: site has MOE_BLOCK, kernel takes MLP");
}
END_TEST

START_TEST(each_axis_is_compared)
{
    site.meaning[TN_AXIS_DTYPE] = TN_F16;
    impl.match.takes[TN_AXIS_DTYPE] = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16);
    expect_declined("dtype: site has f16, kernel takes f32, bf16");
    setup();
    site.meaning[TN_AXIS_WEIGHT] = TN_I8;
    expect_declined("weight: site has i8, kernel takes bf16");
    setup();
    site.meaning[TN_AXIS_ACT] = TN_ACT_GELU_TANH;
    expect_declined("act: site has gelu_tanh, kernel takes silu");
    setup();
    site.meaning[TN_AXIS_SCORE] = TN_SCORE_SIGMOID;
    impl.match.takes[TN_AXIS_SCORE] |= TN_TAKES(TN_SCORE_TOPK_SOFTMAX);
    expect_declined("score: site has sigmoid, kernel takes softmax, topk_softmax");
    setup();
    site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_IO;
    expect_declined("layout: site has stacked_io, kernel takes expert_list");
    both(TN_OP_RMS_NORM, norm_meaning);
    site.meaning[TN_AXIS_NORM] = TN_NORM_1_PLUS_W;
    expect_declined("norm: site has 1+w, kernel takes w");
    both(TN_OP_ROPE, rope_meaning);
    site.meaning[TN_AXIS_ROPE] = TN_ROPE_INTERLEAVED;
    expect_declined("rope: site has interleaved, kernel takes half");
}
END_TEST

START_TEST(lists_of_matrices_have_two_layouts)
{
    static const int32_t meaning[] = {
        [TN_AXIS_DTYPE] = TN_F32, [TN_AXIS_WEIGHT] = TN_F32, [TN_AXIS_LAYOUT] = TN_LAYOUT_LIST_IO};
    both(TN_OP_GROUPED_MATMUL, meaning);
    expect_valid();
    expect_taken();
    impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_STACKED_OI) | TN_TAKES(TN_LAYOUT_EXPERT_LIST);
    expect_declined("layout: site has list_io, kernel takes expert_list, stacked_oi");
    site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_IO;
    impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_LIST_IO);
    expect_declined("layout: site has stacked_io, kernel takes list_io");
    impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_PAIRS_IO + 1);
    expect_invalid("match: layout takes a value that does not exist (bits 0x400)");
}
END_TEST

START_TEST(a_site_without_a_meaning_that_the_operation_has_is_declined)
{
    site.meaning[TN_AXIS_ACT] = 0;
    expect_declined("act: site has none, kernel takes silu");
    setup();
    site.meaning[TN_AXIS_ACT] = 99; /* of a later version */
    expect_declined("act: site has ?, kernel takes silu");
    setup();
    site.meaning[TN_AXIS_ACT] = -1;
    expect_declined("act: site has ?, kernel takes silu");
}
END_TEST

START_TEST(weights_have_the_dtype_of_the_activations_unless_told)
{
    impl.match.takes[TN_AXIS_WEIGHT] = 0;
    expect_valid();
    expect_taken();
    site.meaning[TN_AXIS_WEIGHT] = TN_F32;
    expect_declined("weight: site has f32, kernel takes bf16 (the dtype of the activations)");
    impl.match.takes[TN_AXIS_WEIGHT] = TN_TAKES(TN_F32);
    expect_taken();
    site.meaning[TN_AXIS_WEIGHT] = 0; /* a site without weights */
    expect_taken();
}
END_TEST

START_TEST(a_feature_that_the_kernel_does_not_list_is_declined)
{
    impl.match.features = TN_HAS_RENORM | TN_HAS_SHARED_EXPERT;
    expect_taken();
    site.features = TN_HAS_RENORM;
    expect_taken();
    site.features = TN_HAS_RENORM | TN_HAS_GROUPS;
    expect_declined("features: site has renorm, groups, kernel takes renorm, shared_expert");
    impl.match.features = 0;
    expect_declined("features: site has renorm, groups, kernel takes none");
}
END_TEST

START_TEST(a_site_that_hangs_on_roundings_takes_kernels_without_a_tolerance_in_16_bits)
{
    both(TN_OP_ROPE, rope_meaning);
    impl.match.takes[TN_AXIS_DTYPE] = TN_TAKES(TN_F32) | TN_TAKES(TN_F16) | TN_TAKES(TN_BF16);
    impl.tolerance = (tn_tolerance){.ulps_f32 = 4, .ulps_bf16 = 2};
    site.features = TN_HAS_ROUNDINGS;
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    expect_taken();
    site.meaning[TN_AXIS_DTYPE] = TN_F16;
    expect_taken();
    site.meaning[TN_AXIS_DTYPE] = TN_BF16;
    expect_declined("roundings: what follows the site hangs on them, and the kernel may be 2 ulps off in bf16");
    impl.tolerance.ulps_bf16 = 0;
    expect_taken();
    site.features |= TN_HAS_MROPE;
    impl.match.features = TN_HAS_PARTIAL;
    expect_declined("features: site has mrope, kernel takes partial");
}
END_TEST

START_TEST(dimensions_have_bounds_and_divisors)
{
    static const tn_dim_rule rules[] = {{TN_DIM_HIDDEN, 64, 8192, 16}, {TN_DIM_TOP_K, 0, 8, 0}};
    impl.match.dims = rules;
    impl.match.dim_count = 2;
    expect_valid();
    expect_taken(); /* a dimension of 0 is one that the site does not have */
    site.dim[TN_DIM_HIDDEN] = 64;
    site.dim[TN_DIM_TOP_K] = 8;
    expect_taken();
    site.dim[TN_DIM_HIDDEN] = 48;
    expect_declined("hidden: site has 48, kernel takes at least 64");
    site.dim[TN_DIM_HIDDEN] = 8208;
    expect_declined("hidden: site has 8208, kernel takes at most 8192");
    site.dim[TN_DIM_HIDDEN] = 100;
    expect_declined("hidden: site has 100, kernel takes multiples of 16");
    site.dim[TN_DIM_HIDDEN] = 8192;
    site.dim[TN_DIM_TOP_K] = 9;
    expect_declined("top_k: site has 9, kernel takes at most 8");
}
END_TEST

START_TEST(the_class_is_a_pattern)
{
    impl.match.class_glob = "Qwen*MLP";
    expect_taken();
    impl.match.class_glob = "Llama*";
    expect_declined("class: site has Qwen3MLP, kernel takes Llama*");
    site.class_name = NULL;
    expect_declined("class: site has none, kernel takes Llama*");
}
END_TEST

START_TEST(the_first_rule_that_fails_is_told)
{
    /* Everything is wrong; put right one by one, the reasons come in the order of the rules. */
    static const char *const order[] = {
        "dtype: ", "weight: ", "act: ", "score: ", "layout: ", "features: ", "hidden: ", "class: "};
    static const tn_dim_rule rule = {TN_DIM_HIDDEN, 0, 0, 64};
    site.meaning[TN_AXIS_DTYPE] = site.meaning[TN_AXIS_WEIGHT] = TN_F16;
    site.meaning[TN_AXIS_ACT] = TN_ACT_RELU;
    site.meaning[TN_AXIS_SCORE] = TN_SCORE_SIGMOID;
    site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    site.features = TN_HAS_BIAS;
    site.dim[TN_DIM_HIDDEN] = 63;
    impl.match.dims = &rule;
    impl.match.dim_count = 1;
    impl.match.class_glob = "Other";
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        char reason[256];
        ck_assert_int_eq(match_site(&site, &impl, reason, sizeof reason), TN_DECLINED);
        ck_assert_msg(strncmp(reason, order[i], strlen(order[i])) == 0, "%s", reason);
        if (i < 5) {
            static const tn_axis axes[] = {TN_AXIS_DTYPE, TN_AXIS_WEIGHT, TN_AXIS_ACT, TN_AXIS_SCORE, TN_AXIS_LAYOUT};
            site.meaning[axes[i]] = block_meaning[axes[i]];
        }
        site.features = i < 5 ? TN_HAS_BIAS : 0;
        site.dim[TN_DIM_HIDDEN] = i < 6 ? 63 : 64;
        impl.match.class_glob = i < 7 ? "Other" : NULL;
    }
    expect_taken();
}
END_TEST

START_TEST(a_short_buffer_is_respected)
{
    char reason[8] = "XXXXXXX";
    site.meaning[TN_AXIS_ACT] = TN_ACT_GELU;
    ck_assert_int_eq(match_site(&site, &impl, reason, 6), TN_DECLINED);
    ck_assert_str_eq(reason, "act: ");
    ck_assert_int_eq(reason[6], 'X');
}
END_TEST

/* ---- declarations ----------------------------------------------------------------------------------------------- */

/* What each operation must name, as docs/writing-a-kernel.md says. */
START_TEST(an_open_ended_match_is_refused)
{
    static const struct {
        tn_op op;
        tn_axis axes[5];
        int count;
    } needs[] = {
        {TN_OP_RMS_NORM, {TN_AXIS_DTYPE, TN_AXIS_NORM}, 2},
        {TN_OP_ADD_RMS_NORM, {TN_AXIS_DTYPE, TN_AXIS_NORM}, 2},
        {TN_OP_ROPE, {TN_AXIS_DTYPE, TN_AXIS_ROPE}, 2},
        {TN_OP_MLP, {TN_AXIS_DTYPE, TN_AXIS_ACT, TN_AXIS_LAYOUT}, 3},
        {TN_OP_MOE_ROUTE, {TN_AXIS_DTYPE, TN_AXIS_SCORE}, 2},
        {TN_OP_MOE_EXPERTS, {TN_AXIS_DTYPE, TN_AXIS_ACT, TN_AXIS_LAYOUT}, 3},
        {TN_OP_MOE_BLOCK, {TN_AXIS_DTYPE, TN_AXIS_ACT, TN_AXIS_SCORE, TN_AXIS_LAYOUT}, 4},
        {TN_OP_GROUPED_MATMUL, {TN_AXIS_DTYPE, TN_AXIS_LAYOUT}, 2},
        {TN_OP_LINEAR, {TN_AXIS_DTYPE}, 1},
        {TN_OP_ATTENTION, {TN_AXIS_DTYPE}, 1},
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
        impl = (tn_impl){.size = sizeof impl, .op = needs[i].op, .forward = forward};
        for (int j = 0; j < needs[i].count; j++)
            impl.match.takes[needs[i].axes[j]] = TN_TAKES(1);
        expect_valid();
        for (int j = 0; j < needs[i].count; j++) {
            char want[160];
            snprintf(want, sizeof want, "match is open-ended: %s must name the %s values that it takes",
                     tn_op_name(needs[i].op), tn_axis_name(needs[i].axes[j]));
            impl.match.takes[needs[i].axes[j]] = 0;
            expect_invalid(want);
            impl.match.takes[needs[i].axes[j]] = TN_TAKES(1);
        }
    }
}
END_TEST

START_TEST(what_an_operation_lacks_is_refused)
{
    static const tn_dim_rule hidden[] = {{.dim = TN_DIM_HIDDEN, .max = 7}};
    both(TN_OP_RMS_NORM, norm_meaning);
    impl.match.dims = hidden;
    impl.match.dim_count = 1;
    expect_invalid("match: RMS_NORM has no hidden, so a rule for it decides nothing; leave it out");
    impl.match.dim_count = 0;
    expect_valid();
    impl.match.features = TN_HAS_WINDOW;
    expect_invalid("match: RMS_NORM has no window (features 0x1000); leave it out");
    impl.match.features = 0;
    impl.match.takes[TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU);
    expect_invalid("match: RMS_NORM has no act; leave it empty");
}
END_TEST

START_TEST(what_nothing_performs_is_refused)
{
    impl = (tn_impl){.size = sizeof impl, .op = TN_OP_DECODER_LAYER, .forward = forward};
    expect_invalid("DECODER_LAYER: nothing performs this operation yet; use a newer tenon");
    impl.op = TN_OP_GLU; /* a step */
    expect_invalid("unknown op 66");
}
END_TEST

START_TEST(values_that_do_not_exist_are_refused)
{
    impl.match.takes[TN_AXIS_ACT] |= TN_TAKES(TN_ACT_PRELU + 1);
    expect_invalid("match: act takes a value that does not exist (bits 0x200000)");
    impl.match.takes[TN_AXIS_ACT] = 1; /* 0 is no value */
    expect_invalid("match: act takes a value that does not exist (bits 0x1)");
    setup();
    impl.match.takes[TN_AXIS_NORM] = TN_TAKES(TN_NORM_W);
    expect_invalid("match: MOE_BLOCK has no norm; leave it empty");
    setup();
    impl.match.takes[TN_AXIS_LAYOUT + 1] = 2;
    expect_invalid("match: axis 7 is unknown to this host; use a newer tenon");
    setup();
    impl.op = (tn_op)99;
    expect_invalid("unknown op 99");
    impl.op = (tn_op)-3;
    expect_invalid("unknown op -3");
    impl.op = TN_OP_NONE;
    expect_invalid("unknown op 0");
}
END_TEST

START_TEST(incomplete_impls_are_refused)
{
    impl.forward = NULL;
    expect_invalid("MOE_BLOCK has no forward; it needs one");
    setup();
    impl.tolerance.ulps_bf16 = -1;
    expect_invalid("tolerance: must be finite and not negative");
    impl.tolerance.ulps_bf16 = NAN;
    expect_invalid("tolerance: must be finite and not negative");
    setup();
    impl.match.dim_count = 1;
    expect_invalid("match: 1 dim rules, and no such list; set .dims and .dim_count");
    tn_dim_rule rule = {(tn_dim)31, 0, 0, 0};
    impl.match.dims = &rule;
    expect_invalid("match: dim 31 of rule 0 is unknown");
    rule = (tn_dim_rule){TN_DIM_HIDDEN, 10, 5, 0};
    expect_invalid("match: the rule for hidden allows nothing: min 10, max 5, multiple 0");
    rule = (tn_dim_rule){TN_DIM_HIDDEN, 0, 0, -8};
    expect_invalid("match: the rule for hidden allows nothing: min 0, max 0, multiple -8");
    impl.match.dim_count = 1000;
    expect_invalid("match: 1000 dim rules, and no such list; set .dims and .dim_count");
}
END_TEST

/* ---- SPEC and names ---------------------------------------------------------------------------------------------- */

START_TEST(a_spec_is_parsed)
{
    kernel_spec spec;
    ck_assert_int_eq(spec_parse("auto", &spec, NULL), TN_OK);
    ck_assert_int_eq(spec.mode, SPEC_AUTO);
    spec_free(&spec);
    ck_assert_int_eq(spec_parse(" none\n", &spec, NULL), TN_OK);
    ck_assert_int_eq(spec.mode, SPEC_NONE);
    spec_free(&spec);
    ck_assert_int_eq(spec_parse(" b , a", &spec, NULL), TN_OK);
    ck_assert_int_eq(spec.mode, SPEC_IDS);
    ck_assert_uint_eq(spec.count, 2);
    ck_assert_str_eq(spec.ids[0], "b");
    ck_assert_str_eq(spec.ids[1], "a");
    spec_free(&spec);
    ck_assert_uint_eq(spec.count, 0);
    ck_assert_int_eq(spec_parse("b,auto,-x,a,-y", &spec, NULL), TN_OK);
    ck_assert_int_eq(spec.mode, SPEC_AUTO);
    ck_assert_uint_eq(spec.count, 2);
    ck_assert_str_eq(spec.ids[1], "a");
    ck_assert_uint_eq(spec.without_count, 2);
    ck_assert_str_eq(spec.without[0], "x");
    char *text = spec_text(&spec);
    ck_assert_str_eq(text, "auto,b,a,-x,-y");
    free(text);
    spec_free(&spec);
    spec_free(&spec);
    spec_free(NULL);
}
END_TEST

START_TEST(a_wrong_spec_is_refused)
{
    static const struct {
        const char *text, *why;
    } wrong[] = {{"", "'' has an empty id; write auto, none or ids like a,b"},
                 {"a,,b", "'a,,b' has an empty id; write auto, none or ids like a,b"},
                 {"a,", "'a,' has an empty id; write auto, none or ids like a,b"},
                 {" , a", "' , a' has an empty id; write auto, none or ids like a,b"},
                 {"auto,", "'auto,' has an empty id; write auto, none or ids like a,b"},
                 {"auto,-", "'auto,-' has an empty id; write auto, none or ids like a,b"},
                 {"none,a", "'none' cannot be combined with anything; write it alone"},
                 {"auto,none", "'none' cannot be combined with anything; write it alone"},
                 {"a,false", "'false' cannot be combined with anything; write it alone"},
                 {"auto,true", "'auto' stands there twice; write it once"},
                 {"a,b,a", "'a' stands there twice; write it once"},
                 {"auto,-a,-a", "'-a' stands there twice; write it once"},
                 {"a,auto,-a", "'a' is asked for and left out; write one of the two"},
                 {"auto,-a,a", "'a' is asked for and left out; write one of the two"},
                 {"-a", "'-a' leaves a kernel out of auto, which is not asked for; write auto,-a"},
                 {"b,-a", "'-a' leaves a kernel out of auto, which is not asked for; write auto,-a"},
                 {NULL, "no kernels given; write auto, none or ids like a,b"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kernel_spec spec;
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(spec_parse(wrong[i].text, &spec, &err), TN_E_KERNEL);
        ck_assert_str_eq(err.where, "kernels");
        ck_assert_str_eq(err.message, wrong[i].why);
        ck_assert_uint_eq(spec.count, 0);
        ck_assert_ptr_null(spec.ids);
    }
}
END_TEST

START_TEST(every_enumerator_has_a_name)
{
    static const int last[] = {TN_DTYPE_COUNT - 1, TN_DTYPE_COUNT - 1,   TN_NORM_W_GATED_F32, TN_ROPE_HALF_F32,
                               TN_ACT_PRELU,       TN_SCORE_SPARSEMIXER, TN_LAYOUT_PAIRS_IO};
    for (int op = 1; op <= TN_OP_SELECTIVE_SCAN; op++)
        ck_assert_str_ne(tn_op_name((tn_op)op), "?");
    for (int op = TN_OP_EMBEDDING; op <= TN_OP_EMBEDDING_BAG; op++)
        ck_assert_str_ne(tn_op_name((tn_op)op), "?");
    for (int axis = 0; axis <= TN_AXIS_LAYOUT; axis++) {
        ck_assert_str_ne(tn_axis_name((tn_axis)axis), "?");
        for (int v = 1; v <= last[axis]; v++)
            ck_assert_str_ne(tn_axis_value_name((tn_axis)axis, v), "?");
        ck_assert_str_eq(tn_axis_value_name((tn_axis)axis, 0), "?");
        ck_assert_str_eq(tn_axis_value_name((tn_axis)axis, last[axis] + 1), "?");
        ck_assert_str_eq(tn_axis_value_name((tn_axis)axis, -1), "?");
    }
    for (int dim = 0; dim <= TN_DIM_RANK_DOWN; dim++)
        ck_assert_str_ne(tn_dim_name((tn_dim)dim), "?");
    for (uint64_t bit = TN_HAS_BIAS; bit <= TN_HAS_ROUNDINGS; bit <<= 1)
        ck_assert_str_ne(tn_feature_name(bit), "?");
    ck_assert_str_eq(tn_feature_name(TN_HAS_ROUNDINGS << 1), "?");
    for (int num = 0; num <= TN_NUM_SCALE_DOWN; num++)
        ck_assert_str_ne(tn_num_name((tn_num)num), "?");
    ck_assert_str_eq(tn_num_name((tn_num)(TN_NUM_SCALE_DOWN + 1)), "?");
    ck_assert_str_eq(tn_op_name((tn_op)50), "?");
    ck_assert_str_eq(tn_op_name((tn_op)99), "?");
    ck_assert_str_eq(tn_op_name(TN_OP_NONE), "?");
    ck_assert_str_eq(tn_axis_name(TN_AXIS_MAX), "?");
    ck_assert_str_eq(tn_dim_name(TN_DIM_MAX), "?");
    ck_assert_str_eq(tn_feature_name(0), "?");
    ck_assert_str_eq(tn_feature_name(3), "?");
    ck_assert_str_eq(tn_feature_name(UINT64_C(1) << 63), "?");
    /* A sample of each, against names that have slipped by one. */
    ck_assert_str_eq(tn_op_name(TN_OP_DECODER_LAYER), "DECODER_LAYER");
    ck_assert_str_eq(tn_op_name(TN_OP_CACHE_APPEND), "CACHE_APPEND");
    ck_assert_str_eq(tn_op_name(TN_OP_SOFTCAP), "SOFTCAP");
    ck_assert_str_eq(tn_axis_value_name(TN_AXIS_ACT, TN_ACT_MISH), "mish");
    ck_assert_str_eq(tn_axis_value_name(TN_AXIS_ACT, TN_ACT_SQRT_SOFTPLUS), "sqrt_softplus");
    ck_assert_str_eq(tn_feature_name(TN_HAS_BOTH_SIDES), "both_sides");
    ck_assert_str_eq(tn_axis_value_name(TN_AXIS_WEIGHT, TN_BF16), "bf16");
    ck_assert_str_eq(tn_dim_name(TN_DIM_HEAD_V), "head_v");
    ck_assert_str_eq(tn_feature_name(TN_HAS_SINKS), "sinks");
    ck_assert_str_eq(tn_feature_name(TN_HAS_F32_ROUTER), "f32_router");
    ck_assert_str_eq(tn_feature_name(TN_HAS_F32_RESULT), "f32_result");
    ck_assert_str_eq(tn_version(), TN_VERSION);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("selection", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, a_kernel_takes_what_it_names, the_operation_is_the_first_rule, each_axis_is_compared,
              lists_of_matrices_have_two_layouts, a_site_without_a_meaning_that_the_operation_has_is_declined,
              weights_have_the_dtype_of_the_activations_unless_told,
              a_feature_that_the_kernel_does_not_list_is_declined,
              a_site_that_hangs_on_roundings_takes_kernels_without_a_tolerance_in_16_bits,
              dimensions_have_bounds_and_divisors, the_class_is_a_pattern, the_first_rule_that_fails_is_told,
              a_short_buffer_is_respected, an_open_ended_match_is_refused, what_an_operation_lacks_is_refused,
              what_nothing_performs_is_refused, values_that_do_not_exist_are_refused, incomplete_impls_are_refused,
              a_spec_is_parsed, a_wrong_spec_is_refused, every_enumerator_has_a_name);
    return suite_run();
}
