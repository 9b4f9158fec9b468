/* Inside core: the canvases of which a picture of LLaVA-NeXT gets one, as its processor and its model both read them.
 */
#ifndef TENON_CORE_CANVAS_H
#define TENON_CORE_CANVAS_H

#include "checkpoint/checkpoint.h"

/* Most canvases, and most tiles along a side of one. */
enum { CANVAS_MOST = 256, CANVAS_TILES = 64 };

typedef struct canvas_list {
    int64_t size[CANVAS_MOST][2]; /* height, width in pixels                                              */
    int64_t count;
} canvas_list;

/* "image_grid_pinpoints", or the usual ones, of tiles of that height and width; errors stick in c. */
void canvas_read(const config_reader *c, const int64_t tile[2], canvas_list *out);

/* The canvas that keeps most of the pixels of a picture (height, width), of these the one with least left over. */
const int64_t *canvas_best(const canvas_list *list, const int64_t picture[2]);

#endif
