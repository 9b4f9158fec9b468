/* cpu_attention: softmax(scale q k^T) v in one pass over the keys, and what its instruction sets bring.
 *
 * The rows of a key/value head are its queries times the query heads of its group. Sixteen rows are a group of lanes:
 * queries, scores, probabilities and results of a group lie as [element or key or column][16 rows], so that the softmax
 * of a row runs along a lane, and keys and values are what is broadcast, from where they lie in the cache. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include <stdbool.h>
#include <tenon/kernel.h>

enum {
    ATTENTION_LANES = 16,
    ATTENTION_GROUPS = 4, /* groups of lanes that go through a block of keys together: a tile        */
    ATTENTION_ROWS = ATTENTION_LANES * ATTENTION_GROUPS,
    ATTENTION_KEYS = 256,     /* most keys of a block                                                */
    ATTENTION_TILES = 8,      /* most tiles of an item                                                   */
    ATTENTION_FEW = 8,        /* up to so many rows of a key/value head, lanes are keys or columns   */
    ATTENTION_FEW_KEYS = 64,  /* keys that go through such rows before those of the next head        */
    ATTENTION_STEP = 32,      /* what parts of blocks begin at multiples of, and are filled up to    */
    ATTENTION_SUMS = 4,       /* probabilities of a block are summed by key, or pair, modulo this    */
    ATTENTION_SPAN = 1024,    /* positions that are summed by themselves, a multiple of blocks       */
    ATTENTION_SMALL = 64,     /* first positions, which are rounded as eager rounds them             */
    ATTENTION_LONGEST = 4096, /* the widest head                                                     */
};

/* A largest score is raised only when one is so much larger (a power of two): the sums then need no new scale. */
#define ATTENTION_RAISE 8.0f

/* Element (r, i) of rows that are broadcast is data[r * row + i * step], f32; bf16 where products take pairs, then
 * step is 1. */
typedef struct attention_operand {
    const void *data;
    int64_t row, step;
} attention_operand;

/* What is known of sixteen rows. Scores are kept as powers of two; max is that of the keys so far, or a little less. */
typedef struct attention_lanes {
    _Alignas(64) float max[ATTENTION_LANES];
    float sum[ATTENTION_LANES], factor[ATTENTION_LANES]; /* of the last change of max                */
    int32_t low[ATTENTION_LANES], high[ATTENTION_LANES]; /* positions that are seen                  */
    int32_t seen[ATTENTION_LANES];                       /* has a key been?                          */
} attention_lanes;

/* Few rows of a key/value head with keys, or values, of a block as they lie. */
typedef struct attention_few {
    tn_dtype dtype;
    const char *data;           /* row s of the block at data + s step                                         */
    int64_t step, width, count; /* elements of a row; rows that are there                            */
    int64_t from, end;          /* those that are used                                               */
    const char *next;           /* what comes next is asked for: row s at next + s next_step         */
    int64_t next_step;
    int64_t rows, row; /* of queries or results, and elements from one to the next          */
} attention_few;

/* What eager does to a row's products, with its roundings. */
typedef struct attention_rule {
    tn_dtype dtype;
    float scale, softcap; /* softcap 0: none                                                         */
    bool has_sink;
    float sink[ATTENTION_LANES];
} attention_rule;

/* An instruction set's. In groups of lanes: groups of them, each so many floats behind the one before. */
typedef struct attention_kernels {
    bool pairs;          /* products take pairs of bf16: queries, keys, probabilities and values are bf16     */
    int64_t depth, rows; /* what heads and keys are filled up to multiples of                        */
    int64_t few_rows;    /* up to so many rows of a key/value head go through few_...                 */
    void (*begin)(void), (*end)(void); /* around calls of scores and mix; NULL: nothing to do        */
    /* Sixteen rows of q side by side: panel [depth][16] f32, or [depth / 2][16][2] bf16. */
    void (*queries)(const char *const *row, tn_dtype dtype, int64_t d, void *panel);
    /* rows of n elements at a distance of step bytes as f32, to [rows][n]. */
    void (*widen)(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n, float *to);
    /* Pairs only: values turned into [dv][ATTENTION_KEYS], with zeros up to multiples of 32 keys. */
    void (*turn)(const char *from, int64_t step, int64_t keys, int64_t dv, uint16_t *to);
    /* Is none of them infinite or NaN? */
    bool (*finite)(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n);
    /* scores[key][16] = keys . queries; o[column][16] += values . probabilities. */
    void (*scores)(const attention_operand *keys, int64_t count, int64_t depth, const void *panel, int32_t groups,
                   float *scores);
    void (*mix)(const attention_operand *values, int64_t dv, int64_t count, const void *panel, int64_t panel_group,
                int32_t groups, float *o, int64_t o_group);
    /* score = out tanh(in score). */
    void (*cap)(float *scores, int64_t n, float in, float out);
    /* -infinity for what a lane does not see. */
    void (*mask)(attention_lanes *lanes, const int32_t *index, int64_t count, float *scores);
    /* count (a multiple of 32) scores become probabilities times 2^max. False: max is what it was. */
    bool (*soften)(attention_lanes *lanes, float scale, int64_t count, const float *scores, void *panel);
    /* All of a row's products become probabilities, rounded where eager rounds; max and sum are left 0 and 1. */
    void (*as_eager)(attention_lanes *lanes, const attention_rule *rule, const int32_t *index, int64_t count, float *x,
                     float *p);
    void (*rescale)(const float *factor, int64_t dv, float *o);
    /* all = all before + o factor, n times 16 elements. */
    void (*join)(float *all, const float *before, const float *o, const float *factor, int64_t n);
    /* rows results of a group of lanes, times factor; no zero is negative. */
    void (*store)(const float *o, const float *factor, int64_t dv, tn_dtype dtype, int32_t rows, char *const *to);
    void (*store_row)(const float *o, float factor, int64_t dv, tn_dtype dtype, char *to);
    /* Few rows, in the order of scores, soften and mix: scores [rows][ATTENTION_KEYS] of the keys from .. end, and up
     * to 15 more; in their place probabilities of from .. end, multiples of 32; o [rows][row] += these by values. */
    void (*few_scores)(const attention_few *keys, const void *q, float *scores);
    float (*few_soften)(float *max, float *sum, float scale, int64_t from, int64_t end, float *scores);
    void (*few_mix)(const attention_few *values, const float *p, float *o);
} attention_kernels;

