/* AdamW over parameters where they lie. */
#include "train/optimiser.h"

#include "base/convert.h"
#include "base/reserved.h"

#include <math.h>
#include <tenon/half.h>

void optimiser_close(optimiser *o)
{
    reserved_free(o->first, o->bytes);
    reserved_free(o->second, o->bytes);
    *o = (optimiser){0};
}

tn_status optimiser_open(optimiser *o, const train_params *params, tn_error *err)
{
    if (o->second)
        return TN_OK;
    o->bytes = params->bytes + 1;
    o->first = o->first ? o->first : reserved_new(o->bytes);
    o->second = o->first ? reserved_new(o->bytes) : NULL;
    return o->second ? TN_OK
                     : tn_fail(err, TN_E_MEMORY, "optimiser", "out of memory for moments of %zu bytes", o->bytes);
}

/* ---- what may be stepped ---------------------------------------------------------------------------------------- */

tn_status optimiser_check(const tn_model *model, const train_params *params, tn_error *err)
{
    const graph *g = model->target.graph;
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i]->bound.packed && !model->adapter) /* whose factors nobody packs                    */
            return tn_fail(err, TN_E_USAGE, g->sites[i]->site.path,
                           "kernel %s keeps a copy of its weights, which would not follow; take it off",
                           g->sites[i]->bound.id);
    for (size_t i = 0; i < params->count; i++)
        if (params->at[i].read && params->at[i].dtype == TN_F16)
            return tn_fail(err, TN_E_USAGE, "optimiser", "parameters are f16; open the model in mixed, or in bf16");
    return TN_OK;
}

/* ---- norms ------------------------------------------------------------------------------------------------------ */

static double rounded(double x, tn_dtype dtype)
{
    float value = (float)x, back;
    uint16_t half;
    if (dtype == TN_F32)
        return x;
    convert_from_f32(&value, dtype, &half, 1);
    convert_to_f32(&half, dtype, &back, 1);
    return (double)back;
}

/* A gradient in the type that the parameter is trained in. */
static void round_sums(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const train_param *p = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        p->sums[i] = tn_bf16_to_f32(tn_f32_to_bf16(p->sums[i]));
}

/* The squares of a gradient's elements from `first` on, a sum for each block. */
enum { NORM_BLOCK = 1 << 14, NORM_BLOCKS = 1024 };
typedef struct squares {
    const train_param *p;
    int64_t first;
    double sum[NORM_BLOCKS];
} squares;

static void square_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    squares *s = ctx;
    (void)thread;
    for (int64_t block = begin; block < end; block++) {
        int64_t from = s->first + block * NORM_BLOCK, left = params_count(s->p) - from;
        double sum = 0;
        for (int64_t i = 0; i < left && i < NORM_BLOCK; i++)
            sum += (double)s->p->sums[from + i] * (double)s->p->sums[from + i];
        s->sum[block] = sum;
    }
}

static double squares_of(const train_param *p)
{
    squares s = {.p = p};
    double all = 0;
    for (int64_t count = params_count(p); s.first < count; s.first += (int64_t)NORM_BLOCK * NORM_BLOCKS) {
        int64_t blocks = (count - s.first + NORM_BLOCK - 1) / NORM_BLOCK;
        blocks = blocks < NORM_BLOCKS ? blocks : NORM_BLOCKS;
        tn_parallel_for(blocks, 1, square_blocks, &s);
        for (int64_t i = 0; i < blocks; i++)
            all += s.sum[i];
    }
    return all;
}

/* In double, block after block of one tensor after the other: the same on any number of threads. Norms of gradients in
 * bf16 are bf16, as is theirs. */
