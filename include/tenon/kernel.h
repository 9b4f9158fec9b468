/* Tenon: what an author of kernels includes. A plugin is a shared library whose constructor
 * hands one constant tn_plugin to the host; docs/writing-a-kernel.md walks through one.
 *
 * Every struct that crosses this boundary begins with its size as its author's compiler saw it
 * and only ever grows at the end: what the other side does not know counts as zero. */
#ifndef TENON_KERNEL_H
#define TENON_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenon/error.h>
#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Majors must be equal. A plugin names the lowest minor that it needs, 0 unless it defines
 * TN_ABI_NEEDED before including this header. */
#define TN_ABI_MAJOR 1
#define TN_ABI_MINOR 1
#ifndef TN_ABI_NEEDED
#define TN_ABI_NEEDED 0
#endif

typedef enum tn_device_kind { TN_DEVICE_NONE = 0, TN_DEVICE_CPU = 1, TN_DEVICE_NPU = 2 } tn_device_kind;

/* ---- operations -------------------------------------------------------------------------
 * T tokens, H hidden size, I intermediate size, E experts, k experts per token; B batch rows,
 * S cached positions, N query heads, K key/value heads, D head size, R rotary size.
 * dt is the model's dtype (the site's TN_AXIS_DTYPE). The last dimension of every tensor is
 * dense (stride 1); the other strides are arbitrary. in and out are those of tn_call. */
typedef enum tn_op {
    TN_OP_NONE = 0,
    /* in x [..., W], gate [..., W] for TN_NORM_W_GATED; out y like x, and may be the same memory.
     * n = x / sqrt(mean(x^2) + eps), in f32; then by variant, see tn_norm. */
    TN_OP_RMS_NORM = 1,
    /* in h, r [..., W]; out h + r rounded to dt, which may be h's memory, and the norm of that sum. */
    TN_OP_ADD_RMS_NORM = 2,
    /* in q [B,T,N,D], k [B,T,K,D], cos, sin [B or 1,T,R]; out q', k' like q, k, and may be the
     * same memory. Dimensions R.. of each head pass through. See tn_rope. */
    TN_OP_ROPE = 3,
    /* in x [T,H]; out y [T,H] = down(act(gate(x)) * up(x)). */
    TN_OP_MLP = 4,
    /* in x [T,H]; out weights [T,k] of dt (f32 with TN_HAS_F32_ROUTING), experts [T,k] i32. */
    TN_OP_MOE_ROUTE = 5,
    /* in x [T,H], weights [T,k], experts [T,k] i32; out y [T,H] = sum_j weights_j expert_j(x). */
    TN_OP_MOE_EXPERTS = 6,
    /* in x [T,H]; out y [T,H]: route, experts and the shared expert where there is one. */
    TN_OP_MOE_BLOCK = 7,
    /* in x [T',in] sorted by group, counts [E] i64 (rows of each group, zeros allowed); out y [T',out].
     * TN_ROLE_WEIGHT: by layout [E,out,in], [E,in,out], or E matrices [out,in] or [in,out]. */
    TN_OP_GROUPED_MATMUL = 8,
    /* in x [T,in]; out y [T,out] = x weight^T + bias. */
    TN_OP_LINEAR = 9,
    /* in q [B,T,N,D], k [B,S,K,D], v [B,S,K,Dv], q_index [B,T] i32, kv_index [B,S] i32; out o
     * [B,T,N,Dv]. Key s is seen by query t when 0 <= kv_index[s] <= q_index[t] and, with a
     * window W, q_index[t] - kv_index[s] < W. A query that sees nothing gives zeros. */
    TN_OP_ATTENTION = 10,
    TN_OP_GATED_DELTA_RULE = 11,
    TN_OP_ATTENTION_LAYER = 12,
    TN_OP_DECODER_LAYER = 13,
    TN_OP_CONTRACT_COUNT = 14,
    /* Steps between the contracts. Devices perform them; kernels do not match them. */
    TN_OP_EMBEDDING = 64,    /* in ids [T] i64; out [T,H]                                        */
    TN_OP_ADD = 65,          /* in a, b; out a + b rounded to dt; may alias                      */
    TN_OP_GLU = 66,          /* in gate, up [T,I]; out act(gate) * up; may alias                 */
    TN_OP_CACHE_APPEND = 67, /* in x [B,T,K,D], slot [B,T] i32 (< 0: drop); out cache [B,C,K,D]   */
    TN_OP_SOFTCAP = 68       /* in x; out c tanh(x / c), c TN_NUM_SOFTCAP, each step rounded; may alias */
} tn_op;