/* Those of a file that has all under these names and takes one row, and one of its elements, at a time. */
#define ATTENTION_KERNELS                                                                                              \
    .depth = 1, .rows = 1, .queries = queries, .widen = widen, .finite = finite_rows, .scores = scores_of, .mix = mix, \
    .cap = cap, .mask = mask, .soften = soften, .as_eager = as_eager, .rescale = rescale, .join = join,                \
    .store = store, .store_row = store_row

void attention_init_c(attention_kernels *kernels);
void attention_init_avx2(attention_kernels *kernels);
void attention_init_avx512(attention_kernels *kernels);
void attention_init_avx512bf16(attention_kernels *kernels);
void attention_few_init_avx512bf16(attention_kernels *kernels);
void attention_init_amx(attention_kernels *kernels);
void attention_init_neon(attention_kernels *kernels);

/* A site as plan sees it. */
typedef struct attention_layer {
    tn_dtype dtype;
    int64_t d, dv, heads, kv_heads, group, window, chunk, max_tokens;
    int32_t threads;
    float scale, natural, softcap; /* scale of powers of two, of e                                     */
    const tn_tensor *sinks;
    attention_kernels kernels;
    attention_kernels precise; /* in f32 throughout                                                  */
} attention_layer;

/* Keys of a block, which stays in the second cache however wide the heads are. */
static inline int64_t attention_block(const attention_layer *layer)
{
    int64_t width = layer->d + layer->dv;
    return width <= 256 ? ATTENTION_KEYS : width <= 640 ? ATTENTION_KEYS / 2 : ATTENTION_KEYS / 4;
}

attention_layer attention_layer_of(const tn_site *site, const tn_plan *plan);
size_t attention_scratch(const attention_layer *layer);
void attention_forward(const attention_layer *layer, const tn_call *call);

/* A head's sink in powers of two; a number stays one. */
float attention_sink(const attention_layer *layer, int64_t head);

/* Bytes from key to key along dimension 1, and where (b, i, head) of [B, X, heads, D] begins. */
static inline int64_t attention_step(const tn_tensor *t)
{
    return t->stride[1] * (int64_t)tn_dtype_size(t->dtype);
}

static inline char *attention_at(const tn_tensor *t, int64_t b, int64_t i, int64_t head)
{
    return (char *)t->data +
           (b * t->stride[0] + i * t->stride[1] + head * t->stride[2]) * (int64_t)tn_dtype_size(t->dtype);
}

static inline int32_t attention_position(const tn_tensor *t, int64_t b, int64_t i)
{
    return ((const int32_t *)t->data)[b * t->stride[0] + i * t->stride[1]];
}

/* The first position that a query at position q sees. */
static inline int32_t attention_lowest(const attention_layer *layer, int32_t q)
{
    int64_t lowest = layer->window > 0 && layer->window <= q ? q - layer->window + 1 : 0;
    int64_t chunk = layer->chunk > 0 && q > 0 ? q / layer->chunk * layer->chunk : 0;
    return (int32_t)(lowest > chunk ? lowest : chunk);
}

/* What a product is multiplied by to be a power of two; with a softcap out tanh(in product) is that. */
static inline void attention_cap(const attention_layer *layer, float *scale, float *in, float *out)
{
    *in = *out = 0.0f;
    *scale = layer->scale;
    if (layer->softcap == 0.0f)
        return;
    *in = layer->scale / (layer->softcap * 1.44269504f);
    *out = layer->softcap * 1.44269504f;
    *scale = 1.0f;
}

static inline int64_t attention_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

#endif
