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

bool roofline_take_free(roofline_places *p, rectangle r)
{
    bool free = is_free(p, &r);
    if (free) {
        roofline_take(p, r);
        p->label[p->count - 1] = true;
    }
    return free;
}

/* Does the line from (x, y) to the label's end pass over text? */
static bool crosses_text(const roofline_places *p, double x, double y, const roofline_label *l)
{
    enum { STEPS = 40 };
    for (size_t i = 0; i < p->count; i++)
        for (int s = 1; p->label[i] && s < STEPS; s++) {
            double at_x = x + (l->end_x - x) * s / STEPS, at_y = y + (l->end_y - y) * s / STEPS;
            const rectangle *t = &p->taken[i];
            if (at_x > t->left && at_x < t->right && at_y > t->top && at_y < t->bottom)
                return true;
        }
    return false;
}

/* A label at a distance and angle from the point; left of it where its text ends at the line. */
static roofline_label label_at(double x, double y, double distance, double angle, double width)
{
    double cx = x + distance * cos(angle), cy = y + distance * sin(angle) * 0.8;
    double left = cos(angle) > 0.2 ? cx : cos(angle) < -0.2 ? cx - width : cx - width / 2;
    rectangle r = {left, cy - LINE / 2.0, left + width, cy + LINE / 2.0};
    roofline_label l = {.at = r, .end_x = x, .end_y = r.top > y ? r.top : r.bottom, .ends = r.right < x};
    if (left > x || r.right < x) {
        l.end_x = left > x ? left - 2 : r.right + 2;
        l.end_y = cy;
    }
    return l;
}

/* Nearest first; at each distance the right side, then the left one, then above and below. Only where nothing else is
 * left may the line to the label pass over text. */
bool roofline_place(roofline_places *p, double x, double y, size_t characters, roofline_label *label)
{
    enum { DIRECTIONS = 24, DISTANCES = 50 };
    const double pi = 3.14159265358979;
    for (int i = 0; i < 2 * DISTANCES; i++)
        for (int d = 0; d < DIRECTIONS; d++) {
            int step = (d + 1) / 2 * (d % 2 ? 1 : -1); /* 0, 1, -1, 2, -2, ... from the right on */
            *label =
                label_at(x, y, 8 + 6.0 * (i % DISTANCES), 2 * pi * step / DIRECTIONS, (double)characters * CHARACTER);
            if ((i < DISTANCES && crosses_text(p, x, y, label)) || !roofline_take_free(p, label->at))
                continue;
            roofline_take_line(p, x, y, label->end_x, label->end_y, 2);
            return true;
        }
    return false;
}
