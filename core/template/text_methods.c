/* Methods of texts that change, cut and join them, as Python's str has them. */
#include "template/chars.h"
#include "template/text_search.h"

#include <string.h>

static void add_char(sandbox *s, piece_text *to, int how, int32_t code)
{
    int32_t out[3];
    char utf8[4];
    size_t count = chars_to(s, (chars_case)how, code, out);
    for (size_t i = 0; i < count; i++)
        repr_add(s, to, utf8, chars_write(out[i], utf8));
}

static bool is_cased(int32_t code)
{
    return chars_is_upper(code) || chars_is_lower(code);
}

/* A capital sigma is written as a final one at the end of a word. */
static bool ends_word(sandbox *s, const string *text, size_t next, bool before)
{
    return before && (next >= text->size || !is_cased(chars_next(s, text->data, text->size, &next)));
}

typedef enum casing { CASING_ALL, CASING_FIRST, CASING_WORDS, CASING_SWAP } casing;

static value cased(sandbox *s, const string *text, int how, casing where)
{
    piece_text to = {0};
    bool before = false; /* a letter with a case stands before */
    for (size_t i = 0; i < text->size;) {
        bool first = i == 0;
        int32_t code = chars_next(s, text->data, text->size, &i);
        int as = how;
        if (where == CASING_FIRST)
            as = first ? CHARS_TITLE : CHARS_LOWER;
        else if (where == CASING_WORDS)
            as = before ? CHARS_LOWER : CHARS_TITLE;
        else if (where == CASING_SWAP)
            as = chars_is_upper(code) ? CHARS_LOWER : CHARS_UPPER;
        if (code == 0x3a3 && as == CHARS_LOWER && ends_word(s, text, i, before))
            repr_add_text(s, &to, "\xcf\x82");
        else
            add_char(s, &to, as, code);
        before = is_cased(code);
    }
    return repr_done(s, &to);
}

value text_methods_case(sandbox *s, const string *text, int how)
{
    return cased(s, text, how, CASING_ALL);
}

value text_methods_capitalize(sandbox *s, const string *text)
{
    return cased(s, text, CHARS_TITLE, CASING_FIRST);
}

static value text_upper(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return cased(s, self.as.string, CHARS_UPPER, CASING_ALL);
}

static value text_lower(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return cased(s, self.as.string, CHARS_LOWER, CASING_ALL);
}

static value text_title(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return cased(s, self.as.string, 0, CASING_WORDS);
}

static value text_capitalize(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return text_methods_capitalize(s, self.as.string);
}

static value text_swapcase(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return cased(s, self.as.string, 0, CASING_SWAP);
}

/* ---- stripping ---- */

static bool is_among(sandbox *s, int32_t code, const string *chars)
{
    if (!chars)
        return chars_is_space(code);
    for (size_t i = 0; i < chars->size;)
        if (chars_next(s, chars->data, chars->size, &i) == code)
            return true;
    return false;
}

const string *text_search_text(sandbox *s, value v, const char *what)
{
    value_need(s, v);
    if (v.kind != VALUE_STRING)
        sandbox_fail(s, "%s is to be a text, not '%s'", what, value_type(v));
    return v.as.string;
}

value text_methods_strip(sandbox *s, const string *text, value chars, bool left, bool right)
{
    bool given = chars.kind != VALUE_MISSING && chars.kind != VALUE_NONE;
    const string *among = given ? text_search_text(s, chars, "what is stripped") : NULL;
    size_t from = 0, to = text->size;
    for (size_t at = 0; left && from < to && is_among(s, chars_next(s, text->data, to, &at), among);)
        from = at;
    for (size_t at = to; right && to > from && is_among(s, chars_before(s, text->data, &at), among);)
        to = at;
    return value_string(s, text->data + from, to - from);
}

static value text_strip(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return text_methods_strip(s, self.as.string, arg[0], true, true);
}

static value text_lstrip(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return text_methods_strip(s, self.as.string, arg[0], true, false);
}

static value text_rstrip(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return text_methods_strip(s, self.as.string, arg[0], false, true);
}

static value text_removeprefix(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    const string *text = self.as.string, *prefix = text_search_text(s, arg[0], "a prefix");
    bool has = prefix->size <= text->size && memcmp(text->data, prefix->data, prefix->size) == 0;
    return has ? value_string(s, text->data + prefix->size, text->size - prefix->size) : self;
}

