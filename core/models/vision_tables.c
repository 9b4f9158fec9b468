/* Orders, spans, angles and learnt positions of a call's pictures. Single precision where transformers computes in
 * single precision. */
#include "models/vision_tables.h"

#include <math.h>
#include <stdlib.h>

/* ---- order and spans ----------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One frame of rows x columns groups, of which the first is number first: window by window. */
static void window_frame(vision_tables *t, int64_t rows, int64_t columns, int64_t window, int64_t unit, int64_t first)
{
    int64_t at = first;
    for (int64_t top = 0; top < rows; top += window)
        for (int64_t left = 0; left < columns; left += window) {
            int64_t bottom = least(top + window, rows), right = least(left + window, columns);
            for (int64_t i = top; i < bottom; i++)
                for (int64_t j = left; j < right; j++)
                    t->order[at++] = (int32_t)(first + i * columns + j);
            t->windows.length[t->windows.count++] = (bottom - top) * (right - left) * unit;
        }
}

static void fill(vision_tables *t, const tower_media *media, int64_t merge, int64_t window)
{
    int64_t first = 0;
    for (int64_t i = 0; i < media->grid_count; i++) {
        const tower_grid *g = &media->grids[i];
        int64_t rows = g->h / merge, columns = g->w / merge;
        for (int64_t frame = 0; frame < g->t; frame++, first += rows * columns) {
            t->frames.length[t->frames.count++] = g->h * g->w;
            if (window)
                window_frame(t, rows, columns, window, merge * merge, first);
            for (int64_t j = 0; !window && j < rows * columns; j++)
                t->order[first + j] = (int32_t)(first + j);
        }
    }
}

bool vision_tables_make(vision_tables *t, const tower_media *media, int64_t merge, int64_t window)
{
    int64_t frames = 0;
    *t = (vision_tables){0};
    for (int64_t i = 0; i < media->grid_count; i++) {
        t->patches += media->grids[i].t * media->grids[i].h * media->grids[i].w;
        frames += media->grids[i].t;
    }
    t->groups = t->patches / (merge * merge);
    t->frames.length = malloc((size_t)(frames + 1) * sizeof(int64_t));
    t->windows.length = malloc((size_t)(t->groups + 1) * sizeof(int64_t)); /* none is empty        */
    t->order = malloc((size_t)(t->groups + 1) * sizeof(int32_t));
    if (t->frames.length && t->windows.length && t->order) {
        fill(t, media, merge, window);
        return true;
    }
    vision_tables_free(t);
    return false;
}

void vision_tables_free(vision_tables *t)
{
    free(t->frames.length);
    free(t->windows.length);
    free(t->order);
    *t = (vision_tables){0};
}

void vision_tables_places(const vision_tables *t, int32_t *place)
{
    for (int64_t i = 0; i < t->groups; i++)
        place[t->order[i]] = (int32_t)i;
}

/* ---- where patches lie --------------------------------------------------------------------------- */

/* Patches come frame by frame, in each the groups of merge x merge patches by rows and columns, and in each group its
 * patches by rows and columns. Patch number i of a frame of that width: */
static void place_of(int64_t i, int64_t width, int64_t merge, int64_t *row, int64_t *column)
{
    int64_t in_group = i % (merge * merge), group = i / (merge * merge), groups = width / merge;
    *row = group / groups * merge + in_group / merge;
    *column = group % groups * merge + in_group % merge;
}

typedef struct axis_angles {
    int64_t frequencies;
    float *cosine, *sine; /* [positions, frequencies]                                              */
} axis_angles;

static bool axis_angles_make(axis_angles *a, int64_t positions, int64_t frequencies, double theta)
{
    a->frequencies = frequencies;
    a->cosine = malloc((size_t)(positions * frequencies + 1) * sizeof(float));
    a->sine = malloc((size_t)(positions * frequencies + 1) * sizeof(float));
    if (!a->cosine || !a->sine)
        return false;
    for (int64_t i = 0; i < frequencies; i++) {
        float frequency = 1.0f / powf((float)theta, (float)(2 * i) / (float)(2 * frequencies));
        for (int64_t position = 0; position < positions; position++) {
            float angle = (float)position * frequency;
            a->cosine[position * frequencies + i] = cosf(angle);
            a->sine[position * frequencies + i] = sinf(angle);
        }
    }
    return true;
}

/* One row of a table: those of the patch's row and column, twice. */
static void put_angles(const float *axis, int64_t n, int64_t row, int64_t column, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = out[2 * n + i] = axis[row * n + i];
        out[n + i] = out[3 * n + i] = axis[column * n + i];
    }
}

