/* RMS_NORM and ADD_RMS_NORM. */
#include "check_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "npu_fused_rmsnorm";

/* Gradients that are not there, or not wanted. */
typedef enum without { WITHOUT_NOTHING, WITHOUT_DY, WITHOUT_DSUM, WITHOUT_DX, WITHOUT_INPUTS, WITHOUT_DW } without;

/* Special values in x. The gradients of a row whose squares overflow f32 are those of a constant for the kernel, and of
 * the norm for eager, which adds in double: where backward is compared, no number is that large. */
typedef enum specials { NO_SPECIALS, SPECIALS, SPECIALS_BACKWARD } specials;

typedef struct shape {
    int64_t rows, heads, width, gap; /* gap: elements between rows that belong to nobody; 0: dense */
    double eps, scale;
    specials specials;
    bool in_place;
    without without;
} shape;

static const char *norm_name(int32_t norm)
{
    static const char *const names[] = {"?", "w", "1+w", "w f32", "w gated", "no weight"};
    return names[norm];
}

static void make_site(check_case *c, tn_norm norm, const shape *s, random_state *r)
{
    c->site.meaning[TN_AXIS_NORM] = norm;
    c->site.dim[TN_DIM_WIDTH] = s->width;
    c->site.num[TN_NUM_EPS] = s->eps;
    if (norm == TN_NORM_NO_WEIGHT)
        return;
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    tn_tensor *w = case_param(c, TN_ROLE_WEIGHT, 1, dtype, 1, &s->width);
    fill_normal(w, r, norm == TN_NORM_1_PLUS_W ? 0 : 1, 0.3);
}

/* The relative error of 1 / sqrt(mean(x^2) + eps) in f32: the mean, eps, the root, its reciprocal, and of the sum at
 * most one unit per addition that an element passes through: width / 64 of a partial sum and 6 when these are joined,
 * which the root halves. With it that of products with it (n, factor, activation): less than a dozen units. */
static double scale_error(int64_t width)
{
    return (16 + (double)width / 64 / 2 + 3) * unit_roundoff(TN_F32);
}

/* What is wanted of a row in double, from the rounded inputs. */
typedef struct row_values {
    double scale, weight, silu, slope; /* of an element: weight as it multiplies n, silu(gate), silu'(gate) */
} row_values;

static double scale_of(const check_case *c, const double *x)
{
    int64_t width = c->site.dim[TN_DIM_WIDTH];
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)width + (float)c->site.num[TN_NUM_EPS]);
}

static row_values values_at(const check_case *c, double scale, const double *gate, const double *weight, int64_t i)
{
    int32_t norm = c->site.meaning[TN_AXIS_NORM];
    row_values v = {scale, norm == TN_NORM_NO_WEIGHT ? 1 : weight[i] + (norm == TN_NORM_1_PLUS_W), 1, 0};
    if (norm == TN_NORM_W_GATED) {
        double s = 1 / (1 + exp(-gate[i]));
        v.silu = gate[i] * s;
        v.slope = s * (1 + gate[i] * (1 - s));
    }
    return v;
}

/* n as the weight multiplies it, and by how much it may be off: TN_NORM_W rounds it, up or down where it lies between
 * two numbers to within its error in f32. */
static double normalised(const check_case *c, double n, double error, double *off)
{
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    *off = 0;
    if (c->site.meaning[TN_AXIS_NORM] != TN_NORM_W || dtype == TN_F32)
        return n;
    double low = round_to(dtype, n * (1 - error)), high = round_to(dtype, n * (1 + error));
    *off = fabs(high - low) / 2;
    return (low + high) / 2;
}

/* want and bound of one row: everything in f32, then one rounding, which adds half a unit of the result. */
static void reference_row(check_case *c, int32_t out, int64_t first, const double *x, const double *gate,
                          const double *weight)
{
    int64_t width = c->site.dim[TN_DIM_WIDTH];
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    double scale = scale_of(c, x), relative = 1.01 * (unit_roundoff(dtype) + scale_error(width));
    for (int64_t i = 0; i < width; i++) {
        row_values v = values_at(c, scale, gate, weight, i);
        double off, n = normalised(c, x[i] * scale, scale_error(width), &off);
        c->want[out][first + i] = n * v.weight * v.silu;
        c->bound[out][first + i] =
            relative * fabs(c->want[out][first + i]) + 1.01 * off * fabs(v.weight) + smallest(dtype);
    }
}

