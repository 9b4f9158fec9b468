/* The parser's hands: tokens taken one by one, nodes and their heights. */
#include "template/syntax.h"

#include <string.h>

node *syntax_node(parser *p, node_kind kind)
{
    node *n = sandbox_alloc(p->s, sizeof *n);
    n->kind = kind;
    n->line = syntax_now(p)->line;
    n->height = 1;
    return n;
}

node *syntax_child(parser *p, node *parent, node *child)
{
    if (child && child->height >= parent->height)
        parent->height = child->height + 1;
    if (parent->height > SYNTAX_HEIGHT) {
        p->s->line = parent->line;
        sandbox_fail(p->s, "nested deeper than %d levels; simplify the template", SYNTAX_HEIGHT);
    }
    return child;
}

void syntax_item(parser *p, node *parent, node *child)
{
    if (parent->count == parent->capacity) {
        size_t capacity = parent->capacity ? 2 * parent->capacity : 4;
        node **items = sandbox_array(p->s, capacity, sizeof *items);
        if (parent->count)
            memcpy(items, parent->items, parent->count * sizeof *items);
        parent->items = items;
        parent->capacity = capacity;
    }
    parent->items[parent->count++] = syntax_child(p, parent, child);
}

const token *syntax_now(const parser *p)
{
    return &p->tokens.items[p->at];
}

const token *syntax_next(const parser *p)
{
    return &p->tokens.items[p->at + (p->at + 1 < p->tokens.count)];
}

const token *syntax_take(parser *p)
{
    const token *t = syntax_now(p);
    p->s->line = t->line;
    p->at += p->at + 1 < p->tokens.count;
    return t;
}

bool syntax_is(const token *t, const char *what)
{
    return t->kind == TOKEN_OPERATOR ? strcmp(t->symbol, what) == 0
                                     : t->kind == TOKEN_NAME && strcmp(t->content.as.string->data, what) == 0;
}

bool syntax_skip(parser *p, const char *what)
{
    bool found = syntax_is(syntax_now(p), what);
    if (found)
        syntax_take(p);
    return found;
}

_Noreturn void syntax_fail(parser *p, const token *at, const char *what)
{
    p->s->line = at->line;
    if (p->open)
        sandbox_fail(p->s, "expected %s, got '%s' (inside of '%s'); check the template", what, tokens_show(p->s, at),
                     p->open);
    sandbox_fail(p->s, "expected %s, got '%s'; check the template", what, tokens_show(p->s, at));
}

void syntax_expect(parser *p, const char *what)
{
    char quoted[32] = "'";
    if (syntax_skip(p, what))
        return;
    strncat(strncat(quoted, what, 20), "'", 2);
    syntax_fail(p, syntax_now(p), quoted);
}

void syntax_expect_kind(parser *p, token_kind kind, const char *what)
{
    if (syntax_now(p)->kind != kind)
        syntax_fail(p, syntax_now(p), what);
    syntax_take(p);
}

const string *syntax_name(parser *p)
{
    if (syntax_now(p)->kind != TOKEN_NAME)
        syntax_fail(p, syntax_now(p), "a name");
    return syntax_take(p)->content.as.string;
}

node *syntax_parse(sandbox *s, const char *source, size_t size)
{
    parser p = {.s = s};
    s->deepest = SYNTAX_DEPTH;
    tokens_read(s, source, size, &p.tokens);
    node *root = syntax_body(&p, NULL);
    root->flag = p.parts ? SYNTAX_PARTS : 0;
    s->deepest = SANDBOX_DEPTH;
    return root;
}
