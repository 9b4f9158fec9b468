/* tenon bench --plot: the roofline. How many operations a kernel does for each byte that it must move against how many
 * it did a second; above it the roofs: what memory can deliver, and what each arithmetic can do. gnuplot draws. */
#include "roofline.h"

#include "gnuplot.h"
#include "profile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What takes less of its case's time is left out, and what hardly computes: the table of embeddings. */
#define LEAST_PART 0.02
#define LEAST_INTENSITY 0.05

typedef struct point {
    size_t c; /* the case                                                                       */
    double x, y, part;
    bool eager;
    char name[96];
} point;

typedef struct roof {
    const char *name;
    double rate; /* GFLOP/s                                                                     */
} roof;

enum { ROOFS = 4 };

typedef struct picture {
    point *points; /* the largest part first                                                      */
    size_t count;
    roof roofs[ROOFS];
    double memory;                   /* GB/s                                                                       */
    double left, right, bottom, top; /* the axes, as powers of ten                                  */
    roofline_places places;
} picture;

/* ---- what is drawn ----------------------------------------------------------------------------- */

static int largest_first(const void *a, const void *b)
{
    double x = ((const point *)a)->part, y = ((const point *)b)->part;
    return (x < y) - (x > y);
}

static tn_status collect(picture *p, const bench *b, const tn_machine *m, tn_error *err)
{
    for (size_t c = 0; c < b->case_count; c++) {
        const profile_run *run = &b->profile->run[c];
        size_t count;
        profile_row *rows = profile_rows(run, m, false, &count);
        point *points = rows ? realloc(p->points, (p->count + count + 1) * sizeof *points) : NULL;
        if (!points) {
            free(rows);
            return tn_fail(err, TN_E_MEMORY, "--plot", "out of memory; close other programs");
        }
        p->points = points;
        for (size_t i = 0; i < count; i++) {
            const profile_row *r = &rows[i];
            point new = {.c = c, .part = r->seconds / run->seconds, .eager = !r->kernel};
            if (new.part < LEAST_PART || r->operations <= LEAST_INTENSITY * r->bytes)
                continue;
            new.x = r->operations / r->bytes;
            new.y = r->operations / r->seconds * 1e-9;
            snprintf(new.name, sizeof new.name, "%s, %s %.0f %%", r->op, r->kernel ? r->kernel : "eager",
                     100 * new.part);
            p->points[p->count++] = new;
        }
        free(rows);
    }
    if (p->count)
        qsort(p->points, p->count, sizeof *p->points, largest_first);
    return TN_OK;
}

/* Powers of ten around everything. */
static void choose_axes(picture *p)
{
    double left = 1, right = 100, bottom = 1e300, top = 0;
    for (int i = 0; i < ROOFS; i++) {
        top = fmax(top, p->roofs[i].rate);
        right = fmax(right, 4 * p->roofs[i].rate / p->memory);
    }
    for (size_t i = 0; i < p->count; i++) {
        left = fmin(left, p->points[i].x);
        right = fmax(right, p->points[i].x);
        bottom = fmin(bottom, p->points[i].y);
        top = fmax(top, p->points[i].y);
    }
    p->left = floor(log10(left * 0.8));
    p->right = ceil(log10(right));
    p->bottom = floor(log10(fmin(bottom, top / 10) * 0.8));
    p->top = ceil(log10(top * 1.3));
}

static double pixel_x(const picture *p, double x)
{
    return FRAME_LEFT + (log10(x) - p->left) / (p->right - p->left) * (FRAME_RIGHT - FRAME_LEFT);
}

static double pixel_y(const picture *p, double y)
{
    return FRAME_BOTTOM - (log10(y) - p->bottom) / (p->top - p->bottom) * (FRAME_BOTTOM - FRAME_TOP);
}

static double size_of(const point *p)
{
    return 0.5 + 1.6 * sqrt(p->part);
}

/* ---- the script -------------------------------------------------------------------------------- */

static void put_position(FILE *f, double x, double y)
{
    fprintf(f, "screen %.5f, screen %.5f", x / PICTURE_WIDTH, 1 - y / PICTURE_HEIGHT);
}

static void put_label(FILE *f, const char *text, double x, double y, const char *how)
{
    fputs("set label ", f);
    gnuplot_text(f, text);
    fputs(" at ", f);
    put_position(f, x, y);
    fprintf(f, " %s\n", how);
}

