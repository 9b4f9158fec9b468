/* What readers of all formats leave for the parent: a size within bounds, or what is wrong. */
#include "pictures/pictures.h"

#include <stdlib.h>

void pictures_release(picture *p)
{
    free(p->rgb);
    *p = (picture){0};
}

bool pictures_begin(picture_job *job, int64_t height, int64_t width)
{
    if (height >= 1 && width >= 1 && height <= PICTURES_MAX_SIDE && width <= PICTURES_MAX_SIDE &&
        height * width <= job->most) {
        job->height = height;
        job->width = width;
        return true;
    }
    decoding_fail(&job->in, "is %lld by %lld pixels; at most %d by side and %lld in all are read", (long long)width,
                  (long long)height, PICTURES_MAX_SIDE, (long long)job->most);
    return false;
}
