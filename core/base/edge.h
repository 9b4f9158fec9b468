/* Inside core: the edge between C and libraries that do not bear a lack of memory: oneDNN, whose C interface lets
 * exceptions of C++ through and which writes to address zero where it finds no place for generated code, and libltdl,
 * which reads there. */
#ifndef TENON_CORE_EDGE_H
#define TENON_CORE_EDGE_H

#ifdef __cplusplus
#define EDGE extern "C"
#else
#include <stdbool.h>
#define EDGE
#endif

/* Installs a handler of SIGSEGV, once, which hands on what is not its own to the handler that stood there. */
EDGE void edge_install(void);

/* work(argument). false: it did not return, by an exception or a null pointer; what it locked may stay locked, and
 * the library is not to be called again by this process. */
EDGE bool edge_call(void (*work)(void *), void *argument);

#endif
