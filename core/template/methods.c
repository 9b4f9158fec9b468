/* Methods of lists, dictionaries, loops and cyclers. Those of texts are in text_methods.c. */
#include "template/runtime.h"

#include <math.h>
#include <string.h>

static value dict_get(sandbox *s, const invocation *c)
{
    bool hashable = true;
    value_hash(s, c->arg[0], &hashable);
    if (!hashable)
        sandbox_fail(s, "unhashable type: '%s'; keys are strings and numbers", value_type(c->arg[0]));
    const value *item = mapping_get(s, c->self.as.mapping, c->arg[0]);
    return item ? *item : c->arg[1].kind == VALUE_MISSING ? value_none() : c->arg[1];
}

/* how: the list_kind. */
static value dict_view(sandbox *s, const invocation *c)
{
    const mapping *m = c->self.as.mapping;
    list *items = value_list_new(s, (list_kind)c->how, m->count);
    for (size_t i = 0; i < m->count; i++)
        value_list_add(s, items,
                       c->how == LIST_KEYS     ? m->keys[i]
                       : c->how == LIST_VALUES ? m->values[i]
                                               : value_pair(s, m->keys[i], m->values[i]));
    return value_list(items);
}

static value copy(sandbox *s, const invocation *c)
{
    (void)s;
    return c->self; /* nothing can change either of them */
}

static value list_count(sandbox *s, const invocation *c)
{
    int64_t count = 0;
    for (size_t i = 0; i < c->self.as.list->count; i++)
        count += value_equal(s, c->self.as.list->items[i], c->arg[0]);
    return value_int(count);
}

static value list_index(sandbox *s, const invocation *c)
{
    int64_t count = (int64_t)c->self.as.list->count, from = value_whole_or(s, c->arg[1], 0, "start");
    int64_t to = value_whole_or(s, c->arg[2], count, "stop");
    from = from < 0 ? (from + count < 0 ? 0 : from + count) : from;
    to = to < 0 ? to + count : to > count ? count : to;
    for (int64_t i = from; i < to; i++)
        if (value_equal(s, c->self.as.list->items[i], c->arg[0]))
            return value_int(i);
    sandbox_fail(s, "%s is not in list; ask with 'in' before", repr_short(s, c->arg[0]));
}

static value loop_cycle(sandbox *s, const invocation *c)
{
    if (c->raw->count == 0)
        sandbox_fail(s, "no items for cycling given; pass some");
    return c->raw->items[(size_t)c->self.as.loop->index0 % c->raw->count];
}

static value loop_changed(sandbox *s, const invocation *c)
{
    loop *l = c->self.as.loop;
    list *now = value_list_new(s, LIST_TUPLE, c->raw->count);
    for (size_t i = 0; i < c->raw->count; i++)
        value_list_add(s, now, c->raw->items[i]);
    bool changed = l->changed.kind == VALUE_MISSING || !value_equal(s, l->changed, value_list(now));
    l->changed = value_list(now);
    return value_bool(changed);
}

static value cycler_next(sandbox *s, const invocation *c)
{
    (void)s;
    list *l = c->self.as.list;
    value item = l->items[l->taken % l->count];
    l->taken = (l->taken + 1) % l->count;
    return item;
}

static value cycler_reset(sandbox *s, const invocation *c)
{
    (void)s;
    c->self.as.list->taken = 0;
    return value_none();
}

static value float_is_integer(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(isfinite(c->self.as.real) && c->self.as.real == floor(c->self.as.real));
}

const builtin methods_dict[] = {
    {"get", "key default", 1, dict_get, 0},
    {"items", "", 0, dict_view, LIST_ITEMS},
    {"keys", "", 0, dict_view, LIST_KEYS},
    {"values", "", 0, dict_view, LIST_VALUES},
    {"copy", "", 0, copy, 0},
    {0},
};
const builtin methods_sequence[] = {
    {"count", "value", 1, list_count, 0}, {"index", "value start stop", 1, list_index, 0}, {0}};
const builtin methods_list[] = {{"copy", "", 0, copy, 0}, {0}}; /* which tuples lack */
const builtin methods_loop[] = {{"cycle", "*", 0, loop_cycle, 0}, {"changed", "*", 0, loop_changed, 0}, {0}};
const builtin methods_cycler[] = {{"next", "", 0, cycler_next, 0}, {"reset", "", 0, cycler_reset, 0}, {0}};
const builtin methods_float[] = {{"is_integer", "", 0, float_is_integer, 0}, {0}};

const builtin *methods_find(const sandbox *s, value of, const char *name)
{
    switch (of.kind) {
    case VALUE_STRING:
        return call_find(s, BUILTIN_OF_TEXT, name);
    case VALUE_DICT:
        return call_find(s, BUILTIN_OF_DICT, name);
    case VALUE_LIST:
        if (of.as.list->kind >= LIST_GENERATOR)
            return NULL;
        return call_find(s, value_is_list(of, LIST_LIST) ? BUILTIN_OF_LIST : BUILTIN_OF_TUPLE, name);
    case VALUE_LOOP:
        return call_find(s, BUILTIN_OF_LOOP, name);
    case VALUE_CYCLER:
        return call_find(s, BUILTIN_OF_CYCLER, name);
    case VALUE_FLOAT:
        return call_find(s, BUILTIN_OF_FLOAT, name);
    default:
        return NULL;
    }
}
