/* The gradients of a plugin's device against the CPU's, for models that are trained. */
#include "check/check_device.h"

#include "base/tensor.h"
#include "check/check.h"
#include "check/fence.h"
#include "check/gradients.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* Gradients of larger parameters are not asked for: three copies of them are held. */
static const size_t MOST_PARAM_BYTES = (size_t)64 << 20;

/* Sums over tokens in another order, of what was rounded on the way. */
double check_device_gradient_ulps(tn_dtype dtype)
{
    return dtype == TN_F32 ? 1024 : 64;
}

/* Every tensor of gradients that has a place: first those of inputs, then those of parameters. */
typedef void visitor(void *ctx, tn_tensor *t);

static void visit(gradients *g, visitor *each, void *ctx)
{
    tn_tensor *next = g->params;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (g->grads.in[i].data)
            each(ctx, &g->grads.in[i]);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < g->grads.param[role].count; i++)
            each(ctx, next++);
}

/* ---- on the device --------------------------------------------------------------------------------- */

/* Copies of the host's tensors on the device, one after the other behind at. */
typedef struct upload {
    const device *device;
    char *at;
    tn_status status;
    tn_error *err;
} upload;

static void put(upload *u, tn_tensor *t)
{
    if (u->status == TN_OK)
        u->status = device_upload(u->device, u->at, t->data, tn_dtype_bytes(t->dtype, tn_tensor_count(t)), u->err);
    t->data = u->at;
    u->at += tensor_padded_bytes(t);
}

static void put_filled(void *ctx, tn_tensor *t)
{
    memset(t->data, FENCE_FILL, tn_dtype_bytes(t->dtype, tn_tensor_count(t)));
    put(ctx, t);
}

static void add_bytes(void *ctx, tn_tensor *t)
{
    *(size_t *)ctx += tensor_padded_bytes(t);
}

/* What came back, to where it belongs in the host's memory. */
static void get(void *ctx, tn_tensor *t)
{
    upload *d = ctx;
    if (d->status == TN_OK)
        d->status = device_download(d->device, d->at, t->data, tn_dtype_bytes(t->dtype, tn_tensor_count(t)), d->err);
    t->data = d->at;
    d->at += tensor_padded_bytes(t);
}

/* The device's gradients of the same inputs: g has memory of the host. */
static tn_status perform(const check_device_subject *s, const inputs *in, gradients *g, tn_error *err)
{
    tn_call call = in->call;
    tn_grads *grads = &g->grads;
    char *memory = NULL;
    size_t bytes = 0;
    for (int i = 0; i < call.in_count; i++)
        bytes += tensor_padded_bytes(&call.in[i]);
    for (int i = 0; i < call.out_count; i++)
        bytes += grads->out[i].data ? tensor_padded_bytes(&grads->out[i]) : 0;
    visit(g, add_bytes, &bytes);
    tn_status status = device_alloc(s->device, bytes, (void **)&memory, err);
    if (status != TN_OK)
        return status;
    upload u = {s->device, memory, TN_OK, err};
    for (int i = 0; i < call.in_count; i++)
        put(&u, &call.in[i]);
    for (int i = 0; i < call.out_count; i++)
        if (grads->out[i].data)
            put(&u, &grads->out[i]);
    visit(g, put_filled, &u);
    call.site = s->site;
    call.out_count = 0;
    call.grads = grads;
    if (u.status == TN_OK)
        u.status = run_alone(s->device, NULL, s->bound, &call, err);
    upload back = {s->device, g->memory, u.status, err};
    visit(g, get, &back);
    tn_status synced = device_sync(s->device, back.status == TN_OK ? err : NULL);
    device_free(s->device, memory, bytes);
    return back.status == TN_OK ? synced : back.status;
}

/* ---- comparing ------------------------------------------------------------------------------------- */

/* Leaves out what is too large. */
static void limit_params(gradients *g, const tn_site *site)
{
    if (gradients_param_bytes(site) > MOST_PARAM_BYTES)
        memset(g->grads.param, 0, sizeof g->grads.param);
}

/* Draws the same gradients for both sides. */
static tn_status draw_both(gradients both[2], const inputs *in, tn_error *err)
{
    tn_status status = TN_OK;
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        status = gradients_draw(&both[i], in, NULL, err);
        if (status == TN_OK)
            limit_params(&both[i], in->call.site);
        if (status == TN_OK)
            status = gradients_allocate(&both[i], err);
    }
    return status;
}

static tn_status compare_both(const check_device_subject *s, const inputs *in, gradients both[2], tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    compare_figures figures = {0};
    tn_call eager = in->call;
    eager.out_count = 0;
    eager.grads = &both[0].grads;
    tn_status status = run_alone(s->cpu, NULL, NULL, &eager, &why);
    if (status == TN_OK)
        status = perform(s, in, &both[1], &why);
    if (status == TN_DECLINED) /* one of them has no gradients of this: whoever wants them is told */
        return TN_OK;
    tn_dtype dtype = (tn_dtype)s->site->meaning[TN_AXIS_DTYPE];
    double ulps =
        s->bound ? compare_ulps(compare_gradient_tolerance(s->bound->impl), dtype) : check_device_gradient_ulps(dtype);
    if (status == TN_OK)
        compare_gradients(&eager, &both[1].grads, ulps, in->skip, &figures, NULL);
    if (s->figures && figures.worst > s->figures->worst)
        s->figures->worst = figures.worst;
    if (status == TN_OK && figures.worst <= 1)
        return TN_OK;
    if (s->bound && status == TN_OK)
        return tn_fail(err, TN_E_VERIFY, s->site->path,
                       "wrong gradients with %lld tokens: %.3g times the tolerance of %g ulps (%s)",
                       (long long)in->tokens, figures.worst, ulps, figures.detail);
    if (s->bound)
        return tn_fail(err, status == TN_E_MEMORY ? status : TN_E_KERNEL, s->site->path, "with %lld tokens: %s",
                       (long long)in->tokens, why.message);
    return tn_fail(err, status == TN_E_MEMORY ? status : TN_E_KERNEL, s->site->path,
                   "device %s gives wrong gradients of %s (%lld tokens): %s; use --device cpu", s->device->ops->name,
                   tn_op_name(s->op), (long long)in->tokens, status == TN_OK ? figures.detail : why.message);
}

tn_status check_device_gradients(const check_device_subject *s, const tn_site *host, tn_error *err)
{
    inputs in;
    gradients both[2] = {0};
    tn_error why = TN_ERROR_INIT;
    /* What picks orders its results as it likes, and gradients follow that order. */
    if ((!s->bound && !s->device->ops->backward) || op_find(s->op)->picks)
        return TN_OK;
    tn_status status = inputs_draw_case(&in, host, &(check_case){.batch = 2, .tokens = 33, .seed = 5}, &why);
    if (status == TN_DECLINED)
        return TN_OK;
    if (status != TN_OK)
        return tn_fail(err, status, why.where, "%s", why.message);
    status = draw_both(both, &in, err);
    if (status == TN_OK)
        status = compare_both(s, &in, both, err);
    gradients_close(&both[0]);
    gradients_close(&both[1]);
    inputs_close(&in);
    return status;
}
