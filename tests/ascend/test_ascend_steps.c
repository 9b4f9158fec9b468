/* Steps on elements and rows of the device npu, and its operations that go from token to token, on the simulator of the
 * vendor's libraries, against the CPU: numbers as models have them, and those at the ends of their types. */
#include "base/convert.h"
#include "check/check_device.h"
#include "check/compare.h"
#include "npu_pair.h"
#include "suite.h"
#include "op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* ---- steps -------------------------------------------------------------------------------------------------- */

enum { WIDTH = 72, STREAMS = 3, TABLE = 19, TAPS_OF_BAG = 3 };

typedef struct step {
    const char *name;
    tn_op op;
    tn_act act;
    uint64_t features;
    tn_num num;
    double value;
} step;

static const step steps[] = {
    {"silu", TN_OP_ACT, TN_ACT_SILU, 0, 0, 0},
    {"gelu", TN_OP_ACT, TN_ACT_GELU, 0, 0, 0},
    {"gelu by tanh", TN_OP_ACT, TN_ACT_GELU_TANH, 0, 0, 0},
    {"new gelu", TN_OP_ACT, TN_ACT_GELU_NEW, 0, 0, 0},
    {"quick gelu", TN_OP_ACT, TN_ACT_QUICK_GELU, 0, 0, 0},
    {"relu", TN_OP_ACT, TN_ACT_RELU, 0, 0, 0},
    {"relu squared", TN_OP_ACT, TN_ACT_RELU2, 0, 0, 0},
    {"relu to six", TN_OP_ACT, TN_ACT_RELU6, 0, 0, 0},
    {"sigmoid", TN_OP_ACT, TN_ACT_SIGMOID, 0, 0, 0},
    {"tanh", TN_OP_ACT, TN_ACT_TANH, 0, 0, 0},
    {"mish", TN_OP_ACT, TN_ACT_MISH, 0, 0, 0},
    {"linear", TN_OP_ACT, TN_ACT_LINEAR, 0, 0, 0},
    {"hard swish", TN_OP_ACT, TN_ACT_HARD_SWISH, 0, 0, 0},
    {"leaky relu", TN_OP_ACT, TN_ACT_LEAKY_RELU, 0, 0, 0},
    {"prelu", TN_OP_ACT, TN_ACT_PRELU, 0, TN_NUM_ALPHA, 0.3},
    {"laplace", TN_OP_ACT, TN_ACT_LAPLACE, 0, 0, 0},
    {"gelu to ten", TN_OP_ACT, TN_ACT_GELU_10, 0, 0, 0},
    {"xielu", TN_OP_ACT, TN_ACT_XIELU, 0, TN_NUM_BETA, 0.5},
    {"gated silu", TN_OP_GLU, TN_ACT_SILU, 0, 0, 0},
    {"gated gelu", TN_OP_GLU, TN_ACT_GELU, 0, 0, 0},
    {"gated relu", TN_OP_GLU, TN_ACT_RELU, 0, 0, 0},
    {"clamped swiglu", TN_OP_GLU, TN_ACT_CLAMPED_SWIGLU, 0, TN_NUM_LIMIT, 1.3},
    {"sparse gates", TN_OP_GLU, TN_ACT_GELU_TANH, TN_HAS_SPARSITY, TN_NUM_SPARSITY, 0.7},
    {"softcap", TN_OP_SOFTCAP, 0, 0, TN_NUM_SOFTCAP, 30},
    {"narrow softcap", TN_OP_SOFTCAP, 0, 0, TN_NUM_SOFTCAP, 0.3},
    {"clamp", TN_OP_CLAMP, 0, 0, TN_NUM_LIMIT, 1.3},
    {"clamp between", TN_OP_CLAMP, 0, TN_HAS_STEP_LIMITS, TN_NUM_LEAST, -0.7},
    {"scale", TN_OP_SCALE, 0, 0, TN_NUM_SCALE, 0.3},
    {"row scale", TN_OP_ROW_SCALE, 0, 0, 0, 0},
    {"stream mix", TN_OP_STREAM_MIX, 0, 0, 0, 0},
    {"stream add", TN_OP_STREAM_ADD, 0, 0, 0, 0},
    {"stream mean", TN_OP_STREAM_MEAN, 0, 0, 0, 0},
    {"rms match", TN_OP_RMS_MATCH, 0, 0, TN_NUM_EPS, 1e-5},
    {"embedding bag", TN_OP_EMBEDDING_BAG, 0, 0, 0, 0},
};
enum { STEPS = sizeof steps / sizeof *steps };

