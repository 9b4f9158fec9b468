/* Tenon: operations. What a place in a model computes: its contract, its meaning, its parameters, and one call of it.
 * Plugins, devices and embedders share these words; core/op/table.c holds the same contracts as data.
 *
 * Rules of the whole interface (ABI 2):
 *  - Every struct that crosses it begins with its size as its author's compiler saw it and only grows at the end; what
 *    the other side does not know counts as zero. A size of 0 is an error. tn_tensor, tn_param, tn_dim_rule,
 *    tn_tolerance and tn_named_tensor are elements of arrays: they have no size and never change within ABI 2.
 *  - [any thread]: may be called from any thread, also at the same time. [one thread]: by one thread at a time for one
 *    object; different objects may be used by different threads. Every function and callback carries one of the two. */
#ifndef TENON_OPERATION_H
#define TENON_OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenon/error.h>
#include <tenon/meaning.h>
#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- contracts --------------------------------------------------------------------------
 * T tokens, H hidden size, I intermediate size, E experts, k experts per token; B batch rows,
 * S cached positions, N query heads, K key/value heads, D head size, R rotary size.
 * dt is the model's dtype (the site's TN_AXIS_DTYPE). The last dimension of every tensor is
 * dense (stride 1); the other strides are arbitrary. Any leading dimension may be 0. in and out
 * are those of tn_call. An optional output has no data where it is not wanted. */
