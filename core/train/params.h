/* Inside core/train: the parameters of a model, and where their gradients are added up. */
#ifndef TENON_CORE_TRAIN_PARAMS_H
#define TENON_CORE_TRAIN_PARAMS_H

#include "open/model.h"

/* One tensor of the checkpoint, as the model has it in memory. */
typedef struct train_param {
    const char *name; /* the file's; of several, the first in alphabetical order                      */
    const char *data;
    size_t bytes;
    tn_dtype dtype;
    const graph_twin *twin; /* what products read in its place, or NULL                              */
    float *sums;            /* an element for each of data                                                   */
    float *fresh;           /* the same, of one call                                                             */
    bool read;              /* backward asked for it                                                         */
    bool now;               /* ... in the call at hand, for fresh                                             */
    bool apart;             /* in one call it may come several times                                            */
    size_t number;          /* its place among the tensors of the checkpoint, or of the adapter                  */
    bool met;               /* it did so once                                                                */
    bool decays;            /* it is no bias, and of no norm                                                 */
    bool moved;             /* a step has changed it, so that it has moments                                  */
} train_param;

/* Gradients, moments and steps go by blocks of one parameter's elements. */
enum { TRAIN_BLOCK = 1 << 14 };
typedef struct train_block {
    train_param *of;
    int64_t first, count;
} train_block;

/* What one call makes of a parameter is added up by itself, and then to what the calls before made, so that it does not
 * matter whose calls these were. Over ranks (group) each has the sums, and takes the steps, of blocks of its own. */
typedef struct train_params {
    const shards *weights;
    const peft_adapter *adapter; /* they are its tensors, and the model's are frozen; or NULL                     */
    train_param *at;             /* by address                                                               */
    size_t count;
    const graph *graph;
    const graph_twin **twins; /* of the graph, those that are read, by the address of what is narrow       */
    size_t twin_count;
    float *sums, *fresh;
    size_t bytes, fresh_bytes;        /* of either; of fresh, what may be used                                 */
    train_block *blocks;              /* by number                                                              */
    size_t block_count, own, own_end; /* of all; those that are stepped here                         */
    int64_t calls;                    /* since params_clear                                           */
    bool many;                        /* the call at hand has more tokens than a site is given at once */
    struct group *group;              /* or NULL                                                      */
} train_params;

tn_status params_open(train_params *p, const tn_model *model, tn_error *err);
void params_close(train_params *p);
void params_clear(train_params *p);

/* Behind a call of backward: what it made is added to the sums. */
void params_add(train_params *p);

/* In threads. */
void params_zero(void *to, size_t bytes);

/* Elements of all that have gradients. */
static inline int64_t params_count(const train_param *p)
{
    return (int64_t)(p->bytes / tn_dtype_size(p->dtype));
}

/* tape_sums.find; ctx: the params. */
float *params_find(void *ctx, const tn_tensor *t);

/* What products read, after a change; its pages are unlocked. */
void params_round(const train_params *all, const train_param *p);

/* Are its pages to be written to by this process? Those that nobody could write to before are locked again. */
void params_unlock(const train_params *all, const train_param *p);
void params_lock(const train_params *all, const train_param *p, const tn_model *model);

/* tn_trainer_gradient. */
tn_status params_gradient(const train_params *p, const char *name, tn_tensor *out, tn_error *err);

#endif
