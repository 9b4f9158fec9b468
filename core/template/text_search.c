/* Methods of texts that find, count, split and ask, as Python's str has them. */
#include "template/text_search.h"

#include "template/chars.h"

#include <string.h>

/* The part of a text between two indices of characters, as str.find and others take it, in bytes. False: there is no
 * such part, not even an empty one. */
static bool part(sandbox *s, const string *text, value start, value end, size_t *from, size_t *to)
{
    int64_t count = (int64_t)text->points, first = value_whole_or(s, start, 0, "start");
    int64_t last = value_whole_or(s, end, count, "end");
    first = first < 0 ? (first + count < 0 ? 0 : first + count) : first;
    last = last < 0 ? (last + count < 0 ? 0 : last + count) : last > count ? count : last;
    if (first > last)
        return false;
    *from = chars_offset(s, text, (size_t)first);
    *to = chars_offset(s, text, (size_t)last);
    return true;
}

/* Where the argument begins in the text; -1: nowhere. */
static int64_t find(sandbox *s, const invocation *c, bool last)
{
    const string *text = c->self.as.string, *what = text_search_text(s, c->arg[0], "what is sought");
    size_t from, to;
    if (!part(s, text, c->arg[1], c->arg[2], &from, &to))
        return -1;
    const char *found = (last ? chars_find_last : chars_find)(s, text->data + from, to - from, what);
    return found ? (int64_t)chars_index(s, text, (size_t)(found - text->data)) : -1;
}

/* Methods that also go from the end, or look there. */
typedef enum side { SIDE_FIRST, SIDE_LAST } side;

static value text_find(sandbox *s, const invocation *c)
{
    return value_int(find(s, c, c->how == SIDE_LAST));
}

static value text_index(sandbox *s, const invocation *c)
{
    int64_t at = find(s, c, c->how == SIDE_LAST);
    if (at < 0)
        sandbox_fail(s, "substring not found; ask with 'in' before");
    return value_int(at);
}

static value text_count(sandbox *s, const invocation *c)
{
    const string *text = c->self.as.string, *what = text_search_text(s, c->arg[0], "what is counted");
    size_t from, to;
    int64_t count = 0;
    if (!part(s, text, c->arg[1], c->arg[2], &from, &to))
        return value_int(0);
    if (what->size == 0)
        return value_int((int64_t)chars_count(s, text->data + from, to - from) + 1);
    for (const char *at; (at = chars_find(s, text->data + from, to - from, what)); count++)
        from = (size_t)(at - text->data) + what->size;
    return value_int(count);
}

static bool stands_at(const string *text, size_t from, size_t to, const string *what, bool end)
{
    return what->size <= to - from && memcmp(text->data + (end ? to - what->size : from), what->data, what->size) == 0;
}

/* Begins with or, how: SIDE_LAST, ends with it. */
static value text_startswith(sandbox *s, const invocation *c)
{
    bool end = c->how == SIDE_LAST;
    size_t from, to;
    bool inside = part(s, c->self.as.string, c->arg[1], c->arg[2], &from, &to);
    if (!value_is_tuple(c->arg[0])) {
        const string *what = text_search_text(s, c->arg[0], "a beginning or an end");
        return value_bool(inside && stands_at(c->self.as.string, from, to, what, end));
    }
    const list *any = c->arg[0].as.list;
    for (size_t i = 0; i < any->count; i++) {
        const string *what = text_search_text(s, any->items[i], "a beginning or an end");
        if (inside && stands_at(c->self.as.string, from, to, what, end))
            return value_bool(true);
    }
    return value_bool(false);
}

/* ---- splitting ---- */

static void add_part(sandbox *s, list *to, const string *text, size_t from, size_t end)
{
    value_list_add(s, to, value_string(s, text->data + from, end - from));
}

static size_t skip(sandbox *s, const string *text, size_t at, bool space)
{
    for (size_t next = at; at < text->size; at = next)
        if (chars_is_space(chars_next(s, text->data, text->size, &next)) != space)
            break;
    return at;
}

