/* A hash of what determines answers. */
#include "fingerprint.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- FNV-1a of 64 bits ---------------------------------------------------------------------------- */

static void add_bytes(uint64_t *hash, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++)
        *hash = (*hash ^ at[i]) * UINT64_C(0x100000001B3);
}

static void add_text(uint64_t *hash, const char *text)
{
    add_bytes(hash, text ? text : "", strlen(text ? text : "") + 1); /* the NUL keeps texts apart                */
}

static void add_number(uint64_t *hash, int64_t number)
{
    add_bytes(hash, &number, sizeof number);
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
        add_text(hash, name);
        add_number(hash, (int64_t)about.st_size);
        for (int64_t i = 0; i < PIECES; i++) {
            ssize_t n = pread(file, piece, sizeof piece, (off_t)(about.st_size / PIECES * i));
            add_bytes(hash, piece, n > 0 ? (size_t)n : 0);
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

static void add_checkpoint(uint64_t *hash, const char *path)
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

void fingerprint_make(api *a, const char *folder, const char *kernels, bool same_bits)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    tn_report *report = tn_model_report(a->model, NULL);
    add_text(&hash, tn_version());
    add_checkpoint(&hash, folder);
    add_text(&hash, kernels);
    add_text(&hash, report ? report->summary : NULL);
    add_number(&hash, same_bits);
    add_text(&hash, tn_dtype_name(a->info.dtype));
    add_text(&hash, a->info.device);
    add_number(&hash, (int64_t)tn_cpu_flags());
    tn_report_free(report);
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%016llx", (unsigned long long)hash);
}
