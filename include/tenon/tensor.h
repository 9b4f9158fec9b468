/* Tenon: element types and tensor views. */
#ifndef TENON_TENSOR_H
#define TENON_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include <tenon/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_dtype {
    TN_DTYPE_NONE = 0,
    TN_F32 = 1,
    TN_BF16 = 2,
    TN_F16 = 3,
    TN_F64 = 4,
    TN_I64 = 5,
    TN_I32 = 6,
    TN_I16 = 7,
    TN_I8 = 8,
    TN_U8 = 9,
    TN_BOOL = 10,
    TN_F8_E4M3 = 11,
    TN_F8_E5M2 = 12,
    TN_DTYPE_COUNT
} tn_dtype;

#define TN_MAX_DIMS 6

/* A view: it never owns its data. Strides count elements, not bytes. A tensor of a device
 * other than the host's must not be dereferenced by the host. */
typedef struct tn_tensor {
    void *data;
    tn_dtype dtype;
    int32_t ndim;
    int64_t shape[TN_MAX_DIMS];
    int64_t stride[TN_MAX_DIMS];
} tn_tensor;

/* Bytes of one element; 0 for an unknown type. */
TN_API size_t tn_dtype_size(tn_dtype dtype);

/* "f32", "bf16", ...; "?" for an unknown type. Static storage. */
TN_API const char *tn_dtype_name(tn_dtype dtype);

/* The type called name (also "float32", "bfloat16", "float16", "half"), or TN_DTYPE_NONE. */
TN_API tn_dtype tn_dtype_parse(const char *name);

/* A dense row-major view of data with the given shape. */
TN_API tn_tensor tn_tensor_dense(void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape);

/* Number of elements; 1 for a scalar. */
TN_API int64_t tn_tensor_count(const tn_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
