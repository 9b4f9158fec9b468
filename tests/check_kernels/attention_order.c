/* ATTENTION: a query's result has the same bits whatever else is in the call and wherever the cache keeps its keys. */
#include "attention_order.h"
#include "host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Which slot holds which position: as few slots as there are keys; more, that hold garbage; keys of later tokens too;
 * a ring; padding on the left; every sixth slot empty; any order. */
enum { TIGHT, LONG, LATER, RING, LEFT, HOLES, MIXED, LAYOUTS };

enum { PADDING = 3, ROOM = 700, SCRATCH_LINE = 64 };

/* Sequences of past + tokens, of which the last `tokens` are queries; row b begins b * PADDING later. */
typedef struct sequences {
    int64_t past, tokens, batch, heads, kv_heads, d, dv, window, chunk;
    double softcap;
    bool sinks, latent, specials;
} sequences;

typedef struct world {
    const sequences *s;
    check_case c; /* in: q [B,tokens], k and v [B,past + tokens], by positions                */
    const tn_impl *impl;
    char *want;                        /* [B,tokens,H,Dv]                                                        */
    size_t q_row, k_row, v_row, o_row; /* bytes of a token                                                */
} world;

/* What of the sequences a call has. */
typedef struct part {
    int64_t from, end, row, rows; /* queries; batch rows                                                    */
    int layout;
    int32_t threads;
} part;

static int64_t slot_of(const part *p, int64_t slots, int64_t position, int64_t b)
{
    switch (p->layout) {
    case RING:
    case MIXED:
        return (p->layout == MIXED ? position * 7 + 5 : position) % slots;
    case LEFT:
        return position + 2 * b + 5;
    case HOLES:
        return position + position / 5;
    default:
        return position;
    }
}

/* A ring is what a cache has of a window; others are longer than they need be. */
static int64_t slots_of(const sequences *s, const part *p, int64_t end)
{
    int64_t ring = s->window ? s->window - 1 + p->end - p->from : end;
    switch (p->layout) {
    case TIGHT:
        return end;
    case RING:
        return ring < end ? ring : end;
    case MIXED:
        return (end + 6) / 7 * 7 + 1;
    default:
        return end + end / 5 + ROOM;
    }
}

static void fill_cache(const world *w, const part *p, int64_t slots, char *k, char *v, int32_t *index)
{
    const sequences *s = w->s;
    memset(k, 0xff, (size_t)(p->rows * slots) * w->k_row); /* NaN */
    memset(v, 0xff, (size_t)(p->rows * slots) * w->v_row);
    memset(index, 0xff, (size_t)(p->rows * slots) * sizeof *index);
    for (int64_t i = 0; i < p->rows; i++) {
        int64_t b = p->row + i, all = s->past + s->tokens - b * PADDING;
        int64_t end = p->layout == LATER ? all : s->past + p->end - b * PADDING;
        for (int64_t position = 0; position < end; position++) {
            int64_t slot = i * slots + slot_of(p, slots, position, b), from = b * (s->past + s->tokens) + position;
            index[slot] = (int32_t)position;
            memcpy(k + (size_t)slot * w->k_row, (char *)w->c.call.in[1].data + (size_t)from * w->k_row, w->k_row);
            memcpy(v + (size_t)slot * w->v_row, (char *)w->c.call.in[2].data + (size_t)from * w->v_row, w->v_row);
        }
    }
}

/* As the host does it. */
static tn_status perform(const world *w, tn_call *call, int64_t tokens, tn_error *err)
{
    tn_plan plan = {.size = sizeof plan, .threads = tn_thread_count(), .max_tokens = tokens};
    tn_status status = w->impl->plan(&w->c.site, &plan, err);
    call->site = &w->c.site;
    call->plan = &plan;
    call->scratch = aligned_alloc(SCRATCH_LINE, (plan.scratch_bytes + SCRATCH_LINE) / SCRATCH_LINE * SCRATCH_LINE);
    if (status == TN_OK && call->scratch) {
        memset(call->scratch, 0xff, plan.scratch_bytes);
        status = w->impl->forward(call, err);
    }
    free(call->scratch);
    return status;
}

