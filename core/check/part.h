/* Inside core: some tokens of a call as a call of their own, which must give the same bits (TN_SAME_BITS). */
#ifndef TENON_CORE_PART_H
#define TENON_CORE_PART_H

#include <tenon/kernel.h>

#include <stdbool.h>

/* Tokens first .. first + count - 1; of batch row `row` where the operation has batch rows. */
typedef struct part {
    int64_t row, first, count;
} part;

/* Are the operation's tokens computed each by itself? Attention's are, from keys that are given. */
bool part_by_token(tn_op op);

/* Tokens of a batch row, or of the call, and its batch rows. */
int64_t part_tokens(const tn_call *whole);
int64_t part_rows(const tn_call *whole);

/* The call of the part: views into the whole's tensors, those without data, too. counts: room for those of
 * GROUPED_MATMUL, one for each group; else NULL. */
tn_call part_call(const tn_call *whole, const part *p, int64_t *counts);

#endif
