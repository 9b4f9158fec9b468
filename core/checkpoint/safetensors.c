/* Reading one .safetensors file: a length of eight bytes, a header in JSON, then the tensors' data without gaps.
 * Nothing of the header is believed before it is checked; afterwards every tensor is a view into the mapping. */
#include "checkpoint/safetensors.h"
#include "base/file.h"
#include "base/structs.h"
#include "base/names.h"
#include "checkpoint/scan.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8
#define MAX_HEADER 100000000 /* the format's own limit */
#define METADATA_KEY "__metadata__"
#define MAX_DTYPE_NAME 32

typedef struct entry {
    const char *name;
    uint64_t begin, end; /* of the data, from its start */
    tn_tensor tensor;
} entry;

struct tn_safetensors {
    char *path;
    mapped *mapping;
    unsigned char *map;
    size_t size;
    uint64_t data_start, data_size;
    char *name_text, *name_end; /* all names, one after the other */
    entry *entries;
    size_t count;
    names index;
};

static const struct {
    const char *name;
    tn_dtype dtype;
} dtypes[] = {
    {"F32", TN_F32},         {"BF16", TN_BF16},       {"F16", TN_F16},         {"F64", TN_F64}, {"I64", TN_I64},
    {"I32", TN_I32},         {"I16", TN_I16},         {"I8", TN_I8},           {"U8", TN_U8},   {"BOOL", TN_BOOL},
    {"F8_E4M3", TN_F8_E4M3}, {"F8_E5M2", TN_F8_E5M2}, {"F8_E8M0", TN_F8_E8M0},
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

/* What the header says of one tensor, unchecked. */
typedef struct claim {
    char dtype[MAX_DTYPE_NAME];
    bool has_dtype, has_shape, has_offsets;
    size_t ndim;
    int64_t dims[TN_MAX_DIMS];
    int64_t begin, end;
} claim;

static tn_status fail_json(const tn_safetensors *file, const scan *s, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, file->path, "its header is not valid JSON at byte %zu", (size_t)(s->at - s->text));
}

static tn_status fail_field(const tn_safetensors *file, const char *name, const char *what, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s': %s", name, what);
}

/* The number of elements, max + 1 when there are more; *ok is false when it is no list of numbers. */
static size_t read_list(scan *s, int64_t *out, size_t max, bool *ok)
{
    size_t n = 0;
    *ok = scan_mark(s, '[');
    if (!*ok || scan_mark(s, ']'))
        return 0;
    do {
        int64_t number;
        *ok = scan_i64(s, &number) && number >= 0;
        if (*ok && n < max)
            out[n] = number;
        n += n <= max;
    } while (*ok && scan_mark(s, ','));
    *ok = *ok && scan_mark(s, ']');
    return n;
}

/* One member of a tensor's object; those that the format does not know are skipped. */
static tn_status read_field(const tn_safetensors *file, scan *s, const char *name, claim *c, tn_error *err)
{
    char key[MAX_DTYPE_NAME];
    bool ok;
    const char *start = s->at;
    if (!scan_string(s, key, sizeof key)) { /* too long to be known */
        s->at = start;
        key[0] = '\0';
        if (scan_peek(s) != '"' || !scan_value(s))
            return fail_json(file, s, err);
    }
    if (!scan_mark(s, ':'))
        return fail_json(file, s, err);
    if (!strcmp(key, "dtype")) {
        if (c->has_dtype || !scan_string(s, c->dtype, sizeof c->dtype))
            return fail_field(file, name, "its dtype is not one short string", err);
        c->has_dtype = true;
    } else if (!strcmp(key, "shape")) {
        c->ndim = read_list(s, c->dims, TN_MAX_DIMS, &ok);
        if (c->has_shape || !ok)
            return fail_field(file, name, "its shape is not one list of sizes", err);
        c->has_shape = true;
    } else if (!strcmp(key, "data_offsets")) {
        int64_t pair[2];
        if (c->has_offsets || read_list(s, pair, 2, &ok) != 2 || !ok || pair[1] < pair[0])
            return fail_field(file, name, "its data_offsets are not one [begin, end]", err);
        c->has_offsets = true;
        c->begin = pair[0];
        c->end = pair[1];
    } else if (!scan_value(s)) {
        return fail_json(file, s, err);
    }
    return TN_OK;
}

