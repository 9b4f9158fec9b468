/* Inside core: regular files, read or mapped whole. */
#ifndef TENON_CORE_FILE_H
#define TENON_CORE_FILE_H

#include <stddef.h>
#include <tenon/error.h>

/* Maps path read-only and private. A file that another process shrinks afterwards cannot be caught: touching the
 * missing pages raises SIGBUS. Released with file_unmap. */
tn_status file_map(const char *path, void **data, size_t *size, tn_error *err);
void file_unmap(void *data, size_t size);

/* Reads path, which may hold at most limit bytes. data is owned: free(). */
tn_status file_read(const char *path, size_t limit, char **data, size_t *size, tn_error *err);

/* folder/name. Owned: free(). NULL when out of memory. */
char *file_join(const char *folder, const char *name);

#endif
