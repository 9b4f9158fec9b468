/* Tenon: meaning. The words in which a place of a model says what it is, beside the operation that it performs: axes
 * with one value each, features, dimensions, numbers, and the roles of its parameters. */
#ifndef TENON_MEANING_H
#define TENON_MEANING_H

#include <stdint.h>
#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A site says what it means along these axes; 0 means that the axis does not apply to it.
 * A kernel says, per axis, the set of values it takes (kernel.h). Values are below 64. */
typedef enum tn_axis {
    TN_AXIS_DTYPE = 0,  /* tn_dtype of activations                                            */
    TN_AXIS_WEIGHT = 1, /* tn_dtype of weights                                                */
    TN_AXIS_NORM = 2,   /* tn_norm                                                            */
    TN_AXIS_ROPE = 3,   /* tn_rope                                                            */
    TN_AXIS_ACT = 4,    /* tn_act                                                             */
    TN_AXIS_SCORE = 5,  /* tn_score                                                           */
    TN_AXIS_LAYOUT = 6, /* tn_layout                                                          */
    TN_AXIS_MAX = 16
} tn_axis;

typedef enum tn_norm {
    TN_NORM_W = 1,      /* y = rnd(rnd(n) * w): two roundings                                */
    TN_NORM_1_PLUS_W,   /* y = rnd(n * (1 + w)), the sum and product in f32                  */
    TN_NORM_W_F32,      /* y = rnd(n * w), product in f32                                    */
    TN_NORM_W_GATED,    /* y = rnd(rnd(rnd(n) * w) * silu(gate)), gate in f32                */
    TN_NORM_NO_WEIGHT,  /* y = rnd(n)                                                       */
    TN_NORM_GATED_W,    /* y = rnd(n * w), n that of x * silu(gate), all in f32             */
    TN_NORM_W_GATED_F32 /* y = rnd(n * w * silu(gate)), all in f32                         */
} tn_norm;

typedef enum tn_rope {
    TN_ROPE_HALF = 1,      /* pairs (i, i + R/2): rnd(rnd(x * cos) + rnd(rot(x) * sin))         */
    TN_ROPE_HALF_NARROW,   /* the same with tables of width R/2                                */
    TN_ROPE_INTERLEAVED,   /* pairs (2i, 2i + 1), tables as TN_ROPE_HALF; angle i of the first half */
    TN_ROPE_COMPLEX,       /* pairs (2i, 2i + 1) in f32, one rounding                          */
    TN_ROPE_DEINTERLEAVED, /* pairs (2i, 2i + 1) in, (i, i + R/2) out                          */
    TN_ROPE_HALF_F32       /* pairs (i, i + R/2) in f32, one rounding (vision towers)          */
} tn_rope;

typedef enum tn_act {
    TN_ACT_SILU = 1,
    TN_ACT_GELU_TANH, /* gelu_pytorch_tanh                                                    */
    TN_ACT_GELU,      /* with erf                                                             */
    TN_ACT_RELU,
    TN_ACT_RELU2,
    TN_ACT_RELU6,
    TN_ACT_QUICK_GELU,
    TN_ACT_GELU_NEW, /* the tanh form, rounded step by step                                   */
    TN_ACT_SIGMOID,
    TN_ACT_TANH,
    TN_ACT_LINEAR,
    TN_ACT_MISH,
    TN_ACT_CLAMPED_SWIGLU, /* experts: min(gate, L) sigmoid(A min(gate, L)) (clamp(up, -L, L) + 1),
                             L TN_NUM_LIMIT, A TN_NUM_ALPHA; of gate and up together            */
    TN_ACT_HARD_SWISH,     /* x min(max(x + 3, 0), 6) / 6                                          */
    TN_ACT_LEAKY_RELU,     /* x, below 0 a hundredth of it                                         */
    TN_ACT_LAPLACE,        /* (1 + erf((x - 0.707107) / (0.282095 sqrt(2)))) / 2, rounded step by step */
    TN_ACT_GELU_10,        /* TN_ACT_GELU, at most 10                                              */
    TN_ACT_SQRT_SOFTPLUS,  /* sqrt(rnd(log(1 + e^x)))                                              */
    TN_ACT_XIELU,          /* MLP of layout UP_DOWN: A x x + B x for x > 0, else N (e^min(x, E) - 1 - x) + B x,
                              A TN_NUM_ALPHA, N TN_NUM_ALPHA_N, B TN_NUM_BETA, E TN_NUM_EPS; rounded step by step */
    TN_ACT_PRELU           /* MLP: x, below 0 A x, A TN_NUM_ALPHA                                  */
} tn_act;

