/* Numbers within bounds: digit by digit beside the digits of the bounds, with the remainder of a step. */
#include "grammar/decimals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void decimals_text(const json_t *number, char text[40])
{
    if (json_is_integer(number)) {
        snprintf(text, 40, "%lld", (long long)json_integer_value(number));
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, 40, "%.*g", precision, json_real_value(number));
        if (strtod(text, NULL) == json_real_value(number))
            break;
    }
}

decimal decimals_of(const json_t *number)
{
    char text[40];
    decimal d = {0};
    decimals_text(number, text);
    d.negative = text[0] == '-';
    bool behind = false, any = false;
    for (const char *c = text + d.negative; *c; c++) {
        if (*c == '.') {
            behind = true;
        } else if (*c == 'e') {
            d.point += atoi(c + 1);
            break;
        } else {
            any = any || *c != '0';
            d.point += any && !behind ? 1 : !any && behind ? -1 : 0;
            if (any)
                d.digits[d.count++] = (char)(*c - '0');
        }
    }
    while (d.count && d.digits[d.count - 1] == 0)
        d.count--;
    if (d.count == 0)
        d = (decimal){0};
    return d;
}

/* The digit that stands for 10^power. */
static int digit_at(const decimal *d, int power)
{
    int i = d->point - 1 - power;
    return i >= 0 && i < d->count ? d->digits[i] : 0;
}

/* Is nothing below 10^power? */
static bool ends_at(const decimal *d, int power)
{
    return d->count <= d->point - power;
}

static int whole_digits(const decimal *d)
{
    return d->point > 1 ? d->point : 1;
}