typedef enum tn_op {
    TN_OP_NONE = 0,
    /* in x [..., W], gate [..., W] for the gated variants; out y like x, and may be the same memory.
     * n = x / sqrt(mean(x^2) + eps), in f32; then by variant, see tn_norm. With TN_HAS_GROUPS the mean is that of each
     * of TN_DIM_GROUPS groups of W / groups elements. */
    TN_OP_RMS_NORM = 1,
    /* in h, r [..., W]; out h + r rounded to dt, which may be h's memory, and the norm of that sum. */
    TN_OP_ADD_RMS_NORM = 2,
    /* in q [B,T,N,D], k [B,T,K,D], cos, sin [B or 1,T,R] of dt (f32 for TN_ROPE_COMPLEX and TN_ROPE_HALF_F32);
     * out q', k' like q, k, and may be the same memory. Dimensions R.. of each head pass through. See tn_rope.
     * K is 0, and k empty, where a layer uses the keys of another. */
    TN_OP_ROPE = 3,
    /* in x [T,H]; out y [T,H] = down(act(gate(x)) * up(x)); TN_LAYOUT_UP_DOWN: down(act(up(x))). */
    TN_OP_MLP = 4,
    /* in x [T,H]; out weights [T,k] of dt (f32 with TN_HAS_F32_ROUTING), experts [T,k] i32; optional: logits [T,E] of
     * dt (f32 with TN_HAS_F32_ROUTER), what the scores are made of. The order of what is done to the weights:
     * TN_HAS_RENORM (the sum counts at least TN_NUM_EPS; to that of TN_SCORE_SIGMOID TN_NUM_EPS is added instead, or
     * 1e-20 where it is 0), TN_HAS_EXPERT_SCALE, TN_HAS_ROUTE_SCALE. */
    TN_OP_MOE_ROUTE = 5,
    /* in x [T,H], weights [T,k], experts [T,k] i32; out y [T,H] = sum_j weights_j expert_j(x); with TN_HAS_INPUT_SCALE
     * sum_j expert_j(rnd(weights_j x)). With TN_HAS_BIAS TN_ROLE_GATE_UP_BIAS [E,2I], in the order of the outputs of
     * GATE_UP (gates first where there are two lists), and TN_ROLE_DOWN_BIAS [E,H], whatever the layout. With
     * TN_HAS_ADAPTER each product gets rnd(s B_e A_e z) added that has factors, z what it reads: TN_ROLE_A_OF(GATE_UP)
     * [E r,H], B_OF [2I,r E], or such of GATE and of UP, and A_OF(DOWN) [E q,I], B_OF [H,q E], r TN_DIM_RANK,
     * q TN_DIM_RANK_DOWN; row e r + k of A and column k E + e of B are those of expert e. */
    TN_OP_MOE_EXPERTS = 6,
    /* in x [T,H]; out y [T,H]: route, experts and the shared expert where there is one; optional: logits as MOE_ROUTE.
     */
    TN_OP_MOE_BLOCK = 7,
    /* in x [T',in] sorted by group, counts [E] i64 (rows of each group, zeros allowed); out y [T',out].
     * TN_ROLE_WEIGHT: by layout [E,out,in], [E,in,out], or E matrices [out,in] or [in,out]. */
    TN_OP_GROUPED_MATMUL = 8,
    /* in x [T,in]; out y [T,out] = x weight^T + bias. */
    TN_OP_LINEAR = 9,
    /* in q [B,T,N,D], k [B,S,K,D], v [B,S,K,Dv], q_index [B,T] i32, kv_index [B,S] i32; out o
     * [B,T,N,Dv]. Key s is seen by query t when 0 <= kv_index[s] <= q_index[t] and, with a
     * window W, q_index[t] - kv_index[s] < W, with a chunk C, q_index[t] / C = kv_index[s] / C. With
     * TN_HAS_BOTH_SIDES it is, when both are at least 0, whichever of them is the larger, with a window
     * |q_index[t] - kv_index[s]| < W. A query that sees nothing gives zeros. With TN_HAS_ALIBI the score of a key at
     * position p is rnd(scale q k + a b): a TN_NUM_ALPHA, b = rnd(m p) with m the head's slope (TN_ROLE_DECAY [N], f32
     * or bf16), p and m p in the slopes' type; behind a softcap, which is of scale q k alone. With TN_HAS_CHOSEN_KEYS
     * also in chosen [B,T,S] i32, 0 where a key is not seen. */
    TN_OP_ATTENTION = 10,
    /* in x [..., W]; out y like x, and may be the same memory: rnd((x - mean) / sqrt(var + eps) * w (+ b)), where mean
     * and var are those of the row, in f32. TN_ROLE_WEIGHT, TN_ROLE_BIAS [W]. */
    TN_OP_LAYER_NORM = 14,
    /* in x [B,T,C], state [B,C,F-1], index [B,T] i32; out y [B,T,C], state' like state; both may be the memory of x and
     * state. A causal filter of each channel: with e the state's inputs and then those of the row's real tokens,
     * y_j = act(rnd(sum_m w_m e_{j+m} (+ b))), the sum in f32; state' holds the last F-1 of e. A token whose index is
     * < 0 is padding: it takes no part and gives zeros. C TN_DIM_WIDTH, F TN_DIM_TAPS; TN_ROLE_WEIGHT [C,F],
     * TN_ROLE_BIAS [C]. */
    TN_OP_SHORT_CONV = 15,
    /* in v [B,T,K,Dv], state [B,K,D,Dv] f32, q, k [B,T,N,D], a, b [B,T,K], index [B,T] i32; out o like v, state' like
     * state; both may be the memory of v and state. N key heads, K value heads, a multiple of N: value head h has the
     * query and key of head h / (K / N). For each real token (index >= 0), in f32, M the state of a value head:
     *     q = q / sqrt(|q|^2 + 1e-6) / sqrt(D), k = k / sqrt(|k|^2 + 1e-6),
     *     g = -exp(TN_ROLE_DECAY) softplus(a + TN_ROLE_BIAS), beta = rnd(sigmoid(b)),
     *     M = e^g M, d = beta (v - M^T k), M = M + k d^T, o = rnd(M^T q).
     * With TN_HAS_CHANNEL_DECAY a is [B,T,K,D], TN_ROLE_BIAS [K,D], and g has an element for each row of M. Padding
     * takes no part and gives zeros. Taking tokens in chunks (docs/writing-a-kernel.md) is the same within
     * rounding. TN_ROLE_DECAY, TN_ROLE_BIAS [K] of any float type. */
    TN_OP_GATED_DELTA_RULE = 11,
    /* in x [B,T,K,Dv], state [B,K,D,Dv] f32, b, c [B,T,N,D], dt [B,T,K], index [B,T] i32; out y like x, with
     * TN_HAS_F32_RESULT in f32 whatever that is, state' like state; an output may be the memory of the input of its
     * number where they have one type. N groups, K heads, a multiple of N: head h has the b and c of group
     * h / (K / N). For each real token (index >= 0), M the state of a head, all in f32 but for what rnd says:
     *     s = rnd(softplus(rnd(dt + TN_ROLE_BIAS))), with TN_HAS_STEP_LIMITS within TN_NUM_LEAST .. TN_NUM_LIMIT,
     *     M = e^(-exp(TN_ROLE_DECAY) s) M + b (s x)^T, y = rnd(M^T c + TN_ROLE_WEIGHT x).
     * Padding takes no part and gives zeros. TN_ROLE_DECAY, TN_ROLE_BIAS, TN_ROLE_WEIGHT [K] of any float type. */
    TN_OP_SELECTIVE_SCAN = 16,
    /* in x [T,in], with TN_HAS_DROPOUT key [2] i64; out y [T,out] = rnd(rnd(x weight^T + bias) + s B (A d(x))), where s
     * is TN_NUM_SCALE, A [r,in] TN_ROLE_A_OF(TN_ROLE_WEIGHT), B [out,r] TN_ROLE_B_OF(TN_ROLE_WEIGHT), r TN_DIM_RANK.
     * A and B are of one type, in which s A d(x) and B of that are rounded; with TN_HAS_ROUNDED_FACTORS all that in dt,
     * A and B rounded to it. d(x) is x; with TN_HAS_DROPOUT, where key has data, each element of x is 0 with
     * probability p, TN_NUM_DROPOUT, and divided by 1 - p else: element i of row t is kept where bits 40 to 63 of
     * mix(key[0] + 0x9e3779b97f4a7c15 (1 + (key[1] + t) in + i)) are at least p 2^24, mix(z): z = (z ^ z >> 30)
     * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) 0x94d049bb133111eb, z ^ z >> 31 (unsigned, 64 bits). */
    TN_OP_LORA_LINEAR = 17,
    /* Named for later: nothing performs these yet, and kernels for them are refused. */
    TN_OP_ATTENTION_LAYER = 12,
    TN_OP_DECODER_LAYER = 13,
    /* Contracts are below, steps between the contracts from here on. Devices perform steps; kernels do not match them.
     */
    TN_OP_FIRST_STEP = 64,
    TN_OP_EMBEDDING = 64,     /* in ids [T] i64; out [T,H]; with TN_HAS_PARTIAL an id beyond the table counts as 0 */
    TN_OP_ADD = 65,           /* in a, b; out a + b rounded to dt; may alias                      */
    TN_OP_GLU = 66,           /* in gate, up [T,I]; out act(gate) * up; may alias; a gate's strides may be 0 */
    TN_OP_CACHE_APPEND = 67,  /* in x [B,T,K,D], slot [B,T] i32 (< 0: drop); out cache [B,C,K,D]   */
    TN_OP_SOFTCAP = 68,       /* in x; out c tanh(x / c), c TN_NUM_SOFTCAP, each step rounded; may alias */
    TN_OP_ACT = 69,           /* in x; out act(x), act TN_AXIS_ACT; may alias                      */
    TN_OP_SCALE = 70,         /* in x; out x times TN_NUM_SCALE, one rounding; may alias           */
    TN_OP_CLAMP = 71,         /* in x; out x within -L .. L, L TN_NUM_LIMIT, or as TN_HAS_STEP_LIMITS says; may alias */
    TN_OP_COPY = 72,          /* in x; out x with other strides                                    */
    TN_OP_ROW_SCALE = 73,     /* in x [T,A], s [T] f32; out each row times its s, one rounding; may alias */
    TN_OP_EMBEDDING_BAG = 74, /* in ids [T,k] i64, weights [T,k] f32, k TN_DIM_TOP_K; out [T,H]: the sum of weights
                                times rows of the table, in f32, one rounding                      */
    /* S streams x [S,T,A]; coefficients c of each token; each step rounded; out may be x. */
    TN_OP_STREAM_MIX = 80,  /* in x, c [T,S*S]; out x_j + sum_i c[j*S+i] x_i                       */
    TN_OP_STREAM_ADD = 81,  /* in x, d [T,A], c [T,S]; out x_j + d (1 + c_j)                       */
    TN_OP_STREAM_MEAN = 82, /* in x; out [T,A]                                                   */
    TN_OP_CHOOSE_KEYS = 84, /* in q [B,T,N,D], k [B,S,1,D], w [B,T,N], q_index, kv_index as ATTENTION; out chosen
                               [B,T,S] i32: 1 for the TN_DIM_TOP_K keys s, of those that query t sees, with the largest
                               sum_n w_n max(0, q_n k_s), in f32; 0 for the others                */
    /* in x [S,T,A], lines of places; out y [S',T',A] of each g-th line and place, g TN_DIM_STRIDE: each channel
     * filtered by its own square of f by f weights, f TN_DIM_TAPS, TN_ROLE_WEIGHT [f*f,A], the sum in f32. x has zeros
     * around it, as many as the squares of y reach, of an odd number one more behind than before. */
    TN_OP_DEPTHWISE = 85,
    TN_OP_RMS_MATCH = 83 /* in x, like [T,A]; out rows of x with the root mean square of those of like, as if
                            that of x were at least sqrt(TN_NUM_EPS); may alias               */
} tn_op;

