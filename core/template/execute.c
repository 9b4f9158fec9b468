/* Performing statements, and calling the macros that they define. */
#include "template/runtime.h"

#include <string.h>

static value capture(sandbox *s, scope *in, const node *body)
{
    piece_text text = {0};
    execute(s, in, body, &text);
    return repr_done(s, &text);
}

static flow run_body(sandbox *s, scope *in, const node *n, piece_text *out)
{
    flow f = FLOW_ON;
    for (size_t i = 0; i < n->count && f == FLOW_ON; i++)
        f = execute(s, in, n->items[i], out);
    return f;
}

static flow run_if(sandbox *s, scope *in, const node *n, piece_text *out)
{
    for (size_t i = 0; i + 1 < n->count; i += 2)
        if (value_truth(evaluate(s, in, n->items[i])))
            return execute(s, in, n->items[i + 1], out);
    return n->a ? execute(s, in, n->a, out) : FLOW_ON;
}

static bool passes(sandbox *s, const loop *l, value item)
{
    scope *in = scope_new(s, l->scope);
    scope_assign(s, in, l->statement->a, item);
    return value_truth(evaluate(s, in, l->statement->c));
}

static bool advance(sandbox *s, loop *l)
{
    value item = l->after;
    if (!l->has_after && !loop_fetch(s, l, &item))
        return false;
    l->has_after = false;
    l->index0++;
    l->before = l->current;
    l->current = item;
    return true;
}

static value again(sandbox *s, const loop *of, value iterable);

static flow run_loop(sandbox *s, scope *in, const node *n, value iterable, int64_t depth0, piece_text *out)
{
    static const string name = {"loop", 4, 4, false};
    loop *l = sandbox_alloc(s, sizeof *l);
    *l = (loop){.statement = n, .scope = in, .again = again, .index0 = -1, .depth0 = depth0};
    l->passes = n->c ? passes : NULL;
    l->source = value_items(s, iterable);
    bool done = false; /* a run of the body came to its end: Jinja's sign against `else` */
    while (advance(s, l)) {
        scope *inner = scope_new(s, in);
        scope_set(s, inner, &name, (value){.kind = VALUE_LOOP, .as.loop = l});
        scope_assign(s, inner, n->a, l->current);
        flow how = execute(s, inner, n->d, out);
        done = done || how == FLOW_ON;
        if (how == FLOW_BREAK)
            break;
    }
    return n->e && !done ? execute(s, scope_new(s, in), n->e, out) : FLOW_ON;
}

static value again(sandbox *s, const loop *of, value iterable)
{
    piece_text text = {0};
    if (!of->statement->flag)
        sandbox_fail(s, "the loop must have the 'recursive' marker to be called; write {%% for ... recursive %%}");
    run_loop(s, of->scope, of->statement, iterable, of->depth0 + 1, &text);
    return repr_done(s, &text);
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

static value call_macro(sandbox *s, const macro *m, const arguments *given)
{
    arguments rest = *given;
    scope *in = scope_new(s, m->scope);
    for (size_t i = 0; i < m->node->count; i++)
        bind_parameter(s, m, in, i, &rest);
    bind_special(s, m, in, &rest);
    return capture(s, in, m->node->a);
}

static value macro_of(sandbox *s, scope *in, const node *n)
{
    macro *m = sandbox_alloc(s, sizeof *m);
    m->node = n;
    m->scope = in;
    m->call = call_macro;
    return (value){.kind = VALUE_MACRO, .as.macro = m};
}

/* The call behind {% call %} gets the body as `caller`. */
static void run_call_block(sandbox *s, scope *in, const node *n, piece_text *out)
{
    static const string name = {"\x01 caller", 8, 8, false}, caller = {"caller", 6, 6, false};
    scope *inner = scope_new(s, in);
    scope_set(s, inner, &name, macro_of(s, in, n->a));
    node passed = {.kind = NODE_NAME, .line = n->line, .height = 1, .name = &name}, call = *n->b;
    call_syntax given = *n->b->arguments;
    const string **names = sandbox_array(s, given.named_count + 1, sizeof *names);
    node **named = sandbox_array(s, given.named_count + 1, sizeof *named);
    for (size_t i = 0; i < given.named_count; i++) {
        names[i] = given.names[i];
        named[i] = given.named[i];
    }
    names[given.named_count] = &caller;
    named[given.named_count] = &passed;
    given.names = names;
    given.named = named;
    given.named_count++;
    call.arguments = &given;
    repr_add_str(s, out, evaluate(s, inner, &call));
}

static void run_with(sandbox *s, scope *in, const node *n, piece_text *out)
{
    scope *inner = scope_new(s, in);
    for (size_t i = 0; i + 1 < n->count; i += 2)
        scope_assign(s, inner, n->items[i], evaluate(s, in, n->items[i + 1]));
    execute(s, inner, n->a, out);
}

static flow run(sandbox *s, scope *in, const node *n, piece_text *out)
{
    value text;
    switch (n->kind) {
    case NODE_DATA:
    case NODE_PRINT:
        repr_add_str(s, out, n->kind == NODE_DATA ? n->constant : evaluate(s, in, n->a));
        return FLOW_ON;
    case NODE_BODY:
        return run_body(s, in, n, out);
    case NODE_SCOPE:
        return execute(s, scope_new(s, in), n->a, out);
    case NODE_FOR:
        return run_loop(s, in, n, evaluate(s, in, n->b), 0, out);
    case NODE_IF:
        return run_if(s, in, n, out);
    case NODE_SET:
        scope_assign(s, in, n->a, evaluate(s, in, n->b));
        return FLOW_ON;
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK:
        text = capture(s, scope_new(s, in), n->kind == NODE_SET_BLOCK ? n->c : n->b);
        if (n->kind == NODE_FILTER_BLOCK)
            repr_add_str(s, out, evaluate_filter(s, in, n->a, text));
        else
            scope_assign(s, in, n->a, n->b ? evaluate_filter(s, in, n->b, text) : text);
        return FLOW_ON;
    case NODE_MACRO:
        scope_set(s, in, n->name, macro_of(s, in, n));
        return FLOW_ON;
    case NODE_CALL_BLOCK:
        run_call_block(s, in, n, out);
        return FLOW_ON;
    case NODE_WITH:
        run_with(s, in, n, out);
        return FLOW_ON;
    default:
        return n->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    }
}

flow execute(sandbox *s, scope *in, const node *n, piece_text *out)
{
    sandbox_enter(s);
    sandbox_step(s, 1);
    s->line = n->line;
    flow f = run(s, in, n, out);
    sandbox_leave(s);
    return f;
}
