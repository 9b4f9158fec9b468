/* Methods of lists, dictionaries, loops and cyclers. Those of texts are in text_methods.c. */
#include "template/runtime.h"

#include <math.h>
#include <string.h>

static value dict_get(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    bool hashable = true;
    value_hash(s, arg[0], &hashable);
    if (!hashable)
        sandbox_fail(s, "unhashable type: '%s'; keys are strings and numbers", value_type(arg[0]));
    const value *item = mapping_get(s, self.as.mapping, arg[0]);
    return item ? *item : arg[1].kind == VALUE_MISSING ? value_none() : arg[1];
}

static value view(sandbox *s, const mapping *m, list_kind kind)
{
    list *items = value_list_new(s, kind, m->count);
    for (size_t i = 0; i < m->count; i++)
        value_list_add(s, items,
                       kind == LIST_KEYS     ? m->keys[i]
                       : kind == LIST_VALUES ? m->values[i]
                                             : value_pair(s, m->keys[i], m->values[i]));
    return value_list(items);
}

static value dict_items(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return view(s, self.as.mapping, LIST_ITEMS);
}

static value dict_keys(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return view(s, self.as.mapping, LIST_KEYS);
}

static value dict_values(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return view(s, self.as.mapping, LIST_VALUES);
}

static value copy(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)s, (void)arg, (void)raw;
    return self; /* nothing can change either of them */
}

static value list_count(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    int64_t count = 0;
    for (size_t i = 0; i < self.as.list->count; i++)
        count += value_equal(s, self.as.list->items[i], arg[0]);
    return value_int(count);
}

static value list_index(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    int64_t count = (int64_t)self.as.list->count, from = value_whole_or(s, arg[1], 0, "start");
    int64_t to = value_whole_or(s, arg[2], count, "stop");
    from = from < 0 ? (from + count < 0 ? 0 : from + count) : from;
    to = to < 0 ? to + count : to > count ? count : to;
    for (int64_t i = from; i < to; i++)
        if (value_equal(s, self.as.list->items[i], arg[0]))
            return value_int(i);
    sandbox_fail(s, "%s is not in list; ask with 'in' before", repr_short(s, arg[0]));
}

static value loop_cycle(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg;
    if (raw->count == 0)
        sandbox_fail(s, "no items for cycling given; pass some");
    return raw->items[(size_t)self.as.loop->index0 % raw->count];
}

static value loop_changed(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg;
    loop *l = self.as.loop;
    list *now = value_list_new(s, LIST_TUPLE, raw->count);
    for (size_t i = 0; i < raw->count; i++)
        value_list_add(s, now, raw->items[i]);
    bool changed = l->changed.kind == VALUE_MISSING || !value_equal(s, l->changed, value_list(now));
    l->changed = value_list(now);
    return value_bool(changed);
}

static value cycler_next(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)s, (void)arg, (void)raw;
    list *l = self.as.list;
    value item = l->items[l->taken % l->count];
    l->taken = (l->taken + 1) % l->count;
    return item;
}

static value cycler_reset(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)s, (void)arg, (void)raw;
    self.as.list->taken = 0;
    return value_none();
}

static value float_is_integer(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)s, (void)arg, (void)raw;
    return value_bool(isfinite(self.as.real) && self.as.real == floor(self.as.real));
}

const builtin methods_dict[] = {
    {"get", "key default", 1, dict_get}, {"items", "", 0, dict_items}, {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values},      {"copy", "", 0, copy},        {0}};
const builtin methods_sequence[] = {
    {"count", "value", 1, list_count}, {"index", "value start stop", 1, list_index}, {0}};
const builtin methods_list[] = {{"copy", "", 0, copy}, {0}}; /* which tuples lack */
const builtin methods_loop[] = {{"cycle", "*", 0, loop_cycle}, {"changed", "*", 0, loop_changed}, {0}};
const builtin methods_cycler[] = {{"next", "", 0, cycler_next}, {"reset", "", 0, cycler_reset}, {0}};
const builtin methods_float[] = {{"is_integer", "", 0, float_is_integer}, {0}};

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
