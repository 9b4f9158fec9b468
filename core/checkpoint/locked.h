/* Inside core: digests of a checkpoint's files, made for a lock or compared with one (base/lockfile.h). */
#ifndef TENON_CORE_LOCKED_H
#define TENON_CORE_LOCKED_H

#include "base/lockfile.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"

/* How the work is done: in threads, and told in between ("what", bytes done, of all). progress may be NULL; a non-zero
 * return stops with TN_E_CANCELLED. */
typedef struct locked_work {
    shards_loop loop;
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *ctx;
} locked_work;

/* The names of what stands beside the weights in folder, sorted: configuration, tokenizer, templates. Whatever might be
 * read is among them, by the ends of names, so that nothing can be slipped in; a lock in its own folder is not. */
tn_status locked_names(const char *folder, text_list *names, tn_error *err);

/* Appends "{name, bytes, sha256}" of folder/name, or of each file of the set, to out; first: no comma before it. */
tn_status locked_tell(const char *folder, const char *name, const locked_work *work, bool first, text *out,
                      tn_error *err);
tn_status locked_tell_weights(const shards *set, const locked_work *work, bool first, text *out, tn_error *err);

/* Are those that folder has the ones of the lock, byte for byte? beside false: it is a .gguf, and there are none.
 * TN_E_INPUT names the file and the first piece that is not. */
tn_status locked_check(const char *folder, bool beside, const lockfile *lock, const locked_work *work, tn_error *err);

/* The same of the files of weights: of every piece, or where shards_watch was called of those that were read. */
tn_status locked_check_weights(const shards *set, const lockfile *lock, const locked_work *work, tn_error *err);

#endif
