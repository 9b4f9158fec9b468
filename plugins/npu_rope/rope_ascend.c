/* The kernel npu_fused_rope on an Ascend device: aclnnRotaryPositionEmbedding. It wants tables as wide as what it
 * rotates and in the same type, and a dense result; views, copies and casts around it make up the rest. Gradients are
 * rotated back by the same operator with other sines, so aclnnRotaryPositionEmbeddingGrad, which not every installation
 * has, is not needed. */
#include "rope.h"

#include "npu_ops.h"

/* The operator's names for which elements are pairs, and its limits on Atlas A2 and A3. */
enum { MODE_HALF = 0, MODE_INTERLEAVE = 1, MOST_ROTARY = 894, MOST_HEADS = 999, MOST_ROWS = 999 };

static bool is_interleaved(int32_t style)
{
    return style == TN_ROPE_INTERLEAVED || style == TN_ROPE_COMPLEX;
}

/* Tables with angles of their own for the second half of a head. */
static bool has_wide_tables(int32_t style)
{
    return style == TN_ROPE_HALF || style == TN_ROPE_HALF_F32;
}

static int64_t rotary_of(const tn_site *site)
{
    return site->dim[TN_DIM_ROTARY] ? site->dim[TN_DIM_ROTARY] : site->dim[TN_DIM_HEAD];
}

static tn_status check_limits(const tn_site *site, tn_error *err)
{
    tn_status status = npu_limit(site, "rotary", rotary_of(site), MOST_ROTARY, err);
    if (status == TN_OK)
        status = npu_limit(site, "q_heads", site->dim[TN_DIM_Q_HEADS], MOST_HEADS, err);
    if (status == TN_OK)
        status = npu_limit(site, "kv_heads", site->dim[TN_DIM_KV_HEADS], MOST_HEADS, err);
    return status;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (!npu_here(site, err))
        return TN_DECLINED;
    if (!ascend_has("aclnnRotaryPositionEmbeddingV2") && !ascend_has("aclnnRotaryPositionEmbedding"))
        return tn_fail(err, TN_DECLINED, site->path, "the installation of CANN has no aclnnRotaryPositionEmbedding");
    tn_status status = check_limits(site, err);
    if (status != TN_OK)
        return status;
    int64_t q = site->dim[TN_DIM_Q_HEADS], k = site->dim[TN_DIM_KV_HEADS], heads = q + k; /* at once, of one token */
    int64_t rotated = plan->max_tokens * heads * rotary_of(site),
            whole = plan->max_tokens * heads * site->dim[TN_DIM_HEAD];
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    /* Cosines and sines, made wide, negated, exchanged; and of q or k what is gathered, widened, rotated, rounded. */
    plan->scratch_bytes = 5 * npu_bytes(TN_F32, plan->max_tokens * rotary_of(site)) + 2 * npu_bytes(TN_F32, rotated) +
                          2 * npu_bytes(dtype, rotated) + npu_bytes(dtype, whole);
    plan->backward_scratch_bytes = plan->scratch_bytes;
    return TN_OK;
}

/* ---- tables --------------------------------------------------------------------------------------------- */

/* Every other element of the last dimension, from first on. */
static tn_tensor every_other(tn_tensor t, int64_t first)
{
    int32_t last = t.ndim - 1;
    t = npu_narrow(t, last, first, t.shape[last]);
    t.shape[last] /= 2;
    t.stride[last] *= 2;
    return t;
}

/* The first or second half of the last dimension. */
static tn_tensor half_of(tn_tensor t, int64_t which)
{
    int64_t half = t.shape[t.ndim - 1] / 2;
    return npu_narrow(t, t.ndim - 1, which * half, half);
}