/* count tensors of one role: 0, 1, or one per expert. Borrowed from the model, read-only. */
typedef struct tn_param {
    const tn_tensor *tensors;
    int64_t count;
} tn_param;

/* ---- a place and a call of it ------------------------------------------------------------- */

/* One place of a model graph that performs one operation. Owned by the model; constant. The host has checked that it
 * has every parameter that its operation, layout and features ask for, with the right shape, dense along the last
 * dimension: kernels need not look again. */
typedef struct tn_site {
    uint32_t size;
    tn_op op;
    const char *path;       /* "model.layers.0.mlp", "modeling_qwen3.apply_rotary_pos_emb"     */
    const char *class_name; /* "Qwen3MLP"; "function" for a function of a scope               */
    const char *model_type; /* "qwen3"                                                        */
    int32_t meaning[TN_AXIS_MAX];
    uint64_t features; /* TN_HAS_...                                                          */
    int64_t dim[TN_DIM_MAX];
    double num[TN_NUM_MAX];
    tn_param param[TN_ROLE_MAX];
} tn_site;

/* What plan decides for one site; the host provides what it names. */
typedef struct tn_plan {
    uint32_t size;
    int32_t threads;               /* in: most threads of a call                               */
    int64_t max_tokens;            /* in: most tokens of a call                                */
    size_t scratch_bytes;          /* out: memory of each call, 64-byte aligned, contents undefined */
    size_t backward_scratch_bytes; /* out: the scratch of each backward call                  */
    size_t packed_bytes;           /* out: memory that pack fills once                        */
    uint64_t user[8];              /* out: the kernel's notes for pack and forward             */
} tn_plan;

