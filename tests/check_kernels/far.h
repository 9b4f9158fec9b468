/* A device that a plugin brings: cases are copied to its memory, which the host may not be able to touch, and back. */
#ifndef TENON_CHECK_FAR_H
#define TENON_CHECK_FAR_H

#include "attempt.h"

/* Opens NAME[:ORDINAL]. False after a message. */
bool far_open(const char *text);
void far_close(void);
const char *far_name(void);
tn_queue *far_queue(void);

/* Copies buffers there that are not there yet, the slack around them with them, and lets everything that points into
 * them point there. */
tn_status far_place(attempt *t, tn_error *err);

/* Waits, and copies a buffer back. */
tn_status far_fetch(guarded *g, tn_error *err);

/* The same of all: everything points to the host's memory again. changed: the first buffer that was only to be read
 * and is not what it was, or NULL. */
tn_status far_fetch_all(attempt *t, const guarded **changed, tn_error *err);

/* Frees what the device holds of it; nothing points there any more. */
void far_release(attempt *t);

/* Does the device perform all that the call consists of, its gradients where it has grads? TN_DECLINED with a reason
 * if not. */
tn_status far_supports(const tn_call *call, tn_error *err);

/* The call by the device's own operations, the composed ones included: its outputs, or with grads its gradients. */
tn_status far_eager(const tn_call *call, tn_error *err);

/* Waits, and tells what failed on the way. */
tn_status far_sync(tn_error *err);

#endif
