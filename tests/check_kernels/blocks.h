/* A folder of quantised weights, each format in a file, with the values that they stand for. */
#ifndef TENON_CHECK_BLOCKS_H
#define TENON_CHECK_BLOCKS_H

#include "check_kernels.h"

/* Holds eager against every file. False after a message: there is no such folder. */
bool blocks_run(check_state *s, const char *folder);

#endif
