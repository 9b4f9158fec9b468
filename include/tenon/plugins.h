/* Tenon: configuration, and the plugins and kernels of the process. tenon.h has the rules. */
#ifndef TENON_PLUGINS_H
#define TENON_PLUGINS_H

#include <tenon/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configuration (kernels.json) -------------------------------------------------------- */

/* What is to be used and where. A model copies what it needs of it; one may be used by several. */
typedef struct tn_config tn_config;

/* An empty configuration: no folders, kernels "auto", device "auto", verify "first-use". Owned: tn_config_free. NULL:
 * out of memory. [any thread] */
TN_API tn_config *tn_config_new(void);
TN_API void tn_config_free(tn_config *config); /* [one thread] */

/* Reads path or, when it is NULL, the first of $TENON_CONFIG, $XDG_CONFIG_HOME/tenon/kernels.json
 * (or ~/.config/...), the installed default; relative plugin folders count from the file's own.
 * A file that was not asked for and does not exist is no error. Owned: tn_config_free. [any thread] */
TN_API tn_config *tn_config_load(const char *path, tn_error *err);

/* Overrides, as the command line's options do. set_plugins replaces the list of folders. device: "auto", which is the
 * CPU, or NAME[:ORDINAL]; whether there is such a device is known when a model is opened. [one thread] */
TN_API tn_status tn_config_set_plugins(tn_config *config, const char *folder, tn_error *err);
TN_API tn_status tn_config_add_plugins(tn_config *config, const char *folder, tn_error *err);
/* spec: "auto", "none", or a list, separated by commas, of ids, "auto" and -id (auto without it). Ids come first
 * wherever they take a site, in the order of the list. "true" and "false" are "auto" and "none". What begins with '{'
 * is LLaMA-Factory's kernel_config in JSON: docs/configuration.md says which keys it has. */
TN_API tn_status tn_config_set_kernels(tn_config *config, const char *spec, tn_error *err);
TN_API tn_status tn_config_set_device(tn_config *config, const char *device, tn_error *err);
/* Most MiB (2^20 bytes) of packed weights that the kernels of a model may hold together; -1: no bound. [one thread] */
TN_API tn_status tn_config_set_max_packed_mb(tn_config *config, int64_t mb, tn_error *err);

/* Whether "auto" chooses by what it measures, which it does unless it is told otherwise. [one thread] */
TN_API tn_status tn_config_set_measure(tn_config *config, bool measure, tn_error *err);

/* Only kernels that promise the same bits in any call (TN_SAME_BITS; docs/numerics.md), for calls of every size:
 * nothing is measured. Applying is TN_E_KERNEL where sums of the model are left to the plain implementation. [one
 * thread] */
TN_API tn_status tn_config_set_same_bits(tn_config *config, bool same_bits, tn_error *err);

/* Only kernels that take activations as they are, and none that rounds them for products with quantised weights
 * (TN_ROUNDS_INPUTS). [one thread] */
TN_API tn_status tn_config_set_exact(tn_config *config, bool exact, tn_error *err);

/* A lock, as tn_lock_model writes it (lock.h), read now: tn_scan then refuses a plugin that is not in it, is another
 * file, or loads a library that is; before any of its code runs. One of the lock that is missing it lists as refused.
 * No model with tn_model_options.lock is opened beside such a plugin. TN_E_INPUT: file is no lock. [one thread] */
TN_API tn_status tn_config_set_lock(tn_config *config, const char *file, tn_error *err);

/* What it says now. Borrowed until the next override. [one thread] */
TN_API int64_t tn_config_max_packed_mb(const tn_config *config);            /* -1 also for NULL            */
TN_API const char *tn_config_file(const tn_config *config);                 /* NULL: none was read          */
TN_API size_t tn_config_folder_count(const tn_config *config);              /* folders to look for plugins in */
TN_API const char *tn_config_folder(const tn_config *config, size_t index); /* absolute; NULL beyond the last */
TN_API const char *tn_config_kernels(const tn_config *config);              /* the SPEC, in one way of writing it */
/* Did the file or the program name folders? An empty list means none, not those that a program has of its own. */
TN_API bool tn_config_says_plugins(const tn_config *config);
TN_API const char *tn_config_device(const tn_config *config);

