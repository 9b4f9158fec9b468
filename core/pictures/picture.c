/* A picture's file decoded in a child process, which has nothing open, can open nothing and has bounds of memory and
 * time: what breaks a library breaks the child. */
#include "pictures/pictures.h"

#include "base/file.h"
#include "device/confine.h"
#include "device/guard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const double SECONDS = 30;
static const size_t MAX_FILE = (size_t)256 << 20;

static const struct {
    const char *magic;
    size_t at, length;
    void (*decode)(picture_job *job);
} formats[] = {
    {"\x89PNG\r\n\x1a\n", 0, 8, pictures_png}, {"\xff\xd8\xff", 0, 3, pictures_jpeg}, {"WEBP", 8, 4, pictures_webp}};
enum { FORMATS = sizeof formats / sizeof *formats };

static int find_format(const uint8_t *file, size_t size)
{
    for (int i = 0; i < FORMATS; i++)
        if (size >= formats[i].at + formats[i].length &&
            !memcmp(file + formats[i].at, formats[i].magic, formats[i].length))
            return i;
    return -1;
}

bool pictures_read(picture_job *job)
{
    int format = find_format(job->file, job->size);
    if (format >= 0)
        formats[format].decode(job);
    return format >= 0;
}

static int decode_here(void *ctx)
{
    picture_job *job = ctx;
    const struct rlimit none = {0, 0};
    guard_close_from(STDERR_FILENO + 1);
    guard_limit_memory();
    setrlimit(RLIMIT_NOFILE, &none);
    confine_enter(CONFINE_TRIAL); /* where there is libseccomp                                             */
    job->orientation = 1;
    return !pictures_read(job);
}

/* What the child wrote is anything, if it was broken. */
static tn_status take(const char *path, const picture_job *job, picture *out, tn_error *err)
{
    char what[sizeof job->what];
    memcpy(what, job->what, sizeof what);
    what[sizeof what - 1] = '\0';
    int64_t height = job->height, width = job->width;
    if (what[0])
        return tn_fail(err, TN_E_INPUT, path, "%s", what);
    if (height < 1 || width < 1 || height > PICTURES_MAX_SIDE || width > PICTURES_MAX_SIDE ||
        height * width > PICTURES_MAX_PIXELS)
        return tn_fail(err, TN_E_INPUT, path, "has no picture");
    int32_t orientation = job->orientation >= 1 && job->orientation <= 8 ? job->orientation : 1;
    bool turned = orientation >= 5;
    *out = (picture){.height = turned ? width : height,
                     .width = turned ? height : width,
                     .rgb = malloc((size_t)(height * width) * 3),
                     .keyed = job->keyed};
    memcpy(out->key, job->key, sizeof out->key);
    if (!out->rgb)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory for %lld by %lld pixels", (long long)width,
                       (long long)height);
    exif_turn(job->rgb, height, width, orientation, out->rgb);
    return TN_OK;
}

static tn_status decode(const char *path, const uint8_t *file, size_t size, picture *out, tn_error *err)
{
    char reason[200];
    size_t bytes = sizeof(picture_job) + (size_t)PICTURES_MAX_PIXELS * 3;
    if (find_format(file, size) < 0)
        return tn_fail(err, TN_E_INPUT, path, "is no PNG, JPEG or WebP file");
    /* Pages come as they are written. */
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, path, "no memory for its pixels; free some");
    picture_job *job = shared;
    job->file = file;
    job->size = size;
    job->most = PICTURES_MAX_PIXELS;
    tn_status status = guard_run(decode_here, job, SECONDS, reason, sizeof reason);
    if (status == TN_E_KERNEL)
        status = tn_fail(err, TN_E_INPUT, path, "could not be decoded: what reads it %s", reason);
    else if (status != TN_OK)
        tn_fail(err, status, path, "could not be decoded: %s", reason);
    if (status == TN_OK)
        status = take(path, job, out, err);
    munmap(shared, bytes);
    return status;
}

tn_status pictures_decode(const char *path, picture *out, tn_error *err)
{
    size_t size;
    char *file;
    *out = (picture){0};
    tn_status status = file_read(path, MAX_FILE, &file, &size, err);
    if (status != TN_OK)
        return status;
    status = decode(path, (const uint8_t *)file, size, out, err);
    free(file);
    return status;
}
