/* Inside core: the file that `tenon lock` writes. It says in JSON which bytes a checkpoint, the library and its plugins
 * had. Whoever reads one trusts nothing of it: what lockfile_read gives is whole, and names lead out of no folder. */
#ifndef TENON_CORE_LOCKFILE_H
#define TENON_CORE_LOCKFILE_H

#include "base/names.h"
#include "base/sha256.h"

#include <tenon/error.h>

#include <stdint.h>

#define LOCKFILE_PIECE ((int64_t)16 << 20) /* bytes that have a digest of their own                  */

/* One file of the checkpoint. name: in its folder, with at most one folder before it. */
typedef struct lockfile_entry {
    const char *name;
    int64_t bytes;
    const struct json_t *pieces;
} lockfile_entry;

/* A plugin, or a library that came in with one, by its file name. */
typedef struct lockfile_code {
    const char *file, *sha256;
} lockfile_code;

typedef struct lockfile_codes {
    lockfile_code *list;
    size_t count;
    names index;
} lockfile_codes;

/* Strings belong to it. */
typedef struct lockfile {
    char *path;
    uint64_t hash; /* of all that it says                                                           */
    struct json_t *root;
    const char *version, *library; /* of libtenon: its version, and its file's digest              */
    lockfile_codes plugins, libraries;
    lockfile_entry *files;
    size_t file_count;
    names index;
} lockfile;

/* TN_E_INPUT, naming file and key, where it is not in this form. Owned: lockfile_close. */
lockfile *lockfile_read(const char *path, tn_error *err);
void lockfile_close(lockfile *lock);

const lockfile_entry *lockfile_find(const lockfile *lock, const char *name); /* NULL: not there       */
const char *lockfile_digest(const lockfile_codes *codes, const char *file);  /* NULL: not there       */
size_t lockfile_pieces(int64_t bytes);                                       /* of a file of that size */
const char *lockfile_piece(const lockfile_entry *entry, size_t index);       /* its digest            */

#endif
