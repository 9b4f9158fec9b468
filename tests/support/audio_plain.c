/* A plain computation of what towers hear. */
#include "audio_plain.h"

#include "base/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, HEADS = 2, INTER = 56, LAYERS = 2, MEL = AUDIO_PLAIN_MEL, CHANNELS = 8, MAX_CHUNKS = 1024 };

/* A matrix, or planes of one. Owned. */
typedef struct grid {
    int64_t planes, rows, columns;
    double *at;
} grid;

static grid grid_new(int64_t planes, int64_t rows, int64_t columns)
{
    return (grid){planes, rows, columns, calloc((size_t)(planes * rows * columns) + 1, sizeof(double))};
}

/* A parameter of the tower, or NULL. Owned. */
static double *weight(const audio_plain_tower *e, const char *name)
{
    char full[256];
    tn_tensor t;
    snprintf(full, sizeof full, "%s%saudio_tower.%s", e->outer, e->outer[0] ? "." : "", name);
    if (!shards_get(e->weights, full, &t))
        return NULL;
    int64_t count = tn_tensor_count(&t);
    float *single = malloc((size_t)count * sizeof *single);
    double *out = malloc((size_t)count * sizeof *out);
    convert_to_f32(t.data, t.dtype, single, count);
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)single[i];
    free(single);
    return out;
}

static double *part_weight(const audio_plain_tower *e, const char *module, const char *part)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", module, part);
    return weight(e, name);
}

static void gelu(const grid *x)
{
    for (int64_t i = 0; i < x->planes * x->rows * x->columns; i++)
        x->at[i] *= 0.5 * (1 + erf(x->at[i] / sqrt(2.0)));
}

/* Frees x. */
static grid linear(const audio_plain_tower *e, const char *module, grid x, int64_t out)
{
    double *w = part_weight(e, module, "weight"), *bias = part_weight(e, module, "bias");
    grid y = grid_new(1, x.rows, out);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? bias[o] : 0;
            for (int64_t i = 0; i < x.columns; i++)
                sum += x.at[t * x.columns + i] * w[o * x.columns + i];
            y.at[t * out + o] = sum;
        }
    free(w);
    free(bias);
    free(x.at);
    return y;
}

static grid layer_norm(const audio_plain_tower *e, const char *module, const grid *x)
{
    double *w = part_weight(e, module, "weight"), *bias = part_weight(e, module, "bias");
    grid y = grid_new(1, x->rows, x->columns);
    for (int64_t t = 0; t < x->rows; t++) {
        const double *row = x->at + t * x->columns;
        double mean = 0, var = 0;
        for (int64_t i = 0; i < x->columns; i++)
            mean += row[i] / (double)x->columns;
        for (int64_t i = 0; i < x->columns; i++)
            var += (row[i] - mean) * (row[i] - mean) / (double)x->columns;
        for (int64_t i = 0; i < x->columns; i++)
            y.at[t * x->columns + i] = (row[i] - mean) / sqrt(var + 1e-5) * w[i] + bias[i];
    }
    free(w);
    free(bias);
    return y;
}

/* Frees x. Kernels of 3 along columns and, in planes, along rows, over one zero on each side. */
static grid convolve(const audio_plain_tower *e, const char *module, grid x, int64_t out, int64_t stride)
{
    double *w = part_weight(e, module, "weight"), *bias = part_weight(e, module, "bias");
    int64_t high = e->planes ? 3 : 1, down = high == 3 ? stride : 1;
    grid y = grid_new(out, (x.rows - 1) / down + 1, (x.columns - 1) / stride + 1);
    for (int64_t o = 0; o < out; o++)
        for (int64_t r = 0; r < y.rows; r++)
            for (int64_t c = 0; c < y.columns; c++) {
                double sum = bias[o];
                for (int64_t p = 0; p < x.planes; p++)
                    for (int64_t k = 0; k < high * 3; k++) {
                        int64_t row = r * down + k / 3 - high / 2, column = c * stride + k % 3 - 1;
                        if (row >= 0 && row < x.rows && column >= 0 && column < x.columns)
                            sum += w[(o * x.planes + p) * high * 3 + k] * x.at[(p * x.rows + row) * x.columns + column];
                    }
                y.at[(o * y.rows + r) * y.columns + c] = sum;
            }
    gelu(&y);
    free(w);
    free(bias);
    free(x.at);
    return y;
}

