/* The steps that an architecture's forward is made of. */
#include "run/steps.h"

#include "base/convert.h"
#include "group/group.h"
#include "op/op.h"
#include "run/pieces.h"

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

void steps_perform(graph_run *r, const graph_site *site, const tn_call *call)
{
    if (r->status == TN_OK && r->tape)
        r->status = tape_record(r->tape, site, call, r->err);
    if (r->status != TN_OK)
        return;
    r->status = site ? run_site_call(r->device, r->arena, site, call, r->err)
                     : run_eager_call(r->device, r->arena, call, r->err);
}

/* Tensors of the run's type in that of the site, where this one computes in another (mixed precision). */
static void narrow_all(graph_run *r, const tn_site *site, const op_tensor *named, tn_tensor *t, int32_t count,
                       bool read)
{
    for (int32_t i = 0; i < count; i++) {
        const tn_tensor wide = t[i];
        tn_dtype type = named[i].shape ? op_dtype_of(named[i].shape, site) : wide.dtype;
        if (wide.dtype != r->dtype || wide.dtype == type)
            continue;
        t[i] = steps_take(r, type, wide.ndim, wide.shape);
        if (read)
            steps_copy(r, NULL, &wide, &t[i]);
    }
}

static void perform_pieces(graph_run *r, const graph_site *site, const tn_call *call)
{
    tn_call piece;
    for (pieces p = pieces_of(site, call, r->tape); pieces_next(&p, &piece);)
        steps_perform(r, site, &piece);
}

static void perform_narrow(graph_run *r, const graph_site *site, const tn_call *wide)
{
    const op_row *row = op_find(wide->op);
    size_t mark = arena_mark(r->arena);
    tn_call call = *wide;
    narrow_all(r, &site->site, row->in, call.in, call.in_count, true);
    narrow_all(r, &site->site, row->out, call.out, call.out_count, false);
    perform_pieces(r, site, &call);
    for (int32_t i = 0; i < call.out_count; i++)
        if (call.out[i].data != wide->out[i].data)
            steps_copy(r, NULL, &call.out[i], &wide->out[i]);
    steps_release(r, mark);
}

void steps_site(graph_run *r, const graph_site *site, run_tensors in, run_tensors out)
{
    const tn_call call = run_make_call(site->site.op, &site->site, in, out);
    tn_dtype type = (tn_dtype)site->site.meaning[TN_AXIS_DTYPE];
    if (r->dtype == TN_F32 && type != TN_F32)
        perform_narrow(r, site, &call);
    else
        perform_pieces(r, site, &call);
    if (r->routes && (call.op == TN_OP_MOE_BLOCK || call.op == TN_OP_MOE_ROUTE))
        r->routes(r, &site->site, in.at[0]);
}

void steps_step(graph_run *r, tn_op op, const tn_site *site, run_tensors in, run_tensors out)
{
    const tn_call call = run_make_call(op, site, in, out);
    steps_perform(r, NULL, &call);
}

void steps_release(graph_run *r, size_t mark)
{
    if (!r->tape)
        arena_release(r->arena, mark);
}

tn_tensor steps_embedding(graph_run *r, const tn_site *site, int64_t hidden)
{
    return steps_rows(r, site, &r->ids, hidden);
}

tn_tensor steps_rows(graph_run *r, const tn_site *site, const tn_tensor *ids, int64_t width)
{
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){ids->shape[0], width});
    steps_step(r, TN_OP_EMBEDDING, site, RUN_TENSORS(ids), RUN_TENSORS(&y));
    return y;
}

tn_tensor steps_norm(graph_run *r, const graph_site *site, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, x->ndim, x->shape);
    steps_site(r, site, RUN_TENSORS(x), RUN_TENSORS(&y));
    return y;
}

void steps_norm_in_place(graph_run *r, const graph_site *site, const tn_tensor *x)
{
    steps_site(r, site, RUN_TENSORS(x), RUN_TENSORS(x));
}

/* Operators of a device with memory of its own may not write where they read, but for the simplest: results in place
 * would be copied back. */
static void leave_place(graph_run *r, tn_tensor *x)
{
    if (!r->device->ops->host_memory && tn_tensor_count(x) > 0)
        *x = steps_take(r, x->dtype, x->ndim, x->shape);
}

