/* Arrays of a schema. */
#include "grammar/schema.h"

static void check(schema *s, const json_t *prefix, const json_t *items)
{
    if (prefix && (!json_is_array(prefix) || json_array_size(prefix) == 0))
        schema_fail(s, "prefixItems", "it must be a list of at least one schema");
    if (items && !json_is_object(items) && !json_is_boolean(items))
        schema_fail(s, "items", "it must be a schema");
}

void schema_array(schema *s, json_t *node, uint32_t from, uint32_t to)
{
    automaton *a = s->a;
    json_t *prefix = json_object_get(node, "prefixItems"), *items = json_object_get(node, "items");
    int64_t first = (int64_t)json_array_size(prefix), min = schema_count(s, node, "minItems", 0);
    int64_t max = schema_count(s, node, "maxItems", INT64_MAX);
    check(s, prefix, items);
    if (json_is_false(items) && max > first)
        max = first;
    for (int64_t i = 0; i < first; i++)
        if (json_is_false(json_array_get(prefix, (size_t)i)) && max > i)
            max = i;
    if (min > max)
        schema_fail(s, "minItems", "no length is left: at least %lld, at most %lld", (long long)min, (long long)max);
    if (s->status != TN_OK)
        return;
    if (!prefix && (!items || json_is_true(items)) && min == 0 && max == INT64_MAX) {
        automaton_call(a, from, schema_any_array(s), to);
        return;
    }
    uint32_t rest = !items || json_is_true(items) ? schema_any_value(s)
                    : max > first                 ? schema_rule(s, items, "items", NULL, -1)
                                                  : 0;
    /* One item after the other; without an upper bound the last one comes again. */
    int64_t last = max < INT64_MAX ? max : (min > first + 1 ? min : first + 1);
    uint32_t open = automaton_literal(a, from, "[", 1), item = automaton_state(a);
    automaton_empty(a, open, item);
    if (min == 0)
        automaton_bytes(a, open, ']', ']', to);
    for (int64_t i = 0; i < last && s->status == TN_OK && !a->full && !a->lack; i++) {
        uint32_t behind = automaton_state(a), next = automaton_state(a);
        uint32_t rule = i < first ? schema_rule(s, json_array_get(prefix, (size_t)i), "prefixItems", NULL, i) : rest;
        automaton_call(a, item, rule, behind);
        if (i + 1 >= min)
            automaton_bytes(a, behind, ']', ']', to);
        if (i + 1 < last)
            automaton_empty(a, schema_mark(a, behind, ','), next);
        else if (max == INT64_MAX)
            automaton_empty(a, schema_mark(a, behind, ','), item);
        item = next;
    }
}