/* ---- plugins and kernels (of the process) -------------------------------------------------- */

typedef enum tn_plugin_state {
    TN_PLUGIN_LOADED = 0,
    TN_PLUGIN_SKIPPED,    /* not a plugin: no note; or for another machine                     */
    TN_PLUGIN_REFUSED,    /* wrong version, descriptor, pin, library, duplicate                */
    TN_PLUGIN_QUARANTINED /* its trial crashed, hung, left or did not open                     */
} tn_plugin_state;

/* Its strings live as long as the process. Names are for showing: what a terminal or JSON cannot bear is \xNN. */
typedef struct tn_plugin_info {
    uint32_t size;
    tn_plugin_state state;
    const char *file, *name, *version; /* name and version may be empty                        */
    const char *reason;                /* empty when loaded without a remark                   */
    char sha256[65];
} tn_plugin_info;

/* Its strings live as long as the process. */
typedef struct tn_kernel_info {
    uint32_t size;
    bool available;
    const char *id, *version, *summary, *file, *device;
    const char *reason; /* why not available; empty otherwise                                  */
} tn_kernel_info;

/* Scans every folder of the configuration (NULL: none) and takes the plugins that are part of the program. A bad file
 * never fails the scan: it is listed with its reason. Files already loaded are left alone, and nothing is ever
 * unloaded, so models may be open. Fails when a folder itself is refused. [any thread] */
TN_API tn_status tn_scan(const tn_config *config, tn_error *err);

/* A plugin is opened in a child process first, where a filter of system calls holds off the network and changes to
 * files. NULL: there is such a filter. Otherwise why not, in words that live as long as the process: the library was
 * built without libseccomp, or the system has none. The first call starts a child. [any thread] */
TN_API const char *tn_trial_unfiltered(void);

/* Which function of a plugin is being called right now, in words ("npu_x (x.so) in forward"): by the calling thread or,
 * where that is in none, by the one that began last. false: none, and text, which may be NULL, is empty. For handlers
 * of the program's exit: a plugin that calls exit ends the program, whose status would say that all went well. [any
 * thread] */
TN_API bool tn_plugin_called(char *text, size_t size);

/* Are the folders of the configuration fit to hold plugins? None of their files is opened: for who wants no kernels. */
TN_API tn_status tn_check_folders(const tn_config *config, tn_error *err);

/* What was found so far. An index beyond the last is TN_E_USAGE. [any thread] */
TN_API size_t tn_plugin_count(void);
TN_API tn_status tn_plugin_get(size_t index, tn_plugin_info *info);

/* Kernels of the device (NAME[:ORDINAL]; "auto" or NULL: the CPU), ordered by id; every one is asked whether it is
 * available. Those of a device that is not here are listed as unavailable. list is owned: free(). [any thread] */
TN_API tn_status tn_kernels_available(const char *device, tn_kernel_info ***list, size_t *count, tn_error *err);

/* Those of all other devices, ordered by device and id, as unavailable on this one. list is owned: free(). [any thread]
 */
TN_API tn_status tn_kernels_elsewhere(const char *device, tn_kernel_info ***list, size_t *count, tn_error *err);

/* Its strings live as long as the process. */
typedef struct tn_device_info {
    uint32_t size;
    int32_t ordinal;
    const char *name, *summary; /* summary may be empty                                         */
    const char *file, *version; /* of the plugin that brought it; NULL: it is built in           */
} tn_device_info;

/* What NAME[:ORDINAL] is a unit of ("auto" or NULL: the CPU), before anything is opened on it. TN_E_KERNEL when it is
 * not here. [any thread] */
TN_API tn_status tn_device_get(const char *device, tn_device_info *info, tn_error *err);

/* The devices that plugins brought so far, available or not. An index beyond the last is TN_E_USAGE. [any thread] */
TN_API size_t tn_device_count(void);
TN_API tn_status tn_device_at(size_t index, tn_device_info *info);

#ifdef __cplusplus
}
#endif
#endif
