/* Gradients of the device npu, on the simulator of the vendor's libraries, against the CPU's: made-up sites of every
 * operation that has them, whatever is wanted and whatever there is upstream, with gaps between rows and in place. */
#include "base/convert.h"
#include "base/tensor.h"
#include "check/draw_site.h"
#include "check/gradients.h"
#include "check/inputs.h"
#include "plugin/registry.h"
#include "process.h"
#include "run/run.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- devices ---------------------------------------------------------------------------------------------- */

static device npu, cpu;

static device open_named(const char *name)
{
    device d;
    int32_t ordinal;
    tn_error err = TN_ERROR_INIT;
    const tn_device *ops = registry_device(name, &ordinal, &err);
    ck_assert_msg(ops != NULL, "%s", err.message);
    ck_assert_msg(device_open(&d, ops, ordinal, name != NULL, &err) == TN_OK, "%s", err.message);
    return d;
}

static void open_both(void)
{
    char folder[4200], absolute[PATH_MAX];
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_new();
    snprintf(folder, sizeof folder, "%s/plugins", process_build());
    ck_assert_int_eq(tn_config_set_plugins(config, realpath(folder, absolute), &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    tn_config_free(config);
    npu = open_named("npu");
    cpu = open_named(NULL);
}

static int64_t ask_simulator(const char *function)
{
    int64_t (*ask)(void);
    void *library = dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD);
    ck_assert_msg(library != NULL, "the simulator is not loaded");
    *(void **)&ask = dlsym(library, function);
    return ask();
}

static void close_both(void)
{
    device_close(&npu);
    device_close(&cpu);
    ck_assert_int_eq(ask_simulator("sim_violations"), 0);
    ck_assert_int_eq(ask_simulator("sim_leaks"), 0);
}

/* ---- sites -------------------------------------------------------------------------------------------------- */

/* What a variant's site has beyond the plain one of its operation. */
typedef struct variant {
    const char *name;
    tn_op op;
    uint64_t features;
    int32_t layout, act, score, norm, rope, weight; /* 0: the first one                            */
    struct {
        tn_dim dim;
        int64_t size;
    } dims[4];
    bool spread; /* GLU: one gate for all features of a token                                      */
    double eps;
} variant;

static tn_site site_of(const variant *v, tn_dtype dtype)
{
    bool step = v->op >= TN_OP_FIRST_STEP;
    tn_site site = draw_site_plain(step ? TN_OP_MLP : v->op);
    const int32_t values[][2] = {{TN_AXIS_LAYOUT, v->layout}, {TN_AXIS_ACT, v->act},   {TN_AXIS_SCORE, v->score},
                                 {TN_AXIS_NORM, v->norm},     {TN_AXIS_ROPE, v->rope}, {TN_AXIS_WEIGHT, v->weight}};
    site.meaning[TN_AXIS_DTYPE] = dtype;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i][1])
            site.meaning[values[i][0]] = values[i][1];
    if (v->features)
        draw_site_add(&site, v->features);
    for (size_t i = 0; i < sizeof v->dims / sizeof *v->dims && v->dims[i].size; i++)
        site.dim[v->dims[i].dim] = v->dims[i].size;
    if (v->op == TN_OP_MOE_ROUTE)
        site.num[TN_NUM_EPS] = v->eps;
    if (v->act == TN_ACT_CLAMPED_SWIGLU) {
        site.num[TN_NUM_LIMIT] = 0.5;
        site.num[TN_NUM_ALPHA] = 1.702;
    }
    if (v->op == TN_OP_SOFTCAP)
        site.num[TN_NUM_SOFTCAP] = 3;
    return site;
}

/* ---- trials ------------------------------------------------------------------------------------------------- */

enum { PARAMS = 1024, TOKENS = 21, WIDTH = 50 };

/* A call with its upstream gradients, drawn on the host; the site's parameters are on both sides. */
typedef struct trial {
    const variant *v;
    draw_site drawn;
    tn_site here, there;
    tn_tensor there_params[PARAMS];
    inputs in;
    gradients want, got; /* upstream gradients of want alone                                       */
    float *step;         /* the tensors of a step                                                  */
} trial;

static void draw_tensor(tn_tensor *t, struct inputs_random *random)
{
    int64_t count = tn_tensor_count(t);
    t->data = aligned_alloc(64, tensor_padded_bytes(t) + 64);
    for (int64_t i = 0; i < count; i++) {
        float value = inputs_normal(random);
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
    }
}

/* One value for all features of a token. */
static void spread(tn_tensor *t)
{
    t->stride[0] = 1;
    t->stride[1] = 0;
}

