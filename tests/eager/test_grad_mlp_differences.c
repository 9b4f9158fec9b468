/* Gradients of MLP as eager mode composes it against differences of a forward in double precision, element by element:
 * all layouts, biases, sparsity; and that nothing depends on the number of threads, nor on which gradients are wanted.
 */
#include "device/device.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>

enum { TOKENS_MAX = 40, HIDDEN = 9, INTER = 13 };

/* An MLP in double. Whatever the layout, gate and up are apart here. */
typedef struct mlp {
    int64_t tokens;
    tn_act act;
    bool sparse;
    double z, margin; /* margin, out: of the gate nearest to its cut                               */
    double x[TOKENS_MAX][HIDDEN], g[TOKENS_MAX][HIDDEN];
    double gate[INTER][HIDDEN], up[INTER][HIDDEN], down[HIDDEN][INTER];
    double gate_bias[INTER], up_bias[INTER], down_bias[HIDDEN];
    double *moving;
} mlp;

static double act(tn_act a, double x)
{
    return a == TN_ACT_SILU ? x / (1.0 + exp(-x))
                            : 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static void gaussian_topk(mlp *m, double *gate)
{
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < INTER; i++)
        mean += gate[i] / INTER;
    for (int i = 0; i < INTER; i++)
        variance += (gate[i] - mean) * (gate[i] - mean) / INTER;
    for (int i = 0; i < INTER; i++) {
        double above = gate[i] - (mean + m->z * sqrt(variance));
        m->margin = fmin(m->margin, fabs(above));
        gate[i] = fmax(above, 0.0);
    }
}

/* sum g y, with *moving = value. */
static double loss(void *ctx, double value)
{
    mlp *m = ctx;
    double kept = *m->moving, sum = 0.0;
    *m->moving = value;
    m->margin = INFINITY;
    for (int64_t t = 0; t < m->tokens; t++) {
        double gate[INTER], up[INTER];
        for (int i = 0; i < INTER; i++) {
            gate[i] = m->gate_bias[i];
            up[i] = m->up_bias[i];
            for (int h = 0; h < HIDDEN; h++) {
                gate[i] += m->x[t][h] * m->gate[i][h];
                up[i] += m->x[t][h] * m->up[i][h];
            }
        }
        if (m->sparse)
            gaussian_topk(m, gate);
        for (int h = 0; h < HIDDEN; h++) {
            double y = m->down_bias[h];
            for (int i = 0; i < INTER; i++)
                y += m->down[h][i] * act(m->act, gate[i]) * up[i];
            sum += m->g[t][h] * y;
        }
    }
    *m->moving = kept;
    return sum;
}

/* Numbers below half, so that gates are of about unit size. */
static tn_tensor quarter(int32_t ndim, const int64_t *shape, uint32_t seed)
{
    tn_tensor t = optest_random(TN_F32, ndim, shape, seed);
    for (int64_t i = 0; i < tn_tensor_count(&t); i++)
        optest_set(&t, i, optest_at(&t, i) / 4.0);
    return t;
}

static void random_param(tn_site *site, tn_role role, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = quarter(ndim, shape, 10 + (uint32_t)role);
    optest_param(site, role, &t, 1);
}

static const tn_layout layouts[] = {TN_LAYOUT_SPLIT, TN_LAYOUT_GATE_UP, TN_LAYOUT_UP_GATE, TN_LAYOUT_UP_DOWN};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* What activation is applied to, and its bias, come from: */
static tn_role gate_role(int32_t layout)
{
    return layout == TN_LAYOUT_SPLIT ? TN_ROLE_GATE : layout == TN_LAYOUT_UP_DOWN ? TN_ROLE_UP : TN_ROLE_GATE_UP;
}

static tn_role gate_bias_role(int32_t layout)
{
    return layout == TN_LAYOUT_SPLIT     ? TN_ROLE_GATE_BIAS
           : layout == TN_LAYOUT_UP_DOWN ? TN_ROLE_UP_BIAS
                                         : TN_ROLE_GATE_UP_BIAS;
}

static tn_call random_call(tn_layout layout, bool biases, int64_t tokens)
{
    bool fused = layout == TN_LAYOUT_GATE_UP || layout == TN_LAYOUT_UP_GATE;
    int64_t rows = fused ? 2 * INTER : INTER, hidden = HIDDEN;
    tn_call call = optest_call(TN_OP_MLP, TN_F32, 1, 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_LAYOUT] = (int32_t)layout;
    site->features = biases ? TN_HAS_BIAS : 0;
    site->dim[TN_DIM_HIDDEN] = HIDDEN;
    site->dim[TN_DIM_INTER] = INTER;
    random_param(site, TN_ROLE_DOWN, 2, (int64_t[]){HIDDEN, INTER});
    random_param(site, gate_role(layout), 2, (int64_t[]){rows, HIDDEN});
    if (layout == TN_LAYOUT_SPLIT)
        random_param(site, TN_ROLE_UP, 2, (int64_t[]){rows, HIDDEN});
    if (biases) {
        random_param(site, TN_ROLE_DOWN_BIAS, 1, &hidden);
        random_param(site, gate_bias_role(layout), 1, &rows);
        if (layout == TN_LAYOUT_SPLIT)
            random_param(site, TN_ROLE_UP_BIAS, 1, &rows);
    }
    call.in[0] = optest_random(TN_F32, 2, (int64_t[]){tokens, HIDDEN}, 1);
    call.out[0] = optest_zeros(TN_F32, 2, call.in[0].shape);
    return call;
}

