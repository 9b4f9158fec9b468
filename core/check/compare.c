/* How far a kernel's results are from eager's. */
#include "check/compare.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "op/op.h"
#include "check/compare_row.h"
#include "base/text.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Outputs of a linear layer that may all be small because their terms cancel. */
enum { FEW_OUTPUTS = 8 };

double compare_ulps(const tn_tolerance *tolerance, tn_dtype dtype)
{
    return dtype == TN_F32 ? tolerance->ulps_f32 : dtype == TN_BF16 ? tolerance->ulps_bf16 : tolerance->ulps_f16;
}

static double eps_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? 0x1p-24 : dtype == TN_BF16 ? 0x1p-8 : 0x1p-11;
}

/* The largest of its rows' root mean squares. */
static double largest_rms(const tn_tensor *t)
{
    double largest = 0;
    int64_t width = t->shape[t->ndim - 1], rows = width > 0 ? tn_tensor_count(t) / width : 0;
    for (int64_t i = 0; i < rows; i++)
        largest = fmax(largest, compare_row_rms(tensor_row(t, i), t->dtype, width));
    return largest;
}

/* What rows of results are measured by at least, in units of the root mean square of those of the first input; 0: no
 * such thing. Where a linear layer gives few elements: a sum of n products is of the size of sqrt(n) rms(x) rms(w), and
 * so is its rounding, when its terms happen to cancel; w: the largest row. Where gates are sparse: what little is above
 * the cut has the rounding of the cut, which is of the size of the gates; up: the largest row. A scan's result is x
 * times a sum over n of b and c, and x itself: all elements of a head cancel together where c lies across b. */
static double least_size(const tn_call *call)
{
    const tn_param *weight = &call->site->param[TN_ROLE_WEIGHT];
    if (call->op == TN_OP_SELECTIVE_SCAN) {
        if (call->site->meaning[TN_AXIS_DTYPE] != TN_F32)
            return 0;
        double n = (double)call->in[2].shape[3], skip = weight->count == 1 ? compare_tensor_max(weight->tensors) : 0;
        return skip + sqrt(n) * largest_rms(&call->in[2]) * largest_rms(&call->in[3]);
    }
    if (call->op == TN_OP_GLU)
        return call->site->features & TN_HAS_SPARSITY ? largest_rms(&call->in[1]) : 0;
    if (call->op != TN_OP_LINEAR || call->out[0].shape[call->out[0].ndim - 1] >= FEW_OUTPUTS)
        return 0;
    return weight->count == 1 ? sqrt((double)weight->tensors->shape[1]) * largest_rms(weight->tensors) : 0;
}

/* A row of GATED_DELTA_RULE is M^T q, |q| = 1 / sqrt(dk), and may be next to nothing where q lies across all that was
 * written, as it does in one row of some hundreds where the state forgets fast and holds one key. Its rounding is not:
 * M becomes (1 - beta k k^T) e^g M + beta k v^T, whose factor is of norm 1 at most and hands a rounding of M on without
 * enlarging it, so that M's column c is wrong by some eps |M_c|, and the result by that times |q|, wherever q points.
 * |M_c| / sqrt(dk) is what a query along the key that was written last reads, (1 - beta) e^g M^T k + beta v times |q|:
 * eager's row for it is the least that the row is measured by. In 16 bits, which the result is rounded to at the end,
 * nothing of this is seen. false: no such thing, or it could not be had. */
static bool measure_state(range_look *at_keys, const tn_call *eager, compare_place *like)
{
    if (eager->op != TN_OP_GATED_DELTA_RULE || eager->site->meaning[TN_AXIS_DTYPE] != TN_F32)
        return false;
    if (range_look_open(at_keys, RANGE_AT_KEYS, eager, NULL) == TN_OK) {
        like->x = &at_keys->call.out[0];
        like->least = 1;
        return true;
    }
    range_look_close(at_keys);
    return false;
}

/* The k experts of a token may come in any order; each brings its weight along. */
static bool compare_chosen(const compare_place *at, const tn_call *eager, const tn_call *call, compare_figures *f)
{
    const tn_tensor *weights = &eager->out[0];
    int64_t k = weights->shape[1];
    size_t size = tn_dtype_size(weights->dtype);
    const char *want = tensor_row(weights, at->row), *got = tensor_row(&call->out[0], at->row);
    const int32_t *want_e = (const int32_t *)(const void *)tensor_row(&eager->out[1], at->row);
    const int32_t *got_e = (const int32_t *)(const void *)tensor_row(&call->out[1], at->row);
    for (int64_t j = 0; j < k; j++) {
        int64_t slot = 0;
        while (slot < k && got_e[slot] != want_e[j])
            slot++;
        if (slot == k) {
            text_cut(f->detail, sizeof f->detail, "row %lld does not choose expert %d, as eager does",
                     (long long)at->row, want_e[j]);
            return false;
        }
        float a, b;
        convert_to_f32(want + (size_t)j * size, weights->dtype, &a, 1);
        convert_to_f32(got + (size_t)slot * size, weights->dtype, &b, 1);
        compare_element(at, slot, a, b, isnan(b) && compare_never_written(got + (size_t)slot * size, size), f);
    }
    return true;
}

