/* check_kernels: the one tool that checks and times kernels. A test (one file per contract) builds cases: a synthetic
 * site, tensors with random contents, and the wanted values with a bound each. The frame runs a case through the real
 * descriptors of build/plugins on every CPU tier, between guard pages, and compares. Adding a contract is one file and
 * one line in the table of main.c. */
#ifndef TENON_CHECK_KERNELS_H
#define TENON_CHECK_KERNELS_H

#include "base/random.h"

#include <tenon/tenon.h>

/* ---- numbers (number.c) ------------------------------------------------------------------------ */

/* eps of kernel.h: half the distance from 1 to the next number; and the smallest positive number. 0 for integers. */
double unit_roundoff(tn_dtype dtype);
double smallest(tn_dtype dtype);

/* value rounded to the nearest even number of dtype. */
double round_to(tn_dtype dtype, double value);

/* Elements by offset in elements; integers convert. element_set rounds. */
double element_get(const tn_tensor *t, int64_t offset);
void element_set(tn_tensor *t, int64_t offset, double value);

/* Offset of the element with this index in row-major order of the shape. */
int64_t element_offset(const tn_tensor *t, int64_t index);

double random_normal(random_state *r);              /* mean 0, deviation 1, |x| < 7            */
int64_t random_below(random_state *r, int64_t end); /* 0 .. end - 1                            */

/* A dense tensor with more than a million elements repeats its numbers. */
void fill_normal(tn_tensor *t, random_state *r, double mean, double deviation);
/* Infinities, NaN, zeros of both signs, denormals and the largest numbers at a few random places. */
void fill_specials(tn_tensor *t, random_state *r, int64_t count);

/* The types that kernels are checked in: f32, bf16, f16. */
enum { CHECK_DTYPES = 3 };
extern const tn_dtype check_dtypes[CHECK_DTYPES];

/* ---- cases (case.c) ----------------------------------------------------------------------------- */

/* One call with what it must compute. in, out and param hold master copies: every run works on copies of them. */
typedef struct check_case {
    char what[160]; /* "rows 3 width 17": for messages                                           */
    const char *kernel;
    tn_site site;
    tn_call call;                   /* in, out: shapes, strides and master data             */
    int32_t alias[TN_CALL_TENSORS]; /* out i lies in the memory of in alias[i]; -1: its own  */
    double *want[TN_CALL_TENSORS];  /* per element in row-major order; NULL: not compared    */
    double *bound[TN_CALL_TENSORS]; /* largest distance from want                           */
    bool skip_eager;                /* eager does not define it (say why at the place)       */
    bool tiers_equal;               /* every tier gives the same bits                        */
    /* Gradients, when grads.size is not 0 (case_grads): out holds master data of the upstream gradients; in and param
     * say which are wanted. want and bound as above, for the tensors of a role one after the other. */
    tn_grads grads;
    int32_t grad_alias[TN_CALL_TENSORS]; /* grads.in[i] lies in the memory of grads.out[...]; -1   */
    double *want_in[TN_CALL_TENSORS], *bound_in[TN_CALL_TENSORS];
    double *want_param[TN_ROLE_MAX], *bound_param[TN_ROLE_MAX];
    int64_t max_tokens; /* for plan; 0: taken from the first input               */
    void **memory;      /* everything that the case owns                         */
    size_t memory_count;
} check_case;

void case_init(check_case *c, const char *kernel, tn_op op, tn_dtype dtype);
void case_free(check_case *c);
void *case_alloc(check_case *c, size_t bytes); /* zeroed, lives as long as the case             */

/* The next input or output. stride NULL: dense. The tensor is the case's own; fill it in place. */
tn_tensor *case_in(check_case *c, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride);
tn_tensor *case_out(check_case *c, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride);
/* The parameter of a role: count dense tensors of one shape; returns the first. */
tn_tensor *case_param(check_case *c, tn_role role, int64_t count, tn_dtype dtype, int32_t ndim, const int64_t *shape);
/* The contents in row-major order. */
double *case_values(check_case *c, const tn_tensor *t);
/* Allocates want[out] and bound[out]. */
void case_want(check_case *c, int32_t out);

