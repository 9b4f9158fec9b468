/* Strings and numbers of a schema. */
#include "grammar/codepoints.h"
#include "grammar/decimals.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <string.h>

/* c becomes what it has in common with an expression. */
static void narrow(schema *s, codepoints *c, const char *pattern, bool whole, const char *word)
{
    codepoints other = {0}, both = {0};
    char pointer[302];
    if (s->status != TN_OK)
        return;
    schema_pointer(s, &s->jobs[s->done].place, word, pointer, sizeof pointer - 2);
    strcat(pointer, ": ");
    s->status = pattern_parse(pattern, strlen(pattern), whole, &other, "schema", pointer, s->err);
    if (s->status != TN_OK) {
        codepoints_free(&other);
        return;
    }
    if (c->count == 0 && !c->full && !c->lack) {
        *c = other;
        return;
    }
    codepoints_both(c, &other, &both);
    codepoints_free(c);
    codepoints_free(&other);
    *c = both;
}

static void narrow_by(schema *s, codepoints *c, const json_t *pattern, const char *word)
{
    if (!json_is_string(pattern))
        schema_fail(s, word, "it must be a string");
    else
        narrow(s, c, json_string_value(pattern), false, word);
}

void schema_string(schema *s, json_t *node, uint32_t from, uint32_t to)
{
    int64_t min = schema_count(s, node, "minLength", 0), max = schema_count(s, node, "maxLength", -1);
    const json_t *pattern = json_object_get(node, "pattern"), *more = json_object_get(node, " patterns");
    const json_t *format = json_object_get(node, "format");
    if (max >= 0 && min > max)
        schema_fail(s, "minLength", "no length is left: at least %lld, at most %lld", (long long)min, (long long)max);
    if (more && !json_is_array(more))
        schema_fail(s, " patterns", "this keyword is not supported");
    if (format && !json_is_string(format))
        schema_fail(s, "format", "it must be a string");
    const char *known = json_is_string(format) ? pattern_of_format(json_string_value(format)) : NULL;
    if (s->status != TN_OK)
        return;
    if (!pattern && !more && !known && min == 0 && max < 0) {
        automaton_call(s->a, from, schema_any_string(s), to);
        return;
    }
    codepoints c = {0};
    if (min > 0 || max >= 0 || (!pattern && !more && !known))
        codepoints_lengths(&c, min, max);
    if (known)
        narrow(s, &c, known, true, "format");
    if (pattern)
        narrow_by(s, &c, pattern, "pattern");
    for (size_t i = 0; i < json_array_size(more); i++)
        narrow_by(s, &c, json_array_get(more, i), "pattern");
    if (s->status == TN_OK)
        codepoints_lower(&c, s->a, automaton_literal(s->a, from, "\"", 1), '"', to, true);
    codepoints_free(&c);
}

/* One side of the range: the narrower of a bound and an open one. */
static void read_bound(schema *s, const json_t *node, const char *word, const char *open_word, int sign, bool *has,
                       bool *open, decimal *to)
{
    const json_t *bound[2] = {json_object_get(node, word), json_object_get(node, open_word)};
    for (int i = 0; i < 2; i++) {
        if (!bound[i])
            continue;
        if (!json_is_number(bound[i])) {
            schema_fail(s, i ? open_word : word, "it must be a number");
            continue;
        }
        decimal d = decimals_of(bound[i]);
        int order = *has ? decimals_compare(&d, to) * sign : 1;
        if (order > 0 || (order == 0 && i))
            *open = i;
        if (order > 0)
            *to = d;
        *has = true;
    }
}

void schema_number(schema *s, json_t *node, bool integer, uint32_t from, uint32_t to)
{
    decimal_range r = {.integer = integer};
    const json_t *step = json_object_get(node, "multipleOf");
    read_bound(s, node, "minimum", "exclusiveMinimum", 1, &r.has_low, &r.low_open, &r.low);
    read_bound(s, node, "maximum", "exclusiveMaximum", -1, &r.has_high, &r.high_open, &r.high);
    if (step && (!json_is_number(step) || json_number_value(step) <= 0))
        schema_fail(s, "multipleOf", "it must be a number above 0");
    else if (step && !decimals_step(&r, step))
        schema_fail(s, "multipleOf", "only 1 to %d, and these divided by powers of ten, are supported", DECIMALS_STEP);
    schema_spend(s, (size_t)r.step); /* a table with a row for each remainder */
    int order = r.has_low && r.has_high ? decimals_compare(&r.low, &r.high) : -1;
    if (order > 0 || (order == 0 && (r.low_open || r.high_open)))
        schema_fail(s, json_object_get(node, "minimum") ? "minimum" : "exclusiveMinimum", "no number is left");
    if (s->status != TN_OK)
        return;
    if (!integer && !r.has_low && !r.has_high && !step)
        automaton_call(s->a, from, schema_any_number(s), to);
    else
        decimals_add(s->a, &r, from, to);
}
