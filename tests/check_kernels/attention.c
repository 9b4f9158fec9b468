/* ATTENTION against sums in double, with bounds from the operands; and its bench lines. */
#include "attention_order.h"

#include <math.h>
#include <stdio.h>

static const char kernel[] = "cpu_attention";

enum { DENSE, HEAD_MAJOR, LATENT, GAPS };              /* how keys and values lie                               */
enum { IN_ORDER, RING, PADDED, FUTURE, BLIND, TOWER }; /* which slot holds which position                       */
enum { PLAIN, SHARP, TIES, SPECIALS };                 /* numbers                                               */

typedef struct shape {
    int64_t batch, tokens, keys, heads, kv_heads, d, dv;
    int64_t window, chunk;
    double softcap;
    bool sinks;
    int lies, slots, numbers;
} shape;

/* ---- the reference ------------------------------------------------------------------------------------ */

typedef struct reference {
    const shape *s;
    const double *q, *k, *v, *q_index, *kv_index, *sinks;
    double scale;
    tn_dtype dtype;
    bool pairs; /* probabilities are rounded to bf16                                             */
} reference;

static bool sees(const reference *r, int64_t b, int64_t t, int64_t key)
{
    const shape *s = r->s;
    int64_t q = (int64_t)r->q_index[b * s->tokens + t], kv = (int64_t)r->kv_index[b * s->keys + key];
    return kv >= 0 && kv <= q && (!s->window || q - kv < s->window) && (!s->chunk || q / s->chunk == kv / s->chunk);
}

/* Of few keys everything is rounded that eager rounds. */
static bool rounds_as_eager(const reference *r, int64_t b, int64_t t)
{
    const shape *s = r->s;
    int64_t block = s->d + s->dv <= 256 ? 256 : s->d + s->dv <= 640 ? 128 : 64;
    bool few = s->slots == TOWER ? s->keys <= (s->tokens == 1 ? 64 : block) : r->q_index[b * s->tokens + t] < 64;
    return r->dtype != TN_F32 && few;
}

/* Scores of one row, -infinity for what it does not see; returns how far any may be off. Sums of d products in f32, a
 * factor, a softcap; and what 2^x makes of the last place of x. */
static double row_scores(const reference *r, int64_t b, int64_t t, int64_t head, double *z, int64_t *seen)
{
    const shape *s = r->s;
    const double u = 0x1p-24, *q = r->q + ((b * s->tokens + t) * s->heads + head) * s->d;
    double off = 0, largest = 0;
    *seen = 0;
    for (int64_t key = 0; key < s->keys; key++) {
        const double *k = r->k + ((b * s->keys + key) * s->kv_heads + head / (s->heads / s->kv_heads)) * s->d;
        double sum = 0, size = 0;
        z[key] = -INFINITY;
        if (!sees(r, b, t, key))
            continue;
        for (int64_t i = 0; i < s->d; i++) {
            sum += q[i] * k[i];
            size += fabs(q[i] * k[i]);
        }
        z[key] = s->softcap != 0 ? s->softcap * tanh(r->scale * sum / s->softcap) : r->scale * sum;
        off = fmax(off, r->scale * size * (double)(s->d + 4) * u + (s->softcap != 0 ? 8 * u * s->softcap : 0));
        largest = isfinite(z[key]) ? fmax(largest, fabs(z[key])) : largest;
        (*seen)++;
    }
    if (s->sinks)
        largest = fmax(largest, fabs(r->sinks[head]));
    int steps = rounds_as_eager(r, b, t) ? 2 + (s->softcap != 0 ? 3 : 0) + (s->sinks ? 2 : 0) : 0;
    return off + (4 * u + steps * unit_roundoff(r->dtype)) * largest;
}

