/* MOE_EXPERTS: y = sum over a token's k slots of weight * expert(x), expert(x) = down(act(gate x) * up x).
 *
 * Slots are grouped by expert, so that every expert's weights are read once. Roundings follow transformers' grouped_mm:
 * each product, the activation and the GLU are rounded, then the expert's output times its weight (not, where weights
 * are f32); the k terms are summed in f32 in the order of the slots and rounded once. */
#include "eager/gemm.h"
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>

/* What packing an expert's weights costs, in tokens. Only the balance between threads depends on it. */
#define PACK_TOKENS 24
#define WORTH_A_THREAD (INT64_C(1) << 20) /* multiplications                                     */

typedef struct experts_job {
    const tn_site *site;
    const tn_tensor *x, *weights, *experts, *y;
    tn_layout layout;
    tn_act act;
    tn_dtype dtype, type, term_type; /* of the model, of the products, of what is summed        */
    int64_t tokens, hidden, inter, top_k, expert_count, slots;
    int64_t tile_m, tile_inter, tile_hidden;
    int32_t *order;  /* [slots] slots sorted by expert                                           */
    int64_t *start;  /* [experts + 1] where an expert's slots begin in order                     */
    char *gathered;  /* [slots, hidden] rows of x in that order, in type                         */
    char *activated; /* [slots, inter], in type                                                  */
    char *terms;     /* [slots, hidden] by slot, in term_type                                    */
    char *threads;
    size_t tile_bytes, thread_bytes, total_bytes;
} experts_job;

static char *take(char *base, size_t *used, size_t bytes)
{
    char *at = base ? base + *used : NULL;
    *used += rows_align(bytes);
    return at;
}

static const tn_tensor *experts_first(const tn_site *site, tn_layout layout)
{
    return rows_param(site, layout == TN_LAYOUT_EXPERT_LIST ? TN_ROLE_GATE : TN_ROLE_GATE_UP);
}

static void experts_shape(const tn_call *call, experts_job *job)
{
    const tn_site *site = call->site;
    *job = (experts_job){.site = site,
                         .x = &call->in[0],
                         .weights = &call->in[1],
                         .experts = &call->in[2],
                         .y = &call->out[0],
                         .layout = (tn_layout)site->meaning[TN_AXIS_LAYOUT],
                         .act = (tn_act)site->meaning[TN_AXIS_ACT]};
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
    int64_t columns = job->tile_inter * 2 > job->tile_hidden ? job->tile_inter * 2 : job->tile_hidden;
    job->tile_bytes = rows_align((size_t)job->tile_m * (size_t)columns * sizeof(float));
    job->thread_bytes = job->tile_bytes + gemm_work_size(job->hidden > job->inter ? job->hidden : job->inter);
}

/* Lays scratch out and adds up its size. */
static void experts_layout(experts_job *job, char *base)
{
    size_t slots = (size_t)job->slots, size = tn_dtype_size(job->type), used = 0;
    job->order = (int32_t *)(void *)take(base, &used, slots * sizeof(int32_t));
    job->start = (int64_t *)(void *)take(base, &used, ((size_t)job->expert_count + 1) * sizeof(int64_t));
    job->gathered = take(base, &used, slots * (size_t)job->hidden * size);
    job->activated = take(base, &used, slots * (size_t)job->inter * size);
    job->terms = take(base, &used, slots * (size_t)job->hidden * tn_dtype_size(job->term_type));
    job->threads = take(base, &used, job->thread_bytes * (size_t)tn_thread_count());
    job->total_bytes = used;
}

static size_t experts_scratch(const tn_call *call)
{
    experts_job job;
    if (!experts_first(call->site, (tn_layout)call->site->meaning[TN_AXIS_LAYOUT]))
        return 0;
    experts_shape(call, &job);
    experts_layout(&job, NULL);
    return job.total_bytes;
}

static int32_t expert_of(const experts_job *job, int64_t slot)
{
    return ((const int32_t *)(const void *)rows_at(job->experts, slot / job->top_k))[slot % job->top_k];
}

/* Counting sort of the slots; refuses ids that name no expert. */
static tn_status experts_sort(experts_job *job, tn_error *err)
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

