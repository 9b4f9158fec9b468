/* Made-up sites. */
#include "check/draw_site.h"

#include "base/blocks.h"
#include "base/convert.h"
#include "base/tensor.h"
#include "check/draw_weight.h"
#include "check/inputs.h"
#include "op/op.h"

#include <math.h>
#include <stdlib.h>

/* ---- meaning ------------------------------------------------------------------------------------------------- */

bool draw_site_has_value(tn_op op, tn_axis axis, int32_t value)
{
    const op_row *row = op_find(op);
    uint32_t layouts = 0;
    if (axis == TN_AXIS_DTYPE)
        return tensor_is_float((tn_dtype)value);
    if (value < 1 || value > op_last_value(axis) || !((row->needs | row->allows) >> axis & 1))
        return false;
    for (int i = 0; axis == TN_AXIS_LAYOUT && i < OP_PARAMS && row->param[i].shape; i++)
        layouts |= row->param[i].when.layouts;
    if (layouts)
        return layouts >> value & 1;
    if (axis == TN_AXIS_ACT && (value == TN_ACT_XIELU || value == TN_ACT_PRELU))
        return op == TN_OP_MLP;
    return op != TN_OP_ADD_RMS_NORM || axis != TN_AXIS_NORM || !op_norm_is_gated(value);
}

tn_site draw_site_plain(tn_op op)
{
    static const int64_t sizes[] = {
        [TN_DIM_WIDTH] = 37, [TN_DIM_HIDDEN] = 40, [TN_DIM_INTER] = 24,   [TN_DIM_OUT] = 28,
        [TN_DIM_HEAD] = 16,  [TN_DIM_Q_HEADS] = 6, [TN_DIM_KV_HEADS] = 2, [TN_DIM_EXPERTS] = 9,
        [TN_DIM_TOP_K] = 2,  [TN_DIM_HEAD_V] = 12, [TN_DIM_TAPS] = 4,     [TN_DIM_RANK] = 5};
    const op_row *row = op_find(op);
    tn_site site = {.size = sizeof site, .op = op, .path = row->name, .class_name = row->name, .model_type = "drawn"};
    for (int axis = 0; axis < TN_AXIS_MAX; axis++)
        for (int32_t v = 1; row->needs >> axis & 1 && !site.meaning[axis]; v++)
            if (draw_site_has_value(op, (tn_axis)axis, v))
                site.meaning[axis] = v;
    for (size_t dim = 0; dim < sizeof sizes / sizeof *sizes; dim++)
        site.dim[dim] = row->dims >> dim & 1 ? sizes[dim] : 0;
    if (op == TN_OP_GATED_DELTA_RULE || op == TN_OP_SELECTIVE_SCAN) { /* value heads are the more      */
        site.dim[TN_DIM_Q_HEADS] = sizes[TN_DIM_KV_HEADS];
        site.dim[TN_DIM_KV_HEADS] = sizes[TN_DIM_Q_HEADS];
    }
    site.num[TN_NUM_EPS] = row->nums >> TN_NUM_EPS & 1 ? 1e-6 : 0;
    site.num[TN_NUM_SCALE] = op == TN_OP_ATTENTION ? 0.25 : op == TN_OP_LORA_LINEAR ? 0.5 : 0;
    return site;
}

void draw_site_add(tn_site *site, uint64_t feature)
{
    static const struct {
        uint64_t feature;
        tn_dim dim[2];
        int64_t size[2];
        tn_num num;
        double value;
    } needs[] = {
        {TN_HAS_SHARED_EXPERT, {TN_DIM_SHARED_INTER}, {20}, 0, 0},
        {TN_HAS_GROUPS, {TN_DIM_GROUPS, TN_DIM_TOP_GROUPS}, {3, 2}, 0, 0},
        {TN_HAS_ROUTE_SCALE, {0}, {0}, TN_NUM_SCALE, 2.5},
        {TN_HAS_SPARSITY, {0}, {0}, TN_NUM_SPARSITY, 0.5},
        {TN_HAS_PARTIAL, {TN_DIM_ROTARY}, {8}, 0, 0},
        {TN_HAS_WINDOW, {TN_DIM_WINDOW}, {7}, 0, 0},
        {TN_HAS_CHUNK, {TN_DIM_CHUNK}, {5}, 0, 0},
        {TN_HAS_SOFTCAP, {0}, {0}, TN_NUM_SOFTCAP, 30},
        {TN_HAS_ALIBI, {0}, {0}, TN_NUM_ALPHA, 0.5},
        {TN_HAS_STEP_LIMITS, {0}, {0}, TN_NUM_LEAST, 0.5}, /* which some steps lie without            */
        {TN_HAS_STEP_LIMITS, {0}, {0}, TN_NUM_LIMIT, 1},
        {TN_HAS_ADAPTER, {TN_DIM_RANK, TN_DIM_RANK_DOWN}, {3, 2}, TN_NUM_SCALE, 0.5},
        {TN_HAS_ADAPTER, {0}, {0}, TN_NUM_SCALE_DOWN, 0.25},
        {TN_HAS_DROPOUT, {0}, {0}, TN_NUM_DROPOUT, 0.25},
    };
    site->features |= feature;
    if (feature & TN_HAS_GROUPS && site->op == TN_OP_RMS_NORM) { /* groups of a row, none of which is chosen */
        site->dim[TN_DIM_GROUPS] = 3;
        site->dim[TN_DIM_WIDTH] = (site->dim[TN_DIM_WIDTH] + 2) / 3 * 3;
        return;
    }
    if (feature & (TN_HAS_SHARED_GATE | TN_HAS_SHARED_BIAS))
        draw_site_add(site, TN_HAS_SHARED_EXPERT);
    if (feature & TN_HAS_GROUP_PAIRS)
        draw_site_add(site, TN_HAS_GROUPS);
    if (site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_DOWN)
        site->features &= ~TN_HAS_SPARSITY; /* there is no gate                                       */
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if (!(feature & needs[i].feature))
            continue;
        for (int j = 0; j < 2; j++)
            if (needs[i].size[j])
                site->dim[needs[i].dim[j]] = needs[i].size[j];
        if (needs[i].value != 0)
            site->num[needs[i].num] = needs[i].value;
    }
}

