/* Tenon: the structures of DLPack, the exchange format for tensors in memory (as of version 0.8, without its version
 * record). They are laid out as in the common dlpack/dlpack.h; a program that includes that header as well includes it
 * first, and this one then adds nothing. */
#ifndef TENON_DLPACK_H
#define TENON_DLPACK_H

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLExtDev = 12 } DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum {
    kDLInt = 0U,
    kDLUInt = 1U,
    kDLFloat = 2U,
    kDLOpaqueHandle = 3U,
    kDLBfloat = 4U,
    kDLComplex = 5U,
    kDLBool = 6U
} DLDataTypeCode;

typedef struct {
    uint8_t code; /* DLDataTypeCode                                                              */
    uint8_t bits;
    uint16_t lanes; /* 1 unless elements are vectors                                             */
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense                                                 */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self); /* called once by whoever consumes it, any thread */
} DLManagedTensor;

#ifdef __cplusplus
}
#endif
#endif
#endif
