/* Inside core: small files that this user's runs of this library leave for the next ones, in $XDG_CACHE_HOME/tenon or
 * ~/.cache/tenon. Nothing here is ever an error: without a cache everything is found out anew. */
#ifndef TENON_CORE_CACHEFILE_H
#define TENON_CORE_CACHEFILE_H

#include <stdbool.h>
#include <stddef.h>

/* This library (its file's size and age change with every build) and this machine, as one line without its end. */
void cachefile_host(char *line, size_t size);

/* The text of a file, cut at most bytes, or NULL: there is none that only this user can have written. folder (may be
 * NULL) receives where it is. Owned: free(). */
char *cachefile_load(const char *name, size_t most, char *folder, size_t folder_size);

/* Replaces the file as a whole. */
void cachefile_store(const char *name, const char *text, size_t bytes);

/* Takes the line "key value" off *at, which is changed; NULL when it is not that. */
char *cachefile_line(char **at, const char *key);

#endif
