/* Inside core: giving sites to kernels and taking them back. The functions behind those of tenon.h, which say what they
 * do; here what they do it to is given. */
#ifndef TENON_CORE_APPLY_H
#define TENON_CORE_APPLY_H

#include "select/plan.h"

tn_report *apply_preview(apply_target *target, const tn_config *config, const char *spec, tn_error *err);
tn_status apply_kernels(apply_target *target, const tn_config *config, const char *spec, tn_report **report,
                        tn_error *err);
tn_status apply_kernel(apply_target *target, const tn_config *config, const char *id, const char *modules,
                       tn_error *err);
tn_status apply_revert(apply_target *target, const char *id, tn_error *err);
tn_status apply_packed(const apply_target *target, tn_packed ***list, size_t *count, tn_error *err);

/* The calls that a session is going to make: rows of at most so many tokens, and positions behind them. */
typedef struct apply_calls {
    int64_t rows, tokens, context;
} apply_calls;

/* Checks what is applied with calls of that size where no check went so far. TN_E_KERNEL when one fails. check_calls.c
 */
tn_status apply_check_calls(apply_target *target, const apply_calls *calls, tn_error *err);

/* Prepares what the plan has chosen and puts it in place. */
tn_status apply_plan(plan *p, tn_error *err);

/* Puts in place only what keep says of what is applied, by site, and compares nothing of it while it runs; NULL: all as
 * it was. The rest waits, with what it packed. No session runs meanwhile but those made for just that. */
void apply_only(apply_target *target, const bool *keep);

/* Takes a kernel that was found wrong off all its sites, whose results are eager's from now on. Sessions may be open.
 */
void apply_take_off(apply_target *target, const struct registry_kernel *kernel);

/* apply_like.c: gives the sites of a model to the kernels that have them in another model of the same graph, in another
 * type; sites that the kernel does not take in this type stay eager. Nothing is checked. *sites: how many it took. */
tn_status apply_like(apply_target *target, const apply_target *from, size_t *sites, tn_error *err);

/* Frees what applying kernels allocated, after everything else stopped. */
void apply_close(apply_target *target);

#endif
