/* Filters of one value: numbers, conversions, JSON. Those of lists and of texts have files of their own. */
#include "template/chars.h"
#include "template/literals.h"
#include "template/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static value filter_default(sandbox *s, const invocation *c)
{
    bool replaced = c->self.kind == VALUE_UNDEFINED || (value_truth(c->arg[1]) && !value_truth(c->self));
    if (!replaced)
        return c->self;
    return c->arg[0].kind == VALUE_MISSING ? value_string(s, "", 0) : c->arg[0];
}

static value filter_abs(sandbox *s, const invocation *c)
{
    if (c->self.kind == VALUE_FLOAT)
        return value_float(fabs(c->self.as.real));
    int64_t whole = value_need_whole(s, c->self, "what abs gets");
    return whole < 0 ? operators_negative(s, value_int(whole), true) : value_int(whole);
}

static value filter_int(sandbox *s, const invocation *c)
{
    int64_t whole, base = value_whole_or(s, c->arg[1], 10, "base");
    double real = NAN;
    value otherwise = c->arg[0].kind == VALUE_MISSING ? value_int(0) : c->arg[0];
    value_need(s, c->self);
    if (value_whole(c->self, &whole))
        return value_int(whole);
    if (base != 2 && base != 8 && base != 10 && base != 16)
        sandbox_fail(s, "numbers of base %lld are not supported; use 2, 8, 10 or 16", (long long)base);
    if (c->self.kind == VALUE_STRING && literals_int(s, c->self.as.string, (int)base, &whole))
        return value_int(whole);
    if (c->self.kind == VALUE_FLOAT)
        real = c->self.as.real;
    else if (c->self.kind != VALUE_STRING || !literals_float(s, c->self.as.string, &real))
        return otherwise;
    if (!isfinite(real))
        return otherwise;
    if (fabs(real) >= 9.2233720368547758e18)
        sandbox_fail(s, "a whole number has more than 64 bits, which is not supported; use floats");
    return value_int((int64_t)real);
}

/* A number, or of a text what it says; else otherwise. */
static value as_float(sandbox *s, value v, value otherwise)
{
    double real;
    value_need(s, v);
    if (value_is_number(v))
        return value_float(value_real(v));
    return v.kind == VALUE_STRING && literals_float(s, v.as.string, &real) ? value_float(real) : otherwise;
}

static value filter_float(sandbox *s, const invocation *c)
{
    return as_float(s, c->self, c->arg[0].kind == VALUE_MISSING ? value_float(0) : c->arg[0]);
}

/* To nearest of the exact value, ties to even, as Python's round; snprintf rounds so. */
static double rounded(sandbox *s, double real, int64_t precision)
{
    char text[400];
    sandbox_step(s, REPR_NUMBER_STEPS);
    if (!isfinite(real) || precision > 300 || (precision >= 0 && fabs(real) >= 1e22)) /* which is whole */
        return real;
    if (precision < 0) {
        double scale = pow(10, -(double)precision);
        return isfinite(scale) ? rint(real / scale) * scale : copysign(0.0, real);
    }
    snprintf(text, sizeof text, "%.*f", (int)(precision < 60 ? precision : 60), real);
    return strtod(text, NULL);
}

static value filter_round(sandbox *s, const invocation *c)
{
    int64_t precision = value_whole_or(s, c->arg[0], 0, "precision"), whole;
    const char *how = c->arg[1].kind == VALUE_STRING ? c->arg[1].as.string->data : "common";
    value_need(s, c->self);
    if (!value_is_number(c->self))
        sandbox_fail(s, "type %s cannot be rounded; give a number", value_type(c->self));
    if (strcmp(how, "common") == 0) {
        if (!value_whole(c->self, &whole))
            return value_float(rounded(s, c->self.as.real, precision));
        if (precision < 0)
            sandbox_fail(s, "rounding whole numbers to a negative precision is not supported; use //");
        return value_int(whole);
    }
    bool up = strcmp(how, "ceil") == 0;
    if (!up && strcmp(how, "floor") != 0)
        sandbox_fail(s, "method must be common, ceil or floor, not '%s'", how);
    double scale = pow(10, (double)precision), scaled = value_real(c->self) * scale;
    return value_float(((up ? ceil(scaled) : floor(scaled)) + 0.0) / scale);
}

