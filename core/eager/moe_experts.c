/* MOE_EXPERTS: y = sum over a token's k slots of weight * expert(x), expert(x) = down(act(gate x) * up x).
 *
 * Roundings follow transformers' grouped_mm: each product, the activation and the GLU are rounded, then the expert's
 * output times its weight (not, where weights are f32); the k terms are summed in f32 in the order of the slots and
 * rounded once. A bias is added to the rounded product, and the sum rounded. Where weights are factors of the input
 * (Llama 4) that product is rounded. */
#include "eager/moe_experts.h"

#include "eager/experts_adapter.h"
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>

static const tn_tensor *experts_first(const tn_site *site, tn_layout layout)
{
    return rows_param(site, layout == TN_LAYOUT_EXPERT_LIST ? TN_ROLE_GATE : TN_ROLE_GATE_UP);
}

experts_matrix moe_experts_gate(const experts_job *job)
{
    return (experts_matrix){job->layout == TN_LAYOUT_EXPERT_LIST ? TN_ROLE_GATE : TN_ROLE_GATE_UP, 0};
}

experts_matrix moe_experts_up(const experts_job *job)
{
    bool list = job->layout == TN_LAYOUT_EXPERT_LIST;
    return (experts_matrix){list ? TN_ROLE_UP : TN_ROLE_GATE_UP, list ? 0 : job->inter};
}

tn_status moe_experts_unknown(const tn_site *site, tn_error *err)
{
    return tn_fail(err, TN_E_INTERNAL, site->path, "experts of layout %d, activation %d; report this defect",
                   (int)site->meaning[TN_AXIS_LAYOUT], (int)site->meaning[TN_AXIS_ACT]);
}

bool moe_experts_shape(const tn_call *call, experts_job *job)
{
    const tn_site *site = call->site;
    int32_t layout = site->meaning[TN_AXIS_LAYOUT], act = site->meaning[TN_AXIS_ACT];
    bool stacked = layout == TN_LAYOUT_STACKED_OI || layout == TN_LAYOUT_STACKED_IO || layout == TN_LAYOUT_PAIRS_IO;
    if ((!stacked && layout != TN_LAYOUT_EXPERT_LIST) || act < TN_ACT_SILU || act > TN_ACT_SQRT_SOFTPLUS ||
        !experts_first(site, (tn_layout)layout) || !rows_param(site, TN_ROLE_DOWN) || call->in[2].shape[1] < 1)
        return false;
    *job = (experts_job){.site = site,
                         .x = &call->in[0],
                         .weights = &call->in[1],
                         .experts = &call->in[2],
                         .layout = (tn_layout)layout,
                         .act = (tn_act)act,
                         .clamp = {(float)site->num[TN_NUM_LIMIT], (float)site->num[TN_NUM_ALPHA]},
                         .pairs = layout == TN_LAYOUT_PAIRS_IO,
                         .scaled = site->features & TN_HAS_INPUT_SCALE};
    if (site->features & TN_HAS_BIAS) {
        job->gate_up_bias = rows_param(site, TN_ROLE_GATE_UP_BIAS);
        job->down_bias = rows_param(site, TN_ROLE_DOWN_BIAS);
    }
    const tn_tensor *first = experts_first(site, job->layout);
    bool list = job->layout == TN_LAYOUT_EXPERT_LIST;
    job->tokens = job->x->shape[0];
    job->hidden = job->x->shape[1];
    job->top_k = job->experts->shape[1];
    job->slots = job->tokens * job->top_k;
    job->expert_count = list ? site->param[TN_ROLE_GATE].count : first->shape[0];
    job->inter = list                                  ? first->shape[0]
                 : job->layout == TN_LAYOUT_STACKED_OI ? first->shape[1] / 2
                                                       : first->shape[2] / 2;
    job->dtype = job->x->dtype;
    job->type = gemm_type(job->dtype, first->dtype);
    job->term_type = job->weights->dtype == job->dtype ? job->dtype : TN_F32;
    job->tile_m = gemm_tile_rows(job->tokens);
    job->tile_inter = gemm_tile_columns(job->inter);
    job->tile_hidden = gemm_tile_columns(job->hidden);
    return true;
}

void moe_experts_tile(experts_job *job, int64_t columns)
{
    job->tile_bytes = rows_align((size_t)job->tile_m * (size_t)columns * sizeof(float));
    int64_t inter = job->pairs ? 2 * job->inter : job->inter;
    job->thread_bytes = job->tile_bytes + gemm_work_size(job->hidden > inter ? job->hidden : inter);
}

