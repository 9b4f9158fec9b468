/* Labels of a plot, each where it covers nothing. */
#include "roofline.h"

#include <math.h>

void roofline_take(roofline_places *p, rectangle r)
{
    if (p->count < ROOFLINE_PLACES)
        p->taken[p->count++] = r;
}

void roofline_take_line(roofline_places *p, double x0, double y0, double x1, double y1, double width)
{
    int pieces = (int)(hypot(x1 - x0, y1 - y0) / 12) + 1;
    double half = width / 2;
    for (int i = 0; i < pieces; i++) {
        double ax = x0 + (x1 - x0) * i / pieces, ay = y0 + (y1 - y0) * i / pieces;
        double bx = x0 + (x1 - x0) * (i + 1) / pieces, by = y0 + (y1 - y0) * (i + 1) / pieces;
        roofline_take(p,
                      (rectangle){fmin(ax, bx) - half, fmin(ay, by) - half, fmax(ax, bx) + half, fmax(ay, by) + half});
    }
}

static bool is_free(const roofline_places *p, const rectangle *r)
{
    if (r->left < FRAME_LEFT + 2 || r->right > FRAME_RIGHT - 2 || r->top < FRAME_TOP + 2 ||
        r->bottom > FRAME_BOTTOM - 2)
        return false;
    for (size_t i = 0; i < p->count; i++) {
        const rectangle *t = &p->taken[i];
        if (r->left < t->right && t->left < r->right && r->top < t->bottom && t->top < r->bottom)
            return false;
    }
    return true;
}

/* Nearest first; at each distance the right side, then the left one, then above and below. */
bool roofline_place(roofline_places *p, double x, double y, size_t characters, rectangle *label)
{
    enum { DIRECTIONS = 24 };
    const double width = (double)characters * CHARACTER, pi = 3.14159265358979;
    for (double distance = 8; distance < 320; distance += 6)
        for (int d = 0; d < DIRECTIONS; d++) {
            int step = (d + 1) / 2 * (d % 2 ? 1 : -1); /* 0, 1, -1, 2, -2, ... from the right on */
            double angle = 2 * pi * step / DIRECTIONS;
            double cx = x + distance * cos(angle), cy = y + distance * sin(angle) * 0.8;
            double left = cos(angle) > 0.2 ? cx : cos(angle) < -0.2 ? cx - width : cx - width / 2;
            *label = (rectangle){left, cy - LINE / 2.0, left + width, cy + LINE / 2.0};
            if (!is_free(p, label))
                continue;
            roofline_take(p, *label);
            return true;
        }
    return false;
}
