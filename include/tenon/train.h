/* Tenon: gradients of a whole model: the loss of texts, and how it changes with every parameter. tenon.h has the rules.
 */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_trainer tn_trainer;

/* What is computed and changed in which type. It follows from how the model was opened (tn_model_options.dtype); one
 * that does not go with that is an error. */
typedef enum tn_precision {
    TN_PRECISION_AUTO,  /* as the model was opened: f32, mixed, or pure; of an adapter in 16 bits mixed        */
    TN_PRECISION_MIXED, /* of a model opened in "mixed": weights, gradients and moments are f32, products bf16. Of an
                           adapter: beside weights in 16 bits, its products are of their type, too */
    TN_PRECISION_PURE   /* of a model opened in bf16: weights, gradients, their norm and moments are bf16, each rounded
                           when it is stored. Of an adapter: it is f32, and so are its products         */
} tn_precision;

/* What is kept of a forward for its gradients. Either way these have the same bits. */
typedef enum tn_keep {
    TN_KEEP_AUTO,  /* of as many layers, from the first on, as the machine has free memory for, all; of the others what
                      they  are given                                                                      */
    TN_KEEP_ALL,   /* all that gradients read                                                         */
    TN_KEEP_LAYERS /* of each layer what it is given; it is computed again for its gradients          */
} tn_keep;

typedef struct tn_train_options {
    uint32_t size;
    int64_t max_tokens; /* of all texts of one call; 0: 4096                                       */
    tn_precision precision;
    double router_loss; /* factor of the loss of a mixture's routers; 0: none                          */
    tn_keep keep;
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
    double router;   /* the routers' loss, which times its factor is in loss; 0: none was asked for    */
} tn_train_loss;

/* The model must have been opened with tn_model_options.training, stays open and as it is, and is used by nothing else
 * meanwhile; its kernels perform forward and backward. TN_E_USAGE on a device without host memory, and for a model
 * without a head or over borrowed memory. Its towers take no part. options NULL: all defaults. Owned: tn_trainer_close.
 * [one thread] */
TN_API tn_trainer *tn_trainer_open(tn_model *model, const tn_train_options *options, tn_error *err);
TN_API void tn_trainer_close(tn_trainer *trainer); /* NULL is allowed [one thread] */

/* With tn_train_options.router_loss each call adds the factor times the loss of all routers, as transformers does with
 * each micro batch: over all tokens of all layers with experts, E sum_e f_e P_e, where f_e counts how often e is among
 * the most probable and P_e is its mean probability; no divisor takes part. TN_E_USAGE by tn_trainer_open for a type
 * that has no such loss. */

/* The loss of these texts; its gradients are added to those of the calls since tn_trainer_clear. loss may be NULL.
 * After a failure what was added is undefined: clear. [one thread] */
TN_API tn_status tn_trainer_backward(tn_trainer *trainer, const tn_train_texts *texts, tn_train_loss *loss,
                                     tn_error *err);

/* A model of replicas (tn_model_options.parallel) has a trainer on each rank, with all of the weights and a part of
 * sums and moments. All ranks call tn_trainer_open, backward, step, save, save_state, load_state and save_adapter
 * alike, and clear. What backward adds is what one trainer would add with the texts of rank 0, 1, ... in calls one
 * after the other, to the bit; loss is of this rank's own. count may be 0 on the last ranks. Rank 0 alone writes and
 * reads files. There is no tn_trainer_gradient (TN_E_USAGE). An error on one rank is one on all, which names it; where
 * ranks do not answer it is TN_E_KERNEL, and who gets that ends its process. */

/* The loss alone: nothing is kept for gradients, and none is added to. loss may be NULL. [one thread] */
TN_API tn_status tn_trainer_evaluate(tn_trainer *trainer, const tn_train_texts *texts, tn_train_loss *loss,
                                     tn_error *err);

