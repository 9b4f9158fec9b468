/* Inside core: what an architecture's forward is written with. The first failure sticks in the run: after it the
 * functions below do nothing and return empty tensors, so a forward reads like the modeling file it follows. */
#ifndef TENON_CORE_STEPS_H
#define TENON_CORE_STEPS_H

#include "run/run.h"
#include "run/rope_tables.h"
#include "run/tape.h"

enum { MODEL_ROPES = 4 }; /* kinds of rotary tables that one model may use                        */

/* What the session must know of a layer: the size of its cache, of keys and values or of recurrent states; 0: none. */
typedef struct model_layer {
    int64_t kv_heads, head_dim, v_head_dim;
    int64_t window;                /* 0: all positions                                                           */
    bool v_in_k;                   /* values are the first v_head_dim elements of keys: one tensor holds both    */
    int64_t conv_width, conv_taps; /* state of a SHORT_CONV                                        */
    int64_t index_dim;             /* of the keys that an indexer scores                                             */
    int64_t state_heads, state_k, state_v; /* state of a GATED_DELTA_RULE or SELECTIVE_SCAN            */
    bool elsewhere; /* another rank has the layer: nothing is ever written here, so that it takes addresses alone  */
} model_layer;

/* A factor for each token's queries that grows with its position. */
typedef enum q_scale_kind {
    Q_SCALE_NONE,
    Q_SCALE_POSITION, /* 1 + beta log(1 + floor(position / span))                                 */
    Q_SCALE_COLUMN,   /* 1 + beta log(1 + floor((column + 1) / span)), columns with padding       */
    Q_SCALE_REAL      /* of no queries: 0 for padding, 1 for other tokens                         */
} q_scale_kind;

typedef struct q_scale_params {
    q_scale_kind kind;
    double beta, span;
} q_scale_params;

/* A table of learnt positions: a token at position p has row p + offset. count 0: the model has none. */
typedef struct learnt_positions {
    int64_t count, offset;
} learnt_positions;

/* Ids whose embedding is not that of the text model's table, but what its tower makes of them. count 0: none. */
typedef struct marked_ids {
    int64_t first, count;
} marked_ids;

/* What the session must know of a model. Owned by the architecture's state. */
typedef struct model_shape {
    int64_t layers, hidden, vocab, max_positions;
    const model_layer *layer;
    rope_params rope[MODEL_ROPES];
    int32_t rope_count;
    q_scale_params q_scale;
    learnt_positions learnt;
    marked_ids marks;
    int64_t padding;      /* the token whose row of the embedding learns nothing; -1: there is none            */
    bool both_sides;      /* tokens see those behind them: all of a text is one call                              */
    bool near_pictures;   /* tokens of a picture see each other in layers with a window alone, which still holds for
                             those before them                                                               */
    bool no_head;         /* there are no logits: the checkpoint is that of a base class                          */
    int states_behind;    /* 1: hidden state i is what layer i gives, not what it is given; 0: as most models */
    int64_t restart_at;   /* the call that gets beyond so many columns computes those before again; 0: none does  */
    const int32_t *owner; /* [layers]: the rank that has it, of stages; NULL: all are here                      */
    struct group *stages;
    const struct multimodal *media; /* what it knows of pictures and sounds (models); NULL: nothing   */
} model_shape;

/* One layer's share of the KV cache, as this call sees it. */
typedef struct run_cache {
    tn_tensor k, v;              /* [B,S,K,D], S positions in use                                         */
    tn_tensor full_k, full_v;    /* [B,C,K,D], where new positions are written                       */
    tn_tensor index, full_index; /* the same of an indexer's keys, [B,S,1,D] and [B,C,1,D]              */
    tn_tensor slot;              /* [B,T] i32: where each new token goes; -1: nowhere                     */
    tn_tensor kv_index;          /* [B,S] i32: which position lies in a slot; -1: none                    */
    int64_t piece;               /* > 0: so many tokens of the call each have a kv_index of their own, [pieces,B,S],
                                    of which kv_index is the first                                        */
    tn_tensor conv;              /* [B,C,F-1]: what a SHORT_CONV goes on with                             */
    tn_tensor state;             /* [B,K,D,Dv] f32: what a GATED_DELTA_RULE or SELECTIVE_SCAN goes on with */
} run_cache;

