/* Places of a schema, each with a rule that waits to be made; errors with their pointers; what a $ref names. */
#include "grammar/schema.h"

#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors
 * ---------------------------------------------------------------------------------------------------------- */

/* A step of a pointer, with its slashes and tildes escaped. */
static void add_step(char *text, size_t size, const char *step)
{
    size_t n = strlen(text);
    if (n + 2 < size)
        text[n++] = '/';
    for (; *step && n + 3 < size; step++) {
        if (*step == '~' || *step == '/')
            text[n++] = '~';
        text[n++] = *step == '~' ? '0' : *step == '/' ? '1' : *step;
    }
    text[n] = '\0';
}

void schema_pointer(const schema *s, const schema_place *place, const char *word, char *text, size_t size)
{
    enum { DEEPEST = 64 };
    const schema_place *way[DEEPEST];
    int depth = 0;
    for (; place->up >= 0 && depth < DEEPEST; place = &s->jobs[place->up].place)
        way[depth++] = place;
    snprintf(text, size, "%s", place->up >= 0 ? "#/..." : place->word ? place->word : "#");
    while (depth > 0) {
        const schema_place *step = way[--depth];
        char number[24];
        if (step->word)
            add_step(text, size, step->word);
        if (step->name)
            add_step(text, size, step->name);
        if (step->index >= 0) {
            snprintf(number, sizeof number, "%lld", (long long)step->index);
            add_step(text, size, number);
        }
    }
    if (word)
        add_step(text, size, word);
}

void schema_fail(schema *s, const char *word, const char *format, ...)
{
    static const schema_place root = {.up = -1, .index = -1};
    char pointer[300], message[300];
    va_list arguments;
    if (s->status != TN_OK)
        return;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    schema_pointer(s, s->done < s->job_count ? &s->jobs[s->done].place : &root, word, pointer, sizeof pointer);
    s->status = tn_fail(s->err, TN_E_INPUT, "schema", "%s: %s", pointer, message);
}

bool schema_spend(schema *s, size_t work)
{
    if (s->status == TN_OK && !automaton_spend(s->a, work))
        schema_fail(
            s, NULL,
            "by here the schema takes too long to make: lists to compare, schemas that must hold together, or steps");
    return s->status == TN_OK;
}

void schema_no_memory(schema *s)
{
    if (s->status == TN_OK)
        s->status = tn_fail(s->err, TN_E_MEMORY, "schema", "out of memory");
}

/* ---- jobs
 * ------------------------------------------------------------------------------------------------------------- */

static size_t slot_of(const schema *s, const json_t *node)
{
    size_t at = ((uintptr_t)node * UINT64_C(0x9e3779b97f4a7c15) >> 24) & (s->slot_count - 1);
    while (s->slots[at] && s->jobs[s->slots[at] - 1].node != node)
        at = (at + 1) & (s->slot_count - 1);
    return at;
}

static bool job_room(schema *s)
{
    if (s->job_count < s->job_capacity)
        return true;
    size_t capacity = s->job_capacity ? 2 * s->job_capacity : 64;
    schema_job *jobs = realloc(s->jobs, capacity * sizeof *jobs);
    s->jobs = jobs ? jobs : s->jobs;
    uint32_t *slots = calloc(2 * capacity, sizeof *slots);
    if (!jobs || !slots) {
        free(slots);
        return false;
    }
    free(s->slots);
    s->slots = slots;
    s->slot_count = 2 * capacity;
    s->job_capacity = capacity;
    for (size_t i = 0; i < s->job_count; i++)
        s->slots[slot_of(s, s->jobs[i].node)] = (uint32_t)i + 1;
    return true;
}

static uint32_t add_job(schema *s, json_t *node, schema_place place, bool may_be_empty)
{
    if (s->status != TN_OK)
        return 0;
    if (!json_is_object(node) && !json_is_boolean(node)) {
        char pointer[300];
        schema_pointer(s, &place, NULL, pointer, sizeof pointer);
        s->status = tn_fail(s->err, TN_E_INPUT, "schema", "%s: a schema is an object, true or false", pointer);
        return 0;
    }
    if (!job_room(s)) {
        schema_no_memory(s);
        return 0;
    }
    /* true and false are the same node wherever they stand, and take a rule each time. */
    size_t at = json_is_object(node) ? slot_of(s, node) : 0;
    if (json_is_object(node) && s->slots[at])
        return s->jobs[s->slots[at] - 1].rule;
    uint32_t rule = automaton_add_rule(s->a);
    if (s->a->full || s->a->lack) {
        s->status = automaton_check(s->a, "schema", s->err);
        return 0;
    }
    /* What hangs on a place that may be empty may be so itself. */
    may_be_empty = may_be_empty || (place.up >= 0 && s->jobs[place.up].may_be_empty);
    s->jobs[s->job_count++] = (schema_job){.node = node, .rule = rule, .place = place, .may_be_empty = may_be_empty};
    if (json_is_object(node))
        s->slots[at] = (uint32_t)s->job_count;
    return rule;
}

