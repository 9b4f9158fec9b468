/* Inside core: performing operations. */
#ifndef TENON_CORE_RUN_H
#define TENON_CORE_RUN_H

#include "graph/graph.h"

/* Tensors in the order of a contract: RUN_TENSORS(&x, &y). */
typedef struct run_tensors {
    const tn_tensor *const *at;
    int32_t count;
} run_tensors;

#define RUN_TENSORS(...)                                                                                               \
    ((run_tensors){(const tn_tensor *const[]){__VA_ARGS__},                                                            \
                   sizeof((const tn_tensor *const[]){__VA_ARGS__}) / sizeof(const tn_tensor *)})

/* A call with these inputs and outputs. compose.c */
tn_call run_make_call(tn_op op, const tn_site *site, run_tensors in, run_tensors out);

/* Performs any contract eagerly from its site alone, the composed ones (MLP, MOE_BLOCK) included: what checks compare
 * kernels with. call->scratch is ignored; scratch and intermediate tensors come from the arena. With a measuring arena
 * nothing is computed. compose.c */
tn_status run_eager_call(const device *device, arena *a, const tn_call *call, tn_error *err);

/* The gradients of any contract (call->grads), as run_eager_call; TN_DECLINED where the device has none. backward.c */
tn_status run_eager_backward(const device *device, arena *a, const tn_call *call, tn_error *err);

/* Performs a site's operation with what is bound to it (or eagerly). binding NULL or without impl, whose kernel does
 * not give an optional output that the call wants, or is not used with so many tokens: eager, of which the arena knew
 * when it was measured (else graph_binding.alone). */
tn_status run_bound_call(const device *device, arena *a, const graph_binding *bound, const tn_call *call,
                         tn_error *err);

/* Performs calls in place of a bound kernel: with run_kernel_call, and with what else it wants to see. */
typedef struct run_shadow {
    tn_status (*perform)(struct run_shadow *shadow, const device *device, arena *a, const graph_binding *bound,
                         const tn_call *call, tn_error *err);
} run_shadow;

/* The kernel itself. */
tn_status run_kernel_call(const device *device, arena *a, const graph_binding *bound, const tn_call *call,
                          tn_error *err);

/* The gradients of a call by what is bound, which has a backward, or eagerly. */
tn_status run_bound_backward(const device *device, arena *a, const graph_binding *bound, const tn_call *call,
                             tn_error *err);

/* The same of a site; inside a composed operation the parts' kernels are used, as run_site_call does. */
tn_status run_site_backward(const device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err);

/* The plan for calls of at most that many tokens, so that scratch is no larger than they need; the one that is bound
 * where the kernel declines so many, or would then do something else. TN_E_KERNEL where it asks for what planning.h
 * does not give. */
tn_status run_plan_for(const tn_impl *impl, const tn_site *site, const tn_plan *bound, int64_t tokens, tn_plan *plan,
                       tn_error *err);

/* One call by itself, forward or with gradients, finished when this returns. It finds out how much memory the call
 * needs, allocates that, and frees it. With a site the call is performed as run_site_call does. Without one (NULL) the
 * kernel in bound performs it, or eager where bound is NULL, too. */
tn_status run_alone(const device *device, const graph_site *site, const graph_binding *bound, const tn_call *call,
                    tn_error *err);

/* Performs a site of a graph: with its kernel, or eagerly; inside a composed operation the parts' kernels are used. */
tn_status run_site_call(const device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err);

/* Does the device perform everything that the graph's sites are made of? TN_E_KERNEL with site, operation and reason if
 * not. supports.c */
tn_status run_supported(const device *device, const graph *g, tn_error *err);

/* One forward (or backward) of what is bound (NULL: of the device) with scratch_bytes of scratch from the arena, and
 * the queue of its device. compose.c */
tn_status run_step(arena *a, const graph_binding *bound, const tn_call *call, size_t scratch_bytes,
                   tn_status (*step)(const tn_call *, tn_error *), tn_error *err);

#endif
