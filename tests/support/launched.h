/* The group of ranks that mpirun started. */
#ifndef TEST_LAUNCHED_H
#define TEST_LAUNCHED_H

#include <tenon/group.h>

/* This process's end, from the plugins that have been scanned; NULL: err says why. It serves many models, one after the
 * other, since a process can open it once: launched_close is what ends it, and closing a model does not. */
const tn_group *launched_open(tn_error *err);
void launched_close(void);

#endif