/* Steps are not drawn by inputs.c: rows of normal numbers. */
static void draw_step(trial *t, tn_dtype dtype, int64_t tokens)
{
    struct inputs_random random = {.state = 11};
    tn_call *call = &t->in.call;
    *call = (tn_call){.size = sizeof *call, .op = t->v->op, .site = &t->here, .out_count = 1};
    call->in_count = t->v->op == TN_OP_GLU ? 2 : 1;
    t->in.tokens = tokens;
    tn_tensor like = tn_tensor_dense(NULL, dtype, 2, (int64_t[]){tokens, WIDTH});
    for (int i = 0; i < call->in_count; i++) {
        call->in[i] = like;
        draw_tensor(&call->in[i], &random);
        for (int side = 0; side < 2; side++) {
            gradients *g = side ? &t->got : &t->want;
            g->grads.in[i] = like;
            g->grads.in[i].data = aligned_alloc(64, tensor_padded_bytes(&like) + 64);
            if (t->v->spread && i == 0)
                spread(&g->grads.in[i]);
        }
    }
    if (t->v->spread)
        spread(&call->in[0]);
    t->want.grads.size = t->got.grads.size = sizeof(tn_grads);
    t->want.grads.out[0] = like;
    draw_tensor(&t->want.grads.out[0], &random);
    t->want.upstream = t->want.grads.out[0].data;
}

/* The chosen experts come from the CPU; the device's order is the same: by falling score. */
static void draw_call(trial *t, int64_t tokens)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor experts = {0};
    check_case c = {.batch = 1, .tokens = tokens, .seed = 3};
    ck_assert_msg(inputs_draw_case(&t->in, &t->here, &c, &err) == TN_OK, "%s", err.message);
    tn_call *call = &t->in.call;
    if (t->v->op == TN_OP_MOE_ROUTE) {
        tn_call forward = *call;
        for (int i = 0; i < forward.out_count; i++)
            forward.out[i].data = aligned_alloc(64, tensor_padded_bytes(&forward.out[i]) + 64);
        ck_assert_msg(run_alone(&cpu, NULL, NULL, &forward, &err) == TN_OK, "%s", err.message);
        experts = forward.out[1];
        free(forward.out[0].data);
    }
    ck_assert_int_eq(gradients_draw(&t->want, &t->in, &experts, &err), TN_OK);
    ck_assert_int_eq(gradients_draw(&t->got, &t->in, &experts, &err), TN_OK);
    ck_assert_int_eq(gradients_allocate(&t->want, &err), TN_OK);
    ck_assert_int_eq(gradients_allocate(&t->got, &err), TN_OK);
    free(experts.data);
}

/* The tensor's elements on the device, gap more than its width between rows. */
static void to_device(const tn_tensor *host, tn_tensor *there, int64_t gap)
{
    size_t size = tn_dtype_size(host->dtype);
    *there = *host;
    int64_t width = host->ndim > 0 ? host->shape[host->ndim - 1] : 1, count = tn_tensor_count(host);
    int64_t rows = width > 0 ? count / width : 0, stride = host->ndim > 1 ? width + gap : width;
    bool spread = host->ndim > 1 && host->stride[host->ndim - 1] == 0;
    for (int32_t i = host->ndim - 2, step = (int32_t)stride; i >= 0 && !spread; i--) {
        there->stride[i] = step;
        step *= (int32_t)host->shape[i];
    }
    size_t bytes = (size_t)(rows * stride) * size;
    char *copy = calloc(1, bytes + 64);
    for (int64_t i = 0; i < rows && !spread; i++)
        memcpy(copy + (size_t)(i * stride) * size, (char *)host->data + (size_t)(i * width) * size,
               (size_t)width * size);
    if (spread)
        memcpy(copy, host->data, (size_t)rows * size);
    ck_assert_int_eq(device_alloc(&npu, bytes, &there->data, NULL), TN_OK);
    ck_assert_int_eq(device_upload(&npu, there->data, copy, bytes, NULL), TN_OK);
    free(copy);
}

static size_t bytes_there(const tn_tensor *t, int64_t gap)
{
    int64_t width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1, count = tn_tensor_count(t);
    int64_t rows = width > 0 ? count / width : 0;
    return (size_t)(rows * (t->ndim > 1 ? width + gap : width)) * tn_dtype_size(t->dtype);
}

