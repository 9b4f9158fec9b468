/* Reading the header of a .gguf file: "GGUF", a version, the numbers of tensors and of keys, the keys with their
 * values, and what each tensor is; the tensors' data follow. Nothing is believed before it is checked. */
#include "base/gguf_read.h"

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
    uint64_t n = 0;
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
    size_t length = 0;
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
int64_t gguf_integer_of(uint32_t type, const unsigned char *bytes)
{
    int64_t value = 0;
    memcpy(&value, bytes, gguf_value_size(type));
    return type == GGUF_I8    ? (int8_t)value
           : type == GGUF_I16 ? (int16_t)value
           : type == GGUF_I32 ? (int32_t)value
                              : value;
}

double gguf_number_of(uint32_t type, const unsigned char *bytes)
{
    float f;
    double d;
    memcpy(&f, bytes, sizeof f);
    if (type == GGUF_F32)
        return f;
    memcpy(&d, bytes, sizeof d);
    return d;
}

bool gguf_is_integer(uint32_t type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

bool gguf_is_number(uint32_t type)
{
    return type == GGUF_F32 || type == GGUF_F64;
}

/* ---- metadata ------------------------------------------------------------------------------------------------ */

/* Notes where each string lies, and that it is one. */
static bool read_strings(reader *r, gguf_value *v)
{
    size_t begin = r->at, length = 0;
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
    uint64_t count = 0;
    if (!take(r, &v->element, sizeof v->element) || !take(r, &count, sizeof count))
        return false;
    if (v->element >= GGUF_TYPES || v->element == GGUF_LIST)
        return fail(r,
                    v->element == GGUF_LIST ? "is an array of arrays, which are not read"
                                            : "its elements are of type %u, which is not known",
                    v->element);
    size_t each = v->element == GGUF_TEXT ? sizeof count : gguf_value_size(v->element);
    if (count > left(r) / each)
        return fail(r, "%llu elements do not fit into the file; it may be truncated: fetch it again",
                    (unsigned long long)count);
    v->count = (int64_t)count;
    v->is.elements = r->data + r->at;
    if (v->element == GGUF_TEXT)
        return read_strings(r, v);
    r->at += (size_t)count * each;
    return true;
}

static bool read_scalar(reader *r, gguf_value *v)
{
    unsigned char bytes[8] = {0};
    if (!take(r, bytes, gguf_value_size(v->type)))
        return false;
    if (gguf_is_number(v->type)) {
        v->is.number = gguf_number_of(v->type, bytes);
        return isfinite(v->is.number) || fail(r, "is no finite number; correct the file");
    }
    v->is.integer = gguf_integer_of(v->type, bytes);
    return v->type != GGUF_TRUTH || v->is.integer == 0 || v->is.integer == 1 ||
           fail(r, "is neither true nor false (%lld); correct the file", (long long)v->is.integer);
}

static bool read_value(reader *r, gguf_value *v)
{
    if (!take_string(r, &v->key, LONGEST_KEY))
        return false;
    text_cut(r->what, sizeof r->what, "key '%s'", v->key);
    if (!take(r, &v->type, sizeof v->type))
        return false;
    if (v->type >= GGUF_TYPES)
        return fail(r, "is of type %u, which is not known; use a newer version", v->type);
    if (v->type == GGUF_TEXT)
        return take_string(r, &v->is.text, SIZE_MAX);
    return v->type == GGUF_LIST ? read_array(r, v) : read_scalar(r, v);
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

const gguf_value *gguf_find(const gguf_part *part, const char *key)
{
    size_t i;
    return names_find(&part->keys, key, &i) ? &part->values[i] : NULL;
}

bool gguf_find_integer(const gguf_part *part, const char *key, int64_t *value)
{
    const gguf_value *v = gguf_find(part, key);
    if (!v || !gguf_is_integer(v->type) || (v->type == GGUF_U64 && v->is.integer < 0))
        return false;
    *value = v->is.integer;
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

static bool check_type(reader *r, uint32_t type, tn_dtype *dtype)
{
    char name[64];
    *dtype = gguf_type(type, name, sizeof name);
    return *dtype != TN_DTYPE_NONE ||
           fail(r, "is of type %s, which is not read; take or make a file of another type, as Q4_K_M", name);
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
    uint32_t ndim = 0, type = 0;
    uint64_t dims[MAX_DIMS] = {0};
    tn_dtype dtype = TN_DTYPE_NONE;
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
    const gguf_value *v = gguf_find(r->part, "general.alignment");
    text_cut(r->what, sizeof r->what, "key 'general.alignment'");
    if (v && (!gguf_find_integer(r->part, v->key, &value) || value < SMALLEST_ALIGNMENT || value > UINT32_MAX ||
              (value & (value - 1)) != 0))
        return fail(r, "is no power of two from %d on", SMALLEST_ALIGNMENT);
    *alignment = (uint64_t)value;
    return true;
}

static bool place_tensors(reader *r, size_t first, const claim *claims)
{
    gguf *f = r->file;
    uint64_t alignment = 0, end = 0;
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
    uint32_t version = 0;
    if (left(r) < 24 || memcmp(r->data, MAGIC, sizeof magic) != 0)
        return fail(r, "is no GGUF file; fetch it again");
    return take(r, magic, sizeof magic) && take(r, &version, sizeof version) && check_version(r, version) &&
           take(r, tensors, sizeof *tensors) && take(r, values, sizeof *values);
}

static bool read_header(reader *r)
{
    uint64_t tensors = 0, values = 0;
    if (!read_start(r, &tensors, &values))
        return false;
    if (values > left(r) / SMALLEST_VALUE || tensors > left(r) / SMALLEST_TENSOR)
        return fail(
            r, "claims %llu keys and %llu tensors, more than the file can hold; it may be truncated: fetch it again",
            (unsigned long long)values, (unsigned long long)tensors);
    return read_values(r, values) && read_tensors(r, tensors);
}

size_t gguf_value_size(uint32_t type)
{
    static const uint8_t sizes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

bool gguf_read(gguf *file, gguf_part *part, tn_error *err)
{
    return read_header(&(reader){.file = file, .part = part, .data = mapped_data(part->map), .err = err});
}
