/* Rows of pictures and sounds among those of a text model. */
#include "run/steps.h"

/* Rows in the place of those of h that slot names. */
static void replace(graph_run *r, const tn_tensor *rows, const tn_tensor *slot, const tn_tensor *h)
{
    int64_t width = h->shape[1], count = rows->shape[0];
    if (r->status != TN_OK || count == 0)
        return;
    tn_tensor from = steps_view(rows, 4, (int64_t[]){1, count, 1, width});
    tn_tensor to = steps_view(h, 4, (int64_t[]){1, h->shape[0], 1, width});
    steps_place(r, &from, slot, &to);
}

void steps_media_embed(graph_run *r, const tn_tensor *h)
{
    replace(r, &r->mark_rows, &r->mark_slot, h);
    if (r->media)
        replace(r, &r->media->features, &r->media->slot, h);
}

bool steps_media_deepens(const graph_run *r, int64_t layer)
{
    return r->media && layer < r->media->deep_count;
}

void steps_gather(graph_run *r, const tn_tensor *table, const tn_tensor *ids, const tn_tensor *y)
{
    tn_site site = {.size = sizeof site, .op = TN_OP_EMBEDDING, .path = "pictures", .class_name = "Embedding"};
    site.meaning[TN_AXIS_DTYPE] = (int32_t)r->dtype;
    site.param[TN_ROLE_WEIGHT] = (tn_param){table, 1};
    const tn_call call = run_make_call(TN_OP_EMBEDDING, &site, RUN_TENSORS(ids), RUN_TENSORS(y));
    if (r->status == TN_OK)
        r->status = run_eager_call(r->device, r->arena, &call, r->err);
}

void steps_gather_sums(graph_run *r, const tn_tensor *table, const tn_tensor *ids, const tn_tensor *weights,
                       const tn_tensor *y)
{
    tn_site site = {.size = sizeof site, .op = TN_OP_EMBEDDING_BAG, .path = "pictures", .class_name = "EmbeddingBag"};
    site.meaning[TN_AXIS_DTYPE] = (int32_t)r->dtype;
    site.param[TN_ROLE_WEIGHT] = (tn_param){table, 1};
    site.dim[TN_DIM_TOP_K] = ids->shape[1];
    const tn_call call = run_make_call(TN_OP_EMBEDDING_BAG, &site, RUN_TENSORS(ids, weights), RUN_TENSORS(y));
    if (r->status == TN_OK)
        r->status = run_eager_call(r->device, r->arena, &call, r->err);
}

/* Every row gets something: those that stand for no picture get the row of zeros. */
void steps_media_deepen(graph_run *r, int64_t layer, const tn_tensor *h)
{
    if (!steps_media_deepens(r, layer) || r->status != TN_OK)
        return;
    size_t mark = arena_mark(r->arena);
    tn_tensor more = steps_take(r, r->dtype, 2, h->shape);
    steps_gather(r, &r->media->deep[layer], &r->media->deep_row, &more);
    steps_add(r, h, &more);
    arena_release(r->arena, mark);
}
