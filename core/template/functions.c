/* Functions that templates see: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include "template/runtime.h"

#include <string.h>
#include <time.h>

#define LONGEST_RANGE 100000 /* as in Jinja's sandbox */

static value function_range(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self;
    int64_t first = value_need_whole(s, arg[0], "a limit of a range");
    int64_t from = raw->count > 1 ? first : 0,
            to = raw->count > 1 ? value_need_whole(s, arg[1], "a limit of a range") : first;
    int64_t by = value_whole_or(s, arg[2], 1, "the step of a range");
    if (by == 0)
        sandbox_fail(s, "range() arg 3 must not be zero; use another step");
    list *items = value_list_new(s, LIST_RANGE, 0);
    items->from = from;
    items->to = to;
    items->by = by;
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
        if (items->count == LONGEST_RANGE)
            sandbox_fail(s, "range too big; the sandbox blocks ranges larger than %d", LONGEST_RANGE);
        value_list_add(s, items, value_int(i));
        if (__builtin_add_overflow(i, by, &i))
            break;
    }
    return value_list(items);
}

/* dict(mapping or pairs, name=value, ...) */
static mapping *mapping_from(sandbox *s, const arguments *raw)
{
    mapping *m = mapping_new(s);
    if (raw->count > 1)
        sandbox_fail(s, "dict expected at most 1 argument, got %zu", raw->count);
    if (raw->count && (raw->items[0].kind == VALUE_DICT || raw->items[0].kind == VALUE_NAMESPACE)) {
        mapping_update(s, m, raw->items[0].as.mapping);
    } else if (raw->count) {
        const list *pairs = value_items(s, raw->items[0]);
        for (size_t i = 0; i < pairs->count; i++) {
            const list *pair = value_items(s, pairs->items[i]);
            if (pair->count != 2)
                sandbox_fail(s, "dict takes pairs of a key and a value, not %zu values", pair->count);
            mapping_set(s, m, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < raw->named_count; i++)
        mapping_set(s, m, value_of(raw->names[i]), raw->named[i]);
    return m;
}

static value function_dict(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)arg;
    return mapping_value(mapping_from(s, raw));
}

static value function_namespace(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)arg;
    mapping *m = mapping_from(s, raw);
    for (size_t i = 0; i < m->count; i++)
        if (m->keys[i].kind == VALUE_STRING && m->keys[i].as.string->data[0] == '_')
            sandbox_fail(s, "attribute '%s' of a namespace begins with an underscore; rename it",
                         m->keys[i].as.string->data);
    return (value){.kind = VALUE_NAMESPACE, .as.mapping = m};
}

static value function_cycler(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)arg;
    list *items = value_list_new(s, LIST_LIST, raw->count);
    if (raw->count == 0 || raw->named_count)
        sandbox_fail(s, "cycler takes one value or more; pass some");
    for (size_t i = 0; i < raw->count; i++)
        value_list_add(s, items, raw->items[i]);
    return (value){.kind = VALUE_CYCLER, .as.list = items};
}

static value function_joiner(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)raw;
    list *items = value_list_new(s, LIST_LIST, 1);
    value_list_add(s, items, arg[0].kind == VALUE_MISSING ? value_string(s, ", ", 2) : arg[0]);
    return (value){.kind = VALUE_JOINER, .as.list = items};
}

static value function_raise(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)raw;
    sandbox_fail(s, "the template refuses this conversation: %s", repr_str(s, arg[0])->data);
}

static value function_strftime(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)self, (void)raw;
    char text[1024];
    struct tm local;
    time_t now = (time_t)s->now;
    if (arg[0].kind != VALUE_STRING || arg[0].as.string->size > 200)
        sandbox_fail(s, "strftime_now takes a short text; write strftime_now('%%Y-%%m-%%d')");
    if (!localtime_r(&now, &local))
        sandbox_fail(s, "the time %lld is none; pass another", (long long)s->now);
    const string *format = arg[0].as.string;
    if (format->size == 0)
        return value_of(format);
    sandbox_step(s, format->size * REPR_NUMBER_STEPS);
    return value_string(s, text, strftime(text, sizeof text, format->data, &local));
}

const builtin functions_table[] = {
    {"range", "start stop step", 1, function_range},
    {"dict", "*", 0, function_dict},
    {"namespace", "*", 0, function_namespace},
    {"cycler", "*", 0, function_cycler},
    {"joiner", "sep", 0, function_joiner},
    {"raise_exception", "message", 1, function_raise},
    {"strftime_now", "format", 1, function_strftime},
    {0},
};
