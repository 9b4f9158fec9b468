/* A checkpoint folder: config.json, and the tensors of one or many safetensors files. */
#ifndef TENON_CORE_CHECKPOINT_H
#define TENON_CORE_CHECKPOINT_H

#include <tenon/tenon.h>

/* ---- config.json (config.c; the only reader of it) ------------------------------------------ */

typedef struct config_file config_file;
typedef struct config_node config_node;

config_file *config_open(const char *path, tn_error *err); /* owned */

/* The same of a file that holds a list: its elements have the keys "0", "1", ... Owned. */
config_file *config_open_list(const char *path, tn_error *err);

/* The same of a JSON object, which is taken; path is the file that messages name. Owned. */
struct json_t;
config_file *config_open_object(const char *path, struct json_t *object, tn_error *err);

/* The same of a text in place of the file. Owned. */
config_file *config_open_text(const char *path, const char *text, tn_error *err);

/* What a config.json of that .gguf would say (gguf_config.c). Owned. */
struct gguf;
config_file *gguf_config_read(const struct gguf *file, tn_error *err);

void config_close(config_file *file);

/* A hash (base/hash.h) of what it says, in whatever order and layout; 0: out of memory. */
uint64_t config_hash(const config_file *file);

/* An object inside the file, and where the first error goes: after it (*status is then not TN_OK) every function below
 * finds nothing, so that reading is one call a line and status is looked at once. It may be the status of what is built
 * meanwhile. Errors name file and key. Values that are null count as absent. */
typedef struct config_reader {
    const config_node *node;
    tn_status *status;
    tn_error *err;
} config_reader;

config_reader config_root(const config_file *file, tn_status *status, tn_error *err);

/* A nested object. One that is absent has no keys; something else is an error, after which it is the same as c. */
config_reader config_child(const config_reader *c, const char *key);
/* A nested list as an object whose keys are its numbers: "0", "1", ... */
config_reader config_child_list(const config_reader *c, const char *key);
/* What it is nested in; of the file's own object, itself. */
config_reader config_around(const config_reader *c);
bool config_has(const config_reader *c, const char *key);
bool config_is_object(const config_reader *c, const char *key);
bool config_is_null(const config_reader *c, const char *key); /* present and null               */
/* The key under either of its names: other where the file has that alone, or key is NULL. */
const char *config_either(const config_reader *c, const char *key, const char *other);

/* The key of that number, in the file's order; NULL: there are no more. */
const char *config_key(const config_reader *c, int64_t index);

/* The value of key, or fallback when it is absent. A value of another JSON type, or an integer outside min..max, is an
 * error; so is absence in the need_ form. A string lives as long as the file. */
int64_t config_i64(const config_reader *c, const char *key, int64_t fallback, int64_t min, int64_t max);
int64_t config_need_i64(const config_reader *c, const char *key, int64_t min, int64_t max);
double config_f64(const config_reader *c, const char *key, double fallback); /* finite: Infinity is 1.79e308 */
bool config_bool(const config_reader *c, const char *key, bool fallback);
const char *config_str(const config_reader *c, const char *key, const char *fallback);
bool config_is_str(const config_reader *c, const char *key); /* is it there, and a string?            */

/* Does key say more than nothing: is it there, and neither null, false, empty nor this number? text receives its value
 * as JSON, cut short where it is long. Never an error. */
bool config_says(const config_reader *c, const char *key, double nothing, char *text, size_t size);

/* Strings of which each means a number; a name NULL ends the list. A string that is none of them is an error that lists
 * them. */
typedef struct config_word {
    const char *name;
    int32_t value;
} config_word;
int32_t config_choice(const config_reader *c, const char *key, const char *fallback, const config_word *words);

/* Lists: number of elements, or -1 when the key is absent; elements by index; whether a number is among them. A scalar
 * where a list may stand (eos_token_id) counts as a list of one. */
int64_t config_list(const config_reader *c, const char *key);
int64_t config_list_i64(const config_reader *c, const char *key, int64_t index);
int64_t config_list_pair(const config_reader *c, const char *key, int64_t index, int axis); /* [[a, b], ...] */
double config_list_f64(const config_reader *c, const char *key, int64_t index);
const char *config_list_str(const config_reader *c, const char *key, int64_t index);
int32_t config_list_choice(const config_reader *c, const char *key, int64_t index, const config_word *words);
bool config_list_holds(const config_reader *c, const char *key, int64_t number);

/* An object that may have only these keys (NULL ends them): another one, which would have no effect, is an error. */
void config_only(const config_reader *c, const char *const *keys);

