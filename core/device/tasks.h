/* Inside core: the threads of this process, to see whether foreign code left some behind. */
#ifndef TENON_CORE_TASKS_H
#define TENON_CORE_TASKS_H

#include <stddef.h>

/* Threads of this process; 0: not known. */
size_t tasks_count(void);

/* How many more there are than before, and still are some time (100 ms) later: a thread that is ending is none. In a
 * process with other threads these may be somebody else's, started meanwhile. before 0: 0. */
size_t tasks_left(size_t before);

#endif
