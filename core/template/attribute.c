/* x.name and x[key] in the sandbox: attributes before keys with a dot, keys before attributes in brackets, and nothing
 * that changes what the host gave. */
#include "template/chars.h"
#include "template/runtime.h"

#include <string.h>

static value undefined_of(value of, const string *name, undefined_kind why)
{
    value v = value_undefined(why, name);
    v.owner = value_type(of);
    return v;
}

/* Attributes that are values; VALUE_MISSING: there is none of this name. */
static value plain_attribute(sandbox *s, value of, const string *name)
{
    const char *n = name->data;
    const value *item = NULL;
    if (of.kind == VALUE_LOOP)
        return loop_attribute(s, of.as.loop, name);
    if (of.kind == VALUE_NAMESPACE)
        item = mapping_get(s, of.as.mapping, value_of(name));
    if (value_is_list(of, LIST_GROUP) && (strcmp(n, "grouper") == 0 || strcmp(n, "list") == 0))
        item = &of.as.list->items[n[0] == 'l'];
    if (of.kind == VALUE_CYCLER && strcmp(n, "current") == 0) {
        const list *l = of.as.list;
        item = &l->items[l->taken % l->count];
    }
    if (of.kind == VALUE_MACRO && strcmp(n, "name") == 0)
        return value_of(of.as.macro->node->name);
    if (of.kind == VALUE_MACRO &&
        (strcmp(n, "arguments") == 0 || strcmp(n, "caller") == 0 || strncmp(n, "catch_", 6) == 0))
        sandbox_fail(s, "what a macro takes is not supported as a value; write it out");
    if (value_is_list(of, LIST_RANGE)) {
        const list *l = of.as.list;
        if (strcmp(n, "start") == 0 || strcmp(n, "stop") == 0 || strcmp(n, "step") == 0)
            return value_int(n[2] == 'a' ? l->from : n[2] == 'o' ? l->to : l->by);
    }
    return item ? *item : (value){0};
}

static bool changes(value of, const char *name)
{
    static const char *const lists[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
    bool is_list = value_is_list(of, LIST_LIST);
    size_t count = is_list                 ? sizeof lists / sizeof lists[0]
                   : of.kind == VALUE_DICT ? sizeof dicts / sizeof dicts[0]
                                           : 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, is_list ? lists[i] : dicts[i]) == 0)
            return true;
    return false;
}

value attribute_only(sandbox *s, value of, const string *name, bool *found)
{
    const char *n = name->data;
    size_t size = name->size;
    *found = true;
    if (changes(of, n) || (size > 4 && memcmp(n, "__", 2) == 0 && memcmp(n + size - 2, "__", 2) == 0))
        return undefined_of(of, name, UNDEFINED_UNSAFE);
    value v = plain_attribute(s, of, name);
    if (v.kind != VALUE_MISSING)
        return v;
    const builtin *b = methods_find(s, of, n);
    if (b) {
        method *m = sandbox_alloc(s, sizeof *m);
        m->self = of;
        m->builtin = b;
        return (value){.kind = VALUE_METHOD, .as.method = m};
    }
    *found = false;
    return undefined_of(of, name, UNDEFINED_ATTRIBUTE);
}

value attribute_get(sandbox *s, value of, const string *name)
{
    bool found;
    value_need(s, of);
    value v = attribute_only(s, of, name, &found);
    const value *item = !found && of.kind == VALUE_DICT ? mapping_get(s, of.as.mapping, value_of(name)) : NULL;
    return item ? *item : v;
}

static value element_at(sandbox *s, value of, int64_t index)
{
    int64_t count = of.kind == VALUE_STRING ? (int64_t)of.as.string->points : (int64_t)of.as.list->count;
    int64_t at = index < 0 ? index + count : index;
    if (at < 0 || at >= count) {
        value v = {.kind = VALUE_UNDEFINED, .why = UNDEFINED_ELEMENT, .as.integer = index};
        v.owner = value_type(of);
        return v;
    }
    if (of.kind != VALUE_STRING)
        return of.as.list->items[at];
    const string *text = of.as.string;
    size_t from = chars_offset(s, text, (size_t)at), end = from;
    chars_next(s, text->data, text->size, &end);
    return value_string(s, text->data + from, end - from);
}

