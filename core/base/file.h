/* Inside core: regular files, read or mapped whole. */
#ifndef TENON_CORE_FILE_H
#define TENON_CORE_FILE_H

#include "base/mapped.h"

/* Maps path read-only. Released with mapped_close. */
mapped *file_map(const char *path, size_t *size, tn_error *err);

/* Reads path, which may hold at most limit bytes. data is owned: free(). */
tn_status file_read(const char *path, size_t limit, char **data, size_t *size, tn_error *err);

/* folder/name. Owned: free(). NULL when out of memory. */
char *file_join(const char *folder, const char *name);

#endif
