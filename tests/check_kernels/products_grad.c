/* Gradients of gated MLPs in double, with bounds derived from the operands. */
#include "products.h"

#include <math.h>
#include <stdlib.h>

/* A sum of products in f32, in any order. */
typedef struct running {
    double value, error, magnitude;
    int64_t terms;
} running;

static void add(running *s, estimate a, estimate b)
{
    double product = fabs(a.value * b.value);
    double error = fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error;
    s->value += a.value * b.value;
    s->error += error;
    s->magnitude += product + error;
    s->terms++;
}

/* Each term passes through at most terms + 1 roundings; dot products of bf16 take the smallest numbers for zero. */
static estimate finish(tn_dtype dtype, const running *s)
{
    double n = (double)s->terms;
    return estimate_rounded(
        dtype, (estimate){s->value, s->error + (n + 2) * unit_roundoff(TN_F32) * s->magnitude + n * 0x1p-126});
}

/* The derivatives of the activations. Their own slopes lie between -0.81 and 0.81; both terms of each are good to a few
 * units in f32. */
static estimate act_slope(tn_act act, estimate x)
{
    double v = x.value, s = 1 / (1 + exp(-v)), slope = s * (1 + v * (1 - s));
    if (act == TN_ACT_GELU) {
        slope = 0.5 * erfc(-v / sqrt(2)) + v * exp(-v * v / 2) / sqrt(2 * acos(-1));
    } else if (act == TN_ACT_GELU_TANH) {
        double c = sqrt(2 / acos(-1)), t = tanh(c * (v + 0.044715 * v * v * v));
        slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * c * (1 + 3 * 0.044715 * v * v);
    }
    return (estimate){slope, 0.81 * x.error + 12 * unit_roundoff(TN_F32) * (fabs(slope) + 0.2)};
}

/* What one token has between its products. */
typedef struct token_middle {
    reference_middle row;
    estimate *h, *d_gate, *d_up;
} token_middle;

/* d_gate, the gradients behind the cut, become those in front of it: h - (sum h / n) (1 + z (x - mean) / deviation). */
static void through_cut(const reference_mlp *m, token_middle *t)
{
    double unit = unit_roundoff(TN_F32), n = (double)m->inter, sd = t->row.deviation.value;
    running sum = {0};
    for (int64_t f = 0; f < m->inter; f++)
        add(&sum, t->d_gate[f], estimate_exact(1 / n));
    estimate share = finish(TN_F32, &sum), factor = {0, 0};
    if (sd > 0)
        factor = (estimate){m->quantile / sd, fabs(m->quantile) / sd * (t->row.deviation.error / sd + 4 * unit)};
    for (int64_t f = 0; f < m->inter; f++) {
        double off = t->row.gate[f].value - t->row.mean.value;
        estimate distance = {off, t->row.gate[f].error + t->row.mean.error + unit * fabs(off)};
        estimate moves = estimate_product(TN_F32, factor, distance);
        moves.value += 1;
        moves.error += unit * (fabs(moves.value) + moves.error);
        estimate back = estimate_product(TN_F32, share, moves);
        t->d_gate[f].value -= back.value;
        t->d_gate[f].error += back.error + unit * fabs(t->d_gate[f].value);
    }
}

static void middle(const reference_mlp *m, const double *x, const double *dy, token_middle *t)
{
    tn_act act = m->act ? m->act : TN_ACT_SILU;
    reference_mlp_middle(m, x, &t->row);
    for (int64_t f = 0; f < m->inter; f++) {
        running sum = {0};
        for (int64_t r = 0; r < m->hidden; r++)
            add(&sum, estimate_exact(dy[r]), estimate_exact(m->down[r * m->inter + f]));
        estimate dh = finish(TN_F32, &sum), arg = t->row.arg[f];
        estimate value = estimate_act(act, TN_F32, arg);
        estimate behind = estimate_product(TN_F32, dh, t->row.up[f]);
        t->h[f] = estimate_product(m->dtype, value, t->row.up[f]);
        t->d_up[f] = estimate_product(m->dtype, dh, value);
        t->d_gate[f] = estimate_product(TN_F32, behind, act_slope(act, arg));
        if (m->sparse && arg.value == 0)
            t->d_gate[f] = estimate_exact(0);
        /* Next to the cut the gradient may be there or not. */
        if (m->sparse && arg.value <= arg.error)
            t->d_gate[f].error += 1.2 * (fabs(behind.value) + behind.error);
    }
    if (m->sparse)
        through_cut(m, t);
    for (int64_t f = 0; f < m->inter; f++)
        t->d_gate[f] = estimate_rounded(m->dtype, t->d_gate[f]);
}

static void token_dx(const reference_mlp *m, const token_middle *t, estimate *dx)
{
    for (int64_t i = 0; i < m->hidden; i++) {
        running sum = {0};
        for (int64_t f = 0; f < m->inter; f++) {
            add(&sum, t->d_gate[f], estimate_exact(m->gate[f * m->hidden + i]));
            add(&sum, t->d_up[f], estimate_exact(m->up[f * m->hidden + i]));
        }
        dx[i] = finish(m->dtype, &sum);
    }
}

/* Sums over tokens, of a times b; b NULL: ones. */
static estimate over_tokens(tn_dtype dtype, int64_t tokens, const estimate *a, int64_t a_step, const estimate *b,
                            int64_t b_step)
{
    running sum = {0};
    for (int64_t t = 0; t < tokens; t++)
        add(&sum, a[t * a_step], b ? b[t * b_step] : estimate_exact(1));
    return finish(dtype, &sum);
}

void reference_mlp_gradients(const reference_mlp *m, const double *x, const double *dy, int64_t tokens,
                             reference_gradients *to)
{
    int64_t hidden = m->hidden, inter = m->inter;
    size_t row = (size_t)inter, all = (size_t)tokens * row + 1, wide = (size_t)(tokens * hidden) + 1;
    estimate *memory = calloc(3 * row + 3 * all + 2 * wide, sizeof *memory);
    if (!memory)
        return;
    estimate *h = memory + 3 * row, *d_gate = h + all, *d_up = d_gate + all, *ex = d_up + all, *edy = ex + wide;
    for (int64_t i = 0; i < tokens * hidden; i++) {
        ex[i] = estimate_exact(x[i]);
        edy[i] = estimate_exact(dy[i]);
    }
    for (int64_t t = 0; t < tokens; t++) {
        token_middle one = {.row = {.gate = memory, .up = memory + row, .arg = memory + 2 * row},
                            .h = h + t * inter,
                            .d_gate = d_gate + t * inter,
                            .d_up = d_up + t * inter};
        middle(m, x + t * hidden, dy + t * hidden, &one);
        token_dx(m, &one, to->x + t * hidden);
    }
    for (int64_t f = 0; f < inter; f++) {
        for (int64_t i = 0; i < hidden; i++) {
            to->gate[f * hidden + i] = over_tokens(m->dtype, tokens, d_gate + f, inter, ex + i, hidden);
            to->up[f * hidden + i] = over_tokens(m->dtype, tokens, d_up + f, inter, ex + i, hidden);
            to->down[i * inter + f] = over_tokens(m->dtype, tokens, edy + i, hidden, h + f, inter);
        }
        to->gate_bias[f] = over_tokens(m->dtype, tokens, d_gate + f, inter, NULL, 0);
        to->up_bias[f] = over_tokens(m->dtype, tokens, d_up + f, inter, NULL, 0);
    }
    for (int64_t i = 0; i < hidden; i++)
        to->down_bias[i] = over_tokens(m->dtype, tokens, edy + i, hidden, NULL, 0);
    free(memory);
}