static void expect_row(const reference *r, int64_t b, int64_t t, int64_t head, double *z, double *want, double *bound)
{
    const shape *s = r->s;
    const double u = 0x1p-24;
    int64_t seen;
    double off = row_scores(r, b, t, head, z, &seen), sink = s->sinks ? r->sinks[head] : -INFINITY, max = sink, sum = 0;
    for (int64_t key = 0; key < s->keys; key++)
        max = z[key] > max || isnan(z[key]) ? z[key] : max;
    for (int64_t key = 0; key < s->keys; key++)
        sum += sees(r, b, t, key) ? exp(z[key] - max) : 0;
    sum += exp(sink - max);
    /* Each probability: its score, the exponential (2^-16 where only bf16 is left of it) and its rounding; their sum.
     */
    double each = exp(2 * off) - 1 + 2 * (double)(seen + 8) * u + (r->pairs ? 2 * 0x1p-16 + 0x1p-8 : 8 * u) +
                  (rounds_as_eager(r, b, t) ? unit_roundoff(r->dtype) : 0);
    for (int64_t i = 0; i < s->dv; i++) {
        double o = 0, size = 0;
        for (int64_t key = 0; key < s->keys; key++) {
            if (!sees(r, b, t, key))
                continue;
            double p = exp(z[key] - max) / sum;
            double v = r->v[((b * s->keys + key) * s->kv_heads + head / (s->heads / s->kv_heads)) * s->dv + i];
            o += p * v;
            size += fabs(p * v);
        }
        want[i] = o;
        bound[i] = size * each + (fabs(o) + size * each) * unit_roundoff(r->dtype) + smallest(r->dtype) + 0x1p-120;
    }
}

/* ---- gradients --------------------------------------------------------------------------------------- */

/* A row's probabilities and the gradients of its products, how far each of both may be off, and its sink's share. */
typedef struct row_gradient {
    double *p, *ds, *p_off, *ds_off, sink, sink_off;
} row_gradient;

static int64_t kv_row(const reference *r, int64_t b, int64_t key, int64_t head)
{
    return (b * r->s->keys + key) * r->s->kv_heads + head / (r->s->heads / r->s->kv_heads);
}

static double factor_of(const reference *r, double z)
{
    return r->s->softcap != 0 ? r->scale * (1 - z / r->s->softcap * (z / r->s->softcap)) : r->scale;
}

static void row_gradients(const reference *r, int64_t b, int64_t t, int64_t head, const double *g, row_gradient *out)
{
    const shape *s = r->s;
    const double u = 0x1p-24;
    int64_t seen;
    double *z = out->p, off = row_scores(r, b, t, head, z, &seen), sink = s->sinks ? r->sinks[head] : -INFINITY;
    double max = sink, sum = 0, inner = 0, inner_size = 0, dp_off = 0;
    for (int64_t key = 0; key < s->keys; key++)
        max = fmax(max, z[key]);
    for (int64_t key = 0; key < s->keys; key++)
        sum += sees(r, b, t, key) ? exp(z[key] - max) : 0;
    sum += exp(sink - max);
    double each = exp(2 * off) - 1 + 2 * (double)(seen + 12) * u;
    for (int64_t key = 0; key < s->keys; key++) {
        const double *v = r->v + kv_row(r, b, key, head) * s->dv;
        double dp = 0, size = 0, slope = factor_of(r, z[key]);
        bool is_seen = sees(r, b, t, key);
        for (int64_t i = 0; is_seen && i < s->dv; i++) {
            dp += g[i] * v[i];
            size += fabs(g[i] * v[i]);
        }
        out->p[key] = is_seen ? exp(z[key] - max) / sum : 0;
        out->ds[key] = dp; /* for now */
        out->ds_off[key] = is_seen ? slope : 0;
        dp_off = fmax(dp_off, size * (double)(s->dv + 4) * u);
        inner += out->p[key] * dp;
        inner_size += fabs(out->p[key] * dp);
    }
    double inner_off = inner_size * (2 * each + (double)(seen + 4) * u) + dp_off;
    for (int64_t key = 0; key < s->keys; key++) {
        double p = out->p[key], slope = out->ds_off[key], dp = out->ds[key], two = fabs(dp) + fabs(inner);
        out->ds[key] = p * (dp - inner) * slope;
        out->ds_off[key] = p * r->scale * (two * (each + 4 * u) + dp_off + inner_off) +
                           (s->softcap != 0 ? p * r->scale * two * (32 * u + 2 * off / s->softcap) : 0);
        out->ds_off[key] += r->pairs ? (fabs(out->ds[key]) + out->ds_off[key]) * 0x1p-8 : 0;
        out->p_off[key] = p * each + (r->pairs ? p * (1 + each) * 0x1p-8 : 0);
    }
    double own = seen && s->sinks ? exp(sink - max) / sum : 0;
    out->sink = -own * inner;
    out->sink_off = own * (fabs(inner) * (2 * each + 16 * u) + inner_off);
}