static tn_status run_part(const world *w, const part *p, char *o)
{
    const sequences *s = w->s;
    int64_t tokens = p->end - p->from, slots = slots_of(s, p, s->past + (p->layout == LATER ? s->tokens : p->end));
    size_t keys = (size_t)(p->rows * slots);
    tn_call call = w->c.call;
    tn_error err = TN_ERROR_INIT;
    char *k = malloc(keys * w->k_row + 1), *v = malloc(keys * w->v_row + 1);
    int32_t *index = malloc(keys * sizeof *index + 1),
            *q_index = malloc((size_t)(p->rows * tokens + 1) * sizeof *q_index);
    fill_cache(w, p, slots, k, v, index);
    for (int64_t i = 0; i < p->rows * tokens; i++) {
        int64_t position = s->past + p->from + i % tokens - (p->row + i / tokens) * PADDING;
        q_index[i] = (int32_t)(position < 0 ? -1 : position);
    }
    call.in[0].shape[0] = call.in[3].shape[0] = call.out[0].shape[0] = p->rows;
    call.in[0].shape[1] = call.in[3].shape[1] = call.out[0].shape[1] = tokens;
    call.in[0].data = (char *)call.in[0].data + (size_t)(p->row * s->tokens + p->from) * w->q_row;
    call.in[1].data = k;
    call.in[2].data = s->latent ? k : v;
    call.in[3].data = q_index;
    call.in[4].data = index;
    call.in[3].stride[0] = tokens;
    call.out[0].data = o;
    call.out[0].stride[0] = tokens * s->heads * s->dv;
    for (int i = 1; i < 5; i += i == 2 ? 2 : 1) {
        call.in[i].shape[0] = p->rows;
        call.in[i].shape[1] = slots;
        call.in[i].stride[0] = slots * call.in[i].stride[1];
    }
    host_threads(p->threads);
    tn_status status = perform(w, &call, p->rows * tokens, &err);
    host_threads(1);
    free(k);
    free(v);
    free(index);
    free(q_index);
    return status;
}

/* One NaN is as good as another. */
static bool same_number(const tn_tensor *like, const char *a, const char *b)
{
    tn_tensor x = *like, y = *like;
    x.data = (void *)a;
    y.data = (void *)b;
    return !memcmp(a, b, tn_dtype_size(like->dtype)) || (isnan(element_get(&x, 0)) && isnan(element_get(&y, 0)));
}

static void compare_part(check_state *s, const world *w, const part *p, const char *o)
{
    size_t size = tn_dtype_size(w->c.call.out[0].dtype);
    int64_t tokens = p->end - p->from;
    for (int64_t i = 0; i < p->rows * tokens; i++) {
        int64_t row = (p->row + i / tokens) * w->s->tokens + p->from + i % tokens;
        const char *got = o + (size_t)i * w->o_row, *want = w->want + (size_t)row * w->o_row;
        for (size_t e = 0; e < w->o_row && memcmp(got, want, w->o_row); e += size)
            if (!same_number(&w->c.call.out[0], got + e, want + e)) {
                check_fail(s, &w->c,
                           "queries %lld to %lld of rows %lld to %lld, slots %d, %d threads: query %lld of row %lld, "
                           "element %lld has other bits",
                           (long long)p->from, (long long)p->end, (long long)p->row, (long long)(p->row + p->rows),
                           p->layout, (int)p->threads, (long long)(row % w->s->tokens), (long long)(row / w->s->tokens),
                           (long long)(e / size));
                return;
            }
    }
}

