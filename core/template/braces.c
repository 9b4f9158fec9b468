/* "...".format(...): fields by order, index or name, with paths, conversions and the usual format specifications. */
#include "template/chars.h"
#include "template/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct spec {
    char fill[5], align, sign, kind;
    bool zero, comma, sharp;
    int64_t width, precision; /* -1: none */
} spec;

static int64_t digits(sandbox *s, const char **at)
{
    int64_t number = 0;
    while (**at >= '0' && **at <= '9') {
        number = number * 10 + (*(*at)++ - '0');
        if (number > 1000000)
            sandbox_fail(s, "a width of more than 1000000 is not supported; use a smaller one");
    }
    return number;
}

static spec read_spec(sandbox *s, const char *text)
{
    spec p = {.fill = " ", .precision = -1};
    const char *at = text;
    size_t n = 0;
    if (*at)
        chars_next(s, at, strlen(at), &n);
    if (n && at[n] && strchr("<>=^", at[n])) {
        memcpy(p.fill, at, n);
        p.fill[n] = '\0';
        at += n;
    }
    if (*at && strchr("<>=^", *at))
        p.align = *at++;
    if (*at && strchr("+- ", *at))
        p.sign = *at++;
    if (*at == '#') {
        p.sharp = true;
        at++;
    }
    if (*at == '0') {
        p.zero = true;
        at++;
    }
    p.width = digits(s, &at);
    if (*at == ',') {
        p.comma = true;
        at++;
    }
    if (*at == '.') {
        at++;
        p.precision = digits(s, &at);
    }
    p.kind = *at ? *at++ : '\0';
    if (*at || p.sharp || (p.kind && !strchr("sdfFeEgGxXo%", p.kind)))
        sandbox_fail(
            s, "the format specification '%s' is not supported; use fill, width, precision and one of sdfegxo%%", text);
    return p;
}

/* Without a letter a float shows that it is one: what %g wrote as a whole number gets ".0", or an exponent where that
 * would be a digit more than asked for. */
static void as_float(double real, int precision, char *text, size_t size)
{
    size_t digits = strspn(text, "0123456789");
    int most = precision > 0 ? precision : 1;
    if (text[digits])
        return;
    if (digits < (size_t)most) {
        snprintf(text + digits, size - digits, ".0");
        return;
    }
    snprintf(text, size, "%.*e", most - 1, real);
    char *exponent = strchr(text, 'e'), *end = exponent;
    while (most > 1 && end[-1] == '0')
        end--;
    end -= most > 1 && end[-1] == '.';
    memmove(end, exponent, strlen(exponent) + 1);
}

/* The absolute value, as digits. */
static void show_number(sandbox *s, const spec *p, value v, char *text, size_t size)
{
    int64_t whole;
    char kind = p->kind, format[16];
    sandbox_step(s, REPR_NUMBER_STEPS);
    bool is_whole = value_whole(v, &whole), as_real = kind && strchr("fFeEgG%", kind);
    if (p->precision > 60 || (is_whole && !as_real && p->precision >= 0))
        sandbox_fail(s, "this precision is not supported; use one up to 60, of floats");
    if (is_whole && !as_real) {
        unsigned long long plain = whole < 0 ? 0 - (unsigned long long)whole : (unsigned long long)whole;
        snprintf(format, sizeof format, "%%ll%c", !kind || kind == 'd' ? 'u' : kind);
        snprintf(text, size, format, plain);
        return;
    }
    if (kind && strchr("dxXo", kind))
        sandbox_fail(s, "unknown format code '%c' for object of type 'float'", kind);
    double real = fabs(value_real(v)) * (kind == '%' ? 100 : 1);
    int precision = p->precision >= 0 ? (int)p->precision : 6;
    if (!kind && p->precision < 0) {
        piece_text shown = {0};
        repr_add_float(s, &shown, real);
        snprintf(text, size, "%s", shown.data);
        return;
    }
    snprintf(format, sizeof format, "%%.*%c", kind == '%' ? 'f' : kind ? kind : 'g');
    sandbox_step(s, (size_t)snprintf(text, size, format, precision, real) / 2);
    if (!kind)
        as_float(real, precision, text, size);
    if (kind == '%')
        strncat(text, "%", size - strlen(text) - 1);
}

static void add_commas(char *text, size_t size)
{
    size_t whole = strspn(text, "0123456789"), length = strlen(text);
    for (size_t at = whole; at > 3 && length + 2 < size; length++) {
        at -= 3;
        memmove(text + at + 1, text + at, length - at + 1);
        text[at] = ',';
    }
}

static void pad(sandbox *s, piece_text *to, const spec *p, const char *sign, const char *text, size_t size, char align)
{
    int64_t missing = p->width - (int64_t)chars_count(s, text, size) - (int64_t)strlen(sign);
    int64_t left = missing <= 0 || align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    const char *fill = p->zero && !p->align ? "0" : p->fill;
    if (align == '=')
        repr_add_text(s, to, sign);
    for (int64_t i = 0; i < left; i++)
        repr_add_text(s, to, fill);
    if (align != '=')
        repr_add_text(s, to, sign);
    repr_add(s, to, text, size);
    for (int64_t i = left; i < missing; i++)
        repr_add_text(s, to, fill);
}

