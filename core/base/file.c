/* Regular files, read or mapped whole. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Does it hold what a clone without git-lfs has in place of a large file? */
static bool is_lfs_pointer(int fd, size_t size)
{
    static const char start[] = "version https://git-lfs.github.com/spec/v1\n";
    char read[sizeof start - 1];
    return size < 1024 && pread(fd, read, sizeof read, 0) == (ssize_t)sizeof read && !memcmp(read, start, sizeof read);
}

/* Opening without blocking keeps a FIFO in a model's place from stopping the program. */
static int open_regular(const char *path, size_t *size, tn_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        tn_fail(err, TN_E_INPUT, path, "cannot open: %s; check the path, and whether the download is complete",
                strerror(errno));
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) != 0)
        tn_fail(err, TN_E_INPUT, path, "cannot read its size: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        tn_fail(err, TN_E_INPUT, path, "is not a regular file; give one");
    else if (is_lfs_pointer(fd, (size_t)st.st_size)) {
        const char *slash = strrchr(path, '/');
        tn_fail(err, TN_E_INPUT, path, "is a git-lfs pointer, not the file itself; run `git lfs pull` in %.*s",
                slash ? (int)(slash - path) : 1, slash ? path : ".");
    } else {
        *size = (size_t)st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

mapped *file_map(const char *path, size_t *size, tn_error *err)
{
    int fd = open_regular(path, size, err);
    mapped *map = NULL;
    if (fd < 0)
        return NULL;
    if (*size == 0)
        tn_fail(err, TN_E_INPUT, path, "is empty");
    else
        map = mapped_open(fd, path, *size, err);
    close(fd);
    return map;
}

/* Fills data with exactly size bytes. */
static bool read_fully(int fd, char *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

tn_status file_read(const char *path, size_t limit, char **data, size_t *size, tn_error *err)
{
    int fd = open_regular(path, size, err);
    if (fd < 0)
        return TN_E_INPUT;
    tn_status status = TN_OK;
    char *buffer = NULL;
    if (*size > limit)
        status =
            tn_fail(err, TN_E_INPUT, path, "has %zu bytes, at most %zu are sensible for such a file", *size, limit);
    else if (!(buffer = malloc(*size + 1)))
        status = tn_fail(err, TN_E_MEMORY, path, "out of memory for %zu bytes", *size);
    else if (!read_fully(fd, buffer, *size))
        status = tn_fail(err, TN_E_INPUT, path, "cannot read: %s", strerror(errno));
    close(fd);
    if (status != TN_OK) {
        free(buffer);
        return status;
    }
    buffer[*size] = '\0';
    *data = buffer;
    return TN_OK;
}

char *file_join(const char *folder, const char *name)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    size_t size = n + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%.*s%s%s", (int)n, folder, n == 1 && folder[0] == '/' ? "" : "/", name);
    return path;
}
