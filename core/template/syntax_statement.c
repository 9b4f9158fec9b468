/* The parser of statements. */
#include "template/syntax.h"

#include <stdio.h>
#include <string.h>

/* A place that is assigned to: a name, names in a tuple, with a dot a namespace's attribute. */
static node *one_target(parser *p, bool dots)
{
    const token *t = syntax_now(p);
    if (syntax_is(t, "(")) {
        syntax_take(p);
        sandbox_enter(p->s);
        node *n = syntax_node(p, NODE_TUPLE);
        while (!syntax_is(syntax_now(p), ")")) {
            if (n->count)
                syntax_expect(p, ",");
            if (!syntax_is(syntax_now(p), ")"))
                syntax_item(p, n, one_target(p, false));
        }
        sandbox_leave(p->s);
        syntax_take(p);
        return n;
    }
    node *n = syntax_primary(p);
    if (n->kind != NODE_NAME)
        syntax_fail(p, t, "a name to assign to");
    if (dots && syntax_skip(p, ".")) {
        node *attribute = syntax_node(p, NODE_ATTRIBUTE);
        attribute->a = syntax_child(p, attribute, n);
        attribute->name = syntax_name(p);
        return attribute;
    }
    return n;
}

static node *target(parser *p, bool dots, const char *end)
{
    node *first = one_target(p, dots), *n = NULL;
    while (syntax_is(syntax_now(p), ",")) {
        syntax_take(p);
        if (!n) {
            n = syntax_node(p, NODE_TUPLE);
            syntax_item(p, n, first);
        }
        if (syntax_is(syntax_now(p), end))
            break;
        syntax_item(p, n, one_target(p, dots));
    }
    return n ? n : first;
}

/* The body of a block, up to one of the words in ends ("else endif"), which is not taken. */
static node *body_of(parser *p, const char *block, const char *ends)
{
    const char *outer = p->open;
    p->open = block;
    syntax_skip(p, ":");
    syntax_expect_kind(p, TOKEN_BLOCK_END, "'%}'");
    node *body = syntax_body(p, ends);
    p->open = outer;
    return body;
}

/* ... and the word. */
static node *whole_body(parser *p, const char *block, const char *end)
{
    node *body = body_of(p, block, end);
    syntax_take(p);
    return body;
}

static bool is_word(const string *name, const char *word)
{
    return name && strlen(word) == name->size && memcmp(name->data, word, name->size) == 0;
}

static bool is_constant(const node *n, const char *word)
{
    return n->kind == NODE_CONST && n->constant.kind == VALUE_STRING && is_word(n->constant.as.string, word);
}

/* Is it a message's content: message.content, message['content'], message.get('content'), or a name for that? */
static bool is_content(const parser *p, const node *n)
{
    while (n->a && (n->kind == NODE_FILTER || n->kind == NODE_SLICE))
        n = n->a;
    if (n->kind == NODE_NAME)
        return is_word(n->name, "content") || (p->content && is_word(n->name, p->content));
    if (n->kind == NODE_CALL)
        return n->a->kind == NODE_ATTRIBUTE && is_word(n->a->name, "get") && n->arguments->positional_count > 0 &&
               is_constant(n->arguments->positional[0], "content");
    return (n->kind == NODE_ATTRIBUTE && is_word(n->name, "content")) ||
           (n->kind == NODE_ELEMENT && is_constant(n->b, "content"));
}

