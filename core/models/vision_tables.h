/* Inside core: what a vision tower knows about a call's pictures before it sees them: in which order patches go through
 * its blocks, which of them see each other, where in its picture a patch lies. On the host. */
#ifndef TENON_CORE_VISION_TABLES_H
#define TENON_CORE_VISION_TABLES_H

#include "models/tower.h"

/* Neighbours that see each other: so many patches each, one span after the other. */
typedef struct vision_spans {
    int64_t *length;
    int64_t count;
} vision_spans;

typedef struct vision_tables {
    int64_t patches, groups;      /* groups of merge x merge patches, each of which becomes a row of the text model */
    vision_spans frames, windows; /* windows: empty where there are none                           */
    int32_t *order;               /* [groups] which group comes at each place of the blocks        */
} vision_tables;

/* window: of so many groups by side; 0: none, and groups keep their order. The grids are sound. False: out of memory,
 * after which there is nothing to free. */
bool vision_tables_make(vision_tables *t, const tower_media *media, int64_t merge, int64_t window);
void vision_tables_free(vision_tables *t);

/* place[i]: where the group that came as number i goes. */
void vision_tables_places(const vision_tables *t, int32_t *place);

/* For each patch in the order of the blocks: cos and sin [patches, dim] of its row's angle and its column's, dim / 4
 * frequencies each, twice. False: out of memory. */
bool vision_tables_rotation(const vision_tables *t, const tower_media *media, int64_t merge, int64_t dim, double theta,
                            float *cosine, float *sine);

/* For each patch in the order in which it came: which rows of a table of side x side learnt positions its own is made
 * of, and by how much of each: [patches, taps * taps], 2 taps a side for bilinear, 4 for bicubic interpolation. */
typedef enum vision_positions { VISION_NO_POSITIONS, VISION_BILINEAR, VISION_BICUBIC } vision_positions;
int64_t vision_tables_taps(vision_positions kind); /* of both sides together */
void vision_tables_positions(const tower_media *media, vision_positions kind, int64_t merge, int64_t side, int64_t *ids,
                             float *weights);

#endif
