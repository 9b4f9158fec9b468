/* Harnesses for fuzzers: each takes any bytes as a file, and must neither crash nor contradict itself.
 * test_fuzz_corpus.c replays what is in tests/data/fuzz; `make fuzz` searches for more with clang's libFuzzer. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int fuzz_safetensors(const uint8_t *data, size_t size);
int fuzz_config(const uint8_t *data, size_t size);

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

#endif
