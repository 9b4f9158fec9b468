/* Values as text: what Python's str() and repr() give. */
#include "template/chars.h"
#include "template/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void repr_add(sandbox *s, piece_text *to, const char *data, size_t size)
{
    if (size > SANDBOX_OUTPUT || to->size + size > SANDBOX_OUTPUT)
        sandbox_fail(s, "the template makes a text of more than %zu MB; simplify it, or shorten the conversation",
                     SANDBOX_OUTPUT >> 20);
    sandbox_step(s, 1 + size / 64);
    if (to->size + size + 1 > to->capacity) {
        size_t capacity = 2 * to->capacity > to->size + size + 1 ? 2 * to->capacity : to->size + size + 64;
        char *grown = sandbox_alloc(s, capacity);
        if (to->size)
            memcpy(grown, to->data, to->size);
        to->data = grown;
        to->capacity = capacity;
    }
    if (size)
        memcpy(to->data + to->size, data, size);
    to->size += size;
    to->data[to->size] = '\0';
}

void repr_add_text(sandbox *s, piece_text *to, const char *text)
{
    repr_add(s, to, text, strlen(text));
}

value repr_done(sandbox *s, piece_text *text)
{
    return value_text(s, text->data ? text->data : "", text->size);
}

/* The fewest digits that read back as the same number, without a point, and the exponent of the first. */
static int shortest(sandbox *s, double real, char digits[24])
{
    char text[40];
    for (int n = 1; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, real);
        if (strtod(text, NULL) == real)
            break;
        sandbox_step(s, REPR_NUMBER_STEPS);
    }
    size_t n = 0;
    for (const char *c = text; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    digits[n] = '\0';
    return (int)strtol(strchr(text, 'e') + 1, NULL, 10);
}

void repr_add_float(sandbox *s, piece_text *to, double real)
{
    char digits[24], text[64];
    if (isnan(real) || isinf(real)) {
        repr_add_text(s, to, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    int exponent = shortest(s, fabs(real), digits), n = (int)strlen(digits);
    if (signbit(real))
        repr_add_text(s, to, "-");
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof text, "%.1s%s%se%c%02d", digits, n > 1 ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else if (exponent < 0)
        snprintf(text, sizeof text, "0.%.*s%s", -exponent - 1, "0000", digits);
    else if (n > exponent + 1)
        snprintf(text, sizeof text, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    else
        snprintf(text, sizeof text, "%s%.*s.0", digits, exponent + 1 - n, "0000000000000000");
    repr_add_text(s, to, text);
}

static void add_escaped(sandbox *s, piece_text *to, int32_t code, const char *at, size_t n, char quote)
{
    char text[16];
    if (code == '\\' || code == quote)
        snprintf(text, sizeof text, "\\%c", (char)code);
    else if (code == '\n' || code == '\r' || code == '\t')
        snprintf(text, sizeof text, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else if (chars_is_printable(code)) {
        repr_add(s, to, at, n);
        return;
    } else {
        sandbox_step(s, REPR_NUMBER_STEPS);
        snprintf(text, sizeof text, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
    }
    repr_add_text(s, to, text);
}

static void add_string_repr(sandbox *s, piece_text *to, const string *text)
{
    char quote = memchr(text->data, '\'', text->size) && !memchr(text->data, '"', text->size) ? '"' : '\'';
    if (text->markup)
        repr_add_text(s, to, "Markup(");
    repr_add(s, to, &quote, 1);
    for (size_t i = 0, from = 0; i < text->size; from = i) {
        int32_t code = chars_next(s, text->data, text->size, &i);
        add_escaped(s, to, code, text->data + from, i - from, quote);
    }
    repr_add(s, to, &quote, 1);
    if (text->markup)
        repr_add_text(s, to, ")");
}

static void add_items(sandbox *s, piece_text *to, const list *items, const char *open, const char *close)
{
    repr_add_text(s, to, open);
    for (size_t i = 0; i < items->count; i++) {
        if (i)
            repr_add_text(s, to, ", ");
        repr_add_repr(s, to, items->items[i]);
    }
    repr_add_text(s, to, close);
}

static void add_list_repr(sandbox *s, piece_text *to, const list *items)
{
    char text[96];
    switch (items->kind) {
    case LIST_LIST:
        add_items(s, to, items, "[", "]");
        break;
    case LIST_TUPLE:
    case LIST_GROUP:
        add_items(s, to, items, "(", items->count == 1 ? ",)" : ")");
        break;
    case LIST_KEYS:
        add_items(s, to, items, "dict_keys([", "])");
        break;
    case LIST_VALUES:
        add_items(s, to, items, "dict_values([", "])");
        break;
    case LIST_ITEMS:
        add_items(s, to, items, "dict_items([", "])");
        break;
    case LIST_RANGE:
        snprintf(text, sizeof text, items->by == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)items->from, (long long)items->to, (long long)items->by);
        repr_add_text(s, to, text);
        break;
    default:
        sandbox_fail(s, "a generator is not supported as text; use the filter 'list' or 'join' before");
    }
}

static void add_mapping_repr(sandbox *s, piece_text *to, const mapping *m)
{
    repr_add_text(s, to, "{");
    for (size_t i = 0; i < m->count; i++) {
        if (i)
            repr_add_text(s, to, ", ");
        repr_add_repr(s, to, m->keys[i]);
        repr_add_text(s, to, ": ");
        repr_add_repr(s, to, m->values[i]);
    }
    repr_add_text(s, to, "}");
}

void repr_add_repr(sandbox *s, piece_text *to, value v)
{
    char text[32];
    sandbox_enter(s);
    switch (v.kind) {
    case VALUE_NONE:
        repr_add_text(s, to, "None");
        break;
    case VALUE_BOOL:
        repr_add_text(s, to, v.as.boolean ? "True" : "False");
        break;
    case VALUE_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.as.integer);
        repr_add_text(s, to, text);
        break;
    case VALUE_FLOAT:
        repr_add_float(s, to, v.as.real);
        break;
    case VALUE_STRING:
        add_string_repr(s, to, v.as.string);
        break;
    case VALUE_LIST:
        add_list_repr(s, to, v.as.list);
        break;
    case VALUE_DICT:
        add_mapping_repr(s, to, v.as.mapping);
        break;
    case VALUE_UNDEFINED:
        repr_add_text(s, to, "Undefined");
        break;
    default:
        sandbox_fail(s, "a value of type '%s' is not supported as text; print what it gives", value_type(v));
    }
    sandbox_leave(s);
}

void repr_add_str(sandbox *s, piece_text *to, value v)
{
    if (v.kind == VALUE_STRING)
        repr_add(s, to, v.as.string->data, v.as.string->size);
    else if (v.kind != VALUE_UNDEFINED)
        repr_add_repr(s, to, v);
}

const string *repr_str(sandbox *s, value v)
{
    if (v.kind == VALUE_STRING)
        return v.as.string;
    piece_text text = {0};
    repr_add_str(s, &text, v);
    return repr_done(s, &text).as.string;
}

const char *repr_short(sandbox *s, value v)
{
    piece_text text = {0};
    if (v.kind == VALUE_LIST || v.kind == VALUE_DICT || v.kind >= VALUE_NAMESPACE)
        return value_type(v);
    repr_add_repr(s, &text, v);
    if (text.size > 60)
        memcpy(text.data + 57, "...", 4);
    return text.data;
}
