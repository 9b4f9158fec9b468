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

static int64_t find(sandbox *s, value self, const value *arg, bool last)
{
    const string *text = self.as.string, *what = text_search_text(s, arg[0], "what is sought");
    size_t from, to;
    if (!part(s, text, arg[1], arg[2], &from, &to))
        return -1;
    const char *found = (last ? chars_find_last : chars_find)(s, text->data + from, to - from, what);
    return found ? (int64_t)chars_index(s, text, (size_t)(found - text->data)) : -1;
}

static value text_find(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return value_int(find(s, self, arg, false));
}

static value text_rfind(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return value_int(find(s, self, arg, true));
}

static value text_index(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    int64_t at = find(s, self, arg, false);
    if (at < 0)
        sandbox_fail(s, "substring not found; ask with 'in' before");
    return value_int(at);
}

static value text_rindex(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    int64_t at = find(s, self, arg, true);
    if (at < 0)
        sandbox_fail(s, "substring not found; ask with 'in' before");
    return value_int(at);
}

static value text_count(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    const string *text = self.as.string, *what = text_search_text(s, arg[0], "what is counted");
    size_t from, to;
    int64_t count = 0;
    if (!part(s, text, arg[1], arg[2], &from, &to))
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

static value begins_or_ends(sandbox *s, value self, const value *arg, bool end)
{
    size_t from, to;
    bool inside = part(s, self.as.string, arg[1], arg[2], &from, &to);
    if (!value_is_tuple(arg[0])) {
        const string *what = text_search_text(s, arg[0], "a beginning or an end");
        return value_bool(inside && stands_at(self.as.string, from, to, what, end));
    }
    const list *any = arg[0].as.list;
    for (size_t i = 0; i < any->count; i++) {
        const string *what = text_search_text(s, any->items[i], "a beginning or an end");
        if (inside && stands_at(self.as.string, from, to, what, end))
            return value_bool(true);
    }
    return value_bool(false);
}

static value text_startswith(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return begins_or_ends(s, self, arg, false);
}

static value text_endswith(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return begins_or_ends(s, self, arg, true);
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

static value split(sandbox *s, value self, const value *arg, bool back)
{
    bool words = arg[0].kind == VALUE_MISSING || arg[0].kind == VALUE_NONE;
    const string *by = words ? NULL : text_search_text(s, arg[0], "a separator");
    int64_t most = value_whole_or(s, arg[1], -1, "maxsplit");
    list *parts = value_list_new(s, LIST_LIST, 0);
    if (!words && by->size == 0)
        sandbox_fail(s, "empty separator; use list to get the characters");
    if (most < 0)
        most = INT64_MAX;
    if (words)
        (back ? rsplit_words : split_words)(s, parts, self.as.string, most);
    else
        (back ? rsplit_at : split_at)(s, parts, self.as.string, by, most);
    return value_list(parts);
}

static value text_split(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return split(s, self, arg, false);
}

static value text_rsplit(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return split(s, self, arg, true);
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

static value text_splitlines(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return value_list(text_search_lines(s, self.as.string, value_truth(s, arg[0])));
}

static value partition(sandbox *s, value self, const value *arg, bool back)
{
    const string *text = self.as.string, *by = text_search_text(s, arg[0], "a separator");
    if (by->size == 0)
        sandbox_fail(s, "empty separator; give one");
    const char *found = (back ? chars_find_last : chars_find)(s, text->data, text->size, by);
    value none = value_string(s, "", 0);
    list *three = value_list_new(s, LIST_TUPLE, 3);
    size_t at = found ? (size_t)(found - text->data) : 0;
    value before = found ? value_string(s, text->data, at) : back ? none : self;
    value behind = found ? value_string(s, text->data + at + by->size, text->size - at - by->size) : back ? self : none;
    value_list_add(s, three, before);
    value_list_add(s, three, found ? value_of(by) : none);
    value_list_add(s, three, behind);
    return value_list(three);
}

static value text_partition(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return partition(s, self, arg, false);
}

static value text_rpartition(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    return partition(s, self, arg, true);
}

/* ---- questions ---- */

/* Are all characters so, and is there one? */
static value all(sandbox *s, value self, bool (*is)(int32_t code))
{
    const string *text = self.as.string;
    bool every = text->size > 0;
    for (size_t i = 0; i < text->size && every;)
        every = is(chars_next(s, text->data, text->size, &i));
    return value_bool(every);
}

static bool is_alnum(int32_t code)
{
    return chars_is_alpha(code) || chars_is_numeric(code);
}

static value text_isdecimal(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return all(s, self, chars_is_decimal);
}

static value text_isdigit(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return all(s, self, chars_is_digit);
}

static value text_isnumeric(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return all(s, self, chars_is_numeric);
}

static value text_isalpha(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return all(s, self, chars_is_alpha);
}

static value text_isalnum(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return all(s, self, is_alnum);
}

static value text_isspace(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return all(s, self, chars_is_space);
}

static value ask(sandbox *s, value self, const char *test)
{
    return call_builtin(s, call_find(s, BUILTIN_TEST, test), self, &(arguments){0});
}

static value text_isupper(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return ask(s, self, "upper");
}

static value text_islower(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return ask(s, self, "lower");
}

static value text_isascii(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)s, (void)arg, (void)raw;
    return value_bool(self.as.string->points == self.as.string->size);
}

/* What templates ask for too rarely. */
static value unsupported(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)arg, (void)raw;
    sandbox_fail(s, "this method of texts is not supported; write the template without it");
}

const builtin text_search_table[] = {
    {"find", "sub start end", 1, text_find},
    {"rfind", "sub start end", 1, text_rfind},
    {"index", "sub start end", 1, text_index},
    {"rindex", "sub start end", 1, text_rindex},
    {"count", "sub start end", 1, text_count},
    {"startswith", "prefix start end", 1, text_startswith},
    {"endswith", "suffix start end", 1, text_endswith},
    {"split", "sep maxsplit", 0, text_split},
    {"rsplit", "sep maxsplit", 0, text_rsplit},
    {"splitlines", "keepends", 0, text_splitlines},
    {"partition", "sep", 1, text_partition},
    {"rpartition", "sep", 1, text_rpartition},
    {"isdigit", "", 0, text_isdigit},
    {"isdecimal", "", 0, text_isdecimal},
    {"isnumeric", "", 0, text_isnumeric},
    {"isalpha", "", 0, text_isalpha},
    {"isalnum", "", 0, text_isalnum},
    {"isspace", "", 0, text_isspace},
    {"isupper", "", 0, text_isupper},
    {"islower", "", 0, text_islower},
    {"isascii", "", 0, text_isascii},
    {"casefold", "*", 0, unsupported},
    {"encode", "*", 0, unsupported},
    {"expandtabs", "*", 0, unsupported},
    {"format_map", "*", 0, unsupported},
    {"isidentifier", "*", 0, unsupported},
    {"isprintable", "*", 0, unsupported},
    {"istitle", "*", 0, unsupported},
    {"maketrans", "*", 0, unsupported},
    {"translate", "*", 0, unsupported},
    {0},
};