static void experts_gather(void *ctx, int64_t begin, int64_t end, int32_t thread)
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

/* Where output column j of one of an expert's matrices begins, and how to read it from there. */
static const char *experts_weight(const experts_job *job, tn_role role, int64_t expert, int64_t j, gemm_shape *shape)
{
    const tn_param *param = &job->site->param[role];
    if (job->layout == TN_LAYOUT_EXPERT_LIST) {
        const tn_tensor *t = &param->tensors[expert];
        *shape = (gemm_shape){.w_type = t->dtype, .form = GEMM_NT, .ldw = t->stride[0]};
        return (const char *)t->data + (size_t)(j * t->stride[0]) * tn_dtype_size(t->dtype);
    }
    const tn_tensor *t = param->tensors;
    bool by_row = job->layout == TN_LAYOUT_STACKED_OI;
    *shape = (gemm_shape){.w_type = t->dtype, .form = by_row ? GEMM_NT : GEMM_NN, .ldw = t->stride[1]};
    return (const char *)t->data +
           (size_t)(expert * t->stride[0] + j * (by_row ? t->stride[1] : 1)) * tn_dtype_size(t->dtype);
}

static void experts_product(const experts_job *job, gemm_context *context, tn_role role, int64_t expert, int64_t column,
                            int64_t m, int64_t n, int64_t k, const char *a, float *c, int64_t ldc, char *work)
{
    gemm_shape shape;
    const char *w = experts_weight(job, role, expert, column, &shape);
    shape.type = job->type;
    shape.m = m;
    shape.n = n;
    shape.k = shape.lda = k;
    shape.ldc = ldc;
    gemm_run(context, &shape, a, w, c, work);
}

/* activated[first .. first + m), columns [column, column + n) = rnd(rnd(act(rnd(gate))) * rnd(up)). */
static void experts_gate_up(const experts_job *job, gemm_context *context, int64_t expert, int64_t first, int64_t m,
                            int64_t column, int64_t n, char *mine)
{
    bool list = job->layout == TN_LAYOUT_EXPERT_LIST;
    size_t size = tn_dtype_size(job->type);
    const char *a = job->gathered + (size_t)(first * job->hidden) * size;
    float *gate = (float *)(void *)mine, *up = gate + job->tile_m * job->tile_inter;
    experts_product(job, context, list ? TN_ROLE_GATE : TN_ROLE_GATE_UP, expert, column, m, n, job->hidden, a, gate,
                    job->tile_inter, mine + job->tile_bytes);
    experts_product(job, context, list ? TN_ROLE_UP : TN_ROLE_GATE_UP, expert, list ? column : job->inter + column, m,
                    n, job->hidden, a, up, job->tile_inter, mine + job->tile_bytes);
    for (int64_t i = 0; i < m; i++) {
        float *g = gate + i * job->tile_inter, *u = up + i * job->tile_inter;
        vec_round(g, n, job->dtype);
        vec_round(u, n, job->dtype);
        vec_act(job->act, job->dtype, g, n);
        vec_mul(g, u, n);
        if (job->type == TN_F32)
            vec_round(g, n, job->dtype);
        convert_from_f32(g, job->type, job->activated + (size_t)((first + i) * job->inter + column) * size, n);
    }
}

/* terms[slot], columns [column, column + n) = rnd(down(activated)) * weight. */
static void experts_down(const experts_job *job, gemm_context *context, int64_t expert, int64_t first, int64_t m,
                         int64_t column, int64_t n, char *mine)
{
    float *c = (float *)(void *)mine, weight;
    size_t term_size = tn_dtype_size(job->term_type), weight_size = tn_dtype_size(job->weights->dtype);
    const char *a = job->activated + (size_t)(first * job->inter) * tn_dtype_size(job->type);
    experts_product(job, context, TN_ROLE_DOWN, expert, column, m, n, job->inter, a, c, job->tile_hidden,
                    mine + job->tile_bytes);
    for (int64_t i = 0; i < m; i++) {
        int64_t slot = job->order[first + i];
        float *row = c + i * job->tile_hidden;
        convert_to_f32(rows_at(job->weights, slot / job->top_k) + (size_t)(slot % job->top_k) * weight_size,
                       job->weights->dtype, &weight, 1);
        vec_round(row, n, job->dtype);
        vec_scale(row, n, weight);
        convert_from_f32(row, job->term_type, job->terms + (size_t)(slot * job->hidden + column) * term_size, n);
    }
}