static bool has_elements(value v)
{
    return v.kind == VALUE_STRING ||
           (v.kind == VALUE_LIST && v.as.list->kind != LIST_GENERATOR && v.as.list->kind < LIST_KEYS);
}

value attribute_element(sandbox *s, value of, value key)
{
    int64_t index;
    bool found;
    value_need(s, of);
    if (of.kind == VALUE_DICT) {
        const value *item = mapping_get(s, of.as.mapping, key);
        if (item)
            return *item;
    } else if (has_elements(of) && value_whole(key, &index)) {
        return element_at(s, of, index);
    }
    if (key.kind == VALUE_STRING)
        return attribute_only(s, of, key.as.string, &found);
    return undefined_of(of, repr_str(s, value_string(s, repr_short(s, key), strlen(repr_short(s, key)))),
                        UNDEFINED_ATTRIBUTE);
}

/* A limit of a slice, within 0..count (or -1..count-1 backwards). */
static int64_t limit(sandbox *s, value v, int64_t otherwise, int64_t count, bool back)
{
    if (v.kind == VALUE_MISSING || v.kind == VALUE_NONE)
        return otherwise;
    int64_t at = value_need_whole(s, v, "a limit of a slice");
    if (at < 0)
        at = at < -count ? -1 : at + count;
    if (at < 0)
        return back ? -1 : 0;
    return at >= count ? (back ? count - 1 : count) : at;
}

value attribute_slice(sandbox *s, value of, value from, value to, value by)
{
    value_need(s, of);
    if (!has_elements(of)) /* Python's own, unlike an index, which may be missing */
        sandbox_fail(s, "'%s' object has no slices; take one of a text or a list", value_type(of));
    int64_t count = (int64_t)value_need_length(s, of), step = value_whole_or(s, by, 1, "the step of a slice");
    if (step == 0)
        sandbox_fail(s, "slice step cannot be zero; use another");
    int64_t at = limit(s, from, step > 0 ? 0 : count - 1, count, step < 0);
    int64_t end = limit(s, to, step > 0 ? count : -1, count, step < 0);
    if (step == 1 && of.kind == VALUE_STRING) {
        const string *text = of.as.string;
        size_t first = chars_offset(s, text, (size_t)at);
        size_t last = end > at ? chars_offset(s, text, (size_t)end) : first;
        return value_string(s, text->data + first, last - first);
    }
    const list *items = of.kind == VALUE_LIST ? of.as.list : value_items(s, of);
    list *some = value_list_new(s, value_is_tuple(of) ? LIST_TUPLE : LIST_LIST, 0);
    while (step > 0 ? at < end : at > end) {
        value_list_add(s, some, items->items[at]);
        if (__builtin_add_overflow(at, step, &at))
            break;
    }
    if (of.kind != VALUE_STRING)
        return value_list(some);
    piece_text text = {0};
    for (size_t i = 0; i < some->count; i++)
        repr_add_str(s, &text, some->items[i]);
    return repr_done(s, &text);
}

/* One name of a path; digits are an index. */
static value path_step(sandbox *s, value of, const char *name, size_t size)
{
    bool digits = size > 0 && strspn(name, "0123456789") >= size && size < 10;
    int64_t index = 0;
    for (size_t i = 0; i < size && digits; i++)
        index = index * 10 + (name[i] - '0');
    return attribute_element(s, of, digits ? value_int(index) : value_string(s, name, size));
}

value attribute_path(sandbox *s, value of, value path, value otherwise)
{
    if (path.kind == VALUE_MISSING || path.kind == VALUE_NONE)
        return of;
    if (path.kind != VALUE_STRING) {
        value v = attribute_element(s, of, path);
        return v.kind == VALUE_UNDEFINED && otherwise.kind != VALUE_MISSING ? otherwise : v;
    }
    const char *rest = path.as.string->data;
    for (bool more = true; more;) {
        size_t n = strcspn(rest, ".");
        of = path_step(s, of, rest, n);
        if (of.kind == VALUE_UNDEFINED && otherwise.kind != VALUE_MISSING)
            of = otherwise;
        more = rest[n] == '.';
        rest += n + more;
    }
    return of;
}
