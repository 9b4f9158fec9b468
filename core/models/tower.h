/* Inside core: towers, which turn pictures or sound into rows of the text model. An architecture has one for what it
 * sees and one for what it hears, or either. */
#ifndef TENON_CORE_TOWER_H
#define TENON_CORE_TOWER_H

#include "graph/build.h"
#include "run/steps.h"

struct multimodal;

/* Rows of one call of a tower, where it need not be more: what kernels were tried with, and memory that a large picture
 * or a long sound does not enlarge. */
enum { TOWER_PIECE = 512 };

/* What tokens see beside those before them. */
typedef enum multimodal_sight {
    SIGHT_BACK,    /* nothing                                                                         */
    SIGHT_PICTURE, /* of a picture: all of it                                                          */
    SIGHT_NEAR,    /* the same in layers with a window alone, and no further back than it reaches          */
    SIGHT_PROMPT   /* of a session's first call: all of it                                             */
} multimodal_sight;

/* What stands in a prompt beside a picture's token, which stands for each row, as the model's processor writes it;
 * NULL: nothing. */
typedef struct tower_marks {
    const char *place; /* what the template leaves for a picture; NULL: the token itself                */
    const char *before, *after;
    const char *token_key[2]; /* keys of config.json, NULL: none, and the ids of tokens that are before and after */
    int64_t token[2];
    const char *line;          /* behind each line of rows but the last                                    */
    const char *whole, *crops; /* where crops of the picture follow: before it, and before them             */
    const char *across, *down; /* where tiles of it precede whole and it: between those of a line, behind a line */
} tower_marks;

typedef struct tower_grid {
    int64_t t, h, w;
} tower_grid; /* in patches                                                                        */

/* What one call has for a tower. */
typedef struct tower_media {
    tn_tensor pixels;        /* device, model dtype: vision [patches, channels * temporal * p * p], or whole pictures
                                [..., channels, height, width]; audio [clips, mel, frames]; no data while the arena is
                                measured                                                              */
    const tower_grid *grids; /* vision: one per image or video                                         */
    int64_t grid_count;
    int64_t count; /* whole pictures; and their sizes [count, 2] in pixels, or NULL             */
    const int64_t *sizes;
    const int64_t *places; /* of the patches of whole pictures [count, patches, 2]: x, y, -1 of padding; or NULL */
    const int64_t *frames; /* audio: real frames of each clip [clips], on the host                   */
} tower_media;

/* What comes out, from the run's arena. */
typedef struct tower_rows {
    tn_tensor features;       /* [tokens, H] of the text model, in the order of the placeholder tokens */
    tn_tensor deep[RUN_DEEP]; /* [tokens, H] each: added after layer j of the text model             */
    int32_t deep_count;
} tower_rows;

typedef struct tower_kind {
    const char *name;
    /* The tree of the tower under parent as the module name; the state is its own. config: the tower's own object
     * (vision_config, audio_config). Errors stick in b; NULL after one. */
    void *(*build)(graph_builder *b, graph_module *parent, const char *name, const config_reader *config,
                   int64_t text_hidden);
    void (*free_state)(void *state);
    /* Rows that forward will give; -1 with err filled when grids or frames do not fit the pixels. */
    int64_t (*tokens)(const void *state, const tower_media *media, tn_error *err);
    /* The first failure sticks in r. No rows come from an empty tensor. */
    void (*forward)(graph_run *r, const void *state, const tower_media *media, tower_rows *out);
    /* Of towers that take whole pictures: most rows of a call inside it. NULL: patches are given with grids. */
    int64_t (*largest)(const void *state, const tower_media *media);
    bool whole_clips; /* of towers that hear: their processor cuts no clip, and pads to the longest      */
    const struct tower_beside *beside; /* of one that may be built beside a text model; NULL: it may not        */
} tower_kind;

/* What there is to a tower beside a text model; config is that of the whole model. */
typedef struct tower_beside {
    bool (*knows)(const config_reader *config); /* is its vision_config one that the tower reads                */
    multimodal_sight (*sight)(const void *state);
    const tower_marks *(*marks)(const void *state); /* as long as the state; NULL: none                      */
    void (*read_tokens)(const config_reader *config, struct multimodal *m); /* beside the picture's; NULL: none */
    bool centred;     /* pixels of 0 to 1 become -1 to 1, before they are rounded to the model's dtype             */
    const char *part; /* of a tensor's name, without which a file has no such tower; NULL: of any beside a text model */
    tn_op needs; /* beside what text models do: a device without it has the text model alone; TN_OP_NONE: nothing  */
    /* Rows [n,H] of the marks that ids [n] name, of those of multimodal.embedded; NULL: there are none. */
    tn_tensor (*embed)(graph_run *r, const void *state, const tn_tensor *ids);
} tower_beside;

extern const tower_kind vision_qwen2_vl, vision_qwen2_5_vl, vision_qwen2_5_omni, vision_qwen3_vl, vision_qwen3_vl_moe,
    vision_qwen3_5, vision_qwen3_5_moe, vision_qwen3_omni_moe, vision_glm4v, vision_glm4v_moe;
extern const tower_kind vision_vit; /* built of the whole model's config, under its root; name: its model_type */
extern const tower_kind vision_gemma4, vision_gemma3n; /* likewise                                        */
extern const tower_kind audio_qwen2_5_omni, audio_qwen3_omni_moe;

#endif
