/* A number that tells checkpoints apart: who answers, and what a training began with. */
#include "digest.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* FNV-1a of 64 bits. */
void digest_bytes(uint64_t *hash, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++)
        *hash = (*hash ^ at[i]) * UINT64_C(0x100000001B3);
}

void digest_text(uint64_t *hash, const char *text)
{
    digest_bytes(hash, text ? text : "", strlen(text ? text : "") + 1); /* the NUL keeps texts apart             */
}

void digest_number(uint64_t *hash, int64_t number)
{
    digest_bytes(hash, &number, sizeof number);
}

/* ---- the checkpoint ------------------------------------------------------------------------------- */

/* Weights are too many to be read: of a file its size and pieces all over it, which another training changes. */
static void add_file(uint64_t *hash, int folder, const char *name)
{
    enum { PIECES = 64, PIECE = 4096 };
    char piece[PIECE];
    struct stat about;
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
        digest_text(hash, name);
        digest_number(hash, (int64_t)about.st_size);
        for (int64_t i = 0; i < PIECES; i++) {
            ssize_t n = pread(file, piece, sizeof piece, (off_t)(about.st_size / PIECES * i));
            digest_bytes(hash, piece, n > 0 ? (size_t)n : 0);
        }
    }
    close(file);
}

static int counts(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return end && (strcmp(end, ".safetensors") == 0 || strcmp(end, ".gguf") == 0 || strcmp(end, ".json") == 0 ||
                   strcmp(end, ".jinja") == 0 || strcmp(end, ".model") == 0);
}

void digest_checkpoint(uint64_t *hash, const char *path)
{
    struct dirent **entries = NULL;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        add_file(hash, AT_FDCWD, path);
        return;
    }
    int count = scandir(path, &entries, counts, alphasort);
    for (int i = 0; i < count; i++) {
        add_file(hash, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    close(folder);
}