/* Lays scratch out; returns its size. */
static size_t experts_layout(experts_job *job, char *base)
{
    size_t slots = (size_t)job->slots, size = tn_dtype_size(job->type), used = 0;
    moe_experts_tile(job, job->tile_inter * 2 > job->tile_hidden ? job->tile_inter * 2 : job->tile_hidden);
    job->order = (int32_t *)(void *)rows_take(base, &used, slots * sizeof(int32_t));
    job->start = (int64_t *)(void *)rows_take(base, &used, ((size_t)job->expert_count + 1) * sizeof(int64_t));
    job->gathered = rows_take(base, &used, slots * (size_t)job->hidden * size);
    job->activated = rows_take(base, &used, slots * (size_t)job->inter * size);
    job->terms = rows_take(base, &used, slots * (size_t)job->hidden * tn_dtype_size(job->term_type));
    experts_adapter_layout(job, base, &used, false);
    job->threads = rows_take(base, &used, job->thread_bytes * (size_t)tn_thread_count());
    return used;
}

size_t moe_experts_scratch(const tn_call *call)
{
    experts_job job;
    return moe_experts_shape(call, &job) ? experts_layout(&job, NULL) : 0;
}

static int32_t expert_of(const experts_job *job, int64_t slot)
{
    int32_t expert;
    memcpy(&expert, rows_at(job->experts, slot / job->top_k) + (size_t)(slot % job->top_k) * sizeof expert,
           sizeof expert); /* at any address */
    return expert;
}

tn_status moe_experts_sort(experts_job *job, tn_error *err)
{
    int64_t *start = job->start;
    memset(start, 0, ((size_t)job->expert_count + 1) * sizeof *start);
    for (int64_t slot = 0; slot < job->slots; slot++) {
        int32_t expert = expert_of(job, slot);
        if (expert < 0 || expert >= job->expert_count)
            return tn_fail(err, TN_E_INPUT, job->site->path,
                           "token %" PRId64 " asks for expert %" PRId32 ", there are experts 0 to %" PRId64
                           "; check the router",
                           slot / job->top_k, expert, job->expert_count - 1);
        start[expert + 1]++;
    }
    for (int64_t e = 0; e < job->expert_count; e++)
        start[e + 1] += start[e];
    for (int64_t slot = 0; slot < job->slots; slot++)
        job->order[start[expert_of(job, slot)]++] = (int32_t)slot;
    for (int64_t e = job->expert_count; e > 0; e--)
        start[e] = start[e - 1];
    start[0] = 0;
    return TN_OK;
}

float moe_experts_slot_weight(const experts_job *job, int64_t slot)
{
    float weight;
    size_t size = tn_dtype_size(job->weights->dtype);
    convert_to_f32(rows_at(job->weights, slot / job->top_k) + (size_t)(slot % job->top_k) * size, job->weights->dtype,
                   &weight, 1);
    return weight;
}

/* The row of a slot whose weight is a factor of it. */
static void gather_scaled(const experts_job *job, int64_t slot, const char *x, char *to)
{
    float weight = moe_experts_slot_weight(job, slot), row[VEC_CHUNK];
    for (int64_t i = 0; i < job->hidden; i += VEC_CHUNK) {
        int64_t n = job->hidden - i < VEC_CHUNK ? job->hidden - i : VEC_CHUNK;
        convert_to_f32(x + (size_t)i * tn_dtype_size(job->dtype), job->dtype, row, n);
        vec_scale_rounded(row, n, weight, job->dtype);
        convert_from_f32(row, job->type, to + (size_t)i * tn_dtype_size(job->type), n);
    }
}

static void gather_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const experts_job *job = ctx;
    (void)thread;
    size_t bytes = (size_t)job->hidden * tn_dtype_size(job->type);
    for (int64_t i = begin; i < end; i++) {
        const char *x = rows_at(job->x, job->order[i] / job->top_k);
        char *to = job->gathered + (size_t)i * bytes;
        if (job->scaled)
            gather_scaled(job, job->order[i], x, to);
        else if (job->type == job->dtype)
            memcpy(to, x, bytes);
        else
            convert_to_f32(x, job->dtype, (float *)(void *)to, job->hidden);
    }
}

void moe_experts_product(const experts_job *job, gemm_context *context, experts_matrix matrix, bool back,
                         const grouped_item *item, int64_t k, const char *a, float *c)
{
    grouped_matrix w = grouped_weight_of(job->site, matrix.role, job->layout, item->group, matrix.first);
    gemm_shape shape = {.type = job->type, .m = item->rows, .n = item->columns, .k = k, .lda = k, .ldc = item->columns};
    grouped_product(context, shape, &w, back, item->column, a + (size_t)(item->first * k) * tn_dtype_size(job->type), c,
                    item->mine + job->tile_bytes);
}

