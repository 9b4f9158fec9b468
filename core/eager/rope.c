/* ROPE: rotates pairs of the first R dimensions of every head; the rest passes through. In the model's type every
 * product and the sum are rounded, as transformers does; in f32 tables, and in the complex form, only the result is.
 * Gradients are the upstream ones rotated by the transposed matrix, in the same roundings. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>

#define ROPE_MAX 1024 /* most rotated dimensions of a head: what fits a thread's stack comfortably */
#define ROPE_HALF_MAX (ROPE_MAX / 2)

typedef struct rope_job {
    const tn_tensor *cos, *sin;
    const tn_tensor *x, *y; /* q or k, [B,T,heads,D]; backward: their gradients                  */
    bool transposed;        /* backward                                                          */
    tn_rope style;
    tn_dtype step; /* type that intermediate results are rounded to                              */
    int64_t rotary;
} rope_job;

/* The angles of one position: element i of each pair with c1, s1, its partner with c2, s2. */
typedef struct rope_angles {
    float c1[ROPE_HALF_MAX], c2[ROPE_HALF_MAX], s1[ROPE_HALF_MAX], s2[ROPE_HALF_MAX];
} rope_angles;

static void angles_load(const rope_job *job, int64_t b, int64_t t, rope_angles *a)
{
    int64_t half = job->rotary / 2;
    int64_t batch = job->cos->shape[0] == 1 ? 0 : b;
    size_t size = tn_dtype_size(job->cos->dtype);
    const char *c =
        (const char *)job->cos->data + (batch * job->cos->stride[0] + t * job->cos->stride[1]) * (int64_t)size;
    const char *s =
        (const char *)job->sin->data + (batch * job->sin->stride[0] + t * job->sin->stride[1]) * (int64_t)size;
    /* Only the half forms with wide tables read their second half. */
    bool wide = job->style == TN_ROPE_HALF || job->style == TN_ROPE_HALF_F32;
    size_t second = wide ? (size_t)half * size : 0;
    convert_to_f32(c, job->cos->dtype, a->c1, half);
    convert_to_f32(s, job->sin->dtype, a->s1, half);
    convert_to_f32(c + second, job->cos->dtype, a->c2, half);
    convert_to_f32(s + second, job->sin->dtype, a->s2, half);
    for (int64_t i = 0; job->transposed && i < half; i++) {
        float s1 = a->s1[i];
        a->s1[i] = -a->s2[i];
        a->s2[i] = -s1;
    }
}

/* y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2, everything in f32. */
CLONES static void rotate_f32(const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y1[i] = x1[i] * a->c1[i] - x2[i] * a->s1[i];
        y2[i] = x2[i] * a->c2[i] + x1[i] * a->s2[i];
    }
}

CLONES static void rotate_bf16(const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = tn_bf16_to_f32(tn_f32_to_bf16(x1[i] * a->c1[i])),
              q = tn_bf16_to_f32(tn_f32_to_bf16(x2[i] * a->s1[i]));
        float r = tn_bf16_to_f32(tn_f32_to_bf16(x2[i] * a->c2[i])),
              s = tn_bf16_to_f32(tn_f32_to_bf16(x1[i] * a->s2[i]));
        y1[i] = p - q;
        y2[i] = r + s;
    }
}

CLONES static void rotate_f16(const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = tn_f16_to_f32(tn_f32_to_f16(x1[i] * a->c1[i])), q = tn_f16_to_f32(tn_f32_to_f16(x2[i] * a->s1[i]));
        float r = tn_f16_to_f32(tn_f32_to_f16(x2[i] * a->c2[i])), s = tn_f16_to_f32(tn_f32_to_f16(x1[i] * a->s2[i]));
        y1[i] = p - q;
        y2[i] = r + s;
    }
}

static void rotate(const rope_job *job, const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2)
{
    int64_t half = job->rotary / 2;
    if (job->step == TN_BF16)
        rotate_bf16(x1, x2, a, y1, y2, half);
    else if (job->step == TN_F16)
        rotate_f16(x1, x2, a, y1, y2, half);
    else
        rotate_f32(x1, x2, a, y1, y2, half);
}

/* Where the elements of pair i lie in a head: at i and i + half, or next to each other. */
static bool halves(tn_rope style)
{
    return style <= TN_ROPE_HALF_NARROW || style == TN_ROPE_HALF_F32;
}

