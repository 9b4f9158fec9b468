/* Inside core: a checkpoint's folder written anew, beside its destination and renamed. */
#ifndef TENON_CORE_FOLDER_COPY_H
#define TENON_CORE_FOLDER_COPY_H

#include <tenon/file.h>

struct json_t;

/* Between folder_copy_begin and folder_copy_end. */
typedef struct folder_copy {
    const char *from;
    char path[4096]; /* where it is written                                                       */
    tn_error *err;
} folder_copy;

/* TN_E_INPUT where something has that name. */
tn_status folder_copy_check(const char *out, tn_error *err);

tn_status folder_copy_begin(folder_copy *c, const char *from, const char *out, tn_error *err);

/* model.safetensors, config.json with what change does to it, and then tokenizers, templates and their like. */
tn_status folder_copy_weights(folder_copy *c, const tn_named_tensor *tensors, size_t count,
                              int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx);
tn_status folder_copy_config(folder_copy *c, void (*change)(void *ctx, struct json_t *root), void *ctx);
tn_status folder_copy_files(folder_copy *c);
/* Others: a file of tensors, and one of text. */
tn_status folder_copy_tensors(folder_copy *c, const char *name, const tn_named_tensor *tensors, size_t count,
                              int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx);
tn_status folder_copy_text(folder_copy *c, const char *name, const char *text, size_t size);

/* It gets its name, where status is TN_OK; else it is gone. Returns status, or why that failed. */
tn_status folder_copy_end(folder_copy *c, const char *out, tn_status status);

#endif