/* Where rounding may decide, any k different experts are right; where all of them tie, as they do for a row of zeros,
 * their weights are known, too. */
static bool compare_tied(const compare_place *at, const tn_call *eager, const tn_call *call, compare_figures *f)
{
    const tn_tensor *weights = &eager->out[0];
    int64_t k = weights->shape[1], width = eager->in[0].shape[1];
    const int32_t *e = (const int32_t *)(const void *)tensor_row(&call->out[1], at->row);
    for (int64_t j = 0; j < k; j++) {
        bool again = false;
        for (int64_t i = 0; i < j; i++)
            again |= e[i] == e[j];
        if (!again && e[j] >= 0 && e[j] < eager->site->dim[TN_DIM_EXPERTS])
            continue;
        text_cut(f->detail, sizeof f->detail, "row %lld chooses expert %d%s", (long long)at->row, e[j],
                 again ? " twice" : ", which there is not");
        return false;
    }
    const tn_site *site = eager->site;
    bool biased = site->param[TN_ROLE_ROUTER_BIAS].count > 0 || site->param[TN_ROLE_CORRECTION_BIAS].count > 0;
    if (!biased && !(compare_row_max(tensor_row(&eager->in[0], at->row), eager->in[0].dtype, width) > 0))
        compare_row(at, tensor_row(weights, at->row), tensor_row(&call->out[0], at->row), k, f);
    return true;
}

static void compare_route(const tn_call *eager, const tn_call *call, const compare_place *like, const bool *skip,
                          compare_figures *f)
{
    const tn_tensor *weights = &eager->out[0];
    for (int64_t row = 0; row < weights->shape[0]; row++) {
        compare_place at = *like;
        at.row = row;
        at.dtype = weights->dtype;
        at.size = compare_size(&at, compare_row_max(tensor_row(weights, row), weights->dtype, weights->shape[1]));
        at.unit *= at.size;
        if ((skip && skip[row] ? compare_tied : compare_chosen)(&at, eager, call, f))
            continue;
        f->worst = f->ulps = INFINITY;
        return;
    }
}

/* false: eager could not be asked, and what differs is wrong. */
static bool open_looks(range_look look[RANGE_KINDS], const tn_call *eager)
{
    bool there = true;
    for (int kind = 0; kind < RANGE_KINDS; kind++)
        there = range_look_open(&look[kind], (range_kind)kind, eager, NULL) == TN_OK && there;
    return there;
}

static void close_looks(range_look look[RANGE_KINDS])
{
    for (int kind = 0; kind < RANGE_KINDS; kind++)
        range_look_close(&look[kind]);
}

/* What an output is measured by. One that stays in f32 where the site's type is narrower, as a state does, carries its
 * error on from call to call: 2^-10 of a row's largest is more than computing in f32 brings, and less than a state that
 * was rounded to 16 bits. */
static void measure_output(compare_place *like, const tn_call *eager, int output)
{
    static const double WIDE = 0x1p-10;
    tn_dtype dtype = (tn_dtype)eager->site->meaning[TN_AXIS_DTYPE];
    bool wider = eager->out[output].dtype == TN_F32 && dtype != TN_F32 && like->ulps > 0;
    like->unit = wider ? WIDE / like->ulps : eps_of(dtype);
    like->least = output == 0 ? like->least : 0; /* a state's rows are not those of the first input    */
    text_cut(like->name, sizeof like->name, "output %d", output);
}

static void judge_outputs(const tn_call *eager, const tn_call *call, int first, compare_place *like, const bool *skip,
                          compare_figures *figures)
{
    range_look look[RANGE_KINDS];
    bool there = open_looks(look, eager);
    for (int i = first; i < eager->out_count; i++) {
        compare_doubt d = {.want = &eager->out[i], .got = &call->out[i]};
        for (int kind = 0; there && kind < RANGE_KINDS; kind++)
            d.look[kind] = &look[kind].call.out[i];
        measure_output(like, eager, i);
        compare_doubtful(&d, like, skip, figures);
    }
    close_looks(look);
}

void compare_call(const tn_call *eager, const tn_call *call, double ulps, const bool *skip, compare_figures *figures)
{
    bool doubtful = false, route = op_find(eager->op)->picks;
    compare_place like = {.name = "output 0",
                          .site = (tn_dtype)eager->site->meaning[TN_AXIS_DTYPE],
                          .unit = eps_of((tn_dtype)eager->site->meaning[TN_AXIS_DTYPE]),
                          .ulps = ulps,
                          .x = &eager->in[0],
                          .least = least_size(eager)};
    range_look at_keys;
    bool of_state = measure_state(&at_keys, eager, &like);
    double least = like.least;
    int first = route ? 2 : 0; /* behind the choices, and how much of each                          */
    if (route)
        compare_route(eager, call, &like, skip, figures);
    like.doubtful = &doubtful;
    for (int i = first; i < eager->out_count; i++) {
        measure_output(&like, eager, i);
        compare_rows(&eager->out[i], &call->out[i], &like, skip, figures);
    }
    like.least = least;
    if (doubtful)
        judge_outputs(eager, call, first, &like, skip, figures);
    if (of_state)
        range_look_close(&at_keys);
}

