/* Reading .gguf files: "GGUF", a version, the numbers of tensors and of keys, the keys with their values, what each
 * tensor is, and the tensors' data. Nothing is believed before it is checked. What is read of a header later than that
 * are numbers and the bytes of strings, whose places are kept: a file that is changed while it is mapped
 * (gguf_check says so) gives other values then, but leads nowhere else. */
#include "base/gguf.h"

#include "base/file.h"
#include "base/names.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "GGUF"
#define SMALLEST_VALUE 14  /* bytes: a length, a key of one, a type, a value of one                   */
#define SMALLEST_TENSOR 25 /* a length, a name of one, no dimensions, a type, an offset               */
#define LONGEST_KEY 65535
#define LONGEST_NAME 63
#define MAX_DIMS 4
#define DEFAULT_ALIGNMENT 32
#define SMALLEST_ALIGNMENT 8 /* so that no number of a tensor lies across its own size                */

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, VALUE_TYPES };

static const uint8_t value_sizes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

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

/* ---- types of tensors --------------------------------------------------------------------------------------- */

static const struct type_entry {
    const char *name;
    tn_dtype dtype;
} types[] = {
    [0] = {"F32", TN_F32},
    [1] = {"F16", TN_F16},
    [2] = {"Q4_0", TN_Q4_0},
    [3] = {"Q4_1", TN_Q4_1},
    [4] = {"Q4_2", TN_DTYPE_NONE},
    [5] = {"Q4_3", TN_DTYPE_NONE},
    [6] = {"Q5_0", TN_Q5_0},
    [7] = {"Q5_1", TN_Q5_1},
    [8] = {"Q8_0", TN_Q8_0},
    [9] = {"Q8_1", TN_DTYPE_NONE},
    [10] = {"Q2_K", TN_Q2_K},
    [11] = {"Q3_K", TN_Q3_K},
    [12] = {"Q4_K", TN_Q4_K},
    [13] = {"Q5_K", TN_Q5_K},
    [14] = {"Q6_K", TN_Q6_K},
    [15] = {"Q8_K", TN_DTYPE_NONE},
    [16] = {"IQ2_XXS", TN_IQ2_XXS},
    [17] = {"IQ2_XS", TN_IQ2_XS},
    [18] = {"IQ3_XXS", TN_IQ3_XXS},
    [19] = {"IQ1_S", TN_IQ1_S},
    [20] = {"IQ4_NL", TN_IQ4_NL},
    [21] = {"IQ3_S", TN_IQ3_S},
    [22] = {"IQ2_S", TN_IQ2_S},
    [23] = {"IQ4_XS", TN_IQ4_XS},
    [24] = {"I8", TN_I8},
    [25] = {"I16", TN_I16},
    [26] = {"I32", TN_I32},
    [27] = {"I64", TN_I64},
    [28] = {"F64", TN_F64},
    [29] = {"IQ1_M", TN_IQ1_M},
    [30] = {"BF16", TN_BF16},
    [31] = {"Q4_0_4_4", TN_DTYPE_NONE},
    [32] = {"Q4_0_4_8", TN_DTYPE_NONE},
    [33] = {"Q4_0_8_8", TN_DTYPE_NONE},
    [34] = {"TQ1_0", TN_TQ1_0},
    [35] = {"TQ2_0", TN_TQ2_0},
    [36] = {"IQ4_NL_4_4", TN_DTYPE_NONE},
    [37] = {"IQ4_NL_4_8", TN_DTYPE_NONE},
    [38] = {"IQ4_NL_8_8", TN_DTYPE_NONE},
    [39] = {"MXFP4", TN_MXFP4},
    [40] = {"NVFP4", TN_NVFP4},
    [41] = {"Q1_0", TN_DTYPE_NONE},
    [42] = {"Q2_0", TN_DTYPE_NONE},
};
#define TYPES (sizeof types / sizeof types[0])

