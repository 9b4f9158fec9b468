/* A picture's file decoded in a child process. */
#include "pictures/pictures.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *magic;
    size_t at, length;
    void (*decode)(picture_job *job);
} formats[] = {
    {"\x89PNG\r\n\x1a\n", 0, 8, pictures_png}, {"\xff\xd8\xff", 0, 3, pictures_jpeg}, {"WEBP", 8, 4, pictures_webp}};
enum { FORMATS = sizeof formats / sizeof *formats };

bool pictures_read(picture_job *job)
{
    for (int i = 0; i < FORMATS; i++)
        if (job->in.size >= formats[i].at + formats[i].length &&
            !memcmp(job->in.file + formats[i].at, formats[i].magic, formats[i].length)) {
            formats[i].decode(job);
            return true;
        }
    return false;
}

static void begin(decoding *d, const void *ctx)
{
    (void)ctx;
    picture_job *job = (picture_job *)d;
    job->most = PICTURES_MAX_PIXELS;
    job->orientation = 1;
}

static void read_picture(decoding *d)
{
    if (!pictures_read((picture_job *)d))
        decoding_fail(d, "is no PNG, JPEG or WebP file");
}

static tn_status take(const decoding *d, const char *path, void *ctx, tn_error *err)
{
    const picture_job *job = (const picture_job *)d;
    picture *out = ctx;
    int64_t height = job->height, width = job->width;
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

tn_status pictures_decode(const char *path, picture *out, tn_error *err)
{
    static const decoding_kind kind = {.most = (size_t)256 << 20,
                                       .bytes = sizeof(picture_job) + (size_t)PICTURES_MAX_PIXELS * 3,
                                       .begin = begin,
                                       .read = read_picture,
                                       .take = take};
    *out = (picture){0};
    return decoding_run(&kind, path, out, err);
}