/* The site of a step, and the same with its table on the device. */
typedef struct step_sites {
    npu_pair_sites pair;
    tn_tensor here, there;
} step_sites;

static void make_sites(const step *like, tn_dtype dtype, step_sites *s)
{
    tn_site *site = &s->pair.drawn.site;
    *site = (tn_site){.size = sizeof *site, .op = like->op, .path = like->name, .features = like->features};
    site->class_name = site->model_type = "drawn";
    site->meaning[TN_AXIS_DTYPE] = site->meaning[TN_AXIS_WEIGHT] = dtype;
    site->meaning[TN_AXIS_ACT] = like->act;
    site->num[like->num] = like->value;
    site->num[TN_NUM_ALPHA] = like->act == TN_ACT_CLAMPED_SWIGLU || like->act == TN_ACT_XIELU ? 1.702 : 0;
    if (like->act == TN_ACT_XIELU) {
        site->num[TN_NUM_ALPHA_N] = 0.9;
        site->num[TN_NUM_EPS] = -1e-6;
    }
    if (op_find(like->op)->dims >> TN_DIM_STREAMS & 1)
        site->dim[TN_DIM_STREAMS] = STREAMS;
    if (like->op == TN_OP_EMBEDDING_BAG) {
        site->dim[TN_DIM_TOP_K] = TAPS_OF_BAG;
        s->here = tn_tensor_dense(malloc(TABLE * WIDTH * sizeof(float)), dtype, 2, (int64_t[]){TABLE, WIDTH});
        for (int64_t i = 0; i < TABLE * WIDTH; i++)
            convert_from_f32(&(float){(float)(i % 37) - 17.3f}, dtype,
                             (char *)s->here.data + (size_t)i * tn_dtype_size(dtype), 1);
        site->param[TN_ROLE_WEIGHT] = (tn_param){&s->here, 1};
    }
    s->pair.there = *site;
    if (s->here.data) {
        npu_pair_upload(&s->here, &s->there);
        s->pair.there.param[TN_ROLE_WEIGHT] = (tn_param){&s->there, 1};
    }
}

static void drop_sites(step_sites *s)
{
    ck_assert_int_eq(device_sync(&npu_pair_npu, NULL), TN_OK);
    if (s->here.data)
        device_free(&npu_pair_npu, s->there.data, tn_dtype_bytes(s->there.dtype, tn_tensor_count(&s->there)));
    free(s->here.data);
    *s = (step_sites){0};
}

START_TEST(steps_are_right)
{
    static step_sites s;
    const step *like = &steps[_i / 3];
    tn_error err = TN_ERROR_INIT;
    npu_pair_open();
    make_sites(like, dtypes[_i % 3], &s);
    ck_assert_msg(device_supports(&npu_pair_npu, &s.pair.there, &err) == TN_OK, "%s: %s", like->name, err.message);
    check_device_subject subject = {
        .device = &npu_pair_npu, .cpu = &npu_pair_cpu, .site = &s.pair.there, .op = like->op, .width = WIDTH};
    tn_status status = check_device(&subject, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", like->name, err.message);
    drop_sites(&s);
    npu_pair_close();
}
END_TEST

/* ---- numbers at the ends ------------------------------------------------------------------------------------ */

/* Rows of numbers of one size, since results are measured by their rows; huge ones are as large as f16's. */
static const float extremes[][8] = {
    {NAN, INFINITY, -INFINITY, 0, -0.0f, 1, -1, 0.5f},
    {INFINITY, 3, -3, 2, -2, 1.5f, 0.25f, -0.75f},
    {-INFINITY, 3, -3, 2, -2, 1.5f, 0.25f, -0.75f},
    {0, -0.0f, 0, 0, -0.0f, 0, 0, 0},
    {1e-3f, -1e-3f, 1.7e-3f, 2e-4f, -5e-4f, 3e-3f, -2e-3f, 1e-4f},
    {1e-15f, -1e-15f, 1.7e-15f, 2e-16f, -5e-16f, 3e-15f, 0, -0.0f}, /* f16: zeros                       */
    {6, -6, 20, -20, 20.5f, -88, 88, 104},
    {-104, 30, -30, 31, 15, -15, 19.99f, -19.99f},
    {6e4f, -6e4f, 3e4f, -3e4f, 1e4f, -1e4f, 2e4f, -2e4f},
    {1.3f, -1.3f, 1.29f, -1.29f, 1.31f, -1.31f, 0.3f, -0.3f},
    {5, 5, 5, 5, 5, 5, 5, 5},
};
enum { ROWS = sizeof extremes / sizeof *extremes };

/* Row r of x is row r of the table, and factors and the like are mild; whole tensors of ids repeat. */
static void fill_extremes(tn_tensor *t, bool mild)
{
    int64_t width = t->shape[t->ndim - 1];
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i++) {
        float value = mild ? 0.25f * (float)(i % 7) - 0.5f : extremes[i / width % ROWS][i % width % 8];
        if (t->dtype == TN_I64)
            ((int64_t *)t->data)[i] = i * 5 % TABLE;
        else
            convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
    }
}

