/* Inside core: the first call of each size. What a kernel computes with a number of tokens that it has not had before
 * is compared with eager before it is used (shadow.c); which sizes were, is remembered here and beside the check of the
 * first use, so that later runs do not pay. */
#ifndef TENON_CORE_FIRST_CALLS_H
#define TENON_CORE_FIRST_CALLS_H

#include "plugin/registry.h"
#include "select/sizes.h"
#include "select/target.h"

struct registry_kernel;

/* The calls of one implementation at the sites of one shape. Those of a target form a list. */
typedef struct first_calls {
    struct first_calls *next;
    const struct registry_kernel *kernel;
    char *key;       /* check_cache's, or one that only tells them apart                             */
    bool kept;       /* the key is the cache's                                                       */
    bool busy;       /* the check could not show all: what passes is not kept beyond this process        */
    bool grown;      /* since they were read                                                         */
    bool failed;     /* a call of the kernel was wrong                                               */
    int32_t threads; /* that the sizes were met with                                                 */
    int64_t compared;
    sizes met;
} first_calls;

/* A key that only tells implementations and shapes (plan_shape_hash) of one process apart, where nothing can be kept
 * beyond it. Owned: free(). NULL: no memory. */
char *first_calls_key(const tn_impl *impl, uint64_t shape);

/* Those of the target with that key, which is taken; kernel and known are looked at where they are new: known is what
 * check_cache_recall found, or NULL. NULL: no memory. */
first_calls *first_calls_open(apply_target *target, const struct registry_kernel *kernel, char *key, bool kept,
                              const char *known, tn_error *err);
void first_calls_close(apply_target *target);

/* Is this the first call of its size? */
bool first_calls_is_new(first_calls *f, const tn_call *call);

/* The same, asked by several threads while none compares: false also where it cannot be told without a change. */
bool first_calls_is_known(const first_calls *f, const tn_call *call);

/* It was compared, and is right. */
void first_calls_passed(apply_target *target, first_calls *f, const tn_call *call);

/* A call of the kernel was wrong: later runs refuse it for that reason, at every shape that this one had it for. */
void first_calls_failed(apply_target *target, const struct registry_kernel *kernel, const char *reason);

/* What was found out since is kept for later runs. */
void first_calls_keep(apply_target *target);

/* In what check_cache_recall found: why the kernel was wrong in an earlier run, without the line's end, or NULL. */
const char *first_calls_reason(char *known);

/* How many calls have been compared, in earlier runs too. */
int64_t first_calls_count(const apply_target *target);

#endif