/* want += a x, bound likewise. */
static void add_product(double *want, double *bound, const double *x, int64_t n, double a, double a_off, double sums)
{
    for (int64_t i = 0; i < n; i++) {
        want[i] += a * x[i];
        bound[i] += fabs(x[i]) * (a_off + fabs(a) * sums);
    }
}

static void round_bound(tn_dtype dtype, double *bound, const double *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        bound[i] += (fabs(want[i]) + bound[i]) * unit_roundoff(dtype) + smallest(dtype) + 0x1p-110;
}

static void expect_gradients(check_case *c, const reference *r)
{
    const shape *s = r->s;
    random_state random = {(uint64_t)(s->keys + s->d)};
    size_t row = (size_t)(s->keys + 1) * sizeof(double);
    row_gradient g = {case_alloc(c, row), case_alloc(c, row), case_alloc(c, row), case_alloc(c, row), 0, 0};
    const double rows = (double)(s->tokens * (s->heads / s->kv_heads) + 4) * 0x1p-23,
                 keys = (double)(s->keys + 4) * 0x1p-23;
    case_grads(c, &random);
    const double *up = case_values(c, &c->grads.out[0]);
    for (int i = 0; i < 3; i++)
        case_want_in(c, i);
    if (s->sinks)
        case_want_param(c, TN_ROLE_SINKS);
    for (int64_t i = 0; i < s->batch * s->tokens * s->heads; i++) {
        int64_t head = i % s->heads, b = i / s->heads / s->tokens;
        row_gradients(r, b, i / s->heads % s->tokens, head, up + i * s->dv, &g);
        for (int64_t key = 0; key < s->keys; key++) {
            int64_t kv = kv_row(r, b, key, head);
            if (g.p[key] == 0)
                continue;
            add_product(c->want_in[0] + i * s->d, c->bound_in[0] + i * s->d, r->k + kv * s->d, s->d, g.ds[key],
                        g.ds_off[key], keys);
            add_product(c->want_in[1] + kv * s->d, c->bound_in[1] + kv * s->d, r->q + i * s->d, s->d, g.ds[key],
                        g.ds_off[key], rows);
            add_product(c->want_in[2] + kv * s->dv, c->bound_in[2] + kv * s->dv, up + i * s->dv, s->dv, g.p[key],
                        g.p_off[key], rows);
        }
        if (s->sinks) {
            c->want_param[TN_ROLE_SINKS][head] += g.sink;
            c->bound_param[TN_ROLE_SINKS][head] += g.sink_off + fabs(g.sink) * rows;
        }
    }
    for (int i = 0; i < 3; i++)
        round_bound(r->dtype, c->bound_in[i], c->want_in[i], tn_tensor_count(&c->call.in[i]));
    if (s->sinks)
        round_bound(r->dtype, c->bound_param[TN_ROLE_SINKS], c->want_param[TN_ROLE_SINKS], s->heads);
}

