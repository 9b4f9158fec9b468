/* A temporary folder of plugins, with a configuration that scans it and a cache of its own. One at a time. */
#ifndef TEST_PLUGIN_BOX_H
#define TEST_PLUGIN_BOX_H

#include <tenon/tenon.h>

/* Makes the folder, until the test ends (suite.h), and points XDG_CACHE_HOME and the umask where tests want them.
 * Failures of the system abort. */
void plugin_box_open(void);

/* The folder that is scanned, and the one around it, which holds "cache". */
const char *plugin_box_folder(void);
const char *plugin_box_root(void);

/* Copies build/tests/bad_plugins/FROM.so to the folder as AS; FROM may be ../bad_kernels/NAME. */
void plugin_box_add(const char *from, const char *as);

/* Path of build/tests/bad_plugins/NAME.so. Static storage, until the next call. */
const char *plugin_box_built(const char *name);

/* A configuration of the folder, with what a kernels.json says or (NULL) nothing else. Until the test ends (suite.h).
 */
tn_config *plugin_box_config(const char *json);

/* Scans the folder; config NULL: with nothing but the folder configured. */
tn_status plugin_box_scan(const tn_config *config, tn_error *err);

/* What is known of the file of that name in the folder; false: it is not listed. */
bool plugin_box_info(const char *name, tn_plugin_info *info);
tn_plugin_info plugin_box_of(const char *name); /* which must be listed */

#endif