/* Tokens of a call, from first on in each row, whose keys and states are the same: of a session all of them, of an
 * engine those of one sequence. */
typedef struct run_segment {
    int64_t first, tokens;
    const run_cache *cache; /* per layer                                                             */
} run_segment;

enum { RUN_DEEP = 8 }; /* most layers that are given rows of pictures                              */

/* Rows of pictures and sounds that a call brings in. */
typedef struct run_media {
    tn_tensor features;       /* [n,H]: rows in the place of embeddings                                */
    tn_tensor slot;           /* [1,n] i32: which of the B*T rows each becomes; -1: none of this call     */
    tn_tensor deep[RUN_DEEP]; /* [m+1,H]: rows to add behind layer j, the last of zeros                   */
    tn_tensor deep_row;       /* [B*T] i64: which of them each row gets                                   */
    int32_t deep_count;
} run_media;

typedef struct graph_run {
    const device *device;
    arena *arena;
    tn_dtype dtype;
    int64_t rows, tokens;                         /* B and T of this call                                            */
    tn_tensor ids;                                /* [B*T] i64                                                       */
    int64_t wanted;                               /* rows of result that are read: the last so many tokens, or all T */
    tn_tensor index;                              /* [B,T] i32: position among the row's real tokens; -1: padding    */
    tn_tensor near;                               /* the same, but for tokens of a picture that see each other not
                                                     further from its first one than a window reaches; no data: none */
    tn_tensor cos[MODEL_ROPES], sin[MODEL_ROPES]; /* [B,T,R]                                      */
    tn_tensor q_scale;                            /* [B*T] f32: factor of queries, where the model has one          */
    tn_tensor learnt;                             /* [B*T] i64: rows of a table of learnt positions                  */
    tn_tensor marks;                              /* [n] i64: which of model_shape.marks tokens of this call are    */
    tn_tensor mark_slot;                          /* [1,n] i32: which of the B*T rows each becomes                   */
    tn_tensor mark_rows;                          /* [n,H]: what the model made of them; no rows: nothing             */
    tn_tensor layer_inputs;                       /* [B*T,...]: what layers read beside h, where the model's first
                                                     stage makes such a thing                                      */
    run_segment *segment;                         /* of each token one; narrowed with the run                        */
    int64_t segments;
    tn_tensor chosen; /* i32: the keys that an indexer chose last, [B,T,S] of each segment,
                         where the model's first stage makes room for them              */
    tn_tensor result; /* [B*T,H]: where forward leaves the final norm's output, or of the
                         wanted tokens alone                                             */
    void (*capture)(void *ctx, int64_t index, const tn_tensor *hidden); /* or NULL                */
    void *capture_ctx;
    int64_t captured; /* states below this one have been captured                                     */
    int64_t broken;   /* 1 + the first state in which a NaN or an infinity was seen; 0: none. Looked at where the host
                         reads the device's memory                            */
    tn_status status;
    tn_error *err;
    const run_media *media; /* or NULL: tokens alone                                                  */
    tape *tape;             /* remembers the run, or NULL                                             */
    bool everywhere;        /* while memory is measured: layers of other ranks, too                    */
    /* Called for each MOE_BLOCK and MOE_ROUTE with what it was given; or NULL. */
    void (*routes)(struct graph_run *r, const tn_site *site, const tn_tensor *x);
    void *routes_ctx;
    uint64_t noise;    /* what is dropped follows from it (dropout); 0: nothing is                      */
    int64_t first_row; /* of the run's tokens: what is computed now begins there (dropout)      */
} graph_run;

tn_tensor steps_take(graph_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape);

/* What was taken of the arena since mark is no longer needed: on a tape, where backward may read it, nothing. */
void steps_release(graph_run *r, size_t mark);

/* Performs a call as it is; site NULL: a step. */
void steps_perform(graph_run *r, const graph_site *site, const tn_call *call);
/* The operation of a site of the graph, in as many calls as it takes; and a step between the contracts. */
void steps_site(graph_run *r, const graph_site *site, run_tensors in, run_tensors out);
void steps_step(graph_run *r, tn_op op, const tn_site *site, run_tensors in, run_tensors out);

