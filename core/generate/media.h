/* Inside core: pictures and sounds of a session: towers run once per call, their rows stay on the device until the
 * call's last chunk; positions on three axes, counted on from call to call. */
#ifndef TENON_CORE_MEDIA_H
#define TENON_CORE_MEDIA_H

#include "models/multimodal.h"

#include <tenon/tenon.h>

typedef struct media {
    const device *device;
    tn_dtype dtype;
    const model_shape *shape;
    const struct run_observer *observer; /* of the session's calls, or NULL                          */
    int64_t rows, chunk;
    float *ahead; /* [B]: how far a row's positions are ahead of the number of its tokens              */
    /* Of the call. */
    int64_t tokens;
    const int64_t *positions;
    tn_pictures pictures[MULTIMODAL_KINDS]; /* of images and videos                                 */
    tn_sounds sounds;
    bool given[MULTIMODAL_KINDS];
    int64_t count[MULTIMODAL_KINDS]; /* tokens that stand for each                                   */
    /* Where it has more than tokens; else NULL and 0. */
    float *axes;       /* [3][B*tokens]                                                             */
    int8_t *kinds;     /* [B*tokens]: multimodal_kind                                               */
    int64_t *feature;  /* [B*tokens]: which row of features a token gets; -1: none                   */
    int32_t *slot;     /* [count of all]                                                            */
    int64_t *deep_row; /* [B*chunk]                                                                */
    void *device_features, *device_deep[RUN_DEEP], *device_slot, *device_deep_row;
} media;

tn_status media_init(media *m, const device *device, tn_dtype dtype, const model_shape *shape, int64_t rows,
                     int64_t chunk, tn_error *err);
void media_close(media *m);
void media_reset(media *m);

/* Takes what the batch has beside tokens. media_end is due afterwards, also after a failure. */
tn_status media_take(media *m, const tn_batch *batch, tn_error *err);
int64_t media_largest_call(const media *m); /* tokens that a tower sees at once, at most; 0: none runs            */

/* Finds what stands for what, and runs the towers, or with outputs NULL leaves that to media_features; lengths [B]:
 * tokens that the rows hold already. */
tn_status media_begin(media *m, const tn_batch *batch, const tn_outputs *outputs, const int64_t *lengths,
                      tn_error *err);
void media_end(media *m);

/* A call of tokens alone, with positions or (NULL) counted ones; nothing of it needs media_end. */
media media_none(const media *m, const int64_t *positions, int64_t tokens);

/* What a token counts as where it is looked up: that of padding where the model replaces those of pictures. */
int64_t media_id(const media *m, int64_t id);

/* The positions of token t of the call in row b, which is the index-th real one of its row (-1: padding). */
void media_position(const media *m, int64_t b, int64_t t, int64_t index, float position[ROPE_AXES]);

typedef enum media_before { MEDIA_TEXT, MEDIA_PICTURE, MEDIA_NOTHING } media_before;

/* Where tokens see each other (multimodal_sight), a chunk takes what lies before them, or all of them: count, of the
 * call's `left` tokens from begin on, at most `most`. before: what the session's last token is of. first [B]: how many
 * tokens of that kind the row has there, -1: none. */
tn_status media_cut(const media *m, int64_t begin, int64_t left, int64_t most, media_before before, int64_t *first,
                    int64_t *count, tn_error *err);

/* Of one row: how many tokens of the call, from begin on, see each other, or (negative) come before any that do. */
int64_t media_mutual(const media *m, int64_t begin, int64_t left);

/* Of one row: how many tokens from begin on come before any that stands for a row of features. */
int64_t media_plain(const media *m, int64_t begin, int64_t left);

/* What token t of the first row stands for. */
multimodal_kind media_kind(const media *m, int64_t t);

/* The rows that a chunk takes, which is all of a run; out->features is empty where it has none. */
tn_status media_chunk(media *m, int64_t begin, int64_t tokens, run_media *out, tn_error *err);

/* The same of one row's tokens that are those of a run from `at` on, which has `all`. */
tn_status media_part(media *m, int64_t begin, int64_t tokens, int64_t at, int64_t all, run_media *out, tn_error *err);

/* For measuring: what a chunk of pictures takes, without data. */
void media_measure(const media *m, int64_t tokens, run_media *out);

/* media_towers.c: whole pictures as their tower sees them, no data yet. */
tn_status media_whole_pictures(const media *m, const tn_pictures *p, tower_media *out, tn_error *err);
/* Makes the features of what is given, or takes them, and leaves them on the device, until media_drop or media_end. */
tn_status media_features(media *m, const tn_outputs *outputs, tn_error *err);
void media_drop(media *m);
/* These features, and those beside each of them, in f32: to where a kind's array is not NULL. */
tn_status media_read(const media *m, float *const features[MULTIMODAL_KINDS],
                     float *const deep[RUN_DEEP][MULTIMODAL_KINDS], tn_error *err);

/* Rows of images and videos, which are the first ones. */
static inline int64_t media_pictures(const media *m)
{
    return m->count[MULTIMODAL_IMAGE] + m->count[MULTIMODAL_VIDEO];
}

/* Rows of features. */
static inline int64_t media_rows(const media *m)
{
    return media_pictures(m) + m->count[MULTIMODAL_SOUND];
}

#endif
