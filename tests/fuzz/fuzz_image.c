/* Any bytes as a picture: decoded where a child would, turned upright, and taken by one of the processors, whose
 * numbers must be some. */
#include "fuzz.h"
#include "pictures/pictures.h"

#include <math.h>

FUZZ_ENTRY(fuzz_image)

enum { PIXELS = 1 << 18 }; /* so that one input takes no second                                         */

static const char *const folders[] = {"clip_small", "pixtral", "internvl", "llava_next",
                                      "gemma3_pan", "glm4v",   "gemma4",   "llama4"};
enum { FOLDERS = sizeof folders / sizeof *folders };

static const processor *opened(int which)
{
    static processor *all[FOLDERS];
    char path[128];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "tests/data/media/%s", folders[which]);
    if (!all[which])
        all[which] = processor_open(path, &err);
    return all[which];
}

static void process(picture *p, int which)
{
    processed x;
    tn_error err = TN_ERROR_INIT;
    const processor *own = opened(which);
    fuzz_require(own != NULL, "a processor's own config is refused");
    tn_status status = processor_run(own, p, 1, &x, &err);
    fuzz_agree(status == TN_OK, &err);
    if (status != TN_OK)
        return;
    int64_t count = 1;
    for (int32_t i = 0; i < x.ndim; i++)
        count *= x.shape[i];
    for (int64_t i = 0; i < count; i += 97)
        fuzz_require(isfinite(x.pixels[i]), "a pixel is no number");
    processor_release(&x);
}

static void look(const picture_job *job, int which)
{
    int32_t o = job->orientation;
    fuzz_require(o >= 1 && o <= 8, "an orientation is none");
    fuzz_require(job->height * job->width <= PIXELS, "a picture is larger than was allowed");
    picture p = {.height = o >= 5 ? job->width : job->height,
                 .width = o >= 5 ? job->height : job->width,
                 .rgb = malloc((size_t)(job->height * job->width) * 3),
                 .keyed = job->keyed};
    if (!p.rgb)
        abort();
    memcpy(p.key, job->key, sizeof p.key);
    exif_turn(job->rgb, job->height, job->width, o, p.rgb);
    process(&p, which);
    pictures_release(&p);
}

int fuzz_image(const uint8_t *data, size_t size)
{
    static picture_job *job;
    if (!job && !(job = malloc(sizeof *job + 3 * PIXELS)))
        abort();
    memset(job, 0, sizeof *job);
    job->in.file = data;
    job->in.size = size;
    job->most = PIXELS;
    job->orientation = 1;
    if (!pictures_read(job))
        return 0;
    fuzz_require(!job->in.what[0] || !strchr(job->in.what, '\n'), "what is wrong is not one line");
    if (!job->in.what[0])
        look(job, size % FOLDERS);
    return 0;
}
