/* Tensor views for other libraries, as DLPack. */
#include "base/tensor.h"

#include <tenon/dlpack.h>
#include <tenon/tenon.h>

#include <stdlib.h>
#include <string.h>

/* One block: the consumer frees all of it through the deleter. */
typedef struct managed {
    DLManagedTensor tensor;
    int64_t shape[TN_MAX_DIMS], strides[TN_MAX_DIMS];
    void (*release)(void *);
    void *release_ctx;
} managed;

static void delete_managed(DLManagedTensor *self)
{
    managed *m = self->manager_ctx;
    if (m->release)
        m->release(m->release_ctx);
    free(m);
}

/* false: DLPack 0.8 has no such type. */
static bool find_type(tn_dtype dtype, DLDataType *type)
{
    static const struct {
        tn_dtype dtype;
        DLDataTypeCode code;
    } codes[] = {{TN_F32, kDLFloat}, {TN_F16, kDLFloat}, {TN_F64, kDLFloat}, {TN_BF16, kDLBfloat}, {TN_I64, kDLInt},
                 {TN_I32, kDLInt},   {TN_I16, kDLInt},   {TN_I8, kDLInt},    {TN_U8, kDLUInt},     {TN_BOOL, kDLBool}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].dtype == dtype) {
            *type = (DLDataType){(uint8_t)codes[i].code, (uint8_t)(8 * tn_dtype_size(dtype)), 1};
            return true;
        }
    return false;
}

struct DLManagedTensor *tn_tensor_to_dlpack(const tn_tensor *tensor, void (*release)(void *), void *release_ctx,
                                            tn_error *err)
{
    DLDataType type;
    if (tensor_check(tensor, "DLPack", err) != TN_OK)
        return NULL;
    if (!tensor->data && tn_tensor_count(tensor) > 0) {
        tn_fail(err, TN_E_USAGE, "DLPack", "the tensor has elements and no data; pass one in memory");
        return NULL;
    }
    if (!find_type(tensor->dtype, &type)) {
        tn_fail(err, TN_E_USAGE, "DLPack", "dtype %s has no counterpart in DLPack 0.8; convert it first",
                tn_dtype_name(tensor->dtype));
        return NULL;
    }
    managed *m = calloc(1, sizeof *m);
    if (!m) {
        tn_fail(err, TN_E_MEMORY, "DLPack", "out of memory");
        return NULL;
    }
    memcpy(m->shape, tensor->shape, sizeof m->shape);
    memcpy(m->strides, tensor->stride, sizeof m->strides);
    m->release = release;
    m->release_ctx = release_ctx;
    m->tensor = (DLManagedTensor){.dl_tensor = {.data = tensor->data,
                                                .device = {kDLCPU, 0},
                                                .ndim = tensor->ndim,
                                                .dtype = type,
                                                .shape = m->shape,
                                                .strides = m->strides},
                                  .manager_ctx = m,
                                  .deleter = delete_managed};
    return &m->tensor;
}
