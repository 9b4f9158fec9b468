/* RmsNorm and its like, over the dimensions that gamma covers. All sums in 32 bits, one rounding at the end, but for
 * AddRmsNorm, which rounds where its kernel does. Squares are divided by their number before they are added up, as a
 * vector of 256 bytes does it: 64 sums side by side, then those two by two. */
#include "ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The rows of x that are normalised, each of n elements: gamma's. */
static int64_t rows_of(const sim_tensor *x, const sim_tensor *gamma)
{
    int64_t n = sim_elements(gamma);
    return n ? sim_elements(x) / n : 0;
}

enum { LANES = 64 };

static float lanes_total(float lanes[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

static float row_rstd(const float *x, int64_t n, double epsilon)
{
    float lanes[LANES] = {0}, share = 1.0f / (float)n;
    for (int64_t i = 0; i < n; i++)
        lanes[i % LANES] += x[i] * x[i] * share;
    return 1.0f / sqrtf(lanes_total(lanes) + (float)epsilon);
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

static void check_gamma(sim_op *op, const sim_tensor *x, const sim_tensor *gamma)
{
    if (sim_soc_of() == SIM_310P) /* no list of this chip has both */
        sim_want_same_type(op, x, gamma);
    sim_want_rank(op, 561002, x, 1, SIM_RANK_MAX);
    sim_want_rank(op, 561002, gamma, 1, x->rank);
    if (op->code)
        return;
    if (!sim_elements(gamma))
        sim_fault(op, 561002, "gamma is empty");
    if (memcmp(gamma->shape, x->shape + x->rank - gamma->rank, (size_t)gamma->rank * sizeof *gamma->shape) != 0)
        sim_fault(op, 561002, "gamma does not have the trailing dimensions of x");
    if (sim_soc_of() == SIM_310P && (size_t)x->shape[x->rank - 1] * aclDataTypeSize(x->type) < 32)
        sim_fault(op, 561002, "the last axis has less than 32 bytes");
}

/* The leading dimensions of x, and, unless it is bare, 1 for those that are normalised. */
static void check_rstd(sim_op *op, const sim_tensor *x, const sim_tensor *gamma, const sim_tensor *rstd, bool bare)
{
    int64_t shape[SIM_RANK_MAX];
    int leading = x->rank - gamma->rank;
    if (op->code || !rstd->present)
        return;
    for (int i = 0; i < x->rank; i++)
        shape[i] = i < leading ? x->shape[i] : 1;
    sim_want_shape(op, 561002, rstd, bare && rstd->rank == leading ? leading : x->rank, shape);
}

/* ---- forward --------------------------------------------------------------------------------------------------- */

/* x becomes y. */
static void normalise(const sim_op *op, float *x, const sim_tensor *tg, int64_t rows, const sim_tensor *out)
{
    int64_t n = sim_elements(tg);
    float *gamma = sim_load(tg), *rstd = sim_allocate((size_t)rows * sizeof *rstd);
    for (int64_t r = 0; r < rows; r++) {
        rstd[r] = row_rstd(x + r * n, n, op->f[0]);
        for (int64_t i = 0; i < n; i++)
            x[r * n + i] = x[r * n + i] * rstd[r] * gamma[i];
    }
    sim_store(out, rstd);
    free(gamma);
    free(rstd);
}

/* Tensors: x, gamma, yOut, rstdOut. */
static int run_norm(sim_op *op)
{
    float *x = sim_load(op->tensors[0]);
    normalise(op, x, op->tensors[1], rows_of(op->tensors[0], op->tensors[1]), op->tensors[3]);
    sim_store(op->tensors[2], x);
    free(x);
    return 0;
}

SIM_RULE(aclnnRmsNorm, ACL_NORM)
{
    check_gamma(op, x, gamma);
    sim_want_shape(op, 561002, yOut, x->rank, x->shape);
    check_rstd(op, x, gamma, rstdOut, false);
    op->f[0] = epsilon;
    return sim_runs(op, run_norm, ops_small_workspace(op));
}

/* packed as t holds it. */
static float *rounded(const sim_tensor *t, float *packed)
{
    sim_store(t, packed);
    free(packed);
    return sim_load(t);
}

/* Tensors: x1, x2, gamma, yOut, rstdOut, xOut. The sum is rounded, and so is what is normalised, before gamma. */
static int run_add_norm(sim_op *op)
{
    const sim_tensor *out = op->tensors[3];
    float *x = sim_load(op->tensors[0]), *other = sim_load(op->tensors[1]), *gamma = sim_load(op->tensors[2]);
    int64_t count = sim_elements(out), n = sim_elements(op->tensors[2]), rows = rows_of(out, op->tensors[2]);
    float *rstd = sim_allocate((size_t)rows * sizeof *rstd);
    for (int64_t i = 0; i < count; i++)
        x[i] += other[i];
    x = rounded(op->tensors[5], x);
    for (int64_t r = 0; r < rows; r++) {
        rstd[r] = row_rstd(x + r * n, n, op->f[0]);
        for (int64_t i = 0; i < n; i++)
            x[r * n + i] *= rstd[r];
    }
    x = rounded(out, x);
    for (int64_t i = 0; i < count; i++)
        x[i] *= gamma[i % n];
    sim_store(out, x);
    sim_store(op->tensors[4], rstd);
    free(x);
    free(other);
    free(gamma);
    free(rstd);
    return 0;
}

/* rstdOut and xOut may be missing in a form for inference that older versions lack: it is refused here. xOut may be x1
 * or x2: the kernel reads a row of both before it writes that. */
SIM_RULE(aclnnAddRmsNorm, ACL_ADD_NORM)
{
    check_gamma(op, x1, gamma);
    sim_want_shape(op, 561002, x2, x1->rank, x1->shape);
    sim_want_shape(op, 561002, yOut, x1->rank, x1->shape);
    sim_want_shape(op, 561002, xOut, x1->rank, x1->shape);
    check_rstd(op, x1, gamma, rstdOut, false);
    op->f[0] = epsilon;
    op->in_place = xOut;
    return sim_runs(op, run_add_norm, OPS_WORKSPACE);
}

/* ---- gradient -------------------------------------------------------------------------------------------------- */

/* One row: dx = (t - y * mean(t * y)) * rstd with t = dy * gamma, y = x * rstd, over x; dgamma grows. y comes first, as
 * in the kernels of 8.1.RC1: dy * x may be denormal where that is not. */
static void grad_row(const float *dy, float *x, const float *gamma, float rstd, float *dgamma, int64_t n)
{
    float lanes[LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        x[i] *= rstd;
        lanes[i % LANES] += dy[i] * gamma[i] * x[i];
        dgamma[i] += dy[i] * x[i];
    }
    float mean = lanes_total(lanes) / (float)n;
    for (int64_t i = 0; i < n; i++)
        x[i] = (dy[i] * gamma[i] - x[i] * mean) * rstd;
}

/* Tensors: dy, x, rstd, gamma, dxOut, dgammaOut. */
static int run_grad(sim_op *op)
{
    const sim_tensor *tx = op->tensors[1], *tg = op->tensors[3];
    int64_t rows = rows_of(tx, tg), n = sim_elements(tg);
    float *dy = sim_load(op->tensors[0]), *x = sim_load(tx), *rstd = sim_load(op->tensors[2]), *gamma = sim_load(tg);
    float *dgamma = sim_allocate((size_t)n * sizeof *dgamma);
    for (int64_t r = 0; r < rows; r++)
        grad_row(dy + r * n, x + r * n, gamma, rstd[r], dgamma, n);
    sim_store(op->tensors[4], x);
    sim_store(op->tensors[5], dgamma);
    free(dy);
    free(x);
    free(rstd);
    free(gamma);
    free(dgamma);
    return 0;
}

SIM_RULE(aclnnRmsNormGrad, ACL_NORM_GRAD)
{
    check_gamma(op, x, gamma);
    sim_want_shape(op, 561002, dy, x->rank, x->shape);
    sim_want_shape(op, 561002, dxOut, x->rank, x->shape);
    sim_want_shape(op, 561002, dgammaOut, gamma->rank, gamma->shape);
    check_rstd(op, x, gamma, rstd, true); /* documented bare; torch_npu passes it with the trailing 1s */
    return sim_runs(op, run_grad, OPS_WORKSPACE);
}
