/* One call of cpu_attention: what its files share. */
#ifndef CPU_ATTENTION_RUN_H
#define CPU_ATTENTION_RUN_H

#include "attention.h"

/* The work is cut into items: one batch row, one key/value head, some of its rows, a piece of the keys. */
typedef struct attention_job {
    const attention_layer *layer;
    const tn_tensor *q, *k, *v, *q_index, *kv_index, *o;
    int64_t batch, tokens, keys, rows; /* rows of a key/value head                                   */
    int64_t item_rows, parts;          /* rows of an item, items of the rows                         */
    int64_t item_heads;                /* key/value heads of an item: more than one where rows are few */
    int64_t piece_keys, pieces;
    bool few;
    bool as_eager;  /* one block of keys, with eager's roundings                                   */
    float *partial; /* pieces > 1: [batch][kv_heads][rows][pieces][partial_row]                       */
    char *threads;
    size_t thread_bytes;
} attention_job;

typedef struct attention_item {
    int64_t b, kv_head, heads, first, rows, piece, key, key_end;
} attention_item;

/* What a piece leaves of a row: its largest score, its sum, whether a key was seen, and o. */
enum { PARTIAL_MAX, PARTIAL_SUM, PARTIAL_SEEN, PARTIAL_O = 16 };

static inline int64_t attention_partial_row(const attention_layer *layer)
{
    return PARTIAL_O + attention_up(layer->dv, ATTENTION_LANES);
}

static inline float *attention_partial(const attention_job *job, const attention_item *item, int64_t kv_head,
                                       int64_t row)
{
    int64_t head = item->b * job->layer->kv_heads + kv_head;
    return job->partial + ((head * job->rows + row) * job->pieces + item->piece) * attention_partial_row(job->layer);
}

/* Row r of a key/value head: which token, which query head. */
static inline int64_t attention_token(const attention_layer *layer, int64_t row)
{
    return row / layer->group;
}

static inline int64_t attention_head(const attention_layer *layer, int64_t kv_head, int64_t row)
{
    return kv_head * layer->group + row % layer->group;
}

/* What o is multiplied by at the end. */
float attention_factor(const attention_layer *layer, int64_t head, float max, float sum, bool seen);

/* Positions of a tile's rows: the first and the last that some see, and between which all see everything. */
typedef struct attention_bounds {
    int32_t lowest, low, high, highest;
} attention_bounds;

/* A block of keys and their positions. */
typedef struct attention_keys {
    int64_t first, count;
    int32_t least, most;
    int32_t index[ATTENTION_KEYS];
} attention_keys;

/* The keys from .. from + count of a block; full: all rows see all of them. */
typedef struct attention_part {
    int64_t from, count;
    bool full;
} attention_part;

/* attention_span.c: nobody's bounds, with those of a row at position q added; a block's positions; what of the block a
 * tile sees, in steps (false: nothing). */
attention_bounds attention_no_bounds(void);
void attention_bound(attention_bounds *bounds, int32_t low, int32_t high);
void attention_look(const tn_tensor *kv_index, int64_t b, int64_t first, int64_t count, attention_keys *keys);
bool attention_see(const attention_bounds *bounds, const attention_keys *keys, attention_part *part);

/* attention_many.c, attention_few.c: memory of a thread, and what is done with it. */
size_t attention_many_bytes(const attention_layer *layer);
void attention_many(const attention_job *job, const attention_item *item, char *memory) __attribute__((nonnull(3)));
size_t attention_few_bytes(const attention_layer *layer);
void attention_few_rows(const attention_job *job, const attention_item *item, char *memory) __attribute__((nonnull(3)));

#endif
