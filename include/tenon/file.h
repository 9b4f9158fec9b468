/* Tenon: tensors in files and elsewhere. tenon.h has the rules. */
#ifndef TENON_FILE_H
#define TENON_FILE_H

#include <stdbool.h>
#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_safetensors tn_safetensors;

/* Maps one .safetensors file read-only after checking all of its header. It does not change afterwards. Owned:
 * tn_safetensors_close. [any thread] */
TN_API tn_safetensors *tn_safetensors_open(const char *path, tn_error *err);
TN_API void tn_safetensors_close(tn_safetensors *file); /* views end with it. [one thread] */

/* What another program cuts off the file while it is mapped reads as zeros. TN_E_INPUT where that happened, or where
 * the file was changed in place: what was computed from it is worth nothing. [any thread] */
TN_API tn_status tn_safetensors_check(const tn_safetensors *file, tn_error *err);

/* Tensors in the order of the file; a name beyond the last is NULL. [any thread] */
TN_API size_t tn_safetensors_count(const tn_safetensors *file);
TN_API const char *tn_safetensors_name(const tn_safetensors *file, size_t index);

/* false when there is no such tensor; else a view into the mapping. [any thread] */
TN_API bool tn_safetensors_get(const tn_safetensors *file, const char *name, tn_tensor *tensor);

/* An element of arrays, which does not change within ABI 2. */
typedef struct tn_named_tensor {
    const char *name;
    tn_tensor tensor; /* dense */
} tn_named_tensor;

/* Writes to a temporary file beside path and renames it. [any thread] */
TN_API tn_status tn_safetensors_write(const char *path, const tn_named_tensor *tensors, size_t count, tn_error *err);

struct DLManagedTensor; /* tenon/dlpack.h */

/* A DLPack view; release (may be NULL) is called once with release_ctx by the consumer's deleter, on the consumer's
 * thread. Owned: by its own deleter. NULL, TN_E_USAGE: what is no tensor (a negative dimension, more than TN_MAX_DIMS,
 * elements without data, more than memory can hold) or of a type that DLPack lacks. [any thread] */
TN_API struct DLManagedTensor *tn_tensor_to_dlpack(const tn_tensor *tensor, void (*release)(void *), void *release_ctx,
                                                   tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
