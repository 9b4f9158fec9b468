/* Inside core: what code that nobody trusts yet may ask of the system. */
#ifndef TENON_CORE_CONFINE_H
#define TENON_CORE_CONFINE_H

#include <stdbool.h>

typedef enum confine_rights {
    CONFINE_CALLS, /* no network, no change to what files exist and what they are like; those of processes are
                      protected from ptrace. Files may be opened for writing, as run-time libraries for threads do with
                      memory that they share, and children be signalled                                           */
    CONFINE_TRIAL  /* besides: no file is opened for writing, and no signal goes to another process              */
} confine_rights;

/* For the rest of this process and of those it starts, what is not allowed fails with EPERM, and no program that it
 * starts gains rights. Only for a child (guard.h), while it has one thread. false: the library was built without
 * libseccomp, or the system has no such filters; nothing is changed then. */
bool confine_enter(confine_rights rights);

/* NULL: there are filters. Otherwise why not, in words that live as long as the process. The first call asks a child.
 */
const char *confine_missing(void);

/* Filters of system calls that this process is under; -1: not known. */
int confine_filters(void);

#endif
