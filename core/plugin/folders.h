/* Inside core: the folders that are scanned for plugins. */
#ifndef TENON_CORE_FOLDERS_H
#define TENON_CORE_FOLDERS_H

#include <tenon/tenon.h>

/* Loads one plugin file, wherever it is and whoever may write there, with everything else that a scan does:
 * its note, its trial in a child, its descriptor. file receives the name that its kernels are registered under, which
 * is borrowed. TN_E_KERNEL with the reason when it is no usable plugin. */
tn_status folders_load_file(const char *path, const char **file, tn_error *err);

#endif
