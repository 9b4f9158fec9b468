/* Tenon: what an author of kernels includes. A plugin is a shared library whose constructor hands one constant
 * tn_plugin to the host; docs/writing-a-kernel.md walks through one. operation.h has the contracts and the rules of the
 * interface, services.h what the host offers while a kernel runs. */
#ifndef TENON_KERNEL_H
#define TENON_KERNEL_H

#include <tenon/operation.h>
#include <tenon/services.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Majors must be equal. A plugin names the lowest minor that it needs, 0 unless it defines TN_ABI_NEEDED before
 * including this header. A plugin built for 2.x loads into every host of 2.x and later minors. */
#define TN_ABI_MAJOR 2
#define TN_ABI_MINOR 5
#ifndef TN_ABI_NEEDED
#define TN_ABI_NEEDED 0
#endif

/* ---- what a kernel declares ------------------------------------------------------------------
 * Everything that is declared is copied when the plugin is tried, its strings and arrays too. */

/* Allowed range and divisor of one dimension; 0 leaves a bound open. */
typedef struct tn_dim_rule {
    tn_dim dim;
    int64_t min, max, multiple;
} tn_dim_rule;

#define TN_TAKES(value) (UINT64_C(1) << (value))

/* Which sites an implementation takes: data, evaluated by the host. Every axis that the
 * operation needs (dtype always; norm, rope, act, score, layout where the table in
 * docs/writing-a-kernel.md says so) must name at least one value; axes, features and dimensions that the operation
 * lacks must not be named. Both are checked at registration. An empty TN_AXIS_WEIGHT means "the same as the
 * activations". */
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
 * f32, bf16, f16. An output that is f32 where dt is not, such as a state, is compared with 2^-10 in place of
 * ulps * eps(dt). A row that is not zero counts as not smaller than the type's smallest normal number (2^-14 in f16).
 * 0 asks for eager's bits; more than TN_TOLERANCE_MAX_... would check nothing and is refused. */
#define TN_TOLERANCE_MAX_F32 65536.0 /* 2^-8 of the largest magnitude                            */
#define TN_TOLERANCE_MAX_BF16 64.0   /* a quarter of it                                          */
#define TN_TOLERANCE_MAX_F16 512.0   /* a quarter of it                                          */
typedef struct tn_tolerance {
    double ulps_f32, ulps_bf16, ulps_f16;
} tn_tolerance;

/* tn_impl.traits: it keeps something from one call to the next, behind a lock of its own. Without this a library whose
 * variables change from call to call is refused; with it, two sessions call it at the same time for longer when it is
 * checked. (ABI 2.2) */
#define TN_KEEPS_STATE (UINT64_C(1) << 0)
/* tn_impl.traits: what forward gives for a token has the same bits whichever tokens are in the call with it, how many,
 * and where it lies among them; an attention's also for any number of keys behind those that it sees. The check holds
 * it to that. Kernels without it are used as before. (ABI 2.3: a plugin that names it needs that minor) */
#define TN_SAME_BITS (UINT64_C(1) << 1)
/* tn_impl.traits: in bf16 and f16 it rounds activations further than their type does, as to int8, before it multiplies
 * them with quantised weights. Its tolerance says how far that leads; who asks for exact products is not given it. (ABI
 * 2.4: a plugin that names it needs that minor) */
#define TN_ROUNDS_INPUTS (UINT64_C(1) << 2)

/* How a kernel fulfils one operation. The functions may be called from any thread, by one thread at a time per model;
 * two models may call them at the same time, so they keep no state outside of what they are given. They start no
 * threads (services.h has the host's), change nothing of the process, and fail only for what data can cause. Each runs
 * in a child process before the host trusts it. */
typedef struct tn_impl {
    uint32_t size;
    tn_op op;
    tn_match match;
    tn_tolerance tolerance;
    /* Of every gradient from eager's, at the largest magnitude of the whole gradient (of a stack of experts: of each
     * expert's), since what cancels in a row leaves nothing to measure by; 0: as tolerance. */
    tn_tolerance gradient_tolerance;
    /* Bit i: it gives out[i], which is optional (operation.h), where a call wants it. A call that wants one which the
     * kernel does not give is performed by eager. */
    uint32_t optional_outputs;
    /* Fills plan for a site that match takes; TN_DECLINED with a reason when it does not take it after all. Optional:
     * no scratch, nothing packed. Called before the others, and again: for the same, which must ask for the same, and
     * for other numbers of tokens. [any thread] */
    tn_status (*plan)(const tn_site *site, tn_plan *plan, tn_error *err);
    /* Fills packed, plan->packed_bytes of the device's memory, once per site. Optional. [any thread] */
    tn_status (*pack)(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err);
    /* Performs the call; allocates nothing. [any thread] */
    tn_status (*forward)(const tn_call *call, tn_error *err);
    /* The gradients, by the formulas of docs/numerics.md, with plan->backward_scratch_bytes of scratch. Optional:
     * without it the implementation is for inference only. [any thread] */
    tn_status (*backward)(const tn_call *call, tn_error *err);
    uint64_t traits; /* TN_KEEPS_STATE, ...; what the host does not know is refused                   */
} tn_impl;

typedef struct tn_kernel {
    uint32_t size;
    const char *id, *version, *summary;
    const char *device; /* "cpu", "npu", or the name of any device that a plugin brings                  */
    int32_t priority;   /* the larger wins among kernels that match one site, then the earlier file name */
    tn_status (*available)(tn_error *err); /* optional: is what it needs here? Says what is not. [any thread] */
    const tn_impl *impls;
    uint32_t impl_count;
} tn_kernel;

struct tn_device;
struct tn_group_kind;

typedef struct tn_plugin {
    uint32_t size;
    uint32_t abi_major, abi_minor_needed;
    const char *name, *version;
    const tn_kernel *kernels;
    uint32_t kernel_count;
    const struct tn_device *device; /* a device that this plugin brings, or NULL; device.h    */
    /* A way for several processes to compute one model, or NULL; group.h. (ABI 2.5: a plugin that brings one needs that
     * minor) */
    const struct tn_group_kind *group;
} tn_plugin;

/* Called by the constructor that TN_PLUGIN writes; stages the plugin, checks nothing yet. [any thread] */
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

#ifdef __cplusplus
}
#endif
#endif
