/* A group (tenon/group.h) of processes that fork made of one: bytes cross in memory that they share. */
#ifndef TEST_LOCAL_GROUP_H
#define TEST_LOCAL_GROUP_H

#include <tenon/group.h>

typedef struct local_group local_group;

/* Before the fork. NULL: no memory. Lives as long as the process. */
local_group *local_group_new(int32_t ranks);

/* A rank's end, in its process; each rank once. */
tn_group local_group_end(local_group *g, int32_t rank);

/* From now on each rank comes to each gather by up to 262 us late; seed 0: no longer. In any process. */
void local_group_shake(local_group *g, uint32_t seed);

/* How many bytes crossed so far, and in how many calls: of a gather those of the whole, once. */
void local_group_count(const local_group *g, int64_t *calls, int64_t *bytes);

#endif
