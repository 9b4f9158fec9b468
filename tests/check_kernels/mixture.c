/* Mixtures of experts the obvious way: token by token, expert by expert. */
#include "mixture.h"

#include <math.h>
#include <stdlib.h>

/* A sum in f32 on its way. */
typedef struct sum {
    double value, error, magnitude;
} sum;

static void add(sum *s, estimate a, estimate b)
{
    double size = (fabs(a.value) + a.error) * (fabs(b.value) + b.error);
    s->value += a.value * b.value;
    s->error += fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error;
    s->magnitude += size;
}

/* Each term has passed through at most n + 2 roundings. */
static estimate finish(const sum *s, int64_t n, tn_dtype dtype)
{
    double growth = (double)(n + 2) * unit_roundoff(TN_F32);
    return estimate_rounded(dtype, (estimate){s->value, s->error + growth * s->magnitude + (double)n * 0x1p-126});
}

static double slope_of(tn_act act, double x)
{
    double s = 1 / (1 + exp(-x)), pi = acos(-1);
    if (act == TN_ACT_GELU)
        return 0.5 * erfc(-x / sqrt(2)) + x * exp(-0.5 * x * x) / sqrt(2 * pi);
    if (act == TN_ACT_GELU_TANH) {
        double t = tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / pi) * (1 + 0.134145 * x * x);
    }
    return s * (1 + x * (1 - s));
}

/* The slope's own slope is at most 0.8; it is a sum of two terms that are at most 1.2, each good to 8 units. */
static estimate slope(tn_act act, estimate x)
{
    return (estimate){slope_of(act, x.value), 0.8 * x.error + 16 * 1.2 * unit_roundoff(TN_F32)};
}

/* The sums of all gradients of one kind of weights. */
typedef struct weight_sums {
    sum *gate, *up, *down;
} weight_sums;

typedef struct work {
    mixture *m;
    weight_sums expert, shared;
    sum *y, *dx, *router, *bias, *scale; /* y, dx: of one token                                    */
    estimate *x, *g, *gate, *up, *a, *h, *back;
} work;

static estimate times(estimate a, estimate b)
{
    return estimate_product(TN_F32, a, b);
}

/* Expert e of `from` with one token: its part of y and of the gradients; returns dL/dweight. */
static estimate expert_token(work *w, const mixture_weights *from, const weight_sums *sums, int64_t e, estimate weight)
{
    const mixture *m = w->m;
    int64_t hidden = m->hidden, inter = from->inter, each = inter * hidden;
    const double *gate = from->gate + e * each, *up = from->up + e * each, *down = from->down + e * each;
    sum dweight = {0, 0, 0};
    for (int64_t f = 0; f < inter; f++) {
        w->gate[f] = estimate_dot(TN_F32, w->x, gate + f * hidden, 1, hidden, 0);
        w->up[f] = estimate_dot(TN_F32, w->x, up + f * hidden, 1, hidden, 0);
        w->a[f] = estimate_act(m->act, TN_F32, w->gate[f]);
        estimate h = times(w->a[f], w->up[f]);
        w->h[f] = estimate_rounded(m->dtype, h);
        w->back[f] = estimate_dot(TN_F32, w->g, down + f, inter, hidden, 0);
        add(&dweight, w->back[f], h);
    }
    for (int64_t i = 0; i < hidden; i++)
        add(&w->y[i], estimate_dot(TN_F32, w->h, down + i * inter, 1, inter, 0), weight);
    for (int64_t f = 0; f < inter; f++) {
        estimate back = times(w->back[f], weight);
        estimate h = estimate_rounded(m->dtype, times(times(w->a[f], w->up[f]), weight));
        estimate dup = estimate_rounded(m->dtype, times(back, w->a[f]));
        estimate dgate = estimate_rounded(
            m->dtype, times(times(back, w->up[f]), estimate_rounded(TN_F32, slope(m->act, w->gate[f]))));
        for (int64_t i = 0; i < hidden; i++) {
            add(&sums->down[e * each + i * inter + f], h, w->g[i]);
            add(&sums->gate[e * each + f * hidden + i], dgate, w->x[i]);
            add(&sums->up[e * each + f * hidden + i], dup, w->x[i]);
            add(&w->dx[i], dgate, estimate_exact(gate[f * hidden + i]));
            add(&w->dx[i], dup, estimate_exact(up[f * hidden + i]));
        }
    }
    return finish(&dweight, inter, TN_F32);
}