typedef enum tn_score {
    TN_SCORE_SOFTMAX = 1,  /* softmax over all experts in f32, then the k best                 */
    TN_SCORE_SIGMOID,      /* sigmoid per expert, the k best by score + correction bias        */
    TN_SCORE_TOPK_SOFTMAX, /* the k best logits, then softmax over those                       */
    TN_SCORE_TOPK_SIGMOID, /* the k best logits, then sigmoid of each                          */
    TN_SCORE_SPARSEMIXER   /* k times the best logit m of those not chosen yet, whose weight is its softmax over these,
                              without the logits l that have (m - l) / max(|l|, m) > TN_NUM_MARGIN              */
} tn_score;

typedef enum tn_layout {
    TN_LAYOUT_SPLIT = 1,   /* MLP: TN_ROLE_GATE, UP [I,H], DOWN [H,I]                          */
    TN_LAYOUT_GATE_UP,     /* MLP: TN_ROLE_GATE_UP [2I,H], gate rows first; DOWN              */
    TN_LAYOUT_UP_GATE,     /* MLP: the same, up rows first                                    */
    TN_LAYOUT_EXPERT_LIST, /* experts: GATE, UP, DOWN as in SPLIT, one tensor per expert      */
    TN_LAYOUT_STACKED_OI,  /* experts: GATE_UP [E,2I,H], DOWN [E,H,I]                         */
    TN_LAYOUT_STACKED_IO,  /* experts: GATE_UP [E,H,2I], DOWN [E,I,H]                         */
    TN_LAYOUT_LIST_IO,     /* GROUPED_MATMUL only: one [in,out] per group                     */
    TN_LAYOUT_UP_DOWN,     /* MLP without a gate: UP [I,H], DOWN [H,I]; down(act(up(x)))      */
    TN_LAYOUT_PAIRS_IO     /* experts: as STACKED_IO, columns gate 0, up 0, gate 1, up 1, ... */
} tn_layout;

/* What a site has beyond the plain case. A kernel that lists a feature handles sites with and
 * without it; a site with a feature that the kernel does not list is declined. */
#define TN_HAS_BIAS (UINT64_C(1) << 0)            /* LINEAR, LAYER_NORM, SHORT_CONV; MLP, experts: on every product */
#define TN_HAS_RENORM (UINT64_C(1) << 1)          /* route: the k weights are divided by their sum */
#define TN_HAS_SHARED_EXPERT (UINT64_C(1) << 2)   /* block: an MLP added for every token      */
#define TN_HAS_SHARED_GATE (UINT64_C(1) << 3)     /* ... times sigmoid(shared gate(x))        */
#define TN_HAS_CORRECTION_BIAS (UINT64_C(1) << 4) /* route: added for choosing only           */
#define TN_HAS_GROUPS (UINT64_C(1) << 5)          /* route: only the best groups take part; norm: TN_DIM_GROUPS */
#define TN_HAS_ROUTE_SCALE (UINT64_C(1) << 6)     /* route: weights times TN_NUM_SCALE        */
#define TN_HAS_F32_ROUTING (UINT64_C(1) << 7)     /* route: weights stay f32                  */
#define TN_HAS_F32_ROUTER (UINT64_C(1) << 8)      /* route: logits in f32 whatever the dtype  */
#define TN_HAS_SPARSITY (UINT64_C(1) << 9)        /* MLP: Gaussian top-k before the activation */
#define TN_HAS_PARTIAL (UINT64_C(1) << 10)        /* rope: R < D; EMBEDDING: not every id has a row */
#define TN_HAS_MROPE (UINT64_C(1) << 11)          /* rope: tables merged from three axes      */
#define TN_HAS_WINDOW (UINT64_C(1) << 12)         /* attention: TN_DIM_WINDOW                 */
#define TN_HAS_SOFTCAP (UINT64_C(1) << 13)        /* attention: TN_NUM_SOFTCAP                */
#define TN_HAS_SINKS (UINT64_C(1) << 14)          /* attention: TN_ROLE_SINKS                 */
#define TN_HAS_SCALES (UINT64_C(1) << 15)         /* a parameter has scales: TN_ROLE_SCALE_OF  */
#define TN_HAS_ZERO_POINTS (UINT64_C(1) << 16)    /* ... and zero points: TN_ROLE_ZERO_OF      */
#define TN_HAS_INPUT_SCALE (UINT64_C(1) << 17)    /* experts: weights are factors of their inputs */
#define TN_HAS_EXPERT_SCALE (UINT64_C(1) << 18)   /* route: weights times TN_ROLE_EXPERT_SCALE */
#define TN_HAS_CHUNK (UINT64_C(1) << 19)          /* attention: within TN_DIM_CHUNK            */
#define TN_HAS_SHARED_BIAS (UINT64_C(1) << 20)    /* block: on every product of the shared expert */
#define TN_HAS_GROUP_PAIRS (UINT64_C(1) << 21)    /* route: groups are ranked by their two best, not by the best */
#define TN_HAS_MIXED (UINT64_C(1) << 22)          /* weights are of several types: see each parameter  */
#define TN_HAS_BOTH_SIDES (UINT64_C(1) << 23)     /* attention: keys behind a query are seen, too      */
#define TN_HAS_ALIBI (UINT64_C(1) << 24)          /* attention: keys' positions count: TN_ROLE_DECAY   */
#define TN_HAS_CHANNEL_DECAY (UINT64_C(1) << 25)  /* GATED_DELTA_RULE: each channel of a key forgets at its own rate */
#define TN_HAS_CHOSEN_KEYS (UINT64_C(1) << 26)    /* attention: an input says which keys take part    */
#define TN_HAS_STEP_LIMITS (UINT64_C(1) << 27)    /* scan: steps; CLAMP: within TN_NUM_LEAST .. TN_NUM_LIMIT */
#define TN_HAS_F32_RESULT (UINT64_C(1) << 28)     /* scan: y is f32 and not rounded                    */
#define TN_HAS_ADAPTER (UINT64_C(1) << 29)        /* experts: TN_ROLE_A_OF, B_OF; MLP, block: inside it   */
#define TN_HAS_DROPOUT (UINT64_C(1) << 30)        /* LORA_LINEAR: an input says what A does not see     */
#define TN_HAS_ROUNDED_FACTORS                                                                                         \
    (UINT64_C(1) << 31) /* LORA_LINEAR: A and B are rounded to the dtype, as under autocast */