static int compare_size(const decimal *a, const decimal *b)
{
    if (!a->count || !b->count || a->point != b->point)
        return !a->count || !b->count ? (a->count > 0) - (b->count > 0) : a->point < b->point ? -1 : 1;
    for (int i = 0; i < a->count || i < b->count; i++) {
        int x = i < a->count ? a->digits[i] : 0, y = i < b->count ? b->digits[i] : 0;
        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
}

int decimals_compare(const decimal *a, const decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    return a->negative ? compare_size(b, a) : compare_size(a, b);
}

bool decimals_step(decimal_range *r, const json_t *number)
{
    decimal d = decimals_of(number);
    if (d.negative || d.count == 0 || d.count > 5 || d.point > 5 || d.point - d.count < -DECIMALS_FRACTION)
        return false;
    r->scale = d.count > d.point ? d.count - d.point : 0;
    r->step = 0;
    for (int i = 0; i < (d.count > d.point ? d.count : d.point); i++)
        r->step = r->step * 10 + (i < d.count ? d.digits[i] : 0);
    return r->step <= DECIMALS_STEP;
}

/* ---- the automaton -------------------------------------------------------------------------------------------------
 */

enum { AT_LOW = 1, AT_HIGH = 2, POINT = DECIMALS_WHOLE + 1, PLACES = POINT + DECIMALS_FRACTION + 1 };

/* Numbers without a sign between two bounds. A state is a place (so many digits to come before the point; POINT and how
 * many came behind it), whether all digits so far are those of a bound, and a remainder. */
typedef struct builder {
    automaton *a;
    const decimal *low, *high; /* high NULL: none                                                              */
    bool low_open, high_open, exponent;
    int64_t step;
    int scale, fraction;
    uint32_t to;
    uint32_t *states; /* [PLACES][4][step], AUTOMATON_NONE: not made yet                                        */
} builder;

static uint32_t state_of(builder *b, int place, int edges, int64_t rest);

/* Digits from `least` on, which stand for 10^power. */
static void add_digits(builder *b, uint32_t from, int least, int power, int next, int edges, int64_t rest)
{
    for (int d = least; d <= 9 && !b->a->full && !b->a->lack; d++) {
        int low = edges & AT_LOW ? digit_at(b->low, power) : 0, high = edges & AT_HIGH ? digit_at(b->high, power) : 9;
        if (d < low || d > high)
            continue;
        int then = (edges & AT_LOW && d == low ? AT_LOW : 0) | (edges & AT_HIGH && d == high ? AT_HIGH : 0);
        uint32_t to = state_of(b, next, then, (rest * 10 + d) % b->step);
        automaton_bytes(b->a, from, (uint8_t)('0' + d), (uint8_t)('0' + d), to);
    }
}

/* May the number end with the digit of 10^power? */
static bool fits(const builder *b, int power, int edges, int64_t rest)
{
    for (int i = b->scale + power; i > 0; i--)
        rest = rest * 10 % b->step;
    if (rest != 0)
        return false;
    if (edges & AT_LOW && (!ends_at(b->low, power) || b->low_open))
        return false;
    return !(edges & AT_HIGH && ends_at(b->high, power) && b->high_open);
}

static void add_exponent(automaton *a, uint32_t from, uint32_t to)
{
    uint32_t sign = automaton_state(a), first = automaton_state(a), second = automaton_state(a);
    automaton_bytes(a, from, 'e', 'e', sign);
    automaton_bytes(a, from, 'E', 'E', sign);
    automaton_bytes(a, sign, '+', '+', first);
    automaton_bytes(a, sign, '-', '-', first);
    automaton_empty(a, sign, first);
    automaton_bytes(a, first, '0', '9', second);
    automaton_bytes(a, second, '0', '9', to);
    automaton_empty(a, second, to);
}

static uint32_t state_of(builder *b, int place, int edges, int64_t rest)
{
    uint32_t *known = &b->states[(place * 4 + edges) * b->step + rest];
    if (*known != AUTOMATON_NONE)
        return *known;
    uint32_t state = *known = automaton_state(b->a);
    int behind = place - POINT;
    if (place > 0 && place < POINT) {
        add_digits(b, state, 0, place - 1, place - 1, edges, rest);
        return state;
    }
    int power = place == 0 ? 0 : -behind;
    if ((place == 0 || behind > 0) && fits(b, power, edges, rest)) {
        automaton_empty(b->a, state, b->to);
        if (b->exponent)
            add_exponent(b->a, state, b->to);
    }
    if (place == 0 && b->fraction > 0)
        automaton_bytes(b->a, state, '.', '.', state_of(b, POINT, edges, rest));
    if (place >= POINT && behind < b->fraction)
        add_digits(b, state, 0, power - 1, place + 1, edges, rest);
    return state;
}

static void add_sizes(builder *b, uint32_t from)
{
    size_t count = (size_t)PLACES * 4 * (size_t)b->step;
    b->states = malloc(count * sizeof *b->states);
    if (!b->states) {
        b->a->lack = true;
        return;
    }
    memset(b->states, 0xff, count * sizeof *b->states);
    int least = whole_digits(b->low), most = b->high ? whole_digits(b->high) : DECIMALS_WHOLE;
    for (int n = least; n <= most && n <= DECIMALS_WHOLE; n++) {
        int edges = (n == least ? AT_LOW : 0) | (b->high && n == most ? AT_HIGH : 0);
        add_digits(b, from, n > 1, n - 1, n - 1, edges, 0);
    }
    free(b->states);
}

void decimals_add(automaton *a, const decimal_range *r, uint32_t from, uint32_t to)
{
    static const decimal zero = {0};
    int fraction = r->integer ? 0 : r->step ? r->scale : DECIMALS_FRACTION;
    builder b = {.a = a, .step = r->step ? r->step : 1, .scale = r->step ? r->scale : 0, .to = to};
    b.fraction = fraction < DECIMALS_FRACTION ? fraction : DECIMALS_FRACTION;
    b.exponent = !r->integer && !r->has_low && !r->has_high && !r->step;
    if (!r->has_high || !r->high.negative) { /* not below zero: up to high, from low or zero */
        bool above = r->has_low && !r->low.negative;
        b.low = above ? &r->low : &zero;
        b.low_open = above && r->low_open;
        b.high = r->has_high ? &r->high : NULL;
        b.high_open = r->high_open;
        add_sizes(&b, from);
    }
    if (!r->has_low || r->low.negative) { /* below: the sizes the other way round */
        bool below = r->has_high && (r->high.negative || r->high.count == 0);
        decimal sizes[2] = {r->high, r->low};
        b.low = below ? &sizes[0] : &zero;
        b.low_open = below && r->high_open;
        b.high = r->has_low ? &sizes[1] : NULL;
        b.high_open = r->low_open;
        add_sizes(&b, automaton_literal(a, from, "-", 1));
    }
}