/* [B or 1,T,R] as the operator reads it, from what the style has. */
static tn_tensor wide_table(npu_run *r, tn_tensor table, int32_t style, int64_t rotary)
{
    if (has_wide_tables(style))
        return table;
    const int64_t shape[] = {table.shape[0], table.shape[1], rotary};
    tn_tensor wide = npu_take(r, table.dtype, 3, shape);
    tn_tensor angles = npu_narrow(table, 2, 0, rotary / 2);
    for (int64_t i = 0; i < 2; i++)
        npu_copy(r, angles, is_interleaved(style) ? every_other(wide, i) : half_of(wide, i));
    return wide;
}

/* With these sines the rotation y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2 is the transposed one. */
static tn_tensor transposed_sines(npu_run *r, tn_tensor sin, int32_t style)
{
    tn_tensor negated = npu_take_like(r, sin.dtype, sin);
    npu_multiply_number(r, sin, -1, negated);
    if (!has_wide_tables(style)) /* both of a pair have the same                                         */
        return negated;
    tn_tensor exchanged = npu_take_like(r, sin.dtype, sin);
    for (int64_t i = 0; i < 2; i++)
        npu_copy(r, half_of(negated, i), half_of(exchanged, 1 - i));
    return exchanged;
}

/* [B or 1,T,R] as [B or 1,T,1,R]. */
static tn_tensor with_heads(tn_tensor t)
{
    t.ndim = 4;
    t.shape[3] = t.shape[2];
    t.stride[3] = t.stride[2];
    t.shape[2] = 1;
    t.stride[2] = t.shape[3];
    return t;
}

/* ---- rotating ------------------------------------------------------------------------------------------- */

typedef struct rope_job {
    npu_run r;
    tn_tensor cos, sin; /* [B or 1,T,1,R]                                                           */
    int32_t mode;
    int64_t rotary;
    bool gathers, scatters; /* pairs side by side are read, or written, as halves                   */
} rope_job;

/* x and y [B,T,H,R], y dense. Pairs side by side want one table for all rows and few heads in all; so they, and calls
 * of very many rows, are rotated row by row. */
static void rotate_rows(rope_job *job, tn_tensor x, tn_tensor y)
{
    int64_t rows = x.shape[0], tables = job->cos.shape[0];
    bool at_once = job->mode == MODE_INTERLEAVE ? tables == 1 && rows * x.shape[2] <= MOST_HEADS : rows <= MOST_ROWS;
    if (at_once) {
        npu_rotate(&job->r, x, job->cos, job->sin, job->mode, y);
        return;
    }
    for (int64_t b = 0; b < rows; b++) {
        int64_t t = tables == 1 ? 0 : b;
        npu_rotate(&job->r, npu_narrow(x, 0, b, 1), npu_narrow(job->cos, 0, t, 1), npu_narrow(job->sin, 0, t, 1),
                   job->mode, npu_narrow(y, 0, b, 1));
    }
}

/* What the operator reads: halves, in the type of the tables. */
static tn_tensor source_of(rope_job *job, tn_tensor x)
{
    npu_run *r = &job->r;
    tn_tensor head = npu_narrow(x, 3, 0, job->rotary);
    if (job->gathers) {
        tn_tensor halves = npu_take_like(r, x.dtype, head);
        for (int64_t i = 0; i < 2; i++)
            npu_copy(r, every_other(head, i), half_of(halves, i));
        head = halves;
    }
    return job->cos.dtype == x.dtype ? head : npu_wide_copy(r, head);
}

/* From q or k, or a gradient of theirs, to where it goes, which may be the same memory. Without data to come from the
 * result is one of zeros. */