static void give_inputs(tn_call *call)
{
    for (int i = 0; i < call->in_count; i++) {
        size_t bytes = tn_dtype_bytes(call->in[i].dtype, tn_tensor_count(&call->in[i]));
        call->in[i].data = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
        fill_extremes(&call->in[i], i > 0);
    }
}

START_TEST(steps_at_the_ends)
{
    static step_sites s;
    const step *like = &steps[_i / 3];
    double ulps = like->act == TN_ACT_LAPLACE ? 128 : 16; /* an ulp of erf is 64 of what 1 + erf leaves near 0 */
    npu_pair_open();
    make_sites(like, dtypes[_i % 3], &s);
    for (int64_t tokens = 0; tokens <= ROWS; tokens += ROWS) { /* calls of nothing, too                   */
        op_free letters = op_free_of(op_find(like->op), 1, tokens, tokens);
        letters.any = WIDTH;
        inputs in = {.call = op_call_of(op_find(like->op), &s.pair.drawn.site, &letters), .tokens = tokens};
        give_inputs(&in.call);
        npu_pair_compare(&s.pair, &in, dtypes[_i % 3] == TN_F32 ? ulps : 2);
        for (int i = 0; i < in.call.in_count; i++)
            free(in.call.in[i].data);
    }
    drop_sites(&s);
    npu_pair_close();
}
END_TEST

/* ---- from token to token ------------------------------------------------------------------------------------ */

/* One token, less than the filter's taps, those at the ends of chunks, padding at the beginning and in the middle. */
static const check_case cases[] = {{.batch = 1, .tokens = 0},
                                   {.batch = 3, .tokens = 1, .seed = 1},
                                   {.batch = 1, .tokens = 2, .seed = 2},
                                   {.batch = 2, .tokens = 15, .profile = INPUTS_CROWDED, .seed = 3},
                                   {.batch = 1, .tokens = 16, .seed = 4},
                                   {.batch = 1, .tokens = 64, .seed = 5},
                                   {.batch = 1, .tokens = 65, .profile = INPUTS_OUTLIERS, .seed = 6},
                                   {.batch = 3, .tokens = 131, .profile = INPUTS_CROWDED, .seed = 7}};
enum { CASES = sizeof cases / sizeof *cases };

static double ulps_of(tn_op op, tn_dtype dtype)
{
    if (op == TN_OP_GATED_DELTA_RULE || op == TN_OP_SELECTIVE_SCAN)
        return dtype == TN_F32 ? 1024 : 8;
    return dtype == TN_F32 ? 16 : 4;
}

static void compare_cases(const tn_site *site)
{
    inputs in;
    tn_error err = TN_ERROR_INIT;
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(site);
    ck_assert_msg(device_supports(&npu_pair_npu, &s->there, &err) == TN_OK, "%s", err.message);
    for (int i = 0; i < CASES; i++) {
        ck_assert_msg(inputs_draw_case(&in, &s->drawn.site, &cases[i], &err) == TN_OK, "%s", err.message);
        npu_pair_compare(s, &in, ulps_of(site->op, (tn_dtype)site->meaning[TN_AXIS_DTYPE]));
        inputs_close(&in);
    }
    check_device_subject subject = {.device = &npu_pair_npu, .cpu = &npu_pair_cpu, .site = &s->there, .op = site->op};
    tn_status status = check_device(&subject, &err);
    ck_assert_msg(status == TN_OK, "%s", err.message);
    npu_pair_drop(s);
    npu_pair_close();
}

START_TEST(filters_are_right)
{
    static const struct {
        tn_act act;
        int64_t taps;
        uint64_t features;
    } filters[] = {{TN_ACT_SILU, 4, 0}, {TN_ACT_LINEAR, 3, TN_HAS_BIAS}, {TN_ACT_GELU, 2, 0}};
    for (int i = 0; i < 3; i++) {
        tn_site site = draw_site_plain(TN_OP_SHORT_CONV);
        site.meaning[TN_AXIS_DTYPE] = dtypes[_i];
        site.meaning[TN_AXIS_ACT] = filters[i].act;
        site.dim[TN_DIM_TAPS] = filters[i].taps;
        site.features = filters[i].features;
        compare_cases(&site);
    }
}
END_TEST

