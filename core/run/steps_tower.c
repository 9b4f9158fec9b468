/* Steps of towers, which have no tokens and no cache: what the host made, and attention of everything to everything. */
#include "run/steps.h"

#include <stdlib.h>

tn_tensor steps_upload(graph_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape, const void *host)
{
    tn_tensor t = steps_take(r, dtype, ndim, shape);
    size_t bytes = (size_t)tn_tensor_count(&t) * tn_dtype_size(dtype);
    if (r->status != TN_OK || r->arena->measuring || bytes == 0)
        return t;
    void *zeros = host ? NULL : calloc(1, bytes);
    if (!host && !zeros)
        r->status = tn_fail(r->err, TN_E_MEMORY, "tower", "out of memory for %zu bytes; give it less at a time", bytes);
    else
        r->status = device_upload(r->device, t.data, host ? host : zeros, bytes, r->err);
    free(zeros);
    return t;
}

/* Every index is the same, so that everything lies neither before nor behind anything. */
static void attend(graph_run *r, const graph_site *site, const tn_tensor *q, const tn_tensor *k, const tn_tensor *v,
                   const tn_tensor *o)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor index = steps_upload(r, TN_I32, 2, q->shape, NULL), kv_index = steps_upload(r, TN_I32, 2, k->shape, NULL);
    const tn_call call =
        run_make_call(TN_OP_ATTENTION, &site->site, RUN_TENSORS(q, k, v, &index, &kv_index), RUN_TENSORS(o));
    if (r->status == TN_OK)
        r->status = run_site_call(r->device, r->arena, site, &call, r->err);
    arena_release(r->arena, mark);
}

void steps_attend(graph_run *r, const graph_site *site, const tn_tensor *q, const tn_tensor *k, const tn_tensor *v,
                  const tn_tensor *o)
{
    int64_t rows = q->shape[0], tokens = q->shape[1], most = tokens < GRAPH_MAX_TOKENS ? tokens : GRAPH_MAX_TOKENS;
    int64_t together = most > 0 ? GRAPH_MAX_TOKENS / most : rows;
    for (int64_t b = 0; b < rows && r->status == TN_OK; b += together) {
        int64_t n = rows - b < together ? rows - b : together;
        tn_tensor keys = steps_part(k, 0, b, n), values = steps_part(v, 0, b, n), queries = steps_part(q, 0, b, n),
                  to = steps_part(o, 0, b, n);
        for (int64_t t = 0; t < tokens; t += most) {
            int64_t count = tokens - t < most ? tokens - t : most;
            tn_tensor q_part = steps_part(&queries, 1, t, count), o_part = steps_part(&to, 1, t, count);
            attend(r, site, &q_part, &keys, &values, &o_part);
        }
    }
}
