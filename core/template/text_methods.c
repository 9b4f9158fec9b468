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

/* What becomes of a text: all of it in a case, or one that depends on where a letter stands and what it is. */
typedef enum casing {
    CASING_LOWER = CHARS_LOWER,
    CASING_UPPER = CHARS_UPPER,
    CASING_TITLE = CHARS_TITLE,
    CASING_FIRST,
    CASING_WORDS,
    CASING_SWAP
} casing;

value text_methods_case(sandbox *s, const string *text, int how)
{
    piece_text to = {0};
    bool before = false; /* a letter with a case stands before */
    for (size_t i = 0; i < text->size;) {
        bool first = i == 0;
        int32_t code = chars_next(s, text->data, text->size, &i);
        int as = how;
        if (how == CASING_FIRST)
            as = first ? CHARS_TITLE : CHARS_LOWER;
        else if (how == CASING_WORDS)
            as = before ? CHARS_LOWER : CHARS_TITLE;
        else if (how == CASING_SWAP)
            as = chars_is_upper(code) ? CHARS_LOWER : CHARS_UPPER;
        if (code == 0x3a3 && as == CHARS_LOWER && ends_word(s, text, i, before))
            repr_add_text(s, &to, "\xcf\x82");
        else
            add_char(s, &to, as, code);
        before = is_cased(code);
    }
    return repr_done(s, &to);
}

value text_methods_capitalize(sandbox *s, const string *text)
{
    return text_methods_case(s, text, CASING_FIRST);
}

static value text_case(sandbox *s, const invocation *c)
{
    return text_methods_case(s, c->self.as.string, c->how);
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

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

static value text_strip(sandbox *s, const invocation *c)
{
    return text_methods_strip(s, c->self.as.string, c->arg[0], c->how & STRIP_LEFT, c->how & STRIP_RIGHT);
}

static value text_removeprefix(sandbox *s, const invocation *c)
{
    const string *text = c->self.as.string, *prefix = text_search_text(s, c->arg[0], "a prefix");
    bool has = prefix->size <= text->size && memcmp(text->data, prefix->data, prefix->size) == 0;
    return has ? value_string(s, text->data + prefix->size, text->size - prefix->size) : c->self;
}

static value text_removesuffix(sandbox *s, const invocation *c)
{
    const string *text = c->self.as.string, *suffix = text_search_text(s, c->arg[0], "a suffix");
    size_t rest = text->size - suffix->size;
    bool has = suffix->size <= text->size && memcmp(text->data + rest, suffix->data, suffix->size) == 0;
    return has ? value_string(s, text->data, rest) : c->self;
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

static value text_replace(sandbox *s, const invocation *c)
{
    return text_methods_replace(s, c->self.as.string, text_search_text(s, c->arg[0], "what is replaced"),
                                text_search_text(s, c->arg[1], "what replaces"),
                                value_whole_or(s, c->arg[2], -1, "count"));
}

static value text_join(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->arg[0]);
    piece_text to = {0};
    for (size_t i = 0; i < items->count; i++) {
        if (i)
            repr_add_str(s, &to, c->self);
        text_search_text(s, items->items[i], "what is joined");
        repr_add_str(s, &to, items->items[i]);
    }
    return repr_done(s, &to);
}

static value text_format(sandbox *s, const invocation *c)
{
    return braces_format(s, c->self.as.string, c->raw);
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

static value text_pad(sandbox *s, const invocation *c)
{
    const string *fill = c->arg[1].kind == VALUE_MISSING ? NULL : text_search_text(s, c->arg[1], "the fill character");
    if (fill && fill->points != 1)
        sandbox_fail(s, "the fill character must be exactly one character long");
    int64_t width = value_need_whole(s, c->arg[0], "width");
    return text_methods_pad(s, c->self.as.string, width, fill ? fill->data : " ", c->how);
}

static value text_zfill(sandbox *s, const invocation *c)
{
    const string *text = c->self.as.string;
    bool sign = text->size && strchr("+-", text->data[0]) && text->data[0];
    value digits = sign ? value_string(s, text->data + 1, text->size - 1) : c->self;
    int64_t width = value_need_whole(s, c->arg[0], "width");
    value filled = text_methods_pad(s, digits.as.string, width > 0 ? width - sign : 0, "0", 1);
    return sign ? operators_binary(s, "+", value_string(s, text->data, 1), filled) : filled;
}

const builtin text_methods_table[] = {
    {"upper", "", 0, text_case, CASING_UPPER},
    {"lower", "", 0, text_case, CASING_LOWER},
    {"title", "", 0, text_case, CASING_WORDS},
    {"capitalize", "", 0, text_case, CASING_FIRST},
    {"swapcase", "", 0, text_case, CASING_SWAP},
    {"strip", "chars", 0, text_strip, STRIP_LEFT | STRIP_RIGHT},
    {"lstrip", "chars", 0, text_strip, STRIP_LEFT},
    {"rstrip", "chars", 0, text_strip, STRIP_RIGHT},
    {"removeprefix", "prefix", 1, text_removeprefix, 0},
    {"removesuffix", "suffix", 1, text_removesuffix, 0},
    {"replace", "old new count", 2, text_replace, 0},
    {"join", "iterable", 1, text_join, 0},
    {"format", "*", 0, text_format, 0},
    {"center", "width fillchar", 1, text_pad, 0},
    {"ljust", "width fillchar", 1, text_pad, -1},
    {"rjust", "width fillchar", 1, text_pad, 1},
    {"zfill", "width", 1, text_zfill, 0},
    {0},
};
