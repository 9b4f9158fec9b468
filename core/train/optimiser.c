/* AdamW over parameters where they lie. */
#include "train/replicas.h"

#include "base/convert.h"
#include "base/reserved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
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

/* Sums of squares by block, of gradients in the type that the parameter is trained in. */
typedef struct squares {
    const train_params *params;
    double *of;
} squares;

static void square_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const squares *s = ctx;
    (void)thread;
    for (size_t i = s->params->own + (size_t)begin; i < s->params->own + (size_t)end; i++) {
        const train_block *b = &s->params->blocks[i];
        float *g = b->of->sums + b->first;
        double sum = 0;
        for (int64_t k = 0; b->of->read && b->of->dtype == TN_BF16 && k < b->count; k++)
            g[k] = tn_bf16_to_f32(tn_f32_to_bf16(g[k]));
        for (int64_t k = 0; b->of->read && k < b->count; k++)
            sum += (double)g[k] * (double)g[k];
        s->of[i] = sum;
    }
}

/* In double, block after block of one tensor after the other: the same on any number of threads and ranks. Norms of
 * gradients in bf16 are bf16, as is theirs. */
static double norm_of(const train_params *params, const double *squares_of, tn_dtype *type)
{
    double sum = 0;
    *type = TN_F32;
    for (size_t i = 0; i < params->block_count;) {
        const train_param *p = params->blocks[i].of;
        double all = 0;
        for (; i < params->block_count && params->blocks[i].of == p; i++)
            all += squares_of[i];
        double own = rounded(sqrt(all), p->dtype);
        *type = p->read && p->dtype == TN_BF16 ? TN_BF16 : *type;
        sum += own * own;
    }
    return rounded(sqrt(sum), *type);
}

static tn_status find_norm(const train_params *params, double *norm, tn_dtype *type, tn_error *err)
{
    squares s = {params, calloc(params->block_count + 1, sizeof *s.of)};
    if (!s.of)
        return tn_fail(err, TN_E_MEMORY, "optimiser", "out of memory for %zu blocks", params->block_count);
    tn_parallel_for((int64_t)(params->own_end - params->own), 1, square_blocks, &s);
    tn_status status = replicas_join_squares(params, s.of, err);
    if (status == TN_OK)
        *norm = norm_of(params, s.of, type);
    free(s.of);
    if (status == TN_OK && !isfinite(*norm))
        status =
            tn_fail(err, TN_E_VERIFY, "optimiser", "the norm of the gradients is no number; a smaller rate may help");
    return status;
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

typedef struct update {
    const optimiser *o;
    const train_params *params;
    float keep[2], scale;                       /* 1 - rate decay, of what decays in [1]; of gradients     */
    float news1, beta2, news2, rate, root, eps; /* news: 1 - beta, rounded once                            */
} update;

/* One element; what it was computed with is what p gets, before m and v are rounded. */
static inline void update_element(const update *u, float keep, float g, float *p, float *m, float *v)
{
    *m += u->news1 * (g - *m);
    *v = u->beta2 * *v + u->news2 * g * g;
    *p = *p * keep - u->rate * *m / (sqrtf(*v) / u->root + u->eps);
}

static void update_f32(const update *u, float keep, const train_block *b, float *m, float *v)
{
    const float *g = b->of->sums + b->first;
    float *p = (float *)(uintptr_t)b->of->data + b->first;
    for (int64_t i = 0; i < b->count; i++)
        update_element(u, keep, g[i] * u->scale, p + i, m + i, v + i);
}

static void update_bf16(const update *u, float keep, const train_block *b, uint16_t *m, uint16_t *v)
{
    const float *g = b->of->sums + b->first;
    uint16_t *p = (uint16_t *)(uintptr_t)b->of->data + b->first;
    for (int64_t i = 0; i < b->count; i++) {
        float own = tn_bf16_to_f32(tn_f32_to_bf16(g[i] * u->scale));
        float x = tn_bf16_to_f32(p[i]), first = tn_bf16_to_f32(m[i]), second = tn_bf16_to_f32(v[i]);
        update_element(u, keep, own, &x, &first, &second);
        p[i] = tn_f32_to_bf16(x);
        m[i] = tn_f32_to_bf16(first);
        v[i] = tn_f32_to_bf16(second);
    }
}

static void update_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const update *u = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const train_block *b = &u->params->blocks[u->params->own + (size_t)i];
        size_t bytes = (size_t)b->count * tn_dtype_size(b->of->dtype);
        if (!b->of->read)
            continue;
        void *m = optimiser_moment(u->o->first, u->params, b), *v = optimiser_moment(u->o->second, u->params, b);
        if (!b->of->moved) {
            memset(m, 0, bytes);
            memset(v, 0, bytes);
        }
        if (b->of->dtype == TN_F32)
            update_f32(u, u->keep[b->of->decays], b, m, v);
        else
            update_bf16(u, u->keep[b->of->decays], b, m, v);
    }
}

/* What gradients are multiplied by, in their type. */
static float scale_of(const tn_train_step *step, double norm, tn_dtype type)
{
    double scale = step->max_norm > 0 ? rounded(step->max_norm / rounded(norm + 1e-6, type), type) : 1;
    return (float)(scale < 1 ? scale : 1);
}

tn_status optimiser_step(optimiser *o, const tn_model *model, train_params *params, const tn_train_step *step,
                         double *norm, tn_error *err)
{
    tn_dtype type = TN_F32;
    tn_status status = optimiser_check(model, params, err);
    if (status == TN_OK)
        status = optimiser_open(o, params, err);
    if (status == TN_OK)
        status = find_norm(params, norm, &type, err);
    if (status != TN_OK)
        return status;
    double t = (double)++o->steps;
    update u = {.o = o,
                .params = params,
                .keep = {1, (float)(1 - step->rate * step->decay)},
                .scale = scale_of(step, *norm, type),
                .news1 = (float)(1 - step->beta1),
                .beta2 = (float)step->beta2,
                .news2 = (float)(1 - step->beta2),
                .rate = (float)(step->rate / (1 - pow(step->beta1, t))),
                .root = (float)sqrt(1 - pow(step->beta2, t)),
                .eps = (float)step->eps};
    for (size_t i = 0; i < params->count; i++)
        if (params->at[i].read)
            params_unlock(params, &params->at[i]);
    tn_parallel_for((int64_t)(params->own_end - params->own), 1, update_blocks, &u);
    status = replicas_join_weights(params, err);
    for (size_t i = 0; i < params->count; i++) {
        params->at[i].moved |= params->at[i].read;
        if (params->at[i].read)
            params_round(params, &params->at[i]);
    }
    for (size_t i = 0; i < params->count; i++) /* neighbours have pages in common                               */
        if (params->at[i].read)
            params_lock(params, &params->at[i], model);
    params_clear(params);
    return status;
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
