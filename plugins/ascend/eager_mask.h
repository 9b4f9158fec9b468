/* Which keys queries see: worked out on the host, for attention that adds a mask to its scores. */
#ifndef ASCEND_EAGER_MASK_H
#define ASCEND_EAGER_MASK_H

#include <stdbool.h>
#include <stdint.h>

/* A query at position q sees a key at position 0 <= k <= q with q - k < window and in the same chunk; 0: no such rule.
 * both_sides: also one behind it, with k - q < window. */
typedef struct mask_rule {
    int64_t window, chunk;
    bool both_sides;
} mask_rule;

/* Keys [first, end) are those that some query sees. masked: some query does not see all of them. */
typedef struct mask_span {
    int64_t first, end;
    bool masked;
} mask_span;

/* Of the queries at positions q and the keys at positions k. */
mask_span mask_find(const mask_rule *rule, const int32_t *q, int64_t queries, const int32_t *k, int64_t keys);

/* What is added to scores [queries, keys]: 0, or so little that nothing is left of them. A query that sees nothing gets
 * zeros throughout, so that its softmax is of numbers, and sees [queries] is 0 for it, 1 for others. Returns whether
 * there is one. */
bool mask_fill(const mask_rule *rule, const int32_t *q, int64_t queries, const int32_t *k, int64_t keys, float *mask,
               float *sees);

/* The same as truth: what is not seen. Returns whether some query sees nothing. */
bool mask_hide(const mask_rule *rule, const int32_t *q, int64_t queries, const int32_t *k, int64_t keys, bool *hidden);

#endif