/* ---- meaning ----------------------------------------------------------------------------
 * A site says what it means along these axes; 0 means that the axis does not apply to it.
 * A kernel says, per axis, the set of values it takes. */
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
    TN_NORM_W = 1,    /* y = rnd(rnd(n) * w): two roundings                                */
    TN_NORM_1_PLUS_W, /* y = rnd(n * (1 + w)), the sum and product in f32                  */
    TN_NORM_W_F32,    /* y = rnd(n * w), product in f32                                    */
    TN_NORM_W_GATED,  /* y = rnd(rnd(rnd(n) * w) * silu(gate)), gate in f32                */
    TN_NORM_NO_WEIGHT /* y = rnd(n)                                                        */
} tn_norm;

typedef enum tn_rope {
    TN_ROPE_HALF = 1,     /* pairs (i, i + R/2): rnd(rnd(x * cos) + rnd(rot(x) * sin))         */
    TN_ROPE_HALF_NARROW,  /* the same with tables of width R/2                                */
    TN_ROPE_INTERLEAVED,  /* pairs (2i, 2i + 1), tables as TN_ROPE_HALF; angle i of the first half */
    TN_ROPE_COMPLEX,      /* pairs (2i, 2i + 1) in f32, one rounding                          */
    TN_ROPE_DEINTERLEAVED /* pairs (2i, 2i + 1) in, (i, i + R/2) out                          */
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
    TN_ACT_MISH
} tn_act;

typedef enum tn_score {
    TN_SCORE_SOFTMAX = 1, /* softmax over all experts in f32, then the k best                 */
    TN_SCORE_SIGMOID,     /* sigmoid per expert, the k best by score + correction bias        */
    TN_SCORE_TOPK_SOFTMAX /* the k best logits, then softmax over those                       */
} tn_score;

typedef enum tn_layout {
    TN_LAYOUT_SPLIT = 1,   /* MLP: TN_ROLE_GATE, UP [I,H], DOWN [H,I]                          */
    TN_LAYOUT_GATE_UP,     /* MLP: TN_ROLE_GATE_UP [2I,H], gate rows first; DOWN              */
    TN_LAYOUT_UP_GATE,     /* MLP: the same, up rows first                                    */
    TN_LAYOUT_EXPERT_LIST, /* experts: GATE, UP, DOWN as in SPLIT, one tensor per expert      */
    TN_LAYOUT_STACKED_OI,  /* experts: GATE_UP [E,2I,H], DOWN [E,H,I]                         */
    TN_LAYOUT_STACKED_IO,  /* experts: GATE_UP [E,H,2I], DOWN [E,I,H]                         */
    TN_LAYOUT_LIST_IO      /* GROUPED_MATMUL only: one [in,out] per group                     */
} tn_layout;

/* What a site has beyond the plain case. A kernel that lists a feature handles sites with and
 * without it; a site with a feature that the kernel does not list is declined. */
#define TN_HAS_BIAS (UINT64_C(1) << 0)            /* LINEAR, MLP: bias on every product       */
#define TN_HAS_RENORM (UINT64_C(1) << 1)          /* route: the k weights are divided by their sum */
#define TN_HAS_SHARED_EXPERT (UINT64_C(1) << 2)   /* block: an MLP added for every token      */
#define TN_HAS_SHARED_GATE (UINT64_C(1) << 3)     /* ... times sigmoid(shared gate(x))        */
#define TN_HAS_CORRECTION_BIAS (UINT64_C(1) << 4) /* route: added for choosing only           */
#define TN_HAS_GROUPS (UINT64_C(1) << 5)          /* route: only the best groups take part    */
#define TN_HAS_ROUTE_SCALE (UINT64_C(1) << 6)     /* route: weights times TN_NUM_SCALE        */
#define TN_HAS_F32_ROUTING (UINT64_C(1) << 7)     /* route: weights stay f32                  */
#define TN_HAS_F32_ROUTER (UINT64_C(1) << 8)      /* route: logits in f32 whatever the dtype  */
#define TN_HAS_SPARSITY (UINT64_C(1) << 9)        /* MLP: Gaussian top-k before the activation */
#define TN_HAS_PARTIAL (UINT64_C(1) << 10)        /* rope: R < D                              */
#define TN_HAS_MROPE (UINT64_C(1) << 11)          /* rope: tables merged from three axes      */
#define TN_HAS_WINDOW (UINT64_C(1) << 12)         /* attention: TN_DIM_WINDOW                 */
#define TN_HAS_SOFTCAP (UINT64_C(1) << 13)        /* attention: TN_NUM_SOFTCAP                */
#define TN_HAS_SINKS (UINT64_C(1) << 14)          /* attention: TN_ROLE_SINKS                 */