void steps_norm_moving(graph_run *r, const graph_site *site, tn_tensor *x)
{
    const tn_tensor from = *x;
    leave_place(r, x);
    steps_site(r, site, RUN_TENSORS(&from), RUN_TENSORS(x));
}

tn_tensor steps_add_norm(graph_run *r, const graph_site *site, const tn_tensor *h, const tn_tensor *x)
{
    if (!site->outer) { /* a norm of which there is no pair                                        */
        steps_add(r, h, x);
        return steps_norm(r, site, h);
    }
    tn_tensor y = steps_take(r, r->dtype, h->ndim, h->shape);
    steps_site(r, site->outer, RUN_TENSORS(h, x), RUN_TENSORS(h, &y));
    return y;
}

void steps_join_into(graph_run *r, const graph_cut *cut, const tn_tensor *part, const tn_tensor *whole)
{
    if (r->status == TN_OK && r->arena->measuring)
        group_expect_join(cut->group, whole);
    else if (r->status == TN_OK)
        r->status = group_join(cut->group, part, whole, cut->unit, r->err);
}

typedef struct sum_job {
    const char *parts; /* of every rank, side by side                                             */
    const tn_tensor *sum;
    int64_t count;
    int32_t ranks;
} sum_job;

/* In f32, in the order of ranks, rounded once: the same bits on every rank, whatever came first. */
static void add_up(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    enum { PIECE = 1024 };
    const sum_job *j = ctx;
    size_t element = tn_dtype_size(j->sum->dtype);
    float sum[PIECE], part[PIECE];
    (void)thread;
    for (int64_t at = begin; at < end; at += PIECE) {
        int64_t n = end - at < PIECE ? end - at : PIECE;
        convert_to_f32(j->parts + (size_t)at * element, j->sum->dtype, sum, n);
        for (int32_t rank = 1; rank < j->ranks; rank++) {
            convert_to_f32(j->parts + (size_t)(rank * j->count + at) * element, j->sum->dtype, part, n);
            for (int64_t i = 0; i < n; i++)
                sum[i] += part[i];
        }
        convert_from_f32(sum, j->sum->dtype, (char *)j->sum->data + (size_t)at * element, n);
    }
}

void steps_sum(graph_run *r, const graph_cut *cut, const tn_tensor *x)
{
    enum { GRAIN = 1 << 14 };
    sum_job job = {NULL, x, tn_tensor_count(x), cut->group->end.ranks};
    if (r->status != TN_OK || job.count == 0)
        return;
    if (r->arena->measuring) {
        group_expect_all(cut->group, x);
        return;
    }
    r->status = group_all(cut->group, x->data, tn_dtype_bytes(x->dtype, job.count), &job.parts, r->err);
    if (r->status == TN_OK)
        tn_parallel_for(job.count, GRAIN, add_up, &job);
}

tn_tensor steps_join(graph_run *r, const graph_cut *cut, const tn_tensor *x)
{
    tn_tensor all = steps_take(r, x->dtype, 2, (int64_t[]){x->shape[0], cut->total});
    steps_join_into(r, cut, x, &all);
    return all;
}

int64_t steps_linear_width(const graph_site *site)
{
    return site->cut.group && !site->stays_cut && !site->adds ? site->cut.total : site->site.dim[TN_DIM_OUT];
}

/* from and to may be the same. */
static void rotate(graph_run *r, const graph_site *site, const tn_tensor from[2], const tn_tensor to[2],
                   const tn_tensor *cosine, const tn_tensor *sine)
{
    tn_tensor c = *cosine, s = *sine;
    if (site->site.meaning[TN_AXIS_ROPE] == TN_ROPE_HALF_NARROW) { /* the halves are equal: the first ones */
        c.shape[c.ndim - 1] /= 2;
        s.shape[s.ndim - 1] /= 2;
    }
    steps_site(r, site, RUN_TENSORS(&from[0], &from[1], &c, &s), RUN_TENSORS(&to[0], &to[1]));
}

void steps_rope(graph_run *r, const graph_site *site, int kind, const tn_tensor *q, const tn_tensor *k)
{
    steps_rope_by(r, site, q, k, &r->cos[kind], &r->sin[kind]);
}

void steps_rope_moving(graph_run *r, const graph_site *site, int kind, tn_tensor *q, tn_tensor *k)
{
    const tn_tensor from[2] = {*q, *k};
    leave_place(r, q);
    leave_place(r, k);
    rotate(r, site, from, (const tn_tensor[2]){*q, *k}, &r->cos[kind], &r->sin[kind]);
}

