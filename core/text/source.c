/* Reading the files of a tokenizer whole, packed or not. */
#include "text/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* The largest file published is about 35 MB; a parsed one takes some ten times its size. The same holds for the text
 * that a packed file unpacks to. */
#define FILE_LIMIT ((size_t)256 << 20)

static char *read_plain(int fd, size_t expected, const char *path, size_t *size, tn_error *err)
{
    char *data = malloc(expected + 1);
    if (!data) {
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    size_t got = 0;
    ssize_t n = 1;
    while (got < expected && (n = read(fd, data + got, expected - got)) > 0)
        got += (size_t)n;
    if (n < 0) {
        tn_fail(err, TN_E_INPUT, path, "cannot be read: %s; check the file", strerror(errno));
        free(data);
        return NULL;
    }
    *size = got;
    return data;
}

/* Unpacks what packed holds, which may be several gzip members one after the other. */
static char *unpack(const char *packed, size_t packed_size, const char *path, size_t *size, tn_error *err)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)packed, .avail_in = (uInt)packed_size};
    if (inflateInit2(&z, 15 + 16) != Z_OK) { /* 15: any window, 16: gzip only */
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    char *data = NULL;
    size_t capacity = 0, got = 0;
    int rc = Z_OK;
    bool memory = true;
    while (rc == Z_OK && got <= FILE_LIMIT) {
        char *grown = buffer_grow(data, &capacity, got + (1 << 16), 1);
        if (!grown) {
            memory = false;
            break;
        }
        data = grown;
        z.next_out = (Bytef *)data + got;
        z.avail_out = (uInt)(capacity - got < FILE_LIMIT + 1 ? capacity - got : FILE_LIMIT + 1);
        rc = inflate(&z, Z_NO_FLUSH);
        got = (size_t)((char *)z.next_out - data);
        if (rc == Z_STREAM_END && z.avail_in > 0)
            rc = inflateReset(&z);
    }
    inflateEnd(&z);
    if (!memory || rc == Z_MEM_ERROR)
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    else if (got > FILE_LIMIT)
        tn_fail(err, TN_E_INPUT, path, "unpacks to more than %d MB; this is no tokenizer", (int)(FILE_LIMIT >> 20));
    else if (rc != Z_STREAM_END)
        tn_fail(err, TN_E_INPUT, path, "no whole gzip file; fetch it again");
    else {
        *size = got;
        return data;
    }
    free(data);
    return NULL;
}

static bool is_packed(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

char *source_read(const char *path, size_t *size, tn_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    char *data = NULL;
    if (fd < 0 || fstat(fd, &st) != 0)
        tn_fail(err, TN_E_INPUT, path, "cannot be read: %s; give a folder that holds tokenizer.json", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        tn_fail(err, TN_E_INPUT, path, "not a regular file; give a folder that holds tokenizer.json");
    else if ((size_t)st.st_size > FILE_LIMIT)
        tn_fail(err, TN_E_INPUT, path, "larger than %d MB; this is no tokenizer", (int)(FILE_LIMIT >> 20));
    else
        data = read_plain(fd, (size_t)st.st_size, path, size, err);
    if (fd >= 0)
        close(fd);
    if (!data || !is_packed(path))
        return data;
    char *text = unpack(data, *size, path, size, err);
    free(data);
    return text;
}
