/* Values of Python as JSON; see splitter_literal.h. */
#include "splitter_literal.h"

#include "splitter_json.h"

#include <ctype.h>
#include <string.h>

enum { LEVELS = 64 };

typedef struct reader {
    const char *at, *end, *quote;
    splitter_text *out;
    bool memory;
    int level;
} reader;

static bool add(reader *r, const char *bytes, size_t length)
{
    r->memory = splitter_text_add(r->out, bytes, length) && r->memory;
    return r->memory;
}

static bool add_string(reader *r, const char *bytes, size_t length)
{
    r->memory = splitter_text_add_string(r->out, bytes, length) && r->memory;
    return r->memory;
}

static void skip_space(reader *r)
{
    while (r->at < r->end && splitter_space(*r->at))
        r->at++;
}

static bool skip(reader *r, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, text, length) != 0)
        return false;
    r->at += length;
    return true;
}

static bool word_byte(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.' || c == '+';
}

/* ---- strings ---- */

static void add_codepoint(splitter_text *t, unsigned long c, bool *memory)
{
    char bytes[4];
    size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
        c = 0xFFFD;
        length = 3;
    }
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = length; i-- > 1; c >>= 6)
        bytes[i] = (char)(0x80 | (c & 0x3F));
    bytes[0] = (char)(lead[length] | c);
    *memory = splitter_text_add(t, bytes, length) && *memory;
}

/* count hexadecimal digits; false: they are not there. */
static bool read_hex(reader *r, int count, unsigned long *value)
{
    *value = 0;
    for (int i = 0; i < count; i++) {
        if (r->at + i == r->end || !isxdigit((unsigned char)r->at[i]))
            return false;
        int c = tolower((unsigned char)r->at[i]);
        *value = *value * 16 + (unsigned long)(isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    r->at += count;
    return true;
}

/* A low surrogate behind a high one, as JSON writes characters beyond U+FFFF. */
static unsigned long paired(reader *r, unsigned long high)
{
    const char *before = r->at;
    unsigned long low;
    if (high >= 0xD800 && high < 0xDC00 && skip(r, "\\u") && read_hex(r, 4, &low) && low >= 0xDC00 && low < 0xE000)
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    r->at = before;
    return high;
}

/* What is behind a backslash; one that Python does not know stays as it is. */
static bool unescape(reader *r, splitter_text *t)
{
    static const char from[] = "ntrbfav0\\'\"/", to[] = "\n\t\r\b\f\a\v\0\\'\"/";
    char c = *r->at++;
    const char *known = c ? memchr(from, c, sizeof from - 1) : NULL;
    if (known)
        return splitter_text_add(t, to + (known - from), 1);
    if (c == '\n')
        return true;
    unsigned long value;
    bool memory = true;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits && read_hex(r, digits, &value)) {
        add_codepoint(t, paired(r, value), &memory);
        return memory;
    }
    const char kept[2] = {'\\', c};
    return splitter_text_add(t, kept, 2);
}

static bool read_quoted(reader *r)
{
    char quote = *r->at;
    const char triple[] = {quote, quote, quote, '\0'}, single[] = {quote, '\0'};
    const char *close = skip(r, triple) ? triple : single;
    r->at += close == single;
    splitter_text t = {0};
    bool closed = false;
    while (r->at < r->end && r->memory && !(closed = skip(r, close))) {
        if (*r->at != '\\')
            r->memory = splitter_text_add(&t, r->at++, 1);
        else if (++r->at < r->end)
            r->memory = unescape(r, &t);
    }
    if (closed && r->memory)
        add_string(r, t.bytes ? t.bytes : "", t.length);
    splitter_text_free(&t);
    return closed && r->memory;
}

/* Between a family's own marks, where nothing is escaped. */
static bool read_marked(reader *r)
{
    const char *close = memmem(r->at, (size_t)(r->end - r->at), r->quote, strlen(r->quote)), *from = r->at;
    if (!close)
        return false;
    r->at = close + strlen(r->quote);
    return add_string(r, from, (size_t)(close - from));
}

/* ---- values ---- */

static bool read_value(reader *r);

/* Numbers as JSON has them, and words. */
static bool read_word(reader *r)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *from = r->at;
    while (r->at < r->end && word_byte(*r->at))
        r->at++;
    size_t length = (size_t)(r->at - from);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i][0]) == length && memcmp(words[i][0], from, length) == 0)
            return add(r, words[i][1], strlen(words[i][1]));
    splitter_json json = {0};
    splitter_json_result result = splitter_json_step(&json, '[');
    for (size_t i = 0; i < length && result == SCAN_MORE; i++)
        result = splitter_json_step(&json, from[i]);
    return length && result == SCAN_MORE && splitter_json_step(&json, ']') == SCAN_END && add(r, from, length);
}

static bool is_string(const reader *r)
{
    return r->at < r->end && (*r->at == '\'' || *r->at == '"');
}

static bool read_key(reader *r, bool bare)
{
    if (r->quote && skip(r, r->quote))
        return read_marked(r);
    if (is_string(r))
        return read_quoted(r);
    const char *from = r->at;
    while (bare && r->at < r->end && word_byte(*r->at))
        r->at++;
    return r->at > from && add_string(r, from, (size_t)(r->at - from));
}

/* What is between brackets, up to close, "" being the end of the text; divider: what is behind keys, NULL: no keys. */
static bool read_members(reader *r, const char *close, const char *divider, bool bare)
{
    for (bool first = true;; first = false) {
        skip_space(r);
        if (*close ? skip(r, close) : r->at == r->end)
            return true;
        if (!first && !add(r, ", ", 2))
            return false;
        if (divider) {
            if (!read_key(r, bare))
                return false;
            skip_space(r);
            if (!skip(r, divider) || !add(r, ": ", 2))
                return false;
        }
        if (!read_value(r))
            return false;
        skip_space(r);
        if (!skip(r, ",") && !(*close ? r->at < r->end && *r->at == *close : r->at == r->end))
            return false;
    }
}

static bool read_object(reader *r)
{
    return add(r, "{", 1) && read_members(r, "}", ":", r->quote != NULL) && add(r, "}", 1);
}

static bool read_list(reader *r, const char *close)
{
    return add(r, "[", 1) && read_members(r, close, NULL, false) && add(r, "]", 1);
}

static bool read_value(reader *r)
{
    skip_space(r);
    if (r->level == LEVELS || r->at == r->end)
        return false;
    if (r->quote && skip(r, r->quote))
        return read_marked(r);
    if (is_string(r))
        return read_quoted(r);
    r->level++;
    bool ok = skip(r, "{")   ? read_object(r)
              : skip(r, "[") ? read_list(r, "]")
              : skip(r, "(") ? read_list(r, ")")
                             : read_word(r);
    r->level--;
    return ok;
}

bool splitter_literal_add(splitter_text *out, splitter_literal_form form, const char *text, size_t length,
                          const char *quote, bool *memory)
{
    reader r = {.at = text, .end = text + length, .quote = quote, .out = out, .memory = true};
    size_t before = out->length;
    bool ok;
    if (form == LITERAL_ARGUMENTS)
        ok = add(&r, "{", 1) && read_members(&r, "", "=", true) && add(&r, "}", 1);
    else
        ok = form == LITERAL_OBJECT ? skip(&r, "{") && read_object(&r) : read_value(&r);
    skip_space(&r);
    ok = ok && r.at == r.end && r.memory;
    if (!ok)
        out->length = before;
    *memory = *memory && r.memory;
    return ok;
}