static void try_part(check_state *s, const world *w, part p)
{
    char *o = malloc((size_t)(p.rows * (p.end - p.from)) * w->o_row + 1);
    memset(o, 0xff, (size_t)(p.rows * (p.end - p.from)) * w->o_row);
    s->group_runs++;
    if (run_part(w, &p, o) == TN_OK)
        compare_part(s, w, &p, o);
    else
        check_fail(s, &w->c, "the call failed");
    free(o);
}

/* In chunks of so many tokens. */
static void try_chunks(check_state *s, const world *w, int64_t tokens)
{
    for (int64_t from = 0; from < w->s->tokens; from += tokens) {
        int64_t end = from + tokens < w->s->tokens ? from + tokens : w->s->tokens;
        try_part(s, w,
                 (part){from, end, 0, w->s->batch, (int)(from / tokens % LAYOUTS), 1 + (int32_t)(from / tokens % 3)});
    }
}

static void try_all(check_state *s, const world *w, random_state *r)
{
    const sequences *q = w->s;
    const part whole = {0, q->tokens, 0, q->batch, TIGHT, 1};
    for (int layout = 0; layout < LAYOUTS; layout++) {
        part p = whole;
        p.layout = layout;
        p.threads = 1 + layout % 3;
        try_part(s, w, p);
    }
    for (int64_t b = 0; b < q->batch && q->batch > 1; b++)
        try_part(s, w, (part){0, q->tokens, b, 1, TIGHT, 2});
    for (int i = 0; i < 24; i++) {
        int64_t at = i < 4 ? (i % 2 ? q->tokens - 1 - i / 2 : i / 2) : random_below(r, q->tokens);
        int64_t count = i % 4 ? 1 : 1 + random_below(r, 4);
        int64_t b = i % 3 ? random_below(r, q->batch) : 0, end = at + count < q->tokens ? at + count : q->tokens;
        at = at < 0 ? 0 : at;
        try_part(s, w, (part){at, end, b, i % 3 ? 1 : q->batch, i % LAYOUTS, 1 + i % 2});
    }
    try_chunks(s, w, 7);
    try_chunks(s, w, 64);
}

static void make_world(world *w, const sequences *s, tn_dtype dtype, random_state *r)
{
    int64_t keys = s->past + s->tokens;
    size_t size = tn_dtype_size(dtype);
    check_case *c = &w->c;
    w->s = s;
    case_init(c, "cpu_attention", TN_OP_ATTENTION, dtype);
    c->site.meaning[TN_AXIS_WEIGHT] = 0;
    c->site.dim[TN_DIM_HEAD] = s->d;
    c->site.dim[TN_DIM_HEAD_V] = s->dv;
    c->site.dim[TN_DIM_Q_HEADS] = s->heads;
    c->site.dim[TN_DIM_KV_HEADS] = s->kv_heads;
    c->site.dim[TN_DIM_WINDOW] = s->window;
    c->site.dim[TN_DIM_CHUNK] = s->chunk;
    c->site.num[TN_NUM_SCALE] = 1 / sqrt((double)s->d);
    c->site.num[TN_NUM_SOFTCAP] = s->softcap;
    c->site.features = (s->window ? TN_HAS_WINDOW : 0) | (s->chunk ? TN_HAS_CHUNK : 0) |
                       (s->softcap != 0 ? TN_HAS_SOFTCAP : 0) | (s->sinks ? TN_HAS_SINKS : 0);
    case_in(c, dtype, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->d}, NULL);
    case_in(c, dtype, 4, (int64_t[]){s->batch, keys, s->kv_heads, s->d}, NULL);
    case_in(c, dtype, 4, (int64_t[]){s->batch, keys, s->kv_heads, s->dv}, NULL);
    case_in(c, TN_I32, 2, (int64_t[]){s->batch, s->tokens}, NULL);
    case_in(c, TN_I32, 2, (int64_t[]){s->batch, keys}, NULL);
    case_out(c, dtype, 4, (int64_t[]){s->batch, s->tokens, s->heads, s->dv}, NULL);
    for (int i = 0; i < 3; i++)
        fill_normal(&c->call.in[i], r, 0, i == 0 ? 3 : 1);
    if (s->sinks)
        fill_normal(case_param(c, TN_ROLE_SINKS, 1, dtype, 1, &s->heads), r, 1, 2);
    for (int i = 1; s->specials && i < 3; i++)
        for (int n = 0; n < 3; n++)
            element_set(&c->call.in[i], random_below(r, tn_tensor_count(&c->call.in[i])), n ? INFINITY : NAN);
    if (s->latent)
        for (int d = 0; d < 3; d++)
            c->call.in[2].stride[d] = c->call.in[1].stride[d];
    w->q_row = (size_t)(s->heads * s->d) * size;
    w->k_row = (size_t)(s->kv_heads * s->d) * size;
    w->v_row = (size_t)(s->kv_heads * s->dv) * size;
    w->o_row = (size_t)(s->heads * s->dv) * size;
    w->want = case_alloc(c, (size_t)(s->batch * s->tokens) * w->o_row);
    snprintf(c->what, sizeof c->what, "%lldx%lld tokens behind %lld, heads %lld/%lld, %lld/%lld%s%s%s%s%s",
             (long long)s->batch, (long long)s->tokens, (long long)s->past, (long long)s->heads, (long long)s->kv_heads,
             (long long)s->d, (long long)s->dv, s->window ? ", window" : "", s->chunk ? ", chunk" : "",
             s->softcap != 0 ? ", softcap" : "", s->sinks ? ", sinks" : "", s->specials ? ", specials" : "");
}