/* Rows of y from begin on, count of them. */
static void attend(const grid *q, const grid *k, const grid *v, const grid *y, int64_t begin, int64_t count)
{
    int64_t dim = WIDTH / HEADS;
    double *score = malloc((size_t)count * sizeof *score);
    for (int64_t n = 0; n < count * HEADS; n++) {
        int64_t t = begin + n / HEADS, head = n % HEADS * dim;
        double sum = 0;
        for (int64_t s = 0; s < count; s++) {
            double dot = 0;
            for (int64_t i = 0; i < dim; i++)
                dot += q->at[t * WIDTH + head + i] * k->at[(begin + s) * WIDTH + head + i];
            score[s] = exp(dot / sqrt((double)dim));
            sum += score[s];
        }
        for (int64_t s = 0; s < count; s++)
            for (int64_t i = 0; i < dim; i++)
                y->at[t * WIDTH + head + i] += score[s] / sum * v->at[(begin + s) * WIDTH + head + i];
    }
    free(score);
}

static grid copy_of(const grid *x)
{
    grid y = grid_new(x->planes, x->rows, x->columns);
    memcpy(y.at, x->at, (size_t)(x->planes * x->rows * x->columns) * sizeof *y.at);
    return y;
}

/* Frees x. */
static void add(const grid *to, grid x)
{
    for (int64_t i = 0; i < x.rows * x.columns; i++)
        to->at[i] += x.at[i];
    free(x.at);
}

static void encode(const audio_plain_tower *e, const grid *h, const int64_t *span)
{
    for (int n = 0; n < LAYERS; n++) {
        const char *const names[] = {"self_attn_layer_norm",
                                     "self_attn.q_proj",
                                     "self_attn.k_proj",
                                     "self_attn.v_proj",
                                     "self_attn.out_proj",
                                     "final_layer_norm",
                                     "fc1",
                                     "fc2"};
        char name[8][64];
        for (int i = 0; i < 8; i++)
            snprintf(name[i], sizeof name[i], "layers.%d.%s", n, names[i]);
        grid x = layer_norm(e, name[0], h), y = grid_new(1, h->rows, WIDTH);
        grid q = linear(e, name[1], copy_of(&x), WIDTH), k = linear(e, name[2], copy_of(&x), WIDTH);
        grid v = linear(e, name[3], x, WIDTH);
        for (int64_t begin = 0, i = 0; begin < h->rows; begin += span[i++])
            attend(&q, &k, &v, &y, begin, span[i]);
        free(q.at);
        free(k.at);
        free(v.at);
        add(h, linear(e, name[4], y, WIDTH));
        x = linear(e, name[6], layer_norm(e, name[5], h), INTER);
        gelu(&x);
        add(h, linear(e, name[7], x, WIDTH));
    }
}

static void add_positions(const grid *x)
{
    for (int64_t t = 0; t < x->rows; t++)
        for (int64_t i = 0; i < WIDTH / 2; i++) {
            double angle = (double)t * exp(-log(10000.0) / (WIDTH / 2 - 1) * (double)i);
            x->at[t * WIDTH + i] += sin(angle);
            x->at[t * WIDTH + WIDTH / 2 + i] += cos(angle);
        }
}

typedef struct chunks {
    int64_t count, longest, clip[MAX_CHUNKS], begin[MAX_CHUNKS], frames[MAX_CHUNKS];
} chunks;

static chunks cut(const int64_t *frames, int64_t clips, int64_t n_window)
{
    chunks c = {0};
    for (int64_t i = 0; i < clips; i++)
        for (int64_t begin = 0; begin < frames[i]; begin += 2 * n_window, c.count++) {
            int64_t left = frames[i] - begin, count = left < 2 * n_window ? left : 2 * n_window;
            c.clip[c.count] = i;
            c.begin[c.count] = begin;
            c.frames[c.count] = count;
            c.longest = count > c.longest ? count : c.longest;
        }
    return c;
}

/* The features of chunk n, padded to the longest: planes of rows as the first convolution has them. */
static grid padded(const tn_tensor *features, const chunks *c, int64_t n, bool planes)
{
    grid x = grid_new(planes ? 1 : MEL, planes ? MEL : 1, c->longest);
    for (int64_t m = 0; m < MEL; m++)
        for (int64_t t = 0; t < c->frames[n]; t++)
            x.at[m * c->longest + t] =
                (double)((const float *)features->data)[(c->clip[n] * MEL + m) * features->shape[2] + c->begin[n] + t];
    return x;
}

/* Frees x. The columns of all planes and rows become rows. */
static grid turned(grid x)
{
    grid y = grid_new(1, x.columns, x.planes * x.rows);
    for (int64_t i = 0; i < y.columns; i++)
        for (int64_t t = 0; t < y.rows; t++)
            y.at[t * y.columns + i] = x.at[i * y.rows + t];
    free(x.at);
    return y;
}

