/* Reading the files of a tokenizer whole, packed or not. */
#include "base/file.h"
#include "text/buffer.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* The largest file published is about 35 MB; a parsed one takes about twice its size, at worst thirty times. The same
 * holds for the text that a packed file unpacks to. */
#define FILE_LIMIT ((size_t)256 << 20)

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
        size_t room = capacity - got - 1; /* one stays for the NUL */
        z.avail_out = (uInt)(room < FILE_LIMIT + 1 ? room : FILE_LIMIT + 1);
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
        data[got] = '\0';
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
    char *data = NULL;
    if (file_read(path, FILE_LIMIT, &data, size, err) != TN_OK || !is_packed(path))
        return data;
    char *text = unpack(data, *size, path, size, err);
    free(data);
    return text;
}