static void from_device(const tn_tensor *there, const tn_tensor *host, int64_t gap)
{
    size_t size = tn_dtype_size(host->dtype), bytes = bytes_there(host, gap);
    int64_t width = host->ndim > 0 ? host->shape[host->ndim - 1] : 1,
            rows = tn_tensor_count(host) / (width ? width : 1);
    int64_t stride = host->ndim > 1 ? width + gap : width;
    char *copy = malloc(bytes + 64);
    ck_assert_int_eq(device_download(&npu, copy, there->data, bytes, NULL), TN_OK);
    bool spread = host->ndim > 1 && host->stride[host->ndim - 1] == 0;
    for (int64_t i = 0; i < rows && !spread; i++)
        memcpy((char *)host->data + (size_t)(i * width) * size, copy + (size_t)(i * stride) * size,
               (size_t)width * size);
    if (spread)
        memcpy(host->data, copy, (size_t)rows * size);
    free(copy);
}

static trial *trial_open(const variant *v, tn_dtype dtype, int64_t tokens)
{
    trial *t = calloc(1, sizeof *t);
    tn_error err = TN_ERROR_INIT;
    tn_site like = site_of(v, dtype);
    ck_assert_msg(draw_site_open(&t->drawn, &like, 7, &err) == TN_OK, "%s: %s", v->name, err.message);
    t->v = v;
    t->here = t->there = t->drawn.site;
    tn_tensor *next = t->there_params;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &t->there.param[role];
        for (int64_t i = 0; i < p->count; i++)
            to_device(&t->here.param[role].tensors[i], &next[i], 0);
        p->tensors = next;
        next += p->count;
    }
    if (v->op >= TN_OP_FIRST_STEP)
        draw_step(t, dtype, tokens);
    else
        draw_call(t, tokens);
    return t;
}

static void trial_close(trial *t)
{
    ck_assert_int_eq(device_sync(&npu, NULL), TN_OK);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < t->there.param[role].count; i++) {
            const tn_tensor *p = &t->there.param[role].tensors[i];
            device_free(&npu, p->data, bytes_there(p, 0));
        }
    if (t->v->op >= TN_OP_FIRST_STEP) {
        for (int i = 0; i < t->in.call.in_count; i++) {
            free(t->in.call.in[i].data);
            free(t->want.grads.in[i].data);
            free(t->got.grads.in[i].data);
        }
        free(t->want.upstream);
    } else {
        gradients_close(&t->want);
        gradients_close(&t->got);
        inputs_close(&t->in);
    }
    draw_site_close(&t->drawn);
    free(t);
}

/* ---- on the device ------------------------------------------------------------------------------------------ */

/* How gradients are asked for. */
typedef enum way { ALL, WITH_GAPS, OF_INPUTS, OF_PARAMS, FIRST_ABSENT, ALL_ABSENT, IN_PLACE, WAYS } way;

enum { MOST_TENSORS = 4 * TN_CALL_TENSORS + PARAMS };

/* What was put on the device, and where it comes back to. */
typedef struct far_tensors {
    tn_tensor there[MOST_TENSORS], host[MOST_TENSORS];
    bool result[MOST_TENSORS];
    int count;
    int64_t gap;
} far_tensors;

static tn_tensor put(far_tensors *f, const tn_tensor *host, bool result)
{
    ck_assert_int_lt(f->count, MOST_TENSORS);
    int i = f->count++;
    if (result)
        memset(host->data, 0x7b, bytes_there(host, 0));
    f->host[i] = *host;
    f->result[i] = result;
    to_device(host, &f->there[i], f->gap);
    return f->there[i];
}

static void fetch_all(far_tensors *f)
{
    for (int i = 0; i < f->count; i++) {
        if (f->result[i])
            from_device(&f->there[i], &f->host[i], f->gap);
        device_free(&npu, f->there[i].data, bytes_there(&f->host[i], f->gap));
    }
}

