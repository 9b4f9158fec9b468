/* Operators, as Python has them; whole numbers have 64 bits here, and more is an error. */
#include "template/runtime.h"

#include <math.h>
#include <string.h>

static _Noreturn void too_large(sandbox *s)
{
    sandbox_fail(s, "a whole number has more than 64 bits, which is not supported; use floats");
}

static _Noreturn void unfit(sandbox *s, const char *symbol, value a, value b)
{
    value_need(s, a);
    value_need(s, b);
    sandbox_fail(s, "unsupported operand types for %s: '%s' and '%s'; convert one of them", symbol, value_type(a),
                 value_type(b));
}

/* The quotient rounded once, as Python has it: beyond 53 bits the operands are no doubles. b is not 0. */
static double true_division(int64_t a, int64_t b)
{
    const int64_t exact = INT64_C(1) << 53;
    if (a >= -exact && a <= exact && b >= -exact && b <= exact)
        return (double)a / (double)b;
    uint64_t above = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, below = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    if (above == 0)
        return b < 0 ? -0.0 : 0.0;
    int shift = 63 + __builtin_clzll(above); /* leaves at least 63 bits of the quotient, and the last tells of a rest */
    __extension__ unsigned __int128 wide = (unsigned __int128)above << shift;
    double quotient = ldexp((double)(wide / below | (wide % below != 0)), -shift);
    return (a < 0) != (b < 0) ? -quotient : quotient;
}

static int64_t floor_division(sandbox *s, int64_t a, int64_t b)
{
    if (a == INT64_MIN && b == -1)
        too_large(s);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t whole_power(sandbox *s, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            too_large(s);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            too_large(s);
    }
    return result;
}

static value whole_result(sandbox *s, char sign, bool twice, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool large = false;
    if ((sign == '/' || sign == '%') && b == 0)
        sandbox_fail(s, "division by zero; check the numbers");
    switch (sign) {
    case '+':
        large = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        large = __builtin_sub_overflow(a, b, &result);
        break;
    case '/':
        if (!twice)
            return value_float(true_division(a, b));
        result = floor_division(s, a, b);
        break;
    case '%':
        result = b == -1 ? 0 : a - floor_division(s, a, b) * b;
        break;
    default:
        if (twice && b < 0) {
            if (a == 0)
                sandbox_fail(s, "0 cannot be raised to a negative power; check the numbers");
            return value_float(pow((double)a, (double)b));
        }
        if (twice)
            result = whole_power(s, a, b);
        else
            large = __builtin_mul_overflow(a, b, &result);
    }
    if (large)
        too_large(s);
    return value_int(result);
}

/* a - b * floor(a / b), and the quotient, as Python's float_divmod has them. */
static double real_modulo(double a, double b, double *quotient)
{
    double rest = fmod(a, b), division = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        division -= 1;
    } else if (rest == 0) {
        rest = copysign(0.0, b);
    }
    *quotient = division != 0 ? floor(division) + (division - floor(division) > 0.5) : copysign(0.0, a / b);
    return rest;
}

static value real_result(sandbox *s, char sign, bool twice, double a, double b)
{
    double quotient, rest;
    if ((sign == '/' || sign == '%') && b == 0)
        sandbox_fail(s, "float division by zero; check the numbers");
    switch (sign) {
    case '+':
        return value_float(a + b);
    case '-':
        return value_float(a - b);
    case '/':
    case '%':
        rest = real_modulo(a, b, &quotient);
        return value_float(sign == '%' ? rest : twice ? quotient : a / b);
    default:
        if (!twice)
            return value_float(a * b);
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            sandbox_fail(s, "this power is no real number; check the numbers");
        if (isinf(pow(a, b)) && isfinite(a) && isfinite(b))
            sandbox_fail(s, "the result of ** is too large; check the numbers");
        return value_float(pow(a, b));
    }
}

static value repeat(sandbox *s, value of, int64_t times)
{
    if (times < 0)
        times = 0;
    if (of.kind == VALUE_STRING) {
        piece_text text = {0};
        for (int64_t i = 0; i < times && of.as.string->size; i++)
            repr_add_str(s, &text, of);
        return repr_done(s, &text);
    }
    list *items = value_list_new(s, of.as.list->kind, 0);
    for (int64_t i = 0; i < times && of.as.list->count; i++)
        for (size_t k = 0; k < of.as.list->count; k++)
            value_list_add(s, items, of.as.list->items[k]);
    return value_list(items);
}

static bool is_sequence(value v)
{
    return v.kind == VALUE_STRING || value_is_list(v, LIST_LIST) || value_is_tuple(v);
}

static value join_two(sandbox *s, value a, value b)
{
    if (a.kind == VALUE_STRING && b.kind == VALUE_STRING) {
        piece_text text = {0};
        repr_add_str(s, &text, a);
        repr_add_str(s, &text, b);
        return repr_done(s, &text);
    }
    bool lists = value_is_list(a, LIST_LIST) && value_is_list(b, LIST_LIST);
    if (!lists && !(value_is_tuple(a) && value_is_tuple(b)))
        unfit(s, "+", a, b);
    list *items = value_list_new(s, lists ? LIST_LIST : LIST_TUPLE, a.as.list->count + b.as.list->count);
    for (size_t i = 0; i < a.as.list->count; i++)
        value_list_add(s, items, a.as.list->items[i]);
    for (size_t i = 0; i < b.as.list->count; i++)
        value_list_add(s, items, b.as.list->items[i]);
    return value_list(items);
}

value operators_binary(sandbox *s, const char *symbol, value a, value b)
{
    char sign = symbol[0];
    bool twice = symbol[1] != '\0';
    int64_t x, y;
    bool whole_a = value_whole(a, &x), whole_b = value_whole(b, &y);
    sandbox_step(s, 1);
    value_need(s, a);
    if (sign == '%' && a.kind == VALUE_STRING)
        return percent_format(s, a.as.string, b);
    value_need(s, b);
    if (whole_a && whole_b)
        return whole_result(s, sign, twice, x, y);
    if (value_is_number(a) && value_is_number(b))
        return real_result(s, sign, twice, value_real(a), value_real(b));
    if (sign == '+' && is_sequence(a))
        return join_two(s, a, b);
    if (sign == '*' && !twice && is_sequence(a) && whole_b)
        return repeat(s, a, y);
    if (sign == '*' && !twice && is_sequence(b) && whole_a)
        return repeat(s, b, x);
    unfit(s, symbol, a, b);
}

bool operators_compare(sandbox *s, const char *symbol, value a, value b)
{
    if (strcmp(symbol, "==") == 0)
        return value_equal(s, a, b);
    if (strcmp(symbol, "!=") == 0)
        return !value_equal(s, a, b);
    if (strcmp(symbol, "in") == 0)
        return value_contains(s, b, a);
    if (strcmp(symbol, "not in") == 0)
        return !value_contains(s, b, a);
    int order = value_order(s, a, b, symbol);
    if (order == 2)
        return false;
    if (order == 0)
        return symbol[1] == '=';
    return symbol[0] == '<' ? order < 0 : order > 0;
}

value operators_negative(sandbox *s, value v, bool negative)
{
    int64_t whole;
    value_need(s, v);
    if (v.kind == VALUE_FLOAT)
        return value_float(negative ? -v.as.real : v.as.real);
    if (!value_whole(v, &whole))
        sandbox_fail(s, "bad operand type for unary %c: '%s'; give a number", negative ? '-' : '+', value_type(v));
    if (negative && whole == INT64_MIN)
        too_large(s);
    return value_int(negative ? -whole : whole);
}
