/* WebP, by libwebp. */
#include "pictures/pictures.h"

#include <string.h>
#include <webp/decode.h>

/* The chunk "EXIF" of a RIFF file. */
static void read_orientation(picture_job *job)
{
    for (size_t at = 12; at + 8 <= job->in.size;) {
        const uint8_t *chunk = job->in.file + at;
        size_t length = chunk[4] | chunk[5] << 8 | chunk[6] << 16 | (size_t)chunk[7] << 24;
        if (length > job->in.size - at - 8)
            return;
        if (!memcmp(chunk, "EXIF", 4)) {
            bool named = length > 6 && !memcmp(chunk + 8, "Exif\0", 6);
            job->orientation = exif_orientation(chunk + 8 + (named ? 6 : 0), length - (named ? 6 : 0));
            return;
        }
        at += 8 + length + length % 2;
    }
}

void pictures_webp(picture_job *job)
{
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(job->in.file, job->in.size, &f) != VP8_STATUS_OK) {
        decoding_fail(&job->in, "is no WebP that can be read");
        return;
    }
    if (f.has_animation) {
        decoding_fail(&job->in, "is an animation; give a picture");
        return;
    }
    if (!pictures_begin(job, f.height, f.width))
        return;
    size_t line = (size_t)f.width * 3;
    if (!WebPDecodeRGBInto(job->in.file, job->in.size, job->rgb, line * (size_t)f.height, (int)line))
        decoding_fail(&job->in, "is a broken WebP: it ends too early, or its pixels cannot be read");
    read_orientation(job);
}