/* Makes a view of what is claimed, if all of it is true. */
static tn_status check_claim(const tn_safetensors *file, const claim *c, entry *e, tn_error *err)
{
    if (!c->has_dtype || !c->has_shape || !c->has_offsets)
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has no %s", e->name,
                       !c->has_dtype   ? "dtype"
                       : !c->has_shape ? "shape"
                                       : "data_offsets");
    tn_dtype dtype = safetensors_parse_dtype(c->dtype);
    if (dtype == TN_DTYPE_NONE)
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has dtype '%s', which is not supported", e->name,
                       c->dtype);
    if (c->ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_E_INPUT, file->path, "tensor '%s' has more than the %d dimensions that are supported",
                       e->name, TN_MAX_DIMS);
    /* Strides must not overflow either, where another dimension is 0. */
    int64_t bytes = (int64_t)tn_dtype_size(dtype), stride = bytes;
    for (size_t i = 0; i < c->ndim; i++)
        if (__builtin_mul_overflow(bytes, c->dims[i], &bytes) ||
            __builtin_mul_overflow(stride, c->dims[i] ? c->dims[i] : 1, &stride))
            return fail_field(file, e->name, "its shape is too large for any memory", err);
    if (c->end - c->begin != bytes)
        return tn_fail(err, TN_E_INPUT, file->path,
                       "tensor '%s': dtype and shape need %lld bytes, data_offsets give %lld", e->name,
                       (long long)bytes, (long long)(c->end - c->begin));
    if ((uint64_t)c->end > file->data_size)
        return tn_fail(
            err, TN_E_INPUT, file->path,
            "tensor '%s' ends at byte %lld of the data, the file has %llu; it may be truncated: fetch it again",
            e->name, (long long)c->end, (unsigned long long)file->data_size);
    e->begin = (uint64_t)c->begin;
    e->end = (uint64_t)c->end;
    e->tensor = tn_tensor_dense(file->map + file->data_start + c->begin, dtype, (int32_t)c->ndim, c->dims);
    return TN_OK;
}

static tn_status read_entry(const tn_safetensors *file, scan *s, entry *e, tn_error *err)
{
    claim c = {.ndim = 0};
    if (!scan_mark(s, '{'))
        return fail_field(file, e->name, "is not an object in the header", err);
    if (!scan_mark(s, '}')) {
        do {
            tn_status status = read_field(file, s, e->name, &c, err);
            if (status != TN_OK)
                return status;
        } while (scan_mark(s, ','));
        if (!scan_mark(s, '}'))
            return fail_json(file, s, err);
    }
    return check_claim(file, &c, e, err);
}

