/* Inside core: what kernels.json says. */
#ifndef TENON_CORE_KERNELS_CONFIG_H
#define TENON_CORE_KERNELS_CONFIG_H

#include "plugin/spec.h"

typedef enum config_verify { CONFIG_VERIFY_FIRST_USE, CONFIG_VERIFY_ALL, CONFIG_VERIFY_NEVER } config_verify;

config_verify kernels_config_verify(const tn_config *config);
size_t kernels_config_max_packed(const tn_config *config); /* bytes; SIZE_MAX: no bound */
/* The pattern of "disable" that the id matches, or NULL. */
const char *kernels_config_disabled(const tn_config *config, const char *id);
const char *kernels_config_modules(const tn_config *config, const char *id);    /* comma separated patterns or NULL */
const char *kernels_config_pin(const tn_config *config, const char *file_name); /* "sha256:..." or NULL */
bool kernels_config_has_pins(const tn_config *config);
const struct lockfile *kernels_config_lock(const tn_config *config); /* NULL: none; also of NULL            */

/* Is auto to choose by what it measures? As the configuration says (NULL: nothing), else TENON_MEASURE, else yes. */
bool kernels_config_measure(const tn_config *config);

/* Is the same bits in any call asked for? NULL: no. */
bool kernels_config_same_bits(const tn_config *config);

/* Are kernels that round activations barred? NULL: no. */
bool kernels_config_exact(const tn_config *config);

size_t kernels_config_folders(const tn_config *config);
const char *kernels_config_folder(const tn_config *config, size_t index); /* absolute */

/* Which kernels. Borrowed until it is set again. */
const kernel_spec *kernels_config_spec(const tn_config *config);

/* The file that says which kernels, and its key; NULL: the program does, or nobody. */
const char *kernels_config_source(const tn_config *config);
const char *kernels_config_key(const tn_config *config);

/* kernels_config_check.c: are there the kernels and files that the file names? What is misspelt is an error that names
 * the file, the key and the nearest name. What may belong to a plugin that could not be used, and patterns, are warned
 * of instead: texts that go to `warnings`. To be called once folders were scanned. */
tn_status kernels_config_check(const tn_config *config, text_list *warnings, tn_error *err);

#endif
