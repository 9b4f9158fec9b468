/* Inside core: do libraries come in, and what do they bring about? */
#ifndef TENON_CORE_LIBRARIES_H
#define TENON_CORE_LIBRARIES_H

#include <stdbool.h>

/* How many libraries this process has loaded so far, gone ones counted: more than before, when others came in since. */
unsigned long long libraries_loaded(void);

/* Is the program's first stack executable? The dynamic linker makes all stacks so for a library that asks for that. */
bool libraries_stack_runs(void);

#endif