/* ---- parameters ------------------------------------------------------------------------------------------------ */

/* Factors of an adapter beside gate or up, instead of which one beside both is drawn. */
static bool is_other_choice(tn_role role)
{
    return role == TN_ROLE_A_OF(TN_ROLE_GATE) || role == TN_ROLE_B_OF(TN_ROLE_GATE) ||
           role == TN_ROLE_A_OF(TN_ROLE_UP) || role == TN_ROLE_B_OF(TN_ROLE_UP);
}

/* The parameters that the site has; NULL behind the last. */
static const op_param *next_param(const op_row *row, const tn_site *site, int *at)
{
    for (; *at < OP_PARAMS && row->param[*at].shape; *at += 1)
        if (op_is_there(&row->param[*at].when, site) && !is_other_choice(row->param[*at].role))
            return &row->param[(*at)++];
    return NULL;
}

/* Where the next tensors go; base NULL: they are only counted. */
typedef struct placing {
    draw_site *d;
    char *base;
    size_t bytes, tensors;
} placing;

static void place(placing *to, tn_role role, tn_tensor like, int64_t n)
{
    if (to->base)
        to->d->site.param[role] = (tn_param){&to->d->tensors[to->tensors], n};
    for (int64_t i = 0; i < n; i++) {
        if (to->base) {
            to->d->tensors[to->tensors] = like;
            to->d->tensors[to->tensors].data = to->base + to->bytes;
        }
        to->tensors++;
        to->bytes += tensor_padded_bytes(&like);
    }
}

tn_dtype draw_site_type(const tn_site *site, tn_role role)
{
    static const tn_dtype kinds[][3] = {
        {TN_Q8_0, TN_Q4_0, TN_Q5_0}, {TN_Q6_K, TN_Q4_K, TN_Q5_K}, {TN_I8, TN_U4, TN_I8}};
    tn_dtype weight = (tn_dtype)site->meaning[TN_AXIS_WEIGHT];
    int kind = draw_weight_has_scales(weight) ? 2 : tn_dtype_block_elements(weight) == 256;
    int down = kinds[kind][0] == weight, up = kinds[kind][down + 1] == weight ? 2 : down + 1;
    if (!(site->features & TN_HAS_MIXED) || !blocks_is_quantised(weight))
        return weight;
    return role == TN_ROLE_DOWN ? kinds[kind][down] : role == TN_ROLE_UP ? kinds[kind][up] : weight;
}

/* Gives every parameter its tensors, and each tensor its place behind base (NULL: counts only); returns the bytes. */
static size_t place_params(draw_site *d, const op_row *row, char *base, size_t *count)
{
    placing to = {.d = d, .base = base};
    int at = 0;
    for (const op_param *p; (p = next_param(row, &d->site, &at));) {
        tn_tensor like = op_param_tensor(p, &d->site);
        int64_t n = op_param_count(p, &d->site);
        if (p->role == TN_ROLE_DOWN || p->role == TN_ROLE_UP)
            like.dtype = draw_site_type(&d->site, p->role);
        place(&to, p->role, like, n);
        if (!draw_weight_has_scales(like.dtype) || like.ndim != 2)
            continue;
        if (d->site.features & TN_HAS_SCALES)
            place(&to, TN_ROLE_SCALE_OF(p->role), draw_weight_scale(&like), n);
        if (d->site.features & TN_HAS_ZERO_POINTS && draw_weight_has_zeros(like.dtype))
            place(&to, TN_ROLE_ZERO_OF(p->role), draw_weight_zero(&like), n);
    }
    *count = to.tensors;
    return to.bytes;
}

/* Elements that one result of the matrix sums over: its other dimension, which in [out,in] is the last. Where the
 * layout is [in,out] this takes out for in, which differs by a factor that rounding does not care about. */
static float scale_of(const tn_tensor *t)
{
    return t->ndim > 1 ? 1.0f / sqrtf((float)t->shape[t->ndim - 1]) : 0.1f;
}