static void shared_token(work *w)
{
    const mixture *m = w->m;
    estimate scale = estimate_exact(1);
    if (m->shared_scale) {
        estimate z = estimate_dot(TN_F32, w->x, m->shared_scale, 1, m->hidden, 0);
        double s = 1 / (1 + exp(-z.value)); /* its slope is at most 1/4 */
        scale = (estimate){s, z.error / 4 + 8 * unit_roundoff(TN_F32) * s};
    }
    estimate dscale = expert_token(w, &m->shared, &w->shared, 0, scale);
    if (!m->shared_scale)
        return;
    estimate rest = {1 - scale.value, scale.error + unit_roundoff(TN_F32)};
    estimate dz = estimate_rounded(m->dtype, times(times(dscale, scale), rest));
    for (int64_t i = 0; i < m->hidden; i++) {
        add(&w->scale[i], dz, w->x[i]);
        add(&w->dx[i], dz, estimate_exact(m->shared_scale[i]));
    }
}

static void router_token(work *w, int64_t t)
{
    const mixture *m = w->m;
    estimate dl[ROUTING_EXPERTS];
    reference_route_grad(m->router, &m->routes[t], m->dweights + t * m->top_k, dl);
    for (int64_t e = 0; e < m->experts; e++) {
        dl[e] = estimate_rounded(m->dtype, dl[e]);
        add(&w->bias[e], dl[e], estimate_exact(1));
        for (int64_t i = 0; i < m->hidden; i++) {
            add(&w->router[e * m->hidden + i], dl[e], w->x[i]);
            add(&w->dx[i], dl[e], estimate_exact(m->router->weight[e * m->hidden + i]));
        }
    }
}

static void one_token(work *w, int64_t t)
{
    mixture *m = w->m;
    int64_t terms = 2 * (m->expert.inter + m->shared.inter) + m->top_k + m->experts + 4;
    for (int64_t i = 0; i < m->hidden; i++) {
        w->x[i] = estimate_exact(m->x[t * m->hidden + i]);
        w->g[i] = estimate_exact(m->g[t * m->hidden + i]);
        w->y[i] = w->dx[i] = (sum){0, 0, 0};
    }
    for (int64_t j = 0; j < m->top_k; j++)
        m->dweights[t * m->top_k + j] =
            expert_token(w, &m->expert, &w->expert, m->routes[t].id[j], m->routes[t].weight[j]);
    if (m->shared.inter)
        shared_token(w);
    if (m->router)
        router_token(w, t);
    for (int64_t i = 0; i < m->hidden; i++) {
        m->y[t * m->hidden + i] = finish(&w->y[i], m->top_k + 2, m->dtype);
        m->dx[t * m->hidden + i] = finish(&w->dx[i], terms, m->dtype);
    }
}

static estimate *finished(check_case *c, const sum *sums, int64_t count, int64_t terms, tn_dtype dtype)
{
    estimate *e = case_alloc(c, (size_t)count * sizeof *e);
    for (int64_t i = 0; i < count; i++)
        e[i] = finish(&sums[i], terms, dtype);
    return e;
}

static sum *sums_of(check_case *c, int64_t count)
{
    return case_alloc(c, (size_t)count * sizeof(sum));
}

static void open_weights(check_case *c, weight_sums *s, int64_t count)
{
    *s = (weight_sums){sums_of(c, count), sums_of(c, count), sums_of(c, count)};
}

static void finish_weights(check_case *c, const mixture *m, mixture_weights *w, const weight_sums *s, int64_t count)
{
    w->dgate = finished(c, s->gate, count, m->tokens, m->dtype);
    w->dup = finished(c, s->up, count, m->tokens, m->dtype);
    w->ddown = finished(c, s->down, count, m->tokens, m->dtype);
}

void mixture_run(check_case *c, mixture *m)
{
    work w = {.m = m};
    int64_t count = m->experts * m->expert.inter * m->hidden, shared = m->shared.inter * m->hidden;
    int64_t widest = m->hidden + m->expert.inter + m->shared.inter;
    estimate **rows[] = {&w.x, &w.g, &w.gate, &w.up, &w.a, &w.h, &w.back};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = case_alloc(c, (size_t)widest * sizeof(estimate));
    open_weights(c, &w.expert, count);
    open_weights(c, &w.shared, shared);
    w.y = sums_of(c, m->hidden);
    w.dx = sums_of(c, m->hidden);
    w.router = sums_of(c, m->experts * m->hidden);
    w.bias = sums_of(c, m->experts);
    w.scale = sums_of(c, m->hidden);
    m->y = case_alloc(c, (size_t)(m->tokens * m->hidden) * sizeof(estimate));
    m->dx = case_alloc(c, (size_t)(m->tokens * m->hidden) * sizeof(estimate));
    m->dweights = case_alloc(c, (size_t)(m->tokens * m->top_k) * sizeof(estimate));
    for (int64_t t = 0; t < m->tokens; t++)
        one_token(&w, t);
    finish_weights(c, m, &m->expert, &w.expert, count);
    finish_weights(c, m, &m->shared, &w.shared, shared);
    m->drouter = finished(c, w.router, m->experts * m->hidden, m->tokens, m->dtype);
    m->dbias = finished(c, w.bias, m->experts, m->tokens, m->dtype);
    m->dshared_scale = finished(c, w.scale, m->hidden, m->tokens, m->dtype);
}
