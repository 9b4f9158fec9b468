/* Kernels of a test's own. */
#include "test_kernels.h"

#include "suite.h"

#include "eager/eager.h"
#include "plugin/plugins.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- plain products: eager's library has threads, which a child process lacks ------------------------------- */

static void elements(const tn_tensor *t, int64_t row, int64_t column, int64_t count, float *values)
{
    size_t size = tn_dtype_size(t->dtype);
    convert_to_f32((const char *)t->data + (size_t)(row * t->stride[0] + column) * size, t->dtype, values, count);
}

static float element(const tn_tensor *t, int64_t row, int64_t column)
{
    float value;
    elements(t, row, column, 1, &value);
    return value;
}

static void set_element(const tn_tensor *t, int64_t row, int64_t column, float value)
{
    size_t size = tn_dtype_size(t->dtype);
    convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)(row * t->stride[0] + column) * size, 1);
}

static float dot(const tn_tensor *x, int64_t row, const tn_tensor *w, int64_t out)
{
    enum { PART = 64 };
    float a[PART], b[PART];
    double sum = 0;
    for (int64_t first = 0; first < x->shape[1]; first += PART) {
        int64_t count = x->shape[1] - first < PART ? x->shape[1] - first : PART;
        elements(x, row, first, count, a);
        elements(w, out, first, count, b);
        for (int64_t i = 0; i < count; i++)
            sum += (double)a[i] * b[i];
    }
    return (float)sum;
}

static tn_status linear_forward(const tn_call *call)
{
    const tn_param *bias = &call->site->param[TN_ROLE_BIAS];
    for (int64_t t = 0; t < call->in[0].shape[0]; t++)
        for (int64_t o = 0; o < call->out[0].shape[1]; o++)
            set_element(&call->out[0], t, o,
                        dot(&call->in[0], t, &call->site->param[TN_ROLE_WEIGHT].tensors[0], o) +
                            (bias->count ? element(&bias->tensors[0], 0, o) : 0));
    return TN_OK;
}

static tn_status mlp_forward(const tn_call *call)
{
    const tn_param *param = call->site->param;
    const tn_tensor *x = &call->in[0], *down = &param[TN_ROLE_DOWN].tensors[0];
    int64_t inter = down->shape[1];
    float *mid = malloc((size_t)inter * sizeof *mid);
    for (int64_t t = 0; t < x->shape[0]; t++) {
        for (int64_t i = 0; i < inter; i++) {
            float gate = dot(x, t, &param[TN_ROLE_GATE].tensors[0], i);
            mid[i] = gate / (1 + expf(-gate)) * dot(x, t, &param[TN_ROLE_UP].tensors[0], i);
        }
        for (int64_t o = 0; o < down->shape[0]; o++) {
            double sum = 0;
            for (int64_t i = 0; i < inter; i++)
                sum += (double)mid[i] * element(down, o, i);
            set_element(&call->out[0], t, o, (float)sum);
        }
    }
    free(mid);
    return TN_OK;
}

/* y += weight * expert(x), for one token. */
static void add_expert(const tn_call *call, int64_t t, int64_t expert, float weight, float *y)
{
    const tn_param *param = call->site->param;
    const tn_tensor *x = &call->in[0], *down = &param[TN_ROLE_DOWN].tensors[expert];
    for (int64_t i = 0; i < down->shape[1]; i++) {
        float gate = dot(x, t, &param[TN_ROLE_GATE].tensors[expert], i);
        float mid = gate / (1 + expf(-gate)) * dot(x, t, &param[TN_ROLE_UP].tensors[expert], i);
        for (int64_t o = 0; o < down->shape[0]; o++)
            y[o] += weight * mid * element(down, o, i);
    }
}

static tn_status moe_forward(const tn_call *call)
{
    enum { EXPERTS = 64 };
    const tn_site *site = call->site;
    int64_t hidden = call->in[0].shape[1], experts = site->dim[TN_DIM_EXPERTS];
    float score[EXPERTS], *y = malloc((size_t)hidden * sizeof *y);
    for (int64_t t = 0; t < call->in[0].shape[0]; t++) {
        float all = 0, chosen_sum = 0;
        bool chosen[EXPERTS] = {false};
        for (int64_t e = 0; e < experts; e++)
            all += score[e] = expf(dot(&call->in[0], t, &site->param[TN_ROLE_ROUTER].tensors[0], e));
        for (int64_t j = 0; j < site->dim[TN_DIM_TOP_K]; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < experts; e++)
                if (!chosen[e] && (best < 0 || score[e] > score[best]))
                    best = e;
            chosen[best] = true;
            chosen_sum += score[best];
        }
        memset(y, 0, (size_t)hidden * sizeof *y);
        for (int64_t e = 0; e < experts; e++)
            if (chosen[e])
                add_expert(call, t, e, score[e] / (site->features & TN_HAS_RENORM ? chosen_sum : all), y);
        for (int64_t o = 0; o < hidden; o++)
            set_element(&call->out[0], t, o, y[o]);
    }
    free(y);
    return TN_OK;
}