/* Performs the call with its gradients on the device; results of what is wanted come back into grads. */
static tn_status perform_there(trial *t, const tn_grads *grads, way how, tn_error *err)
{
    far_tensors *f = calloc(1, sizeof *f);
    tn_tensor *params = calloc(PARAMS, sizeof *params), *next = params;
    tn_call far = t->in.call;
    tn_grads there = *grads;
    f->gap = how == WITH_GAPS ? 3 : 0;
    for (int i = 0; i < far.in_count; i++)
        far.in[i] = put(f, &t->in.call.in[i], false);
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->out[i].data)
            there.out[i] = put(f, &grads->out[i], false);
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->in[i].data) {
            there.in[i] = put(f, &grads->in[i], true);
            if (how == IN_PLACE && i == 0) {
                device_free(&npu, there.in[0].data, bytes_there(&grads->in[0], 0));
                f->there[f->count - 1].data = there.in[0].data = there.out[0].data;
            }
        }
    for (int role = 0; role < TN_ROLE_MAX; next += there.param[role++].count) {
        there.param[role].tensors = next;
        for (int64_t i = 0; i < there.param[role].count; i++)
            next[i] = put(f, &grads->param[role].tensors[i], true);
    }
    far.site = &t->there;
    far.grads = &there;
    far.out_count = 0;
    tn_status status = run_alone(&npu, NULL, NULL, &far, err);
    if (how == IN_PLACE) /* the upstream gradient goes with it                                      */
        for (int i = 0; i < f->count; i++)
            if (!f->result[i] && f->there[i].data == there.out[0].data)
                f->host[i].shape[0] = 0, f->there[i].data = NULL;
    fetch_all(f);
    free(f);
    free(params);
    return status;
}

/* ---- comparing ---------------------------------------------------------------------------------------------- */

/* Units of the last place at the largest magnitude of the gradient. */
static double tolerance_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? 128 : 4;
}

static float value_at(const tn_tensor *t, int64_t i)
{
    float value;
    convert_to_f32((const char *)t->data + (size_t)i * tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

static double compare(const trial *t, const char *what, int index, const tn_tensor *want, const tn_tensor *got)
{
    /* A gradient in f32 is made of what the model's type rounds. */
    tn_dtype dtype = (tn_dtype)t->here.meaning[TN_AXIS_DTYPE];
    double eps = dtype == TN_F32 ? 0x1p-24 : dtype == TN_BF16 ? 0x1p-8 : 0x1p-11, largest = 0, worst = 0;
    int64_t count = tn_tensor_count(want);
    if (want->ndim > 1 && want->stride[want->ndim - 1] == 0)
        count = want->shape[0];
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)value_at(want, i)));
    for (int64_t i = 0; i < count; i++) {
        double a = (double)value_at(want, i), b = (double)value_at(got, i), off = fabs(a - b) / eps;
        double ulps = off == 0 ? 0 : off / largest;
        ck_assert_msg(ulps <= tolerance_of(dtype), "%s, %s: %s %d, element %lld: %.9g, the CPU has %.9g (%.3g ulps)",
                      t->v->name, tn_dtype_name((tn_dtype)t->here.meaning[TN_AXIS_DTYPE]), what, index, (long long)i, b,
                      a, ulps);
        worst = fmax(worst, ulps);
    }
    return worst;
}

static double compare_all(const trial *t, const tn_grads *want, const tn_grads *got)
{
    double worst = 0;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (want->in[i].data)
            worst = fmax(worst, compare(t, "input", i, &want->in[i], &got->in[i]));
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < want->param[role].count; i++)
            worst = fmax(worst, compare(t, tn_role_name((tn_role)role), (int)i, &want->param[role].tensors[i],
                                        &got->param[role].tensors[i]));
    return worst;
}

static void leave_out(tn_grads *grads, way how)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (how == OF_PARAMS)
            grads->in[i].data = NULL;
        if (how == ALL_ABSENT || (how == FIRST_ABSENT && i == 0))
            grads->out[i].data = NULL;
    }
    if (how == OF_INPUTS)
        memset(grads->param, 0, sizeof grads->param);
}

/* Where both are asked for the same. */
static double try_way(trial *t, way how)
{
    tn_error err = TN_ERROR_INIT;
    tn_grads want = t->want.grads, got = t->got.grads;
    memcpy(got.out, want.out, sizeof got.out);
    leave_out(&want, how);
    leave_out(&got, how);
    tn_call here = t->in.call;
    here.site = &t->here;
    here.grads = &want;
    here.out_count = 0;
    ck_assert_msg(run_alone(&cpu, NULL, NULL, &here, &err) == TN_OK, "%s: %s", t->v->name, err.message);
    ck_assert_msg(perform_there(t, &got, how, &err) == TN_OK, "%s, way %d: %s", t->v->name, (int)how, err.message);
    return compare_all(t, &want, &got);
}

