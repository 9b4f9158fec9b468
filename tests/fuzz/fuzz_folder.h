/* A folder for targets that take one, made once for each program and removed at its end. */
#ifndef TEST_FUZZ_FOLDER_H
#define TEST_FUZZ_FOLDER_H

#include "fuzz.h"

#include <fcntl.h>
#include <limits.h>

static char fuzz_folder_path[PATH_MAX];

static void fuzz_folder_remove(void)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "kernels.json",
                                        "tokenizer.model",
                                        "data.json",
                                        "data.jsonl",
                                        "data.txt",
                                        "model.gguf",
                                        "model.safetensors",
                                        "socket",
                                        "adapter_config.json",
                                        "adapter_model.safetensors"};
    char path[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", fuzz_folder_path, names[i]);
        unlink(path);
    }
    rmdir(fuzz_folder_path);
}

/* In memory where the system has such a place: it is written thousands of times a second. */
static inline const char *fuzz_folder(void)
{
    if (!fuzz_folder_path[0]) {
        const char *top = getenv("TMPDIR");
        top = top ? top : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/fuzz-XXXXXX", top);
        if (!mkdtemp(fuzz_folder_path) || atexit(fuzz_folder_remove) != 0)
            abort();
    }
    return fuzz_folder_path;
}

/* data NULL: without such a file. */
static inline void fuzz_folder_write(const char *name, const uint8_t *data, size_t size)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    if (!data) {
        unlink(path);
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
}

#endif
