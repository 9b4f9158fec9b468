/* JSON schemas: each place in turn, by what its keywords are. */
#include "grammar/schema.h"

#include "base/json_memory.h"

#include <stdlib.h>
#include <string.h>

static void check_words(schema *s, json_t *node)
{
    static const char *const words[] = {"$ref",
                                        "allOf",
                                        "anyOf",
                                        "oneOf",
                                        "const",
                                        "enum",
                                        "type",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        " patterns",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf"};
    const char *word;
    json_t *value;
    json_object_foreach (node, word, value) {
        size_t i = 0;
        while (i < sizeof words / sizeof *words && strcmp(words[i], word) != 0)
            i++;
        bool idle = strcmp(word, "uniqueItems") == 0 && json_is_false(value);
        if (i == sizeof words / sizeof *words && !schema_is_note(word) && !idle)
            schema_fail(s, word, "this keyword is not supported");
    }
}

/* Does it demand something beside its $ref? */
static bool demands_more(json_t *node)
{
    const char *word;
    json_t *value;
    json_object_foreach (node, word, value)
        if (strcmp(word, "$ref") != 0 && !schema_is_note(word))
            return true;
    return false;
}

static void add_types(schema *s, json_t *node, uint32_t from, uint32_t to)
{
    automaton *a = s->a;
    uint32_t types = schema_types(s, node);
    bool named = json_object_get(node, "type") || types != SCHEMA_ANY;
    if (!named) {
        automaton_call(a, from, schema_any_value(s), to);
        return;
    }
    if (types & SCHEMA_NULL)
        automaton_empty(a, automaton_literal(a, from, "null", 4), to);
    if (types & SCHEMA_BOOLEAN) {
        automaton_empty(a, automaton_literal(a, from, "true", 4), to);
        automaton_empty(a, automaton_literal(a, from, "false", 5), to);
    }
    if (types & SCHEMA_OBJECT && s->status == TN_OK)
        schema_object(s, node, from, to);
    if (types & SCHEMA_ARRAY && s->status == TN_OK)
        schema_array(s, node, from, to);
    if (types & SCHEMA_STRING && s->status == TN_OK)
        schema_string(s, node, from, to);
    if (types & (SCHEMA_NUMBER | SCHEMA_INTEGER) && s->status == TN_OK)
        schema_number(s, node, types & SCHEMA_INTEGER, from, to);
}

/* oneOf is anyOf where no value can be of two. */
static void check_apart(schema *s, const json_t *list)
{
    size_t n = json_array_size(list);
    json_t **flat = malloc((n + 1) * sizeof *flat);
    if (!flat)
        schema_no_memory(s);
    for (size_t i = 0; i < n && s->status == TN_OK; i++)
        flat[i] = schema_flatten(s, json_array_get(list, i));
    for (size_t i = 0; i < n && s->status == TN_OK; i++)
        for (size_t k = i + 1; k < n && s->status == TN_OK; k++)
            if (!schema_types_apart(s, flat[i], flat[k]))
                schema_fail(
                    s, "oneOf",
                    "a value could be of both %zu and %zu; let a required property of theirs have other values, "
                    "or use anyOf",
                    i, k);
    free(flat);
}

/* Each alternative, with what stands beside them. */
static void add_alternatives(schema *s, json_t *node, const char *word, uint32_t from, uint32_t to)
{
    json_t *list = json_object_get(node, word), *beside = json_object(), *value;
    const char *other;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        schema_fail(s, word, "it must be a list of at least one schema");
    if (s->status == TN_OK && word[0] == 'o')
        check_apart(s, list);
    json_object_foreach (node, other, value)
        if (strcmp(other, word) != 0 && !schema_is_note(other))
            json_object_set(beside, other, value);
    bool more = json_object_size(beside) > 0;
    json_t *base = schema_make(s, beside);
    for (i = 0; i < json_array_size(list) && s->status == TN_OK; i++) {
        value = json_array_get(list, i);
        json_t *merged = more ? schema_merge(s, base, value) : value;
        if (!merged)
            break;
        uint32_t rule = more || s->jobs[s->done].made ? schema_maybe_rule(s, merged, word, (int64_t)i)
                                                      : schema_rule(s, value, word, NULL, (int64_t)i);
        automaton_call(s->a, from, rule, to);
    }
}

static void add_node(schema *s, json_t *node, uint32_t from, uint32_t to)
{
    json_t *ref = json_object_get(node, "$ref");
    check_words(s, node);
    if (json_is_false(node))
        s->jobs[s->done].may_be_empty = true;
    else if (json_is_true(node))
        automaton_call(s->a, from, schema_any_value(s), to);
    else if (json_is_string(ref) && !demands_more(node))
        automaton_call(s->a, from, schema_rule_of_ref(s, json_string_value(ref)), to);
    else if (ref || json_object_get(node, "allOf")) {
        json_t *flat = schema_flatten(s, node);
        size_t before = s->job_count;
        if (flat) /* a place of its own, where others may meet the same */
            automaton_call(s->a, from, schema_rule(s, flat, NULL, NULL, -1), to);
        if (s->job_count > before)
            s->jobs[before].made = true;
    } else if (json_object_get(node, "anyOf"))
        add_alternatives(s, node, "anyOf", from, to);
    else if (json_object_get(node, "oneOf"))
        add_alternatives(s, node, "oneOf", from, to);
    else if (json_object_get(node, "const") || json_object_get(node, "enum"))
        schema_values(s, node, from, to);
    else
        add_types(s, node, from, to);
}

static json_t *parse(schema *s, const char *text, size_t length)
{
    json_error_t at;
    json_memory_watch();
    json_t *root = json_loadb(text, length, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &at);
    if (!root && json_memory_failed())
        schema_no_memory(s);
    else if (!root)
        s->status = tn_fail(s->err, TN_E_INPUT, "schema", "#: it is not JSON: %s (line %d, column %d)", at.text,
                            at.line, at.column);
    return root;
}

tn_status schema_add(schema *s, const char *text, size_t length, uint32_t from, uint32_t to, tn_error *err)
{
    s->err = err;
    s->status = TN_OK;
    s->kept = s->kept ? s->kept : json_array();
    s->root = parse(s, text, length);
    if (s->status == TN_OK && json_array_append_new(s->kept, s->root))
        schema_no_memory(s);
    s->made = s->status == TN_OK ? json_object() : NULL;
    if (s->status == TN_OK && json_array_append_new(s->kept, s->made))
        schema_no_memory(s);
    s->done = s->job_count;
    if (s->status == TN_OK) {
        uint32_t rule = schema_rule_of_root(s);
        automaton_call(s->a, from, rule, to);
    }
    for (; s->done < s->job_count && s->status == TN_OK; s->done++) {
        schema_job job = s->jobs[s->done];
        add_node(s, job.node, s->a->rules[job.rule].start, s->a->rules[job.rule].end);
        if (s->status == TN_OK && json_memory_failed())
            schema_no_memory(s);
        if (s->a->full)
            schema_fail(s, NULL,
                        "by here the schema takes more than %d states, or too long to make; make lengths, lists and "
                        "repetitions smaller",
                        AUTOMATON_STATES);
        if (s->a->lack)
            schema_no_memory(s);
    }
    return s->status;
}

tn_status schema_check(schema *s, uint32_t circular, tn_error *err)
{
    s->err = err;
    for (s->done = 0; s->done < s->job_count && circular != AUTOMATON_NONE; s->done++)
        if (s->jobs[s->done].rule == circular)
            schema_fail(s, NULL, "it refers to itself before anything else, in a circle");
    for (size_t i = s->job_count; i-- > 0 && s->status == TN_OK;) {
        s->done = i;
        if (!s->a->rules[s->jobs[i].rule].sound && !s->jobs[i].may_be_empty)
            schema_fail(s, NULL, "no value is allowed here, or none that has an end");
    }
    return s->status;
}

void schema_close(schema *s)
{
    free(s->jobs);
    free(s->slots);
    json_decref(s->kept);
    *s = (schema){0};
}