static void rotate_tensor(rope_job *job, tn_tensor x, tn_tensor y)
{
    npu_run *r = &job->r;
    if (!y.data || tn_tensor_count(&y) == 0)
        return;
    if (!x.data) {
        npu_clear(r, y);
        return;
    }
    tn_tensor head = npu_narrow(y, 3, 0, job->rotary);
    bool straight = ascend_is_dense(&head) && x.data != y.data && job->cos.dtype == y.dtype && !job->scatters;
    tn_tensor source = source_of(job, x);
    tn_tensor to = straight ? npu_target(r, head, NULL, 0) : npu_take_like(r, job->cos.dtype, head);
    rotate_rows(job, source, to);
    if (job->cos.dtype != y.dtype) {
        tn_tensor rounded = npu_take_like(r, y.dtype, head);
        npu_copy(r, to, rounded);
        to = rounded;
    }
    for (int64_t i = 0; job->scatters && i < 2; i++)
        npu_copy(r, half_of(to, i), every_other(head, i));
    if (!job->scatters)
        npu_settle(r, to, head);
    int64_t tail = y.shape[3] - job->rotary;
    if (tail > 0 && x.data != y.data)
        npu_copy(r, npu_narrow(x, 3, job->rotary, tail), npu_narrow(y, 3, job->rotary, tail));
}

/* from, to: q and k, or their gradients. */
static tn_status rotate_both(const tn_call *call, const tn_tensor *from, const tn_tensor *to, bool back, tn_error *err)
{
    int32_t style = call->site->meaning[TN_AXIS_ROPE];
    bool turns = style == TN_ROPE_DEINTERLEAVED;
    tn_tensor cos = call->in[2], sin = call->in[3];
    rope_job job = {.r = npu_run_of(call, err),
                    .mode = is_interleaved(style) ? MODE_INTERLEAVE : MODE_HALF,
                    .rotary = style == TN_ROPE_HALF_NARROW ? 2 * cos.shape[2] : cos.shape[2],
                    .gathers = turns && !back,
                    .scatters = turns && back};
    if (job.r.status != TN_OK || cos.shape[1] == 0 || call->in[0].shape[0] == 0)
        return job.r.status;
    job.cos = with_heads(wide_table(&job.r, cos, style, job.rotary));
    sin = wide_table(&job.r, sin, style, job.rotary);
    job.sin = with_heads(back ? transposed_sines(&job.r, sin, style) : sin);
    tn_tensor source, target;
    if (from[0].data && from[1].data && npu_side_by_side(&from[0], &from[1], &source) &&
        npu_side_by_side(&to[0], &to[1], &target) && source.shape[2] <= MOST_HEADS) {
        rotate_tensor(&job, source, target);
        return job.r.status;
    }
    for (int i = 0; i < 2; i++) {
        size_t before = job.r.used;
        rotate_tensor(&job, from[i], to[i]);
        job.r.used = before;
    }
    return job.r.status;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    return rotate_both(call, call->in, call->out, false, err);
}

static tn_status backward(const tn_call *call, tn_error *err)
{
    return rotate_both(call, call->grads->out, call->grads->in, true, err);
}

#define DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define NARROW_STYLES                                                                                                  \
    (TN_TAKES(TN_ROPE_HALF) | TN_TAKES(TN_ROPE_HALF_NARROW) | TN_TAKES(TN_ROPE_INTERLEAVED) |                          \
     TN_TAKES(TN_ROPE_DEINTERLEAVED))

/* README.md derives the tolerances: how often the operator rounds is not documented. */
#define IMPL(styles, narrow)                                                                                           \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = TN_OP_ROPE,                                                                     \
        .match = {.size = sizeof(tn_match),                                                                            \
                  .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_ROPE] = styles},                                        \
                  .features = TN_HAS_PARTIAL | TN_HAS_MROPE},                                                          \
        .tolerance = {.ulps_f32 = 4.9, .ulps_bf16 = narrow, .ulps_f16 = narrow}, .plan = plan, .forward = forward,     \
        .backward = backward                                                                                           \
    }
const tn_impl rope_ascend_impls[ROPE_ASCEND_IMPLS] = {
    IMPL(NARROW_STYLES, 4.9),
    IMPL(TN_TAKES(TN_ROPE_COMPLEX) | TN_TAKES(TN_ROPE_HALF_F32), 2.1),
};
