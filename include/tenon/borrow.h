/* Tenon: a model over memory that the program owns, such as the parameters of a live torch model, and single sites of
 * it that are called again and again. tenon.h has the rules. */
#ifndef TENON_BORROW_H
#define TENON_BORROW_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a model from the text of a config.json and tensors that the caller lends: names are those of a state_dict of
 * transformers 5 (or of a file: whatever tn_model_open reads), in any order; those that the model does not need are
 * not looked at. A base class ("layers.0...") and one with another head (sequence classification) have no head where
 * none is lent. The paths of sites are those of the causal model, "model.layers.0.mlp", whatever the names begin with.
 * Text, names and the structs are copied; the memory of the tensors is borrowed until tn_model_close. Each must be f32,
 * bf16 or f16, aligned to its elements, dense (strides are those of tn_tensor_dense), and have the shape that the
 * config implies. dtype "auto" is that of most of the lent bytes, whatever the config says. What is of another type, or
 * lies in another order than operations take it (GPT-2's Conv1D), is copied once, and later changes of it are not seen,
 * unless options->weights_change says that this must not be. There is no folder (tn_model_info.folder is
 * "borrowed model"), no tokenizer and no generation config. Of the checks nothing is remembered beyond the
 * process, and within it only with weights_change.
 *
 * options may be NULL; three of them are for this call: per_module, weights_change and partial. A name lent twice, a
 * tensor without data, and one that does not fit are TN_E_INPUT that names the tensor. Owned: tn_model_close. [any
 * thread] */
TN_API tn_model *tn_model_borrow(const char *config_json, const char *const *names, const tn_tensor *tensors,
                                 size_t count, const tn_model_options *options, tn_error *err);

/* ---- one site, called often ------------------------------------------------------------------------ */

/* A site with what its calls need: a copy of its parameters' places, and scratch that grows with the tokens. It
 * performs with the kernel that the site has at the time of the call, or eagerly, an operation that eager composes
 * (MLP) then without the kernels of what is inside. It looks at what is applied: after tn_apply_kernels or
 * tn_revert_kernel nothing needs to be bound anew; calls wait while they run, and they for calls, so none comes from
 * their callbacks. The first call of a size that a kernel was not checked with is compared with eager, as in a session;
 * tn_model_shadow's fraction is not drawn of these calls. After fork() the child may go on with it. */
typedef struct tn_bound tn_bound;

/* path and op as of tn_site_forward. tokens: of the largest call that is expected, for scratch; 0: not known. Owned:
 * tn_bound_close, before the model is closed. A site for which something is not lent (tn_model_options.partial) is
 * TN_E_USAGE with the reason. [any thread] */
TN_API tn_bound *tn_site_bind(tn_model *model, const char *path, tn_op op, int64_t tokens, tn_error *err);

/* From now on the parameter of that role lies in tensor, or in count tensors where the site has a list: the same types,
 * shapes and number as before, dense and aligned, borrowed from now on. Only this bound's: others of the same weight,
 * and the model for tn_verify and the like, keep where it was. TN_E_USAGE where they do not fit, or where the kernel of
 * the site keeps a packed copy (tn_model_options.weights_change lets none do so). Waits for calls in progress. [any
 * thread] */
TN_API tn_status tn_bound_point(tn_bound *bound, tn_role role, const tn_tensor *tensors, int64_t count, tn_error *err);

/* tn_site_forward and tn_site_backward of the site. Tensors are checked against the operation. Two calls of one bound
 * at once have scratch of their own. [any thread] */
TN_API tn_status tn_bound_forward(tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_tensor *out,
                                  int32_t out_count, tn_error *err);
TN_API tn_status tn_bound_backward(tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_grads *grads,
                                   tn_error *err);

/* The site, with the parameters as they are pointed now: what it means, its dimensions. Belongs to bound. [any thread]
 */
TN_API const tn_site *tn_bound_site(const tn_bound *bound);

/* The id of the kernel that calls of so many tokens are performed with; NULL: eagerly. Belongs to the process. [any
 * thread] */
TN_API const char *tn_bound_kernel(const tn_bound *bound, int64_t tokens);

/* How far results are from reference, those of a call with the same inputs, in units of the tolerance that the site's
 * kernel declares, row by row as the checks of tn_apply_kernels compare: up to 1 it is right. Rows whose choice of
 * experts rounding could change are left out. TN_E_USAGE where no kernel has the site. [any thread] */
TN_API tn_status tn_bound_compare(const tn_bound *bound, const tn_tensor *in, int32_t in_count, const tn_tensor *out,
                                  const tn_tensor *reference, int32_t out_count, double *units, tn_error *err);
/* The same of gradients: those of grads that have data, reference has the same ones. [any thread] */
TN_API tn_status tn_bound_compare_grads(const tn_bound *bound, const tn_tensor *in, int32_t in_count,
                                        const tn_grads *grads, const tn_grads *reference, double *units, tn_error *err);

/* Which rows of a call two right kernels may compute differently, since rounding decides: tokens whose choice of
 * experts it could change, and in 16 bits queries with very large scores of attention. unclear has count flags, one for
 * each row of in[0] (all its dimensions but the last). What is to be compared is drawn anew where they are set;
 * gradients of parameters, which add up over rows, can be compared only where the gradients of these rows' results are
 * zero. Needs no kernel. [any thread] */
TN_API tn_status tn_bound_unclear(const tn_bound *bound, const tn_tensor *in, int32_t in_count, bool *unclear,
                                  int64_t count, tn_error *err);

/* No call in progress. NULL: nothing. [any thread] */
TN_API void tn_bound_close(tn_bound *bound);

/* ---- threads of the program ------------------------------------------------------------------------ */

/* A pool that the program has already, such as OpenMP's in a process with torch: two teams that wait for work on the
 * same cores take them away from each other. */
typedef struct tn_team {
    uint32_t size;
    int32_t width; /* threads that it has, the caller of run among them; at least 1                         */
    /* Calls body(arg, index, count) on count threads at once, each with an index 0 .. count-1 of its own, and returns
     * when all have returned. count is the pool's to choose, 1 .. threads; all must run at the same time, since they
     * wait for each other. Called from any thread, but never twice at once. */
    void (*run)(void *context, int32_t threads, void (*body)(void *arg, int32_t index, int32_t count), void *arg);
    void *context; /* of run; borrowed                                                              */
} tn_team;

/* From now on regions of work run on that team; NULL: on our own, as before. The struct is copied. The team of the
 * library ends its threads, and tn_model_options.threads has no effect meanwhile. In the child of a fork, where the
 * pool's threads do not exist, the calling thread works alone until this is called again. TN_E_USAGE inside a region.
 * [any thread] */
TN_API tn_status tn_threads_use(const tn_team *team, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
