/* The steps that an architecture's forward is made of. */
#include "run/steps.h"

tn_tensor steps_take(graph_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, ndim, shape);
    if (r->status == TN_OK)
        r->status = arena_take(r->arena, (size_t)tn_tensor_count(&t) * tn_dtype_size(dtype), &t.data, r->err);
    return t;
}

tn_tensor steps_view(const tn_tensor *t, int32_t ndim, const int64_t *shape)
{
    return tn_tensor_dense(t->data, t->dtype, ndim, shape);
}

static tn_call start_call(tn_op op, const tn_site *site, int in, int out)
{
    return (tn_call){.size = sizeof(tn_call), .op = op, .site = site, .in_count = in, .out_count = out};
}

/* An operation of a site of the graph. */
static void perform_site(graph_run *r, const graph_site *site, const tn_call *call)
{
    if (r->status == TN_OK)
        r->status = run_site_call(r->device, r->arena, site, call, r->err);
}

/* A step between the contracts. */
static void perform_step(graph_run *r, const tn_call *call)
{
    if (r->status == TN_OK)
        r->status = run_eager_call(r->device, r->arena, call, r->err);
}

tn_tensor steps_embedding(graph_run *r, const tn_site *site, int64_t hidden)
{
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){r->rows * r->tokens, hidden});
    tn_call call = start_call(TN_OP_EMBEDDING, site, 1, 1);
    call.in[0] = r->ids;
    call.out[0] = y;
    perform_step(r, &call);
    return y;
}

tn_tensor steps_linear(graph_run *r, const graph_site *site, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){x->shape[0], site->site.dim[TN_DIM_OUT]});
    tn_call call = start_call(TN_OP_LINEAR, &site->site, 1, 1);
    call.in[0] = *x;
    call.out[0] = y;
    perform_site(r, site, &call);
    return y;
}

static void norm_into(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    tn_call call = start_call(TN_OP_RMS_NORM, &site->site, 1, 1);
    call.in[0] = *x;
    call.out[0] = *y;
    perform_site(r, site, &call);
}

tn_tensor steps_norm(graph_run *r, const graph_site *site, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, x->ndim, x->shape);
    norm_into(r, site, x, &y);
    return y;
}

void steps_norm_in_place(graph_run *r, const graph_site *site, const tn_tensor *x)
{
    norm_into(r, site, x, x);
}

tn_tensor steps_add_norm(graph_run *r, const graph_site *site, const tn_tensor *h, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, h->ndim, h->shape);
    tn_call call = start_call(TN_OP_ADD_RMS_NORM, &site->outer->site, 2, 2);
    call.in[0] = *h;
    call.in[1] = *x;
    call.out[0] = *h;
    call.out[1] = y;
    perform_site(r, site->outer, &call);
    return y;
}

void steps_mlp(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    tn_call call = start_call(site->site.op, &site->site, 1, 1);
    call.in[0] = *x;
    call.out[0] = *y;
    perform_site(r, site, &call);
}

void steps_rope(graph_run *r, const graph_site *site, int kind, const tn_tensor *q, const tn_tensor *k)
{
    tn_call call = start_call(TN_OP_ROPE, &site->site, 4, 2);
    call.in[0] = *q;
    call.in[1] = *k;
    call.in[2] = r->cos[kind];
    call.in[3] = r->sin[kind];
    call.out[0] = *q;
    call.out[1] = *k;
    perform_site(r, site, &call);
}

void steps_cache_append(graph_run *r, int64_t layer, const tn_tensor *k, const tn_tensor *v)
{
    const run_cache *cache = &r->cache[layer];
    tn_call call = start_call(TN_OP_CACHE_APPEND, NULL, 2, 1);
    call.in[0] = *k;
    call.in[1] = cache->slot;
    call.out[0] = cache->full_k;
    perform_step(r, &call);
    if (!v)
        return;
    call.in[0] = *v;
    call.out[0] = cache->full_v;
    perform_step(r, &call);
}

tn_tensor steps_attention(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *q)
{
    const run_cache *cache = &r->cache[layer];
    int64_t heads = q->shape[2], dim = cache->v.shape[3];
    tn_tensor o = steps_take(r, r->dtype, 4, (int64_t[]){r->rows, r->tokens, heads, dim});
    tn_call call = start_call(TN_OP_ATTENTION, &site->site, 5, 1);
    call.in[0] = *q;
    call.in[1] = cache->k;
    call.in[2] = cache->v;
    call.in[3] = r->index;
    call.in[4] = cache->kv_index;
    call.out[0] = o;
    perform_site(r, site, &call);
    return steps_view(&o, 2, (int64_t[]){r->rows * r->tokens, heads * dim});
}

void steps_softcap(graph_run *r, const tn_site *site, const tn_tensor *x)
{
    tn_call call = start_call(TN_OP_SOFTCAP, site, 1, 1);
    call.in[0] = *x;
    call.out[0] = *x;
    perform_step(r, &call);
}

void steps_capture(graph_run *r, int64_t index, const tn_tensor *hidden)
{
    if (r->status == TN_OK && r->capture && !r->arena->measuring)
        r->capture(r->capture_ctx, index, hidden);
}
