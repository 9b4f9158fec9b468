/* The parser of expressions, by the precedence that Jinja has. */
#include "template/syntax.h"

#include <stdio.h>
#include <string.h>

static node *parse_unary(parser *p, bool filters);

static node *two(parser *p, node_kind kind, node *a, node *b, const token *sign)
{
    node *n = syntax_node(p, kind);
    n->line = sign->line;
    if (sign->kind == TOKEN_OPERATOR)
        memcpy(n->symbol, sign->symbol, sizeof sign->symbol);
    n->a = syntax_child(p, n, a);
    n->b = syntax_child(p, n, b);
    return n;
}

static node *constant(parser *p, value of)
{
    node *n = syntax_node(p, NODE_CONST);
    n->constant = of;
    return n;
}

static bool is_one_of(const token *t, const char *const *signs)
{
    while (*signs && !syntax_is(t, *signs))
        signs++;
    return *signs != NULL;
}

/* Operands with signs between them, the first two of which are the left side of what follows. */
static node *parse_chain(parser *p, node_kind kind, const char *const *signs, node *(*operand)(parser *p))
{
    node *left = operand(p);
    while (is_one_of(syntax_now(p), signs)) {
        const token *sign = syntax_take(p);
        left = two(p, kind, left, operand(p), sign);
    }
    return left;
}

static node *parse_factor(parser *p)
{
    return parse_unary(p, true);
}

static node *parse_power(parser *p)
{
    return parse_chain(p, NODE_BINARY, (const char *const[]){"**", NULL}, parse_factor);
}

static node *parse_product(parser *p)
{
    return parse_chain(p, NODE_BINARY, (const char *const[]){"*", "/", "//", "%", NULL}, parse_power);
}

static node *parse_concat(parser *p)
{
    node *first = parse_product(p);
    if (!syntax_is(syntax_now(p), "~"))
        return first;
    node *n = syntax_node(p, NODE_CONCAT);
    syntax_item(p, n, first);
    while (syntax_skip(p, "~"))
        syntax_item(p, n, parse_product(p));
    return n;
}

static node *parse_sum(parser *p)
{
    return parse_chain(p, NODE_BINARY, (const char *const[]){"+", "-", NULL}, parse_concat);
}

static node *parse_compare(parser *p)
{
    static const char *const signs[] = {"==", "!=", "<", ">", "<=", ">=", NULL};
    node *first = parse_sum(p), *n = NULL;
    for (;;) {
        const token *sign = syntax_now(p);
        const char *symbol = NULL;
        if (is_one_of(sign, signs))
            symbol = sign->symbol;
        else if (syntax_is(sign, "in"))
            symbol = "in";
        else if (syntax_is(sign, "not") && syntax_is(syntax_next(p), "in")) {
            symbol = "not in";
            syntax_take(p);
        }
        if (!symbol)
            return n ? n : first;
        syntax_take(p);
        if (!n) {
            n = syntax_node(p, NODE_COMPARE);
            n->a = syntax_child(p, n, first);
        }
        node *operand = syntax_node(p, NODE_POSITIVE); /* holds the symbol and what is behind it */
        snprintf(operand->symbol, sizeof operand->symbol, "%s", symbol);
        operand->a = syntax_child(p, operand, parse_sum(p));
        syntax_item(p, n, operand);
    }
}

static node *parse_not(parser *p)
{
    if (!syntax_is(syntax_now(p), "not"))
        return parse_compare(p);
    node *n = syntax_node(p, NODE_NOT);
    syntax_take(p);
    sandbox_enter(p->s);
    n->a = syntax_child(p, n, parse_not(p));
    sandbox_leave(p->s);
    return n;
}

static node *parse_and(parser *p)
{
    return parse_chain(p, NODE_AND, (const char *const[]){"and", NULL}, parse_not);
}

static node *parse_or(parser *p)
{
    return parse_chain(p, NODE_OR, (const char *const[]){"or", NULL}, parse_and);
}

