/* RMS_NORM and LAYER_NORM. The vendor's operator multiplies by a weight in f32 and rounds once. Variants that round
 * before the weight comes in are what its operator for a sum does; where that cannot be they have ones first, and the
 * weight afterwards. Groups of a row are rows to the operator, with one weight for all: theirs comes afterwards, too.
 */
#include "operators.h"
#include "queue.h"

typedef struct norm_job {
    const tn_tensor *x, *gate, *y, *w;
    tn_norm variant;
    double eps;
    int64_t groups; /* of a row                                                                    */
} norm_job;

static norm_job norm_job_of(const tn_call *call)
{
    return (norm_job){.x = &call->in[0],
                      .gate = &call->in[1],
                      .y = &call->out[0],
                      .w = npu_param(call->site, TN_ROLE_WEIGHT),
                      .variant = (tn_norm)call->site->meaning[TN_AXIS_NORM],
                      .eps = call->site->num[TN_NUM_EPS],
                      .groups = call->site->features & TN_HAS_GROUPS ? call->site->dim[TN_DIM_GROUPS] : 1};
}

/* rnd(n) in scratch. */
static tn_tensor normalised(npu_run *r, const norm_job *job)
{
    tn_tensor ones = npu_take(r, job->x->dtype, 1, &job->x->shape[job->x->ndim - 1]);
    tn_tensor n = npu_take_like(r, job->x->dtype, *job->x);
    npu_fill(r, ones, 1);
    npu_rms(r, *job->x, ones, job->eps, n);
    return n;
}

/* rnd(rnd(rnd(n) w) silu(gate)), the gate in f32. */
static void norm_gated(npu_run *r, const norm_job *job)
{
    tn_tensor n = normalised(r, job);
    npu_multiply(r, n, *job->w, n);
    tn_tensor gate = npu_wide_copy(r, *job->gate);
    npu_silu(r, gate, gate);
    npu_multiply(r, n, gate, gate);
    npu_copy(r, gate, *job->y);
}

/* rnd(n w) with a weight of the rows' type, or of f32, is what the operator does. */
static void norm_direct(npu_run *r, const norm_job *job, const tn_tensor *w)
{
    tn_tensor apart = npu_take_like(r, job->x->dtype, *job->x), n = job->x->data == job->y->data ? apart : *job->y;
    npu_rms(r, *job->x, *w, job->eps, n);
    npu_settle(r, n, *job->y);
}

/* rnd(n (add + w)), everything but the end in f32. On 310P there is no weight of another type than the rows'. */
static void norm_wide(npu_run *r, const norm_job *job, float add)
{
    tn_tensor w = npu_wide_copy(r, *job->w);
    norm_job wide = *job;
    if (add != 0)
        npu_add_number(r, w, add, w);
    if (ascend_chip_of(npu_soc()) != ASCEND_310P) {
        norm_direct(r, job, &w);
        return;
    }
    tn_tensor x = npu_wide_copy(r, *job->x), n = npu_take_like(r, TN_F32, *job->x);
    wide.x = &x;
    wide.y = &n;
    norm_direct(r, &wide, &w);
    npu_copy(r, n, *job->y);
}

