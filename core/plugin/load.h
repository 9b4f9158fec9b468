/* Inside core/plugin: loading a file, from its bytes to its kernels. */
#ifndef TENON_CORE_LOAD_H
#define TENON_CORE_LOAD_H

#include "plugin/candidate.h"

/* Everything that comes before its code runs in this process. */
void load_examine(candidate *c, const tn_config *config);

/* Opens and registers it where examining found nothing against that. */
void load_open(candidate *c);

#endif
