/* "..." % values, as Python formats them. */
#include "template/chars.h"
#include "template/runtime.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct percent {
    sandbox *s;
    value with;
    size_t used; /* values taken                     */
    bool named;  /* values were taken by their names */
    piece_text out;
} percent;

/* A conversion between % and its letter. */
typedef struct conversion {
    bool left, zero, plus, space, sharp;
    int64_t width, precision; /* -1: none */
    value v;
} conversion;

static value next_value(percent *p)
{
    if (!value_is_tuple(p->with)) {
        if (p->used++)
            sandbox_fail(p->s, "not enough arguments for format string; pass more values");
        return p->with;
    }
    if (p->used == p->with.as.list->count)
        sandbox_fail(p->s, "not enough arguments for format string; pass more values");
    return p->with.as.list->items[p->used++];
}

static void add_padded(percent *p, const conversion *c, const char *text, size_t size, bool number)
{
    int64_t missing = c->width - (int64_t)chars_count(p->s, text, size);
    bool zero = c->zero && number && !c->left;
    size_t sign = zero && size && (text[0] == '-' || text[0] == '+' || text[0] == ' ');
    repr_add(p->s, &p->out, text, sign);
    for (int64_t i = 0; i < missing && !c->left; i++)
        repr_add_text(p->s, &p->out, zero ? "0" : " ");
    repr_add(p->s, &p->out, text + sign, size - sign);
    for (int64_t i = 0; i < missing && c->left; i++)
        repr_add_text(p->s, &p->out, " ");
}

static _Noreturn void too_wide(sandbox *s)
{
    sandbox_fail(s, "a width of more than 1000000 is not supported; use a smaller one");
}

static int64_t number_in(percent *p, const string *format, size_t *at)
{
    int64_t number = 0;
    if (format->data[*at] == '*') {
        ++*at;
        number = value_need_whole(p->s, next_value(p), "a width");
        if (number < -1000000 || number > 1000000)
            too_wide(p->s);
        return number;
    }
    while (format->data[*at] >= '0' && format->data[*at] <= '9') {
        number = number * 10 + (format->data[(*at)++] - '0');
        if (number > 1000000)
            too_wide(p->s);
    }
    return number;
}

static void read_flags(conversion *c, const string *format, size_t *at)
{
    for (;; ++*at) {
        char flag = format->data[*at];
        bool *is = flag == '-'   ? &c->left
                   : flag == '0' ? &c->zero
                   : flag == '+' ? &c->plus
                   : flag == ' ' ? &c->space
                   : flag == '#' ? &c->sharp
                                 : NULL;
        if (!is)
            return;
        *is = true;
    }
}

static value named_value(percent *p, const string *format, size_t *at)
{
    const char *close = memchr(format->data + *at, ')', format->size - *at);
    if (!close)
        sandbox_fail(p->s, "incomplete format key; close it with ')'");
    if (p->with.kind != VALUE_DICT)
        sandbox_fail(p->s, "format requires a mapping; pass names");
    value key = value_string(p->s, format->data + *at + 1, (size_t)(close - format->data) - *at - 1);
    const value *item = mapping_get(p->s, p->with.as.mapping, key);
    if (!item)
        sandbox_fail(p->s, "the format has a key '%s' that is not given; pass it", key.as.string->data);
    *at = (size_t)(close - format->data) + 1;
    p->named = true;
    return *item;
}

