/* What the kernels of this folder share: they are right, but for the fault that the environment's BAD_KERNEL names. */
#ifndef BAD_H
#define BAD_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/kernel.h>

static const char *fault_named;

/* With each call, and not for each element. What does not change is not written: two sessions call. */
__attribute__((constructor)) static void name_fault(void)
{
    const char *fault = getenv("BAD_KERNEL");
    if (fault != fault_named)
        fault_named = fault;
}

static inline bool faulty(const char *name)
{
    return fault_named && !strcmp(fault_named, name);
}

/* Row r, counted over all dimensions but the last, whose strides are arbitrary. */
static inline float *place(const tn_tensor *t, int64_t r)
{
    float *at = t->data;
    for (int32_t d = t->ndim - 2; d >= 0; r /= t->shape[d--])
        at += r % t->shape[d] * t->stride[d];
    return at;
}

static inline const float *weights_of(const tn_call *call, tn_role role, int64_t expert)
{
    return call->site->param[role].tensors[expert].data;
}

static inline float silu(float x)
{
    if (faulty("clamped gates"))
        x = fminf(fmaxf(x, -20), 20);
    if (faulty("sigmoid of large numbers"))
        return x * (expf(x) / (1 + expf(x)));
    return x / (1 + expf(-x));
}

static inline float product(const float *a, const float *b, int64_t n)
{
    float part[16] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++)
        part[i % 16] += a[i] * b[i];
    for (int i = 0; i < 16; i++)
        sum += part[i];
    return sum;
}

/* A kernel of one implementation for float32. */
#define BAD_KERNEL_PLUGIN(NAME, ID, IMPL)                                                                              \
    static const tn_kernel kernel = {.size = sizeof(tn_kernel),                                                        \
                                     .id = ID,                                                                         \
                                     .version = "1.0.0",                                                               \
                                     .summary = "right, but for a fault",                                              \
                                     .device = "cpu",                                                                  \
                                     .impls = &(IMPL),                                                                 \
                                     .impl_count = 1};                                                                 \
    TN_PLUGIN(NAME, "1.0.0", .kernels = &kernel, .kernel_count = 1)

#endif
