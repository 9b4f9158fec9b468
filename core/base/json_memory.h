/* Inside core: whether jansson got all the memory that it asked for. It does not always say so: a text loses the byte
 * whose place could not be had, an object the member. */
#ifndef TENON_CORE_JSON_MEMORY_H
#define TENON_CORE_JSON_MEMORY_H

#include <stdbool.h>

/* Forgets what failed before on this thread. The first call of the process puts a function around jansson's allocator,
 * whichever that is then. [any thread] */
void json_memory_watch(void);

/* Did an allocation of jansson's fail on this thread since? What it read or wrote is not to be used then. */
bool json_memory_failed(void);

#endif
