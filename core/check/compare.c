/* How far a kernel's results are from eager's. */
#include "check/compare.h"

#include "base/convert.h"
#include "op/op.h"
#include "check/fence.h"
#include "base/text.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 256, LANES = 16 };

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

static const char *row_of(const tn_tensor *t, int64_t row)
{
    int64_t offset = 0;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        offset += row % t->shape[i] * t->stride[i];
        row /= t->shape[i];
    }
    return (const char *)t->data + offset * (int64_t)tn_dtype_size(t->dtype);
}

static bool never_written(const char *element, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)element[i] != FENCE_FILL)
            return false;
    return true;
}

/* Zeros behind n elements of a block, to whole lanes; returns how many there are then. */
static int64_t fill_lanes(float *block, int64_t n)
{
    while (n % LANES != 0)
        block[n++] = 0;
    return n;
}

static float largest_lane(const float lane[LANES])
{
    float largest = 0;
    for (int64_t l = 0; l < LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

static double row_max(const char *row, tn_dtype dtype, int64_t width)
{
    size_t size = tn_dtype_size(dtype);
    float block[BLOCK], largest[LANES] = {0};
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(row + (size_t)i * size, dtype, block, n);
        n = fill_lanes(block, n);
        for (int64_t j = 0; j < n; j += LANES)
            for (int64_t l = 0; l < LANES; l++) {
                float size_of = fabsf(block[j + l]), finite = size_of <= FLT_MAX ? size_of : 0;
                largest[l] = finite > largest[l] ? finite : largest[l];
            }
    }
    return (double)largest_lane(largest);
}

/* The root mean square of the finite elements. */
static double row_rms(const char *row, tn_dtype dtype, int64_t width)
{
    size_t size = tn_dtype_size(dtype);
    float block[BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(row + (size_t)i * size, dtype, block, n);
        for (int64_t j = 0; j < n; j++)
            sum += fabsf(block[j]) <= FLT_MAX ? (double)block[j] * (double)block[j] : 0;
    }
    return width > 0 ? sqrt(sum / (double)width) : 0;
}

/* The largest of its rows' root mean squares. */
static double largest_rms(const tn_tensor *t)
{
    double largest = 0;
    int64_t width = t->shape[t->ndim - 1], rows = width > 0 ? tn_tensor_count(t) / width : 0;
    for (int64_t i = 0; i < rows; i++)
        largest = fmax(largest, row_rms(row_of(t, i), t->dtype, width));
    return largest;
}

/* What rows of results are measured by at least, in units of the root mean square of those of the first input; 0: no
 * such thing. Where a linear layer gives few elements: a sum of n products is of the size of sqrt(n) rms(x) rms(w), and
 * so is its rounding, when its terms happen to cancel; w: the largest row. Where gates are sparse: what little is above
 * the cut has the rounding of the cut, which is of the size of the gates; up: the largest row. */
static double least_size(const tn_call *call)
{
    if (call->op == TN_OP_GLU)
        return call->site->features & TN_HAS_SPARSITY ? largest_rms(&call->in[1]) : 0;
    if (call->op != TN_OP_LINEAR || call->out[0].shape[call->out[0].ndim - 1] >= FEW_OUTPUTS)
        return 0;
    const tn_param *weight = &call->site->param[TN_ROLE_WEIGHT];
    return weight->count == 1 ? sqrt((double)weight->tensors->shape[1]) * largest_rms(weight->tensors) : 0;
}

typedef struct row_place {
    char name[48]; /* "output 0" */
    int64_t row;
    double unit;    /* eps(dt), then times max|eager row| */
    double largest; /* to be used instead of that maximum; 0: none */
    double ulps;
    const tn_tensor *x; /* whose rows, times least, count as well; not read where least is 0 */
    double least;
} row_place;

/* An element against eager's. A NaN or infinity is right only where eager has it too. */
static void compare_element(const row_place *at, int64_t column, float want, float got, bool unwritten,
                            compare_figures *f)
{
    if ((isnan(want) && isnan(got) && !unwritten) || want == got)
        return;
    double distance = fabs((double)got - (double)want);
    double ulps = isfinite(distance) && at->unit > 0 ? distance / at->unit : INFINITY;
    double worst = at->ulps > 0 ? ulps / at->ulps : INFINITY;
    if (ulps > f->ulps)
        f->ulps = ulps;
    if (worst <= f->worst)
        return;
    f->worst = worst;
    if (unwritten)
        text_cut(f->detail, sizeof f->detail, "%s, row %lld, element %lld was never written", at->name,
                 (long long)at->row, (long long)column);
    else
        text_cut(f->detail, sizeof f->detail, "%s, row %lld, element %lld is %.6g, eager has %.6g", at->name,
                 (long long)at->row, (long long)column, (double)got, (double)want);
}

/* Most blocks hold nothing worse than what was met already. Both have room for whole lanes. */
static bool is_no_worse(const row_place *at, float *a, float *b, int64_t n, const compare_figures *f)
{
    float lane[LANES] = {0}, sum[LANES] = {0}, any = 0;
    fill_lanes(a, n);
    n = fill_lanes(b, n);
    for (int64_t j = 0; j < n; j += LANES)
        for (int64_t l = 0; l < LANES; l++) {
            float distance = fabsf(b[j + l] - a[j + l]);
            lane[l] = distance > lane[l] ? distance : lane[l];
            sum[l] += distance; /* a NaN, where there is one */
        }
    for (int64_t l = 0; l < LANES; l++)
        any += sum[l];
    if (!isfinite(any))
        return false;
    float largest = largest_lane(lane);
    /* In the same units as compare_element, with room for float's rounding of the distance. */
    double ulps = at->unit > 0 ? 1.000001 * (double)largest / at->unit : largest > 0 ? INFINITY : 0;
    return ulps <= f->ulps && (at->ulps > 0 ? ulps / at->ulps : ulps) <= f->worst;
}

static void compare_row(const row_place *at, tn_dtype dtype, const char *want, const char *got, int64_t width,
                        compare_figures *f)
{
    size_t size = tn_dtype_size(dtype);
    float a[BLOCK], b[BLOCK];
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(want + (size_t)i * size, dtype, a, n);
        convert_to_f32(got + (size_t)i * size, dtype, b, n);
        if (is_no_worse(at, a, b, n, f))
            continue;
        for (int64_t j = 0; j < n; j++)
            compare_element(at, i + j, a[j], b[j], isnan(b[j]) && never_written(got + (size_t)(i + j) * size, size), f);
    }
}

