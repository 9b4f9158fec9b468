/* Composing text. */
#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t text_cut(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, size, format, args);
    va_end(args);
    return n < 0 || size == 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

/* Room for length more bytes and a NUL. */
static bool grow(text *t, size_t length)
{
    size_t need = t->length + length + 1;
    if (t->failed || need <= t->capacity)
        return !t->failed;
    size_t capacity = 2 * t->capacity > need ? 2 * t->capacity : need + 256;
    char *data = realloc(t->data, capacity);
    t->failed = !data;
    if (!data)
        return false;
    t->data = data;
    t->capacity = capacity;
    return true;
}

void text_add_n(text *t, const char *data, size_t length)
{
    if (!grow(t, length))
        return;
    memcpy(t->data + t->length, data, length);
    t->length += length;
    t->data[t->length] = '\0';
}

void text_add(text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        t->failed = true;
    else if (grow(t, (size_t)n)) {
        vsnprintf(t->data + t->length, (size_t)n + 1, format, again);
        t->length += (size_t)n;
    }
    va_end(again);
}

/* Bytes of the UTF-8 character at s; 0 when there is none. */
static size_t character(const unsigned char *s)
{
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
               : (s[0] & 0xf0) == 0xe0       ? 3
               : (s[0] & 0xf8) == 0xf0       ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = n > 2 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90));
    bool outside = n > 2 && ((s[0] == 0xed && s[1] >= 0xa0) || s[0] > 0xf4 || (s[0] == 0xf4 && s[1] >= 0x90));
    return overlong || outside ? 0 : n;
}

/* Bytes of ASCII other than NUL that it begins with, eight at a time. */
static size_t plain_words(const char *text, size_t length)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    size_t i = 0;
    for (uint64_t word; i + sizeof word <= length; i += sizeof word) {
        memcpy(&word, text + i, sizeof word);
        if ((word | (word - ones)) & tops) /* a byte of 0x80 or more, or one that borrows */
            break;
    }
    return i;
}

int text_hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool text_is_clean(const char *text, size_t length)
{
    for (size_t i = plain_words(text, length), n; i < length; i += n) {
        unsigned char next[4] = {0}; /* a NUL continues no character */
        memcpy(next, text + i, length - i < sizeof next ? length - i : sizeof next);
        n = next[0] ? character(next) : 0;
        if (n == 0)
            return false;
    }
    return true;
}

/* A character that moves a terminal's cursor, or that makes a line read in another order than it has: controls, ends of
 * lines and paragraphs, and what changes the direction of writing (U+061C, U+200E and F, U+202A to E, U+2066 to 9). */
static bool moves(const unsigned char *s, size_t n)
{
    if (n == 1)
        return s[0] < 0x20 || s[0] == 0x7f;
    if (n == 2)
        return (s[0] == 0xc2 && s[1] < 0xa0) || (s[0] == 0xd8 && s[1] == 0x9c);
    bool general = n == 3 && s[0] == 0xe2;
    return general && ((s[1] == 0x80 && (s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xa8 && s[2] <= 0xae))) ||
                       (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9));
}

size_t text_escape(char *out, size_t size, const char *in)
{
    size_t used = 0;
    for (const unsigned char *s = (const unsigned char *)in; *s;) {
        size_t n = character(s), take = n ? n : 1;
        bool plain = n > 0 && !moves(s, n);
        if (used + (plain ? take : 4 * take) >= size)
            break;
        if (plain)
            memcpy(out + used, s, take);
        for (size_t i = 0; !plain && i < take; i++)
            snprintf(out + used + 4 * i, 5, "\\x%02x", s[i]);
        used += plain ? take : 4 * take;
        s += take;
    }
    if (size > 0)
        out[used] = '\0';
    return used;
}

/* The number of a character of up to three bytes. */
static unsigned code_of(const unsigned char *s, size_t n)
{
    return n == 1   ? s[0]
           : n == 2 ? (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu)
                    : (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
}

void text_add_quoted(text *t, const char *string)
{
    text_add_n(t, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)(string ? string : ""); *s;) {
        size_t n = character(s);
        if (n == 0)
            text_add_n(t, "\xef\xbf\xbd", 3);
        else if (*s == '"' || *s == '\\')
            text_add(t, "\\%c", *s);
        else if (moves(s, n))
            text_add(t, "\\u%04x", code_of(s, n));
        else
            text_add_n(t, (const char *)s, n);
        s += n ? n : 1;
    }
    text_add_n(t, "\"", 1);
}

bool text_list_add(text_list *list, const char *string)
{
    char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items)
        return false;
    list->items = items;
    items[list->count] = strdup(string);
    if (!items[list->count])
        return false;
    list->count++;
    return true;
}

void text_list_clear(text_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (text_list){0};
}
