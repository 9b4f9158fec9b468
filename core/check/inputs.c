/* Made-up inputs for one call of a site. Shapes follow the contracts of kernel.h; values look like a model's. */
#include "check/inputs.h"

#include "eager/eager.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers: the same on every machine -------------------------------------------------- */

/* splitmix64: any seed will do, and neighbouring seeds give unrelated numbers. */
static uint64_t next_bits(struct inputs_random *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double inputs_uniform(struct inputs_random *r)
{
    return (double)(next_bits(r) >> 11) * 0x1p-53;
}

float inputs_normal(struct inputs_random *r)
{
    r->has_spare = !r->has_spare;
    if (!r->has_spare)
        return (float)r->spare;
    double radius = sqrt(-2 * log(1 - inputs_uniform(r))), angle = 2 * 3.14159265358979323846 * inputs_uniform(r);
    r->spare = radius * sin(angle);
    return (float)(radius * cos(angle));
}

/* ---- tensors --------------------------------------------------------------------------------------- */

typedef struct drawing {
    inputs *in;
    const tn_site *site;
    tn_dtype dtype;
    int64_t batch, tokens; /* tokens of one row */
    struct inputs_random random;
    size_t used; /* bytes of in->memory; counted only while that is NULL */
    tn_status status;
    tn_error *err;
} drawing;

/* The next input. While memory is NULL only its place is counted. */
static tn_tensor *add_in(drawing *d, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor *t = &d->in->call.in[d->in->call.in_count++];
    *t = tn_tensor_dense(d->in->memory ? (char *)d->in->memory + d->used : NULL, dtype, ndim, shape);
    d->used += ((size_t)tn_tensor_count(t) * tn_dtype_size(dtype) + 63) / 64 * 64;
    return t;
}

static void add_out(drawing *d, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    d->in->call.out[d->in->call.out_count++] = tn_tensor_dense(NULL, dtype, ndim, shape);
}

static void fill_normal(drawing *d, const tn_tensor *t)
{
    if (!t->data)
        return;
    size_t size = tn_dtype_size(t->dtype);
    float block[256];
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i += 256) {
        int64_t n = count - i < 256 ? count - i : 256;
        for (int64_t j = 0; j < n; j++)
            block[j] = inputs_normal(&d->random);
        convert_from_f32(block, t->dtype, (char *)t->data + (size_t)i * size, n);
    }
}

static void add_normal(drawing *d, int32_t ndim, const int64_t *shape)
{
    fill_normal(d, add_in(d, d->dtype, ndim, shape));
}

/* ---- contracts --------------------------------------------------------------------------------------- */

/* One row per token, or, where there are several batch rows, the four dimensions that a norm of heads sees. */
static void draw_norm(drawing *d)
{
    int64_t width = d->site->dim[TN_DIM_WIDTH];
    int64_t flat[2] = {d->tokens, width}, heads[4] = {d->batch, d->tokens, 2, width};
    int32_t ndim = d->batch > 1 ? 4 : 2;
    const int64_t *shape = d->batch > 1 ? heads : flat;
    add_normal(d, ndim, shape);
    add_out(d, d->dtype, ndim, shape);
    if (d->site->op == TN_OP_ADD_RMS_NORM) {
        add_normal(d, ndim, shape);
        add_out(d, d->dtype, ndim, shape);
    } else if (d->site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED) {
        add_normal(d, ndim, shape);
    }
}

/* Tables of a rope with base 10000 from position 7 on: every angle a model can produce looks like one of these. */
static void draw_table(drawing *d, bool sine)
{
    int64_t rotary = d->site->dim[TN_DIM_ROTARY] > 0 ? d->site->dim[TN_DIM_ROTARY] : d->site->dim[TN_DIM_HEAD];
    bool narrow = d->site->meaning[TN_AXIS_ROPE] == TN_ROPE_HALF_NARROW;
    int64_t half = rotary / 2, width = narrow ? half : rotary;
    tn_tensor *t = add_in(d, d->dtype, 3, (int64_t[]){d->batch, d->tokens, width});
    if (!t->data)
        return;
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t row = 0; row < d->batch * d->tokens; row++)
        for (int64_t i = 0; i < width; i++) {
            int64_t position = 7 + row % d->tokens + 11 * (row / d->tokens);
            float angle = (float)position * powf(10000.0f, -2.0f * (float)(i % half) / (float)rotary);
            float value = sine ? sinf(angle) : cosf(angle);
            convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)(row * width + i) * size, 1);
        }
}