static void load(const tn_param *p, int64_t from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = p->count ? optest_at(p->tensors, from + i) : 0.0;
}

/* Where gate or up begins in the fused tensor of a layout, in rows; 0 where they are apart. */
static int64_t first_row(int32_t layout, bool up)
{
    return (layout == TN_LAYOUT_GATE_UP || layout == TN_LAYOUT_UP_GATE) && up == (layout == TN_LAYOUT_GATE_UP) ? INTER
                                                                                                               : 0;
}

static void load_mlp(const tn_call *call, mlp *m)
{
    const tn_site *site = call->site;
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    bool split = layout == TN_LAYOUT_SPLIT, gated = layout != TN_LAYOUT_UP_DOWN;
    m->tokens = call->in[0].shape[0];
    m->act = (tn_act)site->meaning[TN_AXIS_ACT];
    m->sparse = site->features & TN_HAS_SPARSITY;
    m->z = site->num[TN_NUM_SPARSITY];
    for (int64_t i = 0; i < m->tokens * HIDDEN; i++) {
        m->x[i / HIDDEN][i % HIDDEN] = optest_at(&call->in[0], i);
        m->g[i / HIDDEN][i % HIDDEN] = optest_at(&call->grads->out[0], i);
    }
    int64_t gate = first_row(layout, false), up = first_row(layout, true);
    load(&site->param[gate_role(layout)], gate * HIDDEN, m->gate[0], INTER * HIDDEN);
    load(&site->param[split ? TN_ROLE_UP : TN_ROLE_GATE_UP], up * HIDDEN, m->up[0], INTER * HIDDEN);
    load(&site->param[gate_bias_role(layout)], gate, m->gate_bias, INTER);
    load(&site->param[split ? TN_ROLE_UP_BIAS : TN_ROLE_GATE_UP_BIAS], up, m->up_bias, INTER);
    for (int64_t i = 0; !gated && i < INTER; i++) { /* nothing is multiplied: by one                 */
        for (int64_t h = 0; h < HIDDEN; h++)
            m->up[i][h] = 0.0;
        m->up_bias[i] = 1.0;
    }
    load(&site->param[TN_ROLE_DOWN], 0, m->down[0], HIDDEN * INTER);
    load(&site->param[TN_ROLE_DOWN_BIAS], 0, m->down_bias, HIDDEN);
}

/* The sums of the magnitudes of all terms of the gradients: those of the same MLP without an activation and with all
 * numbers positive. */
static const tn_grads *magnitudes(const tn_call *call)
{
    tn_site site = *call->site;
    tn_call positive = *call;
    site.features &= ~TN_HAS_SPARSITY;
    site.meaning[TN_AXIS_ACT] = TN_ACT_LINEAR;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        if (site.param[role].count) {
            tn_tensor t = optest_from(TN_F32, site.param[role].tensors);
            for (int64_t i = 0; i < tn_tensor_count(&t); i++)
                optest_set(&t, i, fabs(optest_at(&t, i)));
            optest_param(&site, (tn_role)role, &t, 1);
        }
    positive.site = &site;
    positive.in[0] = optest_from(TN_F32, &call->in[0]);
    tn_grads *sizes = optest_grads(&positive, 1);
    for (int64_t i = 0; i < tn_tensor_count(&positive.in[0]); i++) {
        optest_set(&positive.in[0], i, fabs(optest_at(&call->in[0], i)));
        optest_set(&sizes->out[0], i, fabs(optest_at(&call->grads->out[0], i)));
    }
    optest_composed(&positive);
    return sizes;
}

/* Terms of a sum are rounded as often as there are terms after them; all sums of the way together, and a dozen for act
 * and its derivative, whose own terms are at most (1 + |x|) < 4 times the magnitudes. Sparsity adds the row's mean and
 * deviation, each at most the whole row with z (x - mean) / deviation < 2 sqrt(INTER). */
static void held(mlp *m, double *value, const tn_tensor *got, const tn_tensor *size, int64_t at, const char *what)
{
    double step = m->sparse ? fmin(1e-3, 0.02 * m->margin) : 1e-3, kept = m->margin;
    m->moving = value;
    double expected = optest_derivative(loss, m, *value, step), largest = optest_at(size, at);
    m->margin = kept;
    for (int64_t i = 0; m->sparse && i < tn_tensor_count(size); i++)
        largest = fmax(largest, optest_at(size, i) * (1.0 + 2.0 * sqrt(INTER)));
    double bound = 4.0 * (2.0 * HIDDEN + 2.0 * INTER + (double)m->tokens + 12.0) * 0x1p-24 * largest + 1e-8;
    if (!(fabs(optest_at(got, at) - expected) <= bound))
        ck_abort_msg("%s, element %d: %.9g, expected %.9g within %.3g", what, (int)at, optest_at(got, at), expected,
                     bound);
}

