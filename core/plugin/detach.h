/* Inside core/plugin: taking the pages of loaded libraries out of the hands of whoever can write their files. Pages of
 * a mapped file that nobody has written to yet are read from the file as it is at that time; and where a file is cut
 * short, even pages that were written to are gone. */
#ifndef TENON_CORE_DETACH_H
#define TENON_CORE_DETACH_H

#include "plugin/objects.h"

/* Puts memory of this process, with the same content and rights, at the same addresses, in the place of all pages of
 * files in the libraries that were loaded since before. Left as they are: the system's (writers_is_system, with folder)
 * and, unless variables, pages that are written to: another thread must not write there meanwhile.
 * TN_E_MEMORY; TN_E_INPUT: pages cannot be read, since a file was cut short in this very moment; TN_E_INTERNAL: this
 * system does not allow it. Some pages may have been replaced then, which changes nothing else. One thread at a time.
 */
tn_status detach_new(const objects_loaded *before, const char *folder, bool variables, tn_error *err);

#endif
