/* What readers of all formats leave for the parent: a size within bounds, or what is wrong. */
#include "pictures/pictures.h"

#include <stdarg.h>
#include <stdio.h>
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
    pictures_fail(job, "is %lld by %lld pixels; at most %d by side and %lld in all are read", (long long)width,
                  (long long)height, PICTURES_MAX_SIDE, (long long)job->most);
    return false;
}

/* The first reason stays. */
void pictures_fail(picture_job *job, const char *format, ...)
{
    va_list list;
    if (job->what[0])
        return;
    va_start(list, format);
    vsnprintf(job->what, sizeof job->what, format, list);
    va_end(list);
    for (char *c = job->what; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
            *c = '?';
}