static void draw_rope(drawing *d)
{
    int64_t head = d->site->dim[TN_DIM_HEAD];
    int64_t q[4] = {d->batch, d->tokens, d->site->dim[TN_DIM_Q_HEADS], head};
    int64_t k[4] = {d->batch, d->tokens, d->site->dim[TN_DIM_KV_HEADS], head};
    add_normal(d, 4, q);
    add_normal(d, 4, k);
    draw_table(d, false);
    draw_table(d, true);
    add_out(d, d->dtype, 4, q);
    add_out(d, d->dtype, 4, k);
}

/* x [T, in] -> y [T, out] */
static void draw_flat(drawing *d, int64_t in, int64_t out)
{
    int64_t tokens = d->batch * d->tokens;
    add_normal(d, 2, (int64_t[]){tokens, in});
    add_out(d, d->dtype, 2, (int64_t[]){tokens, out});
}

/* Tokens for a router, with the ambiguous ones marked. */
static void draw_routed(drawing *d)
{
    int64_t tokens = d->batch * d->tokens;
    tn_tensor *x = add_in(d, d->dtype, 2, (int64_t[]){tokens, d->site->dim[TN_DIM_HIDDEN]});
    if (!x->data)
        return;
    d->in->skip = calloc((size_t)tokens, sizeof *d->in->skip);
    if (!d->in->skip)
        d->status =
            tn_fail(d->err, TN_E_MEMORY, d->site->path, "out of memory while checking a kernel; free some memory");
    else
        d->status = inputs_draw_routed(d->site, x, d->in->skip, &d->random, d->err);
}

static tn_dtype routing_dtype(const drawing *d)
{
    return d->site->features & TN_HAS_F32_ROUTING ? TN_F32 : d->dtype;
}

static void draw_route(drawing *d)
{
    int64_t shape[2] = {d->batch * d->tokens, d->site->dim[TN_DIM_TOP_K]};
    draw_routed(d);
    add_out(d, routing_dtype(d), 2, shape);
    add_out(d, TN_I32, 2, shape);
}

/* k different experts per token with positive weights that add up to one. */
static void draw_experts(drawing *d)
{
    int64_t experts = d->site->dim[TN_DIM_EXPERTS], k = d->site->dim[TN_DIM_TOP_K];
    int64_t tokens = d->batch * d->tokens;
    draw_flat(d, d->site->dim[TN_DIM_HIDDEN], d->site->dim[TN_DIM_HIDDEN]);
    tn_tensor *weights = add_in(d, routing_dtype(d), 2, (int64_t[]){tokens, k});
    tn_tensor *chosen = add_in(d, TN_I32, 2, (int64_t[]){tokens, k});
    if (!weights->data)
        return;
    size_t size = tn_dtype_size(weights->dtype);
    for (int64_t t = 0; t < tokens; t++) {
        int32_t *e = (int32_t *)chosen->data + t * k;
        for (int64_t j = 0; j < k; j++) {
            bool again = true;
            while (again) {
                e[j] = (int32_t)(inputs_uniform(&d->random) * (double)experts);
                again = false;
                for (int64_t i = 0; i < j; i++)
                    again |= e[i] == e[j];
            }
            /* Of about 1/k each; the sum need not be exactly one. */
            float weight = (float)((0.5 + inputs_uniform(&d->random)) / (double)k);
            convert_from_f32(&weight, weights->dtype, (char *)weights->data + (size_t)(t * k + j) * size, 1);
        }
    }
}

/* Rows by group: every row goes to one at random, so that some have none. */
static void draw_grouped(drawing *d)
{
    int64_t groups = d->site->dim[TN_DIM_EXPERTS], rows = d->batch * d->tokens;
    draw_flat(d, d->site->dim[TN_DIM_HIDDEN], d->site->dim[TN_DIM_OUT]);
    tn_tensor *counts = add_in(d, TN_I64, 1, &groups);
    if (!counts->data)
        return;
    memset(counts->data, 0, (size_t)groups * sizeof(int64_t));
    for (int64_t row = 0; row < rows; row++)
        ((int64_t *)counts->data)[(int64_t)(inputs_uniform(&d->random) * (double)groups)]++;
}

/* Queries at the end of a cache that has seen a few tokens before and has a few empty places after; in every batch row
 * but the first the first positions are padding, whose queries see nothing. */
