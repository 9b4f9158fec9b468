/* Inside core: what a session keeps of the tokens so far. Of attention, keys and values: layers with the same window
 * share one cache_kind: which slot holds which position. A layer with a window keeps only what its window and one chunk
 * need, as a ring. Of recurrences, their states, which are zero before the first token. */
#ifndef TENON_CORE_CACHE_H
#define TENON_CORE_CACHE_H

#include "device/growing.h"
#include "device/inbox.h"
#include "run/steps.h"

enum { CACHE_KINDS = 8 };

typedef struct cache_kind {
    int64_t window, capacity;
    int64_t held;      /* positions of each row that have memory                       */
    int32_t *kv_index; /* host: [B,C] position in each slot, -1: none                  */
    int32_t *slot;     /* host: [B,chunk] of the call                                  */
    int32_t *packed;   /* host: [pieces,B,S] as uploaded                               */
    int64_t pieces;    /* of a chunk, at most, which a picture longer than the window falls into           */
    void *device_index, *device_slot;
    void *shown_index, *shown_slot; /* of the call: these, or in the inbox                                         */
} cache_kind;

typedef struct kv_cache {
    const device *device;
    tn_dtype dtype;
    int64_t rows, context, chunk, layers;
    int64_t *length; /* [B] real tokens so far                                                    */
    cache_kind kind[CACHE_KINDS];
    int32_t kind_count;
    int32_t *layer_kind;
    const model_layer *shape;
    growing *k, *v, *index; /* per layer: [B,C,K,D], [B,C,K,Dv], an indexer's [B,C,1,D]; they grow with the tokens */
    void **conv, **state;   /* per layer: [B,C,F-1], [B,K,D,Dv] f32; NULL: it has none              */
    bool used;              /* states are no longer zero                                            */
    /* [B], or NULL: keys of a row from this position on count as standing there, for the chunks that come: those of a
     * picture, all of whose tokens are in the chunk and see each other. */
    const int64_t *joined;
    bool near;    /* ... in layers with a window alone: none sees further back than that (model_shape.near_pictures) */
    inbox *inbox; /* where positions and slots of a call go; NULL: uploaded by themselves        */
    run_cache *view; /* per layer, for the current call                                           */
    size_t bytes;    /* with every position in use                                           */
} kv_cache;

tn_status cache_init(kv_cache *c, const device *device, tn_dtype dtype, const model_shape *shape, int64_t rows,
                     int64_t context, int64_t chunk, tn_error *err);
void cache_close(kv_cache *c);
void cache_reset(kv_cache *c);

/* What a call puts into an inbox, at most. */
size_t cache_index_bytes(const kv_cache *c);

/* Do layers keep states, which do not go back? */
bool cache_has_states(const kv_cache *c);

/* Keeps the first length positions of the only row, at most as many as there are. NULL, or why it cannot: nothing has
 * changed then. */
const char *cache_rewind(kv_cache *c, int64_t length);

/* Could it go back so far, but for states? */
bool cache_holds_beginning(const kv_cache *c, int64_t length);

/* to, which is empty and was made like from, receives the first length positions of from's only row; not its states.
 * TN_DECLINED: they are not there any more, or are not in the host's memory. */
tn_status cache_copy(kv_cache *to, const kv_cache *from, int64_t length, tn_error *err);

/* The states of all layers in one block of host memory: its size once the cache was used, writing it, and going on from
 * it behind so many positions. */
size_t cache_state_bytes(const kv_cache *c);
tn_status cache_state_save(const kv_cache *c, void *to, tn_error *err);
tn_status cache_state_load(kv_cache *c, const void *from, int64_t length, tn_error *err);

/* Takes memory for so many positions of each row now. TN_E_MEMORY: the cache is as it was. */
tn_status cache_hold(kv_cache *c, int64_t positions, tn_error *err);

/* What it holds now, and would with so many positions of each row. */
size_t cache_held(const kv_cache *c);
size_t cache_would_hold(const kv_cache *c, int64_t positions);

/* The longest row. */
int64_t cache_length(const kv_cache *c);

/* Enters a chunk of [B,T] tokens: index [B,T] receives each token's position in its row (-1 for padding, where mask is
 * 0; rows of mask are mask_stride apart). Fills view. */
tn_status cache_advance(kv_cache *c, int64_t tokens, const int64_t *mask, int64_t mask_stride, int32_t *index,
                        tn_error *err);

/* View shapes for a call of tokens with every slot in use, without touching any data: for measuring. */
void cache_measure(kv_cache *c, int64_t tokens);
/* The same with the slots that such a call would show now. */
void cache_expect(kv_cache *c, int64_t tokens);

#endif
