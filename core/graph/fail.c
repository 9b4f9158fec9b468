/* The error that sticks in a builder. */
#include "graph/build.h"

#include <stdarg.h>
#include <stdio.h>

void *build_fail(graph_builder *b, tn_status code, const char *where, const char *format, ...)
{
    char text[sizeof((tn_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tn_status status = tn_fail(b->err, code, where, "%s", text);
    if (b->status == TN_OK)
        b->status = status;
    return NULL;
}