static value text_removesuffix(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    const string *text = self.as.string, *suffix = text_search_text(s, arg[0], "a suffix");
    size_t rest = text->size - suffix->size;
    bool has = suffix->size <= text->size && memcmp(text->data + rest, suffix->data, suffix->size) == 0;
    return has ? value_string(s, text->data, rest) : self;
}

/* ---- replacing and joining ---- */

value text_methods_replace(sandbox *s, const string *text, const string *from, const string *to, int64_t most)
{
    piece_text out = {0};
    size_t at = 0;
    while (most != 0 && (from->size || at <= text->size)) {
        const char *found = chars_find(s, text->data + at, text->size - at, from);
        if (!found)
            break;
        size_t start = (size_t)(found - text->data), next = start + from->size;
        repr_add(s, &out, text->data + at, start - at);
        repr_add(s, &out, to->data, to->size);
        if (from->size == 0 && start < text->size) { /* before each character, and behind the last */
            chars_next(s, text->data, text->size, &next);
            repr_add(s, &out, text->data + start, next - start);
        } else if (from->size == 0) {
            next++;
        }
        at = next;
        most -= most > 0;
    }
    if (at < text->size)
        repr_add(s, &out, text->data + at, text->size - at);
    return repr_done(s, &out);
}

static value text_replace(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return text_methods_replace(s, self.as.string, text_search_text(s, arg[0], "what is replaced"),
                                text_search_text(s, arg[1], "what replaces"), value_whole_or(s, arg[2], -1, "count"));
}

static value text_join(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    const list *items = value_items(s, arg[0]);
    piece_text to = {0};
    for (size_t i = 0; i < items->count; i++) {
        if (i)
            repr_add_str(s, &to, self);
        text_search_text(s, items->items[i], "what is joined");
        repr_add_str(s, &to, items->items[i]);
    }
    return repr_done(s, &to);
}

static value text_format(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg;
    return braces_format(s, self.as.string, raw);
}

/* ---- padding: side < 0: the text stands left, 0: in the middle, > 0: right ---- */

value text_methods_pad(sandbox *s, const string *text, int64_t width, const char *fill, int side)
{
    if (width <= (int64_t)text->points)
        return value_of(text);
    int64_t missing = width - (int64_t)text->points;
    int64_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
    piece_text to = {0};
    for (int64_t i = 0; i < left; i++)
        repr_add_text(s, &to, fill);
    repr_add(s, &to, text->data, text->size);
    for (int64_t i = left; i < missing; i++)
        repr_add_text(s, &to, fill);
    return repr_done(s, &to);
}

static value padded(sandbox *s, value self, const value *arg, int side)
{
    const string *fill = arg[1].kind == VALUE_MISSING ? NULL : text_search_text(s, arg[1], "the fill character");
    if (fill && fill->points != 1)
        sandbox_fail(s, "the fill character must be exactly one character long");
    return text_methods_pad(s, self.as.string, value_need_whole(s, arg[0], "width"), fill ? fill->data : " ", side);
}

static value text_center(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return padded(s, self, arg, 0);
}

static value text_ljust(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return padded(s, self, arg, -1);
}

static value text_rjust(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return padded(s, self, arg, 1);
}

static value text_zfill(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    const string *text = self.as.string;
    bool sign = text->size && strchr("+-", text->data[0]) && text->data[0];
    value digits = sign ? value_string(s, text->data + 1, text->size - 1) : self;
    int64_t width = value_need_whole(s, arg[0], "width");
    value filled = text_methods_pad(s, digits.as.string, width > 0 ? width - sign : 0, "0", 1);
    return sign ? operators_binary(s, "+", value_string(s, text->data, 1), filled) : filled;
}

const builtin text_methods_table[] = {
    {"upper", "", 0, text_upper},
    {"lower", "", 0, text_lower},
    {"title", "", 0, text_title},
    {"capitalize", "", 0, text_capitalize},
    {"swapcase", "", 0, text_swapcase},
    {"strip", "chars", 0, text_strip},
    {"lstrip", "chars", 0, text_lstrip},
    {"rstrip", "chars", 0, text_rstrip},
    {"removeprefix", "prefix", 1, text_removeprefix},
    {"removesuffix", "suffix", 1, text_removesuffix},
    {"replace", "old new count", 2, text_replace},
    {"join", "iterable", 1, text_join},
    {"format", "*", 0, text_format},
    {"center", "width fillchar", 1, text_center},
    {"ljust", "width fillchar", 1, text_ljust},
    {"rjust", "width fillchar", 1, text_rjust},
    {"zfill", "width", 1, text_zfill},
    {0},
};