void moe_experts_pass(const experts_job *job, int64_t width, int64_t tile, int64_t depth,
                      void (*item)(const void *ctx, gemm_context *context, const grouped_item *item), const void *ctx)
{
    const grouped_pass pass = {.start = job->start,
                               .groups = job->expert_count,
                               .width = width,
                               .depth = depth,
                               .tile = tile,
                               .tile_rows = job->tile_m,
                               .threads = job->threads,
                               .thread_bytes = job->thread_bytes,
                               .item = item,
                               .ctx = ctx};
    grouped_run(&pass);
}

void moe_experts_keep(const experts_job *job, int64_t row, int64_t at, const float *gate, const float *up, int64_t n)
{
    size_t size = tn_dtype_size(job->type);
    float both[2 * VEC_CHUNK];
    if (!job->pairs) {
        size_t to = (size_t)(row * job->inter + at) * size;
        convert_from_f32(gate, job->type, job->gate + to, n);
        convert_from_f32(up, job->type, job->up + to, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        both[2 * i] = gate[i];
        both[2 * i + 1] = up[i];
    }
    convert_from_f32(both, job->type, job->gate + (size_t)(2 * (row * job->inter + at)) * size, 2 * n);
}

static void split_pairs(const float *both, float *gate, float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        gate[i] = both[2 * i];
        up[i] = both[2 * i + 1];
    }
}

void moe_experts_kept(const experts_job *job, int64_t row, int64_t at, float *gate, float *up, int64_t n)
{
    size_t size = tn_dtype_size(job->type);
    float both[2 * VEC_CHUNK];
    if (!job->pairs) {
        size_t from = (size_t)(row * job->inter + at) * size;
        convert_to_f32(job->gate + from, job->type, gate, n);
        convert_to_f32(job->up + from, job->type, up, n);
        return;
    }
    convert_to_f32(job->gate + (size_t)(2 * (row * job->inter + at)) * size, job->type, both, 2 * n);
    split_pairs(both, gate, up, n);
}

void moe_experts_bias(const experts_job *job, const tn_tensor *bias, int64_t expert, int64_t at, int64_t step, float *x,
                      int64_t n)
{
    if (!bias)
        return;
    float b[2 * VEC_CHUNK];
    size_t first = (size_t)(expert * bias->stride[0] + at) * tn_dtype_size(bias->dtype);
    convert_to_f32((const char *)bias->data + first, bias->dtype, b, (n - 1) * step + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] += b[i * step];
    vec_round(x, n, job->dtype);
}

void moe_experts_beside(const experts_job *job, const float *beside, int64_t step, float *x, int64_t n)
{
    if (!beside)
        return;
    for (int64_t i = 0; i < n; i++)
        x[i] += beside[i * step];
    vec_round(x, n, job->dtype);
}

/* Products of gate and up become rows of them, rounded, with their biases, and what an adapter adds. tile: the item's
 * products. */
static void gate_up_piece(const experts_job *job, const grouped_item *item, const float *tile, int64_t row, int64_t at,
                          float *gate, float *up, int64_t n)
{
    int64_t columns = item->columns, column = item->column + at;
    if (job->pairs) {
        split_pairs(tile + 2 * (row * columns + at), gate, up, n);
    } else {
        memcpy(gate, tile + row * columns + at, (size_t)n * sizeof *gate);
        memcpy(up, tile + (item->rows + row) * columns + at, (size_t)n * sizeof *up);
    }
    vec_round(gate, n, job->dtype);
    vec_round(up, n, job->dtype);
    int64_t step = job->pairs ? 2 : 1;
    moe_experts_bias(job, job->gate_up_bias, item->group, step * column, step, gate, n);
    int64_t second = job->pairs ? 2 * column + 1 : job->inter + column;
    moe_experts_bias(job, job->gate_up_bias, item->group, second, step, up, n);
    if (job->beside.there) {
        const float *beside = job->beside.gate_up + (item->first + row) * 2 * job->inter;
        moe_experts_beside(job, beside + step * column, step, gate, n);
        moe_experts_beside(job, beside + second, step, up, n);
    }
}

/* The item's products of gate and up: those of gate, then those of up, or pairs. */
static void gate_up_products(const experts_job *job, gemm_context *context, const grouped_item *item, float *tile)
{
    grouped_item both = *item;
    if (!job->pairs) {
        moe_experts_product(job, context, moe_experts_gate(job), false, item, job->hidden, job->gathered, tile);
        moe_experts_product(job, context, moe_experts_up(job), false, item, job->hidden, job->gathered,
                            tile + item->rows * item->columns);
        return;
    }
    both.column *= 2;
    both.columns *= 2;
    moe_experts_product(job, context, moe_experts_gate(job), false, &both, job->hidden, job->gathered, tile);
}

