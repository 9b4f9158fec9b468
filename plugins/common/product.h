/* Products of activations with weight matrices that stay where the checkpoint is mapped: rows [out, in], any
 * alignment, read in place. Two ways, by the number of tokens:
 *
 * tiles (many tokens): the lanes of a vector are tokens. The activations are packed once into a panel, which lies
 * [k / group][tokens][group] for each tile of tokens (group: 1 element of f32, a pair of bf16); a weight, or a pair of
 * bf16 weights, is broadcast straight from its row. No packed weights are kept (tiles of AMX go through a copy of a few
 * rows), and because the lanes are tokens, the results of gate and up rows are the panel of the next product without
 * being moved.
 *
 * dots (few tokens): the lanes are weight rows, of which sixteen are turned in registers, a line of each at a time,
 * while rows further on are fetched.
 *
 * turned (one tile of tokens, where rows would have to be widened for it): the lanes are weight rows, which are turned
 * into the first cache some at a time, and the tokens those of a panel.
 *
 * Any way each sum is formed along k from its first element to its last, in the steps of the instruction set: the
 * bits of a result depend on neither the way, nor threads, nor which other tokens and rows are computed. Nothing here
 * allocates or fails: shapes were checked by the caller's plan. */
#ifndef PRODUCT_H
#define PRODUCT_H

#include <tenon/kernel.h>

#define PRODUCT_MAX_ROWS 32    /* of a tile                                                        */
#define PRODUCT_MAX_TOKENS 40  /* of a tile                                                        */
#define PRODUCT_FEW_TOKENS 8   /* of a call of dots                                                */
#define PRODUCT_FEW_COLUMNS 4  /* tokens beyond which laying columns into panels is faster       */
#define PRODUCT_FEW_ROWS 16    /* of a block of dots; that few tokens finish at once                */
#define PRODUCT_TURNED_ROWS 32 /* of a call of turned                                             */
#define PRODUCT_COLUMNS 64     /* rows of a call of columns                                          */

/* What becomes of the sums of a tile or a row of dots. bias: one f32 per row, or NULL. */
typedef struct product_finish {
    tn_dtype dtype; /* of y; of a row's h: the panels of tile_glu are of native type                */
    tn_act act;     /* glu only: TN_ACT_SILU, TN_ACT_GELU_TANH, TN_ACT_GELU; others are linear      */
    const float *bias;
} product_finish;

/* One token's results of several products: y = sum of weight[j] * part[j], in the order of j, + extra_weight * extra,
 * in f32 and rounded once. */
typedef struct product_combine {
    tn_dtype part_dtype; /* of part and extra                                                      */
    tn_dtype dtype;      /* of y                                                                   */
    int32_t count;
    const void *const *part;
    const float *weight;
    const void *extra; /* or NULL                                                                  */
    float extra_weight;
    bool stream; /* y is not read soon: it may go past the caches. A fence must follow                */
} product_combine;

/* Rows that will be wanted soon: a line of each is fetched for every 64 bytes of a tile's rows. */
typedef struct product_fetch {
    const char *from;
    int64_t step; /* bytes from row to row                                                         */
    int32_t rows;
    int32_t shift; /* 1: their elements have half the bytes of the tile's                           */
} product_fetch;

/* Memory of results that wait, of which the first PRODUCT_LATER_HEAD bytes are zeros at first: two sets of 32 x 32 sums
 * and what becomes of them. */
#define PRODUCT_LATER_HEAD 64
typedef struct product_later {
    _Alignas(64) char data[2 * 32 * 32 * 4 + 512];
} product_later;

/* What a tile's sums are made of: `rows` rows of native type by `width` tokens of a panel, over k elements. */
typedef struct product_tile {
    const void *const *w;
    int64_t row_step; /* bytes from row to row in either half of them; 0: they are anywhere          */
    int64_t k;
    const void *panel; /* where k begins                                                           */
    int32_t width;
    const float *before;    /* sums of the elements before these, by tile_part; NULL: none            */
    product_fetch fetch[2]; /* of the first and of the second matrix, if there are two              */
    product_later *later;   /* this thread's                                                        */
    char
        *copy; /* where the rows are, or get by this call, in the order in which tiles take them; NULL: there is none */
    bool copied; /* they are there, and w is not used                                                */
} product_tile;

