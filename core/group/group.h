/* Inside core: the ranks that a model is cut over. All ranks make the same calls in the same order, but for
 * group_pass. */
#ifndef TENON_CORE_GROUP_H
#define TENON_CORE_GROUP_H

#include <tenon/group.h>
#include <tenon/tensor.h>

/* What a call of the model would exchange, counted while its memory is measured. */
typedef struct group_expected {
    int64_t gathers, gathered;             /* and the bytes of all ranks together                                   */
    int64_t passes, passed;                /* of all ranks, one after the other                                     */
    int64_t stage_gathers, stage_gathered; /* inside of stages                                                    */
} group_expected;

typedef struct group {
    tn_group end;
    char *buffer; /* what the transport sees: nothing else lies in these pages                     */
    size_t buffer_bytes;
    int64_t *bytes;          /* [ranks], of the parts of one call                                            */
    bool failed;             /* ranks do no longer call the same                                             */
    int64_t messages, given; /* calls so far, and bytes that this rank gave in them                          */
    double seconds;          /* how long they took                                                           */
    group_expected expected;
    struct group *stage; /* this rank's stage, where group_divide made some; or NULL. Owned              */
    struct group *whole; /* of a stage: all ranks; or NULL                                            */
} group;

/* Takes the end over, also where it fails (NULL). */
group *group_new(const tn_group *end, tn_error *err);
void group_close(group *g); /* or NULL */

/* Makes stages of so many ranks beside each other, a divisor of all. A stage is a group like any other but that nobody
 * tells or passes in it; its gathers are made of passes of the whole group, so what a stage gathers no other waits for.
 * group_stages: how many there are; group_stage_ranks: of how many ranks each (without group_divide of one). */
tn_status group_divide(group *g, int32_t ranks, tn_error *err);
int32_t group_stages(const group *g);
int32_t group_stage_ranks(const group *g);

/* Which of total rows or heads are a rank's, in whole units (the last rank has what is left, too): their number, and in
 * *first the first. group_cuts: does every rank get a unit? */
int64_t group_share(const group *g, int32_t rank, int64_t total, int64_t unit, int64_t *first);
bool group_cuts(const group *g, int64_t total, int64_t unit);

/* Rows of whole [rows,total] from those of part [rows,share of the rank], both dense and in the host's memory. */
tn_status group_join(group *g, const tn_tensor *part, const tn_tensor *whole, int64_t unit, tn_error *err);

/* Rows of whole, which is dense: each rank has made rows[rank] of them, behind those of the ranks before it. */
tn_status group_join_rows(group *g, const tn_tensor *whole, const int64_t *rows, tn_error *err);

/* Rank from's bytes become rank to's. For these two. */
tn_status group_pass(group *g, int32_t from, int32_t to, void *data, size_t bytes, tn_error *err);

/* Rank 0's bytes, for all; idle as tn_group.tell has it. */
tn_status group_tell(group *g, void *data, size_t bytes, bool idle, tn_error *err);

/* What group_join and group_join_rows of whole, group_all of part, and group_pass, will do. */
void group_expect_join(group *g, const tn_tensor *whole);
void group_expect_all(group *g, const tn_tensor *part);
void group_expect_pass(group *g, size_t bytes);

/* size bytes of every rank, side by side; *all is the group's, until the next call. */
tn_status group_all(group *g, const void *own, size_t size, const char **all, tn_error *err);

/* The same, in all [ranks * size]. */
tn_status group_exchange(group *g, const void *own, size_t size, void *all, tn_error *err);

/* The outcome of every rank becomes that of all: status where it is a failure, else that of the first rank that failed,
 * with its error, which then names it. */
tn_status group_agree(group *g, tn_status status, tn_error *err);

/* The same where rank 0 may have worked for longer than the others: they wait for as long as it lives. */
tn_status group_settle(group *g, tn_status status, tn_error *err);

#endif
