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
    /* What steps change: data themselves, or masters in f32, from which data are rounded. */
    void *value;
    tn_dtype trained;
    float *sums; /* an element for each of data                                                   */
    bool read;   /* backward asked for it                                                         */
    bool decays; /* it is no bias, and of no norm                                                 */
    bool moved;  /* a step has changed it, so that it has moments                                  */
} train_param;

typedef struct train_params {
    const shards *weights;
    const peft_adapter *adapter; /* they are its tensors, and the model's are frozen; or NULL                     */
    train_param *at;             /* by address                                                               */
    size_t count;
    float *sums;
    float *masters; /* beside sums; NULL: there are none                                             */
    size_t bytes;   /* of sums                                                                     */
} train_params;

/* masters: what the model has in 16 bits is trained in f32. */
tn_status params_open(train_params *p, const tn_model *model, bool masters, tn_error *err);
void params_close(train_params *p);
void params_clear(train_params *p);

/* Elements of all that have gradients. */
static inline int64_t params_count(const train_param *p)
{
    return (int64_t)(p->bytes / tn_dtype_size(p->dtype));
}

/* tape_sums.find; ctx: the params. */
float *params_find(void *ctx, const tn_tensor *t);

/* Before the first step: masters as the file has them, where that is more than the model has. */
void params_begin(const train_params *all, train_param *p);

/* Data from masters, where it has some; its pages are unlocked. */
void params_round(const train_param *p);

/* Are its pages to be written to by this process? Those that nobody could write to before are locked again. */
void params_unlock(const train_param *p);
void params_lock(const train_param *p, const tn_model *model);

/* tn_trainer_gradient. */
tn_status params_gradient(const train_params *p, const char *name, tn_tensor *out, tn_error *err);

#endif
