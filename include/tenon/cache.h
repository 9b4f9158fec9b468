/* Tenon: what is remembered from one run to the next, in $XDG_CACHE_HOME/tenon or ~/.cache/tenon: small files of
 * several kinds. Whatever is removed is found out anew. tenon.h has the rules. */
#ifndef TENON_CACHE_H
#define TENON_CACHE_H

#include <tenon/error.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The files of one kind. Times are seconds since 1970, of the last use to a day; 0: there is no file. */
typedef struct tn_cache_kind {
    uint32_t size;
    const char *name, *summary; /* "trials", "verdicts on plugins"; static storage                 */
    int64_t files, bytes;
    int64_t oldest, newest;
} tn_cache_kind;

/* The folder, whether it is there or not. Owned: free(). NULL: there can be none. [any thread] */
TN_API char *tn_cache_folder(tn_error *err);

/* Every kind, also without files. TN_E_INPUT where the folder cannot be read, or others than this user can write there:
 * nothing in it is used then. list is owned: free(). [any thread] */
TN_API tn_status tn_cache_list(tn_cache_kind ***list, size_t *count, tn_error *err);

/* What may stay. 0 stands for what the library keeps to by itself. */
typedef struct tn_cache_limits {
    uint32_t size;
    const char *kind;     /* NULL: files of all kinds                                              */
    int64_t max_age_days; /* since its last use                                                    */
    int64_t max_bytes, max_files;
} tn_cache_limits;

/* What was removed. */
typedef struct tn_cache_removed {
    uint32_t size;
    int64_t files, bytes;
} tn_cache_removed;

/* Removes all files of a kind (NULL: of all kinds), or those beyond limits (NULL: the library's own), the longest
 * unused first. Other files in the folder stay. removed may be NULL. [any thread] */
TN_API tn_status tn_cache_clear(const char *kind, tn_cache_removed *removed, tn_error *err);
TN_API tn_status tn_cache_prune(const tn_cache_limits *limits, tn_cache_removed *removed, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
