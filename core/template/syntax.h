/* Inside core: the tree of a template. */
#ifndef TENON_CORE_SYNTAX_H
#define TENON_CORE_SYNTAX_H

#include "template/tokens.h"

typedef enum node_kind {
    /* expressions */
    NODE_CONST,       /* constant                                                   */
    NODE_NAME,        /* name                                                       */
    NODE_LIST,        /* items                                                      */
    NODE_TUPLE,       /* items; also a target                                       */
    NODE_DICT,        /* items: key, value, key, ...                                */
    NODE_ATTRIBUTE,   /* a . name; a target when first is set (namespace)           */
    NODE_ELEMENT,     /* a [ b ]                                                    */
    NODE_SLICE,       /* a [ b : c : d ]                                            */
    NODE_CALL,        /* a ( arguments )                                            */
    NODE_FILTER,      /* a | name ( arguments ); a is NULL in {% filter %}          */
    NODE_TEST,        /* a is name ( arguments )                                    */
    NODE_NOT,         /* not a                                                      */
    NODE_NEGATIVE,    /* -a                                                         */
    NODE_POSITIVE,    /* +a                                                         */
    NODE_AND,         /* a and b                                                    */
    NODE_OR,          /* a or b                                                     */
    NODE_COMPARE,     /* a, then items, each by its node's symbol                 */
    NODE_CONCAT,      /* items                                                      */
    NODE_BINARY,      /* a symbol b                                               */
    NODE_CONDITIONAL, /* a if b else c                                              */
    /* statements */
    NODE_DATA,         /* constant                                                    */
    NODE_PRINT,        /* a                                                           */
    NODE_BODY,         /* items; flag, of the root: SYNTAX_PARTS                      */
    NODE_SCOPE,        /* a, a body with variables of its own                         */
    NODE_FOR,          /* for a in b if c: d, else e; flag: recursive                 */
    NODE_IF,           /* items: condition, body, condition, body, ...; a: else       */
    NODE_SET,          /* a = b                                                       */
    NODE_SET_BLOCK,    /* a = filter b of body c                                      */
    NODE_MACRO,        /* name; items: parameters; defaults; a: body; flag: catches   */
    NODE_CALL_BLOCK,   /* a: a NODE_MACRO, the caller; b: the call                    */
    NODE_FILTER_BLOCK, /* a: filter; b: body                                        */
    NODE_WITH,         /* items: target, value, ...; a: body                        */
    NODE_BREAK,
    NODE_CONTINUE
} node_kind;

typedef struct node node;

/* What a call passes. */
typedef struct call_syntax {
    node **positional;
    size_t positional_count;
    const string **names;
    node **named;
    size_t named_count;
    node *star, *double_star; /* *list, **dict; may be NULL */
} call_syntax;

/* What a macro does with arguments that it has no parameters for. */
enum { CATCHES_POSITIONAL = 1, CATCHES_NAMED = 2, CATCHES_CALLER = 4 };

struct node {
    node_kind kind;
    int line;
    int height; /* of the tree below: bounded, since evaluation follows it */
    char symbol[8];
    int flag;
    const string *name;
    value constant;
    node *a, *b, *c, *d, *e;
    node **items;
    size_t count, capacity;
    node **defaults; /* of the last parameters */
    size_t default_count;
    call_syntax *arguments;
};

/* Flag of a root: a loop goes over the parts of a message's content. A template without one takes texts only. */
#define SYNTAX_PARTS 1

/* Fails at the line of the first mistake. The tree belongs to the sandbox. */
node *syntax_parse(sandbox *s, const char *source, size_t size);

/* ---- parts of the parser: syntax.c, syntax_expression.c, syntax_statement.c ---- */

typedef struct parser {
    sandbox *s;
    token_list tokens;
    size_t at;
    int loops;           /* of the macro that is being read: break and continue need one */
    int catches;         /* names of the macro that is being read                      */
    const char *open;    /* the innermost block                                  */
    const char *content; /* the name that a content was assigned to last; or NULL */
    bool parts;          /* a loop goes over the parts of a content               */
} parser;

/* Nodes whose trees may be this high. */
#define SYNTAX_HEIGHT 400
#define SYNTAX_DEPTH 200

node *syntax_node(parser *p, node_kind kind);
node *syntax_child(parser *p, node *parent, node *child); /* the child, which counts for the parent's height */
void syntax_item(parser *p, node *parent, node *child);

const token *syntax_now(const parser *p);
const token *syntax_next(const parser *p);
const token *syntax_take(parser *p);
bool syntax_is(const token *t, const char *what); /* an symbol or a name */
bool syntax_skip(parser *p, const char *what);
void syntax_expect(parser *p, const char *what);
void syntax_expect_kind(parser *p, token_kind kind, const char *what);
const string *syntax_name(parser *p);
_Noreturn void syntax_fail(parser *p, const token *at, const char *what);

node *syntax_expression(parser *p);
node *syntax_tuple(parser *p, bool conditional, const char *end);
node *syntax_primary(parser *p);
node *syntax_filters(parser *p, node *of, bool inline_first);
node *syntax_body(parser *p, const char *ends);

#endif