static bool halves_in(const rope_job *job)
{
    return halves(job->style) || (job->style == TN_ROPE_DEINTERLEAVED && job->transposed);
}

static bool halves_out(const rope_job *job)
{
    return halves(job->style) || (job->style == TN_ROPE_DEINTERLEAVED && !job->transposed);
}

/* One head: x is read as a whole before y is written, so they may be the same memory. */
static void rope_head(const rope_job *job, const rope_angles *a, const char *x, char *y)
{
    float in[ROPE_MAX], apart[ROPE_MAX], out[ROPE_MAX];
    int64_t half = job->rotary / 2, tail = job->x->shape[3] - job->rotary;
    convert_to_f32(x, job->x->dtype, in, job->rotary);
    for (int64_t i = 0; !halves_in(job) && i < half; i++) {
        apart[i] = in[2 * i];
        apart[half + i] = in[2 * i + 1];
    }
    const float *from = halves_in(job) ? in : apart;
    rotate(job, from, from + half, a, out, out + half);
    for (int64_t i = 0; !halves_out(job) && i < half; i++) {
        in[2 * i] = out[i];
        in[2 * i + 1] = out[half + i];
    }
    convert_from_f32(halves_out(job) ? out : in, job->y->dtype, y, job->rotary);
    size_t size = tn_dtype_size(job->x->dtype);
    if (tail > 0 && x != y)
        memmove(y + (size_t)job->rotary * size, x + (size_t)job->rotary * size, (size_t)tail * size);
}

static void rope_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const rope_job *job = ctx;
    (void)thread;
    int64_t tokens = job->x->shape[1], heads = job->x->shape[2];
    rope_angles a;
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / tokens, t = i % tokens;
        angles_load(job, b, t, &a);
        for (int64_t h = 0; h < heads; h++)
            rope_head(job, &a, rows_at3(job->x, b, t, h), rows_at3(job->y, b, t, h));
    }
}

/* What the site and the tables say. */
static tn_status rope_make(const tn_call *call, rope_job *job, tn_error *err)
{
    const tn_tensor *q = &call->in[0];
    *job = (rope_job){.cos = &call->in[2], .sin = &call->in[3], .style = (tn_rope)call->site->meaning[TN_AXIS_ROPE]};
    int64_t width = rows_width(job->cos);
    job->rotary = job->style == TN_ROPE_HALF_NARROW ? 2 * width : width;
    if (job->style < TN_ROPE_HALF || job->style > TN_ROPE_HALF_F32 || job->rotary % 2 || job->rotary > ROPE_MAX ||
        job->rotary > q->shape[3])
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "rope style %d cannot rotate %" PRId64 " of %" PRId64 " dimensions; report this defect",
                       (int)job->style, job->rotary, q->shape[3]);
    /* An f32 table makes everything f32, as type promotion does. */
    bool wide = job->style == TN_ROPE_COMPLEX || job->style == TN_ROPE_HALF_F32;
    job->step = wide || job->cos->dtype != q->dtype ? TN_F32 : q->dtype;
    return TN_OK;
}

static void rope_run(rope_job *job, const tn_tensor *x, const tn_tensor *y)
{
    job->x = x;
    job->y = y;
    tn_parallel_for(x->shape[0] * x->shape[1], rows_grain(x->shape[2] * x->shape[3]), rope_tokens, job);
}

static tn_status rope_forward(const tn_call *call, tn_error *err)
{
    rope_job job;
    tn_status status = rope_make(call, &job, err);
    for (int i = 0; status == TN_OK && i < 2; i++)
        rope_run(&job, &call->in[i], &call->out[i]);
    return status;
}

static tn_status rope_backward(const tn_call *call, tn_error *err)
{
    const tn_grads *grads = call->grads;
    rope_job job;
    tn_status status = rope_make(call, &job, err);
    if (status == TN_OK && (grads->in[2].data || grads->in[3].data))
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "rotary tables are constants and have no gradients; ask for those of q and k only");
    job.transposed = true;
    for (int i = 0; status == TN_OK && i < 2; i++) {
        if (grads->in[i].data && grads->out[i].data)
            rope_run(&job, &grads->out[i], &grads->in[i]);
        else if (grads->in[i].data)
            rows_clear(&grads->in[i]);
    }
    return status;
}

const eager_op eager_rope = {.op = TN_OP_ROPE, .forward = rope_forward, .backward = rope_backward};