static size_t skip_back(sandbox *s, const string *text, size_t at, bool space)
{
    for (size_t next = at; at > 0; at = next)
        if (chars_is_space(chars_before(s, text->data, &next)) != space)
            break;
    return at;
}

static void split_words(sandbox *s, list *to, const string *text, int64_t most)
{
    for (size_t at = skip(s, text, 0, true); at < text->size;) {
        size_t end = most-- == 0 ? text->size : skip(s, text, at, false);
        add_part(s, to, text, at, end);
        at = skip(s, text, end, true);
    }
}

static void split_at(sandbox *s, list *to, const string *text, const string *by, int64_t most)
{
    size_t at = 0;
    for (const char *found; most-- != 0 && (found = chars_find(s, text->data + at, text->size - at, by));) {
        add_part(s, to, text, at, (size_t)(found - text->data));
        at = (size_t)(found - text->data) + by->size;
    }
    add_part(s, to, text, at, text->size);
}

static void turn(list *l)
{
    for (size_t i = 0; i < l->count / 2; i++) {
        value other = l->items[i];
        l->items[i] = l->items[l->count - 1 - i];
        l->items[l->count - 1 - i] = other;
    }
}

static void rsplit_words(sandbox *s, list *to, const string *text, int64_t most)
{
    for (size_t end = skip_back(s, text, text->size, true); end > 0;) {
        size_t at = most-- == 0 ? 0 : skip_back(s, text, end, false);
        add_part(s, to, text, at, end);
        end = skip_back(s, text, at, true);
    }
    turn(to);
}

static void rsplit_at(sandbox *s, list *to, const string *text, const string *by, int64_t most)
{
    size_t end = text->size;
    for (const char *found; most-- != 0 && (found = chars_find_last(s, text->data, end, by));) {
        size_t at = (size_t)(found - text->data);
        add_part(s, to, text, at + by->size, end);
        end = at;
    }
    add_part(s, to, text, 0, end);
    turn(to);
}

static value text_split(sandbox *s, const invocation *c)
{
    bool words = c->arg[0].kind == VALUE_MISSING || c->arg[0].kind == VALUE_NONE;
    const string *by = words ? NULL : text_search_text(s, c->arg[0], "a separator");
    int64_t most = value_whole_or(s, c->arg[1], -1, "maxsplit");
    list *parts = value_list_new(s, LIST_LIST, 0);
    if (!words && by->size == 0)
        sandbox_fail(s, "empty separator; use list to get the characters");
    if (most < 0)
        most = INT64_MAX;
    if (words)
        (c->how == SIDE_LAST ? rsplit_words : split_words)(s, parts, c->self.as.string, most);
    else
        (c->how == SIDE_LAST ? rsplit_at : split_at)(s, parts, c->self.as.string, by, most);
    return value_list(parts);
}

