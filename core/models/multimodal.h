/* Inside core: what models that see and hear share: a text model with towers beside it, tokens that stand for pictures
 * and sounds, and positions on three axes. An architecture says what its modeling file calls things, and its rules. */
#ifndef TENON_CORE_MULTIMODAL_H
#define TENON_CORE_MULTIMODAL_H

#include "models/decoder.h"
#include "models/models.h"
#include "models/tower.h"

/* What a token is. */
typedef enum multimodal_kind {
    MULTIMODAL_TEXT,
    MULTIMODAL_IMAGE,
    MULTIMODAL_VIDEO,
    MULTIMODAL_SOUND,
    MULTIMODAL_KINDS
} multimodal_kind;

/* How a modeling file counts positions. A picture's grid counts rows and columns from where it begins, and its frames
 * in steps of an interval. */
typedef struct multimodal_rules {
    bool from_highest;     /* what follows a picture begins behind its highest position; else behind its larger side */
    bool split_frames;     /* each frame of a video counts as a picture of its own                    */
    bool fractions;        /* positions in time are not rounded down                                  */
    double image_interval; /* between frames of an image                                              */
    double video_interval; /* of a video                                                              */
    bool by_seconds;       /* times its seconds per grid                                              */
} multimodal_rules;

/* What a session must know (model_shape.media). */
typedef struct multimodal {
    const tower_kind *vision, *audio; /* or NULL                                                   */
    void *vision_state, *audio_state;
    int64_t token[MULTIMODAL_KINDS];         /* the ids that stand for pictures and sounds; -1: none         */
    const char *token_key[MULTIMODAL_KINDS]; /* what config.json calls them                          */
    multimodal_sight sight;
    bool replaced; /* tokens that stand for pictures and sounds count as the token `pad` wherever they are        */
    int64_t pad;
    const tower_marks *marks; /* in prompts, beside the tokens of a picture; NULL: none                        */
    marked_ids embedded;      /* by tower_beside.embed                                                  */
    bool one_axis;            /* positions count tokens, whatever these stand for                       */
    bool one_picture_token;   /* frames of a video are image tokens between video_start and video_end    */
    int64_t video_start, video_end;
    int64_t merge; /* spatial_merge_size: sides of the square of patches that become one token        */
    multimodal_rules rules;
    int32_t deep_count; /* layers behind which pictures are added                                    */
} multimodal;

/* The grids of a batch's pictures, from which each row takes what its tokens stand for. */
typedef struct multimodal_grids {
    const int64_t *grids[MULTIMODAL_KINDS]; /* [count, 3]                                          */
    int64_t count[MULTIMODAL_KINDS];
    const float *seconds;                  /* of videos; or NULL                                                     */
    int64_t next[MULTIMODAL_KINDS], frame; /* where the next row goes on                            */
} multimodal_grids;

/* Positions of n tokens of a row, the first one's position being first, to axes[0..2][at[i]]. highest: the largest
 * position. TN_E_INPUT where tokens and grids do not fit. multimodal_positions.c */
tn_status multimodal_positions(const multimodal *m, multimodal_grids *grids, const int8_t *kinds, const int64_t *at,
                               int64_t n, float first, float *const axes[ROPE_AXES], float *highest, tn_error *err);

/* ---- building ---------------------------------------------------------------------------------- */

/* Where the text model hangs. */
typedef struct multimodal_place {
    graph_module *parent, *head_parent;
    bool tied; /* as the whole model's config says                                                */
} multimodal_place;

/* What a modeling file has. */
typedef struct multimodal_spec {
    const char *model_class; /* of "model": { towers, "language_model" }                             */
    const tower_kind *vision, *audio;
    const char *outer, *outer_class, *outer_config; /* module around model and head, and their object; NULL: none */
    const char *token_key[MULTIMODAL_KINDS];        /* keys of token ids, NULL: it has none; and their defaults */
    int64_t token[MULTIMODAL_KINDS];
    bool flat;      /* the text model's keys may stand beside those of the towers                      */
    bool text_ties; /* tie_word_embeddings of the text model counts, too                               */
    bool one_picture_token;
    bool deep;        /* vision_config has deepstack_visual_indexes                                          */
    bool interleaved; /* frequencies take turns among the axes; else each axis has a stretch             */
    int64_t sections[ROPE_AXES]; /* default of mrope_section                                          */
    multimodal_rules rules;      /* intervals that config.json does not give                              */
    const build_alias *aliases;
    /* Reads the text model's config and gives what multimodal_text gave. */
    void *(*text)(graph_builder *b, const config_reader *config, const multimodal_place *place);
} multimodal_spec;

/* decoder_build where the text model of a multimodal one hangs, with tables of three axes. */
void *multimodal_text(graph_builder *b, const config_reader *config, decoder_spec *spec, const multimodal_place *place);

/* The state of multimodal_flow, or NULL after an error. */
void *multimodal_build(graph_builder *b, const config_reader *config, const multimodal_spec *spec);

/* A text model of its own with a tower beside it, which config, that of the whole, describes: state of multimodal_flow,
 * too. Without the tower's tensors, or one that is not built here, it is the text model alone. */
void *multimodal_beside(graph_builder *b, const config_reader *config, const config_reader *inner,
                        const model_wrapper *around, const model_arch *arch);

extern const model_flow multimodal_flow;

#endif
