/* Inside core: does a device compute what the CPU does? Its code runs in this process: a device that has been opened
 * cannot be taken into a child. */
#ifndef TENON_CORE_CHECK_DEVICE_H
#define TENON_CORE_CHECK_DEVICE_H

#include "check/compare.h"
#include "run/run.h"

/* An operation of a model: that of a site, or a step there (ADD, GLU, CACHE_APPEND, ...; op is then not the site's),
 * whose tensors are width wide. Parameters lie in the device's memory. */
typedef struct check_device_subject {
    const device *device, *cpu;
    const tn_site *site;
    tn_op op;
    int64_t width;
    bool brief;     /* with one set of inputs only                                                */
    bool gradients; /* those of a contract, too                                                   */
    /* A kernel of the device, which then performs the site's operation, and is held to its own tolerance; or NULL. */
    const graph_binding *bound;
    compare_figures *figures; /* of that kernel; or NULL                                          */
} check_device_subject;

/* Does it perform the operation as the CPU does, for one token and for several hundred, in place too? TN_E_KERNEL with
 * site, operation and both values when not; TN_E_VERIFY where a kernel's numbers are wrong. */
tn_status check_device(const check_device_subject *s, tn_error *err);

/* How far a device's own operation, or its gradients, may be from the CPU's: units of the last place of the largest
 * element in a row, or of a parameter's gradient. */
double check_device_ulps(tn_op op, tn_dtype dtype);
double check_device_gradient_ulps(tn_dtype dtype);

/* check_device_gradients.c: the same of its gradients; host is the site with its parameters in the host's memory. */
tn_status check_device_gradients(const check_device_subject *s, const tn_site *host, tn_error *err);

/* Do copies up and down give back what was put in, whole and in parts, and is a unit that cannot be there refused? */
tn_status check_device_copies(const device *d, tn_error *err);

#endif