/* Sites of an operation with these features, with heads in groups, and alone. */
static void compare_heads(tn_op op, tn_dtype dtype, uint64_t features)
{
    static const int64_t heads[][2] = {{2, 6}, {3, 3}, {1, 2}};
    for (int i = 0; i < 3; i++) {
        tn_site site = draw_site_plain(op);
        site.meaning[TN_AXIS_DTYPE] = dtype;
        site.dim[TN_DIM_Q_HEADS] = heads[i][0];
        site.dim[TN_DIM_KV_HEADS] = heads[i][1];
        draw_site_add(&site, features);
        compare_cases(&site);
    }
}

START_TEST(delta_rules_are_right)
{
    compare_heads(TN_OP_GATED_DELTA_RULE, dtypes[_i % 3], _i < 3 ? 0 : TN_HAS_CHANNEL_DECAY);
}
END_TEST

START_TEST(scans_are_right)
{
    static const uint64_t features[] = {0, TN_HAS_STEP_LIMITS | TN_HAS_F32_RESULT};
    compare_heads(TN_OP_SELECTIVE_SCAN, dtypes[_i % 3], features[_i / 3]);
}
END_TEST

/* Which keys queries get: all that they see, some, of equal ones the earlier, numbers that are none last. */
START_TEST(keys_are_chosen)
{
    enum { TOKENS = 21, SLOTS = 40, HEADS = 3, WIDE = 16, WAYS = 4 };
    static const int64_t most[] = {1, 7, SLOTS, SLOTS + 3};
    static npu_pair_sites s;
    npu_pair_open();
    for (int way = 0; way < WAYS * WAYS; way++) {
        tn_site *site = &s.drawn.site;
        *site = (tn_site){.size = sizeof *site, .op = TN_OP_CHOOSE_KEYS, .path = "keys"};
        site->class_name = site->model_type = "drawn";
        site->meaning[TN_AXIS_DTYPE] = dtypes[_i];
        site->dim[TN_DIM_TOP_K] = most[way % WAYS];
        site->dim[TN_DIM_Q_HEADS] = HEADS;
        site->dim[TN_DIM_HEAD] = WIDE;
        s.there = *site;
        op_free letters = op_free_of(op_find(site->op), 2, TOKENS, SLOTS);
        inputs in = {.call = op_call_of(op_find(site->op), site, &letters), .tokens = 2 * (int64_t)TOKENS};
        tn_tensor *t = in.call.in;
        for (int i = 0; i < in.call.in_count; i++) {
            size_t size = tn_dtype_size(t[i].dtype), bytes = tn_dtype_bytes(t[i].dtype, tn_tensor_count(&t[i]));
            t[i].data = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
            for (int64_t j = 0, n = tn_tensor_count(&t[i]); j < n && i < 3; j++) {
                float value = (float)((j * j + 7 * j + i) % 53 - 26) / 16; /* sums of products are exact */
                if (way / WAYS == 1 && i == 2)
                    value = 0; /* all scores are equal                                              */
                if (way / WAYS == 2 && i == 1 && j % 97 == 3)
                    value = NAN;
                if (way / WAYS == 3 && i == 1)
                    value = (float)(j / WIDE % 4); /* and here some of them                           */
                convert_from_f32(&value, t[i].dtype, (char *)t[i].data + (size_t)j * size, 1);
            }
        }
        for (int64_t j = 0; j < 2 * TOKENS; j++) /* the first tokens are padding, or see little             */
            ((int32_t *)t[3].data)[j] = (int32_t)(j % TOKENS < 2 ? j % TOKENS - 1 : 2 * (j % TOKENS));
        for (int64_t j = 0; j < 2 * SLOTS; j++) /* a ring with slots that are not used                       */
            ((int32_t *)t[4].data)[j] = j % SLOTS < 3 ? -1 : (int32_t)((j + 11) % SLOTS);
        npu_pair_compare(&s, &in, 0);
        for (int i = 0; i < in.call.in_count; i++)
            free(t[i].data);
    }
    npu_pair_close();
}
END_TEST

START_TEST(layer_norms_are_right)
{
    for (int bias = 0; bias < 2; bias++) {
        tn_site site = draw_site_plain(TN_OP_LAYER_NORM);
        site.meaning[TN_AXIS_DTYPE] = dtypes[_i];
        site.features = bias ? TN_HAS_BIAS : 0;
        compare_cases(&site);
    }
}
END_TEST

