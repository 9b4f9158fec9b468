/* Made-up inputs for one call of a site. Shapes follow the contracts of kernel.h; values look like a model's. */
#include "check/inputs.h"

#include "base/tensor.h"
#include "base/convert.h"
#include "op/op.h"

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

/* ---- drawing -------------------------------------------------------------------------------------- */

typedef struct drawing {
    inputs *in;
    const tn_site *site;
    tn_call *call;
    int64_t tokens; /* of one batch row                                                          */
    inputs_profile profile;
    struct inputs_random random;
    tn_error *err;
} drawing;

static void put(const tn_tensor *t, int64_t at, float value)
{
    convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)at * tn_dtype_size(t->dtype), 1);
}

/* The factor of an element. The third row of a scaled
 * input is the first that is zero, so that a call of one or two tokens says something, too. */
static float factor_of(const drawing *d, const tn_tensor *t, int64_t at)
{
    enum { OUTLIERS = 29, ZERO = 7, POWERS = 25, POWERS_F16 = 7 };
    int64_t width = t->shape[t->ndim - 1], row = at / width;
    bool narrow = t->dtype == TN_F16;
    if (d->profile == INPUTS_OUTLIERS && at % width % OUTLIERS == OUTLIERS - 1)
        return narrow ? 32 : 1000;
    if (d->profile != INPUTS_SCALED)
        return 1;
    int powers = narrow ? POWERS_F16 : POWERS;
    return row % ZERO == 2 ? 0 : ldexpf(1, (int)(row * 5 % powers) - powers / 2);
}

/* Activations: from a normal distribution. */
static void draw_normal(drawing *d, const tn_tensor *t)
{
    size_t size = tn_dtype_size(t->dtype);
    float block[256];
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i += 256) {
        int64_t n = count - i < 256 ? count - i : 256;
        for (int64_t j = 0; j < n; j++)
            block[j] = inputs_normal(&d->random);
        for (int64_t j = 0; d->profile != INPUTS_PLAIN && j < n; j++)
            block[j] *= factor_of(d, t, i + j);
        convert_from_f32(block, t->dtype, (char *)t->data + (size_t)i * size, n);
    }
}

/* Every input that has a gradient; others mean something. */
static tn_status draw_plain(drawing *d)
{
    const op_row *row = op_find(d->call->op);
    for (int i = 0; i < d->call->in_count; i++)
        if (op_input_has_gradient(row, i, d->call->in[i].dtype))
            draw_normal(d, &d->call->in[i]);
    return TN_OK;
}

/* What multiplies a norm stays plain: large gates would make its gradients small differences of large numbers. */
static tn_status draw_norm(drawing *d)
{
    draw_normal(d, &d->call->in[0]);
    d->profile = INPUTS_PLAIN;
    if (d->call->in_count > 1)
        draw_normal(d, &d->call->in[1]);
    return TN_OK;
}

/* Tables of a rope with base 10000 from position 7 on: every angle a model can produce looks like one of these. */
static void draw_table(drawing *d, const tn_tensor *t, bool sine)
{
    int64_t rotary = d->site->dim[TN_DIM_ROTARY] > 0 ? d->site->dim[TN_DIM_ROTARY] : d->site->dim[TN_DIM_HEAD];
    int64_t half = rotary / 2, width = t->shape[2];
    for (int64_t row = 0; row < t->shape[0] * t->shape[1]; row++)
        for (int64_t i = 0; i < width; i++) {
            int64_t position = 7 + row % d->tokens + 11 * (row / d->tokens);
            float angle = (float)position * powf(10000.0f, -2.0f * (float)(i % half) / (float)rotary);
            put(t, row * width + i, sine ? sinf(angle) : cosf(angle));
        }
}

static tn_status draw_rope(drawing *d)
{
    draw_table(d, &d->call->in[2], false);
    draw_table(d, &d->call->in[3], true);
    return draw_plain(d);
}

/* Tokens for a router, with the ambiguous ones marked. */
static tn_status draw_routed(drawing *d)
{
    tn_tensor *x = &d->call->in[0];
    d->in->skip = calloc((size_t)x->shape[0] + 1, sizeof *d->in->skip);
    if (!d->in->skip)
        return tn_fail(d->err, TN_E_MEMORY, d->site->path, "out of memory while checking a kernel; free some memory");
    return inputs_draw_routed(d->site, x, d->in->skip, &d->random, d->err);
}

/* k different experts per token with positive weights that add up to about one. */
static tn_status draw_experts(drawing *d)
{
    const tn_tensor *weights = &d->call->in[1], *chosen = &d->call->in[2];
    int64_t experts = d->site->dim[TN_DIM_EXPERTS], k = d->site->dim[TN_DIM_TOP_K];
    draw_normal(d, &d->call->in[0]);
    for (int64_t t = 0; t < weights->shape[0]; t++) {
        int32_t *e = (int32_t *)chosen->data + t * k;
        for (int64_t j = 0; j < k; j++) {
            bool again = true;
            while (again) {
                e[j] = (int32_t)(inputs_uniform(&d->random) * (double)experts);
                again = false;
                for (int64_t i = 0; i < j; i++)
                    again |= e[i] == e[j];
            }
            put(weights, t * k + j, (float)((0.5 + inputs_uniform(&d->random)) / (double)k));
        }
    }
    return TN_OK;
}

