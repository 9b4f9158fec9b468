/* Inside core: what a tn_model holds. */
#ifndef TENON_CORE_MODEL_H
#define TENON_CORE_MODEL_H

#include "checkpoint/locked.h"
#include "graph/lacks.h"
#include "models/models.h"
#include "open/peft.h"
#include "select/target.h"

#include <pthread.h>
#include <stdatomic.h>

struct tn_model {
    /* Calls of bound sites hold it as readers; who changes what they look at is alone. forks: model_forks when nobody
     * held what is not held now. */
    pthread_rwlock_t calls;
    atomic_uint forks;
    char *folder;
    config_file *config;
    shards *weights;
    device device;
    apply_target target;          /* graph, device, and the kernels on it                                  */
    const model_wrapper *wrapper; /* around it, or NULL                                           */
    const model_arch *arch;
    const model_flow *flow;
    bool base;        /* config.json names the class without a head                               */
    void *arch_state; /* what models_build returned                                               */
    tn_dtype dtype;
    tn_dtype narrow;        /* of its products, where that is another ("mixed"); TN_DTYPE_NONE           */
    bool borrowed;          /* there is no folder: tn_model_borrow                                   */
    build_lacks lacks;      /* of one that is                                                        */
    int64_t sessions_made;  /* of a parallel model, so far                                             */
    bool dequantise;        /* quantised weights are copied as values                                  */
    bool following;         /* in tn_follow                                                            */
    struct group *group;    /* the ranks that it is cut over, or NULL (parallel.h)                     */
    struct group *replicas; /* ranks that train it, each with all of it, or NULL                     */
    bool by_layers;         /* ... which have whole layers each, or in stages (group.h), or            */
    bool by_sums;           /* ... parts of what they add up,                                          */
    bool by_experts;        /* ... experts whole                                                       */
    peft_adapter *adapter;  /* around its products, or NULL                                           */
    lockfile *lock;         /* that its files are compared with, or NULL                              */
    locked_work loading;    /* ... while it is opened                                                */
    build_copies copies;    /* tensors that could not be used where they are mapped                  */
    tn_model_info info;
    int64_t *eos, eos_count; /* tokens that end a text; owned                                     */
    tn_sampling sampling;    /* of generation_config.json                                        */
    char **stop_strings;     /* of sampling; owned                                               */
};

/* What arch reads of config.json: all of it, or the wrapper's object. */
config_reader model_config(const tn_model *model, tn_status *status, tn_error *err);

/* tn_model_open with tensors from weights, which the model then owns (also after an error), in place of the folder's;
 * NULL: the folder's. */
tn_model *model_open(const char *folder, const tn_model_options *options, shards *weights, tn_error *err);

/* The same of a configuration's text and lent tensors, of which dtype is that of most bytes. */
tn_model *model_open_lent(const char *config, const tn_model_options *options, shards *weights, tn_dtype dtype,
                          tn_error *err);

/* Around a call of a bound site, or (alone) what must have none beside it. In the child of a fork nobody is in one.
 * Never nested. forks.c */
void model_calls_begin(tn_model *model, bool alone);
void model_calls_end(tn_model *model);
/* How many forks lie between this process and the first one of the library. */
unsigned model_forks(void);

/* kernels.c: status, unless a file of the checkpoint was cut short or changed since it was opened: then that error
 * takes the place of any other in err. */
tn_status model_files_check(const tn_model *model, tn_status status, tn_error *err);

/* kernels.c: the same where status is a failure: a kernel that failed on weights that are gone is not to blame. */
tn_status model_blame(const tn_model *model, tn_status status, tn_error *err);

/* kernels.c: apply_check_calls for a session that is being made. */
tn_status model_check_calls(tn_model *model, int64_t rows, int64_t tokens, int64_t context, tn_error *err);

/* kernels.c: first_calls_keep for a session that is over. */
void model_calls_done(tn_model *model);

#endif
