/* Inside core: the code that a lock knows: the library, plugins, and what came in with them (base/lockfile.h). */
#ifndef TENON_CORE_LOCK_CODE_H
#define TENON_CORE_LOCK_CODE_H

#include "base/lockfile.h"
#include "base/text.h"

/* Appends the members "version", "library", "plugins" and "libraries" of the process as it is. */
tn_status lock_code_tell(text *out, tn_error *err);

/* Is all code of the process that is not the system's in the lock, byte for byte? TN_E_KERNEL names what is not. The
 * system's libraries (root's, where the system keeps them) are not looked at. */
tn_status lock_code_check(const lockfile *lock, tn_error *err);

/* Has the process each plugin of the lock? TN_E_KERNEL names one that it has not. */
tn_status lock_code_complete(const lockfile *lock, tn_error *err);

/* Is a file of that name and digest in codes? where, what: who is called what in the error. */
tn_status lock_code_find(const lockfile *lock, const lockfile_codes *codes, const char *where, const char *name,
                         const char *sha256, tn_error *err);

#endif
