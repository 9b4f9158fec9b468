/* UTF-8: reading with the replacement rule that Unicode recommends (one U+FFFD for each maximal part of a broken
 * sequence), and spaces. */
#include "text/utf8.h"

#include "text/buffer.h"

#include <string.h>
#include <utf8proc.h>

utf8_char utf8_read(const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return (utf8_char){s[0], 1, false};
    /* The second byte's range depends on the first: no overlong forms, surrogates or codes above U+10FFFF. */
    uint32_t need = s[0] >= 0xf0 ? 3 : s[0] >= 0xe0 ? 2 : 1;
    unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return (utf8_char){-1, 1, false};
    int32_t code = s[0] & (0x3f >> need);
    for (uint32_t i = 1; i <= need; i++) {
        if (i >= length)
            return (utf8_char){-1, i, true};
        if (s[i] < low || s[i] > high)
            return (utf8_char){-1, i, false};
        code = code << 6 | (s[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    return (utf8_char){code, need + 1, false};
}

size_t utf8_ascii(const char *text, size_t length)
{
    size_t i = 0;
    for (uint64_t word; i + 8 <= length; i += 8) {
        memcpy(&word, text + i, 8);
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    while (i < length && (unsigned char)text[i] < 0x80)
        i++;
    return i;
}

size_t utf8_write(int32_t code, char out[4])
{
    utf8proc_ssize_t n = utf8proc_encode_char(code, (utf8proc_uint8_t *)out);
    return n > 0 ? (size_t)n : 0;
}

bool utf8_add(buffer *b, int32_t code)
{
    char bytes[4];
    return buffer_add(b, bytes, utf8_write(code, bytes));
}

bool utf8_add_clean(buffer *b, const char *text, size_t length)
{
    size_t good = 0; /* start of the bytes not yet copied */
    if (length == 0) /* text may be NULL then, to which not even zero is added */
        return true;
    for (size_t i = 0; (i += utf8_ascii(text + i, length - i)) < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        if (c.code < 0) {
            if (!buffer_add(b, text + good, i - good) || !buffer_add(b, UTF8_REPLACEMENT, 3))
                return false;
            good = i + c.length;
        }
        i += c.length;
    }
    return buffer_add(b, text + good, length - good);
}

bool utf8_is_space(int32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}