static void expect(check_case *c, const shape *s, bool pairs)
{
    reference r = {.s = s,
                   .q = case_values(c, &c->call.in[0]),
                   .k = case_values(c, &c->call.in[1]),
                   .v = case_values(c, &c->call.in[2]),
                   .q_index = case_values(c, &c->call.in[3]),
                   .kv_index = case_values(c, &c->call.in[4]),
                   .sinks = s->sinks ? case_values(c, c->site.param[TN_ROLE_SINKS].tensors) : NULL,
                   .scale = c->site.num[TN_NUM_SCALE],
                   .dtype = c->call.in[0].dtype,
                   .pairs = pairs};
    double *z = case_alloc(c, (size_t)(s->keys + 1) * sizeof *z);
    case_want(c, 0);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t t = 0; t < s->tokens; t++)
            for (int64_t head = 0; head < s->heads; head++) {
                int64_t at = ((b * s->tokens + t) * s->heads + head) * s->dv;
                expect_row(&r, b, t, head, z, c->want[0] + at, c->bound[0] + at);
            }
    /* What nobody sees or what is no number reaches gradients through 0 times it; equal keys have none. */
    if (s->slots != FUTURE && s->numbers != SPECIALS && s->numbers != TIES)
        expect_gradients(c, &r);
}

/* ---- cases ---------------------------------------------------------------------------------------------- */

static void make_site(check_case *c, const shape *s)
{
    c->site.path = "model.layers.0.self_attn";
    c->site.class_name = "Qwen3Attention";
    c->site.meaning[TN_AXIS_WEIGHT] = 0;
    c->site.dim[TN_DIM_HEAD] = s->d;
    c->site.dim[TN_DIM_HEAD_V] = s->dv;
    c->site.dim[TN_DIM_Q_HEADS] = s->heads;
    c->site.dim[TN_DIM_KV_HEADS] = s->kv_heads;
    c->site.dim[TN_DIM_WINDOW] = s->window;
    c->site.dim[TN_DIM_CHUNK] = s->chunk;
    c->site.num[TN_NUM_SCALE] = 1 / sqrt((double)s->d);
    c->site.num[TN_NUM_SOFTCAP] = s->softcap;
    c->site.features = (s->window ? TN_HAS_WINDOW : 0) | (s->chunk ? TN_HAS_CHUNK : 0) |
                       (s->softcap != 0 ? TN_HAS_SOFTCAP : 0) | (s->sinks ? TN_HAS_SINKS : 0);
    c->max_tokens = s->batch * s->tokens > 0 ? s->batch * s->tokens : 1;
}

static void strides_of(const shape *s, int64_t width, int64_t *stride)
{
    int64_t row = s->lies == LATENT ? s->d : s->lies == GAPS ? width + 3 : width;
    stride[0] = s->keys * s->kv_heads * row;
    stride[1] = s->lies == HEAD_MAJOR ? row : s->kv_heads * row;
    stride[2] = s->lies == HEAD_MAJOR ? s->keys * row : row;
    stride[3] = 1;
}

/* The tokens stand behind what the cache holds already; unused slots are filled with what must never be looked at. */
static void place(check_case *c, const shape *s, random_state *r)
{
    int32_t *q_index = c->call.in[3].data, *kv_index = c->call.in[4].data;
    int64_t unused = s->slots == PADDED || s->slots == RING ? s->keys / 5 : 0, used = s->keys - unused;
    for (int64_t b = 0; b < s->batch; b++) {
        int64_t padding = s->slots == PADDED ? b * 3 : 0;
        for (int64_t t = 0; t < s->tokens; t++)
            q_index[b * s->tokens + t] = (int32_t)(used - s->tokens + t - padding);
        for (int64_t key = 0; key < s->keys; key++) {
            int64_t slot = s->slots == RING ? (key + s->keys / 3) % s->keys : key;
            kv_index[b * s->keys + slot] = key < used && key >= padding ? (int32_t)(key - padding) : -1;
        }
        for (int64_t key = 0; s->slots == TOWER && key < s->keys; key++)
            q_index[b * s->tokens + key % s->tokens] = kv_index[b * s->keys + key] = 0;
        for (int64_t t = 0; s->slots == BLIND && t < s->tokens; t += 2)
            q_index[b * s->tokens + t] = -1;
    }
    for (int which = 1; which < 3; which++)
        for (int64_t i = 0, n = tn_tensor_count(&c->call.in[which]); i < n; i++) {
            int64_t row = i / (s->kv_heads * c->call.in[which].shape[3]), b = row / (s->keys > 0 ? s->keys : 1);
            bool later = s->slots == FUTURE && kv_index[row] > q_index[(b + 1) * s->tokens - 1] - s->tokens / 2;
            if (kv_index[row] < 0 || later)
                element_set(&c->call.in[which], element_offset(&c->call.in[which], i),
                            random_below(r, 2) ? NAN : INFINITY);
        }
}

