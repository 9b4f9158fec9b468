/* Characters: UTF-8 and the properties that Python's str asks for, from utf8proc. */
#include "template/chars.h"
#include "template/special_cases.h"
#include "template/value.h"

#include <string.h>
#include <utf8proc.h>

/* Bytes of the character at data, which has `left` bytes. */
static size_t length_of(const char *data, size_t left)
{
    unsigned char c = (unsigned char)data[0];
    size_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
    if (n > left)
        return 1;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)data[i] & 0xc0) != 0x80)
            return 1;
    return n;
}

static int32_t code_of(const char *data, size_t length)
{
    const unsigned char *d = (const unsigned char *)data;
    switch (length) {
    case 2:
        return (d[0] & 0x1f) << 6 | (d[1] & 0x3f);
    case 3:
        return (d[0] & 0x0f) << 12 | (d[1] & 0x3f) << 6 | (d[2] & 0x3f);
    case 4:
        return (d[0] & 0x07) << 18 | (d[1] & 0x3f) << 12 | (d[2] & 0x3f) << 6 | (d[3] & 0x3f);
    default:
        return d[0] < 0x80 ? d[0] : 0xfffd;
    }
}

int32_t chars_next(sandbox *s, const char *data, size_t size, size_t *at)
{
    size_t from = *at, n = length_of(data + from, size - from);
    sandbox_step(s, 1);
    *at = from + n;
    return code_of(data + from, n);
}

int32_t chars_before(sandbox *s, const char *data, size_t *at)
{
    size_t end = *at, from = end - 1;
    while (from > 0 && ((unsigned char)data[from] & 0xc0) == 0x80)
        from--;
    sandbox_step(s, 1 + (end - from) / 64);
    *at = from;
    return code_of(data + from, length_of(data + from, end - from));
}

size_t chars_write(int32_t code, char out[4])
{
    return (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)out);
}

size_t chars_count(sandbox *s, const char *data, size_t size)
{
    const uint64_t high = UINT64_C(0x8080808080808080);
    size_t count = size, i = 0;
    sandbox_step(s, size / 64);
    for (uint64_t eight; i + sizeof eight <= size; i += sizeof eight) {
        memcpy(&eight, data + i, sizeof eight);
        count -= (size_t)__builtin_popcountll(eight & ~(eight << 1) & high); /* bytes that continue a character */
    }
    for (; i < size; i++)
        count -= ((unsigned char)data[i] & 0xc0) == 0x80;
    return count;
}

size_t chars_offset(sandbox *s, const string *text, size_t index)
{
    if (text->points == text->size)
        return index < text->size ? index : text->size;
    size_t at = 0;
    while (index-- > 0 && at < text->size)
        chars_next(s, text->data, text->size, &at);
    return at;
}

size_t chars_index(sandbox *s, const string *text, size_t offset)
{
    return text->points == text->size ? offset : chars_count(s, text->data, offset);
}

/* Does it stand there? Comparing takes a step, and more where it is long. */
static bool stands_at(sandbox *s, const char *at, const string *what)
{
    sandbox_step(s, 1 + what->size / 64);
    return memcmp(at, what->data, what->size) == 0;
}

const char *chars_find(sandbox *s, const char *data, size_t size, const string *what)
{
    if (what->size == 0 || what->size > size)
        return what->size ? NULL : data;
    const char *at = data, *end = data + size - what->size + 1;
    while (at < end) {
        const char *found = memchr(at, what->data[0], (size_t)(end - at));
        sandbox_step(s, (size_t)((found ? found : end) - at) / 64);
        if (!found || stands_at(s, found, what))
            return found;
        at = found + 1;
    }
    return NULL;
}

const char *chars_find_last(sandbox *s, const char *data, size_t size, const string *what)
{
    if (what->size == 0 || what->size > size)
        return what->size ? NULL : data + size;
    for (size_t left = size - what->size + 1; left > 0;) {
        const char *found = memrchr(data, what->data[0], left);
        sandbox_step(s, (left - (size_t)(found ? found - data : 0)) / 64);
        if (!found || stands_at(s, found, what))
            return found;
        left = (size_t)(found - data);
    }
    return NULL;
}

bool chars_is_space(int32_t code)
{
    if (code < 0x80)
        return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool chars_is_alpha(int32_t code)
{
    utf8proc_category_t c = utf8proc_category(code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool chars_is_decimal(int32_t code)
{
    return utf8proc_category(code) == UTF8PROC_CATEGORY_ND;
}

bool chars_is_digit(int32_t code)
{
    /* Numeric_Type=Digit, which utf8proc does not tell: superscripts, digits in circles and the like. */
    static const int32_t others[][2] = {
        {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
        {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
        {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
    };
    bool digit = chars_is_decimal(code);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !digit; i++)
        digit = code >= others[i][0] && code <= others[i][1];
    return digit;
}

bool chars_is_numeric(int32_t code)
{
    utf8proc_category_t c = utf8proc_category(code);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool chars_is_upper(int32_t code)
{
    return utf8proc_isupper(code) != 0;
}

bool chars_is_lower(int32_t code)
{
    return utf8proc_islower(code) != 0;
}

bool chars_is_printable(int32_t code)
{
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

bool chars_is_word(int32_t code)
{
    return code == '_' || chars_is_alpha(code) || chars_is_numeric(code);
}

size_t chars_to(sandbox *s, chars_case how, int32_t code, int32_t out[3])
{
    sandbox_step(s, 1);
    size_t low = 0, high = code < 0x80 ? 0 : sizeof special_cases / sizeof special_cases[0];
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct special_case *row = &special_cases[middle];
        if (row->code == code) {
            size_t n = 0;
            while (n < 3 && row->to[how][n]) {
                out[n] = row->to[how][n];
                n++;
            }
            return n;
        }
        if (row->code < code)
            low = middle + 1;
        else
            high = middle;
    }
    out[0] = how == CHARS_LOWER   ? utf8proc_tolower(code)
             : how == CHARS_UPPER ? utf8proc_toupper(code)
                                  : utf8proc_totitle(code);
    return 1;
}
