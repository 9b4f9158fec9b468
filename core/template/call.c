/* Calls: macros, and what the host offers. */
#include "template/runtime.h"

#include <string.h>

#define CALL_STEPS 8 /* finding the function, and the few numbers that it may read and write */

static const struct {
    builtin_kind kind;
    const builtin *rows;
} tables[] = {
    {BUILTIN_FILTER, filters_table},      {BUILTIN_FILTER, filters_list_table}, {BUILTIN_FILTER, filters_text_table},
    {BUILTIN_TEST, predicates_table},     {BUILTIN_FUNCTION, functions_table},  {BUILTIN_OF_TEXT, text_methods_table},
    {BUILTIN_OF_TEXT, text_search_table}, {BUILTIN_OF_DICT, methods_dict},      {BUILTIN_OF_LIST, methods_sequence},
    {BUILTIN_OF_LIST, methods_list},      {BUILTIN_OF_TUPLE, methods_sequence}, {BUILTIN_OF_LOOP, methods_loop},
    {BUILTIN_OF_CYCLER, methods_cycler},  {BUILTIN_OF_FLOAT, methods_float},
};

const builtin *call_find(builtin_kind kind, const char *name)
{
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const builtin *b = tables[i].rows; tables[i].kind == kind && b->name; b++)
            if (b->name[0] == name[0] && strcmp(b->name, name) == 0)
                return b;
    return NULL;
}

const builtin *call_at(builtin_kind kind, size_t index)
{
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const builtin *b = tables[i].rows; tables[i].kind == kind && b->name; b++)
            if (index-- == 0)
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
    size_t count;
    charge(s, self, given);
    if (b->parameters[0] == '*')
        return b->call(s, self, arg, given);
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
    return b->call(s, self, arg, given);
}

/* Takes a named argument away; false: there is none. */
static bool take_named(sandbox *s, arguments *from, const char *name, value *v)
{
    sandbox_step(s, from->named_count / 4);
    for (size_t i = 0; i < from->named_count; i++)
        if (strcmp(from->names[i]->data, name) == 0) {
            *v = from->named[i];
            from->named_count--;
            for (size_t k = i; k < from->named_count; k++) {
                from->names[k] = from->names[k + 1];
                from->named[k] = from->named[k + 1];
            }
            return true;
        }
    return false;
}

static void bind_parameter(sandbox *s, const macro *m, scope *in, size_t i, arguments *given)
{
    const node *n = m->node;
    const string *name = n->items[i]->name;
    size_t first_default = n->count - n->default_count;
    value v;
    if (i < given->count)
        v = given->items[i];
    else if (!take_named(s, given, name->data, &v)) {
        if (i >= first_default) {
            v = evaluate(s, in, n->defaults[i - first_default]);
        } else {
            piece_text text = {0};
            repr_add_text(s, &text, "parameter '");
            repr_add_text(s, &text, name->data);
            repr_add_text(s, &text, "' was not provided");
            v = value_undefined(UNDEFINED_TEXT, repr_done(s, &text).as.string);
        }
    }
    scope_set(s, in, name, v);
}

static void bind_special(sandbox *s, const macro *m, scope *in, arguments *given)
{
    static const string caller = {"caller", 6, 6, false}, varargs = {"varargs", 7, 7, false},
                        kwargs = {"kwargs", 6, 6, false};
    value v;
    if (m->node->flag & CATCHES_CALLER) {
        bool own = false; /* a parameter of this name */
        for (size_t i = 0; i < m->node->count; i++)
            own = own || strcmp(m->node->items[i]->name->data, "caller") == 0;
        if (!own)
            scope_set(s, in, &caller, take_named(s, given, "caller", &v) ? v : value_unknown(s, "No caller defined"));
    }
    if (m->node->flag & CATCHES_NAMED) {
        mapping *rest = mapping_new(s);
        for (size_t i = 0; i < given->named_count; i++)
            mapping_set(s, rest, value_of(given->names[i]), given->named[i]);
        scope_set(s, in, &kwargs, mapping_value(rest));
    } else if (given->named_count) {
        sandbox_fail(s, "macro '%s' takes no keyword argument '%s'", m->node->name->data, given->names[0]->data);
    }
    if (m->node->flag & CATCHES_POSITIONAL) {
        list *rest = value_list_new(s, LIST_TUPLE, 0);
        for (size_t i = m->node->count; i < given->count; i++)
            value_list_add(s, rest, given->items[i]);
        scope_set(s, in, &varargs, value_list(rest));
    } else if (given->count > m->node->count) {
        sandbox_fail(s, "macro '%s' takes not more than %zu argument(s)", m->node->name->data, m->node->count);
    }
}

value call_macro(sandbox *s, const macro *m, const arguments *given)
{
    arguments rest = *given;
    scope *in = scope_new(s, m->scope);
    for (size_t i = 0; i < m->node->count; i++)
        bind_parameter(s, m, in, i, &rest);
    bind_special(s, m, in, &rest);
    return execute_capture(s, in, m->node->a);
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
        return call_macro(s, callee.as.macro, given);
    case VALUE_FUNCTION:
        return call_builtin(s, callee.as.function, value_none(), given);
    case VALUE_METHOD:
        return call_builtin(s, callee.as.method->builtin, callee.as.method->self, given);
    case VALUE_LOOP:
        if (given->count != 1 || given->named_count)
            sandbox_fail(s, "loop() takes one argument; pass what to loop over");
        return execute_loop(s, callee.as.loop, given->items[0]);
    case VALUE_JOINER:
        return call_joiner(s, callee);
    default:
        value_need(s, callee);
        sandbox_fail(s, "'%s' object is not callable; check the template", value_type(callee));
    }
}

value call_filter(sandbox *s, const string *name, value of, const arguments *given)
{
    const builtin *b = call_find(BUILTIN_FILTER, name->data);
    if (!b)
        sandbox_fail(s, "the filter '%s' is not supported; write the template without it", name->data);
    sandbox_enter(s);
    value v = call_builtin(s, b, of, given);
    sandbox_leave(s);
    return v;
}

bool call_test(sandbox *s, const string *name, value of, const arguments *given)
{
    const builtin *b = call_find(BUILTIN_TEST, name->data);
    if (!b)
        sandbox_fail(s, "the test '%s' is not supported; write the template without it", name->data);
    return value_truth(s, call_builtin(s, b, of, given));
}