static void compare_floats(const tn_tensor *want, const tn_tensor *got, const row_place *like, const bool *skip,
                           compare_figures *f)
{
    int64_t width = want->shape[want->ndim - 1];
    int64_t rows = width > 0 ? tn_tensor_count(want) / width : 0;
    for (int64_t row = 0; row < rows; row++) {
        if (skip && skip[row])
            continue;
        const char *a = row_of(want, row);
        row_place at = *like;
        at.row = row;
        double least =
            at.least > 0 ? at.least * row_rms(row_of(at.x, row), at.x->dtype, at.x->shape[at.x->ndim - 1]) : 0;
        at.unit *= at.largest > 0 ? at.largest : fmax(row_max(a, want->dtype, width), least);
        compare_row(&at, want->dtype, a, row_of(got, row), width, f);
    }
}

/* The k experts of a token may come in any order; each brings its weight along. */
static bool compare_chosen(const row_place *at, const tn_call *eager, const tn_call *call, compare_figures *f)
{
    const tn_tensor *weights = &eager->out[0];
    int64_t k = weights->shape[1];
    size_t size = tn_dtype_size(weights->dtype);
    const char *want = row_of(weights, at->row), *got = row_of(&call->out[0], at->row);
    const int32_t *want_e = (const int32_t *)(const void *)row_of(&eager->out[1], at->row);
    const int32_t *got_e = (const int32_t *)(const void *)row_of(&call->out[1], at->row);
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
        compare_element(at, slot, a, b, isnan(b) && never_written(got + (size_t)slot * size, size), f);
    }
    return true;
}

/* Where rounding may decide, any k different experts are right; where all of them tie, as they do for a row of zeros,
 * their weights are known, too. */
static bool compare_tied(const row_place *at, const tn_call *eager, const tn_call *call, compare_figures *f)
{
    const tn_tensor *weights = &eager->out[0];
    int64_t k = weights->shape[1], width = eager->in[0].shape[1];
    const int32_t *e = (const int32_t *)(const void *)row_of(&call->out[1], at->row);
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
    if (!biased && !(row_max(row_of(&eager->in[0], at->row), eager->in[0].dtype, width) > 0))
        compare_row(at, weights->dtype, row_of(weights, at->row), row_of(&call->out[0], at->row), k, f);
    return true;
}

static void compare_route(const tn_call *eager, const tn_call *call, const row_place *like, const bool *skip,
                          compare_figures *f)
{
    const tn_tensor *weights = &eager->out[0];
    for (int64_t row = 0; row < weights->shape[0]; row++) {
        row_place at = *like;
        at.row = row;
        at.unit *= row_max(row_of(weights, row), weights->dtype, weights->shape[1]);
        if ((skip && skip[row] ? compare_tied : compare_chosen)(&at, eager, call, f))
            continue;
        f->worst = f->ulps = INFINITY;
        return;
    }
}

