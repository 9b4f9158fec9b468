/* Tenon: one model computed by several processes (ranks), each of which holds a part of the weights. tenon.h has the
 * rules. docs/machines.md has what is cut, and what is the same on all. */
#ifndef TENON_PARALLEL_H
#define TENON_PARALLEL_H

#include <tenon/group.h>
#include <tenon/model.h>
#include <tenon/session.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All ranks open the same checkpoint with the same tn_model_options.parallel. Then rank 0 applies kernels, makes
 * sessions and runs them as ever, and the others call this: it does what rank 0 does, with their own parts of the
 * weights, until rank 0 closes its model. Kernels are those that rank 0 asks for, of this rank's plugins; what else
 * config says is this rank's own. What rank 0 gets has the bits that one process would compute with the same kernels at
 * the same sites, but for "sums" and "experts", whose bits are the same for the same number of ranks; the others'
 * results are thrown away.
 *
 * TN_E_USAGE: rank 0, or a model that is not parallel. TN_E_KERNEL, TN_E_INPUT, TN_E_MEMORY: something failed on this
 * rank alone, or another one did not answer. Who gets an error ends its process with an exit status that is not 0, so
 * that all end. What rank 0 is told, too (a kernel that is refused, a rank that is not like it), is no error here. [one
 * thread] */
TN_API tn_status tn_follow(tn_model *model, tn_config *config, tn_error *err);

/* Over how many ranks a text of tn_model_options.parallel says that a model is cut, 4 of "tensor=4", 8 of
 * "pipeline=2,tensor=4"; *each (or NULL): how many of them have one stage together, all but in a pipeline. 0: it does
 * not say, or is no such text. [any thread] */
TN_API int64_t tn_parallel_ranks(const char *parallel, int64_t *each);

/* Ranks that train one model (tn_model_options.parallel "replicas", tenon/train.h): the bytes that every rank has at
 * own, side by side at all, which has room for those of tn_model_info.ranks; none where bytes are 0. All ranks call it
 * with as many. status is what came of this rank's own work, with its message in err: where it is an error on any rank
 * every rank gets one, which names that rank, and all may end alike. Of a model that is not parallel it copies.
 * TN_E_USAGE: a model that is cut. TN_E_KERNEL: a rank did not answer. [one thread] */
TN_API tn_status tn_ranks_share(tn_model *model, tn_status status, const void *own, void *all, int64_t bytes,
                                tn_error *err);

/* What one call takes of which only the last token's logits are wanted. A gather makes the parts of all ranks one
 * whole on each, or brings each what all of them add up; passes go from rank to rank, one after the other. Of mixtures
 * bytes are at most those of as many experts as the tokens can choose. */
typedef struct tn_forecast {
    uint32_t size;                   /* set by the caller                                                         */
    int64_t gathers, gathered_bytes; /* their wholes                                                */
    int64_t passes, passed_bytes;    /* between all ranks                                           */
    double weight_bytes, operations; /* of this rank: weights that it reads; multiplications and additions with them */
    int64_t stage_gathers, stage_gathered_bytes; /* as gathers, by each stage's ranks ("pipeline=2,tensor=4") in turn */
} tn_forecast;

/* Of tokens in the next call of a session of a parallel model, on this rank, without computing anything; orders of rank
 * 0 are not in it. TN_E_USAGE: the model is not parallel, or tokens are none, or more than the session's chunk. [one
 * thread] */
TN_API tn_status tn_session_forecast(tn_session *session, int64_t tokens, tn_forecast *forecast, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
