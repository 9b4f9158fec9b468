/* Variables of templates and how they are assigned. */
#include "template/runtime.h"

#include <string.h>

scope *scope_new(sandbox *s, scope *outer)
{
    scope *in = sandbox_alloc(s, sizeof *in);
    in->outer = outer;
    return in;
}

static bool same(const string *a, const string *b)
{
    return a == b || (a->size == b->size && memcmp(a->data, b->data, a->size) == 0);
}

static binding *find(sandbox *s, const scope *in, const string *name)
{
    binding *b = in->first;
    size_t others = 0;
    for (; b && !same(b->name, name); b = b->next)
        others++;
    sandbox_step(s, others / 4);
    return b;
}

void scope_set(sandbox *s, scope *to, const string *name, value v)
{
    binding *b = find(s, to, name);
    if (!b) {
        b = sandbox_alloc(s, sizeof *b);
        b->name = name;
        b->next = to->first;
        to->first = b;
    }
    b->value = v;
}

value scope_get(sandbox *s, const scope *from, const string *name)
{
    const scope *in = from;
    for (;; in = in->outer) {
        const binding *b = find(s, in, name);
        if (b)
            return b->value;
        if (!in->outer)
            break;
    }
    const value *given = mapping_get(s, in->variables, value_of(name));
    const builtin *function = given ? NULL : call_find(s, BUILTIN_FUNCTION, name->data);
    if (given)
        return *given;
    if (function)
        return (value){.kind = VALUE_FUNCTION, .as.function = function};
    return value_undefined(UNDEFINED_NAME, name);
}

static void assign_attribute(sandbox *s, scope *to, const node *target, value v)
{
    value owner = scope_get(s, to, target->a->name);
    if (owner.kind != VALUE_NAMESPACE)
        sandbox_fail(s, "cannot assign attribute '%s' on a value of type '%s'; use namespace()", target->name->data,
                     value_type(owner));
    if (target->name->data[0] == '_')
        sandbox_fail(s, "attribute '%s' of a namespace begins with an underscore; rename it", target->name->data);
    mapping_set(s, owner.as.mapping, value_of(target->name), v);
}

void scope_assign(sandbox *s, scope *to, const node *target, value v)
{
    if (target->kind == NODE_NAME) {
        scope_set(s, to, target->name, v);
    } else if (target->kind == NODE_ATTRIBUTE) {
        assign_attribute(s, to, target, v);
    } else {
        s->line = target->line;
        const list *items = value_items(s, v);
        if (items->count != target->count)
            sandbox_fail(s, "%zu values for %zu names; check what is unpacked", items->count, target->count);
        for (size_t i = 0; i < target->count; i++)
            scope_assign(s, to, target->items[i], items->items[i]);
    }
}
