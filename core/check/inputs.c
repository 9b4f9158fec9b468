/* Made-up inputs for one call of a site. Shapes follow the contracts of kernel.h; values look like a model's. */
#include "check/inputs.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- drawing -------------------------------------------------------------------------------------- */

typedef struct drawing {
    inputs *in;
    const tn_site *site;
    tn_call *call;
    int64_t tokens; /* of one batch row                                                          */
    int64_t past;   /* position of its first                                                     */
    inputs_profile profile;
    random_state random;
    tn_error *err;
} drawing;

static void put(const tn_tensor *t, int64_t at, float value)
{
    convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)at * tn_dtype_size(t->dtype), 1);
}

static float get(const tn_tensor *t, int64_t at)
{
    float value;
    convert_to_f32((const char *)t->data + (size_t)at * tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

/* f16 ends at 65504: what is multiplied must be smaller there. Norms bring every row to the same size. */
static bool is_narrow(const drawing *d, const tn_tensor *t)
{
    return t->dtype == TN_F16 && (d->site->dim[TN_DIM_WIDTH] == 0 || d->site->op == TN_OP_SHORT_CONV);
}

/* The factor of a row. The third row of a scaled input is the first that is zero, so that a call of one or two tokens
 * says something, too. */
static float factor_of(const drawing *d, const tn_tensor *t, int64_t row)
{
    enum { ZERO = 7, POWERS = 25, POWERS_F16 = 7 };
    if (d->profile != INPUTS_SCALED)
        return 1;
    int powers = is_narrow(d, t) ? POWERS_F16 : POWERS;
    return row % ZERO == 2 ? 0 : ldexpf(1, (int)(row * 5 % powers) - powers / 2);
}

/* What one row in seven is like, each time another: large, with a NaN, with an infinity. Large numbers are such that
 * their products with each other, as those of gates, are still finite. */
static void make_extreme(const drawing *d, const tn_tensor *t, int64_t row)
{
    enum { KINDS = 7, LARGE = 1, NAN_AT = 2, UP = 3, DOWN = 4 };
    int64_t width = t->shape[t->ndim - 1], kind = row % KINDS;
    float large = t->dtype != TN_F16 ? 0x1p50f : is_narrow(d, t) ? 32 : 0x1p14f;
    for (int64_t i = 0; kind == LARGE && i < width; i++)
        put(t, row * width + i, large * get(t, row * width + i));
    if (kind == NAN_AT || kind == UP || kind == DOWN)
        put(t, row * width + row * 11 % width, kind == NAN_AT ? NAN : kind == UP ? INFINITY : -INFINITY);
}

typedef struct drawn_rows {
    drawing *d;
    const tn_tensor *t;
    int64_t width;
} drawn_rows;

static void draw_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    enum { BLOCK = 256, OUTLIERS = 29 };
    const drawn_rows *rows = ctx;
    const drawing *d = rows->d;
    const tn_tensor *t = rows->t;
    int64_t width = rows->width;
    size_t size = tn_dtype_size(t->dtype);
    random_state random = {d->random.state + (uint64_t)begin * (uint64_t)width * RANDOM_STEP};
    float block[BLOCK], outlier = is_narrow(d, t) ? 32 : 1000;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        float factor = factor_of(d, t, row);
        for (int64_t i = 0; i < width; i += BLOCK) {
            int64_t n = width - i < BLOCK ? width - i : BLOCK;
            for (int64_t j = 0; j < n; j++)
                block[j] = factor * random_nearly_normal(&random);
            for (int64_t j = OUTLIERS - 1 - i % OUTLIERS; d->profile == INPUTS_OUTLIERS && j < n; j += OUTLIERS)
                block[j] *= outlier;
            convert_from_f32(block, t->dtype, (char *)t->data + (size_t)(row * width + i) * size, n);
        }
        if (d->profile == INPUTS_EXTREME)
            make_extreme(d, t, row);
    }
}

