/* AdamW over parameters where they lie. */
#include "train/optimiser.h"

#include "base/reserved.h"

#include <math.h>

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
        if (g->sites[i]->bound.packed)
            return tn_fail(err, TN_E_USAGE, g->sites[i]->site.path,
                           "kernel %s keeps a copy of its weights, which would not follow; take it off",
                           g->sites[i]->bound.id);
    for (size_t i = 0; i < params->count; i++)
        if (params->at[i].read && params->at[i].dtype != TN_F32)
            return tn_fail(err, TN_E_USAGE, "optimiser", "parameters are %s; open the model in f32 to change them",
                           tn_dtype_name(params->at[i].dtype));
    return TN_OK;
}

/* In double, one tensor after the other: the same on any number of threads. */
static double norm_of(const train_params *params)
{
    double squares = 0;
    for (size_t i = 0; i < params->count; i++) {
        const train_param *p = &params->at[i];
        double own = 0;
        for (int64_t k = 0; p->read && k < params_count(p); k++)
            own += (double)p->sums[k] * (double)p->sums[k];
        squares += own;
    }
    return sqrt(squares);
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

typedef struct update {
    float *p, *m, *v;
    const float *g;
    float keep, scale; /* 1 - rate decay; of gradients                                               */
    float news1, beta2, news2, rate, root, eps; /* news: 1 - beta, rounded once                        */
} update;

static void update_elements(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const update *u = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float g = u->g[i] * u->scale;
        u->m[i] += u->news1 * (g - u->m[i]);
        u->v[i] = u->beta2 * u->v[i] + u->news2 * g * g;
        u->p[i] = u->p[i] * u->keep - u->rate * u->m[i] / (sqrtf(u->v[i]) / u->root + u->eps);
    }
}

tn_status optimiser_step(optimiser *o, const tn_model *model, train_params *params, const tn_train_step *step,
                         double *norm, tn_error *err)
{
    tn_status status = optimiser_check(model, params, err);
    if (status == TN_OK)
        status = optimiser_open(o, params, err);
    if (status != TN_OK)
        return status;
    *norm = norm_of(params);
    if (!isfinite(*norm))
        return tn_fail(err, TN_E_VERIFY, "optimiser",
                       "the norm of the gradients is no number; a smaller rate may help");
    double scale = step->max_norm > 0 ? step->max_norm / (*norm + 1e-6) : 1, t = (double)++o->steps;
    update u = {.scale = (float)(scale < 1 ? scale : 1),
                .news1 = (float)(1 - step->beta1),
                .beta2 = (float)step->beta2,
                .news2 = (float)(1 - step->beta2),
                .rate = (float)(step->rate / (1 - pow(step->beta1, t))),
                .root = (float)sqrt(1 - pow(step->beta2, t)),
                .eps = (float)step->eps};
    for (size_t i = 0; i < params->count; i++) {
        const train_param *p = &params->at[i];
        if (!p->read)
            continue;
        ptrdiff_t at = p->sums - params->sums;
        u.p = (float *)(uintptr_t)p->data;
        u.g = p->sums;
        u.m = o->first + at;
        u.v = o->second + at;
        u.keep = (float)(1 - step->rate * (p->decays ? step->decay : 0));
        params_unlock(p);
        tn_parallel_for(params_count(p), 1 << 14, update_elements, &u);
        params_lock(p, model);
        params->at[i].moved = true;
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
