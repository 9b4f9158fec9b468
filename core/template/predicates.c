/* Tests: what may stand behind `is`. */
#include "template/chars.h"
#include "template/runtime.h"

#include <math.h>
#include <string.h>

/* how: the value_kind. */
static value is_kind(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(c->self.kind == c->how);
}

static value is_defined(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(c->self.kind != VALUE_UNDEFINED);
}

/* how: which of the two booleans. */
static value is_truth(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(c->self.kind == VALUE_BOOL && c->self.as.boolean == c->how);
}

static value is_number(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(value_is_number(c->self));
}

static value is_iterable(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(value_is_iterable(c->self));
}

static value is_callable(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(value_is_callable(c->self));
}

/* What has a length and elements. */
static value is_sequence(sandbox *s, const invocation *c)
{
    (void)s;
    uint8_t kind = c->self.kind;
    bool list = kind == VALUE_LIST && c->self.as.list->kind < LIST_GENERATOR;
    return value_bool(list || kind == VALUE_STRING || kind == VALUE_DICT || kind == VALUE_UNDEFINED);
}

static value remainder_is(sandbox *s, value self, value by, int64_t rest)
{
    return value_bool(value_equal(s, operators_binary(s, "%", self, by), value_int(rest)));
}

/* Odd or even. how: what remains. */
static value is_parity(sandbox *s, const invocation *c)
{
    return remainder_is(s, c->self, value_int(2), c->how);
}

static value is_divisibleby(sandbox *s, const invocation *c)
{
    return remainder_is(s, c->self, c->arg[0], 0);
}

static bool all_in_case(sandbox *s, const string *text, bool upper)
{
    bool some = false;
    for (size_t i = 0; i < text->size;) {
        int32_t code = chars_next(s, text->data, text->size, &i);
        if (upper ? chars_is_lower(code) : chars_is_upper(code))
            return false;
        some = some || (upper ? chars_is_upper(code) : chars_is_lower(code));
    }
    return some;
}

/* how: CHARS_LOWER or CHARS_UPPER. */
static value is_case(sandbox *s, const invocation *c)
{
    return value_bool(all_in_case(s, repr_str(s, c->self), c->how == CHARS_UPPER));
}

/* how: whether they are to be equal. */
static value is_eq(sandbox *s, const invocation *c)
{
    return value_bool(value_equal(s, c->self, c->arg[0]) == c->how);
}

typedef enum order { ORDER_LT, ORDER_LE, ORDER_GT, ORDER_GE } order;

static value is_ordered(sandbox *s, const invocation *c)
{
    static const char *const signs[] = {[ORDER_LT] = "<", [ORDER_LE] = "<=", [ORDER_GT] = ">", [ORDER_GE] = ">="};
    return value_bool(operators_compare(s, signs[c->how], c->self, c->arg[0]));
}

static value is_in(sandbox *s, const invocation *c)
{
    return value_bool(value_contains(s, c->arg[0], c->self));
}

/* Of what has no identity of its own here: the same type and value. */
static value is_sameas(sandbox *s, const invocation *c)
{
    value a = c->self, b = c->arg[0];
    bool plain = a.kind <= VALUE_STRING;
    return value_bool(a.kind == b.kind && (plain ? value_equal(s, a, b) : a.as.list == b.as.list));
}

static value is_escaped(sandbox *s, const invocation *c)
{
    (void)s;
    return value_bool(c->self.kind == VALUE_STRING && c->self.as.string->markup);
}

/* Names are looked up in a dict there, which not everything can be a key of. */
static void need_key(sandbox *s, value v)
{
    bool hashable = true;
    value_hash(s, v, &hashable);
    if (!hashable)
        sandbox_fail(s, "unhashable type: '%s'; ask for a name", value_type(v));
}

/* how: the builtin_kind that there is one of. */
static value is_known(sandbox *s, const invocation *c)
{
    need_key(s, c->self);
    return value_bool(c->self.kind == VALUE_STRING && call_find(s, (builtin_kind)c->how, c->self.as.string->data));
}

const builtin predicates_table[] = {
    {"defined", "", 0, is_defined, 0},
    {"undefined", "", 0, is_kind, VALUE_UNDEFINED},
    {"none", "", 0, is_kind, VALUE_NONE},
    {"boolean", "", 0, is_kind, VALUE_BOOL},
    {"true", "", 0, is_truth, true},
    {"false", "", 0, is_truth, false},
    {"integer", "", 0, is_kind, VALUE_INT},
    {"float", "", 0, is_kind, VALUE_FLOAT},
    {"number", "", 0, is_number, 0},
    {"string", "", 0, is_kind, VALUE_STRING},
    {"mapping", "", 0, is_kind, VALUE_DICT},
    {"iterable", "", 0, is_iterable, 0},
    {"callable", "", 0, is_callable, 0},
    {"sequence", "", 0, is_sequence, 0},
    {"odd", "", 0, is_parity, 1},
    {"even", "", 0, is_parity, 0},
    {"divisibleby", "num", 1, is_divisibleby, 0},
    {"lower", "", 0, is_case, CHARS_LOWER},
    {"upper", "", 0, is_case, CHARS_UPPER},
    {"eq", "other", 1, is_eq, true},
    {"equalto", "other", 1, is_eq, true},
    {"==", "other", 1, is_eq, true},
    {"ne", "other", 1, is_eq, false},
    {"!=", "other", 1, is_eq, false},
    {"lt", "other", 1, is_ordered, ORDER_LT},
    {"lessthan", "other", 1, is_ordered, ORDER_LT},
    {"<", "other", 1, is_ordered, ORDER_LT},
    {"le", "other", 1, is_ordered, ORDER_LE},
    {"<=", "other", 1, is_ordered, ORDER_LE},
    {"gt", "other", 1, is_ordered, ORDER_GT},
    {"greaterthan", "other", 1, is_ordered, ORDER_GT},
    {">", "other", 1, is_ordered, ORDER_GT},
    {"ge", "other", 1, is_ordered, ORDER_GE},
    {">=", "other", 1, is_ordered, ORDER_GE},
    {"in", "seq", 1, is_in, 0},
    {"sameas", "other", 1, is_sameas, 0},
    {"escaped", "", 0, is_escaped, 0},
    {"filter", "", 0, is_known, BUILTIN_FILTER},
    {"test", "", 0, is_known, BUILTIN_TEST},
    {0},
};