void compare_call(const tn_call *eager, const tn_call *call, double ulps, const bool *skip, compare_figures *figures)
{
    row_place like = {.name = "output 0",
                      .unit = eps_of((tn_dtype)eager->site->meaning[TN_AXIS_DTYPE]),
                      .ulps = ulps,
                      .x = &eager->in[0],
                      .least = least_size(eager)};
    bool route = op_find(eager->op)->picks;
    if (route)
        compare_route(eager, call, &like, skip, figures);
    for (int i = route ? 2 : 0; i < eager->out_count; i++) {
        text_cut(like.name, sizeof like.name, "output %d", i);
        compare_floats(&eager->out[i], &call->out[i], &like, skip, figures);
    }
}

const tn_tolerance *compare_gradient_tolerance(const tn_impl *impl)
{
    const tn_tolerance *own = &impl->gradient_tolerance;
    return own->ulps_f32 > 0 || own->ulps_bf16 > 0 || own->ulps_f16 > 0 ? own : &impl->tolerance;
}

static double tensor_max(const tn_tensor *t)
{
    int64_t width = t->shape[t->ndim - 1], rows = width > 0 ? tn_tensor_count(t) / width : 0;
    double largest = 0;
    for (int64_t row = 0; row < rows; row++) {
        double here = row_max(row_of(t, row), t->dtype, width);
        largest = here > largest ? here : largest;
    }
    return largest;
}

/* Keeps the worse figures. */
static void worse_of(compare_figures *to, const compare_figures *one)
{
    double ulps = one->ulps > to->ulps ? one->ulps : to->ulps;
    if (one->worst > to->worst)
        *to = *one;
    to->ulps = ulps;
}

static void compare_one_gradient(const tn_tensor *want, const tn_tensor *got, row_place *like, const bool *skip,
                                 compare_figures *figures, compare_gradient *own)
{
    compare_figures here = {0};
    like->largest = tensor_max(want);
    compare_floats(want, got, like, skip, &here);
    worse_of(figures, &here);
    if (own) {
        own->compared = true;
        worse_of(&own->figures, &here);
    }
}

void compare_gradients(const tn_site *site, const tn_grads *eager, const tn_grads *grads, double ulps, const bool *skip,
                       compare_figures *figures, compare_gradient *each)
{
    row_place like = {.unit = eps_of((tn_dtype)site->meaning[TN_AXIS_DTYPE]), .ulps = ulps};
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (!eager->in[i].data)
            continue;
        text_cut(like.name, sizeof like.name, "gradient of input %d", i);
        compare_one_gradient(&eager->in[i], &grads->in[i], &like, skip, figures, each ? &each[i] : NULL);
    }
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < eager->param[role].count; i++) {
            const tn_tensor *want = &eager->param[role].tensors[i];
            text_cut(like.name, sizeof like.name, "gradient of %s %lld", tn_role_name((tn_role)role), (long long)i);
            compare_one_gradient(want, &grads->param[role].tensors[i], &like, NULL, figures,
                                 each ? &each[TN_CALL_TENSORS + role] : NULL);
        }
}

/* ---- bits ---------------------------------------------------------------------------------------------------------
 */

static double value_of(const char *element, tn_dtype dtype)
{
    float f;
    if (dtype == TN_I32) {
        int32_t i;
        memcpy(&i, element, sizeof i);
        return i;
    }
    convert_to_f32(element, dtype, &f, 1);
    return (double)f;
}

bool compare_bits(const tn_tensor *a, const tn_tensor *b, char *detail, size_t detail_size)
{
    int64_t width = a->shape[a->ndim - 1], rows = width > 0 ? tn_tensor_count(a) / width : 0;
    size_t size = tn_dtype_size(a->dtype);
    for (int64_t row = 0; row < rows; row++) {
        const char *x = row_of(a, row), *y = row_of(b, row);
        if (!memcmp(x, y, (size_t)width * size))
            continue;
        int64_t i = 0;
        while (!memcmp(x + (size_t)i * size, y + (size_t)i * size, size))
            i++;
        text_cut(detail, detail_size, "row %lld, element %lld is %.9g and %.9g", (long long)row, (long long)i,
                 value_of(x + (size_t)i * size, a->dtype), value_of(y + (size_t)i * size, a->dtype));
        return false;
    }
    return true;
}
