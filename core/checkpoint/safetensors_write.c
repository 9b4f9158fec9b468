/* Writing a .safetensors file. */
#include "checkpoint/safetensors.h"

#include "base/json_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA_ALIGN 8 /* the header is padded so that the data start at a multiple, as the reference library does */

/* One file that is being written: beside its destination, so that renaming cannot cross file systems. */
typedef struct output {
    char *path, *temporary; /* temporary: NULL while there is no such file                           */
    int fd;
    bool unnamed; /* fd's file has no name yet                                                   */
} output;

static tn_status check_tensor(const char *path, const tn_named_tensor *named, tn_error *err)
{
    const tn_tensor *t = &named->tensor;
    if (!named->name || !strcmp(named->name, "__metadata__"))
        return tn_fail(err, TN_E_USAGE, path, "a tensor to write has no name or a reserved one");
    if (!safetensors_dtype_name(t->dtype) || t->ndim < 0 || t->ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_E_USAGE, path, "tensor '%s' has no dtype or shape that can be written", named->name);
    int64_t bytes = (int64_t)tn_dtype_size(t->dtype);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return tn_fail(err, TN_E_USAGE, path, "tensor '%s': its shape cannot be written", named->name);
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0 && bytes; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return tn_fail(err, TN_E_USAGE, path, "tensor '%s' is not dense; copy it first", named->name);
        stride *= t->shape[i];
    }
    if (bytes && !t->data)
        return tn_fail(err, TN_E_USAGE, path, "tensor '%s' has no data", named->name);
    return TN_OK;
}

static int64_t byte_count(const tn_tensor *t)
{
    return tn_tensor_count(t) * (int64_t)tn_dtype_size(t->dtype);
}

/* Large elements first, then by name: so every tensor is aligned to its type without gaps. */
static int compare_size_name(const void *a, const void *b)
{
    const tn_named_tensor *x = *(const tn_named_tensor *const *)a, *y = *(const tn_named_tensor *const *)b;
    size_t nx = tn_dtype_size(x->tensor.dtype), ny = tn_dtype_size(y->tensor.dtype);
    if (nx != ny)
        return nx > ny ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* {"dtype": .., "shape": [..], "data_offsets": [..]} or NULL when out of memory. */
static json_t *describe(const tn_tensor *t, int64_t begin)
{
    json_t *shape = json_array(), *value = json_object();
    int failed = 0;
    for (int32_t i = 0; i < t->ndim; i++)
        failed |= json_array_append_new(shape, json_integer(t->shape[i]));
    failed |= json_object_set_new(value, "dtype", json_string(safetensors_dtype_name(t->dtype)));
    failed |= json_object_set_new(value, "shape", shape);
    failed |= json_object_set_new(value, "data_offsets",
                                  json_pack("[I, I]", (json_int_t)begin, begin + (json_int_t)byte_count(t)));
    if (!failed)
        return value;
    json_decref(value);
    return NULL;
}

/* The header with its length in front and padding behind. Owned: free(). */
static char *make_header(const char *path, const tn_named_tensor **order, size_t count, size_t *size, tn_error *err)
{
    json_memory_watch();
    json_t *header = json_object();
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (json_object_get(header, order[i]->name)) {
            tn_fail(err, TN_E_USAGE, path, "tensor '%s' is given twice", order[i]->name);
            json_decref(header);
            return NULL;
        }
        if (json_object_set_new(header, order[i]->name, describe(&order[i]->tensor, at)) != 0) {
            if (json_memory_failed())
                tn_fail(err, TN_E_MEMORY, path, "out of memory for the header");
            else
                tn_fail(err, TN_E_USAGE, path, "tensor '%s': the name is not UTF-8", order[i]->name);
            json_decref(header);
            return NULL;
        }
        at += byte_count(&order[i]->tensor);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (json_memory_failed()) { /* a text that was cut short is among what comes of it                    */
        free(text);
        text = NULL;
    }
    size_t length = text ? strlen(text) : 0, padded = (length + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    char *block = text ? malloc(8 + padded) : NULL;
    if (block) {
        for (int i = 0; i < 8; i++)
            block[i] = (char)(padded >> (8 * i));
        memcpy(block + 8, text, length); // NOLINT(bugprone-not-null-terminated-result): bytes of a file
        memset(block + 8 + length, ' ', padded - length);
        *size = 8 + padded;
    } else {
        tn_fail(err, TN_E_MEMORY, path, "out of memory for the header");
    }
    free(text);
    return block;
}

/* Where the data go in the end: a link is followed, so that it stays one. Anything but a file is left alone: renaming
 * over a device would replace it. */
static tn_status resolve(const char *path, char **resolved, tn_error *err)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) == 0)
        *resolved = realpath(path, NULL);
    else
        *resolved = strdup(path);
    if (!*resolved)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    if (stat(*resolved, &st) == 0 && !S_ISREG(st.st_mode))
        return tn_fail(err, TN_E_INPUT, path, "exists and is not a regular file; choose another name");
    return TN_OK;
}