static void fill(check_case *c, const shape *s, random_state *r)
{
    for (int i = 0; i < 3; i++)
        fill_normal(&c->call.in[i], r, 0, 1);
    for (int i = 0; i < 2 && s->numbers == TIES; i++)
        for (int64_t e = 0, n = tn_tensor_count(&c->call.in[i]); e < n; e++)
            element_set(&c->call.in[i], element_offset(&c->call.in[i], e), i ? 1 : 2);
    for (int64_t e = 0, n = tn_tensor_count(&c->call.in[0]); e < n && s->numbers == SHARP; e++) {
        int64_t at = element_offset(&c->call.in[0], e);
        element_set(&c->call.in[0], at, 20 * element_get(&c->call.in[0], at));
    }
    for (int i = 0; i < 3 && s->numbers == SPECIALS; i++)
        for (int n = 0; n < 3 && tn_tensor_count(&c->call.in[i]) > 0; n++) {
            int64_t e = random_below(r, tn_tensor_count(&c->call.in[i]));
            element_set(&c->call.in[i], element_offset(&c->call.in[i], e),
                        n == 0   ? NAN
                        : n == 1 ? INFINITY
                                 : -INFINITY);
        }
}

static check_case attention_case(tn_dtype dtype, const shape *s)
{
    check_case c;
    random_state r = {(uint64_t)(s->d * 31 + s->tokens * 7 + s->keys * 3 + s->heads)};
    int64_t k_stride[4], v_stride[4];
    case_init(&c, kernel, TN_OP_ATTENTION, dtype);
    make_site(&c, s);
    strides_of(s, s->d, k_stride);
    strides_of(s, s->dv, v_stride);
    case_in(&c, dtype, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->d}, NULL);
    case_in(&c, dtype, 4, (int64_t[]){s->batch, s->keys, s->kv_heads, s->d}, k_stride);
    case_in(&c, dtype, 4, (int64_t[]){s->batch, s->keys, s->kv_heads, s->dv}, v_stride);
    case_in(&c, TN_I32, 2, (int64_t[]){s->batch, s->tokens}, NULL);
    case_in(&c, TN_I32, 2, (int64_t[]){s->batch, s->keys}, NULL);
    case_out(&c, dtype, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->dv}, NULL);
    if (s->sinks)
        fill_normal(case_param(&c, TN_ROLE_SINKS, 1, dtype, 1, &s->heads), &r, 1, 2);
    fill(&c, s, &r);
    place(&c, s, &r);
    snprintf(c.what, sizeof c.what, "%lldx%lld tokens, %lld keys, heads %lld/%lld, %lld/%lld%s%s%s%s, %d %d %d",
             (long long)s->batch, (long long)s->tokens, (long long)s->keys, (long long)s->heads, (long long)s->kv_heads,
             (long long)s->d, (long long)s->dv, s->window ? ", window" : "", s->chunk ? ", chunk" : "",
             s->softcap != 0 ? ", softcap" : "", s->sinks ? ", sinks" : "", s->lies, s->slots, s->numbers);
    return c;
}

