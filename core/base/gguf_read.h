/* Inside core/base: what gguf.c has of each file, and gguf_read.c fills. */
#ifndef TENON_CORE_GGUF_READ_H
#define TENON_CORE_GGUF_READ_H

#include "base/gguf.h"
#include "base/mapped.h"
#include "base/names.h"

enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_TRUTH,
    GGUF_TEXT,
    GGUF_LIST,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

typedef struct gguf_value {
    const char *key;
    uint32_t type;
    uint32_t element; /* of an array: its elements' type                                               */
    int64_t count;
    union {
        int64_t integer; /* and bool */
        double number;
        const char *text;
        const unsigned char *elements; /* of an array, in the mapping                                  */
    } is;
    uint64_t *starts; /* of an array of strings, from elements: the length before each; behind the last */
} gguf_value;

typedef struct gguf_entry {
    const char *name, *path;
    tn_tensor tensor;
} gguf_entry;

typedef struct gguf_part {
    char *path;
    mapped *map;
    size_t size;
    gguf_value *values;
    size_t value_count;
    names keys;
} gguf_part;

/* A text with a NUL behind it, which the file has not. */
typedef struct gguf_kept {
    struct gguf_kept *next;
    char text[];
} gguf_kept;

struct gguf {
    gguf_part *parts;
    size_t part_count;
    gguf_entry *tensors;
    size_t tensor_count, tensor_capacity;
    gguf_kept *kept;
};

/* Checks and reads the header of a part that is mapped: its values, and its tensors behind those of the file. */
bool gguf_read(gguf *file, gguf_part *part, tn_error *err);

/* NULL: not there. */
const gguf_value *gguf_find(const gguf_part *part, const char *key);
bool gguf_find_integer(const gguf_part *part, const char *key, int64_t *value);

bool gguf_is_integer(uint32_t type);
bool gguf_is_number(uint32_t type);

/* Bytes of an element; 0: a text or a list. */
size_t gguf_value_size(uint32_t type);

/* A number of this type, as bytes of the file have it. */
int64_t gguf_integer_of(uint32_t type, const unsigned char *bytes);
double gguf_number_of(uint32_t type, const unsigned char *bytes);

/* The type of a tensor by its number there, and its name with the number; TN_DTYPE_NONE: it is not read. */
tn_dtype gguf_type(uint32_t type, char *name, size_t size);

#endif
