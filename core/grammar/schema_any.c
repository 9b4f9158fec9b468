/* Rules for values of which nothing is said. */
#include "grammar/codepoints.h"
#include "grammar/decimals.h"
#include "grammar/schema.h"

#include <string.h>

enum { ANY_VALUE, ANY_OBJECT, ANY_ARRAY, ANY_STRING, ANY_NUMBER };

/* The rule; *fresh: it is new, and to be filled. */
static uint32_t rule_of(schema *s, int which, bool *fresh)
{
    *fresh = s->any[which] == 0;
    if (*fresh)
        s->any[which] = automaton_add_rule(s->a) + 1;
    *fresh = *fresh && !s->a->full && !s->a->lack;
    return s->any[which] - 1;
}

uint32_t schema_mark(automaton *a, uint32_t from, char mark)
{
    uint32_t behind = automaton_literal(a, from, &mark, 1), to = automaton_literal(a, behind, " ", 1);
    automaton_empty(a, behind, to);
    return to;
}

uint32_t schema_any_string(schema *s)
{
    bool fresh;
    uint32_t rule = rule_of(s, ANY_STRING, &fresh);
    if (!fresh)
        return rule;
    codepoints c = {0};
    codepoints_lengths(&c, 0, -1);
    uint32_t from = automaton_literal(s->a, s->a->rules[rule].start, "\"", 1);
    codepoints_lower(&c, s->a, from, '"', s->a->rules[rule].end, true);
    codepoints_free(&c);
    return rule;
}

uint32_t schema_any_number(schema *s)
{
    bool fresh;
    uint32_t rule = rule_of(s, ANY_NUMBER, &fresh);
    if (fresh)
        decimals_add(s->a, &(decimal_range){0}, s->a->rules[rule].start, s->a->rules[rule].end);
    return rule;
}

/* Open, nothing or items with commas between them, close. item: from a state to another. */
static void add_list(schema *s, uint32_t rule, const char *marks, uint32_t value, bool named)
{
    automaton *a = s->a;
    uint32_t open = automaton_literal(a, a->rules[rule].start, marks, 1), item = automaton_state(a);
    uint32_t behind = automaton_state(a), at = item;
    if (named) {
        uint32_t key = automaton_state(a);
        automaton_call(a, item, schema_any_string(s), key);
        at = schema_mark(a, key, ':');
    }
    automaton_call(a, at, value, behind);
    automaton_empty(a, open, item);
    automaton_empty(a, schema_mark(a, behind, ','), item);
    automaton_bytes(a, open, (uint8_t)marks[1], (uint8_t)marks[1], a->rules[rule].end);
    automaton_bytes(a, behind, (uint8_t)marks[1], (uint8_t)marks[1], a->rules[rule].end);
}

/* Values hold objects and arrays, and these hold values: the rule of each is there before it is filled. */
static void fill_values(schema *s, uint32_t value)
{
    static const char *const words[] = {"null", "true", "false"};
    automaton *a = s->a;
    bool fresh_object, fresh_array;
    uint32_t start = a->rules[value].start, end = a->rules[value].end;
    uint32_t object = rule_of(s, ANY_OBJECT, &fresh_object), array = rule_of(s, ANY_ARRAY, &fresh_array);
    if (fresh_object)
        add_list(s, object, "{}", value, true);
    if (fresh_array)
        add_list(s, array, "[]", value, false);
    automaton_call(a, start, object, end);
    automaton_call(a, start, array, end);
    automaton_call(a, start, schema_any_string(s), end);
    automaton_call(a, start, schema_any_number(s), end);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        automaton_empty(a, automaton_literal(a, start, words[i], strlen(words[i])), end);
}

uint32_t schema_any_value(schema *s)
{
    bool fresh;
    uint32_t rule = rule_of(s, ANY_VALUE, &fresh);
    if (fresh)
        fill_values(s, rule);
    return rule;
}

uint32_t schema_any_object(schema *s)
{
    schema_any_value(s);
    return s->any[ANY_OBJECT] - 1;
}

uint32_t schema_any_array(schema *s)
{
    schema_any_value(s);
    return s->any[ANY_ARRAY] - 1;
}
