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

#endif
