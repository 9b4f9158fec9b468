/* Inside core: the tower of Gemma 3n, timm's MobileNetV5: convolutions over a picture whose channels lie last,
 * attention with keys of fewer places, and the last two stages fused to a square of rows of the text model. */
#ifndef TENON_CORE_GEMMA3N_VISION_H
#define TENON_CORE_GEMMA3N_VISION_H

#include "models/parts.h"
#include "models/tower.h"

/* Width of what the tower gives, whatever is in it. */
enum { GEMMA3N_VISION_WIDTH = 2048 };

typedef enum gemma3n_kind {
    GEMMA3N_EDGE,     /* a convolution that widens, and a product that narrows                         */
    GEMMA3N_INVERTED, /* products that widen and narrow, filters of each channel before and between them       */
    GEMMA3N_ATTENTION /* of all queries' heads to one head of keys                                     */
} gemma3n_kind;

/* What timm's block_args say of a block. */
typedef struct gemma3n_block_spec {
    gemma3n_kind kind;
    int64_t out, stride;
    double ratio;                       /* of the widened channels to those that come in                       */
    int64_t side;                       /* of the convolution; of the filter of keys and values                */
    int64_t start, mid;                 /* sides of filters before and between the products; 0: none           */
    int64_t heads, key, value, thinned; /* thinned: stride of keys and values                                  */
} gemma3n_block_spec;

/* A convolution, its norm and its activation, of which each may be NULL. */
typedef struct gemma3n_conv {
    graph_site *site;      /* LINEAR over what the filters see, or over channels                              */
    const tn_site *filter; /* or DEPTHWISE                                                            */
    graph_site *norm;
    const tn_site *act;
    int64_t out, side, stride;
} gemma3n_conv;

/* One after the other; of attention query, key, value and output. */
enum { GEMMA3N_CONVS = 4 };

typedef struct gemma3n_block {
    gemma3n_block_spec spec;
    bool skip; /* what comes in is added                                                              */
    bool ends; /* a stage                                                                             */
    gemma3n_conv conv[GEMMA3N_CONVS];
    gemma3n_conv thin[2]; /* before those of key and value                                            */
    graph_site *norm, *attention;
    const tn_site *scale; /* of each channel; or NULL                                                 */
} gemma3n_block;

typedef struct gemma3n_tower {
    gemma3n_conv stem;
    int64_t count, stages;
    int64_t fused; /* channels of the last two stages                                                       */
    int64_t side;  /* of the square of rows that a picture becomes                                   */
    gemma3n_conv widen, narrow;
    graph_site *norm, *soft, *hard, *projection, *plain;
    tn_tensor marks; /* [vocab_size, GEMMA3N_VISION_WIDTH]: embeddings of ids                                 */
    const tn_site *copy, *root;
    int64_t text_hidden;
    gemma3n_block blocks[]; /* [count]                                                                 */
} gemma3n_tower;

/* gemma3n_vision_run.c */
int64_t gemma3n_vision_tokens(const void *state, const tower_media *media, tn_error *err);
int64_t gemma3n_vision_largest(const void *state, const tower_media *media);
void gemma3n_vision_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out);
tn_tensor gemma3n_vision_embed(graph_run *r, const void *state, const tn_tensor *ids);

#endif
