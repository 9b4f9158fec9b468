/* Writing .gguf files, version 3. */
#include "gguf_model.h"

#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

enum { U32 = 4, I32 = 5, F32 = 6, TRUTH = 7, TEXT = 8, LIST = 9, ALIGN = 32 };

typedef struct buffer {
    char *bytes;
    size_t size;
} buffer;

struct gguf_model {
    buffer keys, tensors, data;
    uint64_t key_count, tensor_count;
    const char *without;
};

static void put(buffer *b, const void *bytes, size_t size)
{
    b->bytes = realloc(b->bytes, b->size + size + 1);
    ck_assert_ptr_nonnull(b->bytes);
    if (bytes)
        memcpy(b->bytes + b->size, bytes, size);
    else
        memset(b->bytes + b->size, 0, size);
    b->size += size;
}

static void put_u32(buffer *b, uint32_t value)
{
    put(b, &value, sizeof value);
}

static void put_u64(buffer *b, uint64_t value)
{
    put(b, &value, sizeof value);
}

static void put_text(buffer *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void pad(buffer *b)
{
    put(b, NULL, (ALIGN - b->size % ALIGN) % ALIGN);
}

static void release(void *file)
{
    gguf_model *f = file;
    free(f->keys.bytes);
    free(f->tensors.bytes);
    free(f->data.bytes);
    free(f);
}

gguf_model *gguf_model_new(void)
{
    gguf_model *f = calloc(1, sizeof *f);
    ck_assert_ptr_nonnull(f);
    suite_keep(f, release);
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
    put_text(&f->keys, key);
    put_u32(&f->keys, type);
    f->key_count++;
    return true;
}

void gguf_model_integer(gguf_model *f, const char *key, int64_t value)
{
    if (begin(f, key, U32))
        put_u32(&f->keys, (uint32_t)value);
}

void gguf_model_number(gguf_model *f, const char *key, double value)
{
    float narrow = (float)value;
    if (begin(f, key, F32))
        put(&f->keys, &narrow, sizeof narrow);
}

void gguf_model_flag(gguf_model *f, const char *key, bool value)
{
    char byte = value;
    if (begin(f, key, TRUTH))
        put(&f->keys, &byte, 1);
}

void gguf_model_text(gguf_model *f, const char *key, const char *value)
{
    if (begin(f, key, TEXT))
        put_text(&f->keys, value);
}

void gguf_model_integers(gguf_model *f, const char *key, size_t count, const int32_t *values)
{
    if (!begin(f, key, LIST))
        return;
    put_u32(&f->keys, I32);
    put_u64(&f->keys, count);
    put(&f->keys, values, count * sizeof *values);
}

void gguf_model_texts(gguf_model *f, const char *key, size_t count, const char *const *values)
{
    if (!begin(f, key, LIST))
        return;
    put_u32(&f->keys, TEXT);
    put_u64(&f->keys, count);
    for (size_t i = 0; i < count; i++)
        put_text(&f->keys, values[i]);
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
    put_text(&f->tensors, name);
    put_u32(&f->tensors, (uint32_t)ndim);
    for (int32_t i = ndim; i-- > 0; count *= shape[i])
        put_u64(&f->tensors, (uint64_t)shape[i]);
    put_u32(&f->tensors, type_number(dtype));
    put_u64(&f->tensors, f->data.size);
    put(&f->data, data, tn_dtype_bytes(dtype, count));
    pad(&f->data);
    f->tensor_count++;
}

void gguf_model_write(const gguf_model *f, const char *path)
{
    buffer all = {0};
    put(&all, "GGUF", 4);
    put_u32(&all, 3);
    put_u64(&all, f->tensor_count);
    put_u64(&all, f->key_count);
    put(&all, f->keys.bytes, f->keys.size);
    put(&all, f->tensors.bytes, f->tensors.size);
    pad(&all);
    put(&all, f->data.bytes, f->data.size);
    tempdir_write(path, all.bytes, all.size);
    free(all.bytes);
}
