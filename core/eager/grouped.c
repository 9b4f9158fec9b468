/* Products of sorted rows with a matrix per group, and the gradients of those matrices. */
#include "eager/grouped.h"
#include "eager/rows.h"

#include "base/blocks.h"

#include <string.h>

/* What packing a group's matrix costs, in rows. Only the balance between threads depends on it. */
#define PACK_ROWS 24
#define WORTH_A_THREAD (INT64_C(1) << 20) /* multiplications                                     */
#define GRAD_TILE 512                     /* rows and most columns of a tile of a matrix's gradient */

grouped_matrix grouped_weight(const tn_param *param, tn_layout layout, int64_t group, int64_t first)
{
    bool list = grouped_is_list(layout), oi = layout == TN_LAYOUT_STACKED_OI || layout == TN_LAYOUT_EXPERT_LIST;
    const tn_tensor *t = list ? &param->tensors[group] : param->tensors;
    int32_t rows = list ? 0 : 1;
    /* The stride of a single row may be anything. */
    int64_t stride = t->shape[rows] > 1 ? t->stride[rows] : t->shape[rows + 1];
    int64_t offset = (list ? 0 : group * t->stride[0]) + first * (oi ? stride : 1);
    char *data = t->data ? (char *)t->data + offset * (int64_t)tn_dtype_size(t->dtype) : NULL;
    return (grouped_matrix){.data = data, .dtype = t->dtype, .stride = stride, .oi = oi};
}

grouped_matrix grouped_weight_of(const tn_site *site, tn_role role, tn_layout layout, int64_t group, int64_t first)
{
    const tn_param *param = &site->param[role];
    if (!grouped_is_list(layout) || !blocks_is_quantised(param->tensors[group].dtype))
        return grouped_weight(param, layout, group, first);
    return (grouped_matrix){.dtype = param->tensors[group].dtype,
                            .oi = layout == TN_LAYOUT_EXPERT_LIST,
                            .quantised = true,
                            .codes = weight_of(site, role, group),
                            .first = first};
}

void grouped_product(gemm_context *context, gemm_shape shape, const grouped_matrix *w, bool back, int64_t column,
                     const char *a, float *c, void *work)
{
    shape.form = w->oi != back ? GEMM_NT : GEMM_NN;
    if (w->quantised) {
        bool by_row = shape.form == GEMM_NT;
        shape.quantised = &w->codes;
        shape.w_type = w->dtype;
        shape.w_row = by_row ? column : 0;
        shape.w_column = by_row ? 0 : column;
        *(w->oi ? &shape.w_row : &shape.w_column) += w->first;
        gemm_run(context, &shape, a, NULL, c, work);
        return;
    }
    shape.w_type = w->dtype;
    shape.ldw = w->stride;
    int64_t offset = shape.form == GEMM_NT ? column * w->stride : column;
    gemm_run(context, &shape, a, w->data + offset * (int64_t)tn_dtype_size(w->dtype), c, work);
}

/* The work of a pass is a line: group after group, each with one item per tile of columns, as long as the item takes. A
 * piece of the line does the items that begin in it. */
static int64_t group_cost(const grouped_pass *pass, int64_t group)
{
    int64_t count = pass->start[group + 1] - pass->start[group];
    return count > 0 || pass->whole ? count + PACK_ROWS : 0;
}

static void column_items(const grouped_pass *pass, gemm_context *context, grouped_item item)
{
    int64_t end = pass->start[item.group + 1], step = pass->whole ? INT64_MAX : pass->tile_rows;
    item.first = pass->start[item.group];
    do {
        item.rows = end - item.first < step ? end - item.first : step;
        pass->item(pass->ctx, context, &item);
        item.first += item.rows;
    } while (item.first < end);
}

static void walk(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grouped_pass *pass = ctx;
    grouped_item item = {.mine = pass->threads + (size_t)thread * pass->thread_bytes};
    gemm_context *context = gemm_acquire();
    for (int64_t at = 0; item.group < pass->groups && at < end; item.group++) {
        int64_t cost = group_cost(pass, item.group);
        for (item.column = 0; cost > 0 && item.column < pass->width; item.column += pass->tile, at += cost) {
            item.columns = pass->width - item.column < pass->tile ? pass->width - item.column : pass->tile;
            if (at >= begin && at < end)
                column_items(pass, context, item);
        }
    }
    gemm_release(context);
}

void grouped_run(const grouped_pass *pass)
{
    int64_t length = 0, tiles = (pass->width + pass->tile - 1) / pass->tile;
    for (int64_t group = 0; group < pass->groups; group++)
        length += group_cost(pass, group) * tiles;
    /* One unit of the line is one row's share of an item. */
    int64_t unit = pass->tile * pass->depth;
    tn_parallel_for(length, (WORTH_A_THREAD + unit) / (unit + 1), walk, (void *)(uintptr_t)pass);
}

/* ---- gradients of the matrices ------------------------------------------------------------------------------- */

/* A tile of columns of one group's gradient. [out,in] is g^T x, [in,out] is x^T g. */
static void grads_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const grouped_grads *g = ctx;
    grouped_matrix w = grouped_weight(g->param, g->layout, item->group, g->first);
    int64_t size = (int64_t)tn_dtype_size(g->type), w_size = (int64_t)tn_dtype_size(w.dtype);
    int64_t ldl = w.oi ? g->ldg : g->ldx, ldr = w.oi ? g->ldx : g->ldg, rows = w.oi ? g->out : g->in;
    const char *left = (w.oi ? g->g : g->x) + item->first * ldl * size;
    const char *right = (w.oi ? g->x : g->g) + (item->first * ldr + item->column) * size;
    float *c = (float *)(void *)item->mine;
    for (int64_t row = 0; w.data && row < rows; row += GRAD_TILE) {
        gemm_shape shape = {.type = g->type,
                            .w_type = g->type,
                            .form = GEMM_TN,
                            .m = rows - row < GRAD_TILE ? rows - row : GRAD_TILE,
                            .n = item->columns,
                            .k = item->rows,
                            .lda = ldl,
                            .ldw = ldr,
                            .ldc = item->columns};
        char *to = w.data + (row * w.stride + item->column) * w_size;
        if (item->rows > 0)
            gemm_run(context, &shape, left + row * size, right, c, NULL);
        for (int64_t i = 0; i < shape.m; i++, to += w.stride * w_size)
            if (item->rows > 0)
                convert_from_f32(c + i * shape.ldc, w.dtype, to, shape.n);
            else
                memset(to, 0, (size_t)(shape.n * w_size));
    }
}

size_t grouped_grads_bytes(void)
{
    return (size_t)GRAD_TILE * GRAD_TILE * sizeof(float);
}

void grouped_weight_grads(const grouped_grads *grads)
{
    if (grads->param->count <= 0)
        return;
    bool oi = grads->layout == TN_LAYOUT_STACKED_OI || grads->layout == TN_LAYOUT_EXPERT_LIST;
    grouped_pass pass = {.start = grads->start,
                         .groups = grads->groups,
                         .width = oi ? grads->in : grads->out,
                         .depth = oi ? grads->out : grads->in,
                         .whole = true,
                         .threads = grads->threads,
                         .thread_bytes = grads->thread_bytes,
                         .item = grads_item,
                         .ctx = grads};
    pass.tile = gemm_tile_columns(pass.width);
    grouped_run(&pass);
}
