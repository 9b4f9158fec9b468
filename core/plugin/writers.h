/* Inside core/plugin: who may write where code comes from. */
#ifndef TENON_CORE_WRITERS_H
#define TENON_CORE_WRITERS_H

#include <stdbool.h>
#include <sys/stat.h>
#include <tenon/error.h>

/* A file or folder must belong to root or the user and must not be writable by group or others. path is for messages.
 */
tn_status writers_check(const struct stat *st, const char *path, tn_error *err);

/* A folder and all above it, as it is named and as it is without links. Above it folders like /tmp, where only owners
 * rename and remove, may be anyone's to write to. folder: absolute. */
tn_status writers_check_folder(const char *folder, tn_error *err);

/* A library, and the folder that holds it. path: absolute. */
tn_status writers_check_library(const char *path, tn_error *err);

/* Is it one of the system's libraries: root's, where the system keeps them? Not in folder (NULL: none), of plugins. */
bool writers_is_system(const char *path, const char *folder);

#endif
