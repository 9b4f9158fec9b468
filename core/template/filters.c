/* Filters of one value: numbers, conversions, JSON. Those of lists and of texts have files of their own. */
#include "template/chars.h"
#include "template/literals.h"
#include "template/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static value filter_default(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    bool replaced = self.kind == VALUE_UNDEFINED || (value_truth(s, arg[1]) && !value_truth(s, self));
    if (!replaced)
        return self;
    return arg[0].kind == VALUE_MISSING ? value_string(s, "", 0) : arg[0];
}

static value filter_abs(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    if (self.kind == VALUE_FLOAT)
        return value_float(fabs(self.as.real));
    int64_t whole = value_need_whole(s, self, "what abs gets");
    return whole < 0 ? operators_negative(s, value_int(whole), true) : value_int(whole);
}

static value filter_int(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    int64_t whole, base = value_whole_or(s, arg[1], 10, "base");
    double real = NAN;
    value otherwise = arg[0].kind == VALUE_MISSING ? value_int(0) : arg[0];
    value_need(s, self);
    if (value_whole(self, &whole))
        return value_int(whole);
    if (base != 2 && base != 8 && base != 10 && base != 16)
        sandbox_fail(s, "numbers of base %lld are not supported; use 2, 8, 10 or 16", (long long)base);
    if (self.kind == VALUE_STRING && literals_int(s, self.as.string, (int)base, &whole))
        return value_int(whole);
    if (self.kind == VALUE_FLOAT)
        real = self.as.real;
    else if (self.kind != VALUE_STRING || !literals_float(s, self.as.string, &real))
        return otherwise;
    if (!isfinite(real))
        return otherwise;
    if (fabs(real) >= 9.2233720368547758e18)
        sandbox_fail(s, "a whole number has more than 64 bits, which is not supported; use floats");
    return value_int((int64_t)real);
}

static value filter_float(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    double real;
    value_need(s, self);
    if (value_is_number(self))
        return value_float(value_real(self));
    if (self.kind == VALUE_STRING && literals_float(s, self.as.string, &real))
        return value_float(real);
    return arg[0].kind == VALUE_MISSING ? value_float(0) : arg[0];
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

static value filter_round(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    int64_t precision = value_whole_or(s, arg[0], 0, "precision"), whole;
    const char *how = arg[1].kind == VALUE_STRING ? arg[1].as.string->data : "common";
    value_need(s, self);
    if (!value_is_number(self))
        sandbox_fail(s, "type %s cannot be rounded; give a number", value_type(self));
    if (strcmp(how, "common") == 0) {
        if (!value_whole(self, &whole))
            return value_float(rounded(s, self.as.real, precision));
        if (precision < 0)
            sandbox_fail(s, "rounding whole numbers to a negative precision is not supported; use //");
        return value_int(whole);
    }
    bool up = strcmp(how, "ceil") == 0;
    if (!up && strcmp(how, "floor") != 0)
        sandbox_fail(s, "method must be common, ceil or floor, not '%s'", how);
    double scale = pow(10, (double)precision), scaled = value_real(self) * scale;
    return value_float(((up ? ceil(scaled) : floor(scaled)) + 0.0) / scale);
}

static value filter_string(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)arg, (void)raw;
    return value_of(repr_str(s, self));
}

static value filter_attr(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    bool found;
    value_need(s, self);
    if (arg[0].kind != VALUE_STRING)
        sandbox_fail(s, "attribute name must be string, not '%s'; put it in quotes", value_type(arg[0]));
    return attribute_only(s, self, repr_str(s, arg[0]), &found);
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

static value filter_tojson(sandbox *s, value self, const value *arg, const arguments *raw)
{
    (void)raw;
    piece_text text = {0};
    json_style style = {.ascii = value_truth(s, arg[0]), .sort = value_truth(s, arg[3])};
    style.indent = indent_of(s, arg[1]);
    style.comma = style.indent ? "," : ", ";
    style.colon = ": ";
    if (arg[2].kind != VALUE_MISSING && arg[2].kind != VALUE_NONE) {
        const list *both = value_items(s, arg[2]);
        if (both->count != 2 || both->items[0].kind != VALUE_STRING || both->items[1].kind != VALUE_STRING)
            sandbox_fail(s, "separators are two texts; write separators=(',', ':')");
        style.comma = both->items[0].as.string->data;
        style.colon = both->items[1].as.string->data;
    }
    value_need(s, self);
    json_value_add(s, &text, self, &style);
    return repr_done(s, &text);
}

static value filter_filesizeformat(sandbox *s, value self, const value *arg, const arguments *raw)
{
    static const char prefixes[] = "kMGTPEZY";
    value number = filter_float(s, self, (value[]){value_none()}, raw);
    if (number.kind == VALUE_NONE)
        sandbox_fail(s, "a size is to be a number, not '%s'", value_type(self));
    double bytes = value_real(number), base = value_truth(s, arg[0]) ? 1024 : 1000;
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
    {"default", "default_value boolean", 0, filter_default},
    {"d", "default_value boolean", 0, filter_default},
    {"abs", "", 0, filter_abs},
    {"int", "default base", 0, filter_int},
    {"float", "default", 0, filter_float},
    {"round", "precision method", 0, filter_round},
    {"string", "", 0, filter_string},
    {"attr", "name", 1, filter_attr},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {"filesizeformat", "binary", 0, filter_filesizeformat},
    {0},
};