/* All gradients become zero. [one thread] */
TN_API void tn_trainer_clear(tn_trainer *trainer);

/* The gradient of the parameter that the checkpoint's files call name: f32, of the file's shape, in any order of
 * strides; valid until the next call. Parameters that share one tensor share one gradient. TN_E_USAGE: there is no such
 * parameter, it is quantised, or nothing that was computed read it. [one thread] */
TN_API tn_status tn_trainer_gradient(const tn_trainer *trainer, const char *name, tn_tensor *gradient, tn_error *err);

/* How parameters are changed: AdamW, each with its gradient, in f32 (torch's fused formulas, without its vectors):
 *     p -= rate decay p, m += (1 - beta1) (g - m), v = beta2 v + (1 - beta2) g^2,
 *     p -= rate / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps), t = 1, 2, ...
 * Before that all gradients are multiplied by max_norm / (norm + 1e-6) where that is below 1, norm the root of the sum
 * of their squares. Biases and what belongs to norms do not decay, by their names, as in transformers. */
typedef struct tn_train_step {
    uint32_t size;
    double rate;
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-8                                                 */
    double decay;
    double max_norm; /* 0: gradients are taken as they are                                         */
} tn_train_step;

/* Changes the parameters that have gradients, which become zero; norm (may be NULL) receives that of the gradients
 * before they were cut. The model's weights in memory change, its files do not; sessions go on with what they have in
 * their caches. TN_E_USAGE, and nothing changes: parameters are f16, or a kernel keeps weights packed. Where norm is no
 * number it is TN_E_VERIFY, and nothing changes. [one thread] */
TN_API tn_status tn_trainer_step(tn_trainer *trainer, const tn_train_step *step, double *norm, tn_error *err);

/* Writes a checkpoint with the weights as they are now, in the type that the model computes with (in mixed precision:
 * that of the files), and copies of the config.json, tokenizer and template of the one that was opened: into folder,
 * which must not be there, written beside it and renamed. TN_E_USAGE: the model was opened from a .gguf, or is
 * quantised. [one thread] */
TN_API tn_status tn_trainer_save(const tn_trainer *trainer, const char *folder, tn_error *err);

/* All that the next step depends on but its gradients, to be saved between steps: parameters that steps have changed,
 * their moments, in the type that they are trained in, and the number of steps; one .safetensors file, written beside
 * and renamed into the place of what is there. [one thread] */
TN_API tn_status tn_trainer_save_state(const tn_trainer *trainer, const char *file, tn_error *err);

/* Goes on from there: the next step of a trainer over the same model, opened in the same way, has the bits that it
 * would have had in the one that saved. Gradients become zero. TN_E_INPUT, and nothing changes: a parameter of the file
 * or of the model has no counterpart, which the message names; TN_E_USAGE: as for a step. A file that is cut while it
 * is read leaves the model as nobody knows. [one thread] */
TN_API tn_status tn_trainer_load_state(tn_trainer *trainer, const char *file, tn_error *err);

/* Writes the adapter that is trained as peft does, adapter_model.safetensors (f32, in the layout of the adapter that
 * was opened) and adapter_config.json, into folder, which must not be there, written beside it and renamed. TN_E_USAGE:
 * the model has none. [one thread] */
TN_API tn_status tn_trainer_save_adapter(const tn_trainer *trainer, const char *folder, tn_error *err);

typedef enum tn_schedule { TN_SCHEDULE_CONSTANT, TN_SCHEDULE_LINEAR, TN_SCHEDULE_COSINE } tn_schedule;

/* The factor of the rate at a step, counted from 0, of so many: it grows from 0 over the steps of the warm-up, and then
 * stays, or falls to 0, as transformers' schedules do. 0 for what is none of them. [any thread] */
TN_API double tn_schedule_at(tn_schedule schedule, int64_t step, int64_t warmup, int64_t steps);

#ifdef __cplusplus
}
#endif
#endif
