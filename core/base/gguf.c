/* One checkpoint in .gguf files. Later than when it was opened, what is read of its header are numbers and the bytes of
 * strings, whose places are kept: a file that is changed while it is mapped (gguf_check says so) gives other values
 * then, but leads nowhere else. */
#include "base/gguf_read.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    bool fine = gguf_read(f, p, &why);
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
    if (gguf_find_integer(p, "split.no", &number) && gguf_find_integer(p, "split.count", &of) &&
        number == (int64_t)index && of == count)
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
    if (gguf_find(&f->parts[0], "split.count") &&
        (!gguf_find_integer(&f->parts[0], "split.count", &count) || count < 1)) {
        tn_fail(err, TN_E_INPUT, path, "key 'split.count': is no number of parts");
        return false;
    }
    if (count > 1 && (!check_split(f, 0, count, err) || !read_others(f, path, count, err)))
        return false;
    if (!gguf_find_integer(&f->parts[0], "split.tensors.count", &total) || total == (int64_t)f->tensor_count)
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

const char *gguf_data(const gguf *f, size_t index, size_t *bytes)
{
    *bytes = f->parts[index].size;
    return mapped_data(f->parts[index].map);
}

/* ---- what is there ------------------------------------------------------------------------------------------- */

gguf_kind gguf_kind_of(const gguf *f, const char *key)
{
    const gguf_value *v = gguf_find(&f->parts[0], key);
    return !v                         ? GGUF_ABSENT
           : gguf_is_integer(v->type) ? GGUF_INTEGER
           : gguf_is_number(v->type)  ? GGUF_FLOAT
           : v->type == GGUF_TRUTH    ? GGUF_BOOL
           : v->type == GGUF_TEXT     ? GGUF_STRING
                                      : GGUF_ARRAY;
}

bool gguf_integer(const gguf *f, const char *key, int64_t *value)
{
    return gguf_find_integer(&f->parts[0], key, value);
}

bool gguf_number(const gguf *f, const char *key, double *value)
{
    const gguf_value *v = gguf_find(&f->parts[0], key);
    int64_t integer;
    bool whole = gguf_find_integer(&f->parts[0], key, &integer);
    if (whole || (v && gguf_is_number(v->type)))
        *value = whole ? (double)integer : v->is.number;
    return whole || (v && gguf_is_number(v->type));
}

bool gguf_flag(const gguf *f, const char *key, bool *value)
{
    const gguf_value *v = gguf_find(&f->parts[0], key);
    if (!v || v->type != GGUF_TRUTH)
        return false;
    *value = v->is.integer != 0;
    return true;
}

const char *gguf_text(const gguf *f, const char *key)
{
    const gguf_value *v = gguf_find(&f->parts[0], key);
    return v && v->type == GGUF_TEXT ? v->is.text : NULL;
}

const char *gguf_key(const gguf *f, size_t index)
{
    return index < f->parts[0].value_count ? f->parts[0].values[index].key : NULL;
}

int64_t gguf_array(const gguf *f, const char *key)
{
    const gguf_value *v = gguf_find(&f->parts[0], key);
    return v && v->type == GGUF_LIST ? v->count : -1;
}

/* An element that is there; NULL: none. */
static const unsigned char *element(const gguf *f, const char *key, int64_t index, const gguf_value **array)
{
    const gguf_value *v = *array = gguf_find(&f->parts[0], key);
    if (!v || v->type != GGUF_LIST || index < 0 || index >= v->count)
        return NULL;
    return v->is.elements +
           (v->element == GGUF_TEXT ? v->starts[index] : (uint64_t)index * gguf_value_size(v->element));
}

bool gguf_array_integer(const gguf *f, const char *key, int64_t index, int64_t *value)
{
    const gguf_value *v;
    const unsigned char *bytes = element(f, key, index, &v);
    if (!bytes || (!gguf_is_integer(v->element) && v->element != GGUF_TRUTH))
        return false;
    *value = gguf_integer_of(v->element, bytes);
    return v->element != GGUF_U64 || *value >= 0;
}

bool gguf_array_number(const gguf *f, const char *key, int64_t index, double *value)
{
    const gguf_value *v;
    const unsigned char *bytes = element(f, key, index, &v);
    int64_t integer;
    bool whole = gguf_array_integer(f, key, index, &integer);
    if (whole || (bytes && gguf_is_number(v->element)))
        *value = whole ? (double)integer : gguf_number_of(v->element, bytes);
    return whole || (bytes && gguf_is_number(v->element));
}

const char *gguf_array_text(const gguf *f, const char *key, int64_t index, size_t *length)
{
    const gguf_value *v;
    const unsigned char *bytes = element(f, key, index, &v);
    if (!bytes || v->element != GGUF_TEXT)
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