/* A name beside the file that is free: made by one of the two below, which return false with errno. */
static bool name_temporary(output *out, bool (*make)(output *))
{
    size_t size = strlen(out->path) + 48;
    out->temporary = malloc(size);
    errno = ENOMEM;
    for (int i = 0; i < 100 && out->temporary; i++) {
        snprintf(out->temporary, size, "%s.%ld.%d.tmp", out->path, (long)getpid(), i);
        if (make(out))
            return true;
        if (errno != EEXIST)
            break;
    }
    int why = errno;
    free(out->temporary);
    out->temporary = NULL; /* not ours to remove */
    errno = why;
    return false;
}

/* O_EXCL with the usual mode rather than mkstemp: the result gets the permissions that the umask grants. */
static bool make_named(output *out)
{
    out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return out->fd >= 0;
}

/* Where the file's descriptor has a name for linkat. */
static const char *descriptor_path(const output *out, char text[40])
{
    snprintf(text, 40, "/proc/self/fd/%d", out->fd);
    return text;
}

static bool link_to(const output *out, const char *name)
{
    char from[40];
    return linkat(AT_FDCWD, descriptor_path(out, from), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
}

static bool make_linked(output *out)
{
    return link_to(out, out->temporary);
}

/* A file without a name leaves nothing behind, whatever ends the process. -1 where the file system has no such files,
 * or there is no way to give it a name later. */
static int open_unnamed(const output *out)
{
    char *copy = strdup(out->path), from[40];
    int fd = copy ? open(dirname(copy), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(copy);
    if (fd >= 0 && access(descriptor_path(&(output){.fd = fd}, from), F_OK) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static tn_status output_open(output *out, const char *path, tn_error *err)
{
    tn_status status = resolve(path, &out->path, err);
    if (status != TN_OK)
        return status;
    out->fd = open_unnamed(out);
    out->unnamed = out->fd >= 0;
    if (out->unnamed || name_temporary(out, make_named))
        return TN_OK;
    return tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "cannot write: %s", strerror(errno));
}

static tn_status output_write(output *out, const void *data, size_t size, tn_error *err)
{
    for (const char *p = data; size;) {
        ssize_t n = write(out->fd, p, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tn_fail(err, TN_E_INPUT, out->path, "cannot write: %s", strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return TN_OK;
}

/* The file at its name, in the place of what is there. A link does not replace a file, a rename does; between the two
 * no signal ends the process, so that none leaves the other name. errno, or 0. */
static int put_in_place(output *out)
{
    sigset_t all, before;
    if (out->unnamed && link_to(out, out->path))
        return 0;
    if (out->unnamed && errno != EEXIST)
        return errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool done = (!out->unnamed || name_temporary(out, make_linked)) && rename(out->temporary, out->path) == 0;
    int failed = done ? 0 : errno;
    if (done) {
        free(out->temporary);
        out->temporary = NULL;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* The data reach the disk before the name does, so that a crash leaves the old file or the new one. */
static tn_status output_commit(output *out, tn_error *err)
{
    int failed = fsync(out->fd) != 0 ? errno : put_in_place(out);
    close(out->fd); /* has nothing to add: fsync said that all is there, and the name is given */
    out->fd = -1;
    if (failed)
        return tn_fail(err, TN_E_INPUT, out->path, "cannot write: %s", strerror(failed));
    int folder = open(dirname(out->path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    return TN_OK;
}

static void output_close(output *out)
{
    if (out->fd >= 0)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary);
    free(out->temporary);
    free(out->path);
}

tn_status tn_safetensors_write(const char *path, const tn_named_tensor *tensors, size_t count, tn_error *err)
{
    if (!path || !path[0])
        return tn_fail(err, TN_E_USAGE, NULL, "no path given to write tensors to");
    if (!tensors && count > 0)
        return tn_fail(err, TN_E_USAGE, path, "no tensors given, where there should be %zu", count);
    for (size_t i = 0; i < count; i++)
        if (check_tensor(path, &tensors[i], err) != TN_OK)
            return TN_E_USAGE;
    const tn_named_tensor **order = malloc((count + 1) * sizeof *order);
    if (!order)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    for (size_t i = 0; i < count; i++)
        order[i] = &tensors[i];
    qsort(order, count, sizeof *order, compare_size_name);
    output out = {.fd = -1};
    size_t size = 0;
    tn_error why = TN_ERROR_INIT;
    char *header = make_header(path, order, count, &size, &why);
    tn_status status = why.code;
    if (header)
        status = output_open(&out, path, &why);
    if (status == TN_OK)
        status = output_write(&out, header, size, &why);
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = output_write(&out, order[i]->tensor.data, (size_t)byte_count(&order[i]->tensor), &why);
    if (status == TN_OK)
        status = output_commit(&out, &why);
    output_close(&out);
    free(header);
    free(order);
    return status == TN_OK ? TN_OK : tn_fail(err, status, why.where, "%s", why.message);
}