tn_status test_kernel_forward(const tn_call *call, tn_error *err)
{
    switch (call->op) {
    case TN_OP_LINEAR:
        return linear_forward(call);
    case TN_OP_MLP:
        return mlp_forward(call);
    case TN_OP_MOE_BLOCK:
        return moe_forward(call);
    case TN_OP_ROPE:
        return eager_rope.forward(call, err);
    case TN_OP_ADD_RMS_NORM:
        return eager_add_rms_norm.forward(call, err);
    default:
        return eager_rms_norm.forward(call, err);
    }
}

tn_status test_kernel_backward(const tn_call *call, tn_error *err)
{
    const eager_op *op = eager_find(call->op);
    tn_call with = *call;
    size_t bytes = op->backward_scratch ? op->backward_scratch(call) : 0;
    with.scratch = aligned_alloc(64, (bytes + 64) / 64 * 64);
    tn_status status = op->backward(&with, err);
    free(with.scratch);
    return status;
}

/* ---- registering ----------------------------------------------------------------------------------------------- */

static const uint64_t any_float = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16);

static tn_tolerance limit(double ulps)
{
    return (tn_tolerance){fmin(ulps, TN_TOLERANCE_MAX_F32), fmin(ulps, TN_TOLERANCE_MAX_BF16),
                          fmin(ulps, TN_TOLERANCE_MAX_F16)};
}

void test_kernel_register(const tn_kernel *kernel)
{
    tn_plugin plugin = {.size = sizeof plugin,
                        .abi_major = TN_ABI_MAJOR,
                        .name = "test",
                        .version = "1.0.0",
                        .kernels = kernel,
                        .kernel_count = 1};
    tn_error err = TN_ERROR_INIT;
    descriptor *d = descriptor_read(&plugin, NULL, "test", &err);
    ck_assert_msg(d != NULL, "%s: %s", err.where, err.message);
    ck_assert_msg(registry_add(d, "test", &err) == TN_OK, "%s: %s", err.where, err.message);
}

void test_kernel_add(const test_kernel *k)
{
    setenv("TENON_MEASURE", "no", 0); /* plain kernels are slow; who measures them says so */
    double ulps = k->ulps > 0 ? k->ulps : 64;
    tn_tolerance tolerance = limit(ulps), gradient_tolerance = limit(k->gradient_ulps);
    tn_impl impl = {.size = sizeof impl,
                    .op = k->op,
                    .match = {.size = sizeof impl.match, .takes = {[TN_AXIS_DTYPE] = any_float}},
                    .tolerance = tolerance,
                    .plan = k->plan,
                    .pack = k->pack,
                    .forward = k->forward ? k->forward : test_kernel_forward,
                    .backward = k->backward,
                    .optional_outputs = k->optional_outputs,
                    .gradient_tolerance = gradient_tolerance,
                    .traits = k->traits};
    if (k->op == TN_OP_RMS_NORM || k->op == TN_OP_ADD_RMS_NORM)
        impl.match.takes[TN_AXIS_NORM] = TN_TAKES(TN_NORM_W);
    if (k->op == TN_OP_ROPE)
        impl.match.takes[TN_AXIS_ROPE] = TN_TAKES(TN_ROPE_HALF);
    if (k->op == TN_OP_MLP) {
        impl.match.takes[TN_AXIS_ACT] = k->acts ? k->acts : TN_TAKES(TN_ACT_SILU);
        impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_SPLIT);
    }
    if (k->op == TN_OP_MOE_BLOCK) {
        impl.match.takes[TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU);
        impl.match.takes[TN_AXIS_SCORE] = TN_TAKES(TN_SCORE_SOFTMAX);
        impl.match.takes[TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_EXPERT_LIST);
        impl.match.features = TN_HAS_RENORM;
    }
    tn_kernel kernel = {.size = sizeof kernel,
                        .id = k->id,
                        .version = "1.0.0",
                        .summary = "of a test",
                        .device = k->device ? k->device : "cpu",
                        .priority = k->priority,
                        .available = k->available,
                        .impls = &impl,
                        .impl_count = 1};
    test_kernel_register(&kernel);
}

static void free_config(void *config)
{
    tn_config_free(config);
}

tn_config *test_config(const char *json)
{
    char *path = tempdir_at(tempdir_new(), "kernels.json");
    tn_error err = TN_ERROR_INIT;
    tempdir_write(path, json, strlen(json));
    tn_config *config = tn_config_load(path, &err);
    ck_assert_msg(config != NULL, "%s: %s", err.where, err.message);
    suite_keep(config, free_config);
    return config;
}