static void add_number(sandbox *s, piece_text *to, value v, const char *text)
{
    spec p = read_spec(s, text);
    bool number = value_is_number(v) && (v.kind != VALUE_BOOL || *text);
    if (!number) {
        const string *shown = repr_str(s, v);
        if ((v.kind != VALUE_STRING && *text) || (p.kind && p.kind != 's') || p.comma || p.sign || p.align == '=')
            sandbox_fail(s, "unsupported format string '%s' for a value of type '%s'; make a text of it before", text,
                         value_type(v));
        size_t size = p.precision >= 0 ? chars_offset(s, shown, (size_t)p.precision) : shown->size;
        pad(s, to, &p, "", shown->data, size, p.align ? p.align : '<');
        return;
    }
    if (p.kind == 's')
        sandbox_fail(s, "unknown format code 's' for a value of type '%s'; use d or f", value_type(v));
    char shown[512];
    bool negative = v.kind == VALUE_FLOAT ? signbit(v.as.real) : v.kind == VALUE_INT && v.as.integer < 0;
    show_number(s, &p, v, shown, sizeof shown);
    if (p.comma)
        add_commas(shown, sizeof shown);
    const char *sign = negative ? "-" : p.sign == '+' ? "+" : p.sign == ' ' ? " " : "";
    pad(s, to, &p, sign, shown, strlen(shown), p.align ? p.align : p.zero ? '=' : '>');
}

typedef struct braces {
    sandbox *s;
    const arguments *given;
    size_t next;
    bool numbered; /* a field says its number                                                        */
    piece_text out;
} braces;

static value by_index(braces *b, size_t index)
{
    if (index >= b->given->count)
        sandbox_fail(b->s, "replacement index %zu out of range; pass more values", index);
    return b->given->items[index];
}

/* The value of "name.attribute[key]". */
static value field(braces *b, const char *name, size_t size)
{
    size_t first = 0;
    value v = {0};
    while (first < size && name[first] != '.' && name[first] != '[')
        first++;
    bool number = first && first < 9 && strspn(name, "0123456789") >= first;
    b->numbered |= number;
    if (first == 0)
        v = by_index(b, b->next++);
    else if (number)
        v = by_index(b, strtoul(name, NULL, 10));
    if (b->numbered && b->next)
        sandbox_fail(b->s, "cannot mix '{}' and '{0}' in a format string; use one kind");
    sandbox_step(b->s, 1 + b->given->named_count / 4);
    if (first && !number)
        for (size_t i = 0; i < b->given->named_count; i++)
            if (b->given->names[i]->size == first && memcmp(b->given->names[i]->data, name, first) == 0)
                v = b->given->named[i];
    if (v.kind == VALUE_MISSING)
        sandbox_fail(b->s, "the format has a name '%.*s' that is not given; pass it", (int)first, name);
    for (size_t at = first; at < size;) {
        bool dot = name[at] == '.';
        size_t end = at + 1;
        while (end < size && name[end] != (dot ? '.' : ']') && !(dot && name[end] == '['))
            end++;
        const char *part = name + at + 1;
        size_t n = end - at - 1;
        if (dot)
            v = attribute_get(b->s, v, value_string(b->s, part, n).as.string);
        else if (n && n < 9 && strspn(part, "0123456789") >= n)
            v = attribute_element(b->s, v, value_int(strtol(part, NULL, 10)));
        else
            v = attribute_element(b->s, v, value_string(b->s, part, n));
        at = end + !dot;
    }
    return v;
}

/* "name!r:specification" between braces. */
static void replace(braces *b, const char *text, size_t size)
{
    size_t colon = 0;
    while (colon < size && text[colon] != ':' && text[colon] != '!')
        colon++;
    value v = field(b, text, colon);
    if (colon + 1 < size && text[colon] == '!') {
        piece_text shown = {0};
        char kind = text[colon + 1];
        if ((kind != 'r' && kind != 's') || (colon + 2 < size && text[colon + 2] != ':'))
            sandbox_fail(b->s, "the conversion '%.*s' is not supported; use !r or !s", (int)(size - colon),
                         text + colon);
        if (kind == 'r')
            repr_add_repr(b->s, &shown, v);
        else
            repr_add_str(b->s, &shown, v);
        v = repr_done(b->s, &shown);
        colon += 2;
    }
    const string *spec_text = value_string(b->s, text + colon, size - colon).as.string;
    value_need(b->s, v.kind == VALUE_UNDEFINED && colon < size ? v : value_none());
    add_number(b->s, &b->out, v, spec_text->data[0] == ':' ? spec_text->data + 1 : "");
}

value braces_format(sandbox *s, const string *format, const arguments *given)
{
    braces b = {.s = s, .given = given};
    for (size_t at = 0; at < format->size; at++) {
        char c = format->data[at], next = format->data[at + 1];
        if ((c == '{' || c == '}') && next == c) {
            repr_add(s, &b.out, &c, 1);
            at++;
        } else if (c == '{') {
            const char *close = memchr(format->data + at, '}', format->size - at);
            size_t size = close ? (size_t)(close - format->data) - at - 1 : 0;
            if (!close || memchr(format->data + at + 1, '{', size))
                sandbox_fail(s,
                             "a format field that does not end, or has a field inside, is not supported; write it out");
            replace(&b, format->data + at + 1, size);
            at += size + 1;
        } else if (c == '}') {
            sandbox_fail(s, "single '}' encountered in format string; write '}}'");
        } else {
            repr_add(s, &b.out, &c, 1);
        }
    }
    return repr_done(s, &b.out);
}
