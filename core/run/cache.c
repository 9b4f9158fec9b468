/* The cache of a session: allocation, and which slot each position goes to. */
#include "run/cache.h"

#include <stdlib.h>
#include <string.h>

static size_t layer_bytes(const kv_cache *c, int64_t layer, int64_t dim)
{
    int64_t capacity = c->kind[c->layer_kind[layer]].capacity;
    return (size_t)(c->rows * capacity * c->shape[layer].kv_heads * dim) * tn_dtype_size(c->dtype);
}

/* Of an indexer's keys, of which there is one head. */
static size_t index_bytes(const kv_cache *c, int64_t layer)
{
    int64_t capacity = c->kind[c->layer_kind[layer]].capacity;
    return (size_t)(c->rows * capacity * c->shape[layer].index_dim) * tn_dtype_size(c->dtype);
}

static tn_tensor conv_of(const kv_cache *c, int64_t layer)
{
    const model_layer *l = &c->shape[layer];
    return tn_tensor_dense(c->conv[layer], c->dtype, 3,
                           (int64_t[]){c->rows, l->conv_width, l->conv_taps ? l->conv_taps - 1 : 0});
}

static tn_tensor state_of(const kv_cache *c, int64_t layer)
{
    const model_layer *l = &c->shape[layer];
    return tn_tensor_dense(c->state[layer], TN_F32, 4, (int64_t[]){c->rows, l->state_heads, l->state_k, l->state_v});
}

static size_t tensor_bytes(tn_tensor t)
{
    return (size_t)tn_tensor_count(&t) * tn_dtype_size(t.dtype);
}

/* Memory of a layer that does not grow, where it has any. */
static tn_status allocate(kv_cache *c, size_t bytes, void **out, tn_error *err)
{
    c->bytes += bytes;
    return bytes > 0 ? device_alloc(c->device, bytes, out, err) : TN_OK;
}

/* The kind with this window, made when it is new; -1 when there are too many. */
static int32_t find_kind(kv_cache *c, int64_t window)
{
    for (int32_t i = 0; i < c->kind_count; i++)
        if (c->kind[i].window == window)
            return i;
    if (c->kind_count == CACHE_KINDS)
        return -1;
    int64_t needed = window ? window - 1 + c->chunk : c->context;
    c->kind[c->kind_count] = (cache_kind){.window = window, .capacity = needed < c->context ? needed : c->context};
    return c->kind_count++;
}

static tn_status allocate_kind(kv_cache *c, cache_kind *kind, tn_error *err)
{
    size_t slots = (size_t)(c->rows * kind->capacity), tokens = (size_t)(c->rows * c->chunk);
    kind->pieces = c->near && kind->window > 0 ? (c->chunk + kind->window - 1) / kind->window : 1;
    kind->kv_index = malloc(slots * sizeof(int32_t));
    kind->packed = malloc((size_t)kind->pieces * slots * sizeof(int32_t));
    kind->slot = malloc(tokens * sizeof(int32_t));
    if (!kind->kv_index || !kind->packed || !kind->slot)
        return tn_fail(err, TN_E_MEMORY, "KV cache", "out of memory; use a shorter context");
    size_t bytes = (size_t)kind->pieces * slots * sizeof(int32_t);
    tn_status status = device_alloc(c->device, bytes, &kind->device_index, err);
    if (status == TN_OK)
        status = device_alloc(c->device, tokens * sizeof(int32_t), &kind->device_slot, err);
    kind->shown_index = kind->device_index;
    kind->shown_slot = kind->device_slot;
    return status;
}

size_t cache_index_bytes(const kv_cache *c)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < c->kind_count; i++) {
        const cache_kind *kind = &c->kind[i];
        bytes += inbox_piece((size_t)(kind->pieces * c->rows * kind->capacity) * sizeof(int32_t)) +
                 inbox_piece((size_t)(c->rows * c->chunk) * sizeof(int32_t));
    }
    return bytes;
}