static const char *const colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                      "#ff7f0e", "#17becf", "#8c564b", "#e377c2"};
enum { COLOURS = sizeof colours / sizeof *colours };

static void put_head(FILE *f, const picture *p, const bench *b, const tn_machine *m)
{
    char title[512];
    fprintf(f,
            "set terminal svg noenhanced size %d, %d font 'sans-serif,13' background '#ffffff'\n"
            "set encoding utf8\nset logscale xy\nset grid lc rgb '#e4e4e4' lw 1\n"
            "set xlabel 'operations per byte'\nset ylabel 'GFLOP/s'\nunset key\nset tics nomirror\n"
            "set format xy '%%g'\nset xrange [1e%g:1e%g]\nset yrange [1e%g:1e%g]\n",
            PICTURE_WIDTH, PICTURE_HEIGHT, p->left, p->right, p->bottom, p->top);
    fprintf(f,
            "set lmargin at screen %.5f\nset rmargin at screen %.5f\nset tmargin at screen %.5f\nset bmargin at screen "
            "%.5f\n",
            (double)FRAME_LEFT / PICTURE_WIDTH, (double)FRAME_RIGHT / PICTURE_WIDTH,
            1 - (double)FRAME_TOP / PICTURE_HEIGHT, 1 - (double)FRAME_BOTTOM / PICTURE_HEIGHT);
    snprintf(title, sizeof title, "%s (%s, %s), kernels %s", b->w.info.folder, b->w.info.class_name,
             tn_dtype_name(b->w.info.dtype), b->side[0].spec);
    put_label(f, title, FRAME_LEFT, 22, "font 'sans-serif,16'");
    snprintf(title, sizeof title, "%s, %d thread%s", m->cpu, (int)m->threads[1], m->threads[1] == 1 ? "" : "s");
    put_label(f, title, FRAME_LEFT, 44, "");
}

/* Colours of the cases, in two rows at most, and what full and hollow points are. */
static void put_legend(FILE *f, const bench *b)
{
    char name[96];
    double x = FRAME_LEFT, y = 66;
    for (size_t c = 0; c < b->case_count; c++) {
        char how[96];
        double width = CHARACTER * (double)strlen(profile_case_name(&b->cases[c], name)) + 40;
        if (x + width > FRAME_RIGHT) {
            x = FRAME_LEFT;
            y += 20;
        }
        if (y > FRAME_TOP)
            break;
        snprintf(how, sizeof how, "point pt 7 ps 1 lc rgb '%s' offset 0.8, 0", colours[c % COLOURS]);
        put_label(f, name, x + 4, y, how);
        x += width;
    }
    put_label(f, "full: a kernel; hollow: eager; size and %: part of the time", FRAME_RIGHT, PICTURE_HEIGHT - 16,
              "right");
}

static void put_line(FILE *f, picture *p, double x0, double y0, double x1, double y1)
{
    fprintf(f, "set arrow from %g, %g to %g, %g nohead lw 2 lc rgb '#444444'\n", x0, y0, x1, y1);
    roofline_take_line(&p->places, pixel_x(p, x0), pixel_y(p, y0), pixel_x(p, x1), pixel_y(p, y1), 5);
}

/* A horizontal roof for each arithmetic, from where memory delivers enough for it, and memory's own. */
static void put_roofs(FILE *f, picture *p)
{
    double highest = 0, begin = fmax(pow(10, p->left), pow(10, p->bottom) / p->memory);
    for (int i = 0; i < ROOFS; i++) {
        double rate = p->roofs[i].rate;
        if (rate > 0)
            put_line(f, p, rate / p->memory, rate, pow(10, p->right), rate);
        highest = fmax(highest, rate);
    }
    put_line(f, p, begin, begin * p->memory, highest / p->memory, highest);
    for (size_t i = 0; i < p->count; i++) {
        double r = 6 * size_of(&p->points[i]), x = pixel_x(p, p->points[i].x), y = pixel_y(p, p->points[i].y);
        roofline_take(&p->places, (rectangle){x - r, y - r, x + r, y + r});
    }
}