/* Asks for the gradients of every input and parameter that is not an integer: upstream gradients are normal numbers,
 * laid out like the outputs; the gradients of inputs are laid out like these. Called when in, out and params are
 * complete. The case then also runs backward; want_in and want_param are compared where they are set, and the
 * gradients of eager in any case (unless skip_eager). To leave one out, set its data to NULL (count to 0). */
void case_grads(check_case *c, random_state *r);
/* Allocates want_in[in] and bound_in[in]; want_param[role] and bound_param[role]. */
void case_want_in(check_case *c, int32_t in);
void case_want_param(check_case *c, tn_role role);

/* ---- running (run.c, compare.c) -------------------------------------------------------------------- */

typedef struct check_tier {
    const char *name;
    uint64_t flags; /* what the tier may use */
} check_tier;

/* Who performs cases: kernels for the CPU, as the tier says; or what a device brings, its own operations or its
 * kernels. */
typedef enum check_by { BY_CPU, BY_DEVICE_EAGER, BY_DEVICE_KERNEL } check_by;

/* Why cases of a group were not run. */
enum { CHECK_SKIPS = 24 };
typedef struct check_skips {
    char reason[240];
    int64_t cases;
} check_skips;

typedef struct check_state {
    const check_tier *tier;
    check_by by;
    struct {
        const char *filter; /* --bench FILTER or NULL                                              */
        tn_dtype dtype;     /* 0: all                                                          */
        int threads;
        double seconds, most_flops; /* of a line; of a call                                     */
    } bench;
    const char *only; /* how the names of the groups begin that are run; NULL: all                    */
    int64_t passed, failed, skipped;
    char group[160];
    int64_t every, groups, group_seen; /* of each group's cases one in so many is run                    */
    int64_t group_cases, group_failures, group_runs;
    check_skips group_skips[CHECK_SKIPS];
    double group_worst; /* distance over bound                                                  */
    double group_ratio; /* rms error over transformers', of golden outputs in bf16 and f16        */
} check_state;

/* A line of the report: cases between begin and end, and one for each reason why some were skipped. Empty groups print
 * nothing. False: --group asks for others. */