/* Group number group of a grid whose groups go to places from place on. */
static void rotate_group(const axis_angles *a, const tower_grid *g, int64_t merge, int64_t group, int64_t place,
                         float *cosine, float *sine)
{
    int64_t unit = merge * merge, dim = 4 * a->frequencies;
    for (int64_t i = 0; i < unit; i++) {
        int64_t row, column, at = (place * unit + i) * dim;
        place_of((group * unit + i) % (g->h * g->w), g->w, merge, &row, &column);
        put_angles(a->cosine, a->frequencies, row, column, cosine + at);
        put_angles(a->sine, a->frequencies, row, column, sine + at);
    }
}

bool vision_tables_rotation(const vision_tables *t, const tower_media *media, int64_t merge, int64_t dim, double theta,
                            float *cosine, float *sine)
{
    int64_t longest = 0, first = 0;
    for (int64_t i = 0; i < media->grid_count; i++) {
        const tower_grid *g = &media->grids[i];
        longest = g->h > longest ? g->h : longest;
        longest = g->w > longest ? g->w : longest;
    }
    axis_angles a = {0};
    bool made = axis_angles_make(&a, longest, dim / 4, theta);
    for (int64_t i = 0; made && i < media->grid_count; i++) {
        const tower_grid *g = &media->grids[i];
        int64_t groups = g->t * g->h * g->w / (merge * merge);
        for (int64_t j = first; j < first + groups; j++) /* no group leaves its picture            */
            rotate_group(&a, g, merge, t->order[j] - first, j, cosine, sine);
        first += groups;
    }
    free(a.cosine);
    free(a.sine);
    return made;
}

/* ---- learnt positions ----------------------------------------------------------------------------- */

enum { MOST_TAPS = 4 };

/* The taps of one axis: position index of size is where of a table's side, and how much of what lies there. */
typedef struct axis_taps {
    int64_t at[MOST_TAPS];
    float weight[MOST_TAPS];
} axis_taps;

static int64_t within(int64_t i, int64_t side)
{
    return i < 0 ? 0 : i >= side ? side - 1 : i;
}

/* The first and the last patch are the first and the last position of the table. */
static axis_taps bilinear(int64_t index, int64_t size, int64_t side)
{
    float where = (float)index * (float)(side - 1) / (float)(size > 1 ? size - 1 : 1), floor = floorf(where);
    axis_taps t;
    for (int i = 0; i < 2; i++) {
        float weight = 1.0f - fabsf(where - floor - (float)i);
        t.at[i] = within((int64_t)floor + i, side);
        t.weight[i] = weight > 0.0f ? weight : 0.0f;
    }
    return t;
}

/* Keys' kernel with a = -0.75; centres of patches, from -1 to 1 over the picture; beyond the table its border. */
static axis_taps bicubic(int64_t index, int64_t size, int64_t side)
{
    const float a = -0.75f;
    float norm = ((float)index + 0.5f) / (float)size * 2.0f - 1.0f;
    float where = ((norm + 1.0f) * (float)side - 1.0f) / 2.0f, floor = floorf(where);
    axis_taps t;
    for (int i = 0; i < 4; i++) {
        float d = fabsf(where - floor - (float)(i - 1));
        float near = ((a + 2.0f) * d - (a + 3.0f)) * d * d + 1.0f;
        float far = ((a * d - 5.0f * a) * d + 8.0f * a) * d - 4.0f * a;
        t.at[i] = within((int64_t)floor + i - 1, side);
        t.weight[i] = d <= 1.0f ? near : far;
    }
    return t;
}

static int64_t taps_of(vision_positions kind)
{
    return kind == VISION_BILINEAR ? 2 : MOST_TAPS;
}

int64_t vision_tables_taps(vision_positions kind)
{
    return taps_of(kind) * taps_of(kind);
}

static void put_taps(const axis_taps *rows, const axis_taps *columns, int64_t taps, int64_t side, int64_t *ids,
                     float *weights)
{
    for (int64_t i = 0; i < taps * taps; i++) {
        ids[i] = rows->at[i / taps] * side + columns->at[i % taps];
        weights[i] = rows->weight[i / taps] * columns->weight[i % taps];
    }
}

void vision_tables_positions(const tower_media *media, vision_positions kind, int64_t merge, int64_t side, int64_t *ids,
                             float *weights)
{
    axis_taps (*taps_at)(int64_t, int64_t, int64_t) = kind == VISION_BILINEAR ? bilinear : bicubic;
    int64_t taps = taps_of(kind), at = 0;
    for (int64_t i = 0; i < media->grid_count; i++) {
        const tower_grid *g = &media->grids[i];
        for (int64_t j = 0; j < g->t * g->h * g->w; j++, at += taps * taps) {
            int64_t row, column;
            place_of(j % (g->h * g->w), g->w, merge, &row, &column);
            axis_taps rows = taps_at(row, g->h, side), columns = taps_at(column, g->w, side);
            put_taps(&rows, &columns, taps, side, ids + at, weights + at);
        }
    }
}
