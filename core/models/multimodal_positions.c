/* Positions of text, pictures and sounds on three axes. Single precision, as where positions are fractions of a second;
 * whole numbers are exact in it as far as rotations are. */
#include "models/multimodal.h"

#include <math.h>

/* The picture that a run of tokens stands for. */
typedef struct picture {
    int64_t t, h, w; /* in tokens                                                                      */
    int64_t side;    /* of the larger one in patches, over merge                                      */
    float interval;  /* between frames                                                                */
} picture;

/* The next grid of that kind; TN_E_INPUT where there is none. */
static tn_status take_picture(const multimodal *m, multimodal_grids *g, int8_t kind, picture *out, tn_error *err)
{
    if (g->next[kind] >= g->count[kind])
        return tn_fail(err, TN_E_INPUT, m->token_key[kind],
                       "there are tokens for more %s than the %lld whose grids are given",
                       kind == MULTIMODAL_IMAGE ? "images" : "videos", (long long)g->count[kind]);
    int64_t at = g->next[kind];
    const int64_t *grid = g->grids[kind] + 3 * at;
    bool video = kind == MULTIMODAL_VIDEO, split = video && m->rules.split_frames;
    float seconds = m->rules.by_seconds && video && g->seconds ? g->seconds[at] : 1.0f;
    *out = (picture){.t = split ? 1 : grid[0], .h = grid[1] / m->merge, .w = grid[2] / m->merge};
    out->side = (grid[1] > grid[2] ? grid[1] : grid[2]) / m->merge;
    out->interval = video ? seconds * (float)m->rules.video_interval : (float)m->rules.image_interval;
    if (split && ++g->frame < grid[0])
        return TN_OK;
    g->frame = 0;
    g->next[kind]++;
    return TN_OK;
}

/* Fills the tokens of a picture; the largest position of them. */
static float place_picture(const multimodal *m, const picture *p, const int64_t *at, float first,
                           float *const axes[ROPE_AXES])
{
    float highest = first;
    int64_t n = p->t * p->h * p->w;
    for (int64_t i = 0; i < n; i++) {
        int64_t frame = i / (p->h * p->w);
        float time = (float)frame * p->interval;
        float place[ROPE_AXES] = {m->rules.fractions ? time : floorf(time), (float)(i / p->w % p->h),
                                  (float)(i % p->w)};
        for (int a = 0; a < ROPE_AXES; a++) {
            axes[a][at[i]] = first + place[a];
            highest = fmaxf(highest, first + place[a]);
        }
    }
    return highest;
}

static int64_t run_length(const int8_t *kinds, int64_t n)
{
    int64_t length = 1;
    while (length < n && kinds[length] == kinds[0])
        length++;
    return length;
}

tn_status multimodal_positions(const multimodal *m, multimodal_grids *grids, const int8_t *kinds, const int64_t *at,
                               int64_t n, float first, float *const axes[ROPE_AXES], float *highest, tn_error *err)
{
    float next = first;
    *highest = first - 1;
    for (int64_t i = 0; i < n;) {
        if (kinds[i] != MULTIMODAL_IMAGE && kinds[i] != MULTIMODAL_VIDEO) {
            for (int a = 0; a < ROPE_AXES; a++)
                axes[a][at[i]] = next;
            *highest = fmaxf(*highest, next);
            next += 1;
            i++;
            continue;
        }
        picture p = {0};
        tn_status status = take_picture(m, grids, kinds[i], &p, err);
        if (status != TN_OK)
            return status;
        int64_t wanted = p.t * p.h * p.w, found = run_length(kinds + i, n - i);
        if (found < wanted)
            return tn_fail(err, TN_E_INPUT, m->token_key[kinds[i]],
                           "a grid makes %lld tokens (%lld in time, %lld by %lld), %lld stand for it",
                           (long long)wanted, (long long)p.t, (long long)p.h, (long long)p.w, (long long)found);
        float last = place_picture(m, &p, at + i, next, axes);
        next = m->rules.from_highest ? last + 1 : next + (float)p.side;
        *highest = fmaxf(*highest, last);
        i += wanted;
    }
    return TN_OK;
}
