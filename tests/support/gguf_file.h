/* Small .gguf files, made value by value. Failures of the system abort the test. */
#ifndef TEST_GGUF_FILE_H
#define TEST_GGUF_FILE_H

#include <stdbool.h>
#include <tenon/tensor.h>

typedef struct gguf_file gguf_file;

/* An empty one, until the test ends. */
gguf_file *gguf_file_new(void);

/* A key or tensor of that name is left out when it is added next; borrowed. NULL: none. */
void gguf_file_without(gguf_file *f, const char *name);

/* Keys: u32, f32, bool, string, and arrays of i32 and strings. */
void gguf_file_integer(gguf_file *f, const char *key, int64_t value);
void gguf_file_number(gguf_file *f, const char *key, double value);
void gguf_file_flag(gguf_file *f, const char *key, bool value);
void gguf_file_text(gguf_file *f, const char *key, const char *value);
void gguf_file_integers(gguf_file *f, const char *key, size_t count, const int32_t *values);
void gguf_file_texts(gguf_file *f, const char *key, size_t count, const char *const *values);

/* A tensor, with the length of a row last in its shape; data NULL: zeros. */
void gguf_file_tensor(gguf_file *f, const char *name, tn_dtype dtype, int32_t ndim, const int64_t *shape,
                      const void *data);

void gguf_file_write(const gguf_file *f, const char *path);

#endif