static const variant variants[] = {
    {.name = "linear", .op = TN_OP_LINEAR},
    {.name = "linear with a bias", .op = TN_OP_LINEAR, .features = TN_HAS_BIAS},
    {.name = "linear in f32", .op = TN_OP_LINEAR, .features = TN_HAS_BIAS, .weight = TN_F32},
    {.name = "norm", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W},
    {.name = "norm of one", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W, .dims = {{TN_DIM_WIDTH, 1}}},
    {.name = "norm, 1 + w", .op = TN_OP_RMS_NORM, .norm = TN_NORM_1_PLUS_W},
    {.name = "norm in f32", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W_F32},
    {.name = "gated norm", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W_GATED},
    {.name = "norm without a weight", .op = TN_OP_RMS_NORM, .norm = TN_NORM_NO_WEIGHT},
    {.name = "norm of a sum", .op = TN_OP_ADD_RMS_NORM, .norm = TN_NORM_W},
    {.name = "norm of a sum, 1 + w", .op = TN_OP_ADD_RMS_NORM, .norm = TN_NORM_1_PLUS_W},
    {.name = "norm of a sum in f32", .op = TN_OP_ADD_RMS_NORM, .norm = TN_NORM_W_F32},
    {.name = "layer norm", .op = TN_OP_LAYER_NORM, .features = TN_HAS_BIAS},
    {.name = "layer norm without a bias", .op = TN_OP_LAYER_NORM},
    {.name = "rope by halves", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF},
    {.name = "rope by halves, narrow", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF_NARROW},
    {.name = "rope of neighbours", .op = TN_OP_ROPE, .rope = TN_ROPE_INTERLEAVED},
    {.name = "complex rope", .op = TN_OP_ROPE, .rope = TN_ROPE_COMPLEX},
    {.name = "rope that sorts", .op = TN_OP_ROPE, .rope = TN_ROPE_DEINTERLEAVED},
    {.name = "rope in f32", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF_F32},
    {.name = "rope of a part", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF, .features = TN_HAS_PARTIAL},
    {.name = "glu", .op = TN_OP_GLU, .act = TN_ACT_SILU},
    {.name = "glu, gelu by tanh", .op = TN_OP_GLU, .act = TN_ACT_GELU_TANH},
    {.name = "glu, quick gelu", .op = TN_OP_GLU, .act = TN_ACT_QUICK_GELU},
    {.name = "glu of a sigmoid", .op = TN_OP_GLU, .act = TN_ACT_SIGMOID},
    {.name = "one gate for all", .op = TN_OP_GLU, .act = TN_ACT_SIGMOID, .spread = true},
    {.name = "silu", .op = TN_OP_ACT, .act = TN_ACT_SILU},
    {.name = "gelu by tanh", .op = TN_OP_ACT, .act = TN_ACT_GELU_TANH},
    {.name = "quick gelu", .op = TN_OP_ACT, .act = TN_ACT_QUICK_GELU},
    {.name = "sigmoid", .op = TN_OP_ACT, .act = TN_ACT_SIGMOID},
    {.name = "linear act", .op = TN_OP_ACT, .act = TN_ACT_LINEAR},
    {.name = "gelu", .op = TN_OP_ACT, .act = TN_ACT_GELU},
    {.name = "relu", .op = TN_OP_ACT, .act = TN_ACT_RELU},
    {.name = "relu2", .op = TN_OP_ACT, .act = TN_ACT_RELU2},
    {.name = "relu6", .op = TN_OP_ACT, .act = TN_ACT_RELU6},
    {.name = "gelu new", .op = TN_OP_ACT, .act = TN_ACT_GELU_NEW},
    {.name = "tanh", .op = TN_OP_ACT, .act = TN_ACT_TANH},
    {.name = "mish", .op = TN_OP_ACT, .act = TN_ACT_MISH},
    {.name = "glu of mish", .op = TN_OP_GLU, .act = TN_ACT_MISH},
    {.name = "sparse glu", .op = TN_OP_GLU, .act = TN_ACT_GELU_TANH, .features = TN_HAS_SPARSITY},
    {.name = "split mlp", .op = TN_OP_MLP, .layout = TN_LAYOUT_SPLIT},
    {.name = "mlp of both", .op = TN_OP_MLP, .layout = TN_LAYOUT_GATE_UP, .features = TN_HAS_BIAS},
    {.name = "mlp of both, exchanged", .op = TN_OP_MLP, .layout = TN_LAYOUT_UP_GATE},
    {.name = "mlp without a gate", .op = TN_OP_MLP, .layout = TN_LAYOUT_UP_DOWN, .act = TN_ACT_GELU},
    {.name = "sparse mlp",
     .op = TN_OP_MLP,
     .layout = TN_LAYOUT_SPLIT,
     .act = TN_ACT_GELU_TANH,
     .features = TN_HAS_SPARSITY},
    {.name = "softcap", .op = TN_OP_SOFTCAP},
    {.name = "groups in a list", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_EXPERT_LIST},
    {.name = "groups, [in,out] in a list", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_LIST_IO},
    {.name = "groups, [out,in]", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI},
    {.name = "groups, [in,out]", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_IO},
    {.name = "one group", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI, .dims = {{TN_DIM_EXPERTS, 1}}},
    {.name = "softmax router", .op = TN_OP_MOE_ROUTE},
    {.name = "renormalised", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_RENORM, .eps = 1e-9},
    {.name = "sigmoid router",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_SIGMOID,
     .features = TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_ROUTE_SCALE},
    {.name = "sigmoid router, as it is", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SIGMOID},
    {.name = "softmax of the best",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_TOPK_SOFTMAX,
     .features = TN_HAS_EXPERT_SCALE},
    {.name = "sigmoid of the best", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_TOPK_SIGMOID},
    {.name = "renormalised sigmoid of the best",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_TOPK_SIGMOID,
     .features = TN_HAS_RENORM | TN_HAS_EXPERT_SCALE | TN_HAS_ROUTE_SCALE},
    {.name = "router in f32",
     .op = TN_OP_MOE_ROUTE,
     .features = TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING | TN_HAS_CORRECTION_BIAS},
    {.name = "router of f32 weights", .op = TN_OP_MOE_ROUTE, .weight = TN_F32},
    {.name = "best groups", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_GROUPS},
    {.name = "groups of sigmoids",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_SIGMOID,
     .features = TN_HAS_GROUPS | TN_HAS_CORRECTION_BIAS | TN_HAS_RENORM},
    {.name = "all experts", .op = TN_OP_MOE_ROUTE, .dims = {{TN_DIM_EXPERTS, 4}, {TN_DIM_TOP_K, 4}}},
    {.name = "experts in a list", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST},
    {.name = "stacked experts, [out,in]", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI},
    {.name = "stacked experts, [in,out]", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_IO},
    {.name = "experts of pairs, clamped, biased",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_PAIRS_IO,
     .act = TN_ACT_CLAMPED_SWIGLU,
     .features = TN_HAS_BIAS},
    {.name = "experts in a list with biases",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_EXPERT_LIST,
     .features = TN_HAS_BIAS},
    {.name = "experts with weights of inputs",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_IO,
     .features = TN_HAS_INPUT_SCALE},
    {.name = "experts with weights in f32",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_OI,
     .features = TN_HAS_F32_ROUTING},
    {.name = "experts of gelu", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI, .act = TN_ACT_GELU_TANH},
    {.name = "experts of quick gelu",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_OI,
     .act = TN_ACT_QUICK_GELU},
    {.name = "one expert",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_OI,
     .dims = {{TN_DIM_EXPERTS, 1}, {TN_DIM_TOP_K, 1}}},
    {.name = "a list of too many experts",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_EXPERT_LIST,
     .dims = {{TN_DIM_EXPERTS, 130}, {TN_DIM_TOP_K, 3}}},
    {.name = "block of experts", .op = TN_OP_MOE_BLOCK, .layout = TN_LAYOUT_STACKED_OI},
    {.name = "block of experts and a shared one",
     .op = TN_OP_MOE_BLOCK,
     .layout = TN_LAYOUT_EXPERT_LIST,
     .features = TN_HAS_SHARED_GATE},
    {.name = "attention", .op = TN_OP_ATTENTION},
    {.name = "attention with a key head for each", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_KV_HEADS, 6}}},
    {.name = "attention with one key head", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_KV_HEADS, 1}, {TN_DIM_HEAD, 24}}},
    {.name = "attention to values of another width", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_HEAD_V, 20}}},
    {.name = "attention in a window", .op = TN_OP_ATTENTION, .features = TN_HAS_WINDOW},
    {.name = "attention in a chunk", .op = TN_OP_ATTENTION, .features = TN_HAS_CHUNK},
    {.name = "attention with a softcap", .op = TN_OP_ATTENTION, .features = TN_HAS_SOFTCAP},
    {.name = "attention with sinks", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS},
    {.name = "attention with sinks in a window", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS | TN_HAS_WINDOW},
};
enum { VARIANTS = sizeof variants / sizeof *variants };
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* Operations whose results may be the memory of their first input. */
static bool works_in_place(tn_op op)
{
    return op != TN_OP_LINEAR && op != TN_OP_GROUPED_MATMUL && op != TN_OP_MOE_ROUTE && op != TN_OP_MOE_EXPERTS &&
           op != TN_OP_ATTENTION && op != TN_OP_MLP && op != TN_OP_MOE_BLOCK;
}