static tn_status allocate_layers(kv_cache *c, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t i = 0; i < c->layers && status == TN_OK; i++) {
        size_t k = layer_bytes(c, i, c->shape[i].head_dim);
        size_t v = c->shape[i].v_in_k ? 0 : layer_bytes(c, i, c->shape[i].v_head_dim);
        size_t index = index_bytes(c, i);
        c->bytes += c->shape[i].elsewhere ? 0 : k + v + index;
        status = growing_init(&c->k[i], c->device, k, err);
        if (status == TN_OK)
            status = growing_init(&c->v[i], c->device, v, err);
        if (status == TN_OK)
            status = growing_init(&c->index[i], c->device, index, err);
        if (status == TN_OK)
            status = allocate(c, tensor_bytes(conv_of(c, i)), &c->conv[i], err);
        if (status == TN_OK)
            status = allocate(c, tensor_bytes(state_of(c, i)), &c->state[i], err);
    }
    return status;
}

tn_status cache_init(kv_cache *c, const device *device, tn_dtype dtype, const model_shape *shape, int64_t rows,
                     int64_t context, int64_t chunk, tn_error *err)
{
    *c = (kv_cache){.device = device,
                    .dtype = dtype,
                    .rows = rows,
                    .context = context,
                    .chunk = chunk,
                    .layers = shape->layers,
                    .shape = shape->layer,
                    .near = shape->near_pictures};
    c->length = calloc((size_t)rows, sizeof *c->length);
    c->layer_kind = calloc((size_t)c->layers, sizeof *c->layer_kind);
    c->k = calloc((size_t)c->layers, sizeof *c->k);
    c->v = calloc((size_t)c->layers, sizeof *c->v);
    c->index = calloc((size_t)c->layers, sizeof *c->index);
    c->conv = calloc((size_t)c->layers, sizeof *c->conv);
    c->state = calloc((size_t)c->layers, sizeof *c->state);
    c->view = calloc((size_t)c->layers, sizeof *c->view);
    if (!c->length || !c->layer_kind || !c->k || !c->v || !c->index || !c->conv || !c->state || !c->view)
        return tn_fail(err, TN_E_MEMORY, "KV cache", "out of memory");
    for (int64_t i = 0; i < c->layers; i++) {
        c->layer_kind[i] = find_kind(c, c->shape[i].window);
        if (c->layer_kind[i] < 0) {
            c->layer_kind[i] = 0;
            return tn_fail(err, TN_E_INPUT, "config.json", "more than %d different attention windows", CACHE_KINDS);
        }
    }
    tn_status status = TN_OK;
    for (int32_t i = 0; i < c->kind_count && status == TN_OK; i++)
        status = allocate_kind(c, &c->kind[i], err);
    if (status == TN_OK)
        status = allocate_layers(c, err);
    if (status == TN_OK)
        cache_reset(c);
    return status;
}

void cache_close(kv_cache *c)
{
    bool arrays = c->k && c->v && c->index && c->conv && c->state && c->layer_kind;
    for (int64_t i = 0; arrays && i < c->layers; i++) {
        device_free(c->device, c->conv[i], tensor_bytes(conv_of(c, i)));
        device_free(c->device, c->state[i], tensor_bytes(state_of(c, i)));
        growing_free(&c->k[i]);
        growing_free(&c->v[i]);
        growing_free(&c->index[i]);
    }
    for (int32_t i = 0; i < c->kind_count; i++) {
        cache_kind *kind = &c->kind[i];
        device_free(c->device, kind->device_index, (size_t)(kind->pieces * c->rows * kind->capacity) * sizeof(int32_t));
        device_free(c->device, kind->device_slot, (size_t)(c->rows * c->chunk) * sizeof(int32_t));
        free(kind->kv_index);
        free(kind->packed);
        free(kind->slot);
    }
    free(c->length);
    free(c->layer_kind);
    free(c->k);
    free(c->v);
    free(c->index);
    free(c->conv);
    free(c->state);
    free(c->view);
    *c = (kv_cache){0};
}

/* ---- growing ------------------------------------------------------------------------------------ */

/* Positions that are made usable at once: asking the system for each token would cost more than it saves. */
enum { HOLD_STEP = 256 };

