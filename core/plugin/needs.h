/* Inside core/plugin: which libraries a file asks for, before any of its code runs. */
#ifndef TENON_CORE_NEEDS_H
#define TENON_CORE_NEEDS_H

#include "plugin/objects.h"

typedef struct needs {
    objects_list found; /* where the file, LD_LIBRARY_PATH or a found one lead                       */
    bool more;          /* others are left to the dynamic linker's own places                        */
} needs;

/* Reads the file's dynamic section and that of every library found, and refuses what would depend on the folder in
 * which the program happens to be: relative names and run paths, '$' other than a leading $ORIGIN of a run path,
 * and what would have memory that can be written and executed (a stack, a segment). Libraries that this process has
 * already are left out. path: absolute. named: folders and files may be anyone's. Owned: needs_free. */
tn_status needs_read(const void *content, size_t size, const char *path, bool named, needs *n, tn_error *err);
void needs_free(needs *n);

#endif
