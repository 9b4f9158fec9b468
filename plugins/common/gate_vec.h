/* gate.h for any width of vectors: include vec_<isa>.h first. Lanes beyond a row's end load zeros, which add nothing to
 * any sum here but that of squares. */
#include "activation_vec.h"
#include "gate.h"

#include <math.h>

VEC_INLINE vec gate_load(const float *p, int64_t left)
{
    return left >= VEC_LANES ? vec_load((const char *)p, TN_F32) : vec_load_part((const char *)p, TN_F32, left);
}

VEC_INLINE void gate_store(void *p, int64_t i, tn_dtype dtype, int64_t left, vec v)
{
    char *at = (char *)p + i * (dtype == TN_F32 ? 4 : 2);
    if (left >= VEC_LANES)
        vec_store(at, dtype, v);
    else
        vec_store_part(at, dtype, v, left);
}

static void gate_cut_of(const float *gate, int64_t n, gate_cut *cut)
{
    vec sum[4], squares[4];
    int64_t i = 0;
    for (int c = 0; c < 4; c++)
        sum[c] = squares[c] = vec_set(0.0f);
    for (; i < n; i += VEC_LANES)
        sum[i / VEC_LANES % 4] = vec_add(sum[i / VEC_LANES % 4], gate_load(gate + i, n - i));
    float mean = vec_sum(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3]))) / (float)n, rest = 0.0f;
    for (i = 0; i + VEC_LANES <= n; i += VEC_LANES) {
        vec d = vec_sub(gate_load(gate + i, VEC_LANES), vec_set(mean));
        squares[i / VEC_LANES % 4] = vec_fma(d, d, squares[i / VEC_LANES % 4]);
    }
    for (; i < n; i++)
        rest += (gate[i] - mean) * (gate[i] - mean);
    rest += vec_sum(vec_add(vec_add(squares[0], squares[1]), vec_add(squares[2], squares[3])));
    cut->mean = mean;
    cut->deviation = sqrtf(rest / (float)n);
    cut->cut = mean + cut->quantile * cut->deviation;
}

/* What the activation is applied to; the second operand, which a NaN makes the result, is the one that may be NaN. */
VEC_INLINE vec gate_argument(const gate_row *row, vec gate)
{
    return row->cut ? vec_max(vec_set(0.0f), vec_sub(gate, vec_set(row->cut->cut))) : gate;
}

static void gate_glu(const gate_row *row, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC_LANES) {
        vec gate = gate_argument(row, gate_load(row->gate + i, n - i)), up = gate_load(row->up + i, n - i);
        gate_store(row->h, i, row->dtype, n - i, vec_mul(vec_activation(row->act, gate), up));
    }
}

/* The gate's gradients become those in front of the cut, total being their sum: a cut moves with every gate of its row.
 */
static void gate_through_cut(const gate_row *row, int64_t n, float total)
{
    const gate_cut *c = row->cut;
    vec share = vec_set(total / (float)n), slope = vec_set(c->deviation > 0 ? c->quantile / c->deviation : 0.0f);
    for (int64_t i = 0; i < n; i += VEC_LANES) {
        vec off = vec_sub(gate_load(row->gate + i, n - i), vec_set(c->mean));
        vec moves = vec_fma(slope, off, vec_set(1.0f));
        gate_store(row->d_gate, i, row->dtype, n - i, vec_fnma(share, moves, gate_load(row->dh + i, n - i)));
    }
}

static float gate_grad(const gate_row *row, int64_t n)
{
    vec dot = vec_set(0.0f), total = vec_set(0.0f), zero = vec_set(0.0f), scale = vec_set(row->scale);
    for (int64_t i = 0; i < n; i += VEC_LANES) {
        vec gate = gate_argument(row, gate_load(row->gate + i, n - i)), up = gate_load(row->up + i, n - i);
        vec dh = gate_load(row->dh + i, n - i), scaled = vec_mul(dh, scale);
        vec_curve act = vec_activation_curve(row->act, gate);
        vec h = vec_mul(act.value, up), d_gate = vec_mul(vec_mul(scaled, up), act.slope);
        dot = vec_fma(dh, h, dot);
        gate_store(row->h, i, row->dtype, n - i, vec_mul(h, scale));
        gate_store(row->d_up, i, row->dtype, n - i, vec_mul(scaled, act.value));
        if (row->cut) {
            d_gate = vec_where_greater(gate, zero, d_gate, zero);
            total = vec_add(total, d_gate);
            gate_store(row->dh, i, TN_F32, n - i, d_gate);
        } else {
            gate_store(row->d_gate, i, row->dtype, n - i, d_gate);
        }
    }
    if (row->cut)
        gate_through_cut(row, n, vec_sum(total));
    return vec_sum(dot);
}