START_TEST(gradients_are_the_cpus)
{
    const variant *v = &variants[_i / 3];
    double worst = 0;
    open_both();
    trial *t = trial_open(v, dtypes[_i % 3], TOKENS);
    for (int how = 0; how < WAYS; how++)
        if (how != IN_PLACE || (works_in_place(v->op) && !v->spread))
            worst = fmax(worst, try_way(t, (way)how));
    if (getenv("TENON_FIGURES"))
        fprintf(stderr, "%s, %s: %.3g ulps\n", v->name, tn_dtype_name(dtypes[_i % 3]), worst);
    trial_close(t);
    close_both();
}
END_TEST

START_TEST(empty_calls_have_zeros)
{
    open_both();
    for (int i = 0; i < VARIANTS; i++) {
        trial *t = trial_open(&variants[i], TN_BF16, 0);
        try_way(t, ALL);
        trial_close(t);
    }
    close_both();
}
END_TEST

/* ---- what the CPU has no gradients of ------------------------------------------------------------------------ */

enum { ROWS = 5, COLUMNS = 7, IDS = 4 };

/* Whole numbers, which every order adds up exactly. */
static tn_tensor numbers_there(far_tensors *f, float *host, int64_t rows, int64_t columns, bool result)
{
    for (int64_t i = 0; i < rows * columns; i++)
        host[i] = (float)(i * 5 % 11 - 4);
    tn_tensor t = tn_tensor_dense(host, TN_F32, columns ? 2 : 1, (int64_t[]){rows, columns});
    return put(f, &t, result);
}