static void add_number(percent *p, const conversion *c, char letter)
{
    char format[24], text[512];
    int64_t whole;
    bool real = strchr("eEfFgG", letter) != NULL;
    sandbox_step(p->s, REPR_NUMBER_STEPS);
    snprintf(format, sizeof format, "%%%s%s%s%s%s%c", c->plus ? "+" : "", c->space ? " " : "", c->sharp ? "#" : "",
             c->precision >= 0 ? ".*" : "", real ? "" : "ll", letter == 'u' || letter == 'i' ? 'd' : letter);
    value_need(p->s, c->v);
    if (!value_is_number(c->v))
        sandbox_fail(p->s, "%%%c format: a number is required, not %s", letter, value_type(c->v));
    if (c->precision > 60)
        sandbox_fail(p->s, "a precision of more than 60 is not supported; use a smaller one");
    if (real) {
        double v = value_real(c->v);
        int n = c->precision >= 0 ? snprintf(text, sizeof text, format, (int)c->precision, v)
                                  : snprintf(text, sizeof text, format, v);
        sandbox_step(p->s, (size_t)n / 2);
        add_padded(p, c, text, (size_t)n, true);
        return;
    }
    if (!value_whole(c->v, &whole)) {
        if (letter != 'd' && letter != 'i' && letter != 'u')
            sandbox_fail(p->s, "%%%c format: an integer is required, not float", letter);
        if (!(fabs(c->v.as.real) < 9.2e18))
            sandbox_fail(p->s, "a whole number has more than 64 bits, which is not supported; use %%f");
        whole = (int64_t)c->v.as.real;
    }
    if (whole < 0 && letter != 'd' && letter != 'i' && letter != 'u')
        sandbox_fail(p->s, "%%%c of negative numbers is not supported; use %%d", letter);
    int n = c->precision >= 0 ? snprintf(text, sizeof text, format, (int)c->precision, (long long)whole)
                              : snprintf(text, sizeof text, format, (long long)whole);
    add_padded(p, c, text, (size_t)n, true);
}

static void add_text(percent *p, const conversion *c, char letter)
{
    piece_text shown = {0};
    int64_t code;
    char utf8[4];
    if (letter == 'c' && value_whole(c->v, &code)) {
        if (code < 0 || code > 0x10ffff)
            sandbox_fail(p->s, "%%c arg not in range(0x110000); pass a character");
        repr_add(p->s, &shown, utf8, chars_write((int32_t)code, utf8));
    } else if (letter == 'c' && (c->v.kind != VALUE_STRING || c->v.as.string->points != 1)) {
        sandbox_fail(p->s, "%%c requires int or char; pass one character");
    } else if (letter == 'r') {
        repr_add_repr(p->s, &shown, c->v);
    } else {
        repr_add_str(p->s, &shown, c->v);
    }
    const string *text = repr_done(p->s, &shown).as.string;
    size_t size = c->precision >= 0 && letter != 'c' ? chars_offset(p->s, text, (size_t)c->precision) : text->size;
    add_padded(p, c, text->data, size, false);
}

/* One conversion; at stands behind its %. */
static void convert(percent *p, const string *format, size_t *at)
{
    conversion c = {.precision = -1};
    if (format->data[*at] == '%') {
        ++*at;
        repr_add_text(p->s, &p->out, "%");
        return;
    }
    bool named = format->data[*at] == '(';
    if (named)
        c.v = named_value(p, format, at);
    read_flags(&c, format, at);
    c.width = number_in(p, format, at);
    if (c.width < 0) {
        c.left = true;
        c.width = -c.width;
    }
    if (format->data[*at] == '.') {
        ++*at;
        c.precision = number_in(p, format, at);
    }
    while (*at < format->size && strchr("hlL", format->data[*at]))
        ++*at;
    if (*at >= format->size)
        sandbox_fail(p->s, "incomplete format; write %%%% for a percent sign");
    char letter = format->data[(*at)++];
    if (!strchr("diuoxXeEfFgGcrs", letter))
        sandbox_fail(p->s, "the format character '%c' is not supported; use one of diouxXeEfFgGcrs", letter);
    if (!named)
        c.v = next_value(p);
    if (strchr("crs", letter))
        add_text(p, &c, letter);
    else
        add_number(p, &c, letter);
}

value percent_format(sandbox *s, const string *format, value with)
{
    percent p = {.s = s, .with = with};
    for (size_t at = 0; at < format->size;) {
        const char *next = memchr(format->data + at, '%', format->size - at);
        size_t plain = next ? (size_t)(next - format->data) : format->size;
        repr_add(s, &p.out, format->data + at, plain - at);
        at = plain + 1;
        if (next)
            convert(&p, format, &at);
    }
    bool rest = value_is_tuple(with) ? p.used < with.as.list->count
                                     : !p.used && with.kind != VALUE_DICT && with.kind != VALUE_UNDEFINED &&
                                           !value_is_list(with, LIST_LIST) && !value_is_list(with, LIST_RANGE);
    if (rest)
        sandbox_fail(s, "not all arguments converted during string formatting; pass fewer values");
    return repr_done(s, &p.out);
}
