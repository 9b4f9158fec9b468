/* Inside core: rendering a template's tree. The files call one way: chat_template.c brings together what performs
 * (execute.c, evaluate.c, scope.c) and what the host offers (builtins.c and its tables); under both are attribute.c,
 * loop.c, methods.c, call.c and operators.c, and at the bottom are values. What leads back up is carried: the sandbox
 * has the tables, and a macro or a loop has the functions that perform it. */
#ifndef TENON_CORE_RUNTIME_H
#define TENON_CORE_RUNTIME_H

#include "template/syntax.h"

/* Variables of a part of a template. What is assigned there ends with it; reading goes outwards. */
typedef struct binding {
    const string *name;
    value value;
    struct binding *next;
} binding;

typedef struct scope {
    struct scope *outer;
    binding *first;
    const mapping *variables; /* of the outermost: what the host gives */
} scope;

scope *scope_new(sandbox *s, scope *outer);
void scope_set(sandbox *s, scope *to, const string *name, value v);
value scope_get(sandbox *s, const scope *from, const string *name);

/* Assigns to a name, to names in a tuple, or to a namespace. */
void scope_assign(sandbox *s, scope *to, const node *target, value v);

/* What a call passes. */
typedef struct arguments {
    value *items;
    size_t count;
    const string **names;
    value *named;
    size_t named_count;
} arguments;

/* What a builtin is called with. self: what is filtered, tested, or owns the method. */
typedef struct invocation {
    value self;
    const value *arg;     /* in the order of its parameters */
    const arguments *raw; /* as they were passed            */
    int how;              /* the builtin's                  */
} invocation;

/* A function, filter, test or method of the host. parameters: their names, those from `required` on may be missing
 * (VALUE_MISSING); "*": it looks at the raw arguments itself. how: what tells builtins of one function apart. */
#define BUILTIN_PARAMETERS 6
typedef struct builtin {
    const char *name, *parameters;
    size_t required;
    value (*call)(sandbox *s, const invocation *c);
    int how;
} builtin;

typedef struct macro {
    const node *node;
    scope *scope;
    value (*call)(sandbox *s, const struct macro *m, const arguments *given);
} macro;

/* A for loop as its body sees it; items are found one by one, as those before may change what the filter says. */
typedef struct loop {
    const node *statement;
    scope *scope;
    const list *source;
    size_t at;
    bool (*passes)(sandbox *s, const struct loop *l, value item);      /* its filter; NULL: all that are left do */
    value (*again)(sandbox *s, const struct loop *of, value iterable); /* loop(...) of a recursive loop */
    int64_t index0, depth0;
    value before, current, after, changed;
    bool has_after;
} loop;

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

flow execute(sandbox *s, scope *in, const node *n, piece_text *out);

value evaluate(sandbox *s, scope *in, const node *n);
value evaluate_filter(sandbox *s, scope *in, const node *n, value of);

value call_value(sandbox *s, value callee, const arguments *given);
value call_builtin(sandbox *s, const builtin *b, value self, const arguments *given);
value call_filter(sandbox *s, const string *name, value of, const arguments *given);
bool call_test(sandbox *s, const string *name, value of, const arguments *given);

/* What the host offers stands in tables of a file each, whose last row has no name. builtins.c knows of every table,
 * and nothing is found but through the sandbox, which chat_template.c gives them, so tests can try all there is. */
typedef enum builtin_kind {
    BUILTIN_FILTER,
    BUILTIN_TEST,
    BUILTIN_FUNCTION,
    BUILTIN_OF_TEXT, /* methods */
    BUILTIN_OF_DICT,
    BUILTIN_OF_LIST,
    BUILTIN_OF_TUPLE,
    BUILTIN_OF_LOOP,
    BUILTIN_OF_CYCLER,
    BUILTIN_OF_FLOAT,
    BUILTIN_KINDS
} builtin_kind;

extern const builtin filters_table[], filters_list_table[], filters_text_table[], predicates_table[], functions_table[],
    text_methods_table[], text_search_table[], methods_dict[], methods_sequence[], methods_list[], methods_loop[],
    methods_cycler[], methods_float[];

typedef struct builtin_table {
    builtin_kind kind;
    const builtin *rows;
} builtin_table;

extern const builtin_table builtins[]; /* the last has no rows */

const builtin *call_find(const sandbox *s, builtin_kind kind, const char *name);

value operators_binary(sandbox *s, const char *symbol, value a, value b);
bool operators_compare(sandbox *s, const char *symbol, value a, value b);
value operators_negative(sandbox *s, value v, bool negative);

bool loop_fetch(sandbox *s, loop *l, value *item);
value loop_attribute(sandbox *s, loop *l, const string *name); /* VALUE_MISSING: there is none of this name */

/* x.name, x[key], x[from:to:by] (VALUE_MISSING or none: left out), and a path such as "a.b.0" of filters. */
value attribute_get(sandbox *s, value of, const string *name);
value attribute_only(sandbox *s, value of, const string *name, bool *found); /* what Python's getattr sees */
value attribute_element(sandbox *s, value of, value key);
value attribute_slice(sandbox *s, value of, value from, value to, value by);
value attribute_path(sandbox *s, value of, value path, value otherwise);

/* "..." % value and "...".format(...): percent.c, braces.c */
value percent_format(sandbox *s, const string *format, value with);
value braces_format(sandbox *s, const string *format, const arguments *given);

const builtin *methods_find(const sandbox *s, value of, const char *name);

/* Texts: what filters and methods share (text_methods.c). */
value text_methods_case(sandbox *s, const string *text, int how); /* chars_case */
value text_methods_capitalize(sandbox *s, const string *text);
value text_methods_strip(sandbox *s, const string *text, value chars, bool left, bool right);
value text_methods_replace(sandbox *s, const string *text, const string *from, const string *to, int64_t most);
list *text_search_lines(sandbox *s, const string *text, bool keep_ends);
value text_methods_pad(sandbox *s, const string *text, int64_t width, const char *fill, int side);

#endif
