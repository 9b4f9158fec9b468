/* Normalizers that look at one character at a time, and drop or replace it. */
#include "text/buffer.h"
#include "text/normalize.h"
#include "text/pretok.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <string.h>

/* Appends the characters that are not in a class. */
static bool without(unicode_class *class, const char *text, size_t length, buffer *out)
{
    size_t good = 0; /* start of the bytes not yet copied */
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        if (class(c.code)) {
            if (!buffer_add(out, text + good, i - good))
                return false;
            good = i + c.length;
        }
        i += c.length;
    }
    return buffer_add(out, text + good, length - good);
}

bool charmap_strip_accents(const char *text, size_t length, buffer *out)
{
    return without(unicode_is_mark, text, length, out);
}

bool charmap_strip_nonspacing(const char *text, size_t length, buffer *out)
{
    return without(unicode_is_nonspacing, text, length, out);
}

/* What SentencePiece's rules for machine translation drop, and what they make a space. */
static bool nmt_drops(int32_t code)
{
    return (code >= 0x01 && code <= 0x08) || code == 0x0b || (code >= 0x0e && code <= 0x1f) || code == 0x7f ||
           code == 0x8f || code == 0x9f;
}

static bool nmt_is_space(int32_t code)
{
    return code == 0x09 || code == 0x0a || code == 0x0c || code == 0x0d || code == 0x1680 ||
           (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 || code == 0xfeff ||
           code == 0xfffd;
}

/* The same for BERT. */
static bool bert_drops(int32_t code)
{
    return code == 0 || code == 0xfffd || unicode_is_other(code);
}

static bool map(unicode_class *drops, unicode_class *is_space, const char *text, size_t length, buffer *out)
{
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        bool space = is_space(c.code);
        if (!drops(c.code) && !buffer_add(out, space ? " " : text + i, space ? 1 : c.length))
            return false;
        i += c.length;
    }
    return true;
}

bool charmap_nmt(const char *text, size_t length, buffer *out)
{
    return map(nmt_drops, nmt_is_space, text, length, out);
}

bool charmap_clean(const char *text, size_t length, buffer *out)
{
    return map(bert_drops, utf8_is_space, text, length, out);
}

/* The blocks that BERT takes for Chinese: those of ideographs. */
static bool is_ideograph(int32_t code)
{
    return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
           (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b73f) ||
           (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
           (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);
}

bool charmap_chinese(const char *text, size_t length, buffer *out)
{
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        bool alone = is_ideograph(c.code);
        if ((alone && !buffer_add(out, " ", 1)) || !buffer_add(out, text + i, c.length) ||
            (alone && !buffer_add(out, " ", 1)))
            return false;
        i += c.length;
    }
    return true;
}

bool charmap_bytes(const char *text, size_t length, buffer *out)
{
    for (size_t i = 0; i < length; i++)
        if (!utf8_add(out, pretok_byte_char((unsigned char)text[i])))
            return false;
    return true;
}
