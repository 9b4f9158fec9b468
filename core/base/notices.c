/* What the library put right by itself: lines that are kept until somebody reads them, since a library prints nothing.
 */
#include "base/notices.h"

#include <tenon/notices.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 128, LINE = 640 };

static struct {
    pthread_mutex_t lock;
    const char *lines[MOST];
    size_t count;
} notices = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(const char *line)
{
    for (size_t i = 0; i < notices.count; i++)
        if (strcmp(notices.lines[i], line) == 0)
            return;
    char *copy = notices.count < MOST ? strdup(line) : NULL;
    if (copy)
        notices.lines[notices.count++] = copy;
}

void notices_add(const char *format, ...)
{
    char text[LINE];
    tn_error line = TN_ERROR_INIT; /* whose text has no control characters and no half letters     */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tn_fail(&line, TN_E_KERNEL, NULL, "%s", text);
    pthread_mutex_lock(&notices.lock);
    keep(line.message);
    pthread_mutex_unlock(&notices.lock);
}

size_t tn_notice_count(void)
{
    pthread_mutex_lock(&notices.lock);
    size_t count = notices.count;
    pthread_mutex_unlock(&notices.lock);
    return count;
}

const char *tn_notice_get(size_t index)
{
    pthread_mutex_lock(&notices.lock);
    const char *line = index < notices.count ? notices.lines[index] : NULL;
    pthread_mutex_unlock(&notices.lock);
    return line;
}