const tn_tolerance *compare_gradient_tolerance(const tn_impl *impl)
{
    const tn_tolerance *own = &impl->gradient_tolerance;
    return own->ulps_f32 > 0 || own->ulps_bf16 > 0 || own->ulps_f16 > 0 ? own : &impl->tolerance;
}

/* Going through all gradients: for what is finite, and then, where it was needed, for the rest. */
typedef struct gradients_pass {
    const tn_call *eager;
    const tn_grads *grads;
    const range_look *look; /* RANGE_KINDS; NULL: they could not be had                               */
    bool judging, nans;     /* nans: among the parameters                                             */
    compare_place like;
    compare_figures *figures;
    compare_gradient *each;
} gradients_pass;

static bool has_upstream(const tn_grads *grads)
{
    int i = 0;
    while (i < TN_CALL_TENSORS && !grads->out[i].data)
        i++;
    return i < TN_CALL_TENSORS;
}

/* The gradient of an input, or one of those of a parameter. */
static const tn_tensor *gradient_at(const tn_grads *grads, int slot, int64_t i)
{
    return slot < TN_CALL_TENSORS ? &grads->in[slot] : &grads->param[slot - TN_CALL_TENSORS].tensors[i];
}

/* A stack of experts is as many gradients: each is a sum over its own tokens. 1: none. */
static int64_t experts_of(const tn_site *site, const tn_param *param)
{
    const tn_tensor *t = param->tensors;
    return param->count == 1 && t->ndim == 3 && t->shape[0] == site->dim[TN_DIM_EXPERTS] ? t->shape[0] : 1;
}

static tn_tensor expert_at(const tn_tensor *t, int64_t expert, int64_t experts)
{
    tn_tensor one = *t;
    if (experts == 1)
        return one;
    one.ndim = 2;
    for (int i = 0; i < one.ndim; i++) {
        one.shape[i] = t->shape[i + 1];
        one.stride[i] = t->stride[i + 1];
    }
    one.data = (char *)t->data + expert * t->stride[0] * (int64_t)tn_dtype_size(t->dtype);
    return one;
}

/* i: which of a parameter's tensors, or of a stack's experts. */
static void compare_one_gradient(gradients_pass *p, int slot, int64_t i, int64_t experts, const bool *skip)
{
    compare_figures here = {0};
    int64_t tensor = experts > 1 ? 0 : i;
    tn_tensor want = expert_at(gradient_at(p->eager->grads, slot, tensor), i, experts),
              got = expert_at(gradient_at(p->grads, slot, tensor), i, experts), look[RANGE_KINDS];
    compare_doubt d = {.want = &want, .got = &got, .zeros = !has_upstream(p->eager->grads), .nans = p->nans};
    for (int kind = 0; p->look && kind < RANGE_KINDS; kind++) {
        look[kind] = expert_at(gradient_at(&p->look[kind].grads, slot, tensor), i, experts);
        d.look[kind] = &look[kind];
    }
    p->like.largest = compare_tensor_max(&want);
    if (p->judging)
        compare_doubtful(&d, &p->like, skip, &here);
    else
        compare_rows(&want, &got, &p->like, skip, &here);
    compare_worse(p->figures, &here);
    if (p->each) {
        p->each[slot].compared = true;
        compare_worse(&p->each[slot].figures, &here);
    }
}

static void compare_each_gradient(gradients_pass *p, const bool *skip)
{
    const tn_grads *eager = p->eager->grads;
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (!eager->in[i].data)
            continue;
        text_cut(p->like.name, sizeof p->like.name, "gradient of input %d", i);
        compare_one_gradient(p, i, 0, 1, skip);
    }
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *param = &eager->param[role];
        int slot = TN_CALL_TENSORS + role;
        int64_t experts = experts_of(p->eager->site, param);
        for (int64_t i = 0; i < (experts > 1 ? experts : param->count); i++) {
            text_cut(p->like.name, sizeof p->like.name, "gradient of %s %lld", tn_role_name((tn_role)role),
                     (long long)i);
            compare_one_gradient(p, slot, i, experts, NULL);
        }
    }
}

void compare_gradients(const tn_call *eager, const tn_grads *grads, double ulps, const bool *skip,
                       compare_figures *figures, compare_gradient *each)
{
    bool doubtful = false;
    range_look look[RANGE_KINDS];
    gradients_pass p = {.eager = eager,
                        .grads = grads,
                        .like = {.site = (tn_dtype)eager->site->meaning[TN_AXIS_DTYPE],
                                 .unit = eps_of((tn_dtype)eager->site->meaning[TN_AXIS_DTYPE]),
                                 .ulps = ulps,
                                 .doubtful = &doubtful},
                        .figures = figures,
                        .each = each};
    compare_each_gradient(&p, skip);
    if (!doubtful)
        return;
    p.judging = true;
    p.nans = range_params_have_nan(eager->site);
    p.look = open_looks(look, eager) ? look : NULL;
    compare_each_gradient(&p, skip);
    close_looks(look);
}
