/* Calls of what the host offers and of other values. */
#include "template/runtime.h"

#include <string.h>

#define CALL_STEPS 8 /* finding the function, and the few numbers that it may read and write */

const builtin *call_find(const sandbox *s, builtin_kind kind, const char *name)
{
    for (const builtin_table *t = s->builtins; t->rows; t++)
        for (const builtin *b = t->rows; t->kind == kind && b->name; b++)
            if (b->name[0] == name[0] && strcmp(b->name, name) == 0)
                return b;
    return NULL;
}

/* The position of a name among parameters written as "a b c". */
static size_t position(const char *parameters, const string *name, size_t *count)
{
    size_t found = SIZE_MAX;
    *count = 0;
    for (const char *word = parameters; *word; ++*count) {
        size_t n = strcspn(word, " ");
        if (name && n == name->size && memcmp(word, name->data, n) == 0)
            found = *count;
        word += n + (word[n] == ' ');
    }
    return found;
}

static size_t text_size(value v)
{
    return v.kind == VALUE_STRING ? v.as.string->size : 0;
}

/* A call takes steps by the texts that it gets, whatever the function does with them: so one that is added later cannot
 * look through a text for nothing. Items of lists are charged by value_items, since many calls read only how many there
 * are. */
static void charge(sandbox *s, value self, const arguments *given)
{
    size_t bytes = text_size(self);
    for (size_t i = 0; i < given->count; i++)
        bytes += text_size(given->items[i]);
    for (size_t i = 0; i < given->named_count; i++)
        bytes += text_size(given->named[i]);
    sandbox_step(s, CALL_STEPS + given->count + given->named_count + bytes / 32);
}

value call_builtin(sandbox *s, const builtin *b, value self, const arguments *given)
{
    value arg[BUILTIN_PARAMETERS] = {0};
    const invocation c = {self, arg, given, b->how};
    size_t count;
    charge(s, self, given);
    if (b->parameters[0] == '*')
        return b->call(s, &c);
    position(b->parameters, NULL, &count);
    if (given->count > count)
        sandbox_fail(s, "'%s' takes at most %zu arguments, not %zu", b->name, count, given->count);
    for (size_t i = 0; i < given->count; i++)
        arg[i] = given->items[i];
    for (size_t i = 0; i < given->named_count; i++) {
        size_t at = position(b->parameters, given->names[i], &count);
        if (at == SIZE_MAX)
            sandbox_fail(s, "'%s' has no argument '%s'; it has '%s'", b->name, given->names[i]->data, b->parameters);
        if (arg[at].kind != VALUE_MISSING)
            sandbox_fail(s, "'%s' got its argument '%s' twice; give it once", b->name, given->names[i]->data);
        arg[at] = given->named[i];
    }
    for (size_t i = 0; i < b->required; i++)
        if (arg[i].kind == VALUE_MISSING)
            sandbox_fail(s, "'%s' lacks an argument; it has '%s'", b->name, b->parameters);
    return b->call(s, &c);
}

static value call_joiner(sandbox *s, value callee)
{
    list *state = callee.as.list; /* its separator; used once `taken` */
    return state->taken++ ? state->items[0] : value_string(s, "", 0);
}

value call_value(sandbox *s, value callee, const arguments *given)
{
    switch (callee.kind) {
    case VALUE_MACRO:
        return callee.as.macro->call(s, callee.as.macro, given);
    case VALUE_FUNCTION:
        return call_builtin(s, callee.as.function, value_none(), given);
    case VALUE_METHOD:
        return call_builtin(s, callee.as.method->builtin, callee.as.method->self, given);
    case VALUE_LOOP:
        if (given->count != 1 || given->named_count)
            sandbox_fail(s, "loop() takes one argument; pass what to loop over");
        return callee.as.loop->again(s, callee.as.loop, given->items[0]);
    case VALUE_JOINER:
        return call_joiner(s, callee);
    default:
        value_need(s, callee);
        sandbox_fail(s, "'%s' object is not callable; check the template", value_type(callee));
    }
}

value call_filter(sandbox *s, const string *name, value of, const arguments *given)
{
    const builtin *b = call_find(s, BUILTIN_FILTER, name->data);
    if (!b)
        sandbox_fail(s, "the filter '%s' is not supported; write the template without it", name->data);
    sandbox_enter(s);
    value v = call_builtin(s, b, of, given);
    sandbox_leave(s);
    return v;
}

bool call_test(sandbox *s, const string *name, value of, const arguments *given)
{
    const builtin *b = call_find(s, BUILTIN_TEST, name->data);
    if (!b)
        sandbox_fail(s, "the test '%s' is not supported; write the template without it", name->data);
    return value_truth(call_builtin(s, b, of, given));
}