node *syntax_expression(parser *p)
{
    sandbox_enter(p->s);
    node *first = parse_or(p);
    while (syntax_is(syntax_now(p), "if")) {
        node *n = two(p, NODE_CONDITIONAL, first, NULL, syntax_take(p));
        n->b = syntax_child(p, n, parse_or(p));
        if (syntax_skip(p, "else"))
            n->c = syntax_child(p, n, syntax_expression(p));
        first = n;
    }
    sandbox_leave(p->s);
    return first;
}

static bool ends_tuple(const parser *p, const char *end)
{
    const token *t = syntax_now(p);
    return t->kind == TOKEN_PRINT_END || t->kind == TOKEN_BLOCK_END || syntax_is(t, ")") || (end && syntax_is(t, end));
}

/* Without a comma it is the expression itself. conditional: `if` may follow; end: a word that ends it. */
node *syntax_tuple(parser *p, bool conditional, const char *end)
{
    node *n = NULL, *only = NULL;
    while (!ends_tuple(p, end)) {
        if (conditional) {
            only = syntax_expression(p);
        } else {
            sandbox_enter(p->s);
            only = parse_or(p);
            sandbox_leave(p->s);
        }
        bool comma = syntax_is(syntax_now(p), ",");
        if (!n && comma)
            n = syntax_node(p, NODE_TUPLE);
        if (n)
            syntax_item(p, n, only);
        if (!comma)
            break;
        syntax_take(p);
    }
    if (!n && !only)
        syntax_fail(p, syntax_now(p), "an expression");
    return n ? n : only;
}

static node *parse_list(parser *p, const char *close, bool pairs)
{
    node *n = syntax_node(p, pairs ? NODE_DICT : NODE_LIST);
    syntax_take(p);
    while (!syntax_is(syntax_now(p), close)) {
        if (n->count) {
            syntax_expect(p, ",");
            if (syntax_is(syntax_now(p), close))
                break;
        }
        syntax_item(p, n, syntax_expression(p));
        if (pairs) {
            syntax_expect(p, ":");
            syntax_item(p, n, syntax_expression(p));
        }
    }
    syntax_expect(p, close);
    return n;
}

static node *parse_parentheses(parser *p)
{
    node *n = syntax_node(p, NODE_TUPLE);
    syntax_take(p);
    if (!syntax_is(syntax_now(p), ")"))
        n = syntax_tuple(p, true, NULL);
    syntax_expect(p, ")");
    return n;
}

static node *parse_texts(parser *p)
{
    node *n = constant(p, syntax_now(p)->content);
    syntax_take(p);
    while (syntax_now(p)->kind == TOKEN_STRING) {
        piece_text text = {0};
        repr_add_str(p->s, &text, n->constant);
        repr_add_str(p->s, &text, syntax_take(p)->content);
        n->constant = repr_done(p->s, &text);
    }
    return n;
}

static node *parse_name(parser *p)
{
    node *n = syntax_node(p, NODE_NAME);
    n->name = syntax_name(p);
    const char *name = n->name->data;
    bool yes = strcmp(name, "true") == 0 || strcmp(name, "True") == 0;
    if (yes || strcmp(name, "false") == 0 || strcmp(name, "False") == 0)
        return constant(p, value_bool(yes));
    if (strcmp(name, "none") == 0 || strcmp(name, "None") == 0)
        return constant(p, value_none());
    if (strcmp(name, "varargs") == 0)
        p->catches |= CATCHES_POSITIONAL;
    if (strcmp(name, "kwargs") == 0)
        p->catches |= CATCHES_NAMED;
    if (strcmp(name, "caller") == 0)
        p->catches |= CATCHES_CALLER;
    return n;
}

