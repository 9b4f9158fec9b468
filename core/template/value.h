/* Inside core: the values of templates, which behave as Python's. They belong to a sandbox and, but for namespaces and
 * what remembers a position, do not change once they are made. */
#ifndef TENON_CORE_VALUE_H
#define TENON_CORE_VALUE_H

#include "template/sandbox.h"

typedef enum value_kind {
    VALUE_MISSING, /* an argument that was not given */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST, /* and other sequences: list_kind */
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_MACRO,
    VALUE_LOOP,
    VALUE_FUNCTION, /* of the host                        */
    VALUE_METHOD,   /* of the host, bound to a value      */
    VALUE_CYCLER,
    VALUE_JOINER
} value_kind;

/* Why something is undefined. */
typedef enum undefined_kind {
    UNDEFINED_NAME,      /* as.string: the variable     */
    UNDEFINED_ATTRIBUTE, /* as.string: its name         */
    UNDEFINED_ELEMENT,   /* as.integer                  */
    UNDEFINED_UNSAFE,    /* as.string: its name         */
    UNDEFINED_TEXT       /* as.string: the whole reason */
} undefined_kind;

typedef struct string {
    const char *data; /* UTF-8; ends in NUL        */
    size_t size;      /* bytes                     */
    size_t points;    /* characters                */
    bool markup;      /* what the filter `e` gives */
} string;

typedef struct value {
    uint8_t kind;
    uint8_t why;       /* undefined_kind                     */
    const char *owner; /* of UNDEFINED: the type of its owner */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const string *string;
        struct list *list;
        struct mapping *mapping;
        struct macro *macro;
        struct loop *loop;
        const struct builtin *function;
        struct method *method;
    } as;
} value;

typedef enum list_kind {
    LIST_LIST,
    LIST_TUPLE,
    LIST_GROUP,     /* a tuple (grouper, list)                     */
    LIST_RANGE,     /* from, to, by                                */
    LIST_GENERATOR, /* gives each item once: the first `taken` are gone */
    LIST_KEYS,
    LIST_VALUES,
    LIST_ITEMS
} list_kind;

typedef struct list {
    list_kind kind;
    size_t count, capacity, taken;
    value *items;
    int64_t from, to, by;
} list;

typedef struct method {
    value self;
    const struct builtin *builtin;
} method;

/* Makers. Data of a string is copied; value_text takes what is not to be copied. */
static inline value value_none(void)
{
    return (value){.kind = VALUE_NONE};
}
static inline value value_bool(bool boolean)
{
    return (value){.kind = VALUE_BOOL, .as.boolean = boolean};
}
static inline value value_int(int64_t integer)
{
    return (value){.kind = VALUE_INT, .as.integer = integer};
}
static inline value value_float(double real)
{
    return (value){.kind = VALUE_FLOAT, .as.real = real};
}
static inline value value_of(const string *text)
{
    return (value){.kind = VALUE_STRING, .as.string = text};
}
static inline value value_list(list *items)
{
    return (value){.kind = VALUE_LIST, .as.list = items};
}
value value_string(sandbox *s, const char *data, size_t size);
value value_text(sandbox *s, const char *data, size_t size);
value value_undefined(undefined_kind why, const string *name);
value value_unknown(sandbox *s, const char *reason);

list *value_list_new(sandbox *s, list_kind kind, size_t capacity);
void value_list_add(sandbox *s, list *to, value item);
value value_pair(sandbox *s, value first, value second); /* a tuple */

static inline bool value_is_string(value v)
{
    return v.kind == VALUE_STRING;
}
static inline bool value_is_number(value v) /* as numbers.Number: True and False are */
{
    return v.kind == VALUE_INT || v.kind == VALUE_FLOAT || v.kind == VALUE_BOOL;
}
bool value_is_list(value v, list_kind kind);
bool value_is_tuple(value v);
bool value_is_callable(value v);
bool value_is_iterable(value v);

/* 0 and 1 of booleans, too; false: no whole number. */
bool value_whole(value v, int64_t *number);
int64_t value_need_whole(sandbox *s, value v, const char *what); /* a whole number, for the parameter `what` */
int64_t value_whole_or(sandbox *s, value v, int64_t otherwise, const char *what);
double value_real(value v); /* of a number */

const char *value_type(value v); /* as Python's type(v).__name__ */
bool value_truth(value v);
bool value_equal(sandbox *s, value a, value b);
int value_order(sandbox *s, value a, value b,
                const char *sign); /* <0, 0, >0; fails where Python has no order; 2: NaN */
uint64_t value_hash(sandbox *s, value v, bool *hashable);
bool value_contains(sandbox *s, value container, value item);

size_t value_need_length(sandbox *s, value v);

/* Its items as a list, as a for loop would give them; what is a generator is used up. Fails for what is not iterable.
 */
list *value_items(sandbox *s, value v);

/* Fails with the reason if v is undefined. */
void value_need(sandbox *s, value v);

/* ---- dictionaries, in the order of their keys' insertion: mapping.c ---- */

typedef struct mapping {
    size_t count, capacity, slots;
    value *keys, *values;
    uint64_t *hashes;
    uint32_t *index; /* slots of them, a power of two: position + 1 */
} mapping;

mapping *mapping_new(sandbox *s);
void mapping_set(sandbox *s, mapping *m, value key, value item); /* fails for keys that have no hash */
const value *mapping_get(sandbox *s, const mapping *m, value key);
const value *mapping_find(sandbox *s, const mapping *m, const char *key);
void mapping_put(sandbox *s, mapping *m, const char *key, value item);
void mapping_update(sandbox *s, mapping *m, const mapping *from);
static inline value mapping_value(mapping *m)
{
    return (value){.kind = VALUE_DICT, .as.mapping = m};
}

/* ---- as text: repr.c ---- */

typedef struct piece_text { /* a text that grows in a sandbox */
    char *data;
    size_t size, capacity;
} piece_text;

/* Steps of writing a number of any kind, which takes longer than a character; one of hundreds of digits takes a step
 * more for every two of them. */
#define REPR_NUMBER_STEPS 8

void repr_add(sandbox *s, piece_text *to, const char *data, size_t size);
void repr_add_text(sandbox *s, piece_text *to, const char *text);
void repr_add_float(sandbox *s, piece_text *to, double real); /* float.__repr__                              */
void repr_add_repr(sandbox *s, piece_text *to, value v);      /* repr(v)                                     */
void repr_add_str(sandbox *s, piece_text *to, value v);       /* str(v)                                      */
value repr_done(sandbox *s, piece_text *text);                /* a string of it, which then is not to change */
const string *repr_str(sandbox *s, value v);                  /* str(v)                                      */
const char *repr_short(sandbox *s, value v);                  /* repr(v) for messages                        */

/* ---- JSON: json_value.c ---- */

typedef struct json_style {
    bool ascii, sort;
    const char *indent; /* NULL: one line */
    const char *comma, *colon;
} json_style;

void json_value_add(sandbox *s, piece_text *to, value v, const json_style *style);

#endif