typedef enum tn_dim {
    TN_DIM_WIDTH = 0,    /* norm: elements of a row                                       */
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
    TN_DIM_MAX = 32
} tn_dim;

typedef enum tn_num {
    TN_NUM_EPS = 0,   /* norm; 0 is legal                                                   */
    TN_NUM_SCALE = 1, /* attention: factor of the scores; route: factor of the weights      */
    TN_NUM_SOFTCAP = 2,
    /* MLP: gates not above mean + this * (population) deviation of their row become 0: the
     * standard normal quantile of the fraction that config.json names.                      */
    TN_NUM_SPARSITY = 3,
    TN_NUM_MAX = 16
} tn_num;

/* Which parameter of a site a tensor is. */
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
    TN_ROLE_SINKS = 17,
    TN_ROLE_MAX = 32
} tn_role;

/* count tensors of one role: 1, or one per expert. Borrowed from the model, read-only. */
typedef struct tn_param {
    const tn_tensor *tensors;
    int64_t count;
} tn_param;

/* One place of a model graph that performs one operation. Owned by the model; constant. */
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

/* ---- what a kernel declares ------------------------------------------------------------- */

/* Allowed range and divisor of one dimension; 0 leaves a bound open. */
typedef struct tn_dim_rule {
    tn_dim dim;
    int64_t min, max, multiple;
} tn_dim_rule;

#define TN_TAKES(value) (UINT64_C(1) << (value))

/* Which sites an implementation takes: data, evaluated by the host. Every axis that the
 * operation has (dtype always; norm, rope, act, score, layout where the table in
 * docs/writing-a-kernel.md says so) must name at least one value: an open-ended match is
 * refused at registration. An empty TN_AXIS_WEIGHT means "the same as the activations". */
typedef struct tn_match {
    uint32_t size;
    uint64_t takes[TN_AXIS_MAX]; /* TN_TAKES(value) | ...                                     */
    uint64_t features;           /* TN_HAS_... that it handles                                */
    const tn_dim_rule *dims;
    uint32_t dim_count;
    const char *class_glob; /* shell pattern for class_name; NULL: any                        */
} tn_match;

/* Largest distance from eager, in units of the last place of dt at the largest magnitude in
 * the output row: |y - eager| <= ulps * eps(dt) * max|eager row|, eps = 2^-24, 2^-8, 2^-11 for
 * f32, bf16, f16. */
typedef struct tn_tolerance {
    double ulps_f32, ulps_bf16, ulps_f16;
} tn_tolerance;

/* What plan decides for one site; the host provides what it names. */
typedef struct tn_plan {
    uint32_t size;
    int32_t threads;      /* in: most threads of a call                                       */
    int64_t max_tokens;   /* in: most tokens of a call                                        */
    size_t scratch_bytes; /* out: memory of each call, 64-byte aligned, contents undefined    */
    size_t packed_bytes;  /* out: memory that pack fills once                                 */
    uint64_t user[4];     /* out: the kernel's notes for pack and forward                     */
    /* ABI 1.1 */
    size_t backward_scratch_bytes; /* out: the scratch of each backward call                    */
} tn_plan;

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

/* One call of an operation. Everything is borrowed for the duration of the call. In a backward call in holds the
 * inputs of forward and out is not used: what backward needs of the results it computes again. (ROPE's backward does
 * not read q and k: their data may be NULL.) */
typedef struct tn_call {
    uint32_t size;
    tn_op op;
    const tn_site *site;
    const tn_plan *plan; /* NULL for eager operations                                         */
    const void *packed;  /* what pack filled, or NULL                                         */
    void *scratch;       /* plan->scratch_bytes                                               */
    int32_t in_count, out_count;
    tn_tensor in[TN_CALL_TENSORS];
    tn_tensor out[TN_CALL_TENSORS];
    /* ABI 1.1 */
    const tn_grads *grads; /* backward; NULL in forward                                         */
} tn_call;

/* How a kernel fulfils one operation. forward allocates nothing, starts no threads and may be
 * called from any one thread at a time per model; it fails only for what data can cause. */
typedef struct tn_impl {
    uint32_t size;
    tn_op op;
    tn_match match;
    tn_tolerance tolerance;
    tn_status (*plan)(const tn_site *site, tn_plan *plan, tn_error *err); /* optional          */
    tn_status (*pack)(const tn_site *site, const tn_plan *plan, void *packed, tn_error *err);
    tn_status (*forward)(const tn_call *call, tn_error *err);
    /* Optional; without it the implementation is for inference only. Under forward's rules, with
     * plan->backward_scratch_bytes of scratch. Formulas: docs/numerics.md.                   */
    tn_status (*backward)(const tn_call *call, tn_error *err);
    /* ABI 1.1 */
    /* Of every gradient from eager's, at the largest magnitude of the whole gradient, since what cancels in a row
     * leaves nothing to measure by; 0: as tolerance. */
    tn_tolerance gradient_tolerance;
} tn_impl;