/* The format wants an object of strings. Nothing here depends on them. */
static tn_status skip_metadata(const tn_safetensors *file, scan *s, tn_error *err)
{
    const char *start = s->at;
    bool ok = scan_mark(s, '{');
    if (ok && !scan_mark(s, '}')) {
        do
            ok = scan_peek(s) == '"' && scan_value(s) && scan_mark(s, ':') && scan_peek(s) == '"' && scan_value(s);
        while (ok && scan_mark(s, ','));
        ok = ok && scan_mark(s, '}');
    }
    if (ok)
        return TN_OK;
    return tn_fail(err, TN_E_INPUT, file->path, "%s, at byte %zu of the header, is not an object of strings",
                   METADATA_KEY, (size_t)(start - s->text));
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

/* Room for one more. */
static bool grow(tn_safetensors *file, size_t *capacity)
{
    if (file->count < *capacity)
        return true;
    size_t more = *capacity ? 2 * *capacity : 64;
    entry *entries = realloc(file->entries, more * sizeof *entries);
    if (!entries)
        return false;
    file->entries = entries;
    *capacity = more;
    return true;
}

static tn_status read_member(tn_safetensors *file, scan *s, char **name, size_t *capacity, tn_error *err)
{
    if (!scan_string(s, *name, (size_t)(file->name_end - *name)) || !scan_mark(s, ':'))
        return fail_json(file, s, err);
    if (!strcmp(*name, METADATA_KEY))
        return skip_metadata(file, s, err);
    if (!grow(file, capacity))
        return tn_fail(err, TN_E_MEMORY, file->path, "out of memory for %zu tensors", file->count);
    entry *e = &file->entries[file->count];
    *e = (entry){.name = *name};
    tn_status status = read_entry(file, s, e, err);
    *name += strlen(*name) + 1;
    file->count += status == TN_OK;
    return status;
}

static tn_status read_members(tn_safetensors *file, scan *s, tn_error *err)
{
    char *name = file->name_text;
    size_t capacity = 0;
    if (!scan_mark(s, '{'))
        return tn_fail(err, TN_E_INPUT, file->path, "its header is not a JSON object");
    if (!scan_mark(s, '}')) {
        do {
            tn_status status = read_member(file, s, &name, &capacity, err);
            if (status != TN_OK)
                return status;
        } while (scan_mark(s, ','));
        if (!scan_mark(s, '}'))
            return fail_json(file, s, err);
    }
    return scan_end(s) ? TN_OK : fail_json(file, s, err);
}

static tn_status index_names(tn_safetensors *file, tn_error *err)
{
    if (!names_init(&file->index, file->count))
        return tn_fail(err, TN_E_MEMORY, file->path, "out of memory for %zu tensors", file->count);
    for (size_t i = 0; i < file->count; i++)
        if (!names_add(&file->index, file->entries[i].name, i))
            return fail_field(file, file->entries[i].name, "is in the header twice", err);
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
        return tn_fail(err, TN_E_INPUT, file->path,
                       "claims a header of %llu bytes, at most %d are allowed; is it a .safetensors file?",
                       (unsigned long long)length, MAX_HEADER);
    if (length > file->size - LENGTH_BYTES)
        return tn_fail(err, TN_E_INPUT, file->path,
                       "claims a header of %llu bytes but ends after %zu; it may be truncated: fetch it again",
                       (unsigned long long)length, file->size - LENGTH_BYTES);
    file->data_start = LENGTH_BYTES + length;
    file->data_size = file->size - file->data_start;
    /* A name is never longer than its text in quotes, so all names fit. */
    file->name_text = malloc(length + 1);
    if (!file->name_text)
        return tn_fail(err, TN_E_MEMORY, file->path, "out of memory for a header of %llu bytes",
                       (unsigned long long)length);
    file->name_end = file->name_text + length + 1;
    const char *text = (const char *)file->map + LENGTH_BYTES;
    scan s = {text, text, text + length};
    tn_status status = read_members(file, &s, err);
    if (status == TN_OK)
        status = check_layout(file, err);
    return status == TN_OK ? index_names(file, err) : status;
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
    file->mapping = file_map(path, &file->size, err);
    if (file->mapping) {
        file->map = (unsigned char *)(uintptr_t)mapped_data(file->mapping);
        tn_error why = TN_ERROR_INIT;
        tn_status status = read_header(file, &why);
        if (tn_safetensors_check(file, err) == TN_OK && status == TN_OK)
            return file;
        tn_fail(err, why.code, why.where, "%s", why.message);
    }
    tn_safetensors_close(file);
    return NULL;
}

void tn_safetensors_close(tn_safetensors *file)
{
    if (!file)
        return;
    mapped_close(file->mapping);
    names_close(&file->index);
    free(file->name_text);
    free(file->entries);
    free(file->path);
    free(file);
}

tn_status tn_safetensors_check(const tn_safetensors *file, tn_error *err)
{
    return file ? mapped_check(file->mapping, err) : structs_missing("file", err);
}

size_t tn_safetensors_count(const tn_safetensors *file)
{
    return file ? file->count : 0;
}

const char *tn_safetensors_name(const tn_safetensors *file, size_t index)
{
    return file && index < file->count ? file->entries[index].name : NULL;
}

bool tn_safetensors_get(const tn_safetensors *file, const char *name, tn_tensor *tensor)
{
    size_t i;
    if (!file || !name || !tensor || !names_find(&file->index, name, &i))
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

const char *safetensors_data(const tn_safetensors *file, size_t *bytes)
{
    *bytes = file->size;
    return (const char *)file->map;
}