static void backward_there(tn_op op, const tn_site *site, const tn_grads *grads, const tn_tensor *in, int count)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = {.size = sizeof call, .op = op, .site = site, .grads = grads, .in_count = count};
    memcpy(call.in, in, (size_t)count * sizeof *in);
    ck_assert_msg(run_alone(&npu, NULL, NULL, &call, &err) == TN_OK, "%s", err.message);
}

START_TEST(sums_and_factors)
{
    static far_tensors f;
    float x[ROWS * COLUMNS], g[ROWS * COLUMNS], dx[ROWS * COLUMNS], other[ROWS * COLUMNS], s[ROWS] = {2, -1, 0, 3, 4};
    float ds[ROWS], sum;
    open_both();
    tn_site site = draw_site_plain(TN_OP_MLP);
    site.num[TN_NUM_SCALE] = -3;
    tn_tensor in[2] = {numbers_there(&f, x, ROWS, COLUMNS, false)};
    in[1] = put(&f, &(tn_tensor){.data = s, .dtype = TN_F32, .ndim = 1, .shape = {ROWS}, .stride = {1}}, false);
    tn_tensor host_ds = {.data = ds, .dtype = TN_F32, .ndim = 1, .shape = {ROWS}, .stride = {1}};
    tn_grads grads = {.size = sizeof grads, .out[0] = numbers_there(&f, g, ROWS, COLUMNS, false)};
    for (int op = 0; op < 3; op++) {
        static const tn_op ops[] = {TN_OP_ADD, TN_OP_SCALE, TN_OP_ROW_SCALE};
        far_tensors results = {0};
        grads.in[0] = numbers_there(&results, dx, ROWS, COLUMNS, true);
        grads.in[1] = op == 2 ? put(&results, &host_ds, true) : numbers_there(&results, other, ROWS, COLUMNS, true);
        tn_tensor inputs[2] = {in[0], op == 2 ? in[1] : in[0]};
        backward_there(ops[op], &site, &grads, inputs, op == 1 ? 1 : 2);
        fetch_all(&results);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            float factor = op == 0 ? 1 : op == 1 ? -3 : s[i / COLUMNS];
            ck_assert_msg(dx[i] == factor * g[i], "operation %d, element %d: %g", op, i, (double)dx[i]);
            ck_assert_msg(op > 0 || other[i] == g[i], "element %d: %g", i, (double)other[i]);
        }
        for (int row = 0; row < ROWS && op == 2; row++) {
            sum = 0;
            for (int i = 0; i < COLUMNS; i++)
                sum += x[row * COLUMNS + i] * g[row * COLUMNS + i];
            ck_assert_msg(ds[row] == sum, "row %d: %g, not %g", row, (double)ds[row], (double)sum);
        }
    }
    fetch_all(&f);
    close_both();
}
END_TEST

