/* Decoding foreign files in a child process. */
#include "device/decoding.h"

#include "base/file.h"
#include "device/confine.h"
#include "device/guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const double SECONDS = 30;

typedef struct child {
    const decoding_kind *kind;
    decoding *shared;
} child;

void decoding_fail(decoding *d, const char *format, ...)
{
    va_list list;
    if (d->what[0])
        return;
    va_start(list, format);
    vsnprintf(d->what, sizeof d->what, format, list);
    va_end(list);
    for (char *c = d->what; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
            *c = '?';
}

static int read_here(void *ctx)
{
    const child *c = ctx;
    const struct rlimit none = {0, 0};
    guard_close_from(STDERR_FILENO + 1);
    guard_limit_memory();
    setrlimit(RLIMIT_NOFILE, &none);
    confine_enter(CONFINE_TRIAL); /* where there is libseccomp                                             */
    c->kind->read(c->shared);
    return 0;
}

static tn_status take(const decoding_kind *kind, const decoding *d, const char *path, void *ctx, tn_error *err)
{
    char what[sizeof d->what];
    memcpy(what, d->what, sizeof what);
    what[sizeof what - 1] = '\0';
    return what[0] ? tn_fail(err, TN_E_INPUT, path, "%s", what) : kind->take(d, path, ctx, err);
}

static tn_status decode(const decoding_kind *kind, const char *path, const char *file, size_t size, void *ctx,
                        tn_error *err)
{
    char reason[200];
    void *shared = mmap(NULL, kind->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, path, "no memory for what is in it; free some");
    child c = {kind, shared};
    c.shared->file = (const uint8_t *)file;
    c.shared->size = size;
    if (kind->begin)
        kind->begin(c.shared, ctx);
    tn_status status = guard_run(read_here, &c, SECONDS, reason, sizeof reason);
    if (status == TN_E_KERNEL)
        status = tn_fail(err, TN_E_INPUT, path, "could not be decoded: what reads it %s", reason);
    else if (status != TN_OK)
        tn_fail(err, status, path, "could not be decoded: %s", reason);
    if (status == TN_OK)
        status = take(kind, shared, path, ctx, err);
    munmap(shared, kind->bytes);
    return status;
}

tn_status decoding_run(const decoding_kind *kind, const char *path, void *ctx, tn_error *err)
{
    size_t size;
    char *file;
    tn_status status = file_read(path, kind->most, &file, &size, err);
    if (status != TN_OK)
        return status;
    status = decode(kind, path, file, size, ctx, err);
    free(file);
    return status;
}
