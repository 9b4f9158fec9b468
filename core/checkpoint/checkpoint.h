/* A checkpoint folder: config.json, and the tensors of one or many safetensors files. */
#ifndef TENON_CORE_CHECKPOINT_H
#define TENON_CORE_CHECKPOINT_H

#include <tenon/tenon.h>

/* ---- config.json (config.c; the only reader of it) ----------------------------------------
 * A config_node is an object inside the file. Values that are null count as absent. Errors name
 * file and key. */

typedef struct config_file config_file;
typedef struct config_node config_node;

config_file *config_open(const char *path, tn_error *err); /* owned */
void config_close(config_file *file);
const config_node *config_root(const config_file *file);

/* A nested object, or NULL when absent (no error) or not an object (error). Lives as long as the file. */
const config_node *config_child(const config_node *node, const char *key, tn_error *err);
bool config_has(const config_node *node, const char *key);
bool config_is_null(const config_node *node, const char *key); /* present and null              */

/* The getters leave *out alone and return TN_OK when the key is absent, so *out holds the default before the
 * call. The need_ forms make an absent key an error. A value of another JSON type, or an integer outside
 * min..max, is an error. A string lives as long as the file. */
tn_status config_i64(const config_node *node, const char *key, int64_t min, int64_t max, int64_t *out, tn_error *err);
tn_status config_need_i64(const config_node *node, const char *key, int64_t min, int64_t max, int64_t *out,
                          tn_error *err);
tn_status config_f64(const config_node *node, const char *key, double *out, tn_error *err); /* finite */
tn_status config_bool(const config_node *node, const char *key, bool *out, tn_error *err);
tn_status config_str(const config_node *node, const char *key, const char **out, tn_error *err);

/* Lists: number of elements, or -1 when the key is absent; elements by index. A scalar where a list may stand
 * (eos_token_id) counts as a list of one. */
int64_t config_list(const config_node *node, const char *key);
tn_status config_list_i64(const config_node *node, const char *key, int64_t index, int64_t *out, tn_error *err);
tn_status config_list_f64(const config_node *node, const char *key, int64_t index, double *out, tn_error *err);
tn_status config_list_str(const config_node *node, const char *key, int64_t index, const char **out, tn_error *err);

/* ---- tensors (shards.c over safetensors.c) -------------------------------------------------- */

typedef struct shards shards;

/* Opens model.safetensors, or every file that model.safetensors.index.json names, of folder. Everything in the headers
 * is checked here. A file that another process shrinks while it is mapped cannot be caught: reading it raises SIGBUS.
 * Owned. */
shards *shards_open(const char *folder, tn_error *err);
void shards_close(shards *set);

/* A view into the read-only mapping, dense; false when there is no such tensor. The format does not promise that data
 * are aligned to their type: what is not shards_aligned must be copied before its elements are read as such. */
bool shards_get(const shards *set, const char *name, tn_tensor *tensor);

static inline bool shards_aligned(const tn_tensor *tensor)
{
    size_t size = tn_dtype_size(tensor->dtype);
    return size == 0 || (uintptr_t)tensor->data % size == 0;
}

size_t shards_count(const shards *set);
const char *shards_name(const shards *set, size_t index);
int64_t shards_bytes(const shards *set);                         /* of all tensors                               */
const char *shards_file_of(const shards *set, const char *name); /* for messages; NULL if absent */
/* The first floating dtype met, in file order; TN_DTYPE_NONE when there is none. */
tn_dtype shards_dtype(const shards *set);

#endif
