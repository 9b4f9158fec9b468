/* What values of templates are: made, compared, counted, iterated over. */
#include "template/value.h"

#include "template/chars.h"

#include <math.h>
#include <string.h>

value value_text(sandbox *s, const char *data, size_t size)
{
    string *text = sandbox_alloc(s, sizeof *text);
    text->data = data;
    text->size = size;
    text->points = chars_count(s, data, size);
    return value_of(text);
}

value value_string(sandbox *s, const char *data, size_t size)
{
    char *copy = sandbox_alloc(s, size + 1);
    memcpy(copy, data, size);
    return value_text(s, copy, size);
}

value value_undefined(undefined_kind why, const string *name)
{
    return (value){.kind = VALUE_UNDEFINED, .why = (uint8_t)why, .as.string = name};
}

value value_unknown(sandbox *s, const char *reason)
{
    return value_undefined(UNDEFINED_TEXT, value_string(s, reason, strlen(reason)).as.string);
}

list *value_list_new(sandbox *s, list_kind kind, size_t capacity)
{
    list *l = sandbox_alloc(s, sizeof *l);
    l->kind = kind;
    l->capacity = capacity;
    l->items = capacity ? sandbox_array(s, capacity, sizeof *l->items) : NULL;
    return l;
}

void value_list_add(sandbox *s, list *to, value item)
{
    if (to->count == to->capacity) {
        size_t capacity = to->capacity ? 2 * to->capacity : 8;
        value *items = sandbox_array(s, capacity, sizeof *items);
        if (to->count)
            memcpy(items, to->items, to->count * sizeof *items);
        to->items = items;
        to->capacity = capacity;
    }
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is room, so there are items
    to->items[to->count++] = item;
}

value value_pair(sandbox *s, value first, value second)
{
    list *pair = value_list_new(s, LIST_TUPLE, 2);
    value_list_add(s, pair, first);
    value_list_add(s, pair, second);
    return value_list(pair);
}

bool value_is_list(value v, list_kind kind)
{
    return v.kind == VALUE_LIST && v.as.list->kind == kind;
}

bool value_is_tuple(value v)
{
    return value_is_list(v, LIST_TUPLE) || value_is_list(v, LIST_GROUP);
}

bool value_is_callable(value v)
{
    return v.kind == VALUE_MACRO || v.kind == VALUE_FUNCTION || v.kind == VALUE_METHOD || v.kind == VALUE_LOOP ||
           v.kind == VALUE_JOINER || v.kind == VALUE_UNDEFINED;
}

bool value_is_iterable(value v)
{
    return v.kind == VALUE_STRING || v.kind == VALUE_LIST || v.kind == VALUE_DICT || v.kind == VALUE_UNDEFINED ||
           v.kind == VALUE_LOOP;
}

bool value_whole(value v, int64_t *number)
{
    *number = v.kind == VALUE_INT ? v.as.integer : v.kind == VALUE_BOOL && v.as.boolean;
    return v.kind == VALUE_INT || v.kind == VALUE_BOOL;
}

double value_real(value v)
{
    int64_t whole;
    return value_whole(v, &whole) ? (double)whole : v.as.real;
}

const char *value_type(value v)
{
    static const char *const lists[] = {
        [LIST_LIST] = "list",          [LIST_TUPLE] = "tuple",         [LIST_GROUP] = "_GroupTuple",
        [LIST_RANGE] = "range",        [LIST_GENERATOR] = "generator", [LIST_KEYS] = "dict_keys",
        [LIST_VALUES] = "dict_values", [LIST_ITEMS] = "dict_items"};
    static const char *const kinds[] = {[VALUE_MISSING] = "nothing",
                                        [VALUE_UNDEFINED] = "Undefined",
                                        [VALUE_NONE] = "NoneType",
                                        [VALUE_BOOL] = "bool",
                                        [VALUE_INT] = "int",
                                        [VALUE_FLOAT] = "float",
                                        [VALUE_STRING] = "str",
                                        [VALUE_DICT] = "dict",
                                        [VALUE_NAMESPACE] = "Namespace",
                                        [VALUE_MACRO] = "Macro",
                                        [VALUE_LOOP] = "LoopContext",
                                        [VALUE_FUNCTION] = "function",
                                        [VALUE_METHOD] = "method",
                                        [VALUE_CYCLER] = "Cycler",
                                        [VALUE_JOINER] = "Joiner"};
    return v.kind == VALUE_LIST ? lists[v.as.list->kind] : kinds[v.kind];
}

