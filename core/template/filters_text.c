/* Filters of texts. What is no text is made one before, as Jinja does. */
#include "template/chars.h"
#include "template/text_search.h"

#include <stdio.h>
#include <string.h>

static value filter_case(sandbox *s, const invocation *c)
{
    return text_methods_case(s, repr_str(s, c->self), c->how);
}

static value filter_capitalize(sandbox *s, const invocation *c)
{
    return text_methods_capitalize(s, repr_str(s, c->self));
}

/* Words begin behind white space, hyphens and opening brackets. */
static value filter_title(sandbox *s, const invocation *c)
{
    const string *text = repr_str(s, c->self);
    piece_text to = {0};
    bool begins = true;
    for (size_t i = 0; i < text->size;) {
        int32_t code = chars_next(s, text->data, text->size, &i), out[3];
        char utf8[4];
        size_t count = chars_to(s, begins ? CHARS_UPPER : CHARS_LOWER, code, out);
        for (size_t k = 0; k < count; k++)
            repr_add(s, &to, utf8, chars_write(out[k], utf8));
        begins = chars_is_space(code) || (code < 0x80 && strchr("-({[<", (char)code) && code);
    }
    return repr_done(s, &to);
}

static value filter_trim(sandbox *s, const invocation *c)
{
    return text_methods_strip(s, repr_str(s, c->self), c->arg[0], true, true);
}

static value filter_replace(sandbox *s, const invocation *c)
{
    return text_methods_replace(s, repr_str(s, c->self), repr_str(s, c->arg[0]), repr_str(s, c->arg[1]),
                                value_whole_or(s, c->arg[2], -1, "count"));
}

static value filter_format(sandbox *s, const invocation *c)
{
    if (c->raw->count && c->raw->named_count)
        sandbox_fail(s, "can't handle positional and keyword arguments at the same time; use one kind");
    if (c->raw->named_count) {
        mapping *m = mapping_new(s);
        for (size_t i = 0; i < c->raw->named_count; i++)
            mapping_set(s, m, value_of(c->raw->names[i]), c->raw->named[i]);
        return percent_format(s, repr_str(s, c->self), mapping_value(m));
    }
    list *items = value_list_new(s, LIST_TUPLE, c->raw->count);
    for (size_t i = 0; i < c->raw->count; i++)
        value_list_add(s, items, c->raw->items[i]);
    return percent_format(s, repr_str(s, c->self), value_list(items));
}

static value filter_indent(sandbox *s, const invocation *c)
{
    const string *text = text_search_text(s, c->self, "what is indented");
    if (c->arg[0].kind == VALUE_NONE)
        sandbox_fail(s, "width is to be a whole number or a text, not 'NoneType'");
    value by = c->arg[0].kind == VALUE_STRING ? c->arg[0]
                                              : operators_binary(s, "*", value_string(s, " ", 1),
                                                                 value_int(value_whole_or(s, c->arg[0], 4, "width")));
    piece_text with_end = {0}, to = {0};
    repr_add(s, &with_end, text->data, text->size);
    repr_add_text(s, &with_end, "\n");
    const list *lines = text_search_lines(s, repr_done(s, &with_end).as.string, false);
    if (value_truth(c->arg[1]))
        repr_add_str(s, &to, by);
    for (size_t i = 0; i < lines->count; i++) {
        if (i)
            repr_add_text(s, &to, "\n");
        if (i && (value_truth(c->arg[2]) || lines->items[i].as.string->size))
            repr_add_str(s, &to, by);
        repr_add_str(s, &to, lines->items[i]);
    }
    return repr_done(s, &to);
}

static value escaped(sandbox *s, const string *text)
{
    static const char *const marks[] = {"&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", "\"", "&#34;"};
    piece_text to = {0};
    for (size_t i = 0, from = 0; i < text->size; from = i) {
        size_t m = 0;
        chars_next(s, text->data, text->size, &i);
        while (m < 10 && marks[m][0] != text->data[from])
            m += 2;
        if (m < 10)
            repr_add_text(s, &to, marks[m + 1]);
        else
            repr_add(s, &to, text->data + from, i - from);
    }
    string *marked = sandbox_alloc(s, sizeof *marked);
    *marked = *repr_done(s, &to).as.string;
    marked->markup = true;
    return value_of(marked);
}

static value filter_escape(sandbox *s, const invocation *c)
{
    const string *text = repr_str(s, c->self);
    return text->markup ? c->self : escaped(s, text);
}

