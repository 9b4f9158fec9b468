/* Inside core/plugin: how far two names are apart, to suggest what a misspelt one meant. */
#ifndef TENON_CORE_NEAREST_H
#define TENON_CORE_NEAREST_H

#include <stddef.h>

/* Insertions, deletions, substitutions and swaps of neighbours that turn a into b (Damerau-Levenshtein, each
 * place edited once). Only the first 127 bytes of each count. */
size_t nearest_distance(const char *a, const char *b);

/* Of count names, the one nearest to name; NULL when none has anything in common with it. */
const char *nearest_of(const char *name, const char *const *names, size_t count);

#endif
