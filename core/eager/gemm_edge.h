/* Inside core/eager: the edge between C and oneDNN, whose C interface lets exceptions of C++ through and which, where it
 * finds no memory for generated code, writes to address zero. */
#ifndef TENON_CORE_EAGER_GEMM_EDGE_H
#define TENON_CORE_EAGER_GEMM_EDGE_H

#ifdef __cplusplus
#define GEMM_EDGE extern "C"
#else
#include <stdbool.h>
#define GEMM_EDGE
#endif

/* Installs a handler of SIGSEGV, once, which hands on what is not its own to the handler that stood there. */
GEMM_EDGE void gemm_edge_install(void);

/* work(argument). false: it did not return, by an exception or a null pointer; what it locked may stay locked, and
 * oneDNN is not to be called again by this process. */
GEMM_EDGE bool gemm_edge_call(void (*work)(void *), void *argument);

#endif
