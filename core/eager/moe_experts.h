/* Inside core/eager: what MOE_EXPERTS and its gradients share. A token's k choices are slots; slots are sorted by
 * expert, so that every expert's weights are read once. */
#ifndef TENON_CORE_EAGER_MOE_EXPERTS_H
#define TENON_CORE_EAGER_MOE_EXPERTS_H

#include "eager/grouped.h"
#include "eager/vec.h"

/* What an adapter adds, in f32 (experts_adapter.h). */
typedef struct experts_beside {
    bool there;
    float *gate_up, *down; /* [slots, 2 inter], as the products of GATE_UP lie; [slots, hidden]      */
    float *x, *g, *h, *u;  /* rows on their way                                                     */
    char *factors;         /* of each thread two or three times factor_bytes                        */
    size_t factor_bytes;
} experts_beside;

typedef struct experts_job {
    const tn_site *site;
    const tn_tensor *x, *weights, *experts;
    tn_layout layout;
    tn_act act;
    vec_clamp clamp;
    bool pairs;  /* gate and up take turns in the columns of GATE_UP                             */
    bool scaled; /* a slot's weight is a factor of its input, not of its output                  */
    const tn_tensor *gate_up_bias, *down_bias; /* or NULL                                        */
    tn_dtype dtype, type, term_type;           /* of the model, of the products, of what is summed        */
    int64_t tokens, hidden, inter, top_k, expert_count, slots;
    int64_t tile_m, tile_inter, tile_hidden;
    int32_t *order;  /* [slots] slots sorted by expert                                           */
    int64_t *start;  /* [experts + 1] where an expert's slots begin in order                     */
    char *gathered;  /* [slots, hidden] rows of x in that order, in type                         */
    char *gate, *up; /* [slots, inter] in type: kept for gradients; NULL: not. Pairs: gate has both, [slots, 2 inter] */
    char *activated; /* [slots, inter] in type                                                   */
    char *terms;     /* [slots, hidden] by slot, in term_type                                    */
    experts_beside beside;
    char *threads;
    size_t tile_bytes, thread_bytes; /* a thread has a tile of results, then work for products  */
} experts_job;

/* One of an expert's matrices: where its outputs begin in a parameter. */
typedef struct experts_matrix {
    tn_role role;
    int64_t first;
} experts_matrix;

experts_matrix moe_experts_gate(const experts_job *job);
experts_matrix moe_experts_up(const experts_job *job);

/* Gate and up of row, from feature at on, n <= VEC_CHUNK: as they are kept for gradients, and back. */
void moe_experts_keep(const experts_job *job, int64_t row, int64_t at, const float *gate, const float *up, int64_t n);
void moe_experts_kept(const experts_job *job, int64_t row, int64_t at, float *gate, float *up, int64_t n);

/* x = rnd(x + the expert's bias from output `at` on, every step-th); nothing without a bias. */
void moe_experts_bias(const experts_job *job, const tn_tensor *bias, int64_t expert, int64_t at, int64_t step, float *x,
                      int64_t n);

/* x = rnd(x + what an adapter has beside it: n numbers from there on, every step-th). NULL: none has. */
void moe_experts_beside(const experts_job *job, const float *beside, int64_t step, float *x, int64_t n);

/* The row of activated's products, from a column on. */
static inline const float *moe_experts_beside_down(const experts_job *job, int64_t row, int64_t column)
{
    return job->beside.there ? job->beside.down + row * job->hidden + column : NULL;
}

/* Fills all but memory. False when the site has not what experts need: moe_experts_unknown is the error then. */
bool moe_experts_shape(const tn_call *call, experts_job *job);
tn_status moe_experts_unknown(const tn_site *site, tn_error *err);

/* The memory of a thread: a tile of so many columns. */
void moe_experts_tile(experts_job *job, int64_t columns);

/* Counting sort of the slots; refuses ids that name no expert. */
tn_status moe_experts_sort(experts_job *job, tn_error *err);

/* gathered, and then activated = rnd(rnd(act(rnd(gate))) * rnd(up)). */
void moe_experts_activate(experts_job *job);

/* c = rows of a [slots, k] times a matrix of the item's expert, see grouped_product. */
void moe_experts_product(const experts_job *job, gemm_context *context, experts_matrix matrix, bool back,
                         const grouped_item *item, int64_t k, const char *a, float *c);

/* Performs item for tiles of columns of width. depth: multiplications per element. */
void moe_experts_pass(const experts_job *job, int64_t width, int64_t tile, int64_t depth,
                      void (*item)(const void *ctx, gemm_context *context, const grouped_item *item), const void *ctx);

/* The weight of a slot. */
float moe_experts_slot_weight(const experts_job *job, int64_t slot);

/* Row t of y = the terms of its slots, summed in f32 in the order of the slots and rounded once. */
void moe_experts_combine(const experts_job *job, const tn_tensor *y);

/* Forward, beside backward in moe_experts_grad.c, where the operation is put together. */
size_t moe_experts_scratch(const tn_call *call);
tn_status moe_experts_forward(const tn_call *call, tn_error *err);

/* What a forward that has just been performed left in its scratch: start, gathered and activated. False: nothing. */
bool moe_experts_left(const tn_call *call, experts_job *job);

#endif