/* Step by step in f32, rounded where the variant says so: groups, and gates that come first or are not rounded to. */
static void norm_in_steps(npu_run *r, const norm_job *job)
{
    bool gated = job->variant == TN_NORM_W_GATED || job->variant >= TN_NORM_GATED_W;
    bool rounds = job->variant == TN_NORM_W || job->variant == TN_NORM_W_GATED;
    int64_t span = job->x->shape[job->x->ndim - 1] / job->groups;
    tn_tensor x = npu_wide_copy(r, *job->x), n = npu_take_like(r, TN_F32, x), gate = {0};
    tn_tensor narrow = npu_take_like(r, rounds ? job->x->dtype : TN_F32, x), ones = npu_take(r, TN_F32, 1, &span);
    if (gated) {
        gate = npu_wide_copy(r, *job->gate);
        npu_silu(r, gate, gate);
    }
    if (job->variant == TN_NORM_GATED_W)
        npu_multiply(r, x, gate, x);
    npu_fill(r, ones, 1);
    int64_t spans = span > 0 ? tn_tensor_count(&x) / span : 0;
    npu_rms(r, npu_as_rows(&x, spans, span), ones, job->eps, npu_as_rows(&n, spans, span));
    npu_round(r, n, narrow);
    if (job->variant != TN_NORM_NO_WEIGHT) {
        tn_tensor w = npu_wide_copy(r, *job->w);
        if (job->variant == TN_NORM_1_PLUS_W)
            npu_add_number(r, w, 1, w);
        npu_multiply(r, n, w, n);
    }
    if (gated && job->variant != TN_NORM_GATED_W) {
        npu_round(r, n, narrow);
        npu_multiply(r, n, gate, n);
    }
    npu_copy(r, n, *job->y);
}

static void norm(npu_run *r)
{
    norm_job job = norm_job_of(r->call);
    tn_tensor n;
    if (job.groups > 1 || job.variant >= TN_NORM_GATED_W) {
        norm_in_steps(r, &job);
        return;
    }
    switch (job.variant) {
    case TN_NORM_W:
        if (npu_norm(r, *job.x, *job.w, job.eps, *job.y))
            break;
        n = normalised(r, &job);
        npu_multiply(r, n, *job.w, *job.y);
        break;
    case TN_NORM_NO_WEIGHT:
        n = normalised(r, &job);
        npu_copy(r, n, *job.y);
        break;
    case TN_NORM_W_GATED:
        norm_gated(r, &job);
        break;
    case TN_NORM_1_PLUS_W:
        norm_wide(r, &job, 1);
        break;
    default:
        if (job.w->dtype == job.x->dtype)
            norm_direct(r, &job, job.w);
        else
            norm_wide(r, &job, 0);
        break;
    }
}

static tn_status norm_supports(const tn_site *site, tn_error *err)
{
    int32_t variant = site->meaning[TN_AXIS_NORM];
    if (variant < TN_NORM_W || variant > TN_NORM_W_GATED_F32)
        return tn_fail(err, TN_DECLINED, "npu", "norm: %s is not there yet", tn_axis_value_name(TN_AXIS_NORM, variant));
    return npu_supports_param(site, TN_ROLE_WEIGHT, err);
}

/* ---- LAYER_NORM ------------------------------------------------------------------------------------------- */

/* x less the mean of its row, in place. */
static void centre(npu_run *r, const tn_tensor *x)
{
    tn_tensor mean = npu_take_column(r, *x);
    npu_sums(r, *x, mean);
    npu_multiply_number(r, mean, -1 / (float)x->shape[x->ndim - 1], mean);
    npu_add(r, *x, mean, 1, *x);
}

/* rnd((x - mean) / sqrt(var + eps) w + b): the root mean square of what is centred is the root of its variance. Centred
 * twice, since a mean far from zero is not exact. */
static void layer_norm(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *w = npu_param(r->call->site, TN_ROLE_WEIGHT);
    const tn_tensor *b = npu_param(r->call->site, TN_ROLE_BIAS);
    tn_tensor wide = npu_wide_copy(r, *x), n = npu_take_like(r, TN_F32, *x), weight = npu_wide_copy(r, *w);
    centre(r, &wide);
    centre(r, &wide);
    npu_rms(r, wide, weight, r->call->site->num[TN_NUM_EPS], n);
    if (b) {
        tn_tensor bias = npu_wide_copy(r, *b);
        npu_add(r, n, bias, 1, n);
    }
    npu_copy(r, n, r->call->out[0]);
}

const ascend_operation ascend_layer_norm = {
    .op = TN_OP_LAYER_NORM, .supports = npu_supports_weights, .body = layer_norm};
const ascend_operation ascend_rms_norm = {.op = TN_OP_RMS_NORM, .supports = norm_supports, .body = norm};