void steps_rope_by(graph_run *r, const graph_site *site, const tn_tensor *q, const tn_tensor *k,
                   const tn_tensor *cosine, const tn_tensor *sine)
{
    const tn_tensor both[2] = {*q, *k};
    rotate(r, site, both, both, cosine, sine);
}

void steps_cache_append(graph_run *r, int64_t layer, const tn_tensor *k, const tn_tensor *v)
{
    for (int64_t i = 0; i < r->segments; i++) {
        const run_cache *cache = &r->segment[i].cache[layer];
        tn_tensor keys = steps_segment(k, &r->segment[i]);
        steps_place(r, &keys, &cache->slot, &cache->full_k);
        if (!v)
            continue;
        tn_tensor values = steps_segment(v, &r->segment[i]);
        steps_place(r, &values, &cache->slot, &cache->full_v);
    }
}

void steps_place(graph_run *r, const tn_tensor *x, const tn_tensor *slot, const tn_tensor *to)
{
    steps_step(r, TN_OP_CACHE_APPEND, NULL, RUN_TENSORS(x, slot), RUN_TENSORS(to));
}

/* Tokens of a picture that is longer than the window: piece after piece. */
static void attend_pieces(graph_run *r, const graph_site *site, const run_cache *cache, const tn_tensor *q,
                          const tn_tensor *places, const tn_tensor *o)
{
    int64_t all = cache->slot.shape[1], before = all - q->shape[1];
    size_t bytes = (size_t)tn_tensor_count(&cache->kv_index) * sizeof(int32_t);
    for (int64_t at = 0, number = 0; at < all && r->status == TN_OK; at += cache->piece, number++) {
        int64_t end = at + cache->piece < all ? at + cache->piece : all, begin = at > before ? at : before;
        tn_tensor kv_index = cache->kv_index;
        if (kv_index.data)
            kv_index.data = (char *)kv_index.data + (size_t)number * bytes;
        if (begin >= end)
            continue;
        tn_tensor queries = steps_part(q, 1, begin - before, end - begin);
        tn_tensor index = steps_part(places, 1, begin - before, end - begin);
        tn_tensor to = steps_part(o, 1, begin - before, end - begin);
        steps_site(r, site, RUN_TENSORS(&queries, &cache->k, &cache->v, &index, &kv_index), RUN_TENSORS(&to));
    }
}

/* The keys that were chosen for a segment's tokens. */
static tn_tensor chosen_of(const graph_run *r, int64_t segment)
{
    int64_t before = 0, slots = 0;
    for (int64_t i = 0; i <= segment; i++) {
        slots = r->segment[i].cache[0].kv_index.shape[1];
        before += i < segment ? r->rows * r->segment[i].tokens * slots : 0;
    }
    tn_tensor part = steps_part(&r->chosen, 0, before, 0);
    return tn_tensor_dense(part.data, TN_I32, 3, (int64_t[]){r->rows, r->segment[segment].tokens, slots});
}

static void attend(graph_run *r, const graph_site *site, int64_t segment, int64_t layer, const tn_tensor *all,
                   const tn_tensor *to)
{
    const run_segment *g = &r->segment[segment];
    const run_cache *cache = &g->cache[layer];
    bool near = r->near.data && site->site.features & TN_HAS_WINDOW;
    tn_tensor q = steps_segment(all, g), o = steps_segment(to, g),
              index = steps_segment(near ? &r->near : &r->index, g);
    if (site->site.features & TN_HAS_CHOSEN_KEYS) {
        tn_tensor chosen = chosen_of(r, segment);
        steps_site(r, site, RUN_TENSORS(&q, &cache->k, &cache->v, &index, &cache->kv_index, &chosen), RUN_TENSORS(&o));
    } else if (cache->piece > 0) {
        attend_pieces(r, site, cache, &q, &index, &o);
    } else {
        steps_site(r, site, RUN_TENSORS(&q, &cache->k, &cache->v, &index, &cache->kv_index), RUN_TENSORS(&o));
    }
}