/* x: what is normalised, in element order. */
static void reference(check_case *c, const double *x)
{
    int64_t width = c->site.dim[TN_DIM_WIDTH], count = tn_tensor_count(&c->call.in[0]);
    int32_t out = c->call.op == TN_OP_ADD_RMS_NORM ? 1 : 0;
    bool gated = c->site.meaning[TN_AXIS_NORM] == TN_NORM_W_GATED;
    const tn_param *p = &c->site.param[TN_ROLE_WEIGHT];
    double *gate = gated ? case_values(c, &c->call.in[1]) : NULL;
    double *weight = p->count ? case_values(c, p->tensors) : NULL;
    case_want(c, out);
    for (int64_t first = 0; first < count; first += width)
        reference_row(c, out, first, x + first, gate ? gate + first : NULL, weight);
}

/* ---- gradients ----------------------------------------------------------------------------------- */

/* The upstream gradient of an output in double; zeros when there is none. */
static double *upstream(check_case *c, int32_t out)
{
    const tn_tensor *g = &c->grads.out[out];
    return g->data ? case_values(c, g) : case_alloc(c, (size_t)tn_tensor_count(&c->call.out[out]) * sizeof(double));
}

/* One row of x's gradient (and r's), in element order from first; with the gate's, and the weight's added to dw, whose
 * bound grows by one unit per row: what an addition can do. */
static void reference_gradient_row(check_case *c, int64_t first, const double *x, const double *gate,
                                   const double *weight, const double *dy, const double *dsum)
{
    bool gated = c->site.meaning[TN_AXIS_NORM] == TN_NORM_W_GATED, add = c->call.op == TN_OP_ADD_RMS_NORM;
    int64_t width = c->site.dim[TN_DIM_WIDTH], rows = tn_tensor_count(&c->call.in[0]) / width;
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    double u = unit_roundoff(dtype), f32 = unit_roundoff(TN_F32), scale = scale_of(c, x), mean = 0, size = 0;
    double relative = scale_error(width);
    for (int64_t i = 0; i < width; i++) {
        row_values v = values_at(c, scale, gate, weight, i);
        mean += dy[i] * v.weight * v.silu * x[i] * scale / (double)width;
        size += fabs(dy[i] * v.weight * v.silu * x[i] * scale) / (double)width;
    }
    /* As for the sum of squares, but without a root that halves it. */
    double mean_bound = (2 * relative + (16 + (double)width / 64) * f32) * size;
    for (int64_t i = 0; i < width; i++) {
        row_values v = values_at(c, scale, gate, weight, i);
        double n = x[i] * scale, h = dy[i] * v.weight * v.silu, extra = add ? dsum[i] : 0;
        double d = scale * (h - n * mean) + extra;
        double bound = scale * (2 * relative * (fabs(h) + fabs(n * mean)) + fabs(n) * mean_bound) + f32 * fabs(extra);
        for (int32_t in = 0; in <= add; in++) {
            c->want_in[in][first + i] = d;
            c->bound_in[in][first + i] = 1.01 * (bound + u * fabs(d)) + smallest(dtype);
        }
        if (weight) {
            c->want_param[TN_ROLE_WEIGHT][i] += dy[i] * v.silu * n;
            c->bound_param[TN_ROLE_WEIGHT][i] += (relative + (double)rows * f32) * fabs(dy[i] * v.silu * n);
        }
        if (gated) {
            /* Near -1.28, where the derivative of silu is 0, its terms are of this size. */
            double s = 1 / (1 + exp(-gate[i])), terms = s * (1 + fabs(gate[i]));
            c->want_in[1][first + i] = dy[i] * n * v.weight * v.slope;
            c->bound_in[1][first + i] =
                fabs(dy[i] * n * v.weight) * (1.01 * (u + relative) * fabs(v.slope) + 16 * f32 * terms) +
                smallest(dtype);
        }
    }
}

