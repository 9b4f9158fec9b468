/* One call of cpu_attention: what its files share. */
#ifndef CPU_ATTENTION_RUN_H
#define CPU_ATTENTION_RUN_H

#include "attention.h"

/* The queries of a call whose rounding is one, of those of `tokens` tokens from first_token on. The work is cut into
 * items: one batch row, one key/value head or some of them, some of its rows, all positions or a span of them. */
typedef struct attention_job {
    const attention_layer *layer;
    const tn_tensor *q, *k, *v, *q_index, *kv_index, *o;
    int64_t batch, first_token, tokens, rows; /* rows of a key/value head                            */
    int64_t item_rows, parts;                 /* rows of an item, items of the rows                  */
    int64_t item_heads, head_items;           /* heads of an item: more than one where rows are few  */
    int64_t first_span, spans, positions;     /* that queries see                                    */
    int64_t pieces;                           /* 1, or spans, which are joined in the end            */
    bool few;
    int64_t small;  /* queries at positions before this are rounded as eager rounds them             */
    bool as_eager;  /* queries at the first ATTENTION_SMALL positions, with eager's roundings        */
    float *partial; /* pieces > 1: [batch][kv_heads][rows][pieces][partial_row]                       */
    char *threads;
    size_t thread_bytes;
} attention_job;

/* from .. last: positions of keys. */
typedef struct attention_item {
    int64_t b, kv_head, heads, first, rows, piece, from, last;
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

/* Are a query's roundings those of the job? */
static inline bool attention_takes(const attention_job *job, int32_t q)
{
    return job->as_eager == (q >= 0 && q < job->small);
}

/* Where the result of a row goes; NULL: that is another job's. */
static inline char *attention_result(const attention_job *job, int64_t b, int64_t kv_head, int64_t row)
{
    int64_t token = job->first_token + attention_token(job->layer, row);
    if (!attention_takes(job, attention_position(job->q_index, b, token)))
        return NULL;
    return attention_at(job->o, b, token, attention_head(job->layer, kv_head, row));
}

/* What a row's max and sum become with those of the next span; o before and o are multiplied by *before and *factor. */
void attention_join(float *max, float *sum, float next_max, float next_sum, float *before, float *factor);

/* What o is multiplied by at the end. */
float attention_factor(const attention_layer *layer, int64_t head, float max, float sum, bool seen);

/* Positions of a tile's rows: the first and the last that some see, and between which all see everything. */
typedef struct attention_bounds {
    int32_t lowest, low, high, highest;
} attention_bounds;

/* A block of keys and their positions, which are negative where there is none. */
typedef struct attention_keys {
    int64_t position;     /* of the first place                                                      */
    int64_t first, count; /* slot of the first; -1: they do not lie side by side                     */
    int32_t least, most;
    int32_t index[ATTENTION_KEYS];
    int32_t slot[ATTENTION_KEYS]; /* of each key; negative: there is none                             */
} attention_keys;

/* The keys from .. from + count of a block; full: all rows see all of them. */
typedef struct attention_part {
    int64_t from, count;
    bool full;
} attention_part;

/* attention_span.c: nobody's bounds, with those of a row at position q added; a block of slots' positions; the ends of
 * a block's positions; what of the block a tile sees, in steps (false: nothing). */
attention_bounds attention_no_bounds(void);
void attention_bound(attention_bounds *bounds, int32_t low, int32_t high);
void attention_look(const tn_tensor *kv_index, int64_t b, int64_t first, int64_t count, attention_keys *keys);
void attention_ends(attention_keys *keys);
bool attention_see(const attention_bounds *bounds, const attention_keys *keys, attention_part *part);

/* The slots of a batch row in groups, and the first and the last position of each. */
enum { ATTENTION_MAP = 1024 };
typedef struct attention_map {
    const int32_t *index;
    int64_t b, step, slots, group, groups; /* slots of a group; how many there are                   */
    bool by_slot;
    int64_t least[ATTENTION_MAP], most[ATTENTION_MAP];
} attention_map;

/* How far a walk over the positions is: the next position, and of its block the slots before `slot` are done. */
typedef struct attention_cursor {
    int64_t position, slot;
} attention_cursor;

/* attention_keys.c: do all keys have one position, as in towers, so that slots are their order? The next block of keys
 * at positions up to last (false: there are no more). */
bool attention_by_slot(const tn_tensor *kv_index);
void attention_map_keys(attention_map *map, const tn_tensor *kv_index, int64_t b);
bool attention_next_keys(const attention_map *map, attention_cursor *at, int64_t last, int64_t size,
                         attention_keys *keys);

/* Place 0 of a block's keys or values, step bytes from row to row; those at from .. end are copied to memory where they
 * do not lie side by side. */
const char *attention_bring(const tn_tensor *t, int64_t b, int64_t head, const attention_keys *keys, int64_t from,
                            int64_t end, char *memory, int64_t *step);

/* attention_many.c, attention_few.c: memory of a thread, and what is done with it. */
size_t attention_many_bytes(const attention_layer *layer);
void attention_many(const attention_job *job, const attention_item *item, const attention_map *map, char *memory)
    __attribute__((nonnull(4)));
size_t attention_few_bytes(const attention_layer *layer);
void attention_few_rows(const attention_job *job, const attention_item *item, const attention_map *map, char *memory)
    __attribute__((nonnull(4)));

#endif