/* -1: it has none. */
static int64_t length_of(value v)
{
    switch (v.kind) {
    case VALUE_UNDEFINED:
        return 0;
    case VALUE_STRING:
        return (int64_t)v.as.string->points;
    case VALUE_LIST:
        return v.as.list->kind == LIST_GENERATOR ? -1 : (int64_t)v.as.list->count;
    case VALUE_DICT:
        return (int64_t)v.as.mapping->count;
    default:
        return -1;
    }
}

bool value_truth(value v)
{
    switch (v.kind) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.as.boolean;
    case VALUE_INT:
        return v.as.integer != 0;
    case VALUE_FLOAT:
        return v.as.real != 0;
    default:
        return length_of(v) != 0;
    }
}

size_t value_need_length(sandbox *s, value v)
{
    int64_t length = length_of(v);
    if (length < 0)
        sandbox_fail(s, "object of type '%s' has no length; make a list of it first", value_type(v));
    return (size_t)length;
}

static list *characters(sandbox *s, const string *text)
{
    list *l = value_list_new(s, LIST_LIST, text->points);
    for (size_t i = 0, from = 0; i < text->size; from = i) {
        chars_next(s, text->data, text->size, &i);
        value_list_add(s, l, value_string(s, text->data + from, i - from));
    }
    return l;
}

list *value_items(sandbox *s, value v)
{
    list *l;
    switch (v.kind) {
    case VALUE_UNDEFINED:
        return value_list_new(s, LIST_LIST, 0);
    case VALUE_STRING:
        return characters(s, v.as.string);
    case VALUE_DICT:
        l = value_list_new(s, LIST_LIST, v.as.mapping->count);
        l->count = v.as.mapping->count;
        if (l->count)
            memcpy(l->items, v.as.mapping->keys, l->count * sizeof *l->items);
        return l;
    case VALUE_LIST:
        sandbox_step(s, v.as.list->count - v.as.list->taken);
        if (v.as.list->kind != LIST_GENERATOR)
            return v.as.list;
        l = value_list_new(s, LIST_LIST, 0);
        if (v.as.list->items)
            l->items = v.as.list->items + v.as.list->taken;
        l->count = l->capacity = v.as.list->count - v.as.list->taken;
        v.as.list->taken = v.as.list->count;
        return l;
    default:
        sandbox_fail(s, "'%s' object is not iterable; give a list", value_type(v));
    }
}

static bool numbers_equal(value a, value b)
{
    int64_t x, y;
    if (value_whole(a, &x) && value_whole(b, &y))
        return x == y;
    return value_real(a) == value_real(b);
}

static bool strings_equal(sandbox *s, const string *a, const string *b)
{
    if (a->size != b->size)
        return false;
    sandbox_step(s, a->size / 64);
    return memcmp(a->data, b->data, a->size) == 0;
}

static bool lists_equal(sandbox *s, value a, value b)
{
    const list *x = a.as.list, *y = b.as.list;
    if (x == y)
        return true;
    bool same = x->kind == y->kind || (value_is_tuple(a) && value_is_tuple(b));
    if (!same || x->count != y->count || x->kind == LIST_GENERATOR || x->kind == LIST_VALUES)
        return false;
    for (size_t i = 0; i < x->count && same; i++)
        same = value_equal(s, x->items[i], y->items[i]);
    return same;
}

static bool mappings_equal(sandbox *s, const mapping *a, const mapping *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; i < a->count && same; i++) {
        const value *other = mapping_get(s, b, a->keys[i]);
        same = other && value_equal(s, a->values[i], *other);
    }
    return same;
}

bool value_equal(sandbox *s, value a, value b)
{
    bool same = false;
    sandbox_enter(s);
    if (value_is_number(a) && value_is_number(b))
        same = numbers_equal(a, b);
    else if (a.kind == b.kind)
        switch (a.kind) {
        case VALUE_UNDEFINED:
        case VALUE_NONE:
            same = true;
            break;
        case VALUE_STRING:
            same = strings_equal(s, a.as.string, b.as.string);
            break;
        case VALUE_LIST:
            same = lists_equal(s, a, b);
            break;
        case VALUE_DICT:
            same = mappings_equal(s, a.as.mapping, b.as.mapping);
            break;
        case VALUE_METHOD:
            same = a.as.method->builtin == b.as.method->builtin && value_equal(s, a.as.method->self, b.as.method->self);
            break;
        default:
            same = a.as.list == b.as.list;
        }
    sandbox_leave(s);
    return same;
}

