/* Functions that templates see: range, dict, namespace, cycler, joiner, raise_exception, strftime_now. */
#include "template/runtime.h"

#include <string.h>
#include <time.h>

#define LONGEST_RANGE 100000 /* as in Jinja's sandbox */

static value function_range(sandbox *s, const invocation *c)
{
    int64_t first = value_need_whole(s, c->arg[0], "a limit of a range");
    int64_t from = c->raw->count > 1 ? first : 0,
            to = c->raw->count > 1 ? value_need_whole(s, c->arg[1], "a limit of a range") : first;
    int64_t by = value_whole_or(s, c->arg[2], 1, "the step of a range");
    if (by == 0)
        sandbox_fail(s, "range() c->arg 3 must not be zero; use another step");
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

static value function_dict(sandbox *s, const invocation *c)
{
    return mapping_value(mapping_from(s, c->raw));
}

static value function_namespace(sandbox *s, const invocation *c)
{
    mapping *m = mapping_from(s, c->raw);
    for (size_t i = 0; i < m->count; i++)
        if (m->keys[i].kind == VALUE_STRING && m->keys[i].as.string->data[0] == '_')
            sandbox_fail(s, "attribute '%s' of a namespace begins with an underscore; rename it",
                         m->keys[i].as.string->data);
    return (value){.kind = VALUE_NAMESPACE, .as.mapping = m};
}

static value function_cycler(sandbox *s, const invocation *c)
{
    list *items = value_list_new(s, LIST_LIST, c->raw->count);
    if (c->raw->count == 0 || c->raw->named_count)
        sandbox_fail(s, "cycler takes one value or more; pass some");
    for (size_t i = 0; i < c->raw->count; i++)
        value_list_add(s, items, c->raw->items[i]);
    return (value){.kind = VALUE_CYCLER, .as.list = items};
}

static value function_joiner(sandbox *s, const invocation *c)
{
    list *items = value_list_new(s, LIST_LIST, 1);
    value_list_add(s, items, c->arg[0].kind == VALUE_MISSING ? value_string(s, ", ", 2) : c->arg[0]);
    return (value){.kind = VALUE_JOINER, .as.list = items};
}

static value function_raise(sandbox *s, const invocation *c)
{
    sandbox_fail(s, "the template refuses this conversation: %s", repr_str(s, c->arg[0])->data);
}

static value function_strftime(sandbox *s, const invocation *c)
{
    char text[1024];
    struct tm local;
    time_t now = (time_t)s->now;
    if (c->arg[0].kind != VALUE_STRING || c->arg[0].as.string->size > 200)
        sandbox_fail(s, "strftime_now takes a short text; write strftime_now('%%Y-%%m-%%d')");
    if (!localtime_r(&now, &local))
        sandbox_fail(s, "the time %lld is none; pass another", (long long)s->now);
    const string *format = c->arg[0].as.string;
    if (format->size == 0)
        return value_of(format);
    sandbox_step(s, format->size * REPR_NUMBER_STEPS);
    return value_string(s, text, strftime(text, sizeof text, format->data, &local));
}

const builtin functions_table[] = {
    {"range", "start stop step", 1, function_range, 0},
    {"dict", "*", 0, function_dict, 0},
    {"namespace", "*", 0, function_namespace, 0},
    {"cycler", "*", 0, function_cycler, 0},
    {"joiner", "sep", 0, function_joiner, 0},
    {"raise_exception", "message", 1, function_raise, 0},
    {"strftime_now", "format", 1, function_strftime, 0},
    {0},
};