/* Where the work of a device is lined up: made by the device that open()ed it, and known to its kernels alone. NULL
 * where a device needs none, such as the CPU. */
typedef struct tn_queue tn_queue;

#define TN_CALL_TENSORS 8

/* Gradients of one backward call (L is what is differentiated). Each is of the shape and dtype of the tensor that it
 * belongs to and dense along its last dimension; the other strides are arbitrary. Sums are formed in f32 and rounded
 * once; their order depends on shapes alone. Gradients are overwritten, not added to. */
typedef struct tn_grads {
    uint32_t size;
    tn_tensor out[TN_CALL_TENSORS]; /* read: dL/d(output i); data NULL: zeros                    */
    tn_tensor in[TN_CALL_TENSORS];  /* written: dL/d(input i); data NULL: not wanted. It may be the memory
                                       of out[i] where the operation's outputs may be those of its inputs */
    tn_param param[TN_ROLE_MAX];    /* written: dL/d(parameter), count tensors or 0: not wanted  */
} tn_grads;

/* One call of an operation. The structs and arrays that it names are borrowed for the duration of the call, so work
 * that waits in a queue copies what it needs of them; the memory of its tensors, scratch and packed stays until that
 * work is done. In a backward call in holds the inputs of forward and out is not used: what backward needs of the
 * results it computes again. (ROPE's backward does not read q and k: their data may be NULL.) */
typedef struct tn_call {
    uint32_t size;
    tn_op op;
    const tn_site *site;
    const tn_plan *plan;   /* NULL for eager operations                                         */
    const void *packed;    /* what pack filled, or NULL                                         */
    void *scratch;         /* plan->scratch_bytes                                               */
    tn_queue *queue;       /* of the model's device                                             */
    const tn_grads *grads; /* backward; NULL in forward                                       */
    int32_t in_count, out_count;
    tn_tensor in[TN_CALL_TENSORS];
    tn_tensor out[TN_CALL_TENSORS];
} tn_call;

/* As reports print it: "RMS_NORM"; "?" when unknown. Static storage. [any thread] */
TN_API const char *tn_op_name(tn_op op);

#ifdef __cplusplus
}
#endif
#endif
