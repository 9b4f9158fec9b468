/* Which layers stay on the tape, and those that do not: what they begin with is kept, and they are run again with the
 * same bits, since kernels and inputs are the same. Gradients of what crosses lie where it does, so that each layer
 * finds that of what it gave, and leaves that of what it was given. */
#include "train/walk.h"

#include <stdlib.h>
#include <string.h>

tn_status walk_open(train_walk *w, const tn_model *model, tn_keep keep, tn_error *err)
{
    *w = (train_walk){.model = model, .shape = model->flow->shape(model->arch_state), .keep = keep};
    w->layers = calloc((size_t)w->shape->layers + 1, sizeof *w->layers);
    if (!w->layers)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %lld layers", (long long)w->shape->layers);
    for (int64_t i = 0; i < w->shape->layers; i++) {
        const model_layer *l = &w->shape->layer[i];
        w->lends |= l->kv_heads == 0 && l->conv_width == 0 && l->state_heads == 0;
    }
    return TN_OK;
}

void walk_close(train_walk *w)
{
    free(w->layers);
    free(w->cache);
    *w = (train_walk){0};
}

/* ---- keys, values and states ------------------------------------------------------------------------ */

/* 0, 1, 2, ... in the arena. */
static tn_tensor count_up(graph_run *r, int64_t count)
{
    tn_tensor t = steps_take(r, TN_I32, 2, (int64_t[]){1, count});
    for (int64_t i = 0; r->status == TN_OK && i < count; i++)
        ((int32_t *)t.data)[i] = (int32_t)i;
    return t;
}

static tn_tensor zeros(graph_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    return shape[1] > 0 ? steps_upload(r, dtype, ndim, shape, NULL) : (tn_tensor){0};
}

/* Room for keys and values of one layer. */
static void make_keys(const train_walk *w, graph_run *r, int64_t layer)
{
    const model_layer *l = &w->shape->layer[layer];
    for (int64_t i = 0; i < w->texts; i++) {
        run_cache *c = &w->cache[i * w->shape->layers + layer];
        int64_t n = c->slot.shape[1];
        c->k = c->full_k = steps_take(r, r->dtype, 4, (int64_t[]){1, n, l->kv_heads, l->head_dim});
        c->v = c->full_v = steps_take(r, r->dtype, 4, (int64_t[]){1, n, l->v_in_k ? 0 : l->kv_heads, l->v_head_dim});
        if (l->v_in_k) {
            c->v = c->k;
            c->v.shape[3] = l->v_head_dim;
        }
        c->index = c->full_index = steps_take(r, r->dtype, 4, (int64_t[]){1, n, l->index_dim > 0, l->index_dim});
    }
}

/* The states that it begins with. */
static void make_states(const train_walk *w, graph_run *r, int64_t layer)
{
    const model_layer *l = &w->shape->layer[layer];
    for (int64_t i = 0; i < w->texts; i++) {
        run_cache *c = &w->cache[i * w->shape->layers + layer];
        c->conv = zeros(r, r->dtype, 3, (int64_t[]){1, l->conv_width, l->conv_taps > 0 ? l->conv_taps - 1 : 0});
        c->state = zeros(r, TN_F32, 4, (int64_t[]){1, l->state_heads, l->state_k, l->state_v});
    }
}

tn_status walk_enter(train_walk *w, graph_run *r, const tn_train_texts *texts)
{
    run_cache *cache = realloc(w->cache, (size_t)(texts->count * w->shape->layers + 1) * sizeof *cache);
    if (!cache)
        return tn_fail(r->err, TN_E_MEMORY, "gradients", "out of memory; use fewer texts at once");
    w->cache = cache;
    w->texts = texts->count;
    for (int64_t i = 0; i < texts->count; i++) {
        tn_tensor places = count_up(r, texts->lengths[i]);
        for (int64_t l = 0; l < w->shape->layers; l++)
            cache[i * w->shape->layers + l] = (run_cache){.slot = places, .kv_index = places};
    }
    for (int64_t l = 0; w->lends && l < w->shape->layers; l++)
        make_keys(w, r, l);
    return r->status;
}

/* ---- forward ---------------------------------------------------------------------------------------- */

static size_t bytes_of(const tn_tensor *t)
{
    return t->data ? (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype) : 0;
}

static tn_tensor copy_of(graph_run *r, const tn_tensor *t)
{
    if (!t->data)
        return *t;
    tn_tensor copy = steps_take(r, t->dtype, t->ndim, t->shape);
    if (r->status == TN_OK)
        memcpy(copy.data, t->data, bytes_of(t));
    return copy;
}

static void put_back(const tn_tensor *to, const tn_tensor *copy)
{
    if (copy->data)
        memcpy(to->data, copy->data, bytes_of(copy));
}

