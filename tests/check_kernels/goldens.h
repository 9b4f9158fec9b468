/* A folder of golden files. */
#ifndef TENON_CHECK_GOLDENS_H
#define TENON_CHECK_GOLDENS_H

#include "check_kernels.h"

/* Opens the folder's files; those that are broken fail here. False after a message: there is nothing to run. */
bool goldens_open(check_state *s, const char *folder);

/* Every case of every file that the test reads, on the tier of the moment. */
void goldens_run(check_state *s, const check_test *test);

/* Closes the files, and names those that no test has read where all tests were asked. */
void goldens_close(check_state *s, bool all_tests);

/* Around a case (ops.c): what a test looks for in vain fails the case. crash: how it ended, or "". */
void golden_begin(void);
void golden_end(check_state *s, bool claimed, const char *crash);

#endif
