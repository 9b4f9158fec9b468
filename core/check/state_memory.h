/* Inside core: the memory that words of a library lead to: blocks of the C library's heap, mappings that were made
 * since the watch began, and what these lead to in turn. */
#ifndef TENON_CORE_STATE_MEMORY_H
#define TENON_CORE_STATE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct state_memory state_memory;

/* What is mapped now is none of the library's. Never given back: the child ends. NULL: no memory. */
state_memory *state_memory_open(void);

/* Copies memory. Sanitizers, which know what lies between variables, do not see it. */
void state_memory_read(const state_memory *m, const void *from, void *to, size_t bytes);

/* Before a call: what there was may have grown since. */
void state_memory_look(state_memory *m);

/* Of the contents of the memory that begins at the address, or that the library mapped around it; 0: there is none. */
uint64_t state_memory_hash(state_memory *m, uint64_t address);

/* Leads the word nowhere, whatever is taken later? Most words do not: numbers, and addresses in libraries, of which a
 * sanitizer keeps thousands. */
bool state_memory_leads_nowhere(state_memory *m, uint64_t word);

#endif
