/* The kernels of the plugins folder, and CPU tiers. */
#ifndef TENON_CHECK_HOST_H
#define TENON_CHECK_HOST_H

#include "check_kernels.h"

/* Loads every plugin of the folder. False after a message. */
bool host_open(const char *plugins);

/* The device's implementation that takes the site, or NULL with the reason. */
const tn_impl *host_impl(const char *device, const char *kernel, const tn_site *site, char *reason, size_t size);

/* Plans with no more than these CPU flags from here on. host_flags: what the machine offers. */
void host_restrict(uint64_t flags);
uint64_t host_flags(void);

/* Plans with these flags too from here on: the folder's plugins emulate what the machine lacks. */
void host_emulate(uint64_t flags);

/* Threads of the next calls. */
void host_threads(int32_t count);

/* The call by eager, the composed operations included: its outputs, or with grads its gradients. TN_DECLINED: eager
 * does not do it. */
tn_status host_eager(const tn_call *call, tn_error *err);

/* For timing: eager with its memory ready for calls of this shape, forward or (with grads) backward. arena NULL: closed
 * or declined. */
typedef struct host_eager_state {
    struct arena *arena;
} host_eager_state;
tn_status host_eager_open(host_eager_state *e, const tn_call *call, tn_error *err);
tn_status host_eager_run(host_eager_state *e, const tn_call *call, tn_error *err);
void host_eager_close(host_eager_state *e);

#endif