tn_tensor steps_attention(graph_run *r, const graph_site *site, int64_t layer, const tn_tensor *q)
{
    int64_t heads = q->shape[2], dim = r->segment[0].cache[layer].v.shape[3];
    tn_tensor o = steps_take(r, r->dtype, 4, (int64_t[]){r->rows, r->tokens, heads, dim});
    for (int64_t i = 0; i < r->segments; i++)
        if (r->segment[i].tokens > 0)
            attend(r, site, i, layer, q, &o);
    return steps_view(&o, 2, (int64_t[]){r->rows * r->tokens, heads * dim});
}

void steps_choose_keys(graph_run *r, const tn_site *site, int64_t layer, const tn_tensor *q, const tn_tensor *k,
                       const tn_tensor *w)
{
    tn_tensor all = steps_view(w, 3, (int64_t[]){r->rows, r->tokens, q->shape[2]});
    for (int64_t i = 0; i < r->segments; i++) {
        const run_segment *g = &r->segment[i];
        const run_cache *cache = &g->cache[layer];
        tn_tensor keys = steps_segment(k, g), queries = steps_segment(q, g), weights = steps_segment(&all, g);
        tn_tensor index = steps_segment(&r->index, g), chosen = chosen_of(r, i);
        steps_place(r, &keys, &cache->slot, &cache->full_index);
        steps_step(r, TN_OP_CHOOSE_KEYS, site, RUN_TENSORS(&queries, &cache->index, &weights, &index, &cache->kv_index),
                   RUN_TENSORS(&chosen));
    }
}

void steps_chosen_room(graph_run *r)
{
    int64_t count = 0;
    for (int64_t i = 0; i < r->segments; i++)
        count += r->rows * r->segment[i].tokens * r->segment[i].cache[0].kv_index.shape[1];
    r->chosen = steps_take(r, TN_I32, 1, &count);
}

void steps_stream_mix(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *c)
{
    steps_step(r, TN_OP_STREAM_MIX, site, RUN_TENSORS(x, c), RUN_TENSORS(x));
}

void steps_stream_add(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *d, const tn_tensor *c)
{
    steps_step(r, TN_OP_STREAM_ADD, site, RUN_TENSORS(x, d, c), RUN_TENSORS(x));
}

tn_tensor steps_stream_mean(graph_run *r, const tn_site *site, const tn_tensor *x)
{
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){x->shape[1], x->shape[2]});
    steps_step(r, TN_OP_STREAM_MEAN, site, RUN_TENSORS(x), RUN_TENSORS(&y));
    return y;
}

void steps_rms_match(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *like)
{
    steps_step(r, TN_OP_RMS_MATCH, site, RUN_TENSORS(x, like), RUN_TENSORS(x));
}

void steps_embedding_bag(graph_run *r, const tn_site *site, const tn_tensor *ids, const tn_tensor *weights,
                         const tn_tensor *y)
{
    steps_step(r, TN_OP_EMBEDDING_BAG, site, RUN_TENSORS(ids, weights), RUN_TENSORS(y));
}

void steps_depthwise(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *y)
{
    steps_step(r, TN_OP_DEPTHWISE, site, RUN_TENSORS(x), RUN_TENSORS(y));
}

void steps_change(graph_run *r, const tn_site *site, const tn_tensor *x)
{
    if (site)
        steps_step(r, site->op, site, RUN_TENSORS(x), RUN_TENSORS(x));
}

void steps_row_scale(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *s)
{
    steps_step(r, TN_OP_ROW_SCALE, site, RUN_TENSORS(x, s), RUN_TENSORS(x));
}

void steps_add(graph_run *r, const tn_tensor *to, const tn_tensor *x)
{
    steps_step(r, TN_OP_ADD, NULL, RUN_TENSORS(to, x), RUN_TENSORS(to));
}

tn_tensor steps_counts(graph_run *r, int64_t groups, int64_t rows)
{
    enum { BLOCK = 64 };
    int64_t block[BLOCK];
    tn_tensor counts = steps_take(r, TN_I64, 1, &groups);
    for (int64_t i = 0; i < BLOCK; i++)
        block[i] = rows;
    for (int64_t i = 0; i < groups && r->status == TN_OK && !r->arena->measuring; i += BLOCK) {
        int64_t n = groups - i < BLOCK ? groups - i : BLOCK;
        r->status = device_upload(r->device, (int64_t *)counts.data + i, block, (size_t)n * sizeof *block, r->err);
    }
    return counts;
}