static void set_all(const tn_tensor *t, float value)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
}

enum { V, STATE, Q, K, A, B, INDEX };

/* What becomes of the drawn inputs of a delta rule. */
static const struct {
    const char *name;
    int64_t tokens;
    float a, b; /* NAN: as drawn                                                                        */
    bool same_keys, no_keys, padding;
} gates[] = {{"one key for all that nobody forgets", 200, -100, 30, true, false, false},
             {"everything is forgotten", 40, 3e4f, 2, false, false, false},
             {"infinite gates", 40, INFINITY, INFINITY, false, false, false},
             {"gates that are shut", 40, -INFINITY, -INFINITY, false, false, false},
             {"keys of zeros", 40, NAN, NAN, false, true, false},
             {"nothing but padding", 40, NAN, NAN, false, false, true},
             {"a token of padding", 1, NAN, NAN, false, false, true},
             {"a few tokens that are forgotten", 7, 3e4f, 2, false, false, false}};
enum { GATES = sizeof gates / sizeof *gates };

START_TEST(delta_rules_at_the_ends)
{
    inputs in;
    tn_error err = TN_ERROR_INIT;
    tn_site site = draw_site_plain(TN_OP_GATED_DELTA_RULE);
    site.meaning[TN_AXIS_DTYPE] = dtypes[_i];
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(&site);
    for (int i = 0; i < GATES; i++) {
        check_case c = {.batch = 2, .tokens = gates[i].tokens, .seed = 8};
        ck_assert_int_eq(inputs_draw_case(&in, &s->drawn.site, &c, &err), TN_OK);
        tn_tensor *t = in.call.in;
        if (!isnan(gates[i].a))
            set_all(&t[A], gates[i].a);
        if (!isnan(gates[i].b))
            set_all(&t[B], gates[i].b);
        if (gates[i].same_keys)
            set_all(&t[K], 1);
        if (gates[i].no_keys)
            set_all(&t[K], 0);
        for (int64_t j = 0; j < tn_tensor_count(&t[INDEX]) && gates[i].padding; j++)
            ((int32_t *)t[INDEX].data)[j] = -1;
        npu_pair_compare(s, &in, ulps_of(TN_OP_GATED_DELTA_RULE, dtypes[_i]));
        inputs_close(&in);
    }
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* Rows that are far from zero (not far: the CPU rounds their mean), of one number, of zeros, and with numbers that are
 * none. */
START_TEST(layer_norms_at_the_ends)
{
    inputs in;
    tn_error err = TN_ERROR_INIT;
    tn_site site = draw_site_plain(TN_OP_LAYER_NORM);
    site.meaning[TN_AXIS_DTYPE] = dtypes[_i];
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(&site);
    ck_assert_int_eq(inputs_draw_case(&in, &s->drawn.site, &(check_case){.batch = 1, .tokens = ROWS + 1}, &err), TN_OK);
    tn_tensor rows = in.call.in[0], last = rows;
    rows.shape[0] = ROWS;
    fill_extremes(&rows, false);
    last.shape[0] = 1;
    last.data = (char *)rows.data + (size_t)(ROWS * rows.shape[1]) * tn_dtype_size(rows.dtype);
    for (int64_t i = 0; i < last.shape[1]; i++)
        convert_from_f32(&(float){16 + (float)(i % 5)}, last.dtype,
                         (char *)last.data + (size_t)i * tn_dtype_size(last.dtype), 1);
    npu_pair_compare(s, &in, dtypes[_i] == TN_F32 ? 16 : 4);
    inputs_close(&in);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

static void add_tests(void)
{
    TCase *tc = suite_open("ascend_steps", 600);
    tcase_add_loop_test(tc, steps_are_right, 0, 3 * STEPS);
    tcase_add_loop_test(tc, steps_at_the_ends, 0, 3 * STEPS);
    tcase_add_loop_test(tc, filters_are_right, 0, 3);
    tcase_add_loop_test(tc, delta_rules_are_right, 0, 6);
    tcase_add_loop_test(tc, scans_are_right, 0, 6);
    tcase_add_loop_test(tc, keys_are_chosen, 0, 3);
    tcase_add_loop_test(tc, delta_rules_at_the_ends, 0, 3);
    tcase_add_loop_test(tc, layer_norms_are_right, 0, 3);
    tcase_add_loop_test(tc, layer_norms_at_the_ends, 0, 3);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