static int order_numbers(value a, value b)
{
    int64_t x, y;
    if (value_whole(a, &x) && value_whole(b, &y))
        return (x > y) - (x < y);
    double p = value_real(a), q = value_real(b);
    return isnan(p) || isnan(q) ? 2 : (p > q) - (p < q);
}

static int order_strings(sandbox *s, const string *a, const string *b)
{
    size_t n = a->size < b->size ? a->size : b->size;
    sandbox_step(s, n / 64);
    int sign = memcmp(a->data, b->data, n); /* which orders UTF-8 by code points */
    return sign ? (sign > 0) - (sign < 0) : (a->size > b->size) - (a->size < b->size);
}

int value_order(sandbox *s, value a, value b, const char *sign)
{
    sandbox_enter(s);
    int order = 0;
    bool both_lists = value_is_list(a, LIST_LIST) && value_is_list(b, LIST_LIST);
    if (value_is_number(a) && value_is_number(b)) {
        order = order_numbers(a, b);
    } else if (a.kind == VALUE_STRING && b.kind == VALUE_STRING) {
        order = order_strings(s, a.as.string, b.as.string);
    } else if (both_lists || (value_is_tuple(a) && value_is_tuple(b))) {
        const list *x = a.as.list, *y = b.as.list;
        size_t n = x->count < y->count ? x->count : y->count, i = 0;
        while (i < n && value_equal(s, x->items[i], y->items[i]))
            i++;
        order = i < n ? value_order(s, x->items[i], y->items[i], sign) : (x->count > y->count) - (x->count < y->count);
    } else {
        value_need(s, a);
        value_need(s, b);
        sandbox_fail(s, "'%s' is not supported between '%s' and '%s'; compare values of one type", sign, value_type(a),
                     value_type(b));
    }
    sandbox_leave(s);
    return order;
}

bool value_contains(sandbox *s, value container, value item)
{
    if (container.kind == VALUE_STRING) {
        value_need(s, item);
        if (item.kind != VALUE_STRING)
            sandbox_fail(s, "'in <string>' requires a string, not '%s'", value_type(item));
        const string *in = container.as.string, *what = item.as.string;
        return chars_find(s, in->data, in->size, what) != NULL;
    }
    if (container.kind == VALUE_DICT) {
        bool hashable = true;
        value_hash(s, item, &hashable);
        if (!hashable)
            sandbox_fail(s, "unhashable type: '%s'; keys are strings and numbers", value_type(item));
        return mapping_get(s, container.as.mapping, item) != NULL;
    }
    if (!value_is_iterable(container))
        sandbox_fail(s, "argument of type '%s' is not iterable; 'in' needs a list, a text or a dict",
                     value_type(container));
    const list *items = value_items(s, container);
    for (size_t i = 0; i < items->count; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): where it counts some there are items
        if (value_equal(s, items->items[i], item))
            return true;
    return false;
}

_Noreturn static void fail_undefined(sandbox *s, value v)
{
    const char *name = v.why == UNDEFINED_ELEMENT ? "" : v.as.string->data;
    switch ((undefined_kind)v.why) {
    case UNDEFINED_NAME:
        sandbox_fail(s, "'%s' is undefined; pass it as a variable", name);
    case UNDEFINED_ATTRIBUTE:
        sandbox_fail(s, "'%s object' has no attribute '%s'; check the messages", v.owner, name);
    case UNDEFINED_ELEMENT:
        sandbox_fail(s, "%s object has no element %lld; check the messages", v.owner, (long long)v.as.integer);
    case UNDEFINED_UNSAFE:
        sandbox_fail(s,
                     "access to attribute '%s' of '%s' object is unsafe; templates may not change what they are given",
                     name, v.owner);
    default:
        sandbox_fail(s, "%s; check the messages", name);
    }
}

void value_need(sandbox *s, value v)
{
    if (v.kind == VALUE_UNDEFINED)
        fail_undefined(s, v);
}

int64_t value_need_whole(sandbox *s, value v, const char *what)
{
    int64_t whole;
    value_need(s, v);
    if (!value_whole(v, &whole))
        sandbox_fail(s, "%s is to be a whole number, not '%s'", what, value_type(v));
    return whole;
}

int64_t value_whole_or(sandbox *s, value v, int64_t otherwise, const char *what)
{
    return v.kind == VALUE_MISSING || v.kind == VALUE_NONE ? otherwise : value_need_whole(s, v, what);
}