/* Each row of a layer grows by itself, and each part that grew is a mapping of its own, of which a process may have
 * some 65,000. Where rows and layers come near that, all is taken at once. */
enum { MOST_MAPPINGS = 8192 };

static tn_status hold_rows(const kv_cache *c, growing *g, int64_t capacity, int64_t positions, tn_error *err)
{
    size_t row = g->bytes / (size_t)c->rows, used = row / (size_t)capacity * (size_t)positions;
    tn_status status = TN_OK;
    for (int64_t b = 0; b < c->rows && status == TN_OK; b++)
        status = growing_hold(g, (size_t)b * row, (size_t)b * row + used, err);
    return status;
}

/* How many positions are made usable where so many are needed. */
static int64_t usable(const kv_cache *c, const cache_kind *kind, int64_t positions)
{
    int64_t wanted = (positions + HOLD_STEP - 1) / HOLD_STEP * HOLD_STEP;
    return wanted > kind->capacity || c->rows * c->layers * 6 > MOST_MAPPINGS ? kind->capacity : wanted;
}

static tn_status hold_kind(kv_cache *c, int32_t which, int64_t positions, tn_error *err)
{
    cache_kind *kind = &c->kind[which];
    int64_t wanted = usable(c, kind, positions);
    tn_status status = TN_OK;
    for (int64_t i = 0; i < c->layers && wanted > kind->held && status == TN_OK; i++) {
        if (c->layer_kind[i] != which)
            continue;
        status = hold_rows(c, &c->k[i], kind->capacity, wanted, err);
        if (status == TN_OK)
            status = hold_rows(c, &c->v[i], kind->capacity, wanted, err);
        if (status == TN_OK)
            status = hold_rows(c, &c->index[i], kind->capacity, wanted, err);
    }
    if (status == TN_OK && wanted > kind->held)
        kind->held = wanted;
    return status;
}

tn_status cache_hold(kv_cache *c, int64_t positions, tn_error *err)
{
    tn_status status = TN_OK;
    tn_error why = TN_ERROR_INIT;
    for (int32_t i = 0; i < c->kind_count && status == TN_OK; i++)
        if (positions > c->kind[i].held && c->kind[i].held < c->kind[i].capacity)
            status = hold_kind(c, i, positions, &why);
    if (status != TN_OK)
        return tn_fail(err, status, "KV cache", "%lld positions: %s", (long long)positions, why.message);
    return TN_OK;
}

size_t cache_held(const kv_cache *c)
{
    size_t held = 0;
    for (int64_t i = 0; c->k && i < c->layers; i++)
        held +=
            c->k[i].held + c->v[i].held + c->index[i].held + tensor_bytes(conv_of(c, i)) + tensor_bytes(state_of(c, i));
    return held;
}

static size_t rows_would_hold(const kv_cache *c, const growing *g, int64_t capacity, int64_t positions)
{
    size_t row = g->bytes / (size_t)c->rows, used = row / (size_t)capacity * (size_t)positions, held = g->held;
    for (int64_t b = 0; b < c->rows; b++)
        held += growing_would_hold(g, (size_t)b * row, (size_t)b * row + used) - g->held;
    return held;
}

size_t cache_would_hold(const kv_cache *c, int64_t positions)
{
    size_t held = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const cache_kind *kind = &c->kind[c->layer_kind[i]];
        int64_t then = usable(c, kind, positions);
        held += rows_would_hold(c, &c->k[i], kind->capacity, then) + rows_would_hold(c, &c->v[i], kind->capacity, then);
        held += rows_would_hold(c, &c->index[i], kind->capacity, then);
        held += tensor_bytes(conv_of(c, i)) + tensor_bytes(state_of(c, i));
    }
    return held;
}

void cache_reset(kv_cache *c)
{
    memset(c->length, 0, (size_t)c->rows * sizeof *c->length);
    for (int32_t i = 0; i < c->kind_count; i++)
        memset(c->kind[i].kv_index, 0xff, (size_t)(c->rows * c->kind[i].capacity) * sizeof(int32_t));
}

