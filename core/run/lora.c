/* What LORA_LINEAR adds to the product that it is around, forward and backward: the products of the adapter's two
 * factors, which are small. Nothing is kept from forward: A x is computed again. */
#include "run/compose.h"

#include "base/convert.h"
#include "base/random.h"

#include <string.h>

/* ---- dropout ------------------------------------------------------------------------------------- */

typedef struct dropout {
    const tn_tensor *from, *to;
    uint64_t key, first; /* of the call; its first row                                              */
    uint32_t least;      /* of the 24 bits of an element that is kept                                */
    float by;
} dropout;

static void drop_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    enum { BLOCK = 1024 };
    const dropout *d = ctx;
    float block[BLOCK];
    int64_t width = d->from->shape[1];
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < width; i += BLOCK) {
            int64_t n = width - i < BLOCK ? width - i : BLOCK;
            const char *from = d->from->data;
            char *to = d->to->data;
            convert_to_f32(from + (size_t)(t * d->from->stride[0] + i) * tn_dtype_size(d->from->dtype), d->from->dtype,
                           block, n);
            for (int64_t k = 0; k < n; k++) {
                uint64_t at = (d->first + (uint64_t)t) * (uint64_t)width + (uint64_t)(i + k);
                random_state draw = {d->key + RANDOM_STEP * at};
                bool kept = random_bits(&draw) >> 40 >= d->least;
                block[k] = kept ? block[k] * d->by : 0.0f;
            }
            convert_from_f32(block, d->to->dtype, to + (size_t)(t * d->to->stride[0] + i) * tn_dtype_size(d->to->dtype),
                             n);
        }
}

static bool drops(const tn_call *call)
{
    return call->site->features & TN_HAS_DROPOUT && call->in_count > 1 && call->in[1].data;
}

/* Elements of from, as the call's key says; to may be from. In the host's memory, where alone a key is made. */
static void drop(composer *c, const tn_tensor *from, const tn_tensor *to)
{
    const tn_call *call = c->call;
    double share = call->site->num[TN_NUM_DROPOUT];
    dropout d = {.from = from, .to = to, .least = (uint32_t)(share * (1 << 24)), .by = (float)(1 / (1 - share))};
    int64_t key[2];
    if (c->status != TN_OK || c->arena->measuring)
        return;
    memcpy(key, call->in[1].data, sizeof key);
    d.key = (uint64_t)key[0];
    d.first = (uint64_t)key[1];
    tn_parallel_for(from->shape[0], 1 + (1 << 14) / (from->shape[1] + 1), drop_rows, &d);
}

/* What A sees. */
static tn_tensor seen(composer *c)
{
    tn_tensor x = c->call->in[0];
    if (!drops(c->call))
        return x;
    tn_tensor dropped = compose_take(c, x.shape[0], x.shape[1]);
    drop(c, &x, &dropped);
    return dropped;
}

/* ---- the two factors ------------------------------------------------------------------------------- */

/* A or B as a product of its own, whose weight is *w. */
static tn_site factor(const tn_site *site, const tn_tensor *w)
{
    tn_site f = {.size = sizeof f,
                 .op = TN_OP_LINEAR,
                 .path = site->path,
                 .class_name = "Linear",
                 .model_type = site->model_type};
    f.param[TN_ROLE_WEIGHT] = (tn_param){w, 1};
    f.meaning[TN_AXIS_DTYPE] = f.meaning[TN_AXIS_WEIGHT] = (int32_t)w->dtype;
    f.dim[TN_DIM_HIDDEN] = w->shape[1];
    f.dim[TN_DIM_OUT] = w->shape[0];
    return f;
}

typedef struct factors {
    tn_tensor weight[2];
    tn_site a, b;
} factors;

/* Copies in the model's type, where products are in that. */
static void factors_open(composer *c, factors *f)
{
    const tn_site *site = c->call->site;
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    for (int i = 0; i < 2; i++) {
        tn_role role = i ? TN_ROLE_B_OF(TN_ROLE_WEIGHT) : TN_ROLE_A_OF(TN_ROLE_WEIGHT);
        const tn_tensor *t = site->param[role].tensors;
        f->weight[i] = *t;
        if (!(site->features & TN_HAS_ROUNDED_FACTORS) || t->dtype == dtype)
            continue;
        f->weight[i] = compose_take_as(c, dtype, t->shape[0], t->shape[1]);
        compose_eagerly(c, TN_OP_COPY, NULL, RUN_TENSORS(t), RUN_TENSORS(&f->weight[i]));
    }
    f->a = factor(site, &f->weight[0]);
    f->b = factor(site, &f->weight[1]);
}

/* s A x: the factor goes where the fewest elements are. */
static tn_tensor through_a(composer *c, const factors *f, const tn_tensor *x)
{
    tn_tensor h = compose_take_as(c, f->weight[0].dtype, x->shape[0], f->weight[0].shape[0]);
    compose_eagerly(c, TN_OP_LINEAR, &f->a, RUN_TENSORS(x), RUN_TENSORS(&h));
    compose_eagerly(c, TN_OP_SCALE, c->call->site, RUN_TENSORS(&h), RUN_TENSORS(&h));
    return h;
}

void compose_lora(composer *c)
{
    const tn_tensor *y = &c->call->out[0];
    factors f;
    factors_open(c, &f);
    const tn_tensor x = seen(c), h = through_a(c, &f, &x);
    const tn_tensor more = compose_take_as(c, f.weight[1].dtype, y->shape[0], y->shape[1]);
    compose_eagerly(c, TN_OP_LINEAR, &f.b, RUN_TENSORS(&h), RUN_TENSORS(&more));
    compose_add(c, y, &more, y);
}

/* ---- backward ------------------------------------------------------------------------------------------ */

/* Gradients of a factor, where they are wanted, and of what it saw. */
static void factor_backward(composer *c, const tn_site *site, tn_role role, const tn_tensor *x, const tn_tensor *dy,
                            const tn_tensor *dx)
{
    tn_grads grads = {.size = sizeof grads, .out = {*dy}, .in = {*dx}};
    tn_call call = run_make_call(TN_OP_LINEAR, site, RUN_TENSORS(x), (run_tensors){NULL, 0});
    grads.param[TN_ROLE_WEIGHT] = c->call->grads->param[role];
    call.out_count = 1;
    call.grads = &grads;
    compose_backward_step(c, &call);
}

void compose_lora_backward(composer *c, const tn_tensor *dy, const tn_tensor *dx)
{
    const tn_call *call = c->call;
    factors f;
    factors_open(c, &f);
    const tn_tensor x = seen(c), h = through_a(c, &f, &x);
    const tn_tensor dh = compose_take_as(c, h.dtype, h.shape[0], h.shape[1]);
    tn_tensor more = compose_take(c, x.shape[0], x.shape[1]);
    if (!dx->data)
        more.data = NULL;
    factor_backward(c, &f.b, TN_ROLE_B_OF(TN_ROLE_WEIGHT), &h, dy, &dh);
    compose_eagerly(c, TN_OP_SCALE, call->site, RUN_TENSORS(&dh), RUN_TENSORS(&dh));
    factor_backward(c, &f.a, TN_ROLE_A_OF(TN_ROLE_WEIGHT), &x, &dh, &more);
    if (more.data && drops(call))
        drop(c, &more, &more);
    if (more.data || c->arena->measuring)
        compose_add(c, dx, &more, dx);
}
