/* Reading and writing what users name: files, standard input, folders. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Texts are held in memory; what is larger than this is a mistake. */
#define TEXT_MAX ((size_t)1 << 30)

/* The longest contexts that models have are some ten million tokens. */
#define PROMPT_MAX ((size_t)64 << 20)

static tn_status read_stream(int fd, const char *where, size_t limit, char **text, size_t *length, tn_error *err)
{
    char *buffer = NULL;
    size_t used = 0, capacity = 0;
    for (;;) {
        if (capacity - used < 2) {
            capacity = capacity ? capacity * 2 : 65536;
            char *larger = realloc(buffer, capacity);
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
        if (used > limit) {
            free(buffer);
            return tn_fail(err, TN_E_INPUT, where, "has more than %zu MiB, which no such text has; split it",
                           limit >> 20);
        }
    }
    buffer[used] = '\0';
    *text = buffer;
    *length = used;
    return TN_OK;
}

static tn_status read_limited(const char *path, size_t limit, char **text, size_t *length, tn_error *err)
{
    if (strcmp(path, "-") == 0)
        return read_stream(STDIN_FILENO, "standard input", limit, text, length, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tn_fail(err, TN_E_INPUT, path, "cannot open: %s; check the path", strerror(errno));
    tn_status status = read_stream(fd, path, limit, text, length, err);
    close(fd);
    return status;
}

tn_status read_all(const char *path, char **text, size_t *length, tn_error *err)
{
    return read_limited(path, TEXT_MAX, text, length, err);
}

tn_status read_prompt_text(const char *path, char **text, size_t *length, tn_error *err)
{
    tn_status status = read_limited(path, PROMPT_MAX, text, length, err);
    if (status == TN_OK && *length && (*text)[*length - 1] == '\n')
        *length -= 1 + (*length > 1 && (*text)[*length - 2] == '\r');
    return status;
}

/* ---- writing --------------------------------------------------------------------------------------- */

/* Writes all of it and closes. errno, or 0. */
static int write_whole(int fd, const char *text, size_t length)
{
    int why = 0;
    while (length > 0 && !why) {
        ssize_t n = write(fd, text, length);
        if (n == 0 || (n < 0 && errno != EINTR))
            why = n == 0 ? EIO : errno;
        if (n > 0) {
            text += n;
            length -= (size_t)n;
        }
    }
    return close(fd) != 0 && !why ? errno : why;
}

tn_status replace_file(const char *path, const char *text, size_t length, tn_error *err)
{
    struct stat st;
    sigset_t all, before;
    char *beside = NULL;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return tn_fail(err, TN_E_INPUT, path, "exists and is not a regular file; choose another file");
    if (asprintf(&beside, "%s.XXXXXX", path) < 0)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory; close other programs");
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int fd = mkstemp(beside), why = fd < 0 ? errno : write_whole(fd, text, length);
    if (!why && rename(beside, path) != 0)
        why = errno;
    if (why && fd >= 0)
        unlink(beside);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(beside);
    return why ? tn_fail(err, TN_E_INPUT, path, "cannot be written: %s; choose another file", strerror(why)) : TN_OK;
}

/* ---- folders --------------------------------------------------------------------------------------- */

static bool holds(const char *folder, const char *name)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && access(path, F_OK) == 0;
}

bool is_gguf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".gguf") == 0;
}

bool holds_tokenizer(const char *folder)
{
    if (is_gguf(folder))
        return true;
    return holds(folder, "tokenizer.json") || holds(folder, "tokenizer.json.gz") || holds(folder, "tokenizer.model");
}

tn_status text_ids(const char *folder, const char *text, size_t length, int64_t **ids, size_t *count, tn_error *err)
{
    tn_tokenizer *tokenizer = tn_tokenizer_open(folder, err);
    tn_status status = tokenizer ? tn_tokenizer_encode(tokenizer, text, length, false, ids, count, err) : err->code;
    tn_tokenizer_free(tokenizer);
    return status;
}

tn_status read_ids(const char *folder, const char *path, int64_t **ids, size_t *count, tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    tn_status status = read_all(path, &text, &length, err);
    if (status == TN_OK)
        status = text_ids(folder, text, length, ids, count, err);
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
