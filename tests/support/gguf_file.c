/* Small .gguf files for tests. */
#include "gguf_file.h"

#include "tempdir.h"

#include <stdlib.h>
#include <string.h>

void gguf_file_bytes(gguf_file *f, const void *bytes, size_t count)
{
    if (count > sizeof f->data - f->size)
        abort();
    if (count)
        memcpy(f->data + f->size, bytes, count);
    f->size += count;
}

void gguf_file_put(gguf_file *f, uint64_t number, size_t bytes)
{
    gguf_file_bytes(f, &number, bytes);
}

void gguf_file_string(gguf_file *f, const char *text)
{
    gguf_file_put(f, strlen(text), 8);
    gguf_file_bytes(f, text, strlen(text));
}

void gguf_file_start(gguf_file *f, uint32_t version)
{
    f->size = 0;
    gguf_file_bytes(f, "GGUF", 4);
    gguf_file_put(f, version, 4);
    gguf_file_put(f, 0, 8);
    gguf_file_put(f, 0, 8);
}

/* One more tensor (at 8) or key (at 16). */
static void count(gguf_file *f, size_t at)
{
    uint64_t number;
    memcpy(&number, f->data + at, sizeof number);
    number++;
    memcpy(f->data + at, &number, sizeof number);
}

void gguf_file_key(gguf_file *f, const char *key, uint32_t type)
{
    count(f, 16);
    gguf_file_string(f, key);
    gguf_file_put(f, type, 4);
}

void gguf_file_text(gguf_file *f, const char *key, const char *text)
{
    gguf_file_key(f, key, 8);
    gguf_file_string(f, text);
}

void gguf_file_u32(gguf_file *f, const char *key, uint32_t number)
{
    gguf_file_key(f, key, 4);
    gguf_file_put(f, number, 4);
}

void gguf_file_u16(gguf_file *f, const char *key, uint16_t number)
{
    gguf_file_key(f, key, 2);
    gguf_file_put(f, number, 2);
}

void gguf_file_flag(gguf_file *f, const char *key, bool flag)
{
    gguf_file_key(f, key, 7);
    gguf_file_put(f, flag, 1);
}

void gguf_file_array(gguf_file *f, const char *key, uint32_t type, uint64_t elements)
{
    gguf_file_key(f, key, 9);
    gguf_file_put(f, type, 4);
    gguf_file_put(f, elements, 8);
}

void gguf_file_texts(gguf_file *f, const char *key, const char *const *texts, size_t elements)
{
    gguf_file_array(f, key, 8, elements);
    for (size_t i = 0; i < elements; i++)
        gguf_file_string(f, texts[i]);
}

void gguf_file_i32s(gguf_file *f, const char *key, const int32_t *numbers, size_t elements)
{
    gguf_file_array(f, key, 5, elements);
    gguf_file_bytes(f, numbers, elements * sizeof *numbers);
}

void gguf_file_floats(gguf_file *f, const char *key, const float *numbers, size_t elements)
{
    gguf_file_array(f, key, 6, elements);
    gguf_file_bytes(f, numbers, elements * sizeof *numbers);
}

void gguf_file_tensor(gguf_file *f, const char *name, uint32_t ndim, const uint64_t *dims, uint32_t type,
                      uint64_t offset)
{
    count(f, 8);
    gguf_file_string(f, name);
    gguf_file_put(f, ndim, 4);
    gguf_file_bytes(f, dims, ndim * sizeof *dims);
    gguf_file_put(f, type, 4);
    gguf_file_put(f, offset, 8);
}

void gguf_file_data(gguf_file *f, size_t bytes)
{
    while (f->size % 32)
        gguf_file_put(f, 0, 1);
    for (size_t i = 0; i < bytes; i++)
        gguf_file_put(f, 0, 1);
}

char *gguf_file_write(const gguf_file *f)
{
    char *path = tempdir_path(tempdir_new(), "model.gguf");
    tempdir_write(path, f->data, f->size);
    return path;
}