/* Ends of what is rounded as eager rounds it (64), of blocks (64 to 256) and of spans (1024); few and many rows. */
static const sequences cases[] = {
    {0, 80, 2, 4, 2, 32, 32, 0, 0, 0, false, false, false},
    {0, 270, 2, 3, 3, 17, 24, 0, 0, 0, true, false, false},
    {0, 140, 3, 8, 1, 40, 33, 50, 0, 20, false, false, false},
    {20, 300, 1, 2, 1, 128, 128, 0, 0, 0, false, false, false},
    {200, 90, 2, 6, 2, 64, 64, 0, 100, 0, true, false, false},
    {230, 40, 1, 20, 1, 72, 40, 0, 0, 0, false, true, false},
    {100, 70, 2, 4, 2, 48, 48, 40, 0, 0, false, false, true},
    {900, 200, 2, 4, 4, 64, 48, 0, 0, 0, false, false, false},
    {990, 70, 1, 16, 2, 128, 128, 0, 0, 30, true, false, false},
    {1000, 60, 1, 5, 1, 256, 256, 0, 0, 0, false, false, false},
    {1030, 140, 1, 4, 2, 32, 16, 600, 0, 0, true, false, false},
    {1500, 40, 1, 128, 1, 96, 64, 0, 0, 0, false, true, false},
    {2000, 80, 2, 4, 1, 16, 16, 0, 0, 0, false, false, false},
    {2040, 20, 1, 2, 2, 64, 64, 1500, 0, 0, false, false, true},
    {2950, 60, 1, 8, 4, 80, 80, 0, 2500, 0, false, false, false},
};

void check_attention_order(check_state *s, tn_dtype dtype)
{
    random_state r = {11};
    group_begin(s, "attention one order %s %s", tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && s->by == BY_CPU; i++) {
        if (check_pass_over(s))
            continue;
        world w;
        make_world(&w, &cases[i], dtype, &r);
        if (check_left_out(s, &w.c))
            continue;
        s->group_cases++;
        if (check_performer(s, &w.c, &w.impl)) {
            const part whole = {0, cases[i].tokens, 0, cases[i].batch, TIGHT, 1};
            if (run_part(&w, &whole, w.want) == TN_OK)
                try_all(s, &w, &r);
            else
                check_fail(s, &w.c, "the call failed");
        }
        case_free(&w.c);
    }
    group_end(s);
}