static void gate_up_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const experts_job *job = ctx;
    size_t size = tn_dtype_size(job->type);
    float *tile = (float *)(void *)item->mine, g[VEC_CHUNK], u[VEC_CHUNK];
    gate_up_products(job, context, item, tile);
    for (int64_t i = 0; i < item->rows; i++)
        for (int64_t j = 0; j < item->columns; j += VEC_CHUNK) {
            int64_t n = item->columns - j < VEC_CHUNK ? item->columns - j : VEC_CHUNK, row = item->first + i;
            gate_up_piece(job, item, tile, i, j, g, u, n);
            if (job->gate)
                moe_experts_keep(job, row, item->column + j, g, u, n);
            if (job->act == TN_ACT_CLAMPED_SWIGLU) {
                vec_clamped_swiglu(&job->clamp, job->dtype, g, u, n);
            } else {
                vec_act(job->act, job->dtype, g, n);
                vec_mul(g, u, n);
            }
            if (job->type == TN_F32)
                vec_round(g, n, job->dtype);
            convert_from_f32(g, job->type, job->activated + (size_t)(row * job->inter + item->column + j) * size, n);
        }
}

void moe_experts_activate(experts_job *job)
{
    tn_parallel_for(job->slots, rows_grain(job->hidden), gather_rows, job);
    experts_adapter_gate_up(job);
    moe_experts_pass(job, job->inter, job->tile_inter, 2 * job->hidden, gate_up_item, job);
    experts_adapter_down(job);
}

/* A row of the item's columns and their bias. */
static void down_bias(const experts_job *job, const grouped_item *item, float *row)
{
    for (int64_t j = 0; j < item->columns; j += VEC_CHUNK)
        moe_experts_bias(job, job->down_bias, item->group, item->column + j, 1, row + j,
                         item->columns - j < VEC_CHUNK ? item->columns - j : VEC_CHUNK);
}

/* terms[slot], columns [column, column + n) = rnd(rnd(down(activated)) + bias) * weight. */
static void down_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const experts_job *job = ctx;
    float *c = (float *)(void *)item->mine;
    size_t term_size = tn_dtype_size(job->term_type);
    moe_experts_product(job, context, (experts_matrix){TN_ROLE_DOWN, 0}, false, item, job->inter, job->activated, c);
    for (int64_t i = 0; i < item->rows; i++) {
        int64_t slot = job->order[item->first + i];
        float *row = c + i * item->columns;
        vec_round(row, item->columns, job->dtype);
        down_bias(job, item, row);
        moe_experts_beside(job, moe_experts_beside_down(job, item->first + i, item->column), 1, row, item->columns);
        if (!job->scaled)
            vec_scale(row, item->columns, moe_experts_slot_weight(job, slot));
        convert_from_f32(row, job->term_type, job->terms + (size_t)(slot * job->hidden + item->column) * term_size,
                         item->columns);
    }
}

typedef struct combine_job {
    const experts_job *job;
    const tn_tensor *y;
} combine_job;

static void combine_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const combine_job *combine = ctx;
    const experts_job *job = combine->job;
    (void)thread;
    size_t term_size = tn_dtype_size(job->term_type), y_size = tn_dtype_size(combine->y->dtype);
    float sum[VEC_CHUNK], term[VEC_CHUNK];
    for (int64_t token = begin; token < end; token++)
        for (int64_t i = 0; i < job->hidden; i += VEC_CHUNK) {
            int64_t n = job->hidden - i < VEC_CHUNK ? job->hidden - i : VEC_CHUNK;
            for (int64_t j = 0; j < job->top_k; j++) {
                const char *from = job->terms + (size_t)((token * job->top_k + j) * job->hidden + i) * term_size;
                convert_to_f32(from, job->term_type, j ? term : sum, n);
                if (j)
                    vec_add(sum, term, n);
            }
            convert_from_f32(sum, combine->y->dtype, rows_at(combine->y, token) + (size_t)i * y_size, n);
        }
}

void moe_experts_combine(const experts_job *job, const tn_tensor *y)
{
    combine_job combine = {job, y};
    tn_parallel_for(job->tokens, rows_grain(job->hidden * job->top_k), combine_tokens, &combine);
}

tn_status moe_experts_forward(const tn_call *call, tn_error *err)
{
    experts_job job;
    if (!moe_experts_shape(call, &job))
        return moe_experts_unknown(call->site, err);
    if (job.slots <= 0)
        return TN_OK;
    experts_layout(&job, call->scratch);
    tn_status status = moe_experts_sort(&job, err);
    if (status != TN_OK)
        return status;
    moe_experts_activate(&job);
    moe_experts_pass(&job, job.hidden, job.tile_hidden, job.inter, down_item, &job);
    moe_experts_combine(&job, &call->out[0]);
    return TN_OK;
}

bool moe_experts_left(const tn_call *call, experts_job *job)
{
    if (!moe_experts_shape(call, job) || job->slots <= 0)
        return false;
    experts_layout(job, call->scratch);
    return true;
}
