/* Inside core: vision towers that take whole pictures: a product makes a row of each patch, blocks of attention within
 * a picture and an MLP change them, a projector makes rows of the text model of them. What the blocks are called and do
 * is said by vision_config's model_type (vit_kinds.c), what the projector is by the model around (vit_project.c). */
#ifndef TENON_CORE_VIT_H
#define TENON_CORE_VIT_H

#include "models/parts.h"
#include "models/tower.h"

/* What a modeling file calls things and has. */
typedef struct vit_family {
    const char *model_type, *scope;
    const char *tower; /* module; NULL: vision_tower                                               */
    const char *model, *inside, *list_class, *block, *attention, *mlp, *norm; /* classes; norm NULL: LayerNorm */
    const char *embeddings, *embeddings_class;                                /* module; NULL: the tower itself */
    const char *patch, *patch_inner; /* the convolution, and where it lies deeper its own name                */
    const char *patch_class;         /* ... and of what it lies in                                            */
    const char *class_token;         /* of shape [C], or [1,1,C] beside positions of [1,S,C]; NULL: none       */
    const char *positions;           /* module of a table [S,C]; with .loose the tensor itself; NULL: none     */
    int32_t loose;                   /* ... of so many dimensions                                              */
    const char *pre_norm, *post_norm, *around, *list;
    const char *norm1, *norm2, *attn, *o;
    const char *mlp_name;
    const parts_mlp_names *mlp_names;
    const char *scale[2]; /* of what attention and MLP give; NULL: none                                     */
    bool patch_bias, gated, bias, by_axes;
    bool patch_linear;        /* a matrix instead of a convolution                                            */
    bool class_last;          /* the class token stands behind the patches, and is never taken                */
    bool pairs;               /* rotations are of pairs, columns before rows, both from 1; else of halves     */
    bool fixed;               /* act and eps are the file's own, whatever config.json says                    */
    const tower_marks *marks; /* with any projector; NULL: the projector's                               */
    bool may_differ;          /* pictures have sizes of their own                                                     */
    const char *act;
    double eps;
    int64_t depth, hidden, heads, inter, image, patch_size;
} vit_family;

typedef struct vit_spec {
    int64_t depth, hidden, heads, head_dim, inter, channels, patch;
    int64_t rows, columns; /* patches of a picture, the most where sizes differ                                */
    double theta;
    tn_act act;
    bool qkv_bias, o_bias, head_norms, post_norm;
    parts_norm_kind norm;
} vit_spec;

typedef struct vit_block {
    graph_site *norm1, *q, *k, *v, *q_norm, *k_norm, *attention, *o, *norm2, *mlp;
    tn_site *scale[2];
} vit_block;

/* The most blocks whose rows a projector takes side by side. */
enum { VIT_TAKEN = 8 };

typedef struct vit_projector vit_projector;

typedef struct vit_tower {
    const vit_family *family;
    vit_spec spec;
    graph_site *patch, *pre_norm, *post_norm, *rope;
    const tn_site *copy;
    tn_tensor class_token, positions; /* no data: none                                                 */
    vit_block *blocks;
    int64_t taken[VIT_TAKEN], taken_count; /* behind how many blocks rows are taken                        */
    bool drop; /* a picture's first row is left out, or the last one of .class_last                            */
    int64_t text_hidden;
    graph_module *module;
    const vit_projector *projector;
    void *project; /* its state                                                                            */
    struct vit_tiles *tiles;
} vit_tower;

/* A picture, or a tile of one: its planes in the call's pixels, and the patches that it has. */
typedef struct vit_picture {
    int64_t index, rows, columns;
} vit_picture;

/* How rows of patches become those of the text model. */
struct vit_projector {
    const char *model_type;   /* of the model around                                                      */
    const char *tower;        /* model_type of a vision_config that says none                             */
    int64_t layer;            /* default of vision_feature_layer; 0: the last, whatever that says         */
    bool last;                /* where that is the last, the tower's last norm counts                     */
    bool selects;             /* vision_feature_select_strategy may leave out a picture's first row        */
    multimodal_sight sight;   /* of tokens in the text model                                             */
    const tower_marks *marks; /* NULL: none                                                              */
    bool tiled;               /* pictures are cut into tiles, whose rows are put together again (vit_tiles.c) */
    /* The module under root with what it reads; the state, of one block of memory, or NULL after an error. width: of
     * a row that it is given. */
    void *(*build)(graph_builder *b, graph_module *root, const config_reader *config, const vit_tower *v,
                   int64_t width);
};

const vit_family *vit_family_of(const char *model_type);       /* vit_kinds.c; NULL: there is none             */
const vit_projector *vit_projector_of(const char *model_type); /* vit_project.c                             */

/* vit_run.c */
int64_t vit_tokens(const void *state, const tower_media *media, tn_error *err);
int64_t vit_largest(const void *state, const tower_media *media);
void vit_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out);

multimodal_sight vit_sight(const void *state);

const tower_marks *vit_marks(const void *state);

/* vit_project.c: pixels by side of what becomes one row of the text model. */
int64_t vit_unit(const void *state);

/* Rows that a projector makes of count ones of a picture; 0: it cannot. state: its own. */
int64_t vit_project_rows(const void *state, const vit_picture *picture, int64_t count);
/* x [rows of the picture, width] to y. */
void vit_project_run(graph_run *r, const void *state, const vit_picture *picture, const tn_tensor *x,
                     const tn_tensor *y);

/* y = the product of x, some rows at a time. */
void vit_linear(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y);

/* ---- vit_tiles.c: LLaVA-NeXT's ---- */

/* What of config.json and of the file says how tiles are put together; NULL after an error. Freed by free. */
struct vit_tiles *vit_tiles_build(graph_builder *b, graph_module *root, const config_reader *config,
                                  const vit_tower *v);

/* Tiles of a picture of size height x width: rows and columns of them beside the one that is the whole; and the rows of
 * the text model that all together become. */
void vit_tiles_grid(const struct vit_tiles *t, const int64_t size[2], int64_t grid[2]);
int64_t vit_tiles_rows(const struct vit_tiles *t, const int64_t size[2]);

/* rows [tiles * patches of one, H] of the picture, with room for one more behind, to y. */
void vit_tiles_run(graph_run *r, const struct vit_tiles *t, const int64_t size[2], const tn_tensor *rows,
                   const tn_tensor *y);

#endif