static value filter_safe(sandbox *s, const invocation *c)
{
    string *marked = sandbox_alloc(s, sizeof *marked);
    *marked = *repr_str(s, c->self);
    marked->markup = true;
    return value_of(marked);
}

static value filter_forceescape(sandbox *s, const invocation *c)
{
    return escaped(s, repr_str(s, c->self));
}

static value filter_wordcount(sandbox *s, const invocation *c)
{
    const string *text = repr_str(s, c->self);
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0; i < text->size;) {
        bool word = chars_is_word(chars_next(s, text->data, text->size, &i));
        words += word && !inside;
        inside = word;
    }
    return value_int(words);
}

static void add_url(sandbox *s, piece_text *to, value v, bool query)
{
    static const char hex[] = "0123456789ABCDEF";
    const string *text = repr_str(s, v);
    for (size_t i = 0; i < text->size; i++) {
        unsigned char c = (unsigned char)text->data[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("_.-~", c)) ||
                     (c == '/' && !query);
        const char code[] = {'%', hex[c >> 4], hex[c & 15], '\0'};
        if (plain)
            repr_add(s, to, text->data + i, 1);
        else
            repr_add_text(s, to, query && c == ' ' ? "+" : code);
    }
}

static value filter_urlencode(sandbox *s, const invocation *c)
{
    piece_text to = {0};
    if (c->self.kind == VALUE_STRING || !value_is_iterable(c->self)) {
        add_url(s, &to, c->self, false);
        return repr_done(s, &to);
    }
    const list *items = value_items(s, c->self);
    for (size_t i = 0; i < items->count; i++) {
        const list *pair = c->self.kind == VALUE_DICT
                               ? value_pair(s, items->items[i], c->self.as.mapping->values[i]).as.list
                               : value_items(s, items->items[i]);
        if (pair->count != 2)
            sandbox_fail(s, "urlencode takes pairs of a key and a value, not %zu values", pair->count);
        if (i)
            repr_add_text(s, &to, "&");
        add_url(s, &to, pair->items[0], true);
        repr_add_text(s, &to, "=");
        add_url(s, &to, pair->items[1], true);
    }
    return repr_done(s, &to);
}

static value filter_center(sandbox *s, const invocation *c)
{
    return text_methods_pad(s, repr_str(s, c->self), value_whole_or(s, c->arg[0], 80, "width"), " ", 0);
}

static value filter_truncate(sandbox *s, const invocation *c)
{
    value end = c->arg[2].kind == VALUE_MISSING ? value_string(s, "...", 3) : value_of(repr_str(s, c->arg[2]));
    int64_t length = value_whole_or(s, c->arg[0], 255, "length"), leeway = value_whole_or(s, c->arg[3], 5, "leeway");
    if (length < (int64_t)end.as.string->points || leeway < 0)
        sandbox_fail(s, "expected length >= %zu, and leeway >= 0; ask for more", end.as.string->points);
    int64_t kept = length - (int64_t)end.as.string->points, more = (int64_t)value_need_length(s, c->self) - length;
    if (more <= leeway)
        return c->self;
    const string *text = text_search_text(s, c->self, "what is cut");
    size_t size = chars_offset(s, text, (size_t)kept);
    if (!value_truth(c->arg[1]))
        for (size_t i = size; i-- > 0;)
            if (text->data[i] == ' ') {
                size = i;
                break;
            }
    piece_text to = {0};
    repr_add(s, &to, text->data, size);
    repr_add_str(s, &to, end);
    return repr_done(s, &to);
}

const builtin filters_text_table[] = {
    {"upper", "", 0, filter_case, CHARS_UPPER},
    {"lower", "", 0, filter_case, CHARS_LOWER},
    {"capitalize", "", 0, filter_capitalize, 0},
    {"title", "", 0, filter_title, 0},
    {"trim", "chars", 0, filter_trim, 0},
    {"replace", "old new count", 2, filter_replace, 0},
    {"format", "*", 0, filter_format, 0},
    {"indent", "width first blank", 0, filter_indent, 0},
    {"escape", "", 0, filter_escape, 0},
    {"e", "", 0, filter_escape, 0},
    {"safe", "", 0, filter_safe, 0},
    {"forceescape", "", 0, filter_forceescape, 0},
    {"wordcount", "", 0, filter_wordcount, 0},
    {"urlencode", "", 0, filter_urlencode, 0},
    {"center", "width", 0, filter_center, 0},
    {"truncate", "length killwords end leeway", 0, filter_truncate, 0},
    {0},
};
