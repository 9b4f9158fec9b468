/* Writing .gguf files, version 3. */
#include "gguf_model.h"

#include "gguf_file.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

enum { U32 = 4, I32 = 5, F32 = 6, TRUTH = 7, TEXT = 8, LIST = 9 };

/* What comes first in a file and last is known when all of it is there, so each part is written for itself. */
struct gguf_model {
    gguf_file keys, tensors, data;
    uint64_t key_count, tensor_count;
    const char *without;
};

gguf_model *gguf_model_new(void)
{
    gguf_model *f = calloc(1, sizeof *f);
    ck_assert_ptr_nonnull(f);
    suite_keep(f, free);
    return f;
}

void gguf_model_without(gguf_model *f, const char *name)
{
    f->without = name;
}

/* false: it is the one that is left out. */
static bool is_wanted(gguf_model *f, const char *name)
{
    bool wanted = !f->without || strcmp(f->without, name) != 0;
    if (!wanted)
        f->without = NULL;
    return wanted;
}

static bool begin(gguf_model *f, const char *key, uint32_t type)
{
    if (!is_wanted(f, key))
        return false;
    gguf_file_string(&f->keys, key);
    gguf_file_put(&f->keys, type, 4);
    f->key_count++;
    return true;
}

void gguf_model_integer(gguf_model *f, const char *key, int64_t value)
{
    if (begin(f, key, U32))
        gguf_file_put(&f->keys, (uint32_t)value, 4);
}

void gguf_model_number(gguf_model *f, const char *key, double value)
{
    float narrow = (float)value;
    if (begin(f, key, F32))
        gguf_file_bytes(&f->keys, &narrow, sizeof narrow);
}

void gguf_model_flag(gguf_model *f, const char *key, bool value)
{
    char byte = value;
    if (begin(f, key, TRUTH))
        gguf_file_bytes(&f->keys, &byte, 1);
}

void gguf_model_text(gguf_model *f, const char *key, const char *value)
{
    if (begin(f, key, TEXT))
        gguf_file_string(&f->keys, value);
}

void gguf_model_integers(gguf_model *f, const char *key, size_t count, const int32_t *values)
{
    if (!begin(f, key, LIST))
        return;
    gguf_file_put(&f->keys, I32, 4);
    gguf_file_put(&f->keys, count, 8);
    gguf_file_bytes(&f->keys, values, count * sizeof *values);
}

void gguf_model_texts(gguf_model *f, const char *key, size_t count, const char *const *values)
{
    if (!begin(f, key, LIST))
        return;
    gguf_file_put(&f->keys, TEXT, 4);
    gguf_file_put(&f->keys, count, 8);
    for (size_t i = 0; i < count; i++)
        gguf_file_string(&f->keys, values[i]);
}

static uint32_t type_number(tn_dtype dtype)
{
    static const struct {
        tn_dtype dtype;
        uint32_t number;
    } types[] = {{TN_F32, 0}, {TN_F16, 1}, {TN_Q4_0, 2}, {TN_Q8_0, 8}, {TN_BF16, 30}, {TN_NVFP4, 40}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return types[i].number;
    ck_abort_msg("no number is known here for dtype %s", tn_dtype_name(dtype));
    return 0;
}

void gguf_model_tensor(gguf_model *f, const char *name, tn_dtype dtype, int32_t ndim, const int64_t *shape,
                       const void *data)
{
    int64_t count = 1;
    if (!is_wanted(f, name))
        return;
    gguf_file_string(&f->tensors, name);
    gguf_file_put(&f->tensors, (uint32_t)ndim, 4);
    for (int32_t i = ndim; i-- > 0; count *= shape[i])
        gguf_file_put(&f->tensors, (uint64_t)shape[i], 8);
    gguf_file_put(&f->tensors, type_number(dtype), 4);
    gguf_file_put(&f->tensors, f->data.size, 8);
    if (data)
        gguf_file_bytes(&f->data, data, tn_dtype_bytes(dtype, count));
    else
        gguf_file_data(&f->data, tn_dtype_bytes(dtype, count));
    gguf_file_data(&f->data, 0); /* up to where the next one may begin */
    f->tensor_count++;
}

void gguf_model_write(const gguf_model *f, const char *path)
{
    gguf_file *all = calloc(1, sizeof *all);
    ck_assert_ptr_nonnull(all);
    gguf_file_bytes(all, "GGUF", 4);
    gguf_file_put(all, 3, 4);
    gguf_file_put(all, f->tensor_count, 8);
    gguf_file_put(all, f->key_count, 8);
    gguf_file_bytes(all, f->keys.data, f->keys.size);
    gguf_file_bytes(all, f->tensors.data, f->tensors.size);
    gguf_file_data(all, 0);
    gguf_file_bytes(all, f->data.data, f->data.size);
    tempdir_write(path, all->data, all->size);
    free(all);
}