/* Activations: from a normal distribution, the same however many threads draw them. */
static void draw_normal(drawing *d, const tn_tensor *t)
{
    enum { PIECE = 1 << 14 };
    drawn_rows rows = {d, t, t->shape[t->ndim - 1]};
    int64_t count = tn_tensor_count(t);
    if (count > 0)
        tn_parallel_for(count / rows.width, PIECE / rows.width + 1, draw_rows, &rows);
    d->random.state += (uint64_t)count * RANDOM_STEP;
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

/* Tables of a rope with base 10000: every angle a model can produce looks like one of these. Those of far positions are
 * longer than 1, as scaled rotations make them. */
static void draw_table(drawing *d, const tn_tensor *t, bool sine)
{
    int64_t rotary = d->site->dim[TN_DIM_ROTARY] > 0 ? d->site->dim[TN_DIM_ROTARY] : d->site->dim[TN_DIM_HEAD];
    int64_t half = rotary / 2, width = t->shape[2], first = d->past > 0 ? d->past : 7;
    float length = d->past > 0 ? 1.25f : 1.0f;
    for (int64_t i = 0; i < width; i++) {
        float frequency = powf(10000.0f, -2.0f * (float)(i % half) / (float)rotary);
        for (int64_t row = 0; row < t->shape[0] * t->shape[1]; row++) {
            int64_t position = first + row % d->tokens + 11 * (row / d->tokens);
            float angle = (float)position * frequency;
            put(t, row * width + i, length * (sine ? sinf(angle) : cosf(angle)));
        }
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
    return inputs_draw_routed(d->site, x, d->profile, d->in->skip, &d->random, d->err);
}

/* An expert that the token has not got yet, of those from first on. */
static int32_t draw_expert(drawing *d, const int32_t *chosen, int64_t count, int64_t first)
{
    int64_t experts = d->site->dim[TN_DIM_EXPERTS] - first;
    for (;;) {
        int32_t e = (int32_t)(first + (int64_t)(random_uniform(&d->random) * (double)experts));
        bool again = false;
        for (int64_t i = 0; i < count; i++)
            again |= chosen[i] == e;
        if (!again)
            return e;
    }
}

/* k different experts per token with positive weights that add up to about one. Crowded: every other token has the
 * first k, the rest others, where there are enough. */
static tn_status draw_experts(drawing *d)
{
    const tn_tensor *weights = &d->call->in[1], *chosen = &d->call->in[2];
    int64_t experts = d->site->dim[TN_DIM_EXPERTS], k = d->site->dim[TN_DIM_TOP_K];
    bool crowded = d->profile == INPUTS_CROWDED;
    draw_normal(d, &d->call->in[0]);
    for (int64_t t = 0; t < weights->shape[0]; t++) {
        int32_t *e = (int32_t *)chosen->data + t * k;
        for (int64_t j = 0; j < k; j++) {
            e[j] = crowded && t % 2 == 0 ? (int32_t)j : draw_expert(d, e, j, crowded && experts >= 2 * k ? k : 0);
            put(weights, t * k + j, (float)((0.5 + random_uniform(&d->random)) / (double)k));
        }
    }
    return TN_OK;
}

/* Rows by group: every row goes to one at random, so that some have none. Crowded: every other one to the last. */
static tn_status draw_grouped(drawing *d)
{
    const tn_tensor *counts = &d->call->in[1];
    int64_t groups = counts->shape[0], rows = d->call->in[0].shape[0];
    int64_t crowd = d->profile == INPUTS_CROWDED ? rows / 2 : 0, others = crowd > 0 && groups > 1 ? groups - 1 : groups;
    draw_normal(d, &d->call->in[0]);
    memset(counts->data, 0, (size_t)groups * sizeof(int64_t));
    ((int64_t *)counts->data)[groups - 1] = crowd;
    for (int64_t row = crowd; row < rows; row++)
        ((int64_t *)counts->data)[(int64_t)(random_uniform(&d->random) * (double)others)]++;
    return TN_OK;
}

/* Queries at the end of a cache that has seen some tokens before and has a few empty places after; in every batch row
 * but the first the first positions are padding, whose queries see nothing. */
enum { PAST = 5, EMPTY = 3, PADDING = 6 };

static int64_t past_of(const check_case *c)
{
    return c->past > 0 ? c->past : PAST;
}

/* Where position s of a batch row lies: in order, or, crowded, in a ring that began anew. */
static int64_t slot_of(const drawing *d, int64_t cached, int64_t s)
{
    return d->profile == INPUTS_CROWDED ? (s + cached / 3) % cached : s;
}

static void place_positions(drawing *d)
{
    int32_t *q_index = d->call->in[3].data, *kv_index = d->call->in[4].data;
    int64_t cached = d->call->in[4].shape[1];
    for (int64_t b = 0; b < d->call->in[3].shape[0]; b++) {
        int64_t padding = b > 0 ? PADDING : 0;
        for (int64_t t = 0; t < d->tokens; t++)
            q_index[b * d->tokens + t] = (int32_t)(d->past + t - padding);
        for (int64_t s = 0; s < cached; s++)
            kv_index[b * cached + slot_of(d, cached, s)] =
                (int32_t)(s < d->past + d->tokens && s >= padding ? s - padding : -1);
    }
}

/* Keys of ones and minus ones, and queries that are many times one of the keys they see: that one gets everything. All
 * products are whole numbers, so rounding changes nothing, and equal keys share exactly. */
static void sharpen(drawing *d)
{
    const tn_tensor *q = &d->call->in[0], *k = &d->call->in[1];
    const int32_t *q_index = d->call->in[3].data;
    int64_t heads = q->shape[2], kv_heads = k->shape[2], n = q->shape[3];
    int64_t window = d->site->dim[TN_DIM_WINDOW], chunk = d->site->dim[TN_DIM_CHUNK];
    float times = 1;
    while (times * (float)d->site->num[TN_NUM_SCALE] < 32 && (q->dtype != TN_F16 || times * (float)n < 16384))
        times *= 2;
    for (int64_t i = 0, count = tn_tensor_count(k); i < count; i++)
        put(k, i, random_uniform(&d->random) < 0.5 ? -1.0f : 1.0f);
    for (int64_t i = 0; i < tn_tensor_count(q) / n; i++) {
        int64_t row = i / heads, b = row / d->tokens, last = q_index[row];
        int64_t seen = window > 0 && window < last + 1 ? window : last + 1;
        if (chunk > 0 && last >= 0 && last % chunk < seen)
            seen = last % chunk + 1;
        int64_t position = last - (int64_t)(random_uniform(&d->random) * (double)seen);
        int64_t slot = position + (b > 0 ? PADDING : 0), head = i % heads / (heads / kv_heads);
        for (int64_t j = 0; last >= 0 && j < n; j++) {
            float key;
            size_t size = tn_dtype_size(k->dtype);
            convert_to_f32((char *)k->data + (size_t)(((b * k->shape[1] + slot) * kv_heads + head) * n + j) * size,
                           k->dtype, &key, 1);
            put(q, i * n + j, times * key);
        }
    }
}

/* Two keys of three, not the same for all queries; every fifth query has none. */
static void choose_keys(const tn_tensor *chosen)
{
    int64_t keys = chosen->shape[2];
    for (int64_t i = 0; i < tn_tensor_count(chosen); i++)
        ((int32_t *)chosen->data)[i] = i / keys % 5 != 4 && (i / keys + i % keys) % 3 != 1;
}

static tn_status draw_attention(drawing *d)
{
    inputs_profile profile = d->profile;
    place_positions(d);
    if (d->site->features & TN_HAS_CHOSEN_KEYS)
        choose_keys(&d->call->in[5]);
    d->in->cached = d->call->in[4].shape[1] - EMPTY;
    /* Rounding of large scores would choose other keys. */
    d->profile = INPUTS_PLAIN;
    draw_normal(d, &d->call->in[0]);
    draw_normal(d, &d->call->in[1]);
    d->profile = profile == INPUTS_SCALED ? profile : INPUTS_PLAIN;
    draw_normal(d, &d->call->in[2]);
    if (profile == INPUTS_OUTLIERS && !(d->site->features & (TN_HAS_SOFTCAP | TN_HAS_CHOSEN_KEYS)))
        sharpen(d);
    return TN_OK;
}

/* Every batch row but the first begins with padding; crowded: the first has some in the middle, too. */
static void place_row_index(drawing *d, const tn_tensor *index)
{
    for (int64_t b = 0; b < index->shape[0]; b++) {
        int32_t *row = (int32_t *)index->data + b * index->shape[1], next = (int32_t)d->past;
        for (int64_t t = 0; t < index->shape[1]; t++) {
            bool padding = b > 0 ? t < PADDING / 2 : d->profile == INPUTS_CROWDED && t % 5 == 3;
            row[t] = padding ? -1 : next++;
        }
    }
}

static tn_status draw_filter(drawing *d)
{
    place_row_index(d, &d->call->in[2]);
    return draw_plain(d);
}

/* Gates are plain: far ones forget everything, or nothing. Sizes of keys and queries do not matter, but for zeros. */
static tn_status draw_delta(drawing *d)
{
    inputs_profile profile = d->profile;
    place_row_index(d, &d->call->in[6]);
    for (int i = 0; i < 6; i++) {
        d->profile = i == 0 || i == 2 || i == 3 ? profile : INPUTS_PLAIN;
        draw_normal(d, &d->call->in[i]);
    }
    return TN_OK;
}

/* The same of steps. What is read has the signs of what was written: where a state forgets fast it is b x^T, and a row
 * of its results c b x, of which no digit would be right where c b happens to be nothing beside its parts. */
static tn_status draw_scan(drawing *d)
{
    inputs_profile profile = d->profile;
    const tn_tensor *b = &d->call->in[2], *c = &d->call->in[3];
    place_row_index(d, &d->call->in[5]);
    for (int i = 0; i < 5; i++) {
        d->profile = i == 0 ? profile : INPUTS_PLAIN;
        draw_normal(d, &d->call->in[i]);
    }
    for (int64_t i = 0, count = tn_tensor_count(c); i < count; i++)
        put(c, i, copysignf(get(c, i), get(b, i)));
    return TN_OK;
}

/* Operations whose inputs are more than random numbers. */
static tn_status (*drawer_of(tn_op op))(drawing *d)
{
    static const struct {
        tn_op op;
        tn_status (*draw)(drawing *d);
    } drawers[] = {{TN_OP_RMS_NORM, draw_norm},          {TN_OP_ROPE, draw_rope},
                   {TN_OP_MOE_ROUTE, draw_routed},       {TN_OP_MOE_BLOCK, draw_routed},
                   {TN_OP_MOE_EXPERTS, draw_experts},    {TN_OP_GROUPED_MATMUL, draw_grouped},
                   {TN_OP_ATTENTION, draw_attention},    {TN_OP_SHORT_CONV, draw_filter},
                   {TN_OP_GATED_DELTA_RULE, draw_delta}, {TN_OP_SELECTIVE_SCAN, draw_scan}};
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

tn_call inputs_call_case(const tn_site *site, const check_case *c)
{
    const op_row *row = op_find(site->op);
    op_free free_letters = op_free_of(row, c->batch, c->tokens, past_of(c) + c->tokens + EMPTY);
    tn_call call = op_call_of(row, site, &free_letters);
    call.out_count = op_out_count(row, site, false);
    return call;
}

tn_call inputs_call(const tn_site *site, int64_t batch, int64_t tokens)
{
    return inputs_call_case(site, &(check_case){.batch = batch, .tokens = tokens});
}

tn_status inputs_draw(inputs *in, const tn_site *site, int64_t batch, int64_t tokens, uint64_t seed, tn_error *err)
{
    return inputs_draw_case(in, site, &(check_case){.batch = batch, .tokens = tokens, .seed = seed}, err);
}

tn_status inputs_draw_case(inputs *in, const tn_site *site, const check_case *c, tn_error *err)
{
    *in = (inputs){.call = inputs_call_case(site, c), .tokens = c->batch * c->tokens};
    drawing d = {.in = in,
                 .site = site,
                 .call = &in->call,
                 .tokens = c->tokens,
                 .past = site->op == TN_OP_ATTENTION ? past_of(c) : c->past,
                 .profile = c->profile,
                 .random = {.state = c->seed},
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
