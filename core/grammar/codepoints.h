/* Inside core/grammar: automata over characters, for what strings may be: patterns, formats, lengths, and what several
 * of these have in common. In the end they become bytes: UTF-8, and the escapes of JSON. */
#ifndef TENON_CORE_CODEPOINTS_H
#define TENON_CORE_CODEPOINTS_H

#include "grammar/automaton.h"

enum { CODEPOINTS_LAST = 0x10ffff };

typedef struct codepoints_edge {
    uint32_t next, to;
    int32_t low, high; /* low -1: without a character; CODEPOINTS_START, CODEPOINTS_END: only there */
} codepoints_edge;

enum { CODEPOINTS_EMPTY = -1, CODEPOINTS_START = -2, CODEPOINTS_END = -3 };

/* Node 0 is the start. Bounded as an automaton is. */
typedef struct codepoints {
    uint32_t *first;
    bool *accepts;
    size_t count, capacity;
    codepoints_edge *edges;
    size_t edge_count, edge_capacity;
    size_t work; /* steps of making it, at most AUTOMATON_WORK                              */
    bool full, lack;
} codepoints;

void codepoints_free(codepoints *c);

/* As automaton_state and automaton_bytes. */
uint32_t codepoints_node(codepoints *c);
void codepoints_add(codepoints *c, uint32_t from, int32_t low, int32_t high, uint32_t to);

/* Strings of min to max characters; max -1: no bound. */
void codepoints_lengths(codepoints *c, int64_t min, int64_t max);

/* The same without empty edges and those of starts and ends: c is replaced. */
void codepoints_plain(codepoints *c);

/* Strings of both. Neither has empty edges. out is empty before. */
void codepoints_both(const codepoints *a, const codepoints *b, codepoints *out);

/* Into a: from `from`, the characters; where they may end, the byte `end` to `to`, or nothing where it is 0. json: as
 * within a JSON string, where characters that need an escape have the shortest, U+0000 is none, and any character may
 * be written as it likes (rule plain). What was full or lacking is so in a, which spends c's work. */
void codepoints_lower(const codepoints *c, automaton *a, uint32_t from, char end, uint32_t to, bool json);

/* The rule of one character of a JSON string. */
uint32_t codepoints_rule(automaton *a);

#endif
