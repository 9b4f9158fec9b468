/* The built-in CPU device: memory of the host and the eager operations. */
#include "base/edge.h"
#include "base/tensor.h"
#include "eager/eager.h"
#include "eager/gemm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* From here on a block gets its own mapping, on huge pages where the system grants them: fresh memory then costs a
 * seventh of what it does in pages of 4 KB. */
#define CPU_LARGE ((size_t)4 << 20)
#define CPU_HUGE_PAGE ((size_t)2 << 20)

static size_t cpu_mapped_size(size_t bytes)
{
    return (bytes + CPU_HUGE_PAGE - 1) & ~(CPU_HUGE_PAGE - 1);
}

static tn_status cpu_no_memory(size_t bytes, tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "cpu", "cannot allocate %zu bytes; use a shorter context or a smaller model",
                   bytes);
}

/* Maps one huge page more than needed and gives back what lies outside the aligned part. */
static tn_status cpu_map(size_t bytes, void **out, tn_error *err)
{
    if (bytes > SIZE_MAX - 2 * CPU_HUGE_PAGE)
        return cpu_no_memory(bytes, err);
    size_t size = cpu_mapped_size(bytes);
    char *raw = mmap(NULL, size + CPU_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return cpu_no_memory(bytes, err);
    size_t head = (CPU_HUGE_PAGE - (size_t)((uintptr_t)raw % CPU_HUGE_PAGE)) % CPU_HUGE_PAGE;
    if (head)
        munmap(raw, head);
    if (CPU_HUGE_PAGE - head)
        munmap(raw + head + size, CPU_HUGE_PAGE - head);
    madvise(raw + head, size, MADV_HUGEPAGE);
    *out = raw + head;
    return TN_OK;
}

static tn_status cpu_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    (void)queue;
    *out = NULL;
    edge_install(); /* before the first step, around which handlers that change are noticed          */
    if (bytes >= CPU_LARGE)
        return cpu_map(bytes, out, err);
    size_t size = (bytes + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, size ? size : 64);
    if (!memory)
        return cpu_no_memory(bytes, err);
    memset(memory, 0, size ? size : 64);
    *out = memory;
    return TN_OK;
}

static void cpu_free(tn_queue *queue, void *memory, size_t bytes)
{
    (void)queue;
    if (memory && bytes >= CPU_LARGE)
        munmap(memory, cpu_mapped_size(bytes));
    else
        free(memory);
}

static tn_status cpu_copy(tn_queue *queue, void *to, const void *from, size_t bytes, tn_error *err)
{
    (void)queue;
    (void)err;
    if (bytes)
        memmove(to, from, bytes);
    return TN_OK;
}

static tn_status cpu_supports(const tn_site *site, tn_error *err)
{
    if (!eager_find(site->op))
        return tn_fail(err, TN_DECLINED, site->path, "operation %d is not a primitive one of the cpu device",
                       (int)site->op);
    int32_t dtype = site->meaning[TN_AXIS_DTYPE];
    if (!tensor_is_float((tn_dtype)dtype))
        return tn_fail(err, TN_DECLINED, site->path, "dtype: site has %s, the cpu device takes f32, bf16, f16",
                       tn_dtype_name((tn_dtype)dtype));
    return TN_OK;
}

static size_t cpu_scratch(const tn_call *call)
{
    const eager_op *op = eager_find(call->op);
    return op && op->scratch ? op->scratch(call) : 0;
}

static tn_status cpu_eager(const tn_call *call, tn_error *err)
{
    const eager_op *op = eager_find(call->op);
    if (!op)
        return tn_fail(err, TN_E_INTERNAL, call->site ? call->site->path : "cpu",
                       "operation %d is not a primitive one of the cpu device; report this defect", (int)call->op);
    tn_status status = op->forward(call, err);
    return status == TN_OK ? gemm_check(err) : status;
}

static size_t cpu_backward_scratch(const tn_call *call)
{
    const eager_op *op = eager_find(call->op);
    return op && op->backward_scratch ? op->backward_scratch(call) : 0;
}

static tn_status cpu_backward(const tn_call *call, tn_error *err)
{
    const eager_op *op = eager_find(call->op);
    if (!op || !op->backward)
        return tn_fail(err, TN_DECLINED, call->site ? call->site->path : "cpu",
                       "the cpu device has no gradients of operation %d", (int)call->op);
    tn_status status = op->backward(call, err);
    return status == TN_OK ? gemm_check(err) : status;
}

const tn_device eager_cpu = {
    .size = sizeof(tn_device),
    .name = "cpu",
    .summary = "the host's processor",
    .host_memory = true,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .supports = cpu_supports,
    .scratch = cpu_scratch,
    .eager = cpu_eager,
    .backward_scratch = cpu_backward_scratch,
    .backward = cpu_backward,
};

const device cpu_device = {.ops = &eager_cpu};
