/* Schemas that must hold together (allOf, what stands beside $ref and anyOf) put into one. */
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

/* Of $ref and allOf within one another; more is taken for a circle. */
enum { DEEPEST = 64, MOST_PAIRS = 1024 };

bool schema_is_note(const char *word)
{
    static const char *const words[] = {
        "title",           "description",      "default",      "examples",    "example",
        "deprecated",      "readOnly",         "writeOnly",    "$schema",     "$id",
        "$comment",        "$anchor",          "$defs",        "definitions", "discriminator",
        "contentEncoding", "contentMediaType", "contentSchema"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return strncmp(word, "x-", 2) == 0;
}

/* {"allOf": [a, b]}; a new reference. Either may be NULL, which demands nothing. */
static json_t *both(json_t *a, json_t *b)
{
    return a && b ? json_pack("{s:[O,O]}", "allOf", a, b) : json_incref(a ? a : b ? b : json_true());
}

/* ---- keywords in which both speak
 * ------------------------------------------------------------------------------------ */

static bool set(schema *s, json_t *to, const char *word, json_t *value)
{
    if (value && json_object_set_new(to, word, value) == 0)
        return true;
    schema_no_memory(s);
    return false;
}

/* The greater or smaller of two numbers. */
static void merge_bound(schema *s, json_t *to, const char *word, json_t *a, json_t *b, bool greater)
{
    if (!json_is_number(a) || !json_is_number(b))
        schema_fail(s, word, "it must be a number");
    else if ((json_number_value(b) > json_number_value(a)) == greater)
        set(s, to, word, json_incref(b));
}

/* Values, or names, that are in both lists; where one is no list, it is one value. */
static void merge_common(schema *s, json_t *to, const char *word, json_t *a, json_t *b, bool types)
{
    json_t *common = json_array(), *x = json_is_array(a) ? json_incref(a) : json_pack("[O]", a), *one, *other;
    json_t *y = json_is_array(b) ? json_incref(b) : json_pack("[O]", b);
    size_t i, k;
    schema_spend(s, json_array_size(x) * json_array_size(y));
    json_array_foreach (s->status == TN_OK ? x : NULL, i, one)
        json_array_foreach (y, k, other) {
            const char *m = json_string_value(one), *n = json_string_value(other);
            bool narrower = types && m && n && strcmp(m, "integer") == 0 && strcmp(n, "number") == 0;
            bool wider = types && m && n && strcmp(m, "number") == 0 && strcmp(n, "integer") == 0;
            if (json_equal(one, other) || narrower)
                json_array_append(common, one);
            else if (wider)
                json_array_append(common, other);
        }
    json_decref(x);
    json_decref(y);
    set(s, to, word, common);
}

static void merge_required(schema *s, json_t *to, json_t *a, json_t *b)
{
    json_t *all = json_deep_copy(a);
    if (!json_is_array(a) || !json_is_array(b))
        schema_fail(s, "required", "it must be a list of names");
    else
        json_array_extend(all, b);
    set(s, to, "required", all);
}

/* A property of one alone must be as the other wants its others to be. */
static void merge_properties(schema *s, json_t *to, json_t *a, json_t *b)
{
    json_t *p = json_object_get(a, "properties"), *q = json_object_get(b, "properties"), *out = json_object(), *value;
    json_t *others_a = json_object_get(a, "additionalProperties"),
           *others_b = json_object_get(b, "additionalProperties");
    const char *name;
    json_object_foreach (p, name, value) {
        json_t *other = json_object_get(q, name);
        set(s, out, name, both(value, other ? other : others_b));
    }
    json_object_foreach (q, name, value)
        if (!json_object_get(p, name))
            set(s, out, name, both(others_a, value));
    set(s, to, "properties", out);
}

static void merge_prefix(schema *s, json_t *to, json_t *a, json_t *b)
{
    json_t *x = json_object_get(a, "prefixItems"), *y = json_object_get(b, "prefixItems"), *out = json_array();
    size_t m = json_array_size(x), n = json_array_size(y);
    for (size_t i = 0; out && i < (m > n ? m : n); i++)
        json_array_append_new(out, both(i < m ? json_array_get(x, i) : json_object_get(a, "items"),
                                        i < n ? json_array_get(y, i) : json_object_get(b, "items")));
    set(s, to, "prefixItems", out);
}

static void merge_patterns(schema *s, json_t *to, json_t *a, json_t *b)
{
    static const char *const words[] = {"pattern", " patterns"};
    json_t *out = json_array();
    for (size_t i = 0; i < 4; i++) {
        json_t *p = json_object_get(i < 2 ? a : b, words[i % 2]);
        if (json_is_array(p))
            json_array_extend(out, p);
        else if (p)
            json_array_append(out, p);
    }
    json_object_del(to, "pattern");
    set(s, to, " patterns", out);
}

/* Alternatives of both: each with each. */
static void merge_alternatives(schema *s, json_t *to, json_t *a, json_t *b)
{
    json_t *out = json_array(), *one, *other;
    size_t i, k;
    if (json_array_size(a) * json_array_size(b) > MOST_PAIRS)
        schema_fail(s, "anyOf", "alternatives that must hold together are too many");
    json_array_foreach (a, i, one)
        json_array_foreach (b, k, other)
            if (s->status == TN_OK)
                json_array_append_new(out, both(one, other));
    set(s, to, "anyOf", out);
}

static void merge_word(schema *s, json_t *to, json_t *a, json_t *b, const char *word)
{
    json_t *x = json_object_get(a, word), *y = json_object_get(b, word);
    if (strcmp(word, "type") == 0 || strcmp(word, "enum") == 0)
        merge_common(s, to, word, x, y, word[0] == 't');
    else if (strncmp(word, "min", 3) == 0 || strcmp(word, "exclusiveMinimum") == 0)
        merge_bound(s, to, word, x, y, true);
    else if (strncmp(word, "max", 3) == 0 || strcmp(word, "exclusiveMaximum") == 0)
        merge_bound(s, to, word, x, y, false);
    else if (strcmp(word, "required") == 0)
        merge_required(s, to, x, y);
    else if (strcmp(word, "items") == 0 || strcmp(word, "additionalProperties") == 0)
        set(s, to, word, both(x, y));
    else if (strcmp(word, "anyOf") == 0)
        merge_alternatives(s, to, x, y);
    else if (!json_equal(x, y))
        schema_fail(s, word, "two that differ must hold together, which is not supported");
}

/* Keywords whose meaning lies in others beside them, too. */
static bool is_wide(const char *word)
{
    return strcmp(word, "properties") == 0 || strcmp(word, "prefixItems") == 0 || strcmp(word, "pattern") == 0 ||
           strcmp(word, " patterns") == 0;
}

static json_t *merge_objects(schema *s, json_t *a, json_t *b)
{
    json_t *to = json_object(), *value;
    const char *word;
    for (int side = 0; side < 2; side++)
        json_object_foreach (side ? b : a, word, value)
            if (!schema_is_note(word) && !json_object_get(to, word))
                set(s, to, word, json_incref(value));
    json_t *x = json_object_get(a, "const"), *y = json_object_get(b, "const");
    bool apart = x && y && !json_equal(x, y);
    json_object_foreach (b, word, value)
        if (!schema_is_note(word) && json_object_get(a, word) && !is_wide(word) && !apart && s->status == TN_OK)
            merge_word(s, to, a, b, word);
    if (json_object_get(a, "properties") || json_object_get(b, "properties"))
        merge_properties(s, to, a, b);
    if (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems"))
        merge_prefix(s, to, a, b);
    if ((json_object_get(a, "pattern") || json_object_get(a, " patterns")) &&
        (json_object_get(b, "pattern") || json_object_get(b, " patterns")))
        merge_patterns(s, to, a, b);
    /* Where one lists properties and says nothing of others, and the other lets others be, they may be. */
    json_t *types = json_object_get(to, "type");
    if (!apart && !(json_is_array(types) && json_array_size(types) == 0))
        return to;
    json_decref(to);
    return json_false();
}

/* ---- from outside
 * ----------------------------------------------------------------------------------------------------- */

json_t *schema_merge(schema *s, json_t *a, json_t *b)
{
    a = a ? schema_flatten(s, a) : NULL;
    b = b ? schema_flatten(s, b) : NULL;
    if (!a || !b)
        return NULL;
    if (!json_is_object(a) || !json_is_object(b))
        return json_is_false(a) || json_is_true(b) ? a : b;
    return schema_make(s, merge_objects(s, a, b));
}

static json_t *flatten(schema *s, json_t *node, int depth);

static json_t *merge_into(schema *s, json_t *so_far, json_t *node, int depth)
{
    node = flatten(s, node, depth);
    return node ? schema_merge(s, so_far, node) : NULL;
}

static json_t *flatten(schema *s, json_t *node, int depth)
{
    json_t *ref = json_object_get(node, "$ref"), *all = json_object_get(node, "allOf"), *value;
    const char *word;
    size_t i;
    if (!json_is_object(node) && !json_is_boolean(node))
        schema_fail(s, NULL, "a schema is an object, true or false");
    if (depth > DEEPEST)
        schema_fail(s, ref ? "$ref" : "allOf", "it goes round in a circle, or too deep");
    if (all && (!json_is_array(all) || json_array_size(all) == 0))
        schema_fail(s, "allOf", "it must be a list of at least one schema");
    if (ref && !json_is_string(ref))
        schema_fail(s, "$ref", "it must be a string");
    if (s->status != TN_OK || (!ref && !all))
        return s->status == TN_OK ? node : NULL;
    json_t *own = json_object();
    json_object_foreach (node, word, value)
        if (strcmp(word, "$ref") != 0 && strcmp(word, "allOf") != 0 && !schema_is_note(word))
            set(s, own, word, json_incref(value));
    json_t *out = schema_make(s, own);
    if (ref && out) {
        json_t *target = schema_resolve(s, json_string_value(ref));
        out = target ? merge_into(s, out, target, depth + 1) : NULL;
    }
    json_array_foreach (all, i, value)
        out = out ? merge_into(s, out, value, depth + 1) : NULL;
    return out;
}

json_t *schema_flatten(schema *s, json_t *node)
{
    return flatten(s, node, 0);
}
