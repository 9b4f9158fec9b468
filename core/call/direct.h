/* Inside core: performing an operation that belongs to no model. */
#ifndef TENON_CORE_DIRECT_H
#define TENON_CORE_DIRECT_H

#include <tenon/kernel.h>

/* Performs a call, or its gradients where it has grads, on the cpu device. kernel NULL or "none": eagerly; "auto": by
 * the kernel with the highest priority that takes the site, else eagerly; an id: by that kernel or not at all. The
 * first call of an implementation with a site of this shape checks it in a child, as applying a kernel does. Allocates
 * the scratch of the call and frees it. */
tn_status direct_perform(const tn_call *call, const char *kernel, tn_error *err);

#endif
