/* Reading one .safetensors file: a length of eight bytes, a header in JSON, then the tensors' data without gaps.
 * Nothing of the header is believed before it is checked; afterwards every tensor is a view into the mapping. */
#include "checkpoint/safetensors.h"
#include "checkpoint/file.h"
#include "checkpoint/names.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8
#define MAX_HEADER 100000000 /* the format's own limit */
#define METADATA_KEY "__metadata__"

typedef struct entry {
    const char *name;
    uint64_t begin, end; /* of the data, from its start */
    tn_tensor tensor;
} entry;

struct tn_safetensors {
    char *path;
    unsigned char *map;
    size_t size;
    uint64_t data_start, data_size;
    char *name_text; /* all names, one after the other */
    entry *entries;
    size_t count;
    names index;
};

static const struct {
    const char *name;
    tn_dtype dtype;
} dtypes[] = {
    {"F32", TN_F32}, {"BF16", TN_BF16}, {"F16", TN_F16},         {"F64", TN_F64},
    {"I64", TN_I64}, {"I32", TN_I32},   {"I16", TN_I16},         {"I8", TN_I8},
    {"U8", TN_U8},   {"BOOL", TN_BOOL}, {"F8_E4M3", TN_F8_E4M3}, {"F8_E5M2", TN_F8_E5M2},
};

tn_dtype safetensors_parse_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(name, dtypes[i].name))
            return dtypes[i].dtype;
    return TN_DTYPE_NONE;
}

const char *safetensors_dtype_name(tn_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return NULL;
}

/* Reads dtype and shape into e->tensor and the bytes that they need into *bytes. */
static tn_status read_type(const tn_safetensors *file, const json_t *value, entry *e, uint64_t *bytes, tn_error *err)
{
    const char *dtype_name = json_string_value(json_object_get(value, "dtype"));
    if (!dtype_name)
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has no dtype", e->name);
    tn_dtype dtype = safetensors_parse_dtype(dtype_name);
    if (dtype == TN_DTYPE_NONE)
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has dtype '%s', which is not supported", e->name,
                       dtype_name);
    const json_t *shape = json_object_get(value, "shape");
    if (!json_is_array(shape))
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has no shape", e->name);
    size_t ndim = json_array_size(shape);
    if (ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has %zu dimensions, at most %d are supported", e->name,
                       ndim, TN_MAX_DIMS);
    int64_t dims[TN_MAX_DIMS] = {0}, strides = 1;
    *bytes = tn_dtype_size(dtype);
    for (size_t i = 0; i < ndim; i++) {
        const json_t *dim = json_array_get(shape, i);
        dims[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || dims[i] < 0)
            return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s': dimension %zu is not a size", e->name, i);
        /* Strides must not overflow either, where another dimension is 0. */
        if (__builtin_mul_overflow(*bytes, (uint64_t)dims[i], bytes) || *bytes > INT64_MAX ||
            __builtin_mul_overflow(strides, dims[i] ? dims[i] : 1, &strides))
            return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s': its shape is too large for any memory", e->name);
    }
    e->tensor = tn_tensor_dense(NULL, dtype, (int32_t)ndim, dims);
    return TN_OK;
}

static tn_status read_entry(const tn_safetensors *file, const json_t *value, entry *e, tn_error *err)
{
    if (!json_is_object(value))
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' is not an object in the header", e->name);
    uint64_t bytes = 0;
    tn_status status = read_type(file, value, e, &bytes, err);
    if (status != TN_OK)
        return status;
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s': data_offsets is not [begin, end]", e->name);
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (e->end - e->begin != bytes)
        return tn_fail(err, TN_E_INPUT, file->path,
                       "tensor '%s': dtype and shape need %llu bytes, data_offsets give %llu", e->name,
                       (unsigned long long)bytes, (unsigned long long)(e->end - e->begin));
    if (e->end > file->data_size)
        return tn_fail(
            err, TN_E_INPUT, file->path,
            "tensor '%s' ends at byte %llu of the data, the file has %llu; it may be truncated: fetch it again",
            e->name, (unsigned long long)e->end, (unsigned long long)file->data_size);
    e->tensor.data = file->map + file->data_start + e->begin;
    return TN_OK;
}

/* The format wants strings only. Nothing here depends on them. */
static tn_status check_metadata(const tn_safetensors *file, json_t *metadata, tn_error *err)
{
    if (!json_is_object(metadata))
        return tn_fail(err, TN_E_INPUT, file->path, "%s is not an object", METADATA_KEY);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return tn_fail(
        err, TN_E_INPUT, file->path, "%s: '%s' is not a string", METADATA_KEY, key);
    return TN_OK;
}