/* x: what was normalised, in element order. */
static void reference_gradients(check_case *c, const double *x)
{
    bool gated = c->site.meaning[TN_AXIS_NORM] == TN_NORM_W_GATED, add = c->call.op == TN_OP_ADD_RMS_NORM;
    int64_t width = c->site.dim[TN_DIM_WIDTH], count = tn_tensor_count(&c->call.in[0]);
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    const tn_param *p = &c->site.param[TN_ROLE_WEIGHT];
    double *weight = p->count ? case_values(c, p->tensors) : NULL,
           *gate = gated ? case_values(c, &c->call.in[1]) : NULL;
    double *dsum = add ? upstream(c, 0) : NULL, *dy = upstream(c, add ? 1 : 0);
    for (int32_t i = 0; i < c->call.in_count; i++)
        case_want_in(c, i);
    if (weight)
        case_want_param(c, TN_ROLE_WEIGHT);
    for (int64_t at = 0; at < count; at += width)
        reference_gradient_row(c, at, x + at, gate ? gate + at : NULL, weight, dy + at, dsum ? dsum + at : NULL);
    for (int64_t i = 0; weight && i < width; i++)
        c->bound_param[TN_ROLE_WEIGHT][i] =
            1.01 * (c->bound_param[TN_ROLE_WEIGHT][i] + unit_roundoff(dtype) * fabs(c->want_param[TN_ROLE_WEIGHT][i])) +
            smallest(dtype);
}

/* Gradients, but for upstream ones that the shape leaves out. */
static void ask_gradients(check_case *c, const shape *s, random_state *r)
{
    case_grads(c, r);
    if (s->without == WITHOUT_DY)
        c->grads.out[c->call.op == TN_OP_ADD_RMS_NORM ? 1 : 0].data = NULL;
    if (s->without == WITHOUT_DSUM)
        c->grads.out[0].data = NULL;
}

/* Gradients that the shape does not want. */
static void leave_out(check_case *c, const shape *s)
{
    if (s->without == WITHOUT_DX || s->without == WITHOUT_INPUTS)
        c->grads.in[0].data = NULL;
    if (s->without == WITHOUT_INPUTS)
        c->grads.in[1].data = NULL;
    if (s->without == WITHOUT_DW)
        c->grads.param[TN_ROLE_WEIGHT].count = 0;
}

/* ---- cases --------------------------------------------------------------------------------------- */

static void describe(check_case *c, const shape *s)
{
    static const char *const names[] = {"", ", no dy", ", no dsum", ", no dx", ", no gradients of inputs", ", no dw"};
    snprintf(c->what, sizeof c->what, "rows %lld x %lld, width %lld, gap %lld, eps %g, scale %g%s%s%s",
             (long long)s->rows, (long long)s->heads, (long long)s->width, (long long)s->gap, s->eps, s->scale,
             s->specials ? ", specials" : "", s->in_place ? ", in place" : "", names[s->without]);
    c->tiers_equal = c->site.meaning[TN_AXIS_NORM] != TN_NORM_W_GATED;
}

static void make_special(tn_tensor *x, const shape *s, random_state *r)
{
    if (s->specials)
        fill_specials(x, r, 1 + s->rows * s->heads / 2);
    for (int64_t i = 0, n = tn_tensor_count(x); s->specials == SPECIALS_BACKWARD && i < n; i++) {
        double v = element_get(x, element_offset(x, i));
        if (isfinite(v) && fabs(v) > 0x1p40)
            element_set(x, element_offset(x, i), 1);
    }
}

/* x [rows, heads, width]: with a gap the heads lie apart as in a tensor cut from a wider one, and rows are not where
 * the next head would be. */
static check_case norm_case(tn_norm norm, tn_dtype dtype, const shape *s)
{
    check_case c;
    random_state r = {(uint64_t)(s->width * 131 + s->rows * 7 + s->heads)};
    int64_t dims[] = {s->rows, s->heads, s->width};
    int64_t stride[] = {s->heads * (s->width + s->gap) + s->gap, s->width + s->gap, 1};
    case_init(&c, kernel, TN_OP_RMS_NORM, dtype);
    make_site(&c, norm, s, &r);
    tn_tensor *x = case_in(&c, dtype, 3, dims, s->gap ? stride : NULL);
    fill_normal(x, &r, 0, s->scale);
    if (norm == TN_NORM_W_GATED)
        fill_normal(case_in(&c, dtype, 3, dims, NULL), &r, 0, 3);
    make_special(x, s, &r);
    case_out(&c, dtype, 3, dims, s->gap ? stride : NULL);
    if (s->in_place)
        c.alias[0] = c.grad_alias[0] = 0;
    describe(&c, s);
    return c;
}

