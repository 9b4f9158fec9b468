/* Inside core: the kernels and devices that plugins brought. This folder knows no checkpoint. */
#ifndef TENON_CORE_REGISTRY_H
#define TENON_CORE_REGISTRY_H

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

/* What a plugin brought for several processes that compute one model, and which one did; NULL: none did. */
const struct tn_group_kind *registry_group(const char **file);

/* The plugin that brought the device of this name; NULL: none did. */
const char *registry_device_file(const char *name);

#endif
