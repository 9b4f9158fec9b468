/* Reference of products of matrices and gated MLPs in double, with bounds derived from the operands. */
#include "products.h"

#include <math.h>

void estimate_store(estimate e, double *want, double *bound, int64_t at)
{
    want[at] = e.value;
    bound[at] = e.error;
}

estimate estimate_exact(double value)
{
    return (estimate){value, 0};
}

/* Half a unit of the last place, of a number that may be off itself; numbers below the normal ones have a grid, and
 * dot products of bf16 take them for zero. */
estimate estimate_rounded(tn_dtype dtype, estimate e)
{
    double grid = dtype == TN_F16 ? smallest(TN_F16) : 0x1p-126;
    return (estimate){e.value, e.error + unit_roundoff(dtype) * (fabs(e.value) + e.error) + grid};
}

estimate estimate_product(tn_dtype dtype, estimate a, estimate b)
{
    estimate p = {a.value * b.value, fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error};
    return estimate_rounded(dtype, p);
}

static double act_value(tn_act act, double x)
{
    if (act == TN_ACT_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    if (act == TN_ACT_GELU)
        return 0.5 * x * erfc(-x / sqrt(2));
    return x / (1 + exp(-x));
}

/* The slopes lie between -0.13 and 1.13; the exponential, the sum and the quotient in f32 add less than 8 units. tanh
 * itself loses places below 0. */
estimate estimate_act(tn_act act, tn_dtype dtype, estimate x)
{
    double y = act_value(act, x.value);
    return estimate_rounded(
        dtype, (estimate){y, 1.13 * x.error + 8 * unit_roundoff(TN_F32) * fabs(y) + 0x1p-50 * fabs(x.value)});
}

/* n products and sums in f32, in any order: each term passes through at most n + 1 roundings. */
estimate estimate_dot(tn_dtype dtype, const estimate *a, const double *b, int64_t b_stride, int64_t n, double bias)
{
    estimate sum = {bias, 0};
    double magnitude = fabs(bias), growth = (double)(n + 2) * unit_roundoff(TN_F32);
    for (int64_t i = 0; i < n; i++) {
        double w = b[i * b_stride];
        sum.value += a[i].value * w;
        sum.error += a[i].error * fabs(w);
        magnitude += (fabs(a[i].value) + a[i].error) * fabs(w);
    }
    sum.error += growth * magnitude + (double)n * 0x1p-126;
    return estimate_rounded(dtype, sum);
}

/* Mean and population deviation, whatever the order of additions. A gate moves the deviation by at most as much as it
 * moves itself. */
static void row_moments(int64_t n, reference_middle *row)
{
    double unit = unit_roundoff(TN_F32), sum = 0, magnitude = 0, worst = 0, squares = 0, count = (double)n;
    for (int64_t i = 0; i < n; i++) {
        sum += row->gate[i].value;
        magnitude += fabs(row->gate[i].value);
        worst = fmax(worst, row->gate[i].error);
    }
    row->mean = (estimate){sum / count, worst + (count + 2) * unit * magnitude / count};
    for (int64_t i = 0; i < n; i++)
        squares += (row->gate[i].value - row->mean.value) * (row->gate[i].value - row->mean.value);
    row->deviation.value = sqrt(squares / count);
    row->deviation.error = worst + row->mean.error + (count + 6) * unit * row->deviation.value;
}

void reference_mlp_middle(const reference_mlp *m, const double *x, reference_middle *row)
{
    double unit = unit_roundoff(TN_F32);
    estimate exact[4096];
    for (int64_t i = 0; i < m->hidden; i++)
        exact[i] = estimate_exact(x[i]);
    for (int64_t f = 0; f < m->inter; f++) {
        row->gate[f] =
            estimate_dot(TN_F32, exact, m->gate + f * m->hidden, 1, m->hidden, m->gate_bias ? m->gate_bias[f] : 0);
        row->up[f] = estimate_dot(TN_F32, exact, m->up + f * m->hidden, 1, m->hidden, m->up_bias ? m->up_bias[f] : 0);
        row->arg[f] = row->gate[f];
    }
    if (!m->sparse)
        return;
    row_moments(m->inter, row);
    double cut = row->mean.value + m->quantile * row->deviation.value;
    double error = row->mean.error + fabs(m->quantile) * (row->deviation.error + 2 * unit * row->deviation.value) +
                   2 * unit * fabs(cut);
    for (int64_t f = 0; f < m->inter; f++) {
        double left = row->gate[f].value - cut;
        row->arg[f] = (estimate){fmax(left, 0), row->gate[f].error + error + unit * fabs(left)};
    }
}

void reference_mlp_token(const reference_mlp *m, const double *x, estimate *h, estimate *y)
{
    estimate gate[4096], up[4096], arg[4096];
    reference_middle row = {.gate = gate, .up = up, .arg = arg};
    reference_mlp_middle(m, x, &row);
    for (int64_t f = 0; f < m->inter; f++)
        h[f] = estimate_product(m->dtype, estimate_act(m->act ? m->act : TN_ACT_SILU, TN_F32, arg[f]), up[f]);
    for (int64_t r = 0; r < m->hidden; r++)
        y[r] = estimate_dot(m->dtype, h, m->down + r * m->inter, 1, m->inter, m->down_bias ? m->down_bias[r] : 0);
}
