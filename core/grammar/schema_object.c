/* Objects of a schema: the properties in its order, and others anywhere between them where it lets them be. */
#include "base/names.h"
#include "grammar/codepoints.h"
#include "grammar/schema.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct property {
    const char *name;
    json_t *node; /* NULL: any value                                                                          */
    bool required, declared;
} property;

typedef struct object {
    property *properties;
    size_t count;
    json_t *others; /* of other properties; NULL: any value                                                    */
    bool closed;    /* there are no others                                                                      */
} object;

static void check(schema *s, const json_t *properties, const json_t *required, const json_t *others)
{
    if (properties && !json_is_object(properties))
        schema_fail(s, "properties", "it must be an object of schemas");
    if (required && !json_is_array(required))
        schema_fail(s, "required", "it must be a list of names");
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_is_string(json_array_get(required, i)))
            schema_fail(s, "required", "it must be a list of names");
    if (others && !json_is_object(others) && !json_is_boolean(others))
        schema_fail(s, "additionalProperties", "it must be a schema");
}

/* Where properties are listed and nothing is said of others, there are none. */
static void read_object(schema *s, json_t *node, object *o)
{
    json_t *properties = json_object_get(node, "properties"), *required = json_object_get(node, "required");
    json_t *others = json_object_get(node, "additionalProperties"), *value;
    const char *name;
    check(s, properties, required, others);
    o->closed = json_is_false(others) || (!others && properties);
    o->others = json_is_true(others) ? NULL : others;
    o->properties = calloc(json_object_size(properties) + json_array_size(required) + 1, sizeof *o->properties);
    names listed = {0};
    if (!o->properties || !names_init(&listed, json_array_size(required)))
        schema_no_memory(s);
    if (s->status != TN_OK) {
        names_close(&listed);
        return;
    }
    json_object_foreach (properties, name, value)
        o->properties[o->count++] = (property){name, value, false, true};
    size_t declared = o->count, at;
    for (size_t i = 0; i < json_array_size(required); i++) {
        name = json_string_value(json_array_get(required, i));
        if (!names_add(&listed, name, i) || json_object_get(properties, name))
            continue;
        if (json_is_false(others))
            schema_fail(s, "required", "'%.60s' is none of the properties, and others may not be", name);
        o->properties[o->count++] = (property){name, o->others, true, false};
    }
    for (size_t i = 0; i < declared; i++)
        o->properties[i].required = names_find(&listed, o->properties[i].name, &at);
    names_close(&listed);
}

/* ---- names of other properties -------------------------------------------------------------------------------------
 */

/* names: of the nodes, whether a name ends there. Names come in order: of the edges of a node, only the one that was
 * added last may lead on. */
static void add_name(codepoints *c, const char *name, bool *names)
{
    uint32_t node = 0;
    size_t length = strlen(name);
    for (size_t i = 0; i < length && !c->full && !c->lack;) {
        utf8_char u = utf8_read(name + i, length - i);
        uint32_t e = c->first[node], next;
        if (e != AUTOMATON_NONE && c->edges[e].low == u.code) {
            next = c->edges[e].to;
        } else {
            next = codepoints_node(c);
            codepoints_add(c, node, u.code, u.code, next);
        }
        node = next;
        i += u.length;
    }
    names[node] = true;
}

/* From a node of the names, whose edges have the greatest character first, all others, by which it becomes none of
 * them. */
static void add_others(codepoints *c, uint32_t node, uint32_t other)
{
    int32_t last = CODEPOINTS_LAST;
    for (uint32_t e = c->first[node]; e != AUTOMATON_NONE; e = c->edges[e].next) {
        int32_t code = c->edges[e].low;
        if (code < last)
            codepoints_add(c, node, code + 1, last, other);
        last = code - 1;
    }
    if (last >= 0)
        codepoints_add(c, node, 0, last, other);
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const property *)x)->name, ((const property *)y)->name);
}

