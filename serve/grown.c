/* Text that grows. */
#include "grown.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(grown *c, size_t more)
{
    if (c->capacity - c->length > more)
        return true;
    size_t capacity = (c->length + more + 1) * 2;
    char *larger = capacity > more ? realloc(c->at, capacity) : NULL;
    if (!larger)
        return false;
    c->at = larger;
    c->capacity = capacity;
    return true;
}

bool grown_add(grown *c, const char *text, size_t length)
{
    if (!make_room(c, length))
        return false;
    if (length)
        memcpy(c->at + c->length, text, length);
    c->length += length;
    c->at[c->length] = '\0';
    return true;
}

bool grown_format(grown *c, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(NULL, 0, format, values);
    va_end(values);
    if (length < 0 || !make_room(c, (size_t)length))
        return false;
    va_start(values, format);
    vsnprintf(c->at + c->length, (size_t)length + 1, format, values);
    va_end(values);
    c->length += (size_t)length;
    return true;
}

void grown_free(grown *c)
{
    free(c->at);
    *c = (grown){0};
}