void steps_grouped(graph_run *r, const tn_site *site, const tn_tensor *x, const tn_tensor *counts, const tn_tensor *y)
{
    steps_step(r, TN_OP_GROUPED_MATMUL, site, RUN_TENSORS(x, counts), RUN_TENSORS(y));
}

void steps_copy(graph_run *r, const tn_site *site, const tn_tensor *from, const tn_tensor *to)
{
    steps_step(r, TN_OP_COPY, site, RUN_TENSORS(from), RUN_TENSORS(to));
}

void steps_glu(graph_run *r, const tn_site *site, const tn_tensor *gate, const tn_tensor *up)
{
    steps_step(r, TN_OP_GLU, site, RUN_TENSORS(gate, up), RUN_TENSORS(up));
}

tn_tensor steps_repeat(const tn_tensor *t, int64_t rows, int64_t columns)
{
    tn_tensor view = tn_tensor_dense(t->data, t->dtype, 2, (int64_t[]){rows, columns});
    view.stride[0] = 0;
    view.stride[1] = t->shape[0] == 1 ? 0 : 1;
    return view;
}

tn_tensor steps_part(const tn_tensor *x, int axis, int64_t begin, int64_t count)
{
    tn_tensor view = *x;
    view.shape[axis] = count;
    if (view.data)
        view.data = (char *)view.data + (size_t)(begin * x->stride[axis]) * tn_dtype_size(x->dtype);
    return view;
}

tn_tensor steps_segment(const tn_tensor *x, const run_segment *g)
{
    return steps_part(x, 1, g->first, g->tokens);
}

tn_tensor steps_columns(const tn_tensor *x, int64_t begin, int64_t count)
{
    return steps_part(x, 1, begin, count);
}

tn_tensor steps_last(const tn_tensor *x, int64_t tokens)
{
    return steps_part(x, 0, x->shape[0] - tokens, tokens);
}

void steps_narrow(graph_run *r, int64_t tokens)
{
    r->index = steps_part(&r->index, 1, r->tokens - tokens, tokens);
    if (r->near.data)
        r->near = steps_part(&r->near, 1, r->tokens - tokens, tokens);
    int64_t gone = r->tokens - tokens;
    for (int64_t i = 0; i < r->segments; i++) {
        run_segment *g = &r->segment[i];
        int64_t begin = g->first > gone ? g->first : gone, end = g->first + g->tokens;
        *g = (run_segment){begin - gone, end > begin ? end - begin : 0, g->cache};
    }
    r->tokens = tokens;
}

tn_tensor steps_heads(const graph_run *r, const tn_tensor *x, int64_t begin, int64_t heads, int64_t dim, int64_t step)
{
    const tn_tensor from = steps_columns(x, begin, x->shape[1] - begin);
    tn_tensor view = tn_tensor_dense(from.data, x->dtype, 4, (int64_t[]){r->rows, r->tokens, heads, dim});
    view.stride[0] = r->tokens * x->stride[0];
    view.stride[1] = x->stride[0];
    view.stride[2] = step;
    return view;
}

/* What goes wrong at a token reaches the last one through the attention of the next layer, so behind the embeddings
 * that one alone is looked at: a few kilobytes a layer. */
static void look_for_broken(graph_run *r, int64_t index, const tn_tensor *hidden)
{
    int64_t tokens = hidden->shape[0] / r->rows, width = hidden->shape[1];
    if (r->broken || !r->device->ops->host_memory || r->device->ops->sync)
        return;
    for (int64_t b = 0; b < r->rows; b++)
        for (int64_t t = index > 0 && tokens > 0 ? tokens - 1 : 0; t < tokens && !r->broken; t++) {
            size_t at = (size_t)((b * tokens + t) * hidden->stride[0]) * tn_dtype_size(hidden->dtype);
            if (convert_has_unfinite((const char *)hidden->data + at, hidden->dtype, width))
                r->broken = index + 1;
        }
}

void steps_capture(graph_run *r, int64_t index, const tn_tensor *hidden)
{
    if (r->status == TN_OK && !r->arena->measuring)
        look_for_broken(r, index, hidden);
    if (r->status != TN_OK || !r->capture || r->arena->measuring || index < r->captured)
        return;
    r->captured = index + 1;
    r->capture(r->capture_ctx, index, hidden);
}