/* x [rows, features] each. */
tn_tensor steps_embedding(graph_run *r, const tn_site *site, int64_t hidden);
tn_tensor steps_rows(graph_run *r, const tn_site *site, const tn_tensor *ids, int64_t width); /* of a table */
/* How wide what a LINEAR gives is; the parts of all ranks [rows, cut.total] from x [rows, own]. */
int64_t steps_linear_width(const graph_site *site);
tn_tensor steps_join(graph_run *r, const graph_cut *cut, const tn_tensor *x);
void steps_join_into(graph_run *r, const graph_cut *cut, const tn_tensor *part, const tn_tensor *whole); /* dense */
/* x, which is dense, of every rank becomes the sum of all. */
void steps_sum(graph_run *r, const graph_cut *cut, const tn_tensor *x);
tn_tensor steps_linear(graph_run *r, const graph_site *site, const tn_tensor *x);
void steps_linear_into(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y);
tn_tensor steps_norm(graph_run *r, const graph_site *site, const tn_tensor *x); /* any shape, last dim = width */
void steps_norm_in_place(graph_run *r, const graph_site *site, const tn_tensor *x);
/* In place in the host's memory; on a device with its own x becomes another tensor. */
void steps_norm_moving(graph_run *r, const graph_site *site, tn_tensor *x);
void steps_rope_moving(graph_run *r, const graph_site *site, int kind, tn_tensor *q, tn_tensor *k);
/* h += x, then the norm of h: site is the norm's, inside that of the sum where it has one. */
tn_tensor steps_add_norm(graph_run *r, const graph_site *site, const tn_tensor *h, const tn_tensor *x);
void steps_mlp(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y); /* MLP or MOE_BLOCK */
/* A mixture whose router sees other rows than its experts: y = what the experts of routed's rows make of those of x. */
void steps_routed(graph_run *r, const graph_site *route, const tn_tensor *routed, const graph_site *experts,
                  const tn_tensor *x, const tn_tensor *y);
void steps_rope_by(graph_run *r, const graph_site *site, const tn_tensor *q, const tn_tensor *k,
                   const tn_tensor *cosine, const tn_tensor *sine); /* in place, by these tables */
void steps_rope(graph_run *r, const graph_site *site, int kind, const tn_tensor *q, const tn_tensor *k); /* in place */
/* v NULL: k holds it. */
void steps_cache_append(graph_run *r, int64_t layer, const tn_tensor *k, const tn_tensor *v);
tn_tensor steps_attention(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *q);
/* An indexer: k [B,T,1,D] joins the layer's keys, and graph_run.chosen receives those that q [B,T,N,D] and w [B*T,N]
 * choose. steps_attention gives it to sites that take it. */
void steps_choose_keys(graph_run *r, const tn_site *site, int64_t layer, const tn_tensor *q, const tn_tensor *k,
                       const tn_tensor *w);
void steps_chosen_room(graph_run *r);
/* Rows of the table of site, which is a step, by ids and weights [T,k]: into y [T,H]. */
void steps_embedding_bag(graph_run *r, const tn_site *site, const tn_tensor *ids, const tn_tensor *weights,
                         const tn_tensor *y);
/* x [B,T,K,D] to where slot [B,T] says in to [B,C,K,D]. */
void steps_place(graph_run *r, const tn_tensor *x, const tn_tensor *slot, const tn_tensor *to);
/* Every channel of x [lines, places, A] filtered on its own: y. */
void steps_depthwise(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *y);
/* SOFTCAP, ACT, SCALE, CLAMP in place; site: the step's (build_step), NULL: there is none. */
void steps_change(graph_run *r, const tn_site *site, const tn_tensor *x);
void steps_row_scale(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *s); /* rows of x [T,A] */
void steps_add(graph_run *r, const tn_tensor *to, const tn_tensor *x);                           /* to += x */
void steps_copy(graph_run *r, const tn_site *site, const tn_tensor *from, const tn_tensor *to);
/* A GROUPED_MATMUL that is a step; its counts where all groups have as many rows. */
void steps_grouped(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *counts, const tn_tensor *y);
tn_tensor steps_counts(graph_run *r, int64_t groups, int64_t rows);
/* up = act(gate) * up, rows of the last dimension. */
void steps_glu(graph_run *r, const tn_site *site, const tn_tensor *gate, const tn_tensor *up);
/* What STREAM_... steps do with streams x [S,T,A], in place, and the mean of them. */
void steps_stream_mix(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *c);
void steps_stream_add(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *d, const tn_tensor *c);
tn_tensor steps_stream_mean(graph_run *r, const tn_site *site, const tn_tensor *x);
/* Gives the rows of x the root mean square of those of like, in place. */
void steps_rms_match(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *like);
/* Called with what each layer is given, and with the result, ascending; with model_shape.states_behind also with what
 * the last layer gave. The capture sees each once. */