static check_case add_norm_case(tn_norm norm, tn_dtype dtype, const shape *s)
{
    check_case c;
    random_state r = {(uint64_t)(s->width * 137 + s->rows * 11 + s->heads)};
    int64_t dims[] = {s->rows, s->heads, s->width};
    int64_t stride[] = {s->heads * (s->width + s->gap) + s->gap, s->width + s->gap, 1};
    case_init(&c, kernel, TN_OP_ADD_RMS_NORM, dtype);
    make_site(&c, norm, s, &r);
    tn_tensor *h = case_in(&c, dtype, 3, dims, s->gap ? stride : NULL);
    tn_tensor *add = case_in(&c, dtype, 3, dims, NULL);
    fill_normal(h, &r, 0, s->scale);
    fill_normal(add, &r, 0, s->scale);
    make_special(h, s, &r);
    case_out(&c, dtype, 3, dims, s->gap ? stride : NULL);
    case_out(&c, dtype, 3, dims, NULL);
    if (s->in_place)
        c.alias[0] = c.grad_alias[0] = 0;
    describe(&c, s);
    return c;
}

/* What forward and backward must compute. A special value in a row makes the reference infinite or NaN where f32
 * arithmetic does so earlier: such rows are compared with eager and between the tiers only. */
static void expect_results(check_case *c, const shape *s)
{
    tn_tensor x = c->call.in[0];
    random_state r = {(uint64_t)(s->width + s->rows)};
    if (s->specials != SPECIALS)
        ask_gradients(c, s, &r);
    if (s->specials)
        return;
    /* The sum is one rounding of an exact double sum: no distance is allowed. The norm is that of the rounded sum. */
    if (c->call.op == TN_OP_ADD_RMS_NORM) {
        double *a = case_values(c, &c->call.in[0]), *b = case_values(c, &c->call.in[1]);
        x = tn_tensor_dense(NULL, x.dtype, 3, x.shape);
        x.data = case_alloc(c, (size_t)tn_tensor_count(&x) * tn_dtype_size(x.dtype));
        case_want(c, 0);
        for (int64_t i = 0, count = tn_tensor_count(&x); i < count; i++) {
            c->want[0][i] = round_to(x.dtype, a[i] + b[i]);
            element_set(&x, i, c->want[0][i]);
        }
    }
    double *values = case_values(c, &x);
    reference(c, values);
    reference_gradients(c, values);
    leave_out(c, s);
}

static const shape shapes[] = {
    {0, 1, 16, 0, 1e-6, 1, 0, false, 0},
    {1, 1, 1, 0, 0.5, 1, 0, false, 0},
    {3, 1, 2, 0, 1e-6, 1, 0, false, 0},
    {2, 1, 7, 3, 1e-5, 1, 0, false, 0},
    {2, 1, 8, 0, 1e-5, 1, 0, true, 0},
    {2, 1, 9, 0, 1e-5, 1, 0, false, 0},
    {3, 2, 15, 1, 1e-6, 20, 0, false, 0},
    {3, 2, 16, 0, 1e-6, 1, 0, true, 0},
    {3, 2, 17, 5, 0, 1, 0, true, 0},
    {2, 3, 31, 0, 1e-6, 1, 0, false, 0},
    {2, 3, 33, 0, 1e-6, 0.01, 0, false, 0},
    {1, 5, 63, 0, 1e-6, 1, 0, false, 0},
    {1, 5, 64, 2, 1e-6, 1, 0, false, 0},
    {1, 5, 65, 0, 0, 1, 0, false, 0},
    {4, 4, 128, 128, 1e-6, 1, 0, false, 0},
    {1, 1, 1024, 0, 1e-6, 1, 0, false, 0},
    {1, 1, 4095, 0, 1e-6, 1, 0, true, 0},
    {150, 1, 1000, 8, 1e-6, 1, 0, false, 0},
    {70, 8, 128, 0, 1e-6, 1, 0, false, 0},
    {1, 1, 65536, 0, 1e-6, 1, 0, false, 0},
    {2100, 1, 40, 0, 1e-6, 1, 0, true, 0},
    {4, 3, 40, 1, 1e-6, 1, SPECIALS, false, 0},
    {9, 1, 100, 0, 0, 1, SPECIALS, true, 0},
    {9, 2, 100, 3, 1e-6, 1, SPECIALS_BACKWARD, true, 0},
    {9, 1, 67, 0, 0, 1, SPECIALS_BACKWARD, false, 0},
    {3, 1, 20, 0, 1e-6, 2e-41, 0, false, 0},
    {3, 1, 20, 0, 1e-6, 1e-7, 0, false, 0},
    {5, 1, 70, 1, 1e-6, 1, 0, false, WITHOUT_DY},
    {5, 1, 70, 0, 1e-6, 1, 0, false, WITHOUT_DSUM},
    {5, 1, 70, 2, 1e-6, 1, 0, false, WITHOUT_DX},
    {5, 1, 70, 0, 1e-6, 1, 0, false, WITHOUT_INPUTS},
    {5, 1, 70, 0, 1e-6, 1, 0, false, WITHOUT_DW},
};

