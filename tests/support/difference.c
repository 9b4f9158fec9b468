#include "difference.h"
#include "optest.h"

#include <check.h>

/* Random values small enough that neither exponentials nor sums of products spoil a comparison. */
tn_tensor difference_random(tn_dtype dtype, int32_t ndim, const int64_t *shape, double factor, uint32_t seed)
{
    tn_tensor t = optest_random(dtype, ndim, shape, seed);
    for (int64_t i = 0; i < tn_tensor_count(&t); i++)
        optest_set(&t, i, optest_at(&t, i) * factor);
    return t;
}

tn_tensor *difference_param(const tn_call *call, tn_role role)
{
    return (tn_tensor *)(uintptr_t)call->site->param[role].tensors;
}

const tn_tensor *difference_grad(const tn_call *call, tn_role role)
{
    return call->grads->param[role].tensors;
}

double difference_value(const difference *d, const tn_tensor *t, int64_t i)
{
    return optest_at(t, i) + (t == d->moved && i == d->index ? d->by : 0.0);
}

/* got must be the derivative of the loss by the elements of t. */
void difference_expect(const tn_call *call, double (*loss)(const difference *), const tn_tensor *t,
                       const tn_tensor *got, const char *what)
{
    const double step = 1e-5;
    tn_tensor truth = optest_zeros(TN_F32, got->ndim, got->shape);
    for (int64_t i = 0; i < tn_tensor_count(t); i++) {
        difference up = {call, t, i, step, loss}, down = {call, t, i, -step, loss};
        optest_set(&truth, i, (loss(&up) - loss(&down)) / (2.0 * step));
    }
    /* Weights may be f32 in a model that computes in less. */
    tn_tensor rounded = optest_from((tn_dtype)call->site->meaning[TN_AXIS_DTYPE], got);
    optest_golden_grad(&rounded, &truth, what);
}

void difference_fill(const tn_tensor *t, double x)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        optest_set((tn_tensor *)(uintptr_t)t, i, x);
}
