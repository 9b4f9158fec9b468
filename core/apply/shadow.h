/* Inside core: kernels are compared with eager while a model runs. */
#ifndef TENON_CORE_SHADOW_H
#define TENON_CORE_SHADOW_H

#include "apply/target.h"

/* A fraction of all calls of applied kernels is performed by eager, too; 0: none. The first call that is outside its
 * tolerance takes the kernel off the target and is written to "prefix-KERNEL.safetensors" (prefix NULL: nowhere). */
tn_status shadow_set(apply_target *target, double fraction, const char *prefix, tn_error *err);

/* Gives what is bound now its shadow: after kernels were applied. */
void shadow_bind(apply_target *target);
void shadow_close(apply_target *target);

#endif
