/* A plugin as an author wrote it against the 2.0 headers: a kernel, and a device. The binary beside it is never rebuilt
 * from later headers: it stands for all plugins that are out there, and every later host of this major version loads
 * it. */
#include <tenon/device.h>

/* ---- a kernel -------------------------------------------------------------------------------------------- */

/* y = rnd(rnd(n) * w); in float32 both roundings are those of the operations. */
static tn_status forward(const tn_call *call, tn_error *err)
{
    const tn_tensor *x = &call->in[0];
    const float *w = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    int64_t n = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / n;
    if (call->queue)
        return tn_fail(err, TN_E_INTERNAL, NULL, "the CPU has no queue");
    for (int64_t r = 0; r < rows; r++) {
        const float *from = (const float *)x->data + r * n;
        float *to = (float *)call->out[0].data + r * n, sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += from[i] * from[i];
        float scale = 1.0f / __builtin_sqrtf(sum / (float)n + (float)call->site->num[TN_NUM_EPS]);
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i] * scale * w[i];
    }
    return TN_OK;
}

/* dL/dw, which alone is given. */
static tn_status backward(const tn_call *call, tn_error *err)
{
    const tn_tensor *x = &call->in[0], *dy = &call->grads->out[0];
    const tn_param *dw = &call->grads->param[TN_ROLE_WEIGHT];
    int64_t n = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / n;
    (void)err;
    for (int64_t i = 0; dw->count > 0 && i < n; i++)
        ((float *)dw->tensors[0].data)[i] = 0;
    for (int64_t r = 0; dw->count > 0 && r < rows; r++) {
        const float *from = (const float *)x->data + r * n, *d = (const float *)dy->data + r * n;
        float sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += from[i] * from[i];
        float scale = 1.0f / __builtin_sqrtf(sum / (float)n + (float)call->site->num[TN_NUM_EPS]);
        for (int64_t i = 0; i < n; i++)
            ((float *)dw->tensors[0].data)[i] += d[i] * from[i] * scale;
    }
    return TN_OK;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site, (void)err;
    plan->scratch_bytes = 128;
    plan->backward_scratch_bytes = 256;
    plan->packed_bytes = 64;
    plan->user[7] = 7;
    return TN_OK;
}

static tn_status pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)site, (void)queue, (void)err;
    *(uint64_t *)packed = plan->user[7];
    return TN_OK;
}

static tn_status available(tn_error *err)
{
    return tn_dtype_bytes(TN_Q4_0, 32) == 18 ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "a block is not 18 bytes");
}

static const tn_dim_rule dims[] = {{TN_DIM_WIDTH, 2, 65536, 2}};

static const tn_impl impls[] = {{
    .size = sizeof(tn_impl),
    .op = TN_OP_RMS_NORM,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)},
              .dims = dims,
              .dim_count = 1,
              .class_glob = "*RMSNorm"},
    .tolerance = {.ulps_f32 = 64},
    .gradient_tolerance = {.ulps_f32 = 128},
    .plan = plan,
    .pack = pack,
    .forward = forward,
    .backward = backward,
}};

static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "abi_2_0_rms_norm",
                                     .version = "1.0.0",
                                     .summary = "RMS norm of a plugin from the days of ABI 2.0",
                                     .device = "cpu",
                                     .priority = -1,
                                     .available = available,
                                     .impls = impls,
                                     .impl_count = 1}};

/* ---- a device --------------------------------------------------------------------------------------------- */

struct tn_queue {
    int32_t unit, syncs;
};

static struct tn_queue queues[2];
static _Alignas(64) char memory[4096];

static tn_status open_unit(int32_t ordinal, tn_queue **queue, tn_error *err)
{
    if (ordinal > 1)
        return tn_fail(err, TN_E_USAGE, NULL, "there are 2 units");
    queues[ordinal].unit = ordinal;
    *queue = &queues[ordinal];
    return TN_OK;
}

static void close_unit(tn_queue *queue)
{
    queue->unit = -1;
}

static tn_status take(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    if (bytes > sizeof memory / 2)
        return tn_fail(err, TN_E_MEMORY, NULL, "%zu bytes are too many", bytes);
    *out = memory + queue->unit * 2048;
    return TN_OK;
}

static void give_back(tn_queue *queue, void *block, size_t bytes)
{
    (void)queue, (void)block, (void)bytes;
}

static tn_status copy(tn_queue *queue, void *to, const void *from, size_t bytes, tn_error *err)
{
    (void)queue, (void)err;
    for (size_t i = 0; i < bytes; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return TN_OK;
}

static tn_status sync_unit(tn_queue *queue, tn_error *err)
{
    return tn_fail(err, TN_E_INTERNAL, NULL, "unit %d, for the time %d", (int)queue->unit, (int)++queue->syncs);
}

static tn_status supports(const tn_site *site, tn_error *err)
{
    return site->op == TN_OP_LINEAR ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "only LINEAR");
}

static size_t scratch(const tn_call *call)
{
    return call->in_count == 1 ? 192 : 320;
}

static tn_status eager(const tn_call *call, tn_error *err)
{
    (void)call;
    return tn_fail(err, TN_E_INTERNAL, NULL, "nothing is performed");
}

static const tn_device device = {.size = sizeof(tn_device),
                                 .name = "abi_2_0",
                                 .summary = "a device from the days of ABI 2.0",
                                 .host_memory = true,
                                 .available = available,
                                 .open = open_unit,
                                 .close = close_unit,
                                 .alloc = take,
                                 .free = give_back,
                                 .upload = copy,
                                 .download = copy,
                                 .sync = sync_unit,
                                 .supports = supports,
                                 .scratch = scratch,
                                 .backward_scratch = scratch,
                                 .eager = eager,
                                 .backward = eager};

TN_PLUGIN("abi_2_0", "1.0.0", .kernels = kernels, .kernel_count = 1, .device = &device);