/* rope: what follows hangs on its roundings. No kernel lists it: of 16 bits those take it whose tolerance is 0 there.
 */
#define TN_HAS_ROUNDINGS (UINT64_C(1) << 32)

typedef enum tn_dim {
    TN_DIM_WIDTH = 0,    /* norm: elements of a row; SHORT_CONV: channels                 */
    TN_DIM_HIDDEN = 1,   /* H; LINEAR: in                                                 */
    TN_DIM_INTER = 2,    /* I, of one expert where there are experts                      */
    TN_DIM_OUT = 3,      /* LINEAR: out                                                   */
    TN_DIM_HEAD = 4,     /* D                                                             */
    TN_DIM_ROTARY = 5,   /* R                                                             */
    TN_DIM_Q_HEADS = 6,  /* N                                                             */
    TN_DIM_KV_HEADS = 7, /* K                                                             */
    TN_DIM_EXPERTS = 8,  /* E                                                             */
    TN_DIM_TOP_K = 9,    /* k                                                             */
    TN_DIM_SHARED_INTER = 10,
    TN_DIM_GROUPS = 11,
    TN_DIM_TOP_GROUPS = 12,
    TN_DIM_WINDOW = 13,
    TN_DIM_HEAD_V = 14,
    TN_DIM_CHUNK = 15,     /* attention: keys of other chunks of this many positions are not seen  */
    TN_DIM_TAPS = 16,      /* SHORT_CONV: width of the filter; DEPTHWISE: its sides                */
    TN_DIM_STREAMS = 17,   /* of residuals                                                        */
    TN_DIM_STRIDE = 18,    /* DEPTHWISE: places of x from one of y to the next                     */
    TN_DIM_RANK = 19,      /* LORA_LINEAR: of A and B; experts with TN_HAS_ADAPTER: of what is beside gate and up */
    TN_DIM_RANK_DOWN = 20, /* ... beside down                                                   */
    TN_DIM_MAX = 32
} tn_dim;

typedef enum tn_num {
    TN_NUM_EPS = 0,   /* norm; 0 is legal; TN_ACT_XIELU                                     */
    TN_NUM_SCALE = 1, /* attention: factor of the scores; route: factor of the weights; LORA_LINEAR: of B A */
    TN_NUM_SOFTCAP = 2,
    /* MLP: gates not above mean + this * (population) deviation of their row become 0: the
     * standard normal quantile of the fraction that config.json names.                      */
    TN_NUM_SPARSITY = 3,
    TN_NUM_LIMIT = 4,       /* TN_ACT_CLAMPED_SWIGLU; CLAMP; TN_HAS_STEP_LIMITS                      */
    TN_NUM_ALPHA = 5,       /* TN_ACT_CLAMPED_SWIGLU, TN_ACT_XIELU, TN_ACT_PRELU; TN_HAS_ALIBI       */
    TN_NUM_ALPHA_N = 6,     /* TN_ACT_XIELU                                                        */
    TN_NUM_BETA = 7,        /* TN_ACT_XIELU                                                        */
    TN_NUM_MARGIN = 8,      /* TN_SCORE_SPARSEMIXER                                                */
    TN_NUM_LEAST = 9,       /* TN_HAS_STEP_LIMITS                                                  */
    TN_NUM_DROPOUT = 10,    /* TN_HAS_DROPOUT: what share                                       */
    TN_NUM_SCALE_DOWN = 11, /* experts with TN_HAS_ADAPTER: of B A beside down; TN_NUM_SCALE: beside gate and up */
    TN_NUM_MAX = 16
} tn_num;

