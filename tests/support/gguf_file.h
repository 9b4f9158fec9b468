/* Small .gguf files for tests, written key by key; what is wrong in one is wrong because the test wants it so. Numbers
 * of keys and tensors are kept right. Keys come before tensors, and these before data. */
#ifndef TEST_GGUF_FILE_H
#define TEST_GGUF_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_FILE_MOST = 1 << 20 };

typedef struct gguf_file {
    unsigned char data[GGUF_FILE_MOST];
    size_t size;
} gguf_file;

void gguf_file_start(gguf_file *f, uint32_t version);

/* Bytes as they are, a number of so many bytes, and a string with its length. */
void gguf_file_bytes(gguf_file *f, const void *bytes, size_t count);
void gguf_file_put(gguf_file *f, uint64_t number, size_t bytes);
void gguf_file_string(gguf_file *f, const char *text);

/* A key with its type, behind which the value must follow, and whole ones. */
void gguf_file_key(gguf_file *f, const char *key, uint32_t type);
void gguf_file_text(gguf_file *f, const char *key, const char *text);
void gguf_file_u32(gguf_file *f, const char *key, uint32_t number);
void gguf_file_u16(gguf_file *f, const char *key, uint16_t number);
void gguf_file_flag(gguf_file *f, const char *key, bool flag);
/* An array's head, behind which count elements must follow. */
void gguf_file_array(gguf_file *f, const char *key, uint32_t type, uint64_t count);
void gguf_file_texts(gguf_file *f, const char *key, const char *const *texts, size_t count);
void gguf_file_i32s(gguf_file *f, const char *key, const int32_t *numbers, size_t count);
void gguf_file_floats(gguf_file *f, const char *key, const float *numbers, size_t count);

/* dims: the length of a row first. */
void gguf_file_tensor(gguf_file *f, const char *name, uint32_t ndim, const uint64_t *dims, uint32_t type,
                      uint64_t offset);
/* Zeros up to the data, and so many of these. */
void gguf_file_data(gguf_file *f, size_t bytes);

/* Writes it into a folder of its own, which is kept until the test ends. Owned: free(). */
char *gguf_file_write(const gguf_file *f);

#endif