/* Few and many rows, pieces of keys, parts of blocks, every mechanism. */
static const shape shapes[] = {
    {1, 1, 1, 1, 1, 8, 8, 0, 0, 0, false, DENSE, IN_ORDER, PLAIN},
    {1, 0, 5, 2, 1, 8, 8, 0, 0, 0, false, DENSE, IN_ORDER, PLAIN},
    {2, 0, 0, 2, 1, 8, 8, 0, 0, 0, false, DENSE, IN_ORDER, PLAIN},
    {1, 3, 0, 2, 1, 8, 8, 0, 0, 0, true, DENSE, IN_ORDER, PLAIN},
    {1, 20, 40, 4, 2, 32, 24, 9, 0, 10, true, GAPS, PADDED, PLAIN},
    {2, 3, 64, 6, 1, 17, 17, 0, 16, 0, true, HEAD_MAJOR, BLIND, PLAIN},
    {1, 1, 50, 8, 8, 64, 64, 0, 0, 0, false, DENSE, RING, PLAIN},
    {1, 64, 64, 3, 3, 40, 40, 0, 0, 20, false, DENSE, IN_ORDER, PLAIN},
    {1, 30, 60, 2, 1, 16, 16, 0, 0, 0, true, DENSE, FUTURE, PLAIN},
    {1, 30, 60, 2, 1, 16, 16, 0, 0, 0, false, DENSE, IN_ORDER, SPECIALS},
    {2, 1, 130, 4, 2, 64, 64, 0, 0, 0, false, DENSE, PADDED, PLAIN},
    {1, 1, 1000, 6, 2, 128, 128, 0, 0, 0, false, DENSE, IN_ORDER, PLAIN},
    {1, 1, 777, 8, 1, 33, 17, 0, 0, 0, true, GAPS, RING, PLAIN},
    {3, 2, 600, 3, 3, 40, 40, 100, 0, 0, false, HEAD_MAJOR, PADDED, PLAIN},
    {1, 4, 300, 2, 1, 31, 9, 0, 64, 30, true, GAPS, RING, PLAIN},
    {1, 1, 900, 16, 1, 576, 512, 0, 0, 0, false, LATENT, IN_ORDER, PLAIN},
    {1, 3, 140, 20, 1, 72, 40, 0, 0, 0, false, LATENT, PADDED, PLAIN},
    {1, 70, 70, 2, 1, 32, 32, 0, 0, 0, false, DENSE, IN_ORDER, PLAIN},
    {1, 130, 700, 4, 2, 64, 48, 0, 0, 0, false, DENSE, RING, PLAIN},
    {2, 65, 290, 5, 1, 24, 33, 50, 0, 0, true, HEAD_MAJOR, PADDED, PLAIN},
    {1, 90, 333, 3, 3, 17, 8, 0, 40, 20, true, GAPS, PADDED, PLAIN},
    {1, 100, 300, 2, 2, 80, 80, 20, 70, 0, false, DENSE, IN_ORDER, PLAIN},
    {1, 40, 600, 2, 1, 128, 128, 0, 0, 0, false, DENSE, FUTURE, PLAIN},
    {1, 3, 200, 2, 1, 128, 128, 0, 0, 0, false, DENSE, FUTURE, PLAIN},
    {2, 37, 100, 3, 1, 16, 16, 0, 0, 0, true, DENSE, BLIND, PLAIN},
    {1, 2, 300, 4, 1, 48, 48, 0, 0, 0, true, DENSE, BLIND, PLAIN},
    {2, 70, 70, 2, 2, 64, 64, 0, 0, 0, false, DENSE, TOWER, PLAIN},
    {1, 40, 1300, 2, 1, 40, 40, 0, 0, 0, false, GAPS, TOWER, PLAIN},
    {1, 2, 1100, 3, 3, 32, 32, 0, 0, 20, true, DENSE, TOWER, PLAIN},
    {1, 66, 66, 2, 1, 64, 64, 0, 0, 0, false, DENSE, IN_ORDER, TIES},
    {1, 1, 500, 2, 1, 64, 64, 0, 0, 0, false, DENSE, IN_ORDER, TIES},
    {1, 66, 400, 2, 1, 64, 64, 0, 0, 0, true, DENSE, IN_ORDER, SHARP},
    {1, 2, 500, 2, 1, 64, 64, 0, 0, 0, false, DENSE, RING, SHARP},
    {1, 60, 300, 2, 2, 32, 32, 0, 0, 0, false, DENSE, IN_ORDER, SPECIALS},
    {1, 1, 300, 2, 2, 32, 32, 0, 0, 0, false, DENSE, IN_ORDER, SPECIALS},
};