uint32_t schema_rule(schema *s, json_t *node, const char *word, const char *name, int64_t index)
{
    return add_job(s, node, (schema_place){(int64_t)s->done, word, name, index}, false);
}

uint32_t schema_rule_of_root(schema *s)
{
    return add_job(s, s->root, (schema_place){-1, NULL, NULL, -1}, false);
}

uint32_t schema_maybe_rule(schema *s, json_t *node, const char *word, int64_t index)
{
    return add_job(s, node, (schema_place){(int64_t)s->done, word, NULL, index}, true);
}

uint32_t schema_rule_of_ref(schema *s, const char *ref)
{
    json_t *node = schema_resolve(s, ref);
    return node ? add_job(s, node, (schema_place){-1, ref, NULL, -1}, false) : 0;
}

/* ---- references
 * --------------------------------------------------------------------------------------------------------- */

/* One step of a pointer up to the next slash, with %XX, ~1 and ~0 undone; *end is behind it. Owned. */
static char *read_step(const char *ref, const char **end)
{
    char *step = malloc(strlen(ref) + 1), *out = step;
    const char *c = ref;
    for (; step && *c && *c != '/'; c++) {
        *out = *c;
        if (*c == '%' && text_hex(c[1]) >= 0 && text_hex(c[2]) >= 0) {
            *out = (char)(text_hex(c[1]) << 4 | text_hex(c[2]));
            c += 2;
        }
        if (*out == '~' && (c[1] == '0' || c[1] == '1'))
            *out = *++c == '0' ? '~' : '/';
        out++;
    }
    if (step)
        *out = '\0';
    *end = c;
    return step;
}

static json_t *member(json_t *node, const char *step)
{
    char *end;
    if (json_is_object(node))
        return json_object_get(node, step);
    unsigned long index = strtoul(step, &end, 10);
    return json_is_array(node) && *step >= '0' && *step <= '9' && !*end ? json_array_get(node, index) : NULL;
}

json_t *schema_resolve(schema *s, const char *ref)
{
    json_t *node = s->root;
    const char *c = ref + 1;
    if (s->status != TN_OK)
        return NULL;
    if (*ref != '#' || (*c && *c != '/')) {
        schema_fail(s, "$ref", "'%.60s' lies outside; only pointers into the schema (#/...) are followed", ref);
        return NULL;
    }
    while (node && *c == '/') {
        char *step = read_step(c + 1, &c);
        if (!step) {
            schema_no_memory(s);
            return NULL;
        }
        node = member(node, step);
        free(step);
    }
    if (!node)
        schema_fail(s, "$ref", "'%.60s' names nothing", ref);
    return node;
}

/* ---- nodes that are made
 * -------------------------------------------------------------------------------------------------- */

json_t *schema_make(schema *s, json_t *node)
{
    enum { NODE_WORK = 16 }; /* about what a node takes beside its text */
    char *text = node && s->status == TN_OK ? json_dumps(node, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_t *known = text ? json_object_get(s->made, text) : NULL;
    if (!text)
        schema_no_memory(s);
    schema_spend(s, text ? strlen(text) + NODE_WORK : 0);
    if (text && !known && s->status == TN_OK) {
        if (json_object_set(s->made, text, node) == 0)
            known = node;
        else
            schema_no_memory(s);
    }
    free(text);
    json_decref(node);
    return s->status == TN_OK ? known : NULL;
}

int64_t schema_count(schema *s, const json_t *node, const char *word, int64_t otherwise)
{
    const json_t *value = json_object_get(node, word);
    double number = json_number_value(value);
    if (!value)
        return otherwise;
    if (!json_is_number(value) || number < 0 || number != floor(number)) {
        schema_fail(s, word, "it must be a whole number of at least 0");
        return otherwise;
    }
    return number > (double)AUTOMATON_STATES * 2 ? AUTOMATON_STATES * 2 : (int64_t)number;
}