/* Those that ik_llama.cpp adds. Its types with rows in turns have the number of the plain one and INTERLEAVED. */
#define FIRST_OF_IK 133
#define INTERLEAVED 200
static const char *const types_of_ik[] = {
    "Q6_0",   "IQ1_BN", "IQ2_BN", "Q8_K64", "IQ2_K",   "IQ3_K",  "IQ4_K",  "IQ5_K",  "IQ6_K",
    "IQ2_TN", NULL,     "IQ4_KS", "IQ2_KS", "IQ4_KSS", "Q8_K16", "Q8_K32", "Q8_KR8", "Q8_K128",
    "Q8_KV",  "IQ5_KS", "IQ2_KT", "IQ3_KT", "IQ4_KT",  "IQ3_KS", "IQ2_KL", "IQ1_KT",
};

/* The name that a type has in ik_llama.cpp alone; NULL: none. */
static const char *name_of_ik(uint32_t type)
{
    uint32_t plain = type > INTERLEAVED ? type - INTERLEAVED : type;
    if (plain >= FIRST_OF_IK && plain - FIRST_OF_IK < sizeof types_of_ik / sizeof types_of_ik[0])
        return types_of_ik[plain - FIRST_OF_IK];
    return type > INTERLEAVED && plain < TYPES ? types[plain].name : NULL;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

typedef struct reader {
    gguf *file;
    gguf_part *part;
    const unsigned char *data;
    size_t at;
    char what[128]; /* is being read, for messages */
    tn_error *err;
} reader;

static bool fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(reader *r, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tn_fail(r->err, TN_E_INPUT, r->part->path, "%s%s%s", r->what, *r->what ? ": " : "", text);
    return false;
}

static bool no_memory(reader *r)
{
    tn_fail(r->err, TN_E_MEMORY, r->part->path, "out of memory");
    return false;
}

static size_t left(const reader *r)
{
    return r->part->size - r->at;
}

static bool take(reader *r, void *to, size_t bytes)
{
    if (bytes > left(r))
        return fail(r, "the file ends within it; it may be truncated: fetch it again");
    memcpy(to, r->data + r->at, bytes);
    r->at += bytes;
    return true;
}

/* Goes over a string in place. */
static bool skip_string(reader *r, size_t *length)
{
    uint64_t n;
    if (!take(r, &n, sizeof n))
        return false;
    if (n > left(r))
        return fail(r, "a string of %llu bytes does not fit into the file; it may be truncated: fetch it again",
                    (unsigned long long)n);
    *length = (size_t)n;
    r->at += *length;
    return true;
}

/* A copy of a string that lives as long as the file. */
static bool take_string(reader *r, const char **text, size_t longest)
{
    size_t length;
    if (!skip_string(r, &length))
        return false;
    if (length > longest)
        return fail(r, "its name has %zu bytes, at most %zu are allowed", length, longest);
    gguf_kept *kept = malloc(sizeof *kept + length + 1);
    if (!kept)
        return no_memory(r);
    memcpy(kept->text, r->data + r->at - length, length);
    kept->text[length] = '\0';
    kept->next = r->file->kept;
    r->file->kept = kept;
    *text = kept->text;
    return text_is_clean(kept->text, length) || fail(r, "a string is not UTF-8, or has a NUL in it; correct the file");
}

/* A number of this type, as bytes of the file have it. */
static int64_t integer_of(uint32_t type, const unsigned char *bytes)
{
    int64_t value = 0;
    memcpy(&value, bytes, value_sizes[type]);
    return type == I8 ? (int8_t)value : type == I16 ? (int16_t)value : type == I32 ? (int32_t)value : value;
}

static double number_of(uint32_t type, const unsigned char *bytes)
{
    float f;
    double d;
    memcpy(&f, bytes, sizeof f);
    if (type == F32)
        return f;
    memcpy(&d, bytes, sizeof d);
    return d;
}

static bool is_integer(uint32_t type)
{
    return type <= I32 || type == U64 || type == I64;
}

static bool is_number(uint32_t type)
{
    return type == F32 || type == F64;
}

/* ---- metadata ------------------------------------------------------------------------------------------------ */

/* Notes where each string lies, and that it is one. */
static bool read_strings(reader *r, gguf_value *v)
{
    size_t begin = r->at, length;
    v->starts = malloc(((size_t)v->count + 1) * sizeof *v->starts);
    if (!v->starts)
        return no_memory(r);
    for (int64_t i = 0; i < v->count; i++) {
        v->starts[i] = r->at - begin;
        if (!skip_string(r, &length))
            return false;
        if (!text_is_clean((const char *)r->data + r->at - length, length))
            return fail(r, "string %lld is not UTF-8, or has a NUL in it; correct the file", (long long)i);
    }
    v->starts[v->count] = r->at - begin;
    return true;
}

static bool read_array(reader *r, gguf_value *v)
{
    uint64_t count;
    if (!take(r, &v->element, sizeof v->element) || !take(r, &count, sizeof count))
        return false;
    if (v->element >= VALUE_TYPES || v->element == ARRAY)
        return fail(r,
                    v->element == ARRAY ? "is an array of arrays, which are not read"
                                        : "its elements are of type %u, which is not known",
                    v->element);
    size_t each = v->element == STRING ? sizeof count : value_sizes[v->element];
    if (count > left(r) / each)
        return fail(r, "%llu elements do not fit into the file; it may be truncated: fetch it again",
                    (unsigned long long)count);
    v->count = (int64_t)count;
    v->is.elements = r->data + r->at;
    if (v->element == STRING)
        return read_strings(r, v);
    r->at += (size_t)count * each;
    return true;
}

static bool read_scalar(reader *r, gguf_value *v)
{
    unsigned char bytes[8] = {0};
    if (!take(r, bytes, value_sizes[v->type]))
        return false;
    if (is_number(v->type)) {
        v->is.number = number_of(v->type, bytes);
        return isfinite(v->is.number) || fail(r, "is no finite number; correct the file");
    }
    v->is.integer = integer_of(v->type, bytes);
    return v->type != BOOL || v->is.integer == 0 || v->is.integer == 1 ||
           fail(r, "is neither true nor false (%lld); correct the file", (long long)v->is.integer);
}

static bool read_value(reader *r, gguf_value *v)
{
    if (!take_string(r, &v->key, LONGEST_KEY))
        return false;
    text_cut(r->what, sizeof r->what, "key '%s'", v->key);
    if (!take(r, &v->type, sizeof v->type))
        return false;
    if (v->type >= VALUE_TYPES)
        return fail(r, "is of type %u, which is not known; use a newer version", v->type);
    if (v->type == STRING)
        return take_string(r, &v->is.text, SIZE_MAX);
    return v->type == ARRAY ? read_array(r, v) : read_scalar(r, v);
}

/* Room for one more of an array whose numbers of elements are not believed, but read. */
static void *grow(void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(array, more * size);
    *capacity = grown ? more : *capacity;
    return grown;
}

static bool read_values(reader *r, uint64_t count)
{
    gguf_part *p = r->part;
    size_t capacity = 0;
    for (uint64_t i = 0; i < count; i++) {
        text_cut(r->what, sizeof r->what, "key %llu", (unsigned long long)i);
        gguf_value *grown = grow(p->values, p->value_count, &capacity, sizeof *grown);
        if (!grown)
            return no_memory(r);
        p->values = grown;
        p->values[p->value_count] = (gguf_value){.key = NULL};
        if (!read_value(r, &p->values[p->value_count++]))
            return false;
    }
    if (!names_init(&p->keys, p->value_count))
        return no_memory(r);
    for (size_t i = 0; i < p->value_count; i++)
        if (!names_add(&p->keys, p->values[i].key, i)) {
            text_cut(r->what, sizeof r->what, "key '%s'", p->values[i].key);
            return fail(r, "is there twice; correct the file");
        }
    return true;
}

static const gguf_value *find(const gguf_part *part, const char *key)
{
    size_t i;
    return names_find(&part->keys, key, &i) ? &part->values[i] : NULL;
}

static bool find_integer(const gguf_part *part, const char *key, int64_t *value)
{
    const gguf_value *v = find(part, key);
    if (!v || !is_integer(v->type) || (v->type == U64 && v->is.integer < 0))
        return false;
    *value = v->is.integer;
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

static bool check_type(reader *r, uint32_t type, tn_dtype *dtype)
{
    const char *ik = name_of_ik(type);
    *dtype = type < TYPES ? types[type].dtype : TN_DTYPE_NONE;
    if (*dtype != TN_DTYPE_NONE)
        return true;
    if (type < TYPES)
        return fail(r, "is of type %s (%u), which is not read; take or make a file of another type, as Q4_K_M",
                    types[type].name, type);
    if (ik)
        return fail(
            r,
            "is of type %s%s (%u) of ik_llama.cpp, which is not read; take or make a file of another type, as Q4_K_M",
            ik, type > INTERLEAVED ? " with rows in turns" : "", type);
    return fail(r, "is of type %u, which is not known; use a newer version", type);
}

/* dims: the length of a row first, as the file has them. */
static bool check_shape(reader *r, tn_dtype dtype, uint32_t ndim, const uint64_t *dims, tn_tensor *tensor,
                        size_t *bytes)
{
    int64_t shape[MAX_DIMS] = {0}, block = tn_dtype_block_elements(dtype);
    size_t total = tn_dtype_block_bytes(dtype);
    for (uint32_t i = 0; i < ndim; i++) {
        if (dims[i] == 0 || dims[i] > INT64_MAX)
            return fail(r, "its dimension %u is %llu; correct the file", i, (unsigned long long)dims[i]);
        if (i == 0 && dims[0] % (uint64_t)block != 0)
            return fail(r, "a row has %llu values, no multiple of the %lld of a block of %s",
                        (unsigned long long)dims[0], (long long)block, tn_dtype_name(dtype));
        if (__builtin_mul_overflow(total, i == 0 ? dims[0] / (uint64_t)block : dims[i], &total) ||
            total > INT64_MAX / 256)
            return fail(r, "its shape is too large for any file");
        shape[ndim - 1 - i] = (int64_t)dims[i];
    }
    if (ndim == 0 && block != 1)
        return fail(r, "is one value of a type of blocks of %lld", (long long)block);
    *tensor = tn_tensor_dense(NULL, dtype, (int32_t)ndim, shape);
    *bytes = total;
    return true;
}

/* What the file says of one tensor; its data are found later, when it is known where they begin. */
typedef struct claim {
    uint64_t offset;
    size_t bytes;
} claim;

static bool read_tensor(reader *r, gguf_entry *e, claim *c)
{
    uint32_t ndim, type;
    uint64_t dims[MAX_DIMS];
    tn_dtype dtype;
    if (!take_string(r, &e->name, LONGEST_NAME))
        return false;
    text_cut(r->what, sizeof r->what, "tensor '%s'", e->name);
    if (!take(r, &ndim, sizeof ndim))
        return false;
    if (ndim > MAX_DIMS)
        return fail(r, "has %u dimensions, at most %d are allowed", ndim, MAX_DIMS);
    return take(r, dims, ndim * sizeof *dims) && take(r, &type, sizeof type) && take(r, &c->offset, sizeof c->offset) &&
           check_type(r, type, &dtype) && check_shape(r, dtype, ndim, dims, &e->tensor, &c->bytes);
}

/* The tensors' data follow each other in the order of the header, without overlap. */
static bool place_tensor(reader *r, size_t start, uint64_t alignment, const claim *c, uint64_t *end, gguf_entry *e)
{
    size_t room = r->part->size - start;
    text_cut(r->what, sizeof r->what, "tensor '%s'", e->name);
    if (c->offset % alignment != 0)
        return fail(r, "its data begin at %llu, no multiple of the alignment %llu", (unsigned long long)c->offset,
                    (unsigned long long)alignment);
    if (c->offset > room || c->bytes > room - c->offset)
        return fail(
            r, "%zu bytes of data at %llu do not fit into the file, which has %zu; it may be truncated: fetch it again",
            c->bytes, (unsigned long long)c->offset, room);
    if (c->offset < *end)
        return fail(r, "its data begin within those of the tensor before; correct the file");
    *end = c->offset + c->bytes;
    e->tensor.data = (void *)(uintptr_t)(r->data + start + c->offset);
    return true;
}

static bool find_alignment(reader *r, uint64_t *alignment)
{
    int64_t value = DEFAULT_ALIGNMENT;
    const gguf_value *v = find(r->part, "general.alignment");
    text_cut(r->what, sizeof r->what, "key 'general.alignment'");
    if (v && (!find_integer(r->part, v->key, &value) || value < SMALLEST_ALIGNMENT || value > UINT32_MAX ||
              (value & (value - 1)) != 0))
        return fail(r, "is no power of two from %d on", SMALLEST_ALIGNMENT);
    *alignment = (uint64_t)value;
    return true;
}

static bool place_tensors(reader *r, size_t first, const claim *claims)
{
    gguf *f = r->file;
    uint64_t alignment, end = 0;
    if (!find_alignment(r, &alignment))
        return false;
    uint64_t start = (r->at + alignment - 1) / alignment * alignment;
    if (first < f->tensor_count && start > r->part->size)
        return fail(r, "the file ends before its data; it may be truncated: fetch it again");
    for (size_t i = first; i < f->tensor_count; i++)
        if (!place_tensor(r, (size_t)start, alignment, &claims[i - first], &end, &f->tensors[i]))
            return false;
    return true;
}

static bool read_tensors(reader *r, uint64_t count)
{
    gguf *f = r->file;
    size_t first = f->tensor_count, capacity = 0;
    claim *claims = NULL;
    bool fine = true;
    for (uint64_t i = 0; i < count && fine; i++) {
        text_cut(r->what, sizeof r->what, "tensor %llu", (unsigned long long)i);
        gguf_entry *grown = grow(f->tensors, f->tensor_count, &f->tensor_capacity, sizeof *grown);
        f->tensors = grown ? grown : f->tensors;
        claim *more = grow(claims, (size_t)i, &capacity, sizeof *more);
        claims = more ? more : claims;
        fine = grown && more ? read_tensor(r, &f->tensors[f->tensor_count], &claims[i]) : no_memory(r);
        if (fine)
            f->tensors[f->tensor_count++].path = r->part->path;
    }
    fine = fine && place_tensors(r, first, claims);
    free(claims);
    return fine;
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static bool check_version(reader *r, uint32_t version)
{
    if (version == 2 || version == 3)
        return true;
    if (version != 0 && (version & 0xffff) == 0)
        return fail(r, "is a GGUF of big-endian numbers, which is not read; take one for this kind of machine");
    return fail(r, "is of version %u of the format, 2 and 3 are read; %s", version,
                version < 2 ? "take a newer file of the model" : "use a newer release");
}

static bool read_start(reader *r, uint64_t *tensors, uint64_t *values)
{
    char magic[4];
    uint32_t version;
    if (left(r) < 24 || memcmp(r->data, MAGIC, sizeof magic) != 0)
        return fail(r, "is no GGUF file; fetch it again");
    return take(r, magic, sizeof magic) && take(r, &version, sizeof version) && check_version(r, version) &&
           take(r, tensors, sizeof *tensors) && take(r, values, sizeof *values);
}

static bool read_header(reader *r)
{
    uint64_t tensors, values;
    if (!read_start(r, &tensors, &values))
        return false;
    if (values > left(r) / SMALLEST_VALUE || tensors > left(r) / SMALLEST_TENSOR)
        return fail(
            r, "claims %llu keys and %llu tensors, more than the file can hold; it may be truncated: fetch it again",
            (unsigned long long)values, (unsigned long long)tensors);
    return read_values(r, values) && read_tensors(r, tensors);
}

/* path is taken. */
static bool read_part(gguf *f, char *path, tn_error *err)
{
    gguf_part *grown = path ? realloc(f->parts, (f->part_count + 1) * sizeof *grown) : NULL;
    if (!grown) {
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        free(path);
        return false;
    }
    f->parts = grown;
    gguf_part *p = &f->parts[f->part_count++];
    *p = (gguf_part){.path = path};
    p->map = file_map(path, &p->size, err);
    if (!p->map)
        return false;
    tn_error why = TN_ERROR_INIT; /* a file that is cut meanwhile reads as zeros, which are wrong for another reason */
    reader r = {.file = f, .part = p, .data = mapped_data(p->map), .err = &why};
    bool fine = read_header(&r);
    if (mapped_check(p->map, err) != TN_OK)
        return false;
    tn_fail(err, why.code, why.where, "%s", why.message);
    return fine;
}

/* Where the number of the part stands in "NAME-00001-of-00003.gguf". NULL: it is not named so. */
static const char *split_number(const char *path)
{
    static const char form[] = "-NNNNN-of-NNNNN.gguf";
    size_t length = strlen(path), n = sizeof form - 1;
    if (length <= n)
        return NULL;
    const char *end = path + length - n;
    for (size_t i = 0; i < n; i++)
        if (form[i] == 'N' ? end[i] < '0' || end[i] > '9' : end[i] != form[i])
            return NULL;
    return end + 1;
}

static bool check_split(gguf *f, size_t index, int64_t count, tn_error *err)
{
    const gguf_part *p = &f->parts[index];
    int64_t number = -1, of = -1;
    if (find_integer(p, "split.no", &number) && find_integer(p, "split.count", &of) && number == (int64_t)index &&
        of == count)
        return true;
    if (index == 0 && number > 0)
        tn_fail(err, TN_E_INPUT, p->path, "is part %lld of %lld; give the first", (long long)number + 1,
                (long long)count);
    else
        tn_fail(err, TN_E_INPUT, p->path,
                "should be part %zu of %lld, but split.no is %lld and split.count %lld; fetch the parts again",
                index + 1, (long long)count, (long long)number, (long long)of);
    return false;
}

static bool read_others(gguf *f, const char *path, int64_t count, tn_error *err)
{
    const char *number = split_number(path);
    char digits[24];
    if (!number || count > 99999 || strncmp(number, "00001-of-", 9) != 0 || strtoll(number + 9, NULL, 10) != count) {
        tn_fail(
            err, TN_E_INPUT, path,
            "is the first of %lld parts, but is not named NAME-00001-of-%05lld.gguf, and so the others are not found; "
            "give it its name again",
            (long long)count, (long long)count);
        return false;
    }
    for (size_t i = 1; i < (size_t)count; i++) {
        char *other = strdup(path);
        snprintf(digits, sizeof digits, "%05zu", i + 1);
        if (other)
            memcpy(other + (number - path), digits, 5);
        if (!read_part(f, other, err) || !check_split(f, i, count, err))
            return false;
    }
    return true;
}

static bool read_parts(gguf *f, const char *path, tn_error *err)
{
    int64_t count = 1, total;
    if (!read_part(f, strdup(path), err))
        return false;
    if (find(&f->parts[0], "split.count") && (!find_integer(&f->parts[0], "split.count", &count) || count < 1)) {
        tn_fail(err, TN_E_INPUT, path, "key 'split.count': is no number of parts");
        return false;
    }
    if (count > 1 && (!check_split(f, 0, count, err) || !read_others(f, path, count, err)))
        return false;
    if (!find_integer(&f->parts[0], "split.tensors.count", &total) || total == (int64_t)f->tensor_count)
        return true;
    tn_fail(err, TN_E_INPUT, path,
            "key 'split.tensors.count': is %lld, but the parts hold %zu tensors; fetch them again", (long long)total,
            f->tensor_count);
    return false;
}

static bool check_names(const gguf *f, tn_error *err)
{
    names seen;
    bool fine = names_init(&seen, f->tensor_count);
    if (!fine)
        tn_fail(err, TN_E_MEMORY, f->parts[0].path, "out of memory");
    for (size_t i = 0; i < f->tensor_count && fine; i++) {
        fine = names_add(&seen, f->tensors[i].name, i);
        if (!fine)
            tn_fail(err, TN_E_INPUT, f->tensors[i].path, "tensor '%s': is there twice; correct the file",
                    f->tensors[i].name);
    }
    names_close(&seen);
    return fine;
}

gguf *gguf_open(const char *path, tn_error *err)
{
    gguf *f = calloc(1, sizeof *f);
    if (!f)
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    else if (read_parts(f, path, err) && check_names(f, err))
        return f;
    gguf_close(f);
    return NULL;
}

static void close_part(gguf_part *p)
{
    for (size_t i = 0; i < p->value_count; i++)
        free(p->values[i].starts);
    free(p->values);
    names_close(&p->keys);
    mapped_close(p->map);
    free(p->path);
}

void gguf_close(gguf *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->part_count; i++)
        close_part(&f->parts[i]);
    for (gguf_kept *k = f->kept, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    free(f->parts);
    free(f->tensors);
    free(f);
}

tn_status gguf_check(const gguf *f, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < f->part_count && status == TN_OK; i++)
        status = mapped_check(f->parts[i].map, err);
    return status;
}

bool gguf_is_named(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && !strcmp(path + length - 5, ".gguf");
}

size_t gguf_file_count(const gguf *f)
{
    return f->part_count;
}

const char *gguf_path(const gguf *f, size_t index)
{
    return index < f->part_count ? f->parts[index].path : NULL;
}

/* ---- what is there ------------------------------------------------------------------------------------------- */

gguf_kind gguf_kind_of(const gguf *f, const char *key)
{
    const gguf_value *v = find(&f->parts[0], key);
    return !v                    ? GGUF_ABSENT
           : is_integer(v->type) ? GGUF_INTEGER
           : is_number(v->type)  ? GGUF_FLOAT
           : v->type == BOOL     ? GGUF_BOOL
           : v->type == STRING   ? GGUF_STRING
                                 : GGUF_ARRAY;
}

bool gguf_integer(const gguf *f, const char *key, int64_t *value)
{
    return find_integer(&f->parts[0], key, value);
}

bool gguf_number(const gguf *f, const char *key, double *value)
{
    const gguf_value *v = find(&f->parts[0], key);
    int64_t integer;
    bool whole = find_integer(&f->parts[0], key, &integer);
    if (whole || (v && is_number(v->type)))
        *value = whole ? (double)integer : v->is.number;
    return whole || (v && is_number(v->type));
}

bool gguf_flag(const gguf *f, const char *key, bool *value)
{
    const gguf_value *v = find(&f->parts[0], key);
    if (!v || v->type != BOOL)
        return false;
    *value = v->is.integer != 0;
    return true;
}

const char *gguf_text(const gguf *f, const char *key)
{
    const gguf_value *v = find(&f->parts[0], key);
    return v && v->type == STRING ? v->is.text : NULL;
}

const char *gguf_key(const gguf *f, size_t index)
{
    return index < f->parts[0].value_count ? f->parts[0].values[index].key : NULL;
}

int64_t gguf_array(const gguf *f, const char *key)
{
    const gguf_value *v = find(&f->parts[0], key);
    return v && v->type == ARRAY ? v->count : -1;
}

/* An element that is there; NULL: none. */
static const unsigned char *element(const gguf *f, const char *key, int64_t index, const gguf_value **array)
{
    const gguf_value *v = *array = find(&f->parts[0], key);
    if (!v || v->type != ARRAY || index < 0 || index >= v->count)
        return NULL;
    return v->is.elements + (v->element == STRING ? v->starts[index] : (uint64_t)index * value_sizes[v->element]);
}

bool gguf_array_integer(const gguf *f, const char *key, int64_t index, int64_t *value)
{
    const gguf_value *v;
    const unsigned char *bytes = element(f, key, index, &v);
    if (!bytes || (!is_integer(v->element) && v->element != BOOL))
        return false;
    *value = integer_of(v->element, bytes);
    return v->element != U64 || *value >= 0;
}

bool gguf_array_number(const gguf *f, const char *key, int64_t index, double *value)
{
    const gguf_value *v;
    const unsigned char *bytes = element(f, key, index, &v);
    int64_t integer;
    bool whole = gguf_array_integer(f, key, index, &integer);
    if (whole || (bytes && is_number(v->element)))
        *value = whole ? (double)integer : number_of(v->element, bytes);
    return whole || (bytes && is_number(v->element));
}

const char *gguf_array_text(const gguf *f, const char *key, int64_t index, size_t *length)
{
    const gguf_value *v;
    const unsigned char *bytes = element(f, key, index, &v);
    if (!bytes || v->element != STRING)
        return NULL;
    *length = (size_t)(v->starts[index + 1] - v->starts[index] - sizeof(uint64_t));
    return (const char *)bytes + sizeof(uint64_t);
}

size_t gguf_tensor_count(const gguf *f)
{
    return f->tensor_count;
}

const char *gguf_tensor(const gguf *f, size_t index, tn_tensor *tensor, const char **path)
{
    const gguf_entry *e = &f->tensors[index];
    *tensor = e->tensor;
    *path = e->path;
    return e->name;
}
