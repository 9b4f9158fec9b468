/* Inside core: the code that a lock knows: the library, plugins, and what came in with them (base/lockfile.h). */
#ifndef TENON_CORE_LOCK_CODE_H
#define TENON_CORE_LOCK_CODE_H

#include "base/lockfile.h"
#include "base/text.h"

/* Appends the members "version", "library", "plugins" and "libraries" of the process as it is. TN_E_KERNEL
 * names a plugin that was refused. */
tn_status lock_code_tell(text *out, tn_error *err);

/* Is all code of the process that is not the system's in the lock, byte for byte, and was nothing kept
 * out by the lock of the last scan? TN_E_KERNEL names what is not. The system's libraries (root's, where the system
 * keeps them) are not looked at. */
tn_status lock_code_check(const lockfile *lock, tn_error *err);

/* After a scan: lists each plugin of the lock that the process has not as one that the lock keeps out. */
tn_status lock_code_complete(const lockfile *lock, tn_error *err);

/* Is a file of that name and digest in codes? where: of the error. */
tn_status lock_code_find(const lockfile *lock, const lockfile_codes *codes, const char *where, const char *name,
                         const char *sha256, tn_error *err);

#endif
