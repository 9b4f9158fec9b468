/* Inside core: the edge between C and libraries that do not bear a lack of memory: oneDNN, whose C interface lets
 * exceptions of C++ through and which writes to address zero where it finds no place for generated code, and libltdl,
 * which reads there. */
#ifndef TENON_CORE_EDGE_H
#define TENON_CORE_EDGE_H

#include <stdbool.h>

/* Installs, once, a handler of SIGSEGV and one of exceptions of C++ that nobody catches. Both hand on what is not
 * theirs to the handler that stood there. */
void edge_install(void);

/* work(argument). false: it did not return, by an exception or a null pointer; what it locked may stay locked, and
 * the library is not to be called again by this process. */
bool edge_call(void (*work)(void *), void *argument);

#endif