/* For the 64 bytes at `byte` of a tile's rows. */
static inline void product_fetch_lines(const product_tile *tile, int64_t byte)
{
    for (int i = 0; i < 2; i++)
        for (int32_t r = 0; r < tile->fetch[i].rows; r++)
            __builtin_prefetch(tile->fetch[i].from + r * tile->fetch[i].step + (byte >> tile->fetch[i].shift), 0, 2);
}

/* Rows of dtype at equal distances. */
typedef struct product_block {
    const char *w;
    int64_t step; /* bytes from row to row                                                         */
    int64_t next; /* bytes from each row to the one that will be wanted after it; 0: none           */
    int32_t rows; /* 1 to PRODUCT_FEW_ROWS; of turned to PRODUCT_TURNED_ROWS                         */
    bool first;   /* nobody has fetched these rows                                                   */
} product_block;

typedef struct product_kernels product_kernels;

/* A row of the table in product.c, which says what runs where. */
typedef struct product_variant {
    const char *name;
    uint64_t dtypes;     /* TN_TAKES of activations and weights in memory                          */
    uint64_t processor;  /* TN_CPU flags, all of them                                              */
    uint64_t unless;     /* and none of these                                                      */
    tn_dtype native;     /* of panels and of rows given to tiles: TN_F32 or, with dot products, TN_BF16 */
    int32_t few_tokens;  /* up to so many are faster by dots than by tiles; <= PRODUCT_FEW_TOKENS  */
    int32_t rows;        /* weight rows of a tile; in tile_glu the first half gates, the others ups */
    int32_t lanes;       /* tiles are a multiple of so many tokens wide, and                       */
    int32_t min_tokens;  /* at least so many,                                                      */
    int32_t tile_tokens; /* as a rule so many,                                                     */
    int32_t max_tokens;  /* the last one at most so many                                           */
    int32_t stretch;     /* elements along k that a tile takes at once, about; a multiple of 32    */
    int32_t block;       /* tokens whose panel of a stretch stays in the second cache              */
    int32_t copies;      /* tokens from which tiles take their rows from a copy in their order; 0: never */
    int32_t copied;      /* the stretch of these: the tokens of a tile stay in the first cache       */
    void (*init)(product_kernels *kernels); /* overwrites the functions that this variant has         */
} product_variant;

/* Which way of which variant a call of so many tokens takes. */
typedef struct product_choice {
    const product_variant *variant;
    const char *way; /* "dots" or "tiles"                                                             */
} product_choice;

product_choice product_choose(tn_dtype dtype, int64_t tokens, uint64_t cpu_flags);

struct product_kernels {
    const product_variant *variant;
    tn_dtype dtype;

    /* Around every stretch of work in which a thread calls dots or tile_...; nothing blocks in between. */
    void (*tiles_begin)(void);
    void (*tiles_end)(void);

    /* Completes what waits: tile_glu and tile_out may leave their results in a tile's `later`, to be turned, activated
     * and stored between the products of the calls that follow. */
    void (*finish_later)(product_later *later);

    /* Builds one tile of a panel, width tokens wide, from the first k elements of x[0 .. tokens - 1], of dtype. Missing
     * tokens become zeros, as does the second half of the last pair when k is odd. */
    void (*pack)(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel);

    /* The same from a matrix of which k runs along the rows: element i of lane t is at src + i * step bytes + t
     * elements. Lanes are what tokens are elsewhere. */
    void (*lay)(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel);

    /* Sums for a later tile of the same rows and tokens to go on from: product_tile_sums numbers. They may replace
     * those before. */
    void (*tile_part)(const product_tile *tile, float *sums);

    /* h = act(gate) * up for rows / 2 features, of which `features` count; the others give zeros. h is the place of the
     * first feature in the tile of the next product's panel. */
    void (*tile_glu)(const product_tile *tile, const product_finish *finish, int32_t features, void *h);

