/* const and enum: values as they are written, one way each. */
#include "grammar/decimals.h"
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *schema_values_text(const char *text, size_t length, size_t *size)
{
    static const char letters[] = "btn?fr"; /* of 8 to 13 */
    char *out = malloc(6 * length + 3), *end = out;
    if (!out)
        return NULL;
    *end++ = '"';
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            *end++ = '\\';
            *end++ = (char)c;
        } else if (c >= 8 && c <= 13 && c != 11) {
            *end++ = '\\';
            *end++ = letters[c - 8];
        } else if (c < 0x20) {
            end += sprintf(end, "\\u%04x", c);
        } else {
            *end++ = (char)c;
        }
    }
    *end++ = '"';
    *size = (size_t)(end - out);
    return out;
}

/* A value that holds no others; false: it does. */
static bool write_scalar(schema *s, const json_t *value, char number[40], char **text, size_t *size)
{
    *text = NULL;
    if (json_is_string(value)) {
        *text = schema_values_text(json_string_value(value), json_string_length(value), size);
        if (!*text)
            schema_no_memory(s);
        return true;
    }
    if (json_is_number(value))
        decimals_text(value, number);
    else if (!json_is_object(value) && !json_is_array(value))
        snprintf(number, 40, "%s", json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    else
        return false;
    *size = strlen(number);
    return true;
}

/* The state behind the value. Scalars of an enum share their beginnings. */
static uint32_t add_value(schema *s, const json_t *value, uint32_t from, bool shared)
{
    automaton *a = s->a;
    char number[40], *text;
    const char *name;
    json_t *item;
    size_t size = 0, count = 0, i;
    if (write_scalar(s, value, number, &text, &size)) {
        const char *bytes = text ? text : number;
        from = shared ? automaton_branch(a, from, bytes, size) : automaton_literal(a, from, bytes, size);
        free(text);
        return from;
    }
    from = automaton_literal(a, from, json_is_object(value) ? "{" : "[", 1);
    json_object_foreach ((json_t *)(uintptr_t)value, name, item) {
        from = count++ ? schema_mark(a, from, ',') : from;
        text = schema_values_text(name, strlen(name), &size);
        if (!text)
            schema_no_memory(s);
        from = automaton_literal(a, from, text ? text : "", text ? size : 0);
        free(text);
        from = add_value(s, item, schema_mark(a, from, ':'), false);
    }
    json_array_foreach (value, i, item)
        from = add_value(s, item, i ? schema_mark(a, from, ',') : from, false);
    return automaton_literal(a, from, json_is_object(value) ? "}" : "]", 1);
}

/* Keywords beside the values, of which only these are looked at. */
static void check_beside(schema *s, const json_t *node)
{
    static const char *const words[] = {
        "pattern", " patterns",   "format",   "properties", "required",  "additionalProperties",
        "items",   "prefixItems", "minItems", "maxItems",   "multipleOf"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(node, words[i]))
            schema_fail(s, words[i], "it is not supported beside enum or const");
}

static size_t characters(const json_t *value)
{
    size_t n = 0;
    const char *text = json_string_value(value);
    for (size_t i = 0; i < json_string_length(value); i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static bool fits(schema *s, const json_t *node, const json_t *value)
{
    static const struct {
        const char *word;
        int sign, equal;
    } bounds[] = {{"minimum", 1, 1}, {"exclusiveMinimum", 1, 0}, {"maximum", -1, 1}, {"exclusiveMaximum", -1, 0}};
    if (json_object_get(node, "type") && !schema_types_value(schema_types(s, node), value))
        return false;
    for (size_t i = 0; json_is_number(value) && i < sizeof bounds / sizeof *bounds; i++) {
        const json_t *bound = json_object_get(node, bounds[i].word);
        if (!bound)
            continue;
        decimal x = decimals_of(value), y = decimals_of(bound);
        int order = decimals_compare(&x, &y) * bounds[i].sign;
        if (order < 0 || (order == 0 && !bounds[i].equal))
            return false;
    }
    if (!json_is_string(value))
        return true;
    int64_t count = (int64_t)characters(value);
    return count >= schema_count(s, node, "minLength", 0) && count <= schema_count(s, node, "maxLength", INT64_MAX);
}

void schema_values(schema *s, json_t *node, uint32_t from, uint32_t to)
{
    json_t *one = json_object_get(node, "const"), *list = json_object_get(node, "enum"), *value;
    size_t i;
    check_beside(s, node);
    if (list && (!json_is_array(list) || json_array_size(list) == 0))
        schema_fail(s, "enum", "it must be a list of at least one value");
    if (one) {
        bool listed = !list;
        json_array_foreach (list, i, value)
            listed = listed || json_equal(value, one);
        if (listed && fits(s, node, one))
            automaton_empty(s->a, add_value(s, one, from, true), to);
        return;
    }
    json_array_foreach (list, i, value)
        if (s->status == TN_OK && !s->a->full && fits(s, node, value))
            automaton_empty(s->a, add_value(s, value, from, true), to);
}
