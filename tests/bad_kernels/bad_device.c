/* A device that performs RMS norms in float32 and nothing else, and a kernel for it that does the same: both are right,
 * but for the fault that BAD_KERNEL names. check_kernels --device must find it
 * (tests/check_kernels/test_check_kernels.sh). */
#include "bad_norm.h"

#include <tenon/device.h>

static tn_status bad_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    (void)queue;
    size_t size = (bytes + 64) & ~(size_t)63;
    *out = aligned_alloc(64, size);
    if (!*out)
        return tn_fail(err, TN_E_MEMORY, "bad", "no memory for %zu bytes", bytes);
    memset(*out, 0, size);
    return TN_OK;
}

static void bad_free(tn_queue *queue, void *memory, size_t bytes)
{
    (void)queue;
    (void)bytes;
    free(memory);
}

static tn_status bad_upload(tn_queue *queue, void *to, const void *from, size_t bytes, tn_error *err)
{
    (void)queue;
    (void)err;
    memcpy(to, from, bytes);
    return TN_OK;
}

static tn_status bad_download(tn_queue *queue, void *to, const void *from, size_t bytes, tn_error *err)
{
    return bad_upload(queue, to, from, bytes, err);
}

/* Work that fails behind the call's back. */
static tn_status bad_sync(tn_queue *queue, tn_error *err)
{
    (void)queue;
    return faulty("late") ? tn_fail(err, TN_E_KERNEL, "bad", "what was lined up failed") : TN_OK;
}

static tn_status bad_supports(const tn_site *site, tn_error *err)
{
    if (site->op != TN_OP_RMS_NORM || site->meaning[TN_AXIS_DTYPE] != TN_F32 ||
        site->meaning[TN_AXIS_NORM] != TN_NORM_W)
        return tn_fail(err, TN_DECLINED, "bad", "it has only norms in f32 with a weight");
    return TN_OK;
}

static size_t bad_backward_scratch(const tn_call *call)
{
    return (size_t)call->site->dim[TN_DIM_WIDTH] * sizeof(double);
}

static tn_status bad_eager(const tn_call *call, tn_error *err)
{
    return faulty("nothing") ? TN_OK : forward(call, err);
}

static const tn_device device = {.size = sizeof device,
                                 .name = "bad",
                                 .summary = "norms with a fault",
                                 .alloc = bad_alloc,
                                 .free = bad_free,
                                 .upload = bad_upload,
                                 .download = bad_download,
                                 .sync = bad_sync,
                                 .supports = bad_supports,
                                 .backward_scratch = bad_backward_scratch,
                                 .eager = bad_eager,
                                 .backward = backward};

static const tn_kernel kernel = {.size = sizeof(tn_kernel),
                                 .id = "npu_fused_rmsnorm",
                                 .version = "1.0.0",
                                 .summary = "RMS norm with a fault",
                                 .device = "bad",
                                 .impls = norm_impls,
                                 .impl_count = 1};

TN_PLUGIN("bad_device", "1.0.0", .device = &device, .kernels = &kernel, .kernel_count = 1);