static void fill(const tn_tensor *t, bool around_one, float scale, random_state *r)
{
    float offset = around_one ? 1.0f : 0.0f;
    size_t size = tn_dtype_size(t->dtype);
    if (blocks_is_quantised(t->dtype)) {
        draw_weight_codes(t, scale, r);
        return;
    }
    for (int64_t i = 0, n = tn_tensor_count(t); i < n; i++) {
        float value = offset + scale * random_nearly_normal(r);
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * size, 1);
    }
}

/* Scales and zero points of tensor i of a parameter, where it has some. */
static void fill_parts(const tn_site *site, tn_role role, int64_t i, random_state *r)
{
    if (role >= TN_ROLE_FIRST_SCALE) /* factors of an adapter have none                                   */
        return;
    const tn_param *scale = &site->param[TN_ROLE_SCALE_OF(role)], *zero = &site->param[TN_ROLE_ZERO_OF(role)];
    const tn_tensor *t = &site->param[role].tensors[i];
    if (scale->count)
        draw_weight_parts(t, &scale->tensors[i], zero->count ? &zero->tensors[i] : NULL, scale_of(t), r);
}

static void fill_all(draw_site *d, const op_row *row, uint64_t seed)
{
    random_state r = {.state = seed};
    int at = 0;
    bool norm = d->site.dim[TN_DIM_WIDTH] > 0 && d->site.op != TN_OP_SHORT_CONV &&
                d->site.meaning[TN_AXIS_NORM] != TN_NORM_1_PLUS_W;
    for (const op_param *p; (p = next_param(row, &d->site, &at));)
        for (int64_t i = 0; i < d->site.param[p->role].count; i++) {
            const tn_tensor *t = &d->site.param[p->role].tensors[i];
            /* Slopes add to scores what far positions make of them: rounding must choose no other keys. */
            bool slopes = p->role == TN_ROLE_DECAY && d->site.op == TN_OP_ATTENTION;
            fill(t, (norm && p->role == TN_ROLE_WEIGHT) || p->role == TN_ROLE_EXPERT_SCALE,
                 slopes ? 0x1p-11f : scale_of(t), &r);
            fill_parts(&d->site, p->role, i, &r);
        }
}

tn_status draw_site_open(draw_site *d, const tn_site *like, uint64_t seed, tn_error *err)
{
    const op_row *row = op_find(like->op);
    size_t count;
    *d = (draw_site){.site = *like};
    if (!row || row->kind != OP_CONTRACT)
        return tn_fail(err, TN_E_USAGE, like->path, "%s is no operation of a site", tn_op_name(like->op));
    if (row->allows >> TN_AXIS_WEIGHT & 1 && !d->site.meaning[TN_AXIS_WEIGHT])
        d->site.meaning[TN_AXIS_WEIGHT] = d->site.meaning[TN_AXIS_DTYPE];
    if (d->site.meaning[TN_AXIS_ACT] == TN_ACT_CLAMPED_SWIGLU && d->site.num[TN_NUM_LIMIT] == 0) {
        d->site.num[TN_NUM_LIMIT] = 7;
        d->site.num[TN_NUM_ALPHA] = 1.702;
    }
    if (d->site.meaning[TN_AXIS_ACT] == TN_ACT_XIELU && d->site.num[TN_NUM_ALPHA] == 0) {
        d->site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_UP_DOWN;
        d->site.features &= ~TN_HAS_SPARSITY;
        d->site.num[TN_NUM_ALPHA] = 0.75;
        d->site.num[TN_NUM_ALPHA_N] = 0.875;
        d->site.num[TN_NUM_BETA] = 0.5;
        d->site.num[TN_NUM_EPS] = -0x1p-20;
    }
    if (d->site.meaning[TN_AXIS_ACT] == TN_ACT_PRELU && d->site.num[TN_NUM_ALPHA] == 0)
        d->site.num[TN_NUM_ALPHA] = 0.25;
    if (d->site.meaning[TN_AXIS_SCORE] == TN_SCORE_SPARSEMIXER && d->site.num[TN_NUM_MARGIN] == 0) {
        d->site.num[TN_NUM_MARGIN] = 0.02;
        d->site.features &=
            ~(TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_EXPERT_SCALE | TN_HAS_GROUPS | TN_HAS_GROUP_PAIRS);
        d->site.dim[TN_DIM_GROUPS] = d->site.dim[TN_DIM_TOP_GROUPS] = 0;
    }
    size_t bytes = place_params(d, row, NULL, &count);
    d->tensors = calloc(count + 1, sizeof *d->tensors);
    d->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!d->tensors || !d->memory) {
        draw_site_close(d);
        return tn_fail(err, TN_E_MEMORY, like->path, "out of memory for %zu bytes of parameters; free some memory",
                       bytes);
    }
    place_params(d, row, d->memory, &count);
    tn_status status = op_check_site(&d->site, err);
    if (status == TN_OK)
        fill_all(d, row, seed);
    else
        draw_site_close(d);
    return status;
}

void draw_site_close(draw_site *d)
{
    free(d->tensors);
    free(d->memory);
    *d = (draw_site){0};
}
