/* Inside core: how far two names are apart, to suggest what a misspelt one meant. */
#ifndef TENON_CORE_NEAREST_H
#define TENON_CORE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

/* Insertions, deletions, substitutions and swaps of neighbours that turn a into b (Damerau-Levenshtein, each
 * place edited once). Only the first 127 bytes of each count. */
size_t nearest_distance(const char *a, const char *b);

/* How near the nearest name so far is. Zero at first. */
typedef struct nearest {
    bool found;
    size_t cost, whole;
} nearest;

/* Is name near to word, and nearer than those before? Then it is the nearest. A part of a name, as "swiglu" of
 * "npu_fused_swiglu", is as near as a name with one mistake more. */
bool nearest_closer(nearest *n, const char *word, const char *name);

/* Of count names, the one nearest to word; NULL when none is near. */
const char *nearest_of(const char *word, const char *const *names, size_t count);

#endif
