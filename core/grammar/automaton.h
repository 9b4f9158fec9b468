/* Inside core/grammar: a nondeterministic automaton over bytes whose states may call rules, so that it has a stack. */
#ifndef TENON_CORE_AUTOMATON_H
#define TENON_CORE_AUTOMATON_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a grammar may take at most. include/tenon/grammar.h names the first; the last are steps of making it that leave
 * no state behind (values compared, characters of schemas put together, edges passed): a second of them or less. */
enum { AUTOMATON_STATES = 1 << 18, AUTOMATON_EDGES = 1 << 20, AUTOMATON_WORK = 1 << 23 };

#define AUTOMATON_NONE UINT32_MAX

enum { EDGE_BYTE, EDGE_EMPTY, EDGE_CALL };

typedef struct automaton_edge {
    uint32_t next; /* of the same state; AUTOMATON_NONE: the last                                  */
    uint32_t to;   /* EDGE_CALL: where it goes on when the rule has ended                          */
    uint32_t rule; /* EDGE_CALL                                                                    */
    uint8_t kind, low, high;
} automaton_edge;

/* A rule takes at least one byte, and its end has no edges. Rule 0 is what the text must be; it alone may be empty. */
typedef struct automaton_rule {
    uint32_t start, end;
    uint32_t rank; /* callers come before whom they call before a byte was taken                   */
    bool sound;    /* some text ends it                                                            */
} automaton_rule;

#define RUN_UNSURE UINT32_MAX
#define RUN_ENDLESS (UINT32_MAX - 1)

typedef struct automaton {
    uint32_t *first; /* [states] the first edge of each                                             */
    uint32_t *ends;  /* [states] the rule that ends there, or AUTOMATON_NONE                        */
    /* [states] How many characters of a JSON string (rule `plain`) may follow one another here; RUN_UNSURE: look. */
    uint32_t *run;
    size_t states, state_capacity;
    automaton_edge *edges;
    size_t edge_count, edge_capacity;
    automaton_rule *rules;
    size_t rule_count, rule_capacity;
    uint32_t plain;  /* the rule of one character of a JSON string; AUTOMATON_NONE: not made yet         */
    size_t work;     /* that was spent                                                               */
    bool full, lack; /* a bound was in the way; memory was                                           */
} automaton;

void automaton_free(automaton *a);

/* These never fail: what has no place any more leaves full or lack behind, and state 0 is returned. */
uint32_t automaton_state(automaton *a);
uint32_t automaton_add_rule(automaton *a);
void automaton_bytes(automaton *a, uint32_t from, uint8_t low, uint8_t high, uint32_t to);
void automaton_empty(automaton *a, uint32_t from, uint32_t to);
void automaton_call(automaton *a, uint32_t from, uint32_t rule, uint32_t to);

/* The bytes one after the other; the state behind them. */
uint32_t automaton_literal(automaton *a, uint32_t from, const char *bytes, size_t length);
/* The same along the edges of single bytes that are there already: literals share their beginnings. */
uint32_t automaton_branch(automaton *a, uint32_t from, const char *bytes, size_t length);

/* Before so many steps are gone: false: they are too many, and it is full. */
bool automaton_spend(automaton *a, size_t work);

/* full or lack as an error. where: as tn_fail has it. */
tn_status automaton_check(const automaton *a, const char *where, tn_error *err);

/* Takes away the edges from which no text ends, finds ranks and runs. *circular: a rule that calls itself before it
 * took a byte, or AUTOMATON_NONE. TN_E_MEMORY alone. */
tn_status automaton_finish(automaton *a, uint32_t *circular, tn_error *err);

#endif
