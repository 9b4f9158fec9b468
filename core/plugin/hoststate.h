/* Inside core/plugin: what a library's constructor may change behind the program's back. */
#ifndef TENON_CORE_HOSTSTATE_H
#define TENON_CORE_HOSTSTATE_H

#include <stddef.h>

/* Floating-point control of the calling thread, signal handlers, locale and working directory. */
typedef struct hoststate hoststate;

/* Owned by the caller, who hands it to hoststate_restore; NULL when out of memory. */
hoststate *hoststate_save(void);

/* Puts back what differs and says what that was ("floating-point control, handler of SIGINT"); "" when nothing.
 * Takes state, which may be NULL. */
void hoststate_restore(hoststate *state, char *changed, size_t changed_size);

#endif
