/* Inside core: one checkpoint in a .gguf file, or in several that were split: the container alone. gguf.c */
#ifndef TENON_CORE_GGUF_H
#define TENON_CORE_GGUF_H

#include <tenon/tensor.h>

#include <stdbool.h>

typedef struct gguf gguf;

/* Does the path end in ".gguf"? */
bool gguf_is_named(const char *path);

/* Maps path and, where it is the first of several ("NAME-00001-of-00003.gguf"), the others beside it. Everything in the
 * headers is checked against the files' sizes here: version 2 or 3, counts, lengths, UTF-8 without NUL, duplicate keys
 * and names, types, dimensions, alignment, offsets. TN_E_INPUT names file and key or tensor. Owned. */
gguf *gguf_open(const char *path, tn_error *err);
void gguf_close(gguf *file);

/* TN_E_INPUT where one of the files was cut short or changed since it was opened (base/mapped.h). */
tn_status gguf_check(const gguf *file, tn_error *err);

size_t gguf_file_count(const gguf *file);
const char *gguf_path(const gguf *file, size_t index);
const char *gguf_data(const gguf *file, size_t index, size_t *bytes); /* all of the mapping                */

/* ---- metadata. Keys that are absent, or of another type, are found by none of these. ------------------------- */

typedef enum gguf_kind { GGUF_ABSENT, GGUF_INTEGER, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY } gguf_kind;

gguf_kind gguf_kind_of(const gguf *file, const char *key);
bool gguf_integer(const gguf *file, const char *key, int64_t *value); /* any integer type that fits int64  */
bool gguf_number(const gguf *file, const char *key, double *value);   /* a float or an integer             */
bool gguf_flag(const gguf *file, const char *key, bool *value);
const char *gguf_text(const gguf *file, const char *key); /* with a NUL behind it; lives as long as the file; or NULL */

/* Keys in the order of the file; NULL behind the last. */
const char *gguf_key(const gguf *file, size_t index);

/* Elements of an array, -1 where there is none; each by index, false or NULL where it is of another type. A bool is an
 * integer here; a text has no NUL behind it. */
int64_t gguf_array(const gguf *file, const char *key);
bool gguf_array_integer(const gguf *file, const char *key, int64_t index, int64_t *value);
bool gguf_array_number(const gguf *file, const char *key, int64_t index, double *value);
const char *gguf_array_text(const gguf *file, const char *key, int64_t index, size_t *length);

/* ---- tensors, in the order of the files. Shapes are turned round: the length of a row comes last. ------------ */

size_t gguf_tensor_count(const gguf *file);
const char *gguf_tensor(const gguf *file, size_t index, tn_tensor *tensor, const char **path);

#endif