int64_t cache_length(const kv_cache *c)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < c->rows; b++)
        longest = c->length[b] > longest ? c->length[b] : longest;
    return longest;
}

/* [B,used,heads,dim] of a cache whose rows hold capacity positions. */
static tn_tensor cache_tensor(const kv_cache *c, void *data, int64_t capacity, int64_t used, int64_t heads, int64_t dim)
{
    tn_tensor t = tn_tensor_dense(data, c->dtype, 4, (int64_t[]){c->rows, used, heads, dim});
    t.stride[0] = capacity * heads * dim;
    return t;
}

/* How many pieces the tokens of a call have indices of their own in: of one that is a picture, those that a window
 * reaches over, whose keys behind its first token stand where that does. */
static int64_t pieces_of(const kv_cache *c, const cache_kind *kind, int64_t tokens)
{
    return c->near && c->joined && kind->window > 0 ? (tokens + kind->window - 1) / kind->window : 1;
}

static void fill_views(kv_cache *c, int64_t tokens, const int64_t *used)
{
    for (int64_t i = 0; i < c->layers; i++) {
        const model_layer *shape = &c->shape[i];
        int32_t which = c->layer_kind[i];
        const cache_kind *kind = &c->kind[which];
        int64_t cap = kind->capacity, heads = shape->kv_heads;
        run_cache *view = &c->view[i];
        view->k = cache_tensor(c, c->k[i].data, cap, used[which], heads, shape->head_dim);
        view->v = cache_tensor(c, c->v[i].data, cap, used[which], heads, shape->v_head_dim);
        view->full_k = cache_tensor(c, c->k[i].data, cap, cap, heads, shape->head_dim);
        view->full_v = cache_tensor(c, c->v[i].data, cap, cap, heads, shape->v_head_dim);
        view->index = cache_tensor(c, c->index[i].data, cap, used[which], 1, shape->index_dim);
        view->full_index = cache_tensor(c, c->index[i].data, cap, cap, 1, shape->index_dim);
        if (shape->v_in_k) {
            view->v = view->k;
            view->v.shape[3] = shape->v_head_dim;
        }
        view->slot = tn_tensor_dense(kind->shown_slot, TN_I32, 2, (int64_t[]){c->rows, tokens});
        view->kv_index = tn_tensor_dense(kind->shown_index, TN_I32, 2, (int64_t[]){c->rows, used[which]});
        view->piece = pieces_of(c, kind, tokens) > 1 ? kind->window : 0;
        view->conv = conv_of(c, i);
        view->state = state_of(c, i);
    }
}

void cache_measure(kv_cache *c, int64_t tokens)
{
    int64_t used[CACHE_KINDS];
    for (int32_t i = 0; i < c->kind_count; i++)
        used[i] = c->kind[i].capacity;
    fill_views(c, tokens, used);
}

/* How many slots of a kind a call shows. A device with memory of its own keeps what it prepares for a shape, so there
 * the number grows in steps; slots without a token have position -1. */
static int64_t shown_slots(const kv_cache *c, const cache_kind *kind, int64_t longest)
{
    enum { STEP = 128 };
    int64_t slots = c->device->ops->host_memory ? longest : (longest + STEP - 1) / STEP * STEP;
    return slots < kind->capacity ? slots : kind->capacity;
}

void cache_expect(kv_cache *c, int64_t tokens)
{
    int64_t used[CACHE_KINDS];
    for (int32_t i = 0; i < c->kind_count; i++)
        used[i] = shown_slots(c, &c->kind[i], cache_length(c) + tokens);
    fill_views(c, tokens, used);
}