/* Which parameter of a site a tensor is. Scales and zero points of quantised weights have roles of their own, 32 and 64
 * above that of the weight, and where groups of columns are scattered so has the group of each column.
 *
 * A quantised weight [out,in] means (code - zero) * scale. Scales are [out,groups] of f32, bf16, f16, F8_E4M3 or
 * F8_E8M0, a row's stride 0 where all rows share one; zero points are [out,groups] of the codes' type (U8 for U4),
 * absent 8 for U4 and 0 for others; of E2M1 it is f32 [1], which scales are divided by. A group is of in columns where
 * there is one of them, else of the 2^n columns, n the least, that give so many groups; or of those that
 * TN_ROLE_GROUP_OF names. */
typedef enum tn_role {
    TN_ROLE_WEIGHT = 0,
    TN_ROLE_BIAS = 1,
    TN_ROLE_GATE = 2,
    TN_ROLE_UP = 3,
    TN_ROLE_DOWN = 4,
    TN_ROLE_GATE_UP = 5,
    TN_ROLE_GATE_BIAS = 6,
    TN_ROLE_UP_BIAS = 7,
    TN_ROLE_DOWN_BIAS = 8,
    TN_ROLE_GATE_UP_BIAS = 9,
    TN_ROLE_ROUTER = 10, /* [E,H]                                                             */
    TN_ROLE_ROUTER_BIAS = 11,
    TN_ROLE_CORRECTION_BIAS = 12,
    TN_ROLE_SHARED_GATE = 13, /* [Is,H]                                                       */
    TN_ROLE_SHARED_UP = 14,
    TN_ROLE_SHARED_DOWN = 15,
    TN_ROLE_SHARED_EXPERT_GATE = 16, /* [1,H]                                                 */
    TN_ROLE_SINKS = 17,              /* [N]                                                   */
    TN_ROLE_EXPERT_SCALE = 18,       /* [E]                                                   */
    TN_ROLE_SHARED_GATE_BIAS = 19,   /* [Is]                                                  */
    TN_ROLE_SHARED_UP_BIAS = 20,
    TN_ROLE_SHARED_DOWN_BIAS = 21, /* [H]                                                     */
    TN_ROLE_DECAY =
        22, /* GATED_DELTA_RULE, SELECTIVE_SCAN: [K], log of the rate of forgetting; TN_HAS_ALIBI: [N], slopes */
    TN_ROLE_FIRST_GROUP = 23, /* [in] i32, the group of each column; see TN_ROLE_GROUP_OF  */
    TN_ROLE_FIRST_SCALE = 32,
    TN_ROLE_FIRST_ZERO = 64,
    TN_ROLE_MAX = 96
} tn_role;

#define TN_ROLE_SCALE_OF(role) ((tn_role)(TN_ROLE_FIRST_SCALE + (int)(role)))
#define TN_ROLE_ZERO_OF(role) ((tn_role)(TN_ROLE_FIRST_ZERO + (int)(role)))
/* The two factors of what an adapter adds to a weight. */
#define TN_ROLE_A_OF(role) ((tn_role)(49 + (int)(role)))
#define TN_ROLE_B_OF(role) ((tn_role)(81 + (int)(role)))
/* 23 to 30: of WEIGHT, GATE, UP, DOWN, GATE_UP, SHARED_GATE, SHARED_UP, SHARED_DOWN; no other weight has any. */
#define TN_ROLE_GROUP_OF(role)                                                                                         \
    ((tn_role)((int)(role) + TN_ROLE_FIRST_GROUP -                                                                     \
               ((int)(role) >= TN_ROLE_SHARED_GATE ? 8                                                                 \
                : (int)(role) >= TN_ROLE_GATE      ? 1                                                                 \
                                                   : 0)))

/* ---- names ------------------------------------------------------------------------------------ */

/* As reports print them: "act", "silu", "hidden", "bias", "gate_up", ...; "?" when unknown. Static storage. [any
 * thread] */
TN_API const char *tn_axis_name(tn_axis axis);
TN_API const char *tn_axis_value_name(tn_axis axis, int32_t value);
TN_API const char *tn_dim_name(tn_dim dim);
TN_API const char *tn_num_name(tn_num num);
TN_API const char *tn_feature_name(uint64_t bit);
TN_API const char *tn_role_name(tn_role role);

#ifdef __cplusplus
}
#endif
#endif
