/* The plain C reference of gate.h, and the choice among instruction sets. */
#include "gate.h"

#include "activation.h"
#include "scalar.h"

static void cut_c(const float *gate, int64_t n, gate_cut *cut)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)gate[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)gate[i] - mean) * ((double)gate[i] - mean);
    cut->mean = (float)mean;
    cut->deviation = (float)sqrt(squares / (double)n);
    cut->cut = cut->mean + cut->quantile * cut->deviation;
}

/* What the activation is applied to. The comparison lets a NaN through. */
static double argument(const gate_row *row, int64_t i)
{
    float a = row->cut ? row->gate[i] - row->cut->cut : row->gate[i];
    return row->cut && a < 0 ? 0.0 : (double)a;
}

static void glu_c(const gate_row *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        scalar_store(row->h, i, row->dtype, (float)activation(row->act, argument(row, i)) * row->up[i]);
}

/* The gate's gradients become those in front of the cut, total being their sum: a cut moves with every gate of its row.
 */
static void through_cut(const gate_row *row, int64_t n, double total)
{
    const gate_cut *c = row->cut;
    double share = total / (double)n, slope = c->deviation > 0 ? (double)c->quantile / (double)c->deviation : 0;
    for (int64_t i = 0; i < n; i++)
        scalar_store(row->d_gate, i, row->dtype,
                     (float)((double)row->dh[i] - share * (1 + slope * (double)(row->gate[i] - c->mean))));
}

static float grad_c(const gate_row *row, int64_t n)
{
    double dot = 0, total = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = argument(row, i), up = (double)row->up[i], dh = (double)row->dh[i];
        double value = activation(row->act, a), scaled = dh * (double)row->scale;
        double d_gate = scaled * up * activation_slope(row->act, a);
        dot += dh * value * up;
        scalar_store(row->h, i, row->dtype, (float)(value * up * (double)row->scale));
        scalar_store(row->d_up, i, row->dtype, (float)(scaled * value));
        if (!row->cut) {
            scalar_store(row->d_gate, i, row->dtype, (float)d_gate);
            continue;
        }
        row->dh[i] = a > 0 ? (float)d_gate : 0.0f;
        total += (double)row->dh[i];
    }
    if (row->cut)
        through_cut(row, n, total);
    return (float)dot;
}

void gate_init_c(gate_kernels *kernels)
{
    *kernels = (gate_kernels){cut_c, glu_c, grad_c};
}

void gate_kernels_init(gate_kernels *kernels, uint64_t cpu_flags)
{
    gate_init_c(kernels);
#ifdef __x86_64__
    if (cpu_flags & TN_CPU_AVX2)
        gate_init_avx2(kernels);
    if (cpu_flags & TN_CPU_AVX512)
        gate_init_avx512(kernels);
#elif defined __aarch64__
    if (cpu_flags & TN_CPU_NEON)
        gate_init_neon(kernels);
#else
    (void)cpu_flags;
#endif
}
