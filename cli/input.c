/* Reading what users name: files, standard input, folders. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Texts are held in memory; what is larger than this is a mistake. */
#define TEXT_MAX ((size_t)1 << 30)

static tn_status read_stream(int fd, const char *where, char **text, size_t *length, tn_error *err)
{
    char *buffer = NULL;
    size_t used = 0, capacity = 0;
    for (;;) {
        if (capacity - used < 2) {
            capacity = capacity ? capacity * 2 : 65536;
            char *larger = used <= TEXT_MAX ? realloc(buffer, capacity) : NULL;
            if (!larger) {
                free(buffer);
                return tn_fail(err, TN_E_MEMORY, where, "the text is too large for memory; split it");
            }
            buffer = larger;
        }
        ssize_t got = read(fd, buffer + used, capacity - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(buffer);
            return tn_fail(err, TN_E_INPUT, where, "cannot read: %s; give a readable text", strerror(errno));
        }
        if (got == 0)
            break;
        used += (size_t)got;
    }
    buffer[used] = '\0';
    *text = buffer;
    *length = used;
    return TN_OK;
}

tn_status read_all(const char *path, char **text, size_t *length, tn_error *err)
{
    if (strcmp(path, "-") == 0)
        return read_stream(STDIN_FILENO, "standard input", text, length, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tn_fail(err, TN_E_INPUT, path, "cannot open: %s; check the path", strerror(errno));
    tn_status status = read_stream(fd, path, text, length, err);
    close(fd);
    return status;
}

tn_status read_ids(const char *folder, const char *path, int64_t **ids, size_t *count, tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    tn_tokenizer *tokenizer = NULL;
    tn_status status = read_all(path, &text, &length, err);
    if (status == TN_OK && !(tokenizer = tn_tokenizer_open(folder, err)))
        status = err->code;
    if (status == TN_OK)
        status = tn_tokenizer_encode(tokenizer, text, length, false, ids, count, err);
    tn_tokenizer_free(tokenizer);
    free(text);
    return status;
}

char *absolute_folder(const char *path, tn_error *err)
{
    struct stat st;
    char *full = realpath(path, NULL);
    if (!full) {
        tn_fail(err, TN_E_KERNEL, path, "no such plugin folder: %s; check the path", strerror(errno));
    } else if (stat(full, &st) || !S_ISDIR(st.st_mode)) {
        tn_fail(err, TN_E_KERNEL, path, "is not a folder; give the folder that holds the plugins");
        free(full);
        full = NULL;
    }
    return full;
}