/* Above the roof, as far to the right as nothing is there. */
static void name_roof(FILE *f, picture *p, const roof *r)
{
    char text[96];
    snprintf(text, sizeof text, "%s, %.0f GFLOP/s", r->name, r->rate);
    double y = pixel_y(p, r->rate), width = CHARACTER * (double)strlen(text), right = FRAME_RIGHT - 6;
    while (right - width > FRAME_LEFT &&
           !roofline_take_free(&p->places, (rectangle){right - width, y - LINE - 4, right, y - 4}))
        right -= 8;
    put_label(f, text, right, y - 9, "right tc rgb '#444444'");
}

/* Along the roof, above it. */
static void name_memory(FILE *f, picture *p)
{
    char text[96], how[96];
    double begin = fmax(pow(10, p->left), pow(10, p->bottom) / p->memory);
    double x0 = pixel_x(p, begin), y0 = pixel_y(p, begin * p->memory);
    double dx = pixel_x(p, 10 * begin) - x0, dy = pixel_y(p, 10 * begin * p->memory) - y0, length = hypot(dx, dy);
    double ux = dx / length, uy = dy / length, x = x0 + 24 * ux + 11 * uy, y = y0 + 24 * uy - 11 * ux;
    snprintf(text, sizeof text, "memory, read, %.1f GB/s", p->memory);
    snprintf(how, sizeof how, "rotate by %.1f tc rgb '#444444'", atan2(-uy, ux) * 57.29578);
    put_label(f, text, x, y, how);
    double width = CHARACTER * (double)strlen(text);
    roofline_take_line(&p->places, x, y, x + width * ux, y + width * uy, LINE);
}

static void put_labels(FILE *f, picture *p)
{
    name_memory(f, p);
    for (int i = 0; i < ROOFS; i++)
        if (p->roofs[i].rate > 0)
            name_roof(f, p, &p->roofs[i]);
    for (size_t i = 0; i < p->count; i++) {
        const point *at = &p->points[i];
        double x = pixel_x(p, at->x), y = pixel_y(p, at->y);
        roofline_label l;
        char how[64];
        if (!roofline_place(&p->places, x, y, strlen(at->name), &l))
            continue;
        snprintf(how, sizeof how, "%s font 'sans-serif,12' tc rgb '%s'", l.ends ? "right" : "left",
                 colours[at->c % COLOURS]);
        put_label(f, at->name, l.ends ? l.at.right : l.at.left, (l.at.top + l.at.bottom) / 2, how);
        if (hypot(l.end_x - x, l.end_y - y) < 16)
            continue;
        fputs("set arrow from ", f);
        put_position(f, x, y);
        fputs(" to ", f);
        put_position(f, l.end_x, l.end_y);
        fprintf(f, " nohead lw 0.6 lc rgb '%s'\n", colours[at->c % COLOURS]);
    }
}

static void put_points(FILE *f, const picture *p)
{
    fputs("plot 1/0 notitle", f); /* there may be no point at all */
    for (size_t i = 0; i < p->count; i++)
        fprintf(f, ", '+' using (%g):(%g) every ::0::0 with points pt %d ps %.2f lw 2 lc rgb '%s'", p->points[i].x,
                p->points[i].y, p->points[i].eager ? 6 : 7, size_of(&p->points[i]), colours[p->points[i].c % COLOURS]);
    fputc('\n', f);
}

tn_status roofline_draw(FILE *to, const bench *b, const tn_machine *m, tn_error *err)
{
    picture *p = calloc(1, sizeof *p);
    FILE *script = tmpfile();
    if (!p || !script) {
        free(p);
        if (script)
            fclose(script);
        return tn_fail(err, TN_E_INTERNAL, "--plot", "no temporary file: %s; free space in /tmp", strerror(errno));
    }
    const roof roofs[ROOFS] = {{"f32", m->f32[1] * 1e-9},
                               {"bf16 dot products", m->bf16[1] * 1e-9},
                               {"f16, f16 sums", m->f16[1] * 1e-9},
                               {"bf16 tiles (AMX)", m->amx_bf16[1] * 1e-9}};
    memcpy(p->roofs, roofs, sizeof roofs);
    p->memory = m->read[1] * 1e-9;
    tn_status status = collect(p, b, m, err);
    if (status == TN_OK) {
        choose_axes(p);
        put_head(script, p, b, m);
        put_legend(script, b);
        put_roofs(script, p);
        put_labels(script, p);
        put_points(script, p);
        status = gnuplot_run(script, to, err);
    }
    fclose(script);
    free(p->points);
    free(p);
    return status;
}
