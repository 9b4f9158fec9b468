/* Inside core: trying a plugin's kernels without a model. */
#ifndef TENON_CORE_VERIFY_PLUGIN_H
#define TENON_CORE_VERIFY_PLUGIN_H

#include "plugin/registry.h"

/* What rows go to, and what has become of the whole. */
typedef struct verify_plugin {
    tn_check_options options;
    int (*on_row)(void *ctx, const tn_check_row *row);
    void *ctx;
    const tn_machine *machine; /* NULL: not measured                                              */
    int64_t site;              /* the number of the last site                                     */
    int64_t tried, failed;     /* implementations                                                 */
    bool cancelled;
} verify_plugin;

/* Hands over a row. TN_E_CANCELLED when the receiver says so. */
static inline tn_status verify_plugin_report(verify_plugin *k, tn_check_row *row)
{
    if (k->on_row && k->on_row(k->ctx, row) != 0)
        k->cancelled = true;
    return k->cancelled ? TN_E_CANCELLED : TN_OK;
}

/* verify_plugin_impl.c: one implementation with one dtype. */
tn_status verify_plugin_impl_try(verify_plugin *k, const registry_kernel *kernel, int32_t impl, tn_dtype dtype,
                                 tn_error *err);

/* verify_plugin_bench.c: times it with a few real shapes. */
tn_status verify_plugin_bench_impl(verify_plugin *k, const registry_kernel *kernel, int32_t impl, tn_dtype dtype,
                                   tn_error *err);

#endif