START_TEST(rows_of_tables)
{
    static far_tensors f;
    float table[ROWS * COLUMNS], g[IDS * COLUMNS], dtable[ROWS * COLUMNS];
    int64_t ids[IDS] = {3, 0, 3, 4};
    open_both();
    tn_site site = draw_site_plain(TN_OP_MLP);
    tn_tensor weight = numbers_there(&f, table, ROWS, COLUMNS, false);
    site.op = TN_OP_EMBEDDING;
    site.features = 0;
    site.num[TN_NUM_SCALE] = 2;
    site.param[TN_ROLE_WEIGHT] = (tn_param){&weight, 1};
    tn_tensor in = put(&f, &(tn_tensor){.data = ids, .dtype = TN_I64, .ndim = 1, .shape = {IDS}, .stride = {1}}, false);
    tn_grads grads = {.size = sizeof grads, .out[0] = numbers_there(&f, g, IDS, COLUMNS, false)};
    tn_tensor to = numbers_there(&f, dtable, ROWS, COLUMNS, true);
    grads.param[TN_ROLE_WEIGHT] = (tn_param){&to, 1};
    backward_there(TN_OP_EMBEDDING, &site, &grads, &in, 1);
    fetch_all(&f);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        float sum = 0;
        for (int j = 0; j < IDS; j++)
            sum += ids[j] == i / COLUMNS ? 2 * g[j * COLUMNS + i % COLUMNS] : 0;
        ck_assert_msg(dtable[i] == sum, "element %d: %g, not %g", i, (double)dtable[i], (double)sum);
    }
    close_both();
}
END_TEST

/* Scores that do not fit into the scratch at once. */
START_TEST(attention_in_blocks)
{
    const variant v = {.name = "attention in blocks", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS};
    open_both();
    trial *t = trial_open(&v, dtypes[_i], 1100);
    try_way(t, ALL);
    trial_close(t);
    close_both();
}
END_TEST

/* What there is no gradient of is declined with its name. */
START_TEST(what_has_none_is_declined)
{
    tn_error err = TN_ERROR_INIT;
    open_both();
    tn_site site = draw_site_plain(TN_OP_MLP);
    tn_grads grads = {.size = sizeof grads};
    tn_call call = {.size = sizeof call, .op = TN_OP_COPY, .site = &site, .grads = &grads, .in_count = 1};
    ck_assert_int_eq(run_alone(&npu, NULL, NULL, &call, &err), TN_DECLINED);
    ck_assert_msg(strstr(err.message, "the gradients of COPY are not there yet") != NULL, "%s", err.message);
    close_both();
}
END_TEST

/* The first variant with grouped products, and how many there are. */
static int grouped_variants(int *count)
{
    int first = 0;
    while (variants[first].op != TN_OP_GROUPED_MATMUL)
        first++;
    for (*count = 0; variants[first + *count].op == TN_OP_GROUPED_MATMUL; *count += 1)
        ;
    return first;
}

/* The simulator without what the headers of 8.1.RC1 lack, in a program of its own: grouped products by V4. */
START_TEST(older_installations)
{
    char folder[4200];
    snprintf(folder, sizeof folder, "%s_old", getenv("LD_LIBRARY_PATH"));
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("CK_RUN_CASE", "groups", 1);
        if (!freopen("/dev/null", "w", stdout)) /* its sums are not this program's                  */
            _exit(126);
        execl("/proc/self/exe", "test_ascend_grads", (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("ascend_grads");
    TCase *tc = tcase_create("gradients");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, gradients_are_the_cpus, 0, 3 * VARIANTS);
    tcase_add_test(tc, empty_calls_have_zeros);
    tcase_add_test(tc, sums_and_factors);
    tcase_add_test(tc, rows_of_tables);
    tcase_add_loop_test(tc, attention_in_blocks, 0, 3);
    tcase_add_test(tc, what_has_none_is_declined);
    tcase_add_test(tc, older_installations);
    suite_add_tcase(suite, tc);
    int count, first = grouped_variants(&count);
    tc = tcase_create("groups");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, gradients_are_the_cpus, 3 * first, 3 * (first + count));
    suite_add_tcase(suite, tc);
    return suite;
}

/* The loader reads its path once: the program starts again with the simulator's folder, which lies beside it, in it. */
int main(int argc, char **argv)
{
    char folder[4200];
    const char *path = getenv("LD_LIBRARY_PATH");
    ssize_t length = readlink("/proc/self/exe", folder, 4096);
    (void)argc;
    while (length > 0 && folder[length - 1] != '/')
        length--;
    if (length <= 0)
        return 1;
    strcpy(folder + length, "ascend_sim");
    if (!path || strncmp(path, folder, strlen(folder)) != 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    unsetenv("ASCEND_HOME_PATH");
    unsetenv("ASCEND_TOOLKIT_HOME");
    return process_main(suite());
}
