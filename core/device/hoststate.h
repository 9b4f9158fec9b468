/* Inside core: what foreign code may change behind the program's back. */
#ifndef TENON_CORE_HOSTSTATE_H
#define TENON_CORE_HOSTSTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the calling thread: floating-point control, signal mask, its locale. Of the process: signal handlers, locale,
 * working directory, umask, descriptors 0 to 2 and interval timers. Of a whole one also limits, and the processors that
 * the thread may run on. */
typedef struct hoststate hoststate;

/* Everything. Owned by the caller, who hands it to hoststate_restore; NULL when out of memory. */
hoststate *hoststate_save(void);

/* Puts back what differs and says what that was ("floating-point control, handler of SIGINT"); "" when nothing.
 * Takes state, which may be NULL. */
void hoststate_restore(hoststate *state, char *changed, size_t changed_size);

/* For whoever looks often: saves again in the same memory, quickly, without what hardly anybody changes (limits,
 * processors, handlers of unusual signals). Allocates nothing where the locale is that of the last time. */
void hoststate_again(hoststate *state);

/* Does anything differ? changed as of hoststate_restore. put_back: it is put back. state may be NULL. */
bool hoststate_differs(const hoststate *state, bool put_back, char *changed, size_t changed_size);
void hoststate_free(hoststate *state);

/* Between looks: closes its copies of descriptors and folder, which would keep a pipe open that the program closes. */
void hoststate_release(hoststate *state);

/* The floating-point control of the calling thread without the flags of past operations; nanoseconds. */
uint64_t hoststate_control(void);
void hoststate_set_control(uint64_t control);

#endif