static grid expected_v2(const audio_plain_tower *e, const tn_tensor *features, const int64_t *frames, int64_t clips)
{
    chunks c = cut(frames, clips, e->n_window);
    int64_t rows = 0, from = 0, to = 0, span[MAX_CHUNKS] = {0};
    for (int64_t n = 0; n < c.count; n++)
        rows += span[n] = (c.frames[n] - 1) / 2 + 1;
    grid h = grid_new(1, rows, WIDTH), pooled = grid_new(1, rows, WIDTH);
    for (int64_t n = 0, row = 0; n < c.count; row += span[n++]) {
        grid x = convolve(e, "conv1", padded(features, &c, n, false), WIDTH, 1);
        for (int64_t i = 0; i < WIDTH * c.longest; i++)
            x.at[i] *= i % c.longest < c.frames[n];
        x = turned(convolve(e, "conv2", x, WIDTH, 2));
        add_positions(&x);
        memcpy(h.at + row * WIDTH, x.at, (size_t)(span[n] * WIDTH) * sizeof *x.at);
        free(x.at);
    }
    encode(e, &h, span);
    for (int64_t i = 0; i < clips; from += (frames[i] - 1) / 2 + 1, i++)
        for (int64_t t = 0; t + 1 < (frames[i] - 1) / 2 + 1; t += 2, to++)
            for (int64_t j = 0; j < WIDTH; j++)
                pooled.at[to * WIDTH + j] = (h.at[(from + t) * WIDTH + j] + h.at[(from + t + 1) * WIDTH + j]) / 2;
    pooled.rows = to;
    grid x = layer_norm(e, "ln_post", &pooled);
    free(pooled.at);
    free(h.at);
    return linear(e, "proj", x, AUDIO_PLAIN_OUT);
}

/* What is left of so many frames: 13 rows of each whole chunk. */
static int64_t shortened(int64_t frames, int64_t n_window)
{
    int64_t left = frames % (2 * n_window);
    return (left + 7) / 8 + frames / (2 * n_window) * 13;
}

static grid expected_v3(const audio_plain_tower *e, const tn_tensor *features, const int64_t *frames, int64_t clips)
{
    chunks c = cut(frames, clips, e->n_window);
    int64_t places = (c.longest + 7) / 8, most = 0, rows = 0, spans = 0, span[MAX_CHUNKS] = {0};
    for (int64_t n = 0; n < c.count; n++)
        most = shortened(c.frames[n], e->n_window) > most ? shortened(c.frames[n], e->n_window) : most;
    grid all = grid_new(1, c.count * places, WIDTH), h = grid_new(1, c.count * most, WIDTH);
    for (int64_t n = 0; n < c.count; n++) {
        grid x = convolve(e, "conv2d1", padded(features, &c, n, true), CHANNELS, 2);
        x = convolve(e, "conv2d2", x, CHANNELS, 2);
        x = linear(e, "conv_out", turned(convolve(e, "conv2d3", x, CHANNELS, 2)), WIDTH);
        add_positions(&x);
        memcpy(all.at + n * places * WIDTH, x.at, (size_t)(places * WIDTH) * sizeof *x.at);
        free(x.at);
    }
    for (int64_t n = 0; n < c.count; n++)
        for (int64_t t = 0; t < shortened(c.frames[n], e->n_window); t++, rows++)
            memcpy(h.at + rows * WIDTH, all.at + (n * most + t) * WIDTH, WIDTH * sizeof *h.at);
    h.rows = rows;
    for (int64_t i = 0; i < clips; i++)
        for (int64_t left = shortened(frames[i], e->n_window), whole = most * (e->n_window_infer / (2 * e->n_window));
             left > 0; left -= span[spans++])
            span[spans] = left < whole ? left : whole;
    encode(e, &h, span);
    grid x = linear(e, "proj1", layer_norm(e, "ln_post", &h), WIDTH);
    gelu(&x);
    free(all.at);
    free(h.at);
    return linear(e, "proj2", x, AUDIO_PLAIN_OUT);
}

double *audio_plain(const audio_plain_tower *tower, const tn_tensor *features, const int64_t *frames, int64_t clips,
                    int64_t *rows)
{
    grid y = tower->planes ? expected_v3(tower, features, frames, clips) : expected_v2(tower, features, frames, clips);
    *rows = y.rows;
    return y.at;
}