/* Rows by group: every row goes to one at random, so that some have none. */
static tn_status draw_grouped(drawing *d)
{
    const tn_tensor *counts = &d->call->in[1];
    int64_t groups = counts->shape[0];
    draw_normal(d, &d->call->in[0]);
    memset(counts->data, 0, (size_t)groups * sizeof(int64_t));
    for (int64_t row = 0; row < d->call->in[0].shape[0]; row++)
        ((int64_t *)counts->data)[(int64_t)(inputs_uniform(&d->random) * (double)groups)]++;
    return TN_OK;
}

/* Queries at the end of a cache that has seen a few tokens before and has a few empty places after; in every batch row
 * but the first the first positions are padding, whose queries see nothing. */
enum { PAST = 5, EMPTY = 3, PADDING = 6 };

static tn_status draw_attention(drawing *d)
{
    int32_t *q_index = d->call->in[3].data, *kv_index = d->call->in[4].data;
    int64_t cached = d->call->in[4].shape[1];
    for (int64_t b = 0; b < d->call->in[3].shape[0]; b++) {
        int64_t padding = b > 0 ? PADDING : 0;
        for (int64_t t = 0; t < d->tokens; t++)
            q_index[b * d->tokens + t] = (int32_t)(PAST + t - padding);
        for (int64_t s = 0; s < cached; s++)
            kv_index[b * cached + s] = (int32_t)(s < PAST + d->tokens && s >= padding ? s - padding : -1);
    }
    /* Rounding of large scores would choose other keys. */
    d->profile = INPUTS_PLAIN;
    return draw_plain(d);
}

/* Operations whose inputs are more than random numbers. */
static tn_status (*drawer_of(tn_op op))(drawing *d)
{
    static const struct {
        tn_op op;
        tn_status (*draw)(drawing *d);
    } drawers[] = {{TN_OP_RMS_NORM, draw_norm},       {TN_OP_ROPE, draw_rope},
                   {TN_OP_MOE_ROUTE, draw_routed},    {TN_OP_MOE_BLOCK, draw_routed},
                   {TN_OP_MOE_EXPERTS, draw_experts}, {TN_OP_GROUPED_MATMUL, draw_grouped},
                   {TN_OP_ATTENTION, draw_attention}};
    for (size_t i = 0; i < sizeof drawers / sizeof *drawers; i++)
        if (drawers[i].op == op)
            return drawers[i].draw;
    return draw_plain;
}

/* Gives every input its place behind base (NULL: counts only); returns the bytes. */
static size_t place_inputs(tn_call *call, char *base)
{
    size_t used = 0;
    for (int i = 0; i < call->in_count; i++) {
        call->in[i].data = base ? base + used : NULL;
        used += tensor_padded_bytes(&call->in[i]);
    }
    return used;
}

tn_call inputs_call(const tn_site *site, int64_t batch, int64_t tokens)
{
    const op_row *row = op_find(site->op);
    op_free free_letters = op_free_of(row, batch, tokens, PAST + tokens + EMPTY);
    tn_call call = op_call_of(row, site, &free_letters);
    call.out_count = op_out_count(row, site, false);
    return call;
}

tn_status inputs_draw(inputs *in, const tn_site *site, int64_t batch, int64_t tokens, uint64_t seed, tn_error *err)
{
    return inputs_draw_as(in, site, batch, tokens, INPUTS_PLAIN, seed, err);
}

tn_status inputs_draw_as(inputs *in, const tn_site *site, int64_t batch, int64_t tokens, inputs_profile profile,
                         uint64_t seed, tn_error *err)
{
    *in = (inputs){.call = inputs_call(site, batch, tokens), .tokens = batch * tokens};
    drawing d = {.in = in,
                 .site = site,
                 .call = &in->call,
                 .tokens = tokens,
                 .profile = profile,
                 .random = {.state = seed},
                 .err = err};
    size_t bytes = place_inputs(&in->call, NULL);
    in->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!in->memory)
        return tn_fail(err, TN_E_MEMORY, site->path, "out of memory while checking a kernel; free some memory");
    place_inputs(&in->call, in->memory);
    tn_status status = drawer_of(site->op)(&d);
    if (status != TN_OK)
        inputs_close(in);
    return status;
}

void inputs_close(inputs *in)
{
    free(in->memory);
    free(in->skip);
    *in = (inputs){0};
}

double inputs_operations(const tn_site *site, int64_t tokens)
{
    tn_call call = inputs_call(site, 1, tokens);
    return op_operations(&call);
}
