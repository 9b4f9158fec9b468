/* Tenon: locks, which say what a model was computed from. tenon.h has the rules. */
#ifndef TENON_LOCK_H
#define TENON_LOCK_H

#include <tenon/error.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_lock_options {
    uint32_t size;
    int32_t threads; /* as tn_model_options.threads                                                 */
    /* Called with what is done and bytes of it, 0 <= done <= total, on the thread that calls; non-zero return cancels.
     * May be NULL. */
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *progress_ctx;
} tn_lock_options;

/* A lock in JSON: digests (SHA-256) of every 16 MiB of the checkpoint that tn_model_open would open by this name, of
 * the library, of the plugins that tn_scan has loaded and of the libraries that came in with them.
 * tn_model_options.lock and tn_config_set_lock compare with it. options may be NULL. Owned: free(). NULL: TN_E_INPUT
 * names a file that cannot be read, TN_E_KERNEL a plugin that was refused. [any thread] */
TN_API char *tn_lock_model(const char *folder, const tn_lock_options *options, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
