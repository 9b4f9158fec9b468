/* Rotary position embedding of one tensor, out of place: y = x * cos + rotated(x) * sin. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

enum { HALF, INTERLEAVE };

/* The element that goes with element d of a row of n in the rotated term, and its sign. */
static int64_t partner(int64_t mode, int64_t d, int64_t n, float *sign)
{
    bool first = mode == HALF ? d < n / 2 : d % 2 == 0;
    *sign = first ? -1.0f : 1.0f;
    if (mode == HALF)
        return first ? d + n / 2 : d - n / 2;
    return first ? d + 1 : d - 1;
}

static float *load_repeated(const sim_tensor *t, const sim_tensor *like)
{
    sim_tensor repeated;
    sim_broadcast(t, like->rank, like->shape, &repeated);
    return sim_load(&repeated);
}

/* Tensors: x, cos, sin, out. i: the mode. */
static int run_rotary(sim_op *op)
{
    const sim_tensor *tx = op->tensors[0];
    int64_t n = tx->shape[tx->rank - 1], count = sim_elements(tx);
    float *x = sim_load(tx), *cos = load_repeated(op->tensors[1], tx), *sin = load_repeated(op->tensors[2], tx);
    float *y = sim_allocate((size_t)count * sizeof *y), sign;
    for (int64_t i = 0; i < count; i++) {
        int64_t other = partner(op->i[0], i % n, n, &sign);
        y[i] = x[i] * cos[i] + sign * x[i - i % n + other] * sin[i];
    }
    sim_store(op->tensors[3], y);
    free(x);
    free(cos);
    free(sin);
    free(y);
    return 0;
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

/* Where batch, heads and sequence are, and for which of the dimensions 0 to 2 cos and sin have x's length (bits) in its
 * three forms; else they have 1. */
typedef struct layout {
    int b, n, s;
    int forms[3];
} layout;

static const layout layouts[] = {
    {0, 1, 2, {4, 5, 7}}, /* BNSD: (1,1,S) (B,1,S) (B,N,S) */
    {0, 2, 1, {2, 3, 7}}, /* BSND: (1,S,1) (B,S,1) (B,S,N) */
    {1, 2, 0, {1, 3, 7}}, /* SBND: (S,1,1) (S,B,1) (S,B,N) */
};

static bool has_form(const sim_tensor *x, const sim_tensor *cos, int form)
{
    for (int i = 0; i < 3; i++)
        if (cos->shape[i] != (form >> i & 1 ? x->shape[i] : 1))
            return false;
    return true;
}

#define CORES 48 /* vector cores; the number differs between chips, this is the most of them */

/* The vendor's newer text on half mode with BNSD; older versions may take more. */
static bool fits_bnsd(int64_t b, int64_t n, int64_t s, int64_t d, size_t size)
{
    if ((size_t)(d / 2) * size % 32 == 0)
        return b * n <= 8 * s;
    return b * n * 2 <= (s + CORES - 1) / CORES || d >= 80;
}

/* Broadcasting alone tells the layout; shapes that fit several are taken when one of them allows them. */
static bool some_layout(const sim_tensor *x, const sim_tensor *cos, int64_t mode)
{
    for (int i = 0; i < 3; i++) {
        const layout *l = layouts + i;
        int64_t b = x->shape[l->b], n = x->shape[l->n], s = x->shape[l->s], d = x->shape[3];
        for (int f = 0; f < (mode == HALF ? 3 : 1); f++) {
            if (!has_form(x, cos, l->forms[f]))
                continue;
            if (mode == INTERLEAVE ? b * n < 1000
                                   : b < 1000 && n < 1000 && (i || fits_bnsd(b, n, s, d, aclDataTypeSize(x->type))))
                return true;
        }
    }
    return false;
}

static bool right_tnd(const sim_tensor *x, const sim_tensor *cos, int64_t mode)
{
    bool every = cos->shape[1] == x->shape[1] && mode == HALF;
    return x->shape[1] < 1000 && cos->shape[0] == x->shape[0] && (cos->shape[1] == 1 || every);
}

/* x of rank 3, TND, is for newer versions. */
static void check_rotary(sim_op *op, const sim_tensor *x, const sim_tensor *cos, const sim_tensor *sin, int64_t mode,
                         int least_rank)
{
    if (mode != HALF && mode != INTERLEAVE) /* 2 and 3 are for newer chips */
        sim_fault(op, 561002, "mode %lld", (long long)mode);
    sim_want_rank(op, 561002, x, least_rank, 4);
    sim_want_rank(op, 561002, cos, x->rank, x->rank);
    sim_want_shape(op, 561002, sin, cos->rank, cos->shape);
    if (op->code)
        return;
    int64_t d = x->shape[x->rank - 1];
    if (d % 2 || d >= 896)
        sim_fault(op, 561002, "D is %lld, it has to be even and less than 896", (long long)d);
    if (cos->shape[x->rank - 1] != d)
        sim_fault(op, 561002, "cos and sin have %lld elements a row instead of D, %lld",
                  (long long)cos->shape[x->rank - 1], (long long)d);
    if (!(x->rank == 4 ? some_layout(x, cos, mode) : right_tnd(x, cos, mode)))
        sim_fault(op, 561002, "the shape of cos and sin fits no layout of x, or is beyond its limits");
}

static uint64_t rotary(sim_op *op, const sim_tensor *x, const sim_tensor *cos, const sim_tensor *sin, int64_t mode,
                       int least_rank, const sim_tensor *out)
{
    check_rotary(op, x, cos, sin, mode, least_rank);
    ops_want_like(op, 561002, x, out);
    op->i[0] = mode;
    return sim_runs(op, run_rotary, OPS_WORKSPACE);
}

SIM_RULE(aclnnRotaryPositionEmbedding, ACL_ROTARY)
{
    return rotary(op, x, cos, sin, mode, 4, out);
}

SIM_RULE(aclnnRotaryPositionEmbeddingV2, ACL_ROTARY_V2)
{
    if (rotate)
        sim_fault(op, 161002, "rotate is not simulated, it has to be NULL");
    return rotary(op, x, cos, sin, mode, 3, out);
}
