/* Inside core/grammar: JSON schemas as rules of an automaton. Each place of a schema becomes a rule, once; they wait in
 * a list, so that depth takes no stack. The first error stays, with the JSON pointer of its place. */
#ifndef TENON_CORE_SCHEMA_H
#define TENON_CORE_SCHEMA_H

#include "grammar/automaton.h"

#include <jansson.h>

/* A way into a schema: that of another place (-1: the root), then a keyword, then a name or a number, each NULL or -1
 * where there is none. The keyword of a place that a $ref names is that whole pointer. */
typedef struct schema_place {
    int64_t up;
    const char *word, *name;
    int64_t index;
} schema_place;

typedef struct schema_job {
    json_t *node;
    uint32_t rule;
    schema_place place;
    bool made;         /* of several that must hold together: alternatives may be empty                      */
    bool may_be_empty; /* no value need be allowed: an alternative in which two schemas meet, or false         */
} schema_job;

typedef struct schema {
    automaton *a;
    schema_job *jobs;
    size_t job_count, job_capacity, done;
    uint32_t *slots; /* by node: number of its job plus 1                                                      */
    size_t slot_count;
    json_t *kept;    /* the documents, and what was made of their parts                                          */
    json_t *root;    /* of the document that is read                                                               */
    json_t *made;    /* of it, by their texts: so that the same part is made once                                   */
    uint32_t any[5]; /* rules plus 1 that take any value, object, array, string, number; 0: not made yet          */
    tn_error *err;
    tn_status status;
} schema;

/* From `from` to `to`, a text that the schema allows. TN_E_INPUT. */
tn_status schema_add(schema *s, const char *text, size_t length, uint32_t from, uint32_t to, tn_error *err);

/* After automaton_finish: is there a place that takes no text, or goes round in a circle? */
tn_status schema_check(schema *s, uint32_t circular, tn_error *err);
void schema_close(schema *s);

/* ---- schema_jobs.c ----------------------------------------------------------------------------------------------- */

/* The rule of a place below the job that is worked on. */
uint32_t schema_rule(schema *s, json_t *node, const char *word, const char *name, int64_t index);
uint32_t schema_maybe_rule(schema *s, json_t *node, const char *word, int64_t index); /* may be empty */
uint32_t schema_rule_of_root(schema *s);
uint32_t schema_rule_of_ref(schema *s, const char *ref);

/* At a keyword of the job, or (NULL) the place itself. */
void schema_fail(schema *s, const char *word, const char *format, ...) __attribute__((format(printf, 3, 4)));
void schema_no_memory(schema *s);

/* automaton_spend; false: the schema has failed. */
bool schema_spend(schema *s, size_t work);

/* What a $ref names within the document; NULL: nothing, and the schema has failed. */
json_t *schema_resolve(schema *s, const char *ref);

/* Keeps a new node (taken), or gives the one that was made before with the same text. NULL: failed. */
json_t *schema_make(schema *s, json_t *node);

/* A member that is a count, or otherwise where there is none. */
int64_t schema_count(schema *s, const json_t *node, const char *word, int64_t otherwise);

/* The text of the pointer of a job's place, and of a word below it. */
void schema_pointer(const schema *s, const schema_place *place, const char *word, char *text, size_t size);

/* ---- schema_any.c ------------------------------------------------------------------------------------------------ */

uint32_t schema_any_value(schema *s);
uint32_t schema_any_object(schema *s);
uint32_t schema_any_array(schema *s);
uint32_t schema_any_string(schema *s);
uint32_t schema_any_number(schema *s);

/* A comma or colon, and a space that may follow it; the state behind. */
uint32_t schema_mark(automaton *a, uint32_t from, char mark);

/* ---- schema_merge.c ---------------------------------------------------------------------------------------------- */

/* A node that says the same without $ref and allOf at its top; NULL: failed. */
json_t *schema_flatten(schema *s, json_t *node);

/* What both demand, without $ref and allOf at its top. */
json_t *schema_merge(schema *s, json_t *a, json_t *b);

/* Does this keyword demand nothing? */
bool schema_is_note(const char *word);

/* ---- one file each --------------------------------------------------------------------------------------------------
 */

/* From the start to the end of a rule; node has neither $ref nor combinations. schema_values.c: const and enum. */
void schema_values(schema *s, json_t *node, uint32_t from, uint32_t to);
void schema_string(schema *s, json_t *node, uint32_t from, uint32_t to);
void schema_number(schema *s, json_t *node, bool integer, uint32_t from, uint32_t to);
void schema_object(schema *s, json_t *node, uint32_t from, uint32_t to);
void schema_array(schema *s, json_t *node, uint32_t from, uint32_t to);

/* schema_types.c: the types that a node allows, as bits; those that its keywords speak of where it names none. */
enum {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_OBJECT = 4,
    SCHEMA_ARRAY = 8,
    SCHEMA_STRING = 16,
    SCHEMA_NUMBER = 32,
    SCHEMA_INTEGER = 64, /* without SCHEMA_NUMBER                                                                */
    SCHEMA_ANY = 63
};
uint32_t schema_types(schema *s, const json_t *node);
bool schema_types_value(uint32_t types, const json_t *value); /* is the value of one of them?                     */

/* Can no value be of both? Neither has $ref or allOf at its top. */
bool schema_types_apart(schema *s, json_t *a, json_t *b);

/* An escaped JSON string. Owned: free(). NULL: no memory. */
char *schema_values_text(const char *text, size_t length, size_t *size);

#endif
