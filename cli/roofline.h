/* tenon bench --plot: what roofline.c and roofline_labels.c share. */
#ifndef TENON_CLI_ROOFLINE_H
#define TENON_CLI_ROOFLINE_H

#include <stdbool.h>
#include <stddef.h>

/* The picture in pixels, and the frame of the axes in it. y grows downwards. */
enum { PICTURE_WIDTH = 1200, PICTURE_HEIGHT = 800 };
enum { FRAME_LEFT = 80, FRAME_RIGHT = 1170, FRAME_TOP = 104, FRAME_BOTTOM = 730 };
enum { CHARACTER = 8, LINE = 15 }; /* of labels, at most                                          */

typedef struct rectangle {
    double left, top, right, bottom;
} rectangle;

#define ROOFLINE_PLACES 2048

/* What is drawn already. */
typedef struct roofline_places {
    rectangle taken[ROOFLINE_PLACES];
    bool label[ROOFLINE_PLACES]; /* text, which no line to a label may cross                       */
    size_t count;
} roofline_places;

/* Nothing is put over this any more; what does not fit in the list may be covered. */
void roofline_take(roofline_places *p, rectangle r);

/* The same of a line of this width, piece by piece. */
void roofline_take_line(roofline_places *p, double x0, double y0, double x1, double y1, double width);

/* Takes r if nothing is there and it lies in the frame. */
bool roofline_take_free(roofline_places *p, rectangle r);

/* Where a label of so many characters goes that belongs to the point (x, y), near it and over nothing, and where on its
 * edge a line from the point ends; both are taken. False: there is no room. */
typedef struct roofline_label {
    rectangle at;
    double end_x, end_y;
    bool ends; /* its text ends at the line, rather than begins                                    */
} roofline_label;

bool roofline_place(roofline_places *p, double x, double y, size_t characters, roofline_label *label);

#endif
