/* Inside core: vision towers of the Qwen and GLM families: a product makes rows of patches, blocks of attention within
 * a frame or a window and an MLP change them, a merger makes rows of the text model of merge x merge of them. A family
 * says what its modeling file calls things and which of these it has. */
#ifndef TENON_CORE_VISION_H
#define TENON_CORE_VISION_H

#include "models/parts.h"
#include "models/tower.h"
#include "models/vision_tables.h"

/* How rows become rows of the text model: norm, group, first, GELU, second; or, where a family has a product that
 * downsamples: that, product, LayerNorm, GELU, gated MLP, all of them in the merger but the first and the norm. */
typedef struct vision_merger_names {
    const char *list;                  /* of those of deep layers; NULL: there are none            */
    const char *norm, *first, *second; /* "ln_q", "0", "2"                                       */
    const char *inner, *inner_class;   /* module of first and second; NULL: the merger itself      */
    bool downsamples;
} vision_merger_names;

typedef struct vision_family {
    const char *scope;
    const char *model, *patch, *rotary, *block, *attention, *mlp, *merger; /* classes              */
    const char *norm;                 /* class of the RMS norms; NULL: LayerNorm                             */
    const char *embeddings;           /* class of the module of the learnt positions; NULL: pos_embed alone   */
    const parts_mlp_names *mlp_names; /* without a gate; NULL: "linear_fc1", "linear_fc2"          */
    vision_merger_names merging;
    vision_positions positions;
    bool split_qkv, windows;
    bool by_ratio; /* config: embed_dim, of which mlp_ratio is the MLP; hidden_size is the text model's */
    bool gated;    /* MLP with a gate                                      */
    bool patch_bias, post_norms, mlp_bias, attention_bias; /* post_norms: of patches and of the last block's rows */
    /* What config.json may leave out. */
    const char *act;
    double eps;
    int64_t depth, hidden, heads, inter, out, patch_size, image_size, position_count;
} vision_family;

/* config.json's. */
typedef struct vision_spec {
    int64_t depth, hidden, heads, head_dim, inter, mlp_inter, out;
    int64_t channels, temporal, patch, merge;
    int64_t window;          /* groups by side; 0: none                                             */
    int64_t positions, side; /* rows of the table of positions, of which side x side are used        */
    double theta;
    tn_act act;
    bool qkv_bias, proj_bias;
    parts_norm_kind norm;
} vision_spec;

typedef struct vision_block {
    graph_site *norm1, *norm2, *qkv[3]; /* [1], [2] NULL: qkv in one                              */
    graph_site *attention, *proj, *mlp;
    bool whole;   /* frames see themselves as a whole, not by windows                               */
    int32_t deep; /* which deep merger its rows go to as well; -1: none                            */
} vision_block;

typedef struct vision_merger {
    graph_site *norm, *first, *second;
    bool of_group; /* the norm is that of a group as a whole                                       */
    const tn_site *act;
    /* Where the family downsamples. */
    const tn_site *turn;
    graph_site *downsample, *mlp;
} vision_merger;

typedef struct vision_tower {
    const vision_family *family;
    vision_spec spec;
    graph_site *patch, *patch_norm, *rope;
    const tn_site *positions; /* EMBEDDING_BAG, or NULL                                            */
    vision_block *blocks;
    vision_merger merger, deep[RUN_DEEP];
    int32_t deep_count;
} vision_tower;

/* What tower_kind asks for, for any family. vision.c */
void *vision_build(graph_builder *b, graph_module *parent, const char *name, const config_reader *config,
                   int64_t text_hidden, const vision_family *family);
void vision_free(void *state);

/* vision_read.c */
void vision_read(const config_reader *config, const vision_family *family, int64_t text_hidden, vision_spec *spec);
int64_t vision_tokens(const void *state, const tower_media *media, tn_error *err);

/* ---- vision_merge.c ---- */

/* A convolution without overlap: a product with its filters, of which shape is [out, ...]. */
graph_site *vision_filter(graph_builder *b, graph_module *parent, const char *name, const char *class_name,
                          int32_t ndim, const int64_t *shape, bool bias);

/* downsample stands in tower. x [rows, hidden] of whole groups, y a row for each of them. rest: what is
 * still to be added to x, or NULL. */
void vision_merger_build(graph_builder *b, graph_module *tower, graph_module *parent, const char *name,
                         const vision_tower *v, bool deep, vision_merger *m);
void vision_merger_run(graph_run *r, const vision_tower *v, const vision_merger *m, const tn_tensor *x,
                       const tn_tensor *rest, const tn_tensor *y);

/* vision_run.c */
void vision_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out);

#endif
