/* ROPE: rotates pairs of the first R dimensions of every head; the rest passes through. In the model's type every
 * product and the sum are rounded, as transformers does; in f32 tables, and in the complex form, only the result is. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>

#define ROPE_MAX 1024 /* most rotated dimensions of a head: what fits a thread's stack comfortably */
#define ROPE_HALF_MAX (ROPE_MAX / 2)

typedef struct rope_job {
    const tn_tensor *cos, *sin;
    const tn_tensor *x, *y; /* q or k, [B,T,heads,D]                                             */
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
    /* Only the plain half form reads the second half of the tables. */
    size_t second = job->style == TN_ROPE_HALF ? (size_t)half * size : 0;
    convert_to_f32(c, job->cos->dtype, a->c1, half);
    convert_to_f32(s, job->sin->dtype, a->s1, half);
    convert_to_f32(c + second, job->cos->dtype, a->c2, half);
    convert_to_f32(s + second, job->sin->dtype, a->s2, half);
}

/* y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2, everything in f32. */
EAGER_CLONES static void rotate_f32(const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2,
                                    int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y1[i] = x1[i] * a->c1[i] - x2[i] * a->s1[i];
        y2[i] = x2[i] * a->c2[i] + x1[i] * a->s2[i];
    }
}

EAGER_CLONES static void rotate_bf16(const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2,
                                     int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = vec_from_bf16(vec_to_bf16(x1[i] * a->c1[i])), q = vec_from_bf16(vec_to_bf16(x2[i] * a->s1[i]));
        float r = vec_from_bf16(vec_to_bf16(x2[i] * a->c2[i])), s = vec_from_bf16(vec_to_bf16(x1[i] * a->s2[i]));
        y1[i] = p - q;
        y2[i] = r + s;
    }
}

EAGER_CLONES static void rotate_f16(const float *x1, const float *x2, const rope_angles *a, float *y1, float *y2,
                                    int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = vec_from_f16(vec_to_f16(x1[i] * a->c1[i])), q = vec_from_f16(vec_to_f16(x2[i] * a->s1[i]));
        float r = vec_from_f16(vec_to_f16(x2[i] * a->c2[i])), s = vec_from_f16(vec_to_f16(x1[i] * a->s2[i]));
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

/* One head: x is read as a whole before y is written, so they may be the same memory. */
static void rope_head(const rope_job *job, const rope_angles *a, const char *x, char *y)
{
    float in[ROPE_MAX], out[ROPE_MAX], even[ROPE_HALF_MAX], odd[ROPE_HALF_MAX];
    int64_t half = job->rotary / 2, tail = job->x->shape[3] - job->rotary;
    convert_to_f32(x, job->x->dtype, in, job->rotary);
    if (job->style == TN_ROPE_HALF || job->style == TN_ROPE_HALF_NARROW) {
        rotate(job, in, in + half, a, out, out + half);
    } else {
        for (int64_t i = 0; i < half; i++) {
            even[i] = in[2 * i];
            odd[i] = in[2 * i + 1];
        }
        rotate(job, even, odd, a, in, in + half);
        for (int64_t i = 0; i < half; i++) {
            bool apart = job->style == TN_ROPE_DEINTERLEAVED;
            out[apart ? i : 2 * i] = in[i];
            out[apart ? half + i : 2 * i + 1] = in[half + i];
        }
    }
    convert_from_f32(out, job->y->dtype, y, job->rotary);
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

static tn_status rope_forward(const tn_call *call, tn_error *err)
{
    rope_job job = {.cos = &call->in[2], .sin = &call->in[3], .style = (tn_rope)call->site->meaning[TN_AXIS_ROPE]};
    int64_t width = rows_width(job.cos);
    job.rotary = job.style == TN_ROPE_HALF_NARROW ? 2 * width : width;
    if (job.style < TN_ROPE_HALF || job.style > TN_ROPE_DEINTERLEAVED || job.rotary % 2 || job.rotary > ROPE_MAX ||
        job.rotary > call->in[0].shape[3])
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "rope style %d cannot rotate %" PRId64 " of %" PRId64 " dimensions; report this defect",
                       (int)job.style, job.rotary, call->in[0].shape[3]);
    /* An f32 table makes everything f32, as type promotion does. */
    bool plain = job.style != TN_ROPE_COMPLEX && job.cos->dtype == call->in[0].dtype;
    job.step = plain ? call->in[0].dtype : TN_F32;
    for (int i = 0; i < 2; i++) {
        job.x = &call->in[i];
        job.y = &call->out[i];
        tn_parallel_for(job.x->shape[0] * job.x->shape[1], rows_grain(job.x->shape[2] * job.x->shape[3]), rope_tokens,
                        &job);
    }
    return TN_OK;
}

const eager_op eager_rope = {.op = TN_OP_ROPE, .forward = rope_forward};
