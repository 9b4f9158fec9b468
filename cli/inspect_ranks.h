/* tenon inspect --parallel: what each rank would hold. */
#ifndef TENON_CLI_INSPECT_RANKS_H
#define TENON_CLI_INSPECT_RANKS_H

#include "cli.h"

/* Opens the model as each rank in turn, without the others, and prints what it has. */
tn_status inspect_ranks(const options *o, tn_error *err);

#endif