static void check_dtype(check_state *s, tn_dtype dtype)
{
    group_begin(s, "attention %s %s", tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (check_pass_over(s))
            continue;
        const shape *p = &shapes[i];
        check_case c = attention_case(dtype, p);
        expect(&c, p, dtype == TN_BF16 && s->tier->flags & TN_CPU_AVX512_BF16);
        /* Eager lets what a query does not see through 0 times it, and rounds large scores to other keys. */
        c.skip_eager = p->slots == FUTURE || p->numbers == SPECIALS || p->numbers == SHARP;
        check_run(s, &c);
    }
    group_end(s);
}

static check_case plain_case(int32_t variant, tn_dtype dtype)
{
    const shape plain = {1, 1, 2, 2, 1, 16, 16, 0, 0, 20, false, DENSE, IN_ORDER, PLAIN};
    (void)variant;
    return attention_case(dtype, &plain);
}

static const check_decline declines[] = {
    {0, TN_F32, {{NUM_IS, TN_NUM_SCALE, 0}}, "scale: 0, which must be a positive number"},
    {0, TN_F32, {{NUM_IS, TN_NUM_SOFTCAP, -1}}, "softcap: -1, which must be a positive number"},
    {0, TN_F32, {{MEANING_IS, TN_AXIS_DTYPE, TN_F64}}, "dtype"},
};

static void check(check_state *s)
{
    for (int d = 0; d < CHECK_DTYPES; d++) {
        check_dtype(s, check_dtypes[d]);
        check_attention_order(s, check_dtypes[d]);
    }
    group_begin(s, "attention declines %s", s->tier->name);
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    group_end(s);
}

/* ---- timing --------------------------------------------------------------------------------------------- */

static void bench_shape(check_state *s, const bench_model *m, tn_dtype dtype, int64_t tokens, int64_t past)
{
    const shape p = {1, tokens, past + tokens, m->q_heads, m->kv_heads, m->head, m->head, 0,
                     0, 0,      false,         DENSE,      IN_ORDER,    PLAIN};
    double seen = (double)tokens * (double)past + (double)tokens * (double)(tokens + 1) / 2;
    double flops = 4 * seen * (double)(m->q_heads * m->head), size = (double)tn_dtype_size(dtype);
    if (!bench_wanted(s, dtype, flops, "attention %s x%lld behind %lld", m->name, (long long)tokens, (long long)past))
        return;
    double cache = 2 * (double)((past + tokens) * m->kv_heads * m->head) * size;
    double rows = (double)(tokens * m->q_heads * m->head) * size;
    check_case c = attention_case(dtype, &p);
    bench_run(s, &c, (bench_work){cache + rows, rows, flops},
              past ? (bench_work){0} : (bench_work){2 * cache + 2 * rows, cache + rows, 2.5 * flops});
}

static void bench(check_state *s)
{
    static const int64_t lines[][2] = {{1, 128}, {1, 1024}, {1, 4096}, {1, 8192}, {4, 4096}, {512, 0}, {512, 7680}};
    for (int d = 0; d < CHECK_DTYPES; d++)
        for (int m = 0; m < BENCH_MODELS; m++)
            for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
                bench_shape(s, &bench_models[m], check_dtypes[d], lines[i][0], lines[i][1]);
}

const check_test check_attention = {.name = "attention", .tiers = CHECK_PRODUCTS, .check = check, .bench = bench};