/* Large shapes are for what all variants share, the division of work and of sums: the variant with most tensors runs
 * them. */
static bool runs(tn_op op, tn_norm norm, const shape *s)
{
    bool large = s->rows * s->heads * s->width > 50000;
    return !large || norm == (op == TN_OP_RMS_NORM ? TN_NORM_W_GATED : TN_NORM_W);
}

static void check_group(check_state *s, tn_op op, tn_norm norm, tn_dtype dtype)
{
    if (!group_begin(s, "%s %s %s %s", op == TN_OP_RMS_NORM ? "rms_norm" : "add_rms_norm", norm_name(norm),
                     tn_dtype_name(dtype), s->tier->name))
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!runs(op, norm, &shapes[i]) || check_pass_over(s))
            continue;
        check_case c =
            op == TN_OP_RMS_NORM ? norm_case(norm, dtype, &shapes[i]) : add_norm_case(norm, dtype, &shapes[i]);
        expect_results(&c, &shapes[i]);
        check_run(s, &c);
    }
    group_end(s);
}

static const shape plain = {1, 1, 16, 0, 1e-6, 1, 0, false, 0};

static check_case plain_case(int32_t norm, tn_dtype dtype)
{
    return norm_case((tn_norm)norm, dtype, &plain);
}

static const check_decline declines[] = {
    {TN_NORM_W, TN_F32, {{NUM_IS, TN_NUM_EPS, -1}}, "eps: is -1, must not be negative"},
    {TN_NORM_W, TN_F32, {{DIM_IS, TN_DIM_WIDTH, 17}}, "weight: is f32 [16]; RMS_NORM takes f32 [17]"},
    {TN_NORM_W, TN_F32, {{NUM_IS, TN_NUM_EPS, NAN}}, "eps: is nan, must be a finite number"},
    {TN_NORM_1_PLUS_W, TN_F16, {{COUNT_IS, TN_ROLE_WEIGHT, 0}}, "weight: the site has 0 tensors, RMS_NORM takes 1"},
    {TN_NORM_W_GATED, TN_BF16, {{ROWS_ARE, TN_ROLE_WEIGHT, 15}}, "weight: is bf16 [15]; RMS_NORM takes bf16 [16]"},
    {TN_NORM_NO_WEIGHT, TN_F32, {{DIM_IS, TN_DIM_WIDTH, 0}}, "width: is 0, RMS_NORM takes at least 1"},
    {TN_NORM_W, TN_BF16, {{DTYPE_IS, TN_ROLE_WEIGHT, TN_F32}}, "weight: is f32 [16]; RMS_NORM takes bf16 [16]"},
};

static void check_declined_sites(check_state *s)
{
    group_begin(s, "rms_norm declines %s", s->tier->name);
    check_declines(s, declines, sizeof declines / sizeof *declines, plain_case);
    check_case c = add_norm_case(TN_NORM_W, TN_F32, &plain);
    c.site.meaning[TN_AXIS_NORM] = TN_NORM_W_GATED;
    check_declined(s, &c, "norm: a sum has no gated norm");
    group_end(s);
}

static void check(check_state *s)
{
    for (int norm = TN_NORM_W; norm <= TN_NORM_NO_WEIGHT; norm++)
        for (int d = 0; d < CHECK_DTYPES; d++) {
            check_group(s, TN_OP_RMS_NORM, (tn_norm)norm, check_dtypes[d]);
            if (norm != TN_NORM_W_GATED)
                check_group(s, TN_OP_ADD_RMS_NORM, (tn_norm)norm, check_dtypes[d]);
        }
    check_declined_sites(s);
}