    /* y[t][0 .. rows - 1], of finish->dtype (dtype or TN_F32), for t < tokens; rows: how many of the tile's count. */
    void (*tile_out)(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                     int32_t tokens);

    /* The same the other way round: y[r][0 .. lanes - 1] for r < rows. finish->bias is not used. */
    void (*tile_lines)(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                       int32_t lanes);

    /* sums[t * PRODUCT_FEW_ROWS + r] = row r . x[t] for t < tokens <= PRODUCT_FEW_TOKENS; x are rows of native type.
     * Sums behind the block's rows are written, too. Between tiles_begin and tiles_end. */
    void (*dots)(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums);

    /* sums[t * PRODUCT_TURNED_ROWS + r] = row r . token t of a panel of one tile; of tokens up to its width sums may be
     * written, too. NULL: rows need not be widened for tiles. */
    void (*turned)(const product_block *block, int64_t k, const void *panel, int32_t width, int32_t tokens,
                   float *sums);

    /* As dots, for a matrix whose rows are side by side: element i of row r at w + i * step bytes + r elements. Lanes
     * are rows: goes on with sums[t * space + r] for r < rows <= PRODUCT_COLUMNS, and may touch those up to
     * PRODUCT_COLUMNS; k is a multiple of 32 but for the last call of a sum. What lies k steps on is prefetched: there
     * the next call had better go on. */
    void (*columns)(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                    float *sums, int64_t space);

    /* n <= PRODUCT_FEW_ROWS sums become h or y, of finish->dtype (h: native or TN_F32). finish->bias belongs to the
     * gates. */
    void (*row_glu)(const float *gate, const float *up, const float *up_bias, const product_finish *finish, int32_t n,
                    void *h);
    void (*row_out)(const float *sums, const product_finish *finish, int32_t n, void *y);

    /* n elements of y, of combine->dtype. */
    void (*combine)(const product_combine *combine, int64_t n, void *y);

    /* Up to PRODUCT_FEW_ROWS rows of k elements of dtype, `space` bytes apart in dst, from a matrix whose rows are side
     * by side: element i of row r at src + i * step bytes + r elements. */
    void (*gather)(const void *src, int64_t step, int32_t rows, int64_t k, void *dst, int64_t space);

    /* n elements of dtype become f32. */
    void (*widen)(const void *src, int64_t n, float *dst);
};

/* The variant that product_choose names for dtype (TN_F32, TN_BF16, TN_F16), with the functions that it leaves to those
 * below it in the table. */
void product_kernels_init(product_kernels *kernels, tn_dtype dtype, uint64_t cpu_flags);

/* Bytes of one token in a panel of k elements. */
static inline int64_t product_panel_token(const product_kernels *kernels, int64_t k)
{
    int64_t padded = (k + kernels->variant->rows - 1) / kernels->variant->rows * kernels->variant->rows;
    return padded * (kernels->variant->native == TN_BF16 ? 2 : 4);
}

/* Numbers of a tile's sums. */
static inline int64_t product_tile_sums(const product_kernels *kernels)
{
    return (int64_t)kernels->variant->rows * ((kernels->variant->max_tokens + 15) / 16 * 16);
}

/* Tokens of the tile that begins where so many tokens are left. */
static inline int32_t product_tile_width(const product_kernels *kernels, int64_t left)
{
    int64_t padded = (left + kernels->variant->lanes - 1) / kernels->variant->lanes * kernels->variant->lanes;
    if (padded > kernels->variant->max_tokens)
        return kernels->variant->tile_tokens;
    return padded < kernels->variant->min_tokens ? kernels->variant->min_tokens : (int32_t)padded;
}

/* ---- per instruction set: their functions for kernels->dtype; the table names them ---------------------- */

void product_init_c(product_kernels *kernels);
void product_init_avx2(product_kernels *kernels);
void product_init_neon(product_kernels *kernels);
void product_init_avx512(product_kernels *kernels);
void product_init_avx512bf16(product_kernels *kernels);
void product_init_amx(product_kernels *kernels);

#endif
