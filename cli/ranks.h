/* Ranks that a launcher (mpirun) started. */
#ifndef TENON_CLI_RANKS_H
#define TENON_CLI_RANKS_H

#include "cli.h"

#define PATIENCE_OPTION                                                                                                \
    {                                                                                                                  \
        OPT_PATIENCE, "patience", "SECONDS", 0, OPTION_INTEGER, 1, 1e6,                                                \
            "most that ranks wait for each other; default 60"                                                          \
    }

/* Of commands that a model of several ranks can have. */
#define PARALLEL_OPTIONS                                                                                               \
    {OPT_PARALLEL, "parallel", "KIND[=N]", 0,                                                                          \
     OPTION_TEXT,  0,          0,          "cut the model over mpirun's processes: tensor, sums, experts, pipeline"},  \
        PATIENCE_OPTION

/* This process's rank; 0 where no launcher says another. */
int64_t ranks_own(void);

/* Is it one of the commands that have PARALLEL_OPTIONS? */
bool ranks_can(const command *c);

/* Does a process of several that were started know that it is one of them? */
tn_status ranks_check(const options *o, tn_error *err);

/* Rank 0 of several: from now on one that is ended by SIGTERM, as mpirun ends ranks that are left, says so. */
void ranks_watch(const options *o);

/* After a failure that this rank alone knows of: it says so, with its name. */
void ranks_blame(tn_error *err);

/* A rank but 0: the same model with the same kernels, then what rank 0 orders. */
tn_status ranks_follow(const options *o, tn_error *err);

#endif