static tn_status upload_kind(kv_cache *c, cache_kind *kind, int64_t tokens, int64_t used, tn_error *err)
{
    int64_t pieces = pieces_of(c, kind, tokens);
    bool joins = c->joined && (kind->window > 0 || !c->near);
    for (int64_t n = 0; n < pieces * c->rows; n++) {
        int32_t *row = kind->packed + n * used;
        int64_t b = n % c->rows, most = joins ? c->joined[b] + n / c->rows * kind->window : 0;
        memcpy(row, kind->kv_index + b * kind->capacity, (size_t)used * sizeof(int32_t));
        for (int64_t i = 0; joins && i < used; i++)
            row[i] = row[i] > most ? (int32_t)most : row[i];
    }
    size_t bytes = (size_t)(pieces * c->rows * used) * sizeof(int32_t);
    size_t slots = (size_t)(c->rows * tokens) * sizeof(int32_t);
    if (c->inbox) {
        kind->shown_index = inbox_put(c->inbox, kind->packed, bytes);
        kind->shown_slot = inbox_put(c->inbox, kind->slot, slots);
        return TN_OK;
    }
    tn_status status = device_upload(c->device, kind->device_index, kind->packed, bytes, err);
    return status == TN_OK ? device_upload(c->device, kind->device_slot, kind->slot, slots, err) : status;
}

static tn_status clear(const kv_cache *c, tn_tensor t, tn_error *err)
{
    size_t bytes = tensor_bytes(t);
    void *zeros = bytes > 0 ? calloc(bytes, 1) : NULL;
    if (bytes > 0 && !zeros)
        return tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
    tn_status status = bytes > 0 ? device_upload(c->device, t.data, zeros, bytes, err) : TN_OK;
    free(zeros);
    return status;
}

/* Other memory, or the same, which is zero again. */
static tn_status renew(const kv_cache *c, growing *g, tn_error *err)
{
    size_t bytes = g->bytes;
    growing_free(g);
    return growing_init(g, c->device, bytes, err);
}

/* What a device with memory of its own is shown of slots that are not used is zero in a new session, and may have been
 * left by the text before in one that was reset. */
static tn_status renew_slots(kv_cache *c, int64_t layer, tn_error *err)
{
    growing *const slots[] = {&c->k[layer], &c->v[layer], &c->index[layer]};
    tn_status status = TN_OK;
    for (int i = 0; i < 3 && !c->device->ops->host_memory && status == TN_OK; i++)
        status = renew(c, slots[i], err);
    return status;
}

/* States of a session that was reset, and its slots. A device's fresh memory is zero. */
static tn_status clear_all(kv_cache *c, tn_error *err)
{
    bool again = c->used && cache_length(c) == 0;
    tn_status status = again ? device_sync(c->device, err) : TN_OK;
    for (int64_t i = 0; again && i < c->layers && status == TN_OK; i++) {
        status = renew_slots(c, i, err);
        if (status == TN_OK)
            status = clear(c, conv_of(c, i), err);
        if (status == TN_OK)
            status = clear(c, state_of(c, i), err);
    }
    c->used = true;
    return status;
}

tn_status cache_advance(kv_cache *c, int64_t tokens, const int64_t *mask, int64_t mask_stride, int32_t *index,
                        tn_error *err)
{
    tn_status status = cache_hold(c, cache_length(c) + tokens, err);
    if (status != TN_OK)
        return status;
    status = clear_all(c, err);
    if (status != TN_OK)
        return status;
    for (int64_t b = 0; b < c->rows; b++)
        for (int64_t t = 0; t < tokens; t++) {
            bool real = !mask || mask[b * mask_stride + t] != 0;
            int64_t position = real ? c->length[b]++ : -1;
            index[b * tokens + t] = (int32_t)position;
            for (int32_t i = 0; i < c->kind_count; i++) {
                cache_kind *kind = &c->kind[i];
                int32_t slot = real ? (int32_t)(position % kind->capacity) : -1;
                kind->slot[b * tokens + t] = slot;
                if (real)
                    kind->kv_index[b * kind->capacity + slot] = (int32_t)position;
            }
        }
    int64_t used[CACHE_KINDS], longest = cache_length(c);
    for (int32_t i = 0; i < c->kind_count && status == TN_OK; i++) {
        used[i] = shown_slots(c, &c->kind[i], longest);
        status = upload_kind(c, &c->kind[i], tokens, used[i], err);
    }
    if (status == TN_OK)
        fill_views(c, tokens, used);
    return status;
}
