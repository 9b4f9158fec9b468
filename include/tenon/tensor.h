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
    TN_F8_E8M0 = 13,
    TN_U4 = 14, /* two elements in a byte, the first in the low half; 0 is stored as 8 (docs/quantised.md) */
    TN_I4 = 15,
    /* Types of blocks that carry their scales, with the names and layouts of GGUF. */
    TN_Q4_0 = 16,
    TN_Q4_1 = 17,
    TN_Q5_0 = 18,
    TN_Q5_1 = 19,
    TN_Q8_0 = 20,
    TN_Q2_K = 21,
    TN_Q3_K = 22,
    TN_Q4_K = 23,
    TN_Q5_K = 24,
    TN_Q6_K = 25,
    TN_IQ4_NL = 26,
    TN_IQ4_XS = 27,
    TN_MXFP4 = 28,
    TN_NVFP4 = 29,
    TN_IQ1_S = 30,
    TN_IQ1_M = 31,
    TN_IQ2_XXS = 32,
    TN_IQ2_XS = 33,
    TN_IQ2_S = 34,
    TN_IQ3_XXS = 35,
    TN_IQ3_S = 36,
    TN_TQ1_0 = 37,
    TN_TQ2_0 = 38,
    /* Two elements in a byte whose values are those of a table; scales lie beside them. */
    TN_E2M1 = 39, /* the first in the low half: 0 .5 1 1.5 2 3 4 6, from 8 on negative                */
    TN_NF4 = 40,  /* the first in the high half: the 16 levels of bitsandbytes                        */
    TN_DTYPE_COUNT
} tn_dtype;

#define TN_MAX_DIMS 6

/* A view: it never owns its data. Shape and strides count elements, not bytes. A tensor of a device
 * other than the host's must not be dereferenced by the host. Where elements share a block the last dimension is dense
 * and holds whole blocks, and the other strides are whole blocks too. */
typedef struct tn_tensor {
    void *data;
    tn_dtype dtype;
    int32_t ndim;
    int64_t shape[TN_MAX_DIMS];
    int64_t stride[TN_MAX_DIMS];
} tn_tensor;

/* Bytes of one element; 0 for an unknown type and for types whose elements share a block. [any thread] */
TN_API size_t tn_dtype_size(tn_dtype dtype);

/* Elements of one block, and its bytes: 1 and the size of an element where there are no blocks; 0 for an unknown type.
 * [any thread] */
TN_API int64_t tn_dtype_block_elements(tn_dtype dtype);
TN_API size_t tn_dtype_block_bytes(tn_dtype dtype);

/* Bytes of so many elements side by side, which are whole blocks. 0 for an unknown type and less than one element,
 * SIZE_MAX for more bytes than a size can say. [any thread] */
TN_API size_t tn_dtype_bytes(tn_dtype dtype, int64_t elements);

/* "f32", "bf16", ...; "?" for an unknown type. Static storage. [any thread] */
TN_API const char *tn_dtype_name(tn_dtype dtype);

/* The type called name (also "float32", "bfloat16", "float16", "half", and behind "torch."), or TN_DTYPE_NONE. [any
 * thread] */
TN_API tn_dtype tn_dtype_parse(const char *name);

/* A dense row-major view of data, which may be NULL, with the given shape. What is no shape (fewer than 0 or more than
 * TN_MAX_DIMS dimensions, a negative one, NULL where there are some) gives a view of no elements and no type. [any
 * thread] */
TN_API tn_tensor tn_tensor_dense(void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape);

/* Number of elements; 1 for a scalar. 0 for NULL and for what has no shape, as above; INT64_MAX, which no memory holds,
 * where there are more than that. [any thread] */
TN_API int64_t tn_tensor_count(const tn_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
