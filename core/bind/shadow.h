/* Inside core: kernels are compared with eager while a model runs: the first call of each size of those that were
 * checked (first_calls.h), and calls drawn at random. What is wrong is not used. */
#ifndef TENON_CORE_SHADOW_H
#define TENON_CORE_SHADOW_H

#include "select/target.h"

/* A fraction of all calls of applied kernels is performed by eager, too; 0: only first calls. The first call that is
 * outside its tolerance takes the kernel off the target and is written to "prefix-KERNEL.safetensors" (prefix NULL:
 * nowhere). */
tn_status shadow_set(apply_target *target, double fraction, const char *prefix, tn_error *err);

/* Once for each target, before kernels are applied. */
tn_status shadow_open(apply_target *target, tn_error *err);
void shadow_close(apply_target *target);

/* For a binding that is no site's, after shadow_open: its calls are watched as those of the target's sites are. */
struct run_shadow *shadow_hook(const apply_target *target);

/* Gives what is bound now its shadow: after kernels were applied; and takes it away, for calls that are to be seen as
 * they are. */
void shadow_bind(apply_target *target);
void shadow_unbind(apply_target *target);

#endif
