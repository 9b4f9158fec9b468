/* Inside core: plugins of the process and the kernels they brought. This folder knows no checkpoint. */
#ifndef TENON_CORE_REGISTRY_H
#define TENON_CORE_REGISTRY_H

#include "base/text.h"

#include <tenon/tenon.h>

/* What a check said of a kernel at sites of one shape, outside of any model. */
typedef struct registry_verdict {
    struct registry_verdict *next;
    uint64_t shape;
    bool trusted;
    char reason[320]; /* why not                                                                  */
} registry_verdict;

/* A registered kernel, normalised: descriptors are copied into the host's own struct sizes, so every field may be read
 * whatever minor version the plugin was built with. */
typedef struct registry_kernel {
    tn_kernel kernel; /* impls points to copies                                                  */
    const char *file;
    bool probed; /* available has been asked, in a child first                              */
    bool available;
    char reason[512];
    registry_verdict *verdicts;
} registry_kernel;

/* The kernels of one device, ordered by id. Pointers stay valid for the life of the process. */
size_t registry_count(const char *device);
registry_kernel *registry_at(const char *device, size_t index);

/* Those of all devices; NULL behind the last. */
registry_kernel *registry_any(size_t index);
registry_kernel *registry_find(const char *device, const char *id);

/* The id nearest to a misspelt one (Damerau-Levenshtein), or NULL. device NULL: among those of all. */
const char *registry_nearest(const char *device, const char *id);

/* Asks available() once, first in a child (guard.h). Fills probed, available, reason. An error: it could not be asked,
 * and will be the next time; until then it is not available. */
tn_status registry_probe(registry_kernel *kernel, tn_error *err);

/* The verdict on a shape, a hash that includes which implementation, or NULL: none yet. Kept as long as the kernel.
 * remember returns NULL when there is no memory. reason NULL: trusted. */
const registry_verdict *registry_recall(registry_kernel *kernel, uint64_t shape);
const registry_verdict *registry_remember(registry_kernel *kernel, uint64_t shape, const char *reason);

/* NAME[:ORDINAL] taken apart: false where text is not that. name has room for REGISTRY_NAME bytes. */
#define REGISTRY_NAME 32
bool registry_parse_device(const char *text, char name[REGISTRY_NAME], int32_t *ordinal);

/* The device that NAME[:ORDINAL] is a unit of, which is asked whether it is available first. NULL and "auto": the
 * built-in one. NULL with an error that names those there are. */
const tn_device *registry_device(const char *text, int32_t *ordinal, tn_error *err);

/* The devices that plugins brought, in the order in which they came; NULL behind the last. */
const tn_device *registry_device_at(size_t index);

/* The plugin that brought the device of this name; NULL: none did. */
const char *registry_device_file(const char *name);
/* folders.c: loads one plugin file, wherever it is and whoever may write there, with everything else that a scan does:
 * its note, its trial in a child, its descriptor. file receives the name that its kernels are registered under, which
 * is borrowed. TN_E_KERNEL with the reason when it is no usable plugin. */
tn_status folders_load_file(const char *path, const char **file, tn_error *err);

/* ---- select.c: does a kernel take a site? ---------------------------------------------------- */

/* Evaluates the declarative match. TN_OK: yes. TN_DECLINED: the first rule that failed, with both values, in
 * reason ("act: site has gelu_tanh, kernel takes silu"). */
tn_status select_match(const tn_site *site, const tn_impl *impl, char *reason, size_t reason_size);

/* Is the declaration complete? Used at registration. */
tn_status select_validate(const tn_impl *impl, tn_error *err);

/* A parsed SPEC. AUTO: all but those left out, ids before the others. */
typedef struct select_spec {
    enum { SELECT_NONE, SELECT_AUTO, SELECT_IDS } mode;
    char **ids; /* by name, in the order of preference                                            */
    size_t count;
    char **without; /* those of "-id"; with AUTO only                                             */
    size_t without_count;
    text_list notes; /* what of it has no effect here                                             */
} select_spec;
tn_status spec_parse_list(const char *text, select_spec *spec, tn_error *err);
/* The same; or, where text begins with '{', LLaMA-Factory's kernel_config in JSON. */
tn_status spec_parse(const char *text, select_spec *spec, tn_error *err);
char *spec_text(const select_spec *spec); /* in one way of writing it; owned; NULL: no memory */
void spec_free(select_spec *spec);

/* The kernel of the device that a name of a SPEC stands for, or NULL. The name is its id; or LLaMA-Factory's for those
 * of an operation, several of which may do. */
registry_kernel *spec_first_kernel(const char *device, const char *name);
bool spec_stands_for(const char *name, const registry_kernel *kernel);

/* The name for the kernels of an operation, kept as long as the process, and which; NULL: it is none. op may be NULL.
 */
const char *spec_shared_name(const char *name, tn_op *op);

/* What a name of LLaMA-Factory's is that nothing here stands in for ("is a ..."); NULL: it is none of these. */
const char *spec_declined(const char *name);

/* The name nearest to a misspelt one: an id of any device, or one for an operation; or NULL. */
const char *spec_nearest(const char *name);

/* ---- kernels_config.c: what kernels.json says --------------------------------------------------------- */

typedef enum config_verify { CONFIG_VERIFY_FIRST_USE, CONFIG_VERIFY_ALL, CONFIG_VERIFY_NEVER } config_verify;

config_verify kernels_config_verify(const tn_config *config);
size_t kernels_config_max_packed(const tn_config *config); /* bytes; SIZE_MAX: no bound */
/* The pattern of "disable" that the id matches, or NULL. */
const char *kernels_config_disabled(const tn_config *config, const char *id);
const char *kernels_config_modules(const tn_config *config, const char *id);    /* comma separated patterns or NULL */
const char *kernels_config_pin(const tn_config *config, const char *file_name); /* "sha256:..." or NULL */
bool kernels_config_has_pins(const tn_config *config);

/* Is auto to choose by what it measures? As the configuration says (NULL: nothing), else TENON_MEASURE, else yes. */
bool kernels_config_measure(const tn_config *config);

size_t kernels_config_folders(const tn_config *config);
const char *kernels_config_folder(const tn_config *config, size_t index); /* absolute */

/* Which kernels. Borrowed until it is set again. */
const select_spec *kernels_config_spec(const tn_config *config);

/* The file that says which kernels, and its key; NULL: the program does, or nobody. */
const char *kernels_config_source(const tn_config *config);
const char *kernels_config_key(const tn_config *config);

/* kernels_config_check.c: are there the kernels and files that the file names? What is misspelt is an error that names
 * the file, the key and the nearest name. What may belong to a plugin that could not be used, and patterns, are warned
 * of instead: texts that go to `warnings`. To be called once folders were scanned. */
tn_status kernels_config_check(const tn_config *config, text_list *warnings, tn_error *err);

#endif