void steps_capture(graph_run *r, int64_t index, const tn_tensor *hidden);

/* Pictures and sounds (steps_media.c): marks and features in the rows of h [B*T,H] that stand for them; rows of table
 * [n,H] by ids [T] i64 to y [T,H]; whether rows are added behind a layer, and adding them. */
void steps_media_embed(graph_run *r, const tn_tensor *h);
void steps_gather(graph_run *r, const tn_tensor *table, const tn_tensor *ids, const tn_tensor *y);
/* The same with ids and f32 weights [T,k]: the sum of weights times rows. */
void steps_gather_sums(graph_run *r, const tn_tensor *table, const tn_tensor *ids, const tn_tensor *weights,
                       const tn_tensor *y);
bool steps_media_deepens(const graph_run *r, int64_t layer);
void steps_media_deepen(graph_run *r, int64_t layer, const tn_tensor *h);

/* Recurrences (steps_recurrent.c), which go on from the layer's states and leave them where the call ends. x [B*T,C] in
 * any rows; v [B,T,K,Dv], q, k [B,T,N,D], a, b [B,T,K] give o [B,T,K,Dv]. */
tn_tensor steps_short_conv(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x);
typedef struct steps_delta {
    tn_tensor v, q, k, a, b;
} steps_delta;
tn_tensor steps_delta_rule(graph_run *r, const graph_site *site, int64_t layer, const steps_delta *in);
/* The same of channels of the layer's state from channel on: of several convolutions. */
tn_tensor steps_short_conv_part(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *x,
                                int64_t channel);
/* x [B,T,K,Dv], b, c [B,T,N,D], dt [B,T,K] give y [B,T,K,Dv]. */
typedef struct steps_scan_inputs {
    tn_tensor x, b, c, dt;
} steps_scan_inputs;
tn_tensor steps_scan(graph_run *r, const graph_site *site, int64_t layer, const steps_scan_inputs *in);
/* x becomes its gated norm. */
void steps_gated_norm(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *gate);
/* Towers (steps_tower.c): what the host has in the arena (host NULL: zeros; nothing into one that measures); and
 * o [B,T,N,Dv] = ATTENTION in which every token of q [B,T,N,D] sees all of its row of k [B,S,K,D] and v [B,S,K,Dv], in
 * calls of as many tokens as a call may have. */
tn_tensor steps_upload(graph_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape, const void *host);
void steps_attend(graph_run *r, const graph_site *site, const tn_tensor *q, const tn_tensor *k, const tn_tensor *v,
                  const tn_tensor *o);

/* The same elements seen with another shape; t must be dense. */
tn_tensor steps_view(const tn_tensor *t, int32_t ndim, const int64_t *shape);

/* From here on the run is about the last `tokens` of its one row alone; rows of x before and behind, [T,...]. What was
 * made of all tokens must be narrowed too. */
void steps_narrow(graph_run *r, int64_t tokens);
tn_tensor steps_last(const tn_tensor *x, int64_t tokens);

/* What has one dimension as a matrix of that many columns whose rows are all the same: [A] as rows, [1] everywhere. */
tn_tensor steps_repeat(const tn_tensor *t, int64_t rows, int64_t columns);

/* count places along an axis of x from begin on, as they lie. */
tn_tensor steps_part(const tn_tensor *x, int axis, int64_t begin, int64_t count);

/* The places of x [B,T,...] that are a segment's. */
tn_tensor steps_segment(const tn_tensor *x, const run_segment *g);

/* count columns of x [rows, width] from begin on, as they lie. */
tn_tensor steps_columns(const tn_tensor *x, int64_t begin, int64_t count);

/* Columns of x [B*T, width] from begin on as heads, [B,T,heads,dim], step columns from one head to the next. */
tn_tensor steps_heads(const graph_run *r, const tn_tensor *x, int64_t begin, int64_t heads, int64_t dim, int64_t step);

#endif
