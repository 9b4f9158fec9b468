/* MOE_EXPERTS: y = sum over a token's k slots of weight * expert(x), expert(x) = down(act(gate x) * up x).
 *
 * Roundings follow transformers' grouped_mm: each product, the activation and the GLU are rounded, then the expert's
 * output times its weight (not, where weights are f32); the k terms are summed in f32 in the order of the slots and
 * rounded once. */
#include "eager/moe_experts.h"
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
    if (layout < TN_LAYOUT_EXPERT_LIST || layout > TN_LAYOUT_STACKED_IO || act < TN_ACT_SILU || act > TN_ACT_MISH ||
        !experts_first(site, (tn_layout)layout) || !rows_param(site, TN_ROLE_DOWN) || call->in[2].shape[1] < 1)
        return false;
    *job = (experts_job){.site = site,
                         .x = &call->in[0],
                         .weights = &call->in[1],
                         .experts = &call->in[2],
                         .layout = (tn_layout)layout,
                         .act = (tn_act)act};
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
    job->thread_bytes = job->tile_bytes + gemm_work_size(job->hidden > job->inter ? job->hidden : job->inter);
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
    job->threads = rows_take(base, &used, job->thread_bytes * (size_t)tn_thread_count());
    return used;
}

static size_t experts_scratch(const tn_call *call)
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

static void gather_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const experts_job *job = ctx;
    (void)thread;
    size_t bytes = (size_t)job->hidden * tn_dtype_size(job->type);
    for (int64_t i = begin; i < end; i++) {
        const char *x = rows_at(job->x, job->order[i] / job->top_k);
        char *to = job->gathered + (size_t)i * bytes;
        if (job->type == job->dtype)
            memcpy(to, x, bytes);
        else
            convert_to_f32(x, job->dtype, (float *)(void *)to, job->hidden);
    }
}

void moe_experts_product(const experts_job *job, gemm_context *context, experts_matrix matrix, bool back,
                         const grouped_item *item, int64_t k, const char *a, float *c)
{
    grouped_matrix w = grouped_weight(&job->site->param[matrix.role], job->layout, item->group, matrix.first);
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

static void gate_up_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const experts_job *job = ctx;
    int64_t n = item->columns;
    size_t size = tn_dtype_size(job->type);
    float *gate = (float *)(void *)item->mine, *up = gate + item->rows * n;
    moe_experts_product(job, context, moe_experts_gate(job), false, item, job->hidden, job->gathered, gate);
    moe_experts_product(job, context, moe_experts_up(job), false, item, job->hidden, job->gathered, up);
    for (int64_t i = 0; i < item->rows; i++) {
        float *g = gate + i * n, *u = up + i * n;
        size_t at = (size_t)((item->first + i) * job->inter + item->column) * size;
        vec_round(g, n, job->dtype);
        vec_round(u, n, job->dtype);
        if (job->gate) {
            convert_from_f32(g, job->type, job->gate + at, n);
            convert_from_f32(u, job->type, job->up + at, n);
        }
        vec_act(job->act, job->dtype, g, n);
        vec_mul(g, u, n);
        if (job->type == TN_F32)
            vec_round(g, n, job->dtype);
        convert_from_f32(g, job->type, job->activated + at, n);
    }
}

void moe_experts_activate(experts_job *job)
{
    tn_parallel_for(job->slots, rows_grain(job->hidden), gather_rows, job);
    moe_experts_pass(job, job->inter, job->tile_inter, 2 * job->hidden, gate_up_item, job);
}

/* terms[slot], columns [column, column + n) = rnd(down(activated)) * weight. */
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

static tn_status experts_forward(const tn_call *call, tn_error *err)
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

const eager_op eager_moe_experts = {.op = TN_OP_MOE_EXPERTS,
                                    .scratch = experts_scratch,
                                    .forward = experts_forward,
                                    .backward_scratch = moe_experts_backward_scratch,
                                    .backward = moe_experts_backward};
