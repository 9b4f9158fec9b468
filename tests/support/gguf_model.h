/* Small .gguf files, made value by value. Failures of the system abort the test. */
#ifndef TEST_GGUF_MODEL_H
#define TEST_GGUF_MODEL_H

#include <stdbool.h>
#include <tenon/tensor.h>

typedef struct gguf_model gguf_model;

/* An empty one, until the test ends. */
gguf_model *gguf_model_new(void);

/* A key or tensor of that name is left out when it is added next; borrowed. NULL: none. */
void gguf_model_without(gguf_model *f, const char *name);

/* Keys: u32, f32, bool, string, and arrays of i32 and strings. */
void gguf_model_integer(gguf_model *f, const char *key, int64_t value);
void gguf_model_number(gguf_model *f, const char *key, double value);
void gguf_model_flag(gguf_model *f, const char *key, bool value);
void gguf_model_text(gguf_model *f, const char *key, const char *value);
void gguf_model_integers(gguf_model *f, const char *key, size_t count, const int32_t *values);
void gguf_model_texts(gguf_model *f, const char *key, size_t count, const char *const *values);

/* A tensor, with the length of a row last in its shape; data NULL: zeros. */
void gguf_model_tensor(gguf_model *f, const char *name, tn_dtype dtype, int32_t ndim, const int64_t *shape,
                       const void *data);

void gguf_model_write(const gguf_model *f, const char *path);

#endif