node *syntax_primary(parser *p)
{
    const token *t = syntax_now(p);
    node *n;
    switch (t->kind) {
    case TOKEN_NAME:
        return parse_name(p);
    case TOKEN_STRING:
        return parse_texts(p);
    case TOKEN_NUMBER:
        n = constant(p, t->content);
        syntax_take(p);
        return n;
    default:
        if (syntax_is(t, "("))
            return parse_parentheses(p);
        if (syntax_is(t, "["))
            return parse_list(p, "]", false);
        if (syntax_is(t, "{"))
            return parse_list(p, "}", true);
        syntax_fail(p, t, "an expression");
    }
}

/* Between brackets: an index, or parts of a slice. */
static node *parse_element(parser *p, node *of)
{
    node *n = syntax_node(p, NODE_ELEMENT);
    n->a = syntax_child(p, n, of);
    syntax_take(p);
    if (!syntax_is(syntax_now(p), ":"))
        n->b = syntax_child(p, n, syntax_expression(p));
    if (syntax_skip(p, ":")) {
        n->kind = NODE_SLICE;
        if (!syntax_is(syntax_now(p), ":") && !syntax_is(syntax_now(p), "]"))
            n->c = syntax_child(p, n, syntax_expression(p));
        if (syntax_skip(p, ":") && !syntax_is(syntax_now(p), "]"))
            n->d = syntax_child(p, n, syntax_expression(p));
    } else if (syntax_is(syntax_now(p), ",")) {
        node *tuple = syntax_node(p, NODE_TUPLE);
        syntax_item(p, tuple, n->b);
        while (syntax_skip(p, ","))
            syntax_item(p, tuple, syntax_expression(p));
        n->b = syntax_child(p, n, tuple);
    }
    syntax_expect(p, "]");
    return n;
}

static node *parse_attribute(parser *p, node *of)
{
    node *n = syntax_node(p, NODE_ATTRIBUTE);
    syntax_take(p);
    n->a = syntax_child(p, n, of);
    const token *t = syntax_now(p);
    if (t->kind == TOKEN_NUMBER && t->content.kind == VALUE_INT) {
        n->kind = NODE_ELEMENT;
        n->b = syntax_child(p, n, syntax_primary(p));
    } else {
        n->name = syntax_name(p);
    }
    return n;
}

static void append(parser *p, node ***list, size_t *count, node *item)
{
    node **grown = sandbox_array(p->s, *count + 1, sizeof *grown);
    if (*count)
        memcpy(grown, *list, *count * sizeof *grown);
    grown[(*count)++] = item;
    *list = grown;
}

static void append_name(parser *p, call_syntax *call, const string *name)
{
    const string **grown = sandbox_array(p->s, call->named_count + 1, sizeof *grown);
    if (call->named_count)
        memcpy(grown, call->names, call->named_count * sizeof *grown);
    grown[call->named_count] = name;
    call->names = grown;
}

static void parse_argument(parser *p, node *n, call_syntax *call)
{
    const token *t = syntax_now(p);
    bool starred = call->star || call->double_star;
    if (syntax_is(t, "*") && !starred) {
        syntax_take(p);
        call->star = syntax_child(p, n, syntax_expression(p));
    } else if (syntax_is(t, "**") && !call->double_star) {
        syntax_take(p);
        call->double_star = syntax_child(p, n, syntax_expression(p));
    } else if (t->kind == TOKEN_NAME && syntax_is(syntax_next(p), "=") && !call->double_star) {
        append_name(p, call, syntax_name(p));
        syntax_take(p);
        append(p, &call->named, &call->named_count, syntax_child(p, n, syntax_expression(p)));
    } else if (!starred && !call->named_count) {
        append(p, &call->positional, &call->positional_count, syntax_child(p, n, syntax_expression(p)));
    } else {
        syntax_fail(p, t, "a named argument or ')'");
    }
}

static void parse_arguments(parser *p, node *n)
{
    call_syntax *call = n->arguments = sandbox_alloc(p->s, sizeof *call);
    syntax_expect(p, "(");
    for (bool first = true; !syntax_is(syntax_now(p), ")"); first = false) {
        if (!first) {
            syntax_expect(p, ",");
            if (syntax_is(syntax_now(p), ")"))
                break;
        }
        parse_argument(p, n, call);
    }
    syntax_expect(p, ")");
}