bool group_begin(check_state *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void group_end(check_state *s);

/* Is this case of the group not wanted (--group, --every)? Then it is freed. What does not go by check_run or
 * check_declined asks for itself. */
bool check_left_out(check_state *s, check_case *c);

/* Will the next case of the group be left out? Then it has been, and need not be made: most take longer to draw and to
 * compute in double than to run. */
bool check_pass_over(check_state *s);

/* Runs the case on the tier: three placements between guard pages with one, two and three threads; compares with want,
 * with the plain C tier, and with eager within the declared tolerance. On a device: two placements, compared with each
 * other and with the CPU's eager, within the tolerance that a kernel declares, or that core has for devices. Frees the
 * case. */
void check_run(check_state *s, check_case *c);

/* The kernel must decline the case's site, with this text in its reason. Skipped on devices, whose kernels have other
 * limits. Frees the case. */
void check_declined(check_state *s, check_case *c, const char *reason);

/* What is not as it should be: a number of the site, or of the first tensor of a parameter. */
typedef enum check_what {
    NOTHING,
    DIM_IS,
    NUM_IS,
    MEANING_IS,
    HAS_ALSO, /* these features                                                                   */
    COUNT_IS,
    DTYPE_IS,
    ROWS_ARE,
    COLUMNS_ARE, /* and as far apart are the rows                                                  */
    STRIDE_IS,   /* of columns                                                                     */
} check_what;

typedef struct check_change {
    check_what what;
    int32_t which; /* TN_DIM_, TN_NUM_, TN_AXIS_ or TN_ROLE_                                        */
    double to;
} check_change;

/* Cases that the kernel must decline: what `make` gives for a variant (of which the operation knows more) in dtype,
 * changed. */
typedef struct check_decline {
    int32_t variant;
    tn_dtype dtype;
    check_change change[2];
    const char *reason;
} check_decline;
void check_declines(check_state *s, const check_decline *declines, size_t count,
                    check_case (*make)(int32_t variant, tn_dtype dtype));

/* The call must fail as bad input (TN_E_INPUT) with this text and write nothing; so must its gradients, when the case
 * has them. Skipped on devices, which cannot look at data before they line work up. Frees the case. */
void check_refused(check_state *s, check_case *c, const char *text);

/* Counts a failure of the group and prints it. */
void check_fail(check_state *s, const check_case *c, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Counts a case of the group that was not run, for a reason that the group's end prints. */
void check_skip(check_state *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Who performs the case: the kernel's implementation, or NULL with true for the device's own operations. False after a
 * failure, or a device's skip. */
bool check_performer(check_state *s, const check_case *c, const tn_impl **impl);

/* Are there gradients of the case to be run? False after a failure, or a device's skip, where impl has none. */
bool check_has_backward(check_state *s, const check_case *c, const tn_impl *impl);

/* ---- timing (bench.c) -------------------------------------------------------------------------------- */

/* What one call must do, whatever computes it: bytes that it has to read and to write, products and sums. */
typedef struct bench_work {
    double read, written, flops;
} bench_work;

/* Shapes of Qwen3 models. inter is that of one expert where there are experts. */
typedef struct bench_model {
    const char *name;
    int64_t hidden, inter, q_heads, kv_heads, head, experts, top_k;
} bench_model;
enum { BENCH_MODELS = 3, BENCH_TOKENS = 4 };
extern const bench_model bench_models[BENCH_MODELS]; /* 0.6B, 8B, 30B-A3B                            */
extern const int64_t bench_tokens[BENCH_TOKENS];     /* 1, 16, 512, 4096                             */

/* Is this line asked for? Its name, with the dtype, is that of the next bench_run. flops: of forward. */
bool bench_wanted(check_state *s, tn_dtype dtype, double flops, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Times the case on the tier, on one thread and on all, against eager and the machine's ceilings, hot and cold;
 * forward, and backward where the implementation has it and backward.read is not 0: case_grads is called for cases that
 * have no gradients yet. Frees the case. */
void bench_run(check_state *s, check_case *c, bench_work forward, bench_work backward);

/* Before and after all tests: prints the machine and its ceilings. False without memory for them. */
bool bench_open(check_state *s);
void bench_close(check_state *s);

/* ---- golden files (ops.c) ------------------------------------------------------------------------------ */

/* Tensor "n.name"; false when absent. */
bool golden_get(const tn_safetensors *file, int64_t n, const char *name, tn_tensor *t);
double golden_number(const tn_safetensors *file, int64_t n, const char *name, double absent);
/* An input (or parameter) of the case with the golden's numbers in the case's dtype. */
void golden_copy(tn_tensor *to, const tn_tensor *from);
/* Runs the case and holds output i against the golden outputs named names[i]: f32 within 2e-5 + 2e-5 |out|; else rms
 * error at most that of transformers (and a few f32 units), or 1.5 times it of a device's operators that round between.
 * Gradients that golden_grad has set are held too. One group per case. Frees the case. */
void golden_run(check_state *s, check_case *c, const tn_safetensors *file, int64_t n, const char *const *names);
/* After case_grads: upstream gradient `out`, in the order of the output's elements. */
void golden_upstream(check_case *c, int32_t out, const tn_tensor *from);
/* What the gradient of an input, or of tensor `index` of a parameter, must be: f32 as outputs; else rms error at most 4
 * eps times the rms of the gradient, plus 2e-5. A view with any strides. */
void golden_grad_in(check_case *c, int32_t in, const tn_tensor *truth);
void golden_grad_param(check_case *c, tn_role role, int64_t index, const tn_tensor *truth);

/* ---- the table (main.c) --------------------------------------------------------------------------------- */

typedef struct check_test {
    const char *name;
    uint64_t tiers; /* the TN_CPU_ flags that have variants of their own; plain C is always run   */
    void (*check)(check_state *s);
    void (*bench)(check_state *s);
    /* Runs case n of the golden file called op ("rope_partial") in dtype. False without having looked for a tensor: not
     * this test's; a test that looks for one in vain and runs nothing fails the case. */
    bool (*golden)(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype);
} check_test;

/* Tiers of vectors; and with those that have products of matrices. */
#define CHECK_VECTORS (TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_AVX512_BF16 | TN_CPU_NEON)
#define CHECK_PRODUCTS (CHECK_VECTORS | TN_CPU_AMX_BF16)

extern const check_test check_rms_norm, check_rope, check_mlp, check_moe, check_moe_route, check_grouped_matmul,
    check_linear, check_delta_rule, check_selective_scan, check_attention;

#endif
