/* Reading JSON as it comes, without a tree. */
#include "checkpoint/scan.h"

#include "base/text.h"

#include <string.h>

#define MAX_DEPTH 64 /* of values that nobody asked for */

char scan_peek(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
    return s->at < s->end ? *s->at : '\0';
}

bool scan_end(scan *s)
{
    scan_peek(s);
    return s->at == s->end;
}

bool scan_mark(scan *s, char mark)
{
    if (scan_peek(s) != mark)
        return false;
    s->at++;
    return true;
}

/* The bytes of the UTF-8 sequence at p, 0 when there is no valid one: no overlong form, no surrogate, none above
 * U+10FFFF. */
static size_t utf8_length(const unsigned char *p, const unsigned char *end)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (n == 1)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4 || (size_t)(end - p) < n)
        return 0;
    uint32_t code = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    return code < smallest[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

/* Four hexadecimal digits. */
static bool read_hex(scan *s, uint32_t *code)
{
    *code = 0;
    if (s->end - s->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int digit = text_hex(s->at[i]);
        if (digit < 0)
            return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    s->at += 4;
    return true;
}

/* What follows \u: one unit, or two that make a character beyond the first plane. */
static size_t read_unicode(scan *s, char *out)
{
    uint32_t code, low;
    if (!read_hex(s, &code) || code == 0 || (code >= 0xdc00 && code < 0xe000))
        return 0;
    if (code >= 0xd800 && code < 0xdc00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return 0;
        s->at += 2;
        if (!read_hex(s, &low) || low < 0xdc00 || low >= 0xe000)
            return 0;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[n] | code);
    return n;
}

/* What follows a backslash; the number of bytes written, 0 when it is no escape. */
static size_t read_escape(scan *s, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end)
        return 0;
    char c = *s->at++;
    if (c == 'u')
        return read_unicode(s, out);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known)
        return 0;
    *out = to[known - from];
    return 1;
}

/* out NULL: the string is only checked. */
static bool read_string(scan *s, char *out, size_t size)
{
    if (!scan_mark(s, '"'))
        return false;
    while (s->at < s->end) {
        unsigned char c = (unsigned char)*s->at;
        char piece[4];
        size_t n;
        if (c == '"') {
            s->at++;
            if (out)
                *out = '\0';
            return true;
        }
        if (c < 0x20)
            return false;
        if (c == '\\') {
            s->at++;
            n = read_escape(s, piece);
        } else {
            n = utf8_length((const unsigned char *)s->at, (const unsigned char *)s->end);
            memcpy(piece, s->at, n);
            s->at += n;
        }
        if (n == 0 || (out && n >= size))
            return false;
        if (out) {
            memcpy(out, piece, n);
            out += n;
            size -= n;
        }
    }
    return false;
}

bool scan_string(scan *s, char *out, size_t size)
{
    return size > 0 && read_string(s, out, size);
}

static bool is_digit(const scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

bool scan_i64(scan *s, int64_t *out)
{
    scan_peek(s);
    bool negative = s->at < s->end && *s->at == '-';
    s->at += negative;
    if (!is_digit(s))
        return false;
    bool leading_zero = *s->at == '0';
    const char *first = s->at;
    int64_t value = 0;
    for (; is_digit(s); s->at++) {
        int64_t digit = negative ? -(*s->at - '0') : *s->at - '0';
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
            return false;
    }
    if (leading_zero && s->at - first > 1)
        return false;
    *out = value;
    return s->at == s->end || !strchr(".eE", *s->at);
}

/* A number of any form. */
static bool skip_number(scan *s)
{
    s->at += *s->at == '-';
    if (!is_digit(s))
        return false;
    if (*s->at++ == '0' && is_digit(s))
        return false;
    while (is_digit(s))
        s->at++;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!is_digit(s))
            return false;
        while (is_digit(s))
            s->at++;
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        s->at += s->at < s->end && (*s->at == '+' || *s->at == '-');
        if (!is_digit(s))
            return false;
        while (is_digit(s))
            s->at++;
    }
    return true;
}

static bool skip_word(scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool skip_value(scan *s, int depth);

static bool skip_members(scan *s, char close, int depth)
{
    s->at++;
    if (scan_mark(s, close))
        return true;
    do {
        if (close == '}' && !(read_string(s, NULL, 0) && scan_mark(s, ':')))
            return false;
        if (!skip_value(s, depth))
            return false;
    } while (scan_mark(s, ','));
    return scan_mark(s, close);
}

static bool skip_value(scan *s, int depth)
{
    switch (scan_peek(s)) {
    case '{':
        return depth < MAX_DEPTH && skip_members(s, '}', depth + 1);
    case '[':
        return depth < MAX_DEPTH && skip_members(s, ']', depth + 1);
    case '"':
        return read_string(s, NULL, 0);
    case 't':
        return skip_word(s, "true");
    case 'f':
        return skip_word(s, "false");
    case 'n':
        return skip_word(s, "null");
    case '\0':
        return false;
    default:
        return skip_number(s);
    }
}

bool scan_value(scan *s)
{
    return skip_value(s, 0);
}