/* A rule for a name that is none of the properties', and its value. */
static uint32_t other_rule(schema *s, const object *o)
{
    automaton *a = s->a;
    codepoints c = {0};
    size_t most = 1;
    for (size_t i = 0; i < o->count; i++)
        most += strlen(o->properties[i].name);
    bool *names = calloc(most + 1, sizeof *names);
    property *sorted = malloc((o->count + 1) * sizeof *sorted);
    codepoints_node(&c);
    c.lack = c.lack || !names || !sorted;
    if (sorted && o->count) {
        memcpy(sorted, o->properties, o->count * sizeof *sorted);
        qsort(sorted, o->count, sizeof *sorted, by_name);
    }
    for (size_t i = 0; i < o->count && !c.full && !c.lack; i++)
        add_name(&c, sorted[i].name, names);
    size_t count = c.count;
    uint32_t other = codepoints_node(&c);
    for (uint32_t n = 0; n < count && !c.full && !c.lack; n++) {
        c.accepts[n] = !names[n];
        add_others(&c, n, other);
    }
    if (!c.full && !c.lack) {
        c.accepts[other] = true;
        codepoints_add(&c, other, 0, CODEPOINTS_LAST, other);
    }
    free(sorted);
    free(names);
    uint32_t rule = automaton_add_rule(a), key = automaton_state(a);
    if (!a->full && !a->lack) {
        codepoints_lower(&c, a, automaton_literal(a, a->rules[rule].start, "\"", 1), '"', key, true);
        automaton_call(a, schema_mark(a, key, ':'),
                       o->others ? schema_rule(s, o->others, "additionalProperties", NULL, -1) : schema_any_value(s),
                       a->rules[rule].end);
    }
    codepoints_free(&c);
    return rule;
}

/* ---- the object
 * ------------------------------------------------------------------------------------------------------ */

/* From `from`, the property with its value, to the state behind it. */
static void add_property(schema *s, const property *p, uint32_t from, uint32_t to)
{
    size_t size = 0;
    char *key = schema_values_text(p->name, strlen(p->name), &size);
    if (!key) {
        schema_no_memory(s);
        return;
    }
    uint32_t value = schema_mark(s->a, automaton_literal(s->a, from, key, size), ':');
    free(key);
    uint32_t rule = !p->node      ? schema_any_value(s)
                    : p->declared ? schema_rule(s, p->node, "properties", p->name, -1)
                                  : schema_rule(s, p->node, "additionalProperties", NULL, -1);
    automaton_call(s->a, value, rule, to);
}

/* next[i]: the property i or one behind it comes; behind[i]: those before i are done. One that is false is left out. */
static void add_properties(schema *s, const object *o, uint32_t open, uint32_t to, uint32_t *next, uint32_t *behind)
{
    automaton *a = s->a;
    size_t n = o->count, needed = 0;
    uint32_t other = o->closed ? AUTOMATON_NONE : other_rule(s, o);
    for (size_t i = 0; i <= n; i++) {
        next[i] = automaton_state(a);
        behind[i] = automaton_state(a);
        needed = i < n && o->properties[i].required ? i + 1 : needed;
    }
    automaton_empty(a, open, next[0]);
    if (needed == 0)
        automaton_bytes(a, open, '}', '}', to);
    if (other != AUTOMATON_NONE)
        automaton_call(a, open, other, behind[0]);
    for (size_t i = 0; i <= n && s->status == TN_OK && !a->full && !a->lack; i++) {
        if (i < n && !json_is_false(o->properties[i].node))
            add_property(s, &o->properties[i], next[i], behind[i + 1]);
        if (i < n && !o->properties[i].required)
            automaton_empty(a, next[i], next[i + 1]);
        uint32_t comma = schema_mark(a, behind[i], ',');
        automaton_empty(a, comma, next[i]);
        if (other != AUTOMATON_NONE)
            automaton_call(a, comma, other, behind[i]);
        if (i >= needed)
            automaton_bytes(a, behind[i], '}', '}', to);
    }
}

void schema_object(schema *s, json_t *node, uint32_t from, uint32_t to)
{
    object o = {0};
    read_object(s, node, &o);
    if (s->status == TN_OK && o.count == 0 && !o.closed && !o.others) {
        automaton_call(s->a, from, schema_any_object(s), to);
    } else if (s->status == TN_OK) {
        uint32_t *states = malloc(2 * (o.count + 1) * sizeof *states);
        if (states)
            add_properties(s, &o, automaton_literal(s->a, from, "{", 1), to, states, states + o.count + 1);
        else
            schema_no_memory(s);
        free(states);
    }
    free(o.properties);
}
