/* Inside core: a model that is cut over ranks. Rank 0 says what is done; the others wait for its orders (tn_follow). */
#ifndef TENON_CORE_PARALLEL_H
#define TENON_CORE_PARALLEL_H

#include "group/group.h"
#include "open/model.h"

/* Whether these options go together. */
tn_status parallel_check(const tn_model_options *options, bool borrowed, tn_error *err);

/* This process's end of the group that options ask for, or nothing. */
tn_status parallel_open(tn_model *m, const tn_model_options *options, tn_error *err);

/* The ranks that it is cut over, or that train it; NULL: this process alone has it. */
group *parallel_ranks(const tn_model *m);

/* group_agree of the ranks that it is cut over, or (meet) of any; or status where there are none. */
tn_status parallel_agree(const tn_model *m, tn_status status, tn_error *err);
tn_status parallel_meet(const tn_model *m, tn_status status, tn_error *err);

typedef enum parallel_kind {
    ORDER_END,
    ORDER_APPLY,
    ORDER_NEW,
    ORDER_FREE,
    ORDER_RESET,
    ORDER_REWIND,
    ORDER_RUN
} parallel_kind;

/* What rank 0 is about to do, and how many bytes follow. */
typedef struct parallel_order {
    int64_t kind, session, bytes;
    int64_t number[8];
} parallel_order;

/* Rank 0 of a parallel model: tells the others. Others, and models that are not: nothing. */
tn_status parallel_tell(const tn_model *m, const parallel_order *order, const void *bytes, tn_error *err);

/* Rank 0: the others apply these, too. On others: are they told to? */
tn_status parallel_apply(const tn_model *m, const tn_config *config, const char *spec, tn_error *err);

/* Others: applies the kernels that an ORDER_APPLY names. Where that fails, as on rank 0, this is TN_OK. */
tn_status parallel_apply_told(tn_model *m, tn_config *config, const parallel_order *order, const char *spec,
                              tn_error *err);

/* TN_E_USAGE for what is not told to other ranks. */
tn_status parallel_refuse(const tn_model *m, const char *what, tn_error *err);

/* Fills cut_bytes, whole_bytes and own_heads to own_vocab of the model's info, where it is parallel. */
tn_status parallel_count(tn_model *m, tn_error *err);

/* Weights that this rank reads for so many tokens of which one gets logits, and multiplications and additions with
 * them. */
void parallel_work(const tn_model *m, int64_t tokens, double *bytes, double *operations);

/* Rank 0: no more orders come. */
void parallel_end(const tn_model *m);

/* Are all ranks' version, instruction sets, configuration, options and kernels those of this one? */
tn_status parallel_alike(const tn_model *m, tn_error *err);

#endif
