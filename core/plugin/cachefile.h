/* Inside core: small files that this user's runs of this library leave for the next ones, in $XDG_CACHE_HOME/tenon or
 * ~/.cache/tenon. Nothing here is ever an error: without a cache everything is found out anew. */
#ifndef TENON_CORE_CACHEFILE_H
#define TENON_CORE_CACHEFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* This library (its file's size and age change with every build) and this machine, as one line without its end. */
void cachefile_host(char *line, size_t size);

/* The text of a file, cut at most bytes, or NULL: there is none that only this user can have written. folder (may be
 * NULL) receives where it is. Owned: free(). */
char *cachefile_load(const char *name, size_t most, char *folder, size_t folder_size);

/* Replaces the file as a whole. name: of one of the kinds in cachefile_bound.c. Now and then the folder is brought back
 * to its bounds. */
void cachefile_store(const char *name, const char *text, size_t bytes);

/* cachefile_folder.c: a descriptor of the cache folder, which is made when it is missing and make is set. -1: there is
 * none that only this user can write; why says so, or is NULL where the folder is only missing. path (at least
 * CACHEFILE_PATH) receives where it is, "" where that cannot be said. */
enum { CACHEFILE_PATH = 1024 };
int cachefile_open(bool make, char *path, size_t size, const char **why);

/* cachefile_folder.c: did this user alone write what that describes, as far as modes can say? */
bool cachefile_is_private(const struct stat *st);

/* cachefile_bound.c: is that a name of one of the kinds? What is not would never be removed. */
bool cachefile_is_ours(const char *name);

/* cachefile_bound.c: removes what is beyond the bounds that hold without being asked for. folder stays open. */
void cachefile_bound(int folder);

/* Takes the line "key value" off *at, which is changed; NULL when it is not that. */
char *cachefile_line(char **at, const char *key);

#endif
