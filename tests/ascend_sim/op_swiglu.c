/* SwiGlu and its gradient: the first half of an axis is the gate. */
#include "ops.h"

#include <stdlib.h>

/* The halves of x along an axis, as [outer, 2, half]: half covers what follows the axis too. */
static int64_t half_of(const sim_tensor *x, int axis)
{
    return sim_product(x->shape, axis, x->rank) / 2;
}

/* Tensors: x, out. i: the axis. */
static int run_swiglu(sim_op *op)
{
    const sim_tensor *tx = op->tensors[0], *out = op->tensors[1];
    int64_t half = half_of(tx, (int)op->i[0]), count = sim_elements(out);
    float *x = sim_load(tx), *y = sim_allocate((size_t)count * sizeof *y);
    for (int64_t i = 0; i < count; i++) {
        const float *a = x + i / half * 2 * half + i % half;
        y[i] = a[0] * ops_sigmoid(a[0]) * a[half];
    }
    sim_store(out, y);
    free(x);
    free(y);
    return 0;
}

/* Tensors: yGrad, x, out. i: the axis. */
static int run_grad(sim_op *op)
{
    const sim_tensor *tg = op->tensors[0], *tx = op->tensors[1];
    int64_t half = half_of(tx, (int)op->i[0]), count = sim_elements(tg);
    float *g = sim_load(tg), *x = sim_load(tx);
    for (int64_t i = 0; i < count; i++) {
        float *a = x + i / half * 2 * half + i % half, gate = a[0], up = a[half], s = ops_sigmoid(gate);
        a[0] = g[i] * (s + gate * s * (1.0f - s)) * up;
        a[half] = g[i] * s * gate;
    }
    sim_store(op->tensors[2], x);
    free(g);
    free(x);
    return 0;
}

/* small has half of x along the axis. The 64 bytes that the gradient's document asks for are checked on 310P alone:
 * whether they hold elsewhere is uncertain. */
static void check_halves(sim_op *op, const sim_tensor *x, const sim_tensor *small, int64_t dim)
{
    int64_t shape[SIM_RANK_MAX] = {0};
    int axis = sim_axis(op, dim, x->rank);
    for (int i = 0; i < x->rank; i++)
        shape[i] = x->shape[i];
    if (x->shape[axis] % 2)
        sim_fault(op, 161002, "the axis of x has %lld elements, an odd number", (long long)x->shape[axis]);
    shape[axis] /= 2;
    sim_want_rank(op, 161002, x, 1, SIM_RANK_MAX);
    sim_want_shape(op, 161002, small, x->rank, shape);
    if (!op->code && sim_soc_of() == SIM_310P &&
        (!sim_elements(x) || (size_t)shape[x->rank - 1] * aclDataTypeSize(x->type) % 64))
        sim_fault(op, 161002, "shapes on this chip are multiples of 64 bytes, and not empty");
    op->i[0] = axis;
}

SIM_RULE(aclnnSwiGlu, ACL_HALVES)
{
    check_halves(op, x, out, dim);
    return sim_runs(op, run_swiglu, 0);
}

SIM_RULE(aclnnSwiGluGrad, ACL_HALVES_GRAD)
{
    check_halves(op, x, yGrad, dim);
    ops_want_like(op, 161002, x, out);
    return sim_runs(op, run_grad, OPS_WORKSPACE);
}
