/* What expressions give. */
#include "template/runtime.h"

#include <stdio.h>
#include <string.h>

static value make_list(sandbox *s, scope *in, const node *n, list_kind kind)
{
    list *items = value_list_new(s, kind, n->count);
    for (size_t i = 0; i < n->count; i++)
        value_list_add(s, items, evaluate(s, in, n->items[i]));
    return value_list(items);
}

static value make_dict(sandbox *s, scope *in, const node *n)
{
    mapping *m = mapping_new(s);
    for (size_t i = 0; i + 1 < n->count; i += 2) {
        value key = evaluate(s, in, n->items[i]);
        mapping_set(s, m, key, evaluate(s, in, n->items[i + 1]));
    }
    return mapping_value(m);
}

static void add_named(sandbox *s, arguments *to, size_t room, const string *name, value v)
{
    sandbox_step(s, to->named_count / 4);
    for (size_t i = 0; i < to->named_count; i++)
        if (to->names[i]->size == name->size && memcmp(to->names[i]->data, name->data, name->size) == 0)
            sandbox_fail(s, "the argument '%s' is given twice; give it once", name->data);
    if (to->named_count < room) {
        to->names[to->named_count] = name;
        to->named[to->named_count++] = v;
    }
}

static arguments pass(sandbox *s, scope *in, const call_syntax *call)
{
    arguments given = {0};
    if (!call)
        return given;
    const list *star = call->star ? value_items(s, evaluate(s, in, call->star)) : NULL;
    value named = call->double_star ? evaluate(s, in, call->double_star) : value_none();
    if (call->double_star && named.kind != VALUE_DICT)
        sandbox_fail(s, "argument after ** must be a mapping, not %s", value_type(named));
    given.items = sandbox_array(s, call->positional_count + (star ? star->count : 0), sizeof *given.items);
    for (size_t i = 0; i < call->positional_count; i++)
        given.items[given.count++] = evaluate(s, in, call->positional[i]);
    for (size_t i = 0; star && i < star->count; i++)
        given.items[given.count++] = star->items[i];
    size_t room = call->named_count + (call->double_star ? named.as.mapping->count : 0);
    given.names = sandbox_array(s, room, sizeof *given.names);
    given.named = sandbox_array(s, room, sizeof *given.named);
    for (size_t i = 0; i < call->named_count; i++)
        add_named(s, &given, room, call->names[i], evaluate(s, in, call->named[i]));
    for (size_t i = 0; given.named_count < room; i++) {
        if (named.as.mapping->keys[i].kind != VALUE_STRING)
            sandbox_fail(s, "keywords must be strings; check what is behind **");
        add_named(s, &given, room, named.as.mapping->keys[i].as.string, named.as.mapping->values[i]);
    }
    return given;
}

/* Filters of {% filter %} and {% set %} stand on a text: the innermost has none of its own. */
value evaluate_filter(sandbox *s, scope *in, const node *n, value of)
{
    value inner = !n->a                                                   ? of
                  : n->a->kind == NODE_FILTER && of.kind != VALUE_MISSING ? evaluate_filter(s, in, n->a, of)
                                                                          : evaluate(s, in, n->a);
    arguments given = pass(s, in, n->arguments);
    s->line = n->line;
    return call_filter(s, n->name, inner, &given);
}

static value run_test(sandbox *s, scope *in, const node *n)
{
    value of = evaluate(s, in, n->a);
    arguments given = pass(s, in, n->arguments);
    s->line = n->line;
    return value_bool(call_test(s, n->name, of, &given));
}

static value run_call(sandbox *s, scope *in, const node *n)
{
    value callee = evaluate(s, in, n->a);
    arguments given = pass(s, in, n->arguments);
    s->line = n->line;
    return call_value(s, callee, &given);
}

static value compare(sandbox *s, scope *in, const node *n)
{
    value left = evaluate(s, in, n->a);
    for (size_t i = 0; i < n->count; i++) {
        value right = evaluate(s, in, n->items[i]->a);
        s->line = n->line;
        if (!operators_compare(s, n->items[i]->symbol, left, right))
            return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static value concat(sandbox *s, scope *in, const node *n)
{
    piece_text text = {0};
    for (size_t i = 0; i < n->count; i++)
        repr_add_str(s, &text, evaluate(s, in, n->items[i]));
    return repr_done(s, &text);
}

static value conditional(sandbox *s, scope *in, const node *n)
{
    if (value_truth(evaluate(s, in, n->b)))
        return evaluate(s, in, n->a);
    return n->c ? evaluate(s, in, n->c) : value_unknown(s, "an inline if-expression was false and has no else section");
}

static value slice(sandbox *s, scope *in, const node *n)
{
    value of = evaluate(s, in, n->a), part[3] = {0};
    const node *parts[] = {n->b, n->c, n->d};
    for (size_t i = 0; i < 3; i++)
        if (parts[i])
            part[i] = evaluate(s, in, parts[i]);
    s->line = n->line;
    return attribute_slice(s, of, part[0], part[1], part[2]);
}

static value with_two(sandbox *s, scope *in, const node *n)
{
    value a = evaluate(s, in, n->a), b = evaluate(s, in, n->b);
    s->line = n->line;
    return n->kind == NODE_ELEMENT ? attribute_element(s, a, b) : operators_binary(s, n->symbol, a, b);
}

static value choose(sandbox *s, scope *in, const node *n)
{
    value left = evaluate(s, in, n->a);
    return value_truth(left) == (n->kind == NODE_AND) ? evaluate(s, in, n->b) : left;
}

static value of_kind(sandbox *s, scope *in, const node *n)
{
    switch (n->kind) {
    case NODE_CONST:
        return n->constant;
    case NODE_NAME:
        return scope_get(s, in, n->name);
    case NODE_LIST:
        return make_list(s, in, n, LIST_LIST);
    case NODE_TUPLE:
        return make_list(s, in, n, LIST_TUPLE);
    case NODE_DICT:
        return make_dict(s, in, n);
    case NODE_ATTRIBUTE:
        return attribute_get(s, evaluate(s, in, n->a), n->name);
    case NODE_SLICE:
        return slice(s, in, n);
    case NODE_CALL:
        return run_call(s, in, n);
    case NODE_FILTER:
        return evaluate_filter(s, in, n, (value){0});
    case NODE_TEST:
        return run_test(s, in, n);
    case NODE_NOT:
        return value_bool(!value_truth(evaluate(s, in, n->a)));
    case NODE_NEGATIVE:
    case NODE_POSITIVE:
        return operators_negative(s, evaluate(s, in, n->a), n->kind == NODE_NEGATIVE);
    case NODE_AND:
    case NODE_OR:
        return choose(s, in, n);
    case NODE_COMPARE:
        return compare(s, in, n);
    case NODE_CONCAT:
        return concat(s, in, n);
    case NODE_CONDITIONAL:
        return conditional(s, in, n);
    default:
        return with_two(s, in, n);
    }
}

value evaluate(sandbox *s, scope *in, const node *n)
{
    sandbox_enter(s);
    sandbox_step(s, 1);
    s->line = n->line;
    value v = of_kind(s, in, n);
    sandbox_leave(s);
    return v;
}
