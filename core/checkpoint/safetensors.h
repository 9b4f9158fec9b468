/* Inside core/checkpoint: what lies behind tn_safetensors. */
#ifndef TENON_CORE_SAFETENSORS_H
#define TENON_CORE_SAFETENSORS_H

#include <tenon/tenon.h>

/* "F32" and so on, as the format spells them. */
tn_dtype safetensors_parse_dtype(const char *name); /* TN_DTYPE_NONE: unknown or without counterpart here */
const char *safetensors_dtype_name(tn_dtype dtype); /* NULL: not in the format                           */

/* Tensors in the order of their data. */
void safetensors_at(const tn_safetensors *file, size_t index, const char **name, tn_tensor *tensor);
const char *safetensors_path(const tn_safetensors *file);
const char *safetensors_data(const tn_safetensors *file, size_t *bytes); /* all of the mapping             */

/* tn_safetensors_write that calls progress (unless NULL) in between with the bytes of data written; a non-zero return
 * stops with TN_E_CANCELLED, and nothing is written then. */
tn_status safetensors_write(const char *path, const tn_named_tensor *tensors, size_t count,
                            int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx, tn_error *err);

#endif
