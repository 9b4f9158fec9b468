/* Tests: what may stand behind `is`. */
#include "template/chars.h"
#include "template/runtime.h"

#include <math.h>
#include <string.h>

static value is_kind(sandbox *s, value self, const value *arg, const arguments *raw, bool yes)
{
    (void)s, (void)self, (void)arg, (void)raw;
    return value_bool(yes);
}

static value is_defined(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind != VALUE_UNDEFINED);
}

static value is_undefined(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_UNDEFINED);
}

static value is_none(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_NONE);
}

static value is_boolean(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_BOOL);
}

static value is_true(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_BOOL && self.as.boolean);
}

static value is_false(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_BOOL && !self.as.boolean);
}

static value is_integer(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_INT);
}

static value is_float(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_FLOAT);
}

static value is_number(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, value_is_number(self));
}

static value is_string(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_STRING);
}

static value is_mapping(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_DICT);
}

static value is_iterable(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, value_is_iterable(self));
}

static value is_callable(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, value_is_callable(self));
}

/* What has a length and elements. */
static value is_sequence(sandbox *s, value self, const value *arg, const arguments *raw)
{
    bool list = self.kind == VALUE_LIST && self.as.list->kind < LIST_GENERATOR;
    return is_kind(s, self, arg, raw,
                   list || self.kind == VALUE_STRING || self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED);
}

static bool remainder_is(sandbox *s, value self, value by, int64_t rest)
{
    return value_equal(s, operators_binary(s, "%", self, by), value_int(rest));
}

static value is_odd(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, remainder_is(s, self, value_int(2), 1));
}

static value is_even(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, remainder_is(s, self, value_int(2), 0));
}

static value is_divisibleby(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, remainder_is(s, self, arg[0], 0));
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

static value is_lower(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, all_in_case(s, repr_str(s, self), false));
}

static value is_upper(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, all_in_case(s, repr_str(s, self), true));
}

static value is_eq(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, value_equal(s, self, arg[0]));
}

static value is_ne(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, !value_equal(s, self, arg[0]));
}

static value is_lt(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, operators_compare(s, "<", self, arg[0]));
}

static value is_le(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, operators_compare(s, "<=", self, arg[0]));
}

static value is_gt(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, operators_compare(s, ">", self, arg[0]));
}

static value is_ge(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, operators_compare(s, ">=", self, arg[0]));
}

static value is_in(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, value_contains(s, arg[0], self));
}

/* Of what has no identity of its own here: the same type and value. */
static value is_sameas(sandbox *s, value self, const value *arg, const arguments *raw)
{
    bool plain = self.kind <= VALUE_STRING;
    return is_kind(s, self, arg, raw,
                   self.kind == arg[0].kind && (plain ? value_equal(s, self, arg[0]) : self.as.list == arg[0].as.list));
}

static value is_escaped(sandbox *s, value self, const value *arg, const arguments *raw)
{
    return is_kind(s, self, arg, raw, self.kind == VALUE_STRING && self.as.string->markup);
}

/* Names are looked up in a dict there, which not everything can be a key of. */
static void need_key(sandbox *s, value v)
{
    bool hashable = true;
    value_hash(s, v, &hashable);
    if (!hashable)
        sandbox_fail(s, "unhashable type: '%s'; ask for a name", value_type(v));
}

static value is_filter(sandbox *s, value self, const value *arg, const arguments *raw)
{
    need_key(s, self);
    return is_kind(s, self, arg, raw, self.kind == VALUE_STRING && call_find(s, BUILTIN_FILTER, self.as.string->data));
}

static value is_test(sandbox *s, value self, const value *arg, const arguments *raw)
{
    need_key(s, self);
    return is_kind(s, self, arg, raw, self.kind == VALUE_STRING && call_find(s, BUILTIN_TEST, self.as.string->data));
}

const builtin predicates_table[] = {
    {"defined", "", 0, is_defined},
    {"undefined", "", 0, is_undefined},
    {"none", "", 0, is_none},
    {"boolean", "", 0, is_boolean},
    {"true", "", 0, is_true},
    {"false", "", 0, is_false},
    {"integer", "", 0, is_integer},
    {"float", "", 0, is_float},
    {"number", "", 0, is_number},
    {"string", "", 0, is_string},
    {"mapping", "", 0, is_mapping},
    {"iterable", "", 0, is_iterable},
    {"callable", "", 0, is_callable},
    {"sequence", "", 0, is_sequence},
    {"odd", "", 0, is_odd},
    {"even", "", 0, is_even},
    {"divisibleby", "num", 1, is_divisibleby},
    {"lower", "", 0, is_lower},
    {"upper", "", 0, is_upper},
    {"eq", "other", 1, is_eq},
    {"equalto", "other", 1, is_eq},
    {"==", "other", 1, is_eq},
    {"ne", "other", 1, is_ne},
    {"!=", "other", 1, is_ne},
    {"lt", "other", 1, is_lt},
    {"lessthan", "other", 1, is_lt},
    {"<", "other", 1, is_lt},
    {"le", "other", 1, is_le},
    {"<=", "other", 1, is_le},
    {"gt", "other", 1, is_gt},
    {"greaterthan", "other", 1, is_gt},
    {">", "other", 1, is_gt},
    {"ge", "other", 1, is_ge},
    {">=", "other", 1, is_ge},
    {"in", "seq", 1, is_in},
    {"sameas", "other", 1, is_sameas},
    {"escaped", "", 0, is_escaped},
    {"filter", "", 0, is_filter},
    {"test", "", 0, is_test},
    {0},
};
