/* Harnesses for fuzzers: each takes any bytes as a file, and must neither crash nor contradict itself.
 * test_fuzz_corpus.c replays what is in tests/data/fuzz; `make fuzz` searches for more with clang's libFuzzer. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenon/error.h>
#include <unistd.h>

int fuzz_safetensors(const uint8_t *data, size_t size);
int fuzz_quantised(const uint8_t *data, size_t size);
int fuzz_config(const uint8_t *data, size_t size);
int fuzz_graph(const uint8_t *data, size_t size);
int fuzz_adapter(const uint8_t *data, size_t size);
int fuzz_borrow(const uint8_t *data, size_t size);
int fuzz_tokenizer(const uint8_t *data, size_t size);
int fuzz_sentencepiece(const uint8_t *data, size_t size);
int fuzz_gguf(const uint8_t *data, size_t size);
int fuzz_template(const uint8_t *data, size_t size);
int fuzz_kernels(const uint8_t *data, size_t size);
int fuzz_elfnote(const uint8_t *data, size_t size);
int fuzz_schema(const uint8_t *data, size_t size);
int fuzz_image(const uint8_t *data, size_t size);
int fuzz_audio(const uint8_t *data, size_t size);
int fuzz_replay(const uint8_t *data, size_t size);
int fuzz_toolcall(const uint8_t *data, size_t size);
int fuzz_dataset(const uint8_t *data, size_t size);
int fuzz_lock(const uint8_t *data, size_t size);
int fuzz_http(const uint8_t *data, size_t size);

/* The bytes as a file without a name, since fuzzers run thousands of times a second: writes its path to path[64] and
 * returns a descriptor to close. */
static inline int fuzz_file(const uint8_t *data, size_t size, char *path)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* What must hold whatever the bytes are. */
static inline void fuzz_require(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "fuzz: %s\n", what);
        abort();
    }
}

/* A result and an error that say the same, in one line. */
static inline void fuzz_agree(int result, const tn_error *err)
{
    fuzz_require((result != 0) == (err->code == TN_OK), "the result and the error disagree");
    fuzz_require(result || (err->message[0] && !strchr(err->message, '\n')), "the error is not one line");
}

/* Inputs of two parts have a NUL between them. The bytes of the first; *rest is the second, NULL without one. */
static inline size_t fuzz_parts(const uint8_t *data, size_t size, const uint8_t **rest, size_t *rest_size)
{
    const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
    size_t first = end ? (size_t)(end - data) : size;
    *rest = end ? end + 1 : NULL;
    *rest_size = end ? size - first - 1 : 0;
    return first;
}

/* libFuzzer's entry, which AFL++ knows too; one for each program. */
#ifdef TN_FUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
#define FUZZ_ENTRY(function)                                                                                           \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)                                                       \
    {                                                                                                                  \
        return function(data, size);                                                                                   \
    }
#else
#define FUZZ_ENTRY(function)
#endif

#endif