static node *parse_call(parser *p, node *of)
{
    node *n = syntax_node(p, NODE_CALL);
    n->a = syntax_child(p, n, of);
    parse_arguments(p, n);
    return n;
}

static node *parse_postfix(parser *p, node *n)
{
    for (;;) {
        const token *t = syntax_now(p);
        if (syntax_is(t, "."))
            n = parse_attribute(p, n);
        else if (syntax_is(t, "["))
            n = parse_element(p, n);
        else if (syntax_is(t, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static const string *dotted_name(parser *p)
{
    const string *name = syntax_name(p);
    while (syntax_skip(p, ".")) {
        piece_text text = {0};
        repr_add(p->s, &text, name->data, name->size);
        repr_add_text(p->s, &text, ".");
        name = syntax_name(p);
        repr_add(p->s, &text, name->data, name->size);
        name = repr_done(p->s, &text).as.string;
    }
    return name;
}

node *syntax_filters(parser *p, node *of, bool inline_first)
{
    while (inline_first || syntax_is(syntax_now(p), "|")) {
        if (!inline_first)
            syntax_take(p);
        inline_first = false;
        node *n = syntax_node(p, NODE_FILTER);
        n->a = syntax_child(p, n, of);
        n->name = dotted_name(p);
        if (syntax_is(syntax_now(p), "("))
            parse_arguments(p, n);
        of = n;
    }
    return of;
}

/* `is` takes one argument without parentheses, too. */
static bool begins_argument(const token *t)
{
    if (t->kind == TOKEN_NAME)
        return !syntax_is(t, "else") && !syntax_is(t, "or") && !syntax_is(t, "and");
    return t->kind == TOKEN_STRING || t->kind == TOKEN_NUMBER || syntax_is(t, "[") || syntax_is(t, "{");
}

static node *parse_test(parser *p, node *of)
{
    node *n = syntax_node(p, NODE_TEST);
    syntax_take(p);
    bool negated = syntax_skip(p, "not");
    n->a = syntax_child(p, n, of);
    n->name = dotted_name(p);
    if (syntax_is(syntax_now(p), "(")) {
        parse_arguments(p, n);
    } else if (begins_argument(syntax_now(p))) {
        if (syntax_is(syntax_now(p), "is"))
            syntax_fail(p, syntax_now(p), "no second 'is'");
        n->arguments = sandbox_alloc(p->s, sizeof *n->arguments);
        node *argument = parse_postfix(p, syntax_primary(p));
        append(p, &n->arguments->positional, &n->arguments->positional_count, syntax_child(p, n, argument));
    }
    if (!negated)
        return n;
    node *not = syntax_node(p, NODE_NOT);
    not ->a = syntax_child(p, not, n);
    return not ;
}

static node *parse_filtered(parser *p, node *n)
{
    for (;;) {
        const token *t = syntax_now(p);
        if (syntax_is(t, "|"))
            n = syntax_filters(p, n, false);
        else if (t->kind == TOKEN_NAME && syntax_is(t, "is"))
            n = parse_test(p, n);
        else if (syntax_is(t, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static node *parse_unary(parser *p, bool filters)
{
    const token *t = syntax_now(p);
    node *n;
    sandbox_enter(p->s);
    if (syntax_is(t, "-") || syntax_is(t, "+")) {
        n = syntax_node(p, syntax_is(t, "-") ? NODE_NEGATIVE : NODE_POSITIVE);
        syntax_take(p);
        n->a = syntax_child(p, n, parse_unary(p, false));
    } else {
        n = syntax_primary(p);
    }
    n = parse_postfix(p, n);
    if (filters)
        n = parse_filtered(p, n);
    sandbox_leave(p->s);
    return n;
}