static double norm_of(const train_params *params, tn_dtype *type)
{
    double sum = 0;
    *type = TN_F32;
    for (size_t i = 0; i < params->count; i++) {
        train_param *p = &params->at[i];
        if (p->read && p->dtype == TN_BF16) {
            *type = TN_BF16;
            tn_parallel_for(params_count(p), 1 << 14, round_sums, p);
        }
        double own = p->read ? rounded(sqrt(squares_of(p)), p->dtype) : 0;
        sum += own * own;
    }
    return rounded(sqrt(sum), *type);
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

typedef struct update {
    void *p, *m, *v;
    const float *g;
    float keep, scale;                          /* 1 - rate decay; of gradients                    */
    float news1, beta2, news2, rate, root, eps; /* news: 1 - beta, rounded once                        */
} update;

/* One element; what it was computed with is what p gets, before m and v are rounded. */
static inline void update_element(const update *u, float g, float *p, float *m, float *v)
{
    *m += u->news1 * (g - *m);
    *v = u->beta2 * *v + u->news2 * g * g;
    *p = *p * u->keep - u->rate * *m / (sqrtf(*v) / u->root + u->eps);
}

static void update_f32(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const update *u = ctx;
    float *p = u->p, *m = u->m, *v = u->v;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        update_element(u, u->g[i] * u->scale, p + i, m + i, v + i);
}

static void update_bf16(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const update *u = ctx;
    uint16_t *p = u->p, *m = u->m, *v = u->v;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float g = tn_bf16_to_f32(tn_f32_to_bf16(u->g[i] * u->scale));
        float x = tn_bf16_to_f32(p[i]), first = tn_bf16_to_f32(m[i]), second = tn_bf16_to_f32(v[i]);
        update_element(u, g, &x, &first, &second);
        p[i] = tn_f32_to_bf16(x);
        m[i] = tn_f32_to_bf16(first);
        v[i] = tn_f32_to_bf16(second);
    }
}

/* What gradients are multiplied by, in their type. */
static float scale_of(const tn_train_step *step, double norm, tn_dtype type)
{
    double scale = step->max_norm > 0 ? rounded(step->max_norm / rounded(norm + 1e-6, type), type) : 1;
    return (float)(scale < 1 ? scale : 1);
}

static void move(const optimiser *o, const tn_model *model, const train_params *params, train_param *p, update u)
{
    ptrdiff_t at = p->sums - params->sums;
    u.p = (void *)(uintptr_t)p->data;
    u.g = p->sums;
    u.m = o->first + at;
    u.v = o->second + at;
    if (!p->moved) {
        params_zero(u.m, p->bytes);
        params_zero(u.v, p->bytes);
    }
    params_unlock(params, p);
    tn_parallel_for(params_count(p), 1 << 14, p->dtype == TN_F32 ? update_f32 : update_bf16, &u);
    params_round(params, p);
    params_lock(params, p, model);
    p->moved = true;
}

tn_status optimiser_step(optimiser *o, const tn_model *model, train_params *params, const tn_train_step *step,
                         double *norm, tn_error *err)
{
    tn_dtype type;
    tn_status status = optimiser_check(model, params, err);
    if (status == TN_OK)
        status = optimiser_open(o, params, err);
    if (status != TN_OK)
        return status;
    *norm = norm_of(params, &type);
    if (!isfinite(*norm))
        return tn_fail(err, TN_E_VERIFY, "optimiser",
                       "the norm of the gradients is no number; a smaller rate may help");
    double t = (double)++o->steps;
    update u = {.scale = scale_of(step, *norm, type),
                .news1 = (float)(1 - step->beta1),
                .beta2 = (float)step->beta2,
                .news2 = (float)(1 - step->beta2),
                .rate = (float)(step->rate / (1 - pow(step->beta1, t))),
                .root = (float)sqrt(1 - pow(step->beta2, t)),
                .eps = (float)step->eps};
    for (size_t i = 0; i < params->count; i++) {
        u.keep = (float)(1 - step->rate * (params->at[i].decays ? step->decay : 0));
        if (params->at[i].read)
            move(o, model, params, &params->at[i], u);
    }
    params_clear(params);
    return TN_OK;
}

double tn_schedule_at(tn_schedule schedule, int64_t step, int64_t warmup, int64_t steps)
{
    if (schedule < TN_SCHEDULE_CONSTANT || schedule > TN_SCHEDULE_COSINE || step < 0 || warmup < 0 || steps < 0)
        return 0;
    if (step < warmup)
        return (double)step / (double)(warmup > 1 ? warmup : 1);
    double left = (double)(steps - step), all = (double)(steps - warmup > 1 ? steps - warmup : 1);
    if (schedule == TN_SCHEDULE_CONSTANT)
        return 1;
    if (schedule == TN_SCHEDULE_LINEAR)
        return left > 0 ? left / all : 0;
    double falls = 0.5 * (1 + cos(acos(-1) * (double)(step - warmup) / all));
    return falls > 0 ? falls : 0;
}