static bool ends_line(int32_t code)
{
    return (code >= '\n' && code <= '\r') || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

list *text_search_lines(sandbox *s, const string *text, bool keep_ends)
{
    list *lines = value_list_new(s, LIST_LIST, 0);
    size_t from = 0;
    for (size_t i = 0; i < text->size;) {
        size_t end = i;
        if (!ends_line(chars_next(s, text->data, text->size, &i)))
            continue;
        if (text->data[end] == '\r' && i < text->size && text->data[i] == '\n')
            i++;
        add_part(s, lines, text, from, keep_ends ? i : end);
        from = i;
    }
    if (from < text->size)
        add_part(s, lines, text, from, text->size);
    return lines;
}

static value text_splitlines(sandbox *s, const invocation *c)
{
    return value_list(text_search_lines(s, c->self.as.string, value_truth(c->arg[0])));
}

static value text_partition(sandbox *s, const invocation *c)
{
    bool back = c->how == SIDE_LAST;
    const string *text = c->self.as.string, *by = text_search_text(s, c->arg[0], "a separator");
    if (by->size == 0)
        sandbox_fail(s, "empty separator; give one");
    const char *found = (back ? chars_find_last : chars_find)(s, text->data, text->size, by);
    value none = value_string(s, "", 0);
    list *three = value_list_new(s, LIST_TUPLE, 3);
    size_t at = found ? (size_t)(found - text->data) : 0;
    value before = found ? value_string(s, text->data, at) : back ? none : c->self;
    value behind = found  ? value_string(s, text->data + at + by->size, text->size - at - by->size)
                   : back ? c->self
                          : none;
    value_list_add(s, three, before);
    value_list_add(s, three, found ? value_of(by) : none);
    value_list_add(s, three, behind);
    return value_list(three);
}

/* ---- questions ---- */

static bool is_alnum(int32_t code)
{
    return chars_is_alpha(code) || chars_is_numeric(code);
}

typedef enum question { ASK_ALNUM, ASK_ALPHA, ASK_DECIMAL, ASK_DIGIT, ASK_NUMERIC, ASK_SPACE } question;

/* Are all characters so, and is there one? */
static value text_all(sandbox *s, const invocation *c)
{
    static bool (*const is[])(int32_t code) = {
        [ASK_ALNUM] = is_alnum,       [ASK_ALPHA] = chars_is_alpha,     [ASK_DECIMAL] = chars_is_decimal,
        [ASK_DIGIT] = chars_is_digit, [ASK_NUMERIC] = chars_is_numeric, [ASK_SPACE] = chars_is_space};
    const string *text = c->self.as.string;
    bool every = text->size > 0;
    for (size_t i = 0; i < text->size && every;)
        every = is[c->how](chars_next(s, text->data, text->size, &i));
    return value_bool(every);
}

/* As the test "lower" or "upper". */
static value text_case(sandbox *s, const invocation *c)
{
    const builtin *test = call_find(s, BUILTIN_TEST, c->how == CHARS_UPPER ? "upper" : "lower");
    return call_builtin(s, test, c->self, &(arguments){0});
}

static value text_isascii(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(c->self.as.string->points == c->self.as.string->size);
}

/* What templates ask for too rarely. */
static value unsupported(sandbox *s, const invocation *c)
{
    (void)c;
    sandbox_fail(s, "this method of texts is not supported; write the template without it");
}

const builtin text_search_table[] = {
    {"find", "sub start end", 1, text_find, SIDE_FIRST},
    {"rfind", "sub start end", 1, text_find, SIDE_LAST},
    {"index", "sub start end", 1, text_index, SIDE_FIRST},
    {"rindex", "sub start end", 1, text_index, SIDE_LAST},
    {"count", "sub start end", 1, text_count, 0},
    {"startswith", "prefix start end", 1, text_startswith, SIDE_FIRST},
    {"endswith", "suffix start end", 1, text_startswith, SIDE_LAST},
    {"split", "sep maxsplit", 0, text_split, SIDE_FIRST},
    {"rsplit", "sep maxsplit", 0, text_split, SIDE_LAST},
    {"splitlines", "keepends", 0, text_splitlines, 0},
    {"partition", "sep", 1, text_partition, SIDE_FIRST},
    {"rpartition", "sep", 1, text_partition, SIDE_LAST},
    {"isdigit", "", 0, text_all, ASK_DIGIT},
    {"isdecimal", "", 0, text_all, ASK_DECIMAL},
    {"isnumeric", "", 0, text_all, ASK_NUMERIC},
    {"isalpha", "", 0, text_all, ASK_ALPHA},
    {"isalnum", "", 0, text_all, ASK_ALNUM},
    {"isspace", "", 0, text_all, ASK_SPACE},
    {"isupper", "", 0, text_case, CHARS_UPPER},
    {"islower", "", 0, text_case, CHARS_LOWER},
    {"isascii", "", 0, text_isascii, 0},
    {"casefold", "*", 0, unsupported, 0},
    {"encode", "*", 0, unsupported, 0},
    {"expandtabs", "*", 0, unsupported, 0},
    {"format_map", "*", 0, unsupported, 0},
    {"isidentifier", "*", 0, unsupported, 0},
    {"isprintable", "*", 0, unsupported, 0},
    {"istitle", "*", 0, unsupported, 0},
    {"maketrans", "*", 0, unsupported, 0},
    {"translate", "*", 0, unsupported, 0},
    {0},
};