/* Does the layer stay, where the largest so far took so many bytes? Each has gradients of the same size. */
static bool stays(const train_walk *w, const graph_run *r, int64_t layer, size_t largest)
{
    size_t behind = (size_t)(w->shape->layers - layer - 1);
    size_t crosses = bytes_of(&w->now.h) + bytes_of(&w->now.sum) + bytes_of(&r->chosen);
    if (w->keep != TN_KEEP_AUTO || layer == 0)
        return w->keep != TN_KEEP_LAYERS;
    return 2 * (arena_mark(r->arena) + 2 * largest) + behind * crosses <= w->budget;
}

/* From here on layers run without the tape: what its calls have read stays as it is. */
static void cross(train_walk *w, graph_run *r, int64_t layer)
{
    w->on_tape = layer;
    w->own = w->now;
    w->own_inputs = r->layer_inputs;
    w->own_chosen = r->chosen;
    w->now.h = copy_of(r, &w->now.h);
    w->now.sum = copy_of(r, &w->now.sum);
    r->layer_inputs = copy_of(r, &r->layer_inputs);
    r->chosen = copy_of(r, &r->chosen);
}

static void run_layer(train_walk *w, graph_run *r, int64_t layer)
{
    if (!w->lends)
        make_keys(w, r, layer);
    make_states(w, r, layer);
    if (r->status == TN_OK)
        w->model->flow->layer(r, w->model->arch_state, layer, &w->now);
}

/* A layer that nothing remembers. */
static void pass_layer(train_walk *w, graph_run *r, int64_t layer)
{
    tape *t = r->tape;
    if (t)
        w->layers[layer] = (walk_layer){.h = copy_of(r, &w->now.h),
                                        .sum = w->now.trails ? copy_of(r, &w->now.sum) : (tn_tensor){0},
                                        .chosen = copy_of(r, &r->chosen),
                                        .trails = w->now.trails};
    size_t mark = arena_mark(r->arena);
    r->tape = NULL;
    run_layer(w, r, layer);
    r->tape = t;
    arena_release(r->arena, mark);
}

void walk_forward(train_walk *w, graph_run *r)
{
    int64_t layers = w->shape->layers;
    size_t largest = 0;
    w->on_tape = layers;
    w->model->flow->begin(r, w->model->arch_state, &w->now);
    for (int64_t i = 0; i < layers && r->status == TN_OK; i++) {
        size_t mark = arena_mark(r->arena);
        if (r->tape && w->on_tape == layers && !stays(w, r, i, largest))
            cross(w, r, i);
        if (!r->tape || w->on_tape < layers) {
            pass_layer(w, r, i);
            continue;
        }
        run_layer(w, r, i);
        size_t took = arena_mark(r->arena) - mark;
        largest = took > largest ? took : largest;
    }
    w->calls = r->tape ? r->tape->count : 0;
    w->mark = arena_mark(r->arena);
    if (r->status == TN_OK)
        w->model->flow->end(r, w->model->arch_state, &w->now);
}

/* ---- backward --------------------------------------------------------------------------------------- */

static void back_to_mark(train_walk *w, graph_run *r)
{
    if (r->status != TN_OK)
        return;
    r->status = tape_backward(r->tape, w->calls, w->mark, r->err);
    tape_forget(r->tape, w->mark);
}

static void run_again(train_walk *w, graph_run *r, int64_t layer)
{
    const walk_layer *l = &w->layers[layer];
    put_back(&w->now.h, &l->h);
    put_back(&w->now.sum, &l->sum);
    put_back(&r->chosen, &l->chosen);
    put_back(&r->layer_inputs, &w->own_inputs);
    w->now.trails = l->trails;
    run_layer(w, r, layer);
    back_to_mark(w, r);
}

/* The gradient of what crossed is that of where the tape left it. */
static void hand_over(tape *t, const tn_tensor *from, const tn_tensor *to)
{
    if (!from->data)
        return;
    tn_tensor g = tape_place(t, from);
    if (tape_is_touched(t, &g))
        memcpy(tape_gradient(t, to).data, g.data, bytes_of(from));
}

void walk_backward(train_walk *w, graph_run *r)
{
    int64_t layers = w->shape->layers;
    if (w->on_tape < layers)
        back_to_mark(w, r);
    for (int64_t i = layers - 1; i >= w->on_tape && r->status == TN_OK; i--)
        run_again(w, r, i);
    if (w->on_tape < layers && r->status == TN_OK) {
        hand_over(r->tape, &w->now.h, &w->own.h);
        hand_over(r->tape, &w->now.sum, &w->own.sum);
        hand_over(r->tape, &r->layer_inputs, &w->own_inputs);
    }
    if (r->status == TN_OK)
        r->status = tape_backward(r->tape, 0, 0, r->err);
}
