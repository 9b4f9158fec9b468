/* Inside core/grammar: where an automaton can be after some bytes. A configuration is a set of threads, a state and a
 * stack each; stacks share what lies below, and both are kept once, by number, with the configurations that each byte
 * leads to as they become known. What is kept has a bound: beyond it, all that no one stands on is forgotten. */
#ifndef TENON_CORE_CONFIGURATIONS_H
#define TENON_CORE_CONFIGURATIONS_H

#include "grammar/automaton.h"

/* Numbers of configurations; 0 is the one without threads. CONFIGURATION_LACK: no memory. */
enum { CONFIGURATION_DEAD = 0 };
#define CONFIGURATION_LACK UINT32_MAX

/* Bytes that are kept, about. */
enum { CONFIGURATIONS_KEPT = 24 << 20 };

/* A state, and the number of its stack; in a stack, where a call goes on, and the number of the stack below it. */
typedef struct configuration_thread {
    uint32_t state, stack;
} configuration_thread;

typedef struct configuration_list {
    size_t offset; /* in the pool                                                                        */
    uint32_t count;
    bool ends;        /* of a configuration: the text may end here                                           */
    uint32_t *next;   /* [256] by byte, CONFIGURATION_LACK: not known yet; NULL: none is                      */
    uint64_t *tokens; /* a mask, for mask.c; NULL: not made yet                                              */
} configuration_list;

typedef struct configuration_table {
    configuration_list *lists;
    uint32_t *slots; /* number plus 1                                                                       */
    configuration_thread *pool;
    size_t count, capacity, slot_count, used, room;
} configuration_table;

typedef struct configurations {
    const automaton *a;
    configuration_table stacks, sets; /* stack 0 is empty                                                    */
    size_t bytes;                     /* of the lists of next ones and the masks                             */
    size_t left;                      /* bytes in use after the last sweep                                   */
    struct closure *scratch;
} configurations;

bool configurations_open(configurations *c, const automaton *a);
void configurations_close(configurations *c);

uint32_t configurations_start(configurations *c);
uint32_t configurations_step(configurations *c, uint32_t from, uint8_t byte);

/* Is so many times more in use than is kept? Where those that are stood on take more than that, twice as much as they
 * took is let be: sweeping takes no more time than making what it forgets. */
bool configurations_crowded(const configurations *c, size_t times);

/* Forgets all but these, whose numbers change. false: no memory, and nothing has changed. */
bool configurations_sweep(configurations *c, uint32_t *const *kept, size_t count);

#endif