static value filter_string(sandbox *s, const invocation *c)
{
    return value_of(repr_str(s, c->self));
}

static value filter_attr(sandbox *s, const invocation *c)
{
    bool found;
    value_need(s, c->self);
    if (c->arg[0].kind != VALUE_STRING)
        sandbox_fail(s, "attribute name must be string, not '%s'; put it in quotes", value_type(c->arg[0]));
    return attribute_only(s, c->self, repr_str(s, c->arg[0]), &found);
}

static const char *indent_of(sandbox *s, value v)
{
    if (v.kind == VALUE_MISSING || v.kind == VALUE_NONE)
        return NULL;
    if (v.kind == VALUE_STRING)
        return v.as.string->data;
    int64_t width = value_need_whole(s, v, "indent");
    if (width > 1000)
        sandbox_fail(s, "an indent of %lld is not supported; use at most 1000", (long long)width);
    char *text = sandbox_alloc(s, width > 0 ? (size_t)width + 1 : 1);
    if (width > 0)
        memset(text, ' ', (size_t)width);
    return text;
}

static value filter_tojson(sandbox *s, const invocation *c)
{
    piece_text text = {0};
    json_style style = {.ascii = value_truth(c->arg[0]), .sort = value_truth(c->arg[3])};
    style.indent = indent_of(s, c->arg[1]);
    style.comma = style.indent ? "," : ", ";
    style.colon = ": ";
    if (c->arg[2].kind != VALUE_MISSING && c->arg[2].kind != VALUE_NONE) {
        const list *both = value_items(s, c->arg[2]);
        if (both->count != 2 || both->items[0].kind != VALUE_STRING || both->items[1].kind != VALUE_STRING)
            sandbox_fail(s, "separators are two texts; write separators=(',', ':')");
        style.comma = both->items[0].as.string->data;
        style.colon = both->items[1].as.string->data;
    }
    value_need(s, c->self);
    json_value_add(s, &text, c->self, &style);
    return repr_done(s, &text);
}

static value filter_filesizeformat(sandbox *s, const invocation *c)
{
    static const char prefixes[] = "kMGTPEZY";
    value number = as_float(s, c->self, value_none());
    if (number.kind == VALUE_NONE)
        sandbox_fail(s, "a size is to be a number, not '%s'", value_type(c->self));
    double bytes = value_real(number), base = value_truth(c->arg[0]) ? 1024 : 1000;
    char text[64];
    int i = 0;
    if (bytes == 1)
        snprintf(text, sizeof text, "1 Byte");
    else if (bytes < base)
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) + 0.0);
    else {
        for (; i < 7 && bytes >= pow(base, i + 2);)
            i++;
        char prefix = i == 0 && base == 1024 ? 'K' : prefixes[i];
        int n =
            snprintf(text, sizeof text, "%.1f %c%sB", base * bytes / pow(base, i + 2), prefix, base == 1024 ? "i" : "");
        sandbox_step(s, (size_t)n / 2);
    }
    return value_string(s, text, strlen(text));
}

const builtin filters_table[] = {
    {"default", "default_value boolean", 0, filter_default, 0},
    {"d", "default_value boolean", 0, filter_default, 0},
    {"abs", "", 0, filter_abs, 0},
    {"int", "default base", 0, filter_int, 0},
    {"float", "default", 0, filter_float, 0},
    {"round", "precision method", 0, filter_round, 0},
    {"string", "", 0, filter_string, 0},
    {"attr", "name", 1, filter_attr, 0},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson, 0},
    {"filesizeformat", "binary", 0, filter_filesizeformat, 0},
    {0},
};