/* The architecture's own objection to a value: "key 'KEY' TEXT". */
void config_fail(const config_reader *c, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- tensors (shards.c over safetensors.c) -------------------------------------------------- */

typedef struct shards shards;

/* Opens model.safetensors, or every file that model.safetensors.index.json names, of folder. Everything in the headers
 * is checked here. Owned. */
shards *shards_open(const char *folder, tn_error *err);

/* What the values of a quantised tensor need beside its codes, as TN_ROLE_SCALE_OF and its like in meaning.h say;
 * TN_DTYPE_NONE: it is not there. */
typedef struct shards_parts {
    tn_tensor scale, zero, group;
} shards_parts;

/* Those of a tensor; nothing where it has none. */
shards_parts shards_parts_of(const shards *set, const char *name);

/* Adds a tensor that is made of others, or of another kind of file: tensor and parts are views into the set's files or
 * into memory of shards_keep. name is copied, file (for messages) borrowed. A name that is there already, and not
 * hidden, is TN_E_INPUT. */
tn_status shards_add(shards *set, const char *name, const char *file, const tn_tensor *tensor,
                     const shards_parts *parts, tn_error *err);

/* The tensor of that name is there no more. */
void shards_hide(shards *set, const char *name);

/* Memory that lives as long as the set; NULL: out of memory. */
void *shards_keep(shards *set, size_t bytes);
int64_t shards_kept_bytes(const shards *set);

/* A loop over 0..count-1 in pieces, as tn_parallel_for, which belongs to those above. */
typedef void (*shards_loop)(int64_t count, int64_t grain,
                            void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread), void *ctx);

/* Where the folder is quantised (root, its config.json, has a quantization_config, or an older file beside it says so),
 * its tensors become those of the plain one: codes with their parts, under the plain names. What lies in an order that
 * no row can be read from is re-laid, and its pages of the file are given back. Afterwards nothing of it is unchecked.
 * A set of another kind stays as it is. quantised.c */
tn_status quantised_resolve(shards *set, const config_reader *root, shards_loop loop, tn_error *err);

/* Its folder, or the first of its files. */
const char *shards_folder(const shards *set);

/* An empty set for shards_add; folder: what it is called in messages. gguf, which is taken: its file, or NULL. Owned.
 */
shards *shards_empty(const char *folder, struct gguf *file, tn_error *err);

/* The same with all tensors of the file, by Hugging Face's names (gguf_names.c). */
shards *gguf_names_open(struct gguf *file, tn_error *err);
void shards_close(shards *set);

/* A view into the read-only mapping, dense; false when there is no such tensor. The format does not promise that data
 * are aligned to their type: what is not shards_aligned must be copied before its elements are read as such. */
bool shards_get(const shards *set, const char *name, tn_tensor *tensor);

static inline bool shards_aligned(const tn_tensor *tensor)
{
    size_t size = tn_dtype_size(tensor->dtype);
    return size == 0 || (uintptr_t)tensor->data % size == 0;
}

/* Remembers that it is a parameter of the model, which has it at data: what is left in the end is not. dtype: of the
 * file's elements in their order there; TN_DTYPE_NONE: they are in another. */
void shards_take(shards *set, const char *name, const void *data, tn_dtype dtype);
bool shards_taken(const shards *set, size_t index);
/* That data; NULL: it was not taken, or as another dtype than this. TN_DTYPE_NONE: of any. */
const void *shards_used(const shards *set, const char *name, tn_dtype dtype);

/* A set without files, which finds out what a model is made of: it has what was promised, with zeros that take no
 * memory. dtype: that of the files that it stands for. Owned. */
shards *shards_record(tn_dtype dtype, tn_error *err);
bool shards_is_record(const shards *set);

/* Adds a tensor to such a set; path: what the tree calls it. tensor->dtype, ndim and shape are given, its data are
 * filled in. false: the set is one of files, or there is no room. */
bool shards_promise(shards *set, const char *name, const char *path, tn_tensor *tensor);
const char *shards_path(const shards *set, size_t index); /* NULL in a set of files                      */

size_t shards_count(const shards *set);
const char *shards_name(const shards *set, size_t index);
/* TN_E_INPUT, naming the file, where one was cut short or changed in place since it was opened (base/mapped.h). */
tn_status shards_check(const shards *set, tn_error *err);

/* One of its files, by number; false: there are no more. bytes: of its mapping at data. read: of each piece of
 * LOCKFILE_PIECE (base/lockfile.h) whether shards_mark was told of it; NULL: of all, since nobody watches. */
typedef struct shards_file {
    const char *path, *data;
    int64_t bytes;
    bool *read;
} shards_file;
bool shards_file_at(const shards *set, size_t index, shards_file *file);

/* From now on it is noted which pieces of the files are read: what every reader needs (headers, small tensors) at once,
 * the rest by shards_mark. Where tensors were re-laid before, that is all of them. false: out of memory. */
bool shards_watch(shards *set);
/* These bytes of a file will be read. What lies in no file, or where nobody watches: nothing. */
void shards_mark(shards *set, const void *data, size_t bytes);

/* A hash of which files these are, as the system tells it (device, number, size, time of the last change); 0: it does
 * not, or it is a record. */
uint64_t shards_identity(const shards *set);
int64_t shards_bytes(const shards *set);                         /* of all tensors                               */
const char *shards_file_of(const shards *set, const char *name); /* for messages; NULL if absent */
/* bf16 where a tensor is quantised, else the first floating dtype met, in file order; TN_DTYPE_NONE when there is none.
 */
tn_dtype shards_dtype(const shards *set);

#endif