static void draw_attention(drawing *d)
{
    enum { PAST = 5, EMPTY = 3, PADDING = 6 };
    int64_t head = d->site->dim[TN_DIM_HEAD], kv_heads = d->site->dim[TN_DIM_KV_HEADS];
    int64_t head_v = d->site->dim[TN_DIM_HEAD_V] > 0 ? d->site->dim[TN_DIM_HEAD_V] : head;
    int64_t heads = d->site->dim[TN_DIM_Q_HEADS], cached = PAST + d->tokens + EMPTY;
    add_normal(d, 4, (int64_t[]){d->batch, d->tokens, heads, head});
    add_normal(d, 4, (int64_t[]){d->batch, cached, kv_heads, head});
    add_normal(d, 4, (int64_t[]){d->batch, cached, kv_heads, head_v});
    tn_tensor *q_index = add_in(d, TN_I32, 2, (int64_t[]){d->batch, d->tokens});
    tn_tensor *kv_index = add_in(d, TN_I32, 2, (int64_t[]){d->batch, cached});
    add_out(d, d->dtype, 4, (int64_t[]){d->batch, d->tokens, heads, head_v});
    if (!q_index->data)
        return;
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t padding = b > 0 ? PADDING : 0;
        for (int64_t t = 0; t < d->tokens; t++)
            ((int32_t *)q_index->data)[b * d->tokens + t] = (int32_t)(PAST + t - padding);
        for (int64_t s = 0; s < cached; s++)
            ((int32_t *)kv_index->data)[b * cached + s] =
                (int32_t)(s < PAST + d->tokens && s >= padding ? s - padding : -1);
    }
}

static void draw(drawing *d)
{
    const tn_site *site = d->site;
    d->in->call.in_count = d->in->call.out_count = 0;
    d->used = 0;
    switch (site->op) {
    case TN_OP_RMS_NORM:
    case TN_OP_ADD_RMS_NORM:
        draw_norm(d);
        break;
    case TN_OP_ROPE:
        draw_rope(d);
        break;
    case TN_OP_MLP:
        draw_flat(d, site->dim[TN_DIM_HIDDEN], site->dim[TN_DIM_HIDDEN]);
        break;
    case TN_OP_LINEAR:
        draw_flat(d, site->dim[TN_DIM_HIDDEN], site->dim[TN_DIM_OUT]);
        break;
    case TN_OP_MOE_ROUTE:
        draw_route(d);
        break;
    case TN_OP_MOE_EXPERTS:
        draw_experts(d);
        break;
    case TN_OP_MOE_BLOCK:
        draw_routed(d);
        add_out(d, d->dtype, 2, d->in->call.in[0].shape);
        break;
    case TN_OP_GROUPED_MATMUL:
        draw_grouped(d);
        break;
    case TN_OP_ATTENTION:
        draw_attention(d);
        break;
    default:
        d->status = tn_fail(d->err, TN_DECLINED, site->path, "there is no check for this operation");
    }
}

tn_status inputs_draw(inputs *in, const tn_site *site, int64_t batch, int64_t tokens, uint64_t seed, tn_error *err)
{
    *in = (inputs){.call = {.size = sizeof(tn_call), .op = site->op, .site = site}, .tokens = batch * tokens};
    drawing d = {.in = in,
                 .site = site,
                 .dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE],
                 .batch = batch,
                 .tokens = tokens,
                 .random = {.state = seed},
                 .err = err};
    draw(&d);
    if (d.status != TN_OK)
        return d.status;
    in->memory = aligned_alloc(64, d.used ? d.used : 64);
    if (!in->memory)
        return tn_fail(err, TN_E_MEMORY, site->path, "out of memory while checking a kernel; free some memory");
    draw(&d);
    if (d.status != TN_OK)
        inputs_close(in);
    return d.status;
}

void inputs_close(inputs *in)
{
    free(in->memory);
    free(in->skip);
    *in = (inputs){0};
}

double inputs_work(const tn_site *site, int64_t tokens)
{
    const int64_t *dim = site->dim;
    double h = (double)dim[TN_DIM_HIDDEN], i = (double)dim[TN_DIM_INTER], t = (double)tokens;
    switch (site->op) {
    case TN_OP_MLP:
        return 3 * t * h * i;
    case TN_OP_LINEAR:
    case TN_OP_GROUPED_MATMUL:
        return t * h * (double)dim[TN_DIM_OUT];
    case TN_OP_MOE_ROUTE:
        return t * h * (double)dim[TN_DIM_EXPERTS];
    case TN_OP_MOE_EXPERTS:
    case TN_OP_MOE_BLOCK:
        return 3 * t * h * i * (double)dim[TN_DIM_TOP_K] + t * h * (double)dim[TN_DIM_EXPERTS] +
               3 * t * h * (double)dim[TN_DIM_SHARED_INTER];
    case TN_OP_ATTENTION:
        return 2 * t * (t + 8) * (double)(dim[TN_DIM_Q_HEADS] * dim[TN_DIM_HEAD]);
    default:
        return 0;
    }
}