typedef struct tn_kernel {
    uint32_t size;
    const char *id, *version, *summary;
    tn_device_kind device;
    int32_t priority;                      /* the larger wins among kernels that match one site; a tie is an error */
    tn_status (*available)(tn_error *err); /* optional: is what it needs here? says what is not */
    const tn_impl *impls;
    uint32_t impl_count;
} tn_kernel;

struct tn_device;

typedef struct tn_plugin {
    uint32_t size;
    uint32_t abi_major, abi_minor_needed;
    const char *name, *version;
    const tn_kernel *kernels;
    uint32_t kernel_count;
    const struct tn_device *device; /* a device that this plugin brings, or NULL; device.h    */
} tn_plugin;

/* Called by the constructor that TN_PLUGIN writes; stages the plugin, checks nothing yet. */
TN_API void tn_register(const tn_plugin *plugin);

/* TN_PLUGIN("npu_rope", "1.0.0", .kernels = kernels, .kernel_count = 2);
 * The two literals also go into the ELF note .note.tenon (owner "Tenon", type 1: two 32-bit
 * words, ABI major and lowest minor; then the name and the version, each ended by a NUL and
 * padded together to four bytes), which is read before any code of the plugin runs. */
#define TN_PLUGIN(plugin_name, plugin_version, ...)                                                                    \
    __asm__(".pushsection .note.tenon,\"a\",%note\n"                                                                   \
            ".balign 4\n"                                                                                              \
            ".long 6, 2f - 1f, 1\n"                                                                                    \
            ".asciz \"Tenon\"\n"                                                                                       \
            ".balign 4\n"                                                                                              \
            "1: .long " TN_STRINGIFY(TN_ABI_MAJOR) ", " TN_STRINGIFY(TN_ABI_NEEDED) "\n"                               \
                                                                                    ".asciz \"" plugin_name "\"\n"     \
                                                                                    ".asciz \"" plugin_version "\"\n"  \
                                                                                    ".balign 4\n"                      \
                                                                                    "2:\n"                             \
                                                                                    ".popsection\n");                  \
    static const tn_plugin tn_this_plugin = {.size = sizeof(tn_plugin),                                                \
                                             .abi_major = TN_ABI_MAJOR,                                                \
                                             .abi_minor_needed = TN_ABI_NEEDED,                                        \
                                             .name = plugin_name,                                                      \
                                             .version = plugin_version,                                                \
                                             __VA_ARGS__};                                                             \
    __attribute__((constructor)) static void tn_this_plugin_register(void)                                             \
    {                                                                                                                  \
        tn_register(&tn_this_plugin);                                                                                  \
    }                                                                                                                  \
    typedef int tn_plugin_needs_a_semicolon
#define TN_STRINGIFY(x) TN_STRINGIFY_(x)
#define TN_STRINGIFY_(x) #x

/* ---- services of the host ----------------------------------------------------------------
 * Work is divided by the caller's numbers only, never by how many threads there are, wherever
 * the division could change a result. */

/* Calls body on [begin, end) pieces that cover 0..count-1, each piece at most once and at least
 * grain long except the last; threads run 0 .. tn_thread_count()-1. Not to be nested. */
TN_API void tn_parallel_for(int64_t count, int64_t grain,
                            void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread), void *ctx);

/* Calls body once on every thread of the team; inside it tn_barrier() waits for the others. */
TN_API void tn_parallel(void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx);
TN_API void tn_barrier(void);
TN_API int32_t tn_thread_count(void);

#define TN_CPU_AVX2 (UINT64_C(1) << 0)   /* AVX2, FMA and F16C                            */
#define TN_CPU_AVX512 (UINT64_C(1) << 1) /* F, BW, CD, DQ, VL                             */
#define TN_CPU_AVX512_BF16 (UINT64_C(1) << 2)
#define TN_CPU_AVX512_FP16 (UINT64_C(1) << 3)
#define TN_CPU_AMX_BF16 (UINT64_C(1) << 4) /* tiles permitted by the system for this process */
#define TN_CPU_AVX512_VNNI (UINT64_C(1) << 5)
#define TN_CPU_NEON (UINT64_C(1) << 6)

/* What processor and operating system offer, less what TENON_CPU=c|avx2|avx512|avx512bf16|... takes
 * away. The same during the life of the process. */
TN_API uint64_t tn_cpu_flags(void);

#ifdef __cplusplus
}
#endif
#endif