static void held_param(mlp *m, double *values, const tn_call *call, const tn_grads *sizes, tn_role role, int64_t from,
                       int64_t count, const char *what)
{
    if (call->site->param[role].count)
        for (int64_t i = 0; i < count; i++)
            held(m, values + i, call->grads->param[role].tensors, sizes->param[role].tensors, from + i, what);
}

static void check_differences(const tn_call *call)
{
    static mlp m;
    load_mlp(call, &m);
    const tn_grads *sizes = magnitudes(call);
    int32_t layout = call->site->meaning[TN_AXIS_LAYOUT];
    bool split = layout == TN_LAYOUT_SPLIT, gated = layout != TN_LAYOUT_UP_DOWN;
    int64_t gate = first_row(layout, false), up = first_row(layout, true);
    m.moving = &m.down[0][0];
    loss(&m, m.down[0][0]);
    ck_assert(!m.sparse || m.margin > 1e-5);
    for (int64_t i = 0; i < m.tokens * HIDDEN; i++)
        held(&m, &m.x[i / HIDDEN][i % HIDDEN], &call->grads->in[0], &sizes->in[0], i, "dx");
    held_param(&m, m.gate[0], call, sizes, gate_role(layout), gate * HIDDEN, INTER * HIDDEN, "dgate");
    if (gated)
        held_param(&m, m.up[0], call, sizes, split ? TN_ROLE_UP : TN_ROLE_GATE_UP, up * HIDDEN, INTER * HIDDEN, "dup");
    held_param(&m, m.down[0], call, sizes, TN_ROLE_DOWN, 0, HIDDEN * INTER, "ddown");
    held_param(&m, m.gate_bias, call, sizes, gate_bias_role(layout), gate, INTER, "dgate_bias");
    if (gated)
        held_param(&m, m.up_bias, call, sizes, split ? TN_ROLE_UP_BIAS : TN_ROLE_GATE_UP_BIAS, up, INTER, "dup_bias");
    held_param(&m, m.down_bias, call, sizes, TN_ROLE_DOWN_BIAS, 0, HIDDEN, "ddown_bias");
}

static const int64_t tokens[] = {0, 1, 5, TOKENS_MAX};

START_TEST(differences)
{
    for (int i = 0; i < LAYOUTS; i++)
        for (int biases = 0; biases < 2; biases++)
            for (int sparse = 0; sparse < (layouts[i] == TN_LAYOUT_UP_DOWN ? 1 : 2); sparse++) {
                tn_call call = random_call(layouts[i], biases != 0, tokens[_i]);
                tn_site *site = optest_site_of(&call);
                site->meaning[TN_AXIS_ACT] = sparse ? TN_ACT_GELU_TANH : TN_ACT_SILU;
                site->features |= sparse ? TN_HAS_SPARSITY : 0;
                site->num[TN_NUM_SPARSITY] = 0.5;
                optest_grads(&call, 30);
                optest_composed(&call);
                check_differences(&call);
            }
}
END_TEST

/* ---- threads, and what is left out ---------------------------------------------------------------- */

static void same(const tn_grads *a, const tn_grads *b, const char *what)
{
    if (b->in[0].data)
        optest_close(&b->in[0], &a->in[0], 0.0, 0.0, what);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        if (b->param[role].count)
            optest_close(b->param[role].tensors, a->param[role].tensors, 0.0, 0.0, what);
}

START_TEST(threads)
{
    tn_call call = random_call(layouts[_i], true, TOKENS_MAX);
    optest_site_of(&call)->meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    threads_set(1);
    const tn_grads *first = optest_grads(&call, 30);
    tn_grads *grads;
    optest_composed(&call);
    for (int32_t count = 2; count <= 3; count++) {
        threads_set(count);
        grads = optest_grads(&call, 30);
        optest_composed(&call);
        same(first, grads, "threads");
    }
    /* Gradients do not depend on which of them are wanted. */
    for (int left_out = -1; left_out < TN_ROLE_MAX; left_out++) {
        grads = optest_grads(&call, 30);
        if (left_out < 0)
            grads->in[0] = (tn_tensor){0};
        else if (grads->param[left_out].count)
            grads->param[left_out].count = 0;
        else
            continue;
        optest_composed(&call);
        same(first, grads, "left out");
    }
    grads = optest_grads(&call, 30);
    grads->out[0] = (tn_tensor){0};
    optest_composed(&call);
    optest_expect_zero(&grads->in[0]);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of MLP by differences", 120);
    tcase_add_loop_test(tc, differences, 0, (int)(sizeof tokens / sizeof *tokens));
    tcase_add_loop_test(tc, threads, 0, LAYOUTS);
    return suite_run();
}