static int compare_begin(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Like the reference library: the tensors fill the data without overlap, hole or rest. */
static tn_status check_layout(tn_safetensors *file, tn_error *err)
{
    if (file->count)
        qsort(file->entries, file->count, sizeof *file->entries, compare_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const entry *e = &file->entries[i];
        if (e->begin < at)
            return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' overlaps tensor '%s'", e->name, e[-1].name);
        if (e->begin > at)
            return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s': %llu bytes before its data belong to no tensor",
                           e->name, (unsigned long long)(e->begin - at));
        at = e->end;
    }
    if (at != file->data_size)
        return tn_fail(err, TN_E_INPUT, file->path, "%llu bytes after the last tensor belong to no tensor",
                       (unsigned long long)(file->data_size - at));
    return TN_OK;
}

static tn_status read_entries(tn_safetensors *file, json_t *header, tn_error *err)
{
    size_t text = 0, count = json_object_size(header);
    const char *key;
    json_t *value;
    json_object_foreach(header, key, value) text += strlen(key) + 1;
    file->entries = calloc(count ? count : 1, sizeof *file->entries);
    file->name_text = malloc(text ? text : 1);
    if (!file->entries || !file->name_text || !names_init(&file->index, count))
        return tn_fail(err, TN_E_MEMORY, file->path, "out of memory for %zu tensors", count);
    char *name = file->name_text;
    json_object_foreach(header, key, value)
    {
        if (!strcmp(key, METADATA_KEY)) {
            if (check_metadata(file, value, err) != TN_OK)
                return TN_E_INPUT;
            continue;
        }
        entry *e = &file->entries[file->count];
        size_t size = strlen(key) + 1;
        e->name = memcpy(name, key, size);
        name += size;
        if (read_entry(file, value, e, err) != TN_OK)
            return TN_E_INPUT;
        file->count++;
    }
    if (check_layout(file, err) != TN_OK)
        return TN_E_INPUT;
    for (size_t i = 0; i < file->count; i++)
        names_add(&file->index, file->entries[i].name, i);
    return TN_OK;
}

static tn_status read_header(tn_safetensors *file, tn_error *err)
{
    if (file->size < LENGTH_BYTES)
        return tn_fail(err, TN_E_INPUT, file->path, "has %zu bytes, too few for a safetensors header", file->size);
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | file->map[i];
    if (length > MAX_HEADER)
        return tn_fail(err, TN_E_INPUT, file->path, "claims a header of %llu bytes, at most %d are allowed",
                       (unsigned long long)length, MAX_HEADER);
    if (length > file->size - LENGTH_BYTES)
        return tn_fail(err, TN_E_INPUT, file->path,
                       "claims a header of %llu bytes but ends after %zu; it may be truncated: fetch it again",
                       (unsigned long long)length, file->size - LENGTH_BYTES);
    file->data_start = LENGTH_BYTES + length;
    file->data_size = file->size - file->data_start;
    json_error_t at;
    json_t *header = json_loadb((const char *)file->map + LENGTH_BYTES, length, JSON_REJECT_DUPLICATES, &at);
    if (!header)
        return tn_fail(err, TN_E_INPUT, file->path, "its header is not valid JSON at byte %d: %s", at.position,
                       at.text);
    tn_status status = json_is_object(header) ? read_entries(file, header, err)
                                              : tn_fail(err, TN_E_INPUT, file->path, "its header is not a JSON object");
    json_decref(header);
    return status;
}

tn_safetensors *tn_safetensors_open(const char *path, tn_error *err)
{
    if (!path) {
        tn_fail(err, TN_E_USAGE, NULL, "no path given to a safetensors file");
        return NULL;
    }
    tn_safetensors *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        free(file);
        return NULL;
    }
    void *map = NULL;
    if (file_map(path, &map, &file->size, err) == TN_OK) {
        file->map = map;
        if (read_header(file, err) == TN_OK)
            return file;
    }
    tn_safetensors_close(file);
    return NULL;
}

void tn_safetensors_close(tn_safetensors *file)
{
    if (!file)
        return;
    if (file->map)
        file_unmap(file->map, file->size);
    names_close(&file->index);
    free(file->name_text);
    free(file->entries);
    free(file->path);
    free(file);
}

size_t tn_safetensors_count(const tn_safetensors *file)
{
    return file->count;
}

const char *tn_safetensors_name(const tn_safetensors *file, size_t index)
{
    return index < file->count ? file->entries[index].name : NULL;
}

bool tn_safetensors_get(const tn_safetensors *file, const char *name, tn_tensor *tensor)
{
    size_t i;
    if (!names_find(&file->index, name, &i))
        return false;
    *tensor = file->entries[i].tensor;
    return true;
}

void safetensors_at(const tn_safetensors *file, size_t index, const char **name, tn_tensor *tensor)
{
    *name = file->entries[index].name;
    *tensor = file->entries[index].tensor;
}

const char *safetensors_path(const tn_safetensors *file)
{
    return file->path;
}
