/* Tenon: gradients of a whole model: the loss of texts, and how it changes with every parameter. tenon.h has the rules.
 */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_trainer tn_trainer;

typedef struct tn_train_options {
    uint32_t size;
    int64_t max_tokens; /* of all texts of one call; 0: 4096                                       */
} tn_train_options;

/* Texts that are seen each by itself, as they follow one another in ids: text i has lengths[i] tokens, at least one,
 * at positions from 0 on. */
typedef struct tn_train_texts {
    uint32_t size;
    const int64_t *ids;
    const int64_t *labels; /* as transformers has them, as many as ids: at t what the token before is to predict; -100:
                              it does not count. The first one of a text never does.                     */
    const int64_t *lengths;
    int64_t count;  /* of texts                                                                   */
    double divisor; /* of the loss and of its gradients; 0: the labels that count                 */
} tn_train_texts;

/* What has gone into a loss. */
typedef struct tn_train_loss {
    uint32_t size;
    double loss;     /* sum of -log(probability of the label) over the labels that count, divided by the divisor */
    int64_t counted; /* labels that count                                                          */
} tn_train_loss;

/* The model must have been opened with tn_model_options.training, stays open and as it is, and is used by nothing else
 * meanwhile; its kernels perform forward and backward. TN_E_USAGE on a device without host memory, and for a model
 * without a head. Its towers take no part. options NULL: all defaults. Owned: tn_trainer_close. [one thread] */
TN_API tn_trainer *tn_trainer_open(tn_model *model, const tn_train_options *options, tn_error *err);
TN_API void tn_trainer_close(tn_trainer *trainer); /* NULL is allowed [one thread] */

/* The loss of these texts; its gradients are added to those of the calls since tn_trainer_clear. loss may be NULL.
 * After a failure what was added is undefined: clear. [one thread] */
TN_API tn_status tn_trainer_backward(tn_trainer *trainer, const tn_train_texts *texts, tn_train_loss *loss,
                                     tn_error *err);

/* All gradients become zero. [one thread] */
TN_API void tn_trainer_clear(tn_trainer *trainer);

/* The gradient of the parameter that the checkpoint's files call name: f32, of the file's shape, in any order of
 * strides; valid until the next call. Parameters that share one tensor share one gradient. TN_E_USAGE: there is no such
 * parameter, it is quantised, or nothing that was computed read it. [one thread] */
TN_API tn_status tn_trainer_gradient(const tn_trainer *trainer, const char *name, tn_tensor *gradient, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
