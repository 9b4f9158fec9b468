/* Inside core: files that are mapped for long. What another program does to such a file meanwhile (cuts it short,
 * writes into it) must not end this one: pages that are gone read as zeros, and mapped_check says so afterwards. */
#ifndef TENON_CORE_MAPPED_H
#define TENON_CORE_MAPPED_H

#include <stddef.h>
#include <tenon/error.h>

typedef struct mapped mapped;

/* Maps all size bytes (more than 0) of the regular file fd read-only; fd may be closed afterwards. The first call of
 * the process installs a handler of SIGBUS, which hands faults elsewhere on to the handler that stood there before.
 * path is for errors. Owned: mapped_close. */
mapped *mapped_open(int fd, const char *path, size_t size, tn_error *err);
void mapped_close(mapped *map);

const void *mapped_data(const mapped *map);

/* These bytes were copied, of a mapping that is never written to: whole pages of them leave this process's memory, and
 * come back where they are read once more. Bytes that lie in no mapping stay. */
void mapped_forget(const void *data, size_t bytes);

/* TN_E_INPUT, naming the file, where it was cut short or changed in place since it was mapped: what was computed from
 * it is not to be used. A file that another one replaced (by renaming) or that was removed is kept by the mapping.
 * Costs one stat. [any thread] */
tn_status mapped_check(const mapped *map, tn_error *err);

#endif