static node *parse_set(parser *p)
{
    node *n = syntax_node(p, NODE_SET);
    syntax_take(p);
    n->a = syntax_child(p, n, target(p, true, "="));
    if (syntax_skip(p, "=")) {
        n->b = syntax_child(p, n, syntax_tuple(p, true, NULL));
        if (n->a->kind == NODE_NAME && is_content(p, n->b))
            p->content = n->a->name->data;
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    n->b = syntax_child(p, n, syntax_filters(p, NULL, false));
    n->c = syntax_child(p, n, whole_body(p, "set", "endset"));
    return n;
}

static node *parse_for(parser *p)
{
    node *n = syntax_node(p, NODE_FOR);
    syntax_take(p);
    n->a = syntax_child(p, n, target(p, false, "in"));
    syntax_expect(p, "in");
    n->b = syntax_child(p, n, syntax_tuple(p, false, "recursive"));
    p->parts |= is_content(p, n->b);
    if (syntax_skip(p, "if"))
        n->c = syntax_child(p, n, syntax_expression(p));
    n->flag = syntax_skip(p, "recursive");
    p->loops++;
    n->d = syntax_child(p, n, body_of(p, "for", "else endfor"));
    p->loops--;
    if (syntax_is(syntax_take(p), "else"))
        n->e = syntax_child(p, n, whole_body(p, "for", "endfor"));
    return n;
}

static node *parse_if(parser *p)
{
    node *n = syntax_node(p, NODE_IF);
    do {
        syntax_take(p);
        syntax_item(p, n, syntax_tuple(p, false, NULL));
        syntax_item(p, n, body_of(p, "if", "elif else endif"));
    } while (syntax_is(syntax_now(p), "elif"));
    if (syntax_is(syntax_take(p), "else"))
        n->a = syntax_child(p, n, whole_body(p, "if", "endif"));
    return n;
}

static void parse_parameters(parser *p, node *n)
{
    node *defaults = syntax_node(p, NODE_LIST);
    syntax_expect(p, "(");
    while (!syntax_is(syntax_now(p), ")")) {
        if (n->count)
            syntax_expect(p, ",");
        node *parameter = syntax_node(p, NODE_NAME);
        parameter->name = syntax_name(p);
        if (syntax_skip(p, "="))
            syntax_item(p, defaults, syntax_expression(p));
        else if (defaults->count)
            syntax_fail(p, syntax_now(p), "a default, as the parameter before has one");
        syntax_item(p, n, parameter);
    }
    syntax_take(p);
    syntax_child(p, n, defaults);
    n->defaults = defaults->items;
    n->default_count = defaults->count;
}

/* The body of a macro or of a caller, whose loops and special names are its own. */
static void macro_body(parser *p, node *n, const char *block, const char *end)
{
    int loops = p->loops, catches = p->catches;
    p->loops = p->catches = 0;
    n->a = syntax_child(p, n, whole_body(p, block, end));
    n->flag = p->catches;
    p->catches |= catches; /* of a macro inside count for the one around it, too */
    p->loops = loops;
}

static node *parse_macro(parser *p)
{
    node *n = syntax_node(p, NODE_MACRO);
    syntax_take(p);
    n->name = syntax_name(p);
    parse_parameters(p, n);
    macro_body(p, n, "macro", "endmacro");
    return n;
}

static node *parse_call_block(parser *p)
{
    node *n = syntax_node(p, NODE_CALL_BLOCK), *caller = syntax_node(p, NODE_MACRO);
    syntax_take(p);
    caller->name = value_string(p->s, "caller", 6).as.string;
    if (syntax_is(syntax_now(p), "("))
        parse_parameters(p, caller);
    const token *t = syntax_now(p);
    n->b = syntax_child(p, n, syntax_expression(p));
    if (n->b->kind != NODE_CALL)
        syntax_fail(p, t, "a call");
    macro_body(p, caller, "call", "endcall");
    n->a = syntax_child(p, n, caller);
    return n;
}

static node *parse_filter_block(parser *p)
{
    node *n = syntax_node(p, NODE_FILTER_BLOCK);
    syntax_take(p);
    n->a = syntax_child(p, n, syntax_filters(p, NULL, true));
    n->b = syntax_child(p, n, whole_body(p, "filter", "endfilter"));
    return n;
}

static node *parse_with(parser *p)
{
    node *n = syntax_node(p, NODE_WITH);
    syntax_take(p);
    while (syntax_now(p)->kind != TOKEN_BLOCK_END) {
        if (n->count)
            syntax_expect(p, ",");
        syntax_item(p, n, target(p, false, "="));
        syntax_expect(p, "=");
        syntax_item(p, n, syntax_expression(p));
    }
    n->a = syntax_child(p, n, whole_body(p, "with", "endwith"));
    return n;
}

/* What it holds is rendered as it is, with variables of its own. */
static node *parse_generation(parser *p)
{
    node *n = syntax_node(p, NODE_SCOPE);
    int loops = p->loops;
    syntax_take(p);
    p->loops = 0;
    n->a = syntax_child(p, n, whole_body(p, "generation", "endgeneration"));
    p->loops = loops;
    return n;
}

static node *parse_break(parser *p)
{
    const token *t = syntax_take(p);
    node *n = syntax_node(p, syntax_is(t, "break") ? NODE_BREAK : NODE_CONTINUE);
    if (!p->loops)
        syntax_fail(p, t, "a loop around it");
    return n;
}

static node *parse_print(parser *p)
{
    node *n = syntax_node(p, NODE_BODY);
    syntax_take(p);
    while (syntax_now(p)->kind != TOKEN_BLOCK_END) {
        if (n->count)
            syntax_expect(p, ",");
        node *print = syntax_node(p, NODE_PRINT);
        print->a = syntax_child(p, print, syntax_expression(p));
        syntax_item(p, n, print);
    }
    return n;
}

static node *parse_statement(parser *p)
{
    static const struct {
        const char *name;
        node *(*parse)(parser *p);
    } tags[] = {{"if", parse_if},           {"for", parse_for},
                {"set", parse_set},         {"macro", parse_macro},
                {"call", parse_call_block}, {"filter", parse_filter_block},
                {"with", parse_with},       {"generation", parse_generation},
                {"break", parse_break},     {"continue", parse_break},
                {"print", parse_print}};
    static const char *const others[] = {"block",      "extends", "include", "import", "from",
                                         "autoescape", "do",      "trans",   "debug"};
    const token *t = syntax_now(p);
    if (t->kind != TOKEN_NAME)
        syntax_fail(p, t, "the name of a tag");
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (syntax_is(t, tags[i].name))
            return tags[i].parse(p);
    p->s->line = t->line;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (syntax_is(t, others[i]))
            sandbox_fail(p->s,
                         "the tag '%s' is not supported; a chat template is one file of if, for, set, macro, call, "
                         "filter and with",
                         others[i]);
    sandbox_fail(p->s, "unknown tag '%s'%s%s%s; check the template", t->content.as.string->data,
                 p->open ? " (inside of '" : "", p->open ? p->open : "", p->open ? "')" : "");
}

static bool is_end(const token *t, const char *ends)
{
    if (!ends || t->kind != TOKEN_NAME)
        return false;
    const string *name = t->content.as.string;
    for (const char *word = ends; *word;) {
        size_t n = strcspn(word, " ");
        if (n == name->size && memcmp(word, name->data, n) == 0)
            return true;
        word += n + (word[n] == ' ');
    }
    return false;
}

/* Text, expressions and statements up to a tag of ends, which is not taken, or (NULL) to the end. */
node *syntax_body(parser *p, const char *ends)
{
    node *body = syntax_node(p, NODE_BODY);
    sandbox_enter(p->s);
    for (;;) {
        const token *t = syntax_now(p);
        if (t->kind == TOKEN_END) {
            char wanted[64];
            snprintf(wanted, sizeof wanted, "one of the tags '%s'", ends ? ends : "");
            if (ends)
                syntax_fail(p, t, wanted);
            break;
        }
        syntax_take(p);
        if (t->kind == TOKEN_DATA) {
            node *data = syntax_node(p, NODE_DATA);
            data->constant = t->content;
            syntax_item(p, body, data);
        } else if (t->kind == TOKEN_PRINT) {
            node *print = syntax_node(p, NODE_PRINT);
            print->a = syntax_child(p, print, syntax_tuple(p, true, NULL));
            syntax_item(p, body, print);
            syntax_expect_kind(p, TOKEN_PRINT_END, "'}}'");
        } else {
            if (is_end(syntax_now(p), ends))
                break;
            syntax_item(p, body, parse_statement(p));
            syntax_expect_kind(p, TOKEN_BLOCK_END, "'%}'");
        }
    }
    sandbox_leave(p->s);
    return body;
}
