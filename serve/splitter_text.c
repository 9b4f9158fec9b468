/* Bytes that grow; see splitter_text.h. */
#include "splitter_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool splitter_text_add(splitter_text *t, const char *bytes, size_t length)
{
    if (length > SIZE_MAX / 4 - t->length)
        return false;
    if (t->length + length > t->room) {
        size_t room = (t->length + length) * 2 + 32;
        char *grown = realloc(t->bytes, room);
        if (!grown)
            return false;
        t->bytes = grown;
        t->room = room;
    }
    if (length)
        memcpy(t->bytes + t->length, bytes, length);
    t->length += length;
    return true;
}

/* How JSON writes a byte that it has not as it is; NULL: as it is. */
static const char *escaped(unsigned char c, char room[8])
{
    static const char digits[] = "0123456789abcdef";
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        if (c >= 0x20)
            return NULL;
        memcpy(room, "\\u00", 4);
        room[4] = digits[c >> 4];
        room[5] = digits[c & 15];
        room[6] = '\0';
        return room;
    }
}

bool splitter_text_add_string(splitter_text *t, const char *bytes, size_t length)
{
    size_t before = t->length, plain = 0;
    bool ok = splitter_text_add(t, "\"", 1);
    for (size_t i = 0; ok && i < length; i++) {
        char room[8];
        const char *other = escaped((unsigned char)bytes[i], room);
        if (!other)
            continue;
        ok = splitter_text_add(t, bytes + plain, i - plain) && splitter_text_add(t, other, strlen(other));
        plain = i + 1;
    }
    ok = ok && splitter_text_add(t, bytes + plain, length - plain) && splitter_text_add(t, "\"", 1);
    if (!ok)
        t->length = before;
    return ok;
}

void splitter_text_drop(splitter_text *t, size_t length)
{
    if (!length)
        return;
    t->length -= length;
    memmove(t->bytes, t->bytes + length, t->length);
}

void splitter_text_free(splitter_text *t)
{
    free(t->bytes);
    *t = (splitter_text){0};
}