/* The work of one pass is a line: expert after expert, each with one item per tile of columns, as long as the item
 * takes. A piece of the line does the items that begin in it. */
static int64_t experts_cost(const experts_job *job, int64_t expert)
{
    int64_t count = job->start[expert + 1] - job->start[expert];
    return count > 0 ? count + PACK_TOKENS : 0;
}

static void experts_walk(const experts_job *job, int64_t begin, int64_t end, int32_t thread, bool down)
{
    int64_t width = down ? job->hidden : job->inter, tile = down ? job->tile_hidden : job->tile_inter, at = 0;
    char *mine = job->threads + (size_t)thread * job->thread_bytes;
    gemm_context *context = gemm_acquire();
    for (int64_t e = 0; e < job->expert_count && at < end; e++) {
        int64_t cost = experts_cost(job, e);
        for (int64_t column = 0; cost > 0 && column < width; column += tile, at += cost) {
            int64_t n = width - column < tile ? width - column : tile;
            if (at < begin || at >= end)
                continue;
            for (int64_t first = job->start[e]; first < job->start[e + 1]; first += job->tile_m) {
                int64_t left = job->start[e + 1] - first, m = left < job->tile_m ? left : job->tile_m;
                if (down)
                    experts_down(job, context, e, first, m, column, n, mine);
                else
                    experts_gate_up(job, context, e, first, m, column, n, mine);
            }
        }
    }
    gemm_release(context);
}

static void experts_gate_up_pass(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    experts_walk(ctx, begin, end, thread, false);
}

static void experts_down_pass(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    experts_walk(ctx, begin, end, thread, true);
}

static void experts_pass(experts_job *job, bool down, void (*body)(void *, int64_t, int64_t, int32_t))
{
    int64_t width = down ? job->hidden : job->inter, tile = down ? job->tile_hidden : job->tile_inter, length = 0;
    for (int64_t e = 0; e < job->expert_count; e++)
        length += experts_cost(job, e) * ((width + tile - 1) / tile);
    /* One unit of the line is one token's share of an item. */
    int64_t unit = tile * (down ? job->inter : 2 * job->hidden);
    tn_parallel_for(length, (WORTH_A_THREAD + unit) / (unit + 1), body, job);
}

static void experts_combine(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const experts_job *job = ctx;
    (void)thread;
    size_t term_size = tn_dtype_size(job->term_type), y_size = tn_dtype_size(job->y->dtype);
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
            convert_from_f32(sum, job->y->dtype, rows_at(job->y, token) + (size_t)i * y_size, n);
        }
}

static tn_status experts_forward(const tn_call *call, tn_error *err)
{
    const tn_site *site = call->site;
    int32_t layout = site->meaning[TN_AXIS_LAYOUT], act = site->meaning[TN_AXIS_ACT];
    if (layout < TN_LAYOUT_EXPERT_LIST || layout > TN_LAYOUT_STACKED_IO || act < TN_ACT_SILU || act > TN_ACT_MISH ||
        !experts_first(site, (tn_layout)layout) || !rows_param(site, TN_ROLE_DOWN) || call->in[2].shape[1] < 1)
        return tn_fail(err, TN_E_INTERNAL, site->path, "experts of layout %d, activation %d; report this defect",
                       (int)layout, (int)act);
    experts_job job;
    experts_shape(call, &job);
    experts_layout(&job, call->scratch);
    if (job.slots <= 0)
        return TN_OK;
    tn_status status = experts_sort(&job, err);
    if (status != TN_OK)
        return status;
    tn_parallel_for(job.slots, rows_grain(job.hidden), experts_gather, &job);
    experts_pass(&job, false, experts_gate_up_pass);
    experts_pass(&job, true, experts_down_pass);
    tn_parallel_for(job.tokens, rows_grain(job.hidden * job.top_k), experts_combine, &job);
    return TN_OK;
}

const eager_op eager_moe_experts = {.op = TN_OP_MOE_EXPERTS, .scratch = experts_scratch, .forward = experts_forward};
