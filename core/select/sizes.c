/* The numbers that a kernel sees of a call, as bits of a set that is small enough to be looked at in every call. */
#include "select/sizes.h"

#include "graph/graph.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* One kind of number: what is no larger than exact has a bit of its own, what is larger one for its class, of which an
 * octave has `classes`, and one for its remainder. */
typedef struct number {
    int32_t first; /* bit                                                                        */
    int32_t exact, classes, modulus;
} number;

enum { OCTAVES = 32 };
enum { COUNT_EXACT = 1024, KEYS_EXACT = 128, CLASSES = 16, BLOCK = 64, GROUP_EXACT = 64, GROUP_BLOCK = 16 };
enum { COUNT_BITS = COUNT_EXACT + 1 + OCTAVES * CLASSES + BLOCK };
enum { KEYS_BITS = KEYS_EXACT + 1 + OCTAVES * CLASSES + BLOCK };
enum { GROUP_BITS = GROUP_EXACT + 1 + OCTAVES + GROUP_BLOCK };
enum { KEYS_FIRST = 3 * COUNT_BITS, GROUP_FIRST = KEYS_FIRST + GRAPH_SIZES * KEYS_BITS };
enum { ALL_BITS = GROUP_FIRST + GROUP_BITS };
_Static_assert(ALL_BITS <= 64 * SIZES_WORDS, "a set of sizes has a bit for each");

/* Tokens of a call; where rows of them are apart, those, and the tokens of each. */
static const number tokens = {0, COUNT_EXACT, CLASSES, BLOCK};
static const number rows = {COUNT_BITS, COUNT_EXACT, CLASSES, BLOCK};
static const number row_tokens = {2 * COUNT_BITS, COUNT_EXACT, CLASSES, BLOCK};

/* Positions that one, some or many queries look at: a text that is generated meets each remainder and each class once.
 */
static const number keys[GRAPH_SIZES] = {
    {KEYS_FIRST, KEYS_EXACT, CLASSES, BLOCK},
    {KEYS_FIRST + KEYS_BITS, KEYS_EXACT, CLASSES, BLOCK},
    {KEYS_FIRST + 2 * KEYS_BITS, KEYS_EXACT, CLASSES, BLOCK},
};

/* Tokens of one expert, or rows of a group. A prompt has as many of these as experts, and each layer others: coarse
 * classes, so that the first layers meet nearly all. */
static const number group = {GROUP_FIRST, GROUP_EXACT, 1, GROUP_BLOCK};
enum { MOST_GROUPS = 1024 };

static bool meet_bit(sizes *s, int64_t bit, bool add)
{
    uint64_t *word = &s->bits[bit / 64], mask = UINT64_C(1) << (bit % 64);
    bool known = *word & mask;
    if (add)
        *word |= mask;
    return known;
}

static bool meet(sizes *s, const number *of, int64_t n, bool add)
{
    if (n <= of->exact)
        return meet_bit(s, of->first + (n > 0 ? n : 0), add);
    uint32_t bounded = n < INT32_MAX ? (uint32_t)n : INT32_MAX;
    int32_t octave = 31 - __builtin_clz(bounded), from = of->first + of->exact + 1;
    int64_t class = (int64_t)((uint64_t)bounded * (uint64_t)of->classes >> octave) - of->classes;
    bool known = meet_bit(s, from + octave * of->classes + class, add);
    return meet_bit(s, from + OCTAVES * of->classes + n % of->modulus, add) && known;
}

static bool meet_experts(sizes *s, const tn_call *call, bool add)
{
    const tn_tensor *chosen = &call->in[2];
    int32_t count[MOST_GROUPS];
    int64_t experts = call->site->dim[TN_DIM_EXPERTS];
    bool known = true;
    if (experts > MOST_GROUPS)
        return true;
    memset(count, 0, (size_t)experts * sizeof *count);
    for (int64_t t = 0; t < chosen->shape[0]; t++)
        for (int64_t j = 0; j < chosen->shape[1]; j++) {
            int32_t expert = ((const int32_t *)chosen->data)[t * chosen->stride[0] + j];
            if (expert >= 0 && expert < experts)
                count[expert]++;
        }
    for (int64_t e = 0; e < experts; e++)
        known &= meet(s, &group, count[e], add);
    return known;
}

static bool meet_groups(sizes *s, const tn_call *call, bool add)
{
    const tn_tensor *counts = &call->in[1];
    bool known = true;
    for (int64_t i = 0; i < counts->shape[0]; i++)
        known &= meet(s, &group, ((const int64_t *)counts->data)[i], add);
    return known;
}

bool sizes_meet(sizes *s, const tn_call *call, bool add)
{
    const tn_tensor *x = &call->in[0];
    bool known = meet(s, &tokens, op_tokens(call), add);
    if (x->ndim > 2 && x->shape[0] != 1) {
        known &= meet(s, &rows, x->shape[0], add);
        known &= meet(s, &row_tokens, x->shape[1], add);
    }
    if (call->op == TN_OP_ATTENTION)
        known &= meet(s, &keys[graph_size_of(x->shape[1])], call->in[1].shape[1], add);
    if (call->op == TN_OP_MOE_EXPERTS)
        known &= meet_experts(s, call, add);
    if (call->op == TN_OP_GROUPED_MATMUL)
        known &= meet_groups(s, call, add);
    return known;
}

void sizes_write(const sizes *s, text *out)
{
    for (int i = 0; i < SIZES_WORDS; i++)
        text_add(out, "%016llx", (unsigned long long)s->bits[i]);
}

bool sizes_read(sizes *s, const char *word)
{
    char digits[17] = "";
    if (strspn(word, "0123456789abcdef") != (size_t)16 * SIZES_WORDS)
        return false;
    for (int i = 0; i < SIZES_WORDS; i++) {
        memcpy(digits, word + (size_t)16 * i, 16);
        s->bits[i] = strtoull(digits, NULL, 16);
    }
    return true;
}

void sizes_join(sizes *s, const sizes *more)
{
    for (int i = 0; i < SIZES_WORDS; i++)
        s->bits[i] |= more->bits[i];
}
