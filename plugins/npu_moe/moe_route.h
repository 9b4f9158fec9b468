/* MOE_ROUTE. */
#ifndef MOE_ROUTE_H
#define MOE_ROUTE_H

#include "router.h"

/* Bytes of scratch for calls of at most max_tokens tokens on at most `threads` threads. */
size_t moe_route_scratch_size(const router *r, int64_t max_tokens, int32_t threads);

/* weights [T,k] of dtype or f32, experts [T,k] i32. where: the site's path, for errors; after one nothing is written.
 */
tn_status moe_route_forward(const router *r, const tn_tensor *x, const tn_tensor *weights, const tn_tensor *experts,
                            int64_t max_tokens, int32_t threads, void *scratch, const char *where, tn_error *err)
    __attribute__((nonnull(7)));

/* grads->out[0]: dL/dweights. */
size_t moe_route_backward_scratch_size(const router *r, int64_t max_tokens, int32_t threads);
tn_status moe_route_backward(const router *r, const tn_tensor *x, const tn_grads *grads, int64_t max_tokens,
                             int32_t threads, void *scratch, const char *where, tn_error *err)
    __attribute__((nonnull(6)));

#endif