/* One line of each contract. w, bytes: of a row, of all. backward reads x and dy (and the second dy of the sum) and
 * writes dx (both gradients are the same numbers). */
static void bench_shape(check_state *s, const char *model, tn_dtype dtype, const shape *p)
{
    double bytes = (double)(p->rows * p->heads * p->width) * (double)tn_dtype_size(dtype);
    char name[64];
    snprintf(name, sizeof name, "%s %lldx%lld", model, (long long)(p->rows * p->heads), (long long)p->width);
    if (bench_wanted(s, dtype, 0, "rms_norm w %s", name)) {
        check_case c = norm_case(TN_NORM_W, dtype, p);
        bench_run(s, &c, (bench_work){bytes, bytes, 0}, (bench_work){2 * bytes, bytes, 0});
    }
    if (p->heads == 1 && bench_wanted(s, dtype, 0, "add_rms_norm w %s", name)) {
        check_case c = add_norm_case(TN_NORM_W, dtype, p);
        bench_run(s, &c, (bench_work){2 * bytes, 2 * bytes, 0}, (bench_work){4 * bytes, 2 * bytes, 0});
    }
}

/* The norms of layers, and of queries in heads. */
static void bench(check_state *s)
{
    for (int d = 0; d < 3; d++)
        for (int m = 0; m < BENCH_MODELS; m++)
            for (int t = 0; t < BENCH_TOKENS; t++) {
                const bench_model *model = &bench_models[m];
                const shape layer = {bench_tokens[t], 1, model->hidden, 0, 1e-6, 1, 0, false, 0};
                const shape heads = {bench_tokens[t], model->q_heads, model->head, 0, 1e-6, 1, 0, false, 0};
                bench_shape(s, model->name, check_dtypes[d], &layer);
                if (m != 2) /* as many heads as the second has */
                    bench_shape(s, model->name, check_dtypes[d], &heads);
            }
}

static void golden_gradients(check_case *c, const tn_safetensors *file, int64_t n, bool gated)
{
    random_state r = {0};
    tn_tensor up, dx, dw, dgate;
    if (!golden_get(file, n, "grad_out", &up) || !golden_get(file, n, "grad_x", &dx) ||
        !golden_get(file, n, "grad_weight", &dw))
        return;
    case_grads(c, &r);
    golden_upstream(c, 0, &up);
    golden_grad_in(c, 0, &dx);
    golden_grad_param(c, TN_ROLE_WEIGHT, 0, &dw);
    if (gated && golden_get(file, n, "grad_gate", &dgate))
        golden_grad_in(c, 1, &dgate);
}

static bool golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    static const struct {
        const char *op;
        tn_norm norm;
    } ops[] = {{"rmsnorm", TN_NORM_W}, {"rmsnorm_gemma", TN_NORM_1_PLUS_W}, {"rmsnorm_gated", TN_NORM_W_GATED}};
    static const char *const names[] = {"out"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        tn_tensor x, weight, gate;
        if (strcmp(op, ops[i].op) || !golden_get(file, n, "x", &x) || !golden_get(file, n, "weight", &weight))
            continue;
        check_case c;
        case_init(&c, kernel, TN_OP_RMS_NORM, dtype);
        c.site.meaning[TN_AXIS_NORM] = ops[i].norm;
        c.site.dim[TN_DIM_WIDTH] = x.shape[1];
        c.site.num[TN_NUM_EPS] = golden_number(file, n, "eps", 1e-6);
        golden_copy(case_param(&c, TN_ROLE_WEIGHT, 1, dtype, 1, weight.shape), &weight);
        golden_copy(case_in(&c, dtype, 2, x.shape, NULL), &x);
        if (golden_get(file, n, "gate", &gate))
            golden_copy(case_in(&c, dtype, 2, gate.shape, NULL), &gate);
        case_out(&c, dtype, 2, x.shape, NULL);
        golden_gradients(&c, file, n, ops[i].norm == TN_NORM_W_GATED);
        golden_run(s, &c, file, n, names);
        return true;
    }
    return false;
}

const check_test check_rms_norm = {
    .name = "rms_norm", .tiers = CHECK_VECTORS, .check = check, .bench = bench, .golden = golden};
