/* RMS_NORM and ADD_RMS_NORM. */
#include "check_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char kernel[] = "npu_fused_rmsnorm";

typedef struct shape {
    int64_t rows, heads, width, gap; /* gap: elements between rows that belong to nobody; 0: dense */
    double eps, scale;
    bool specials;
    bool in_place;
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

/* want and bound of one row, in double from the rounded inputs. Each rounding to dtype adds half a unit of its result;
 * in f32 the square root, its reciprocal, the mean, the products and the activation (with some four units of its own)
 * add less than a dozen, and the sum of squares at most one unit per addition that an element passes through: width /
 * 64 of a partial sum and 6 when these are joined. */
static void reference_row(check_case *c, int32_t out, int64_t first, const double *x, const double *gate,
                          const double *weight)
{
    int64_t width = c->site.dim[TN_DIM_WIDTH];
    tn_dtype dtype = (tn_dtype)c->site.meaning[TN_AXIS_DTYPE];
    int32_t norm = c->site.meaning[TN_AXIS_NORM];
    double sum = 0, u = unit_roundoff(dtype), f32 = unit_roundoff(TN_F32);
    for (int64_t i = 0; i < width; i++)
        sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / (double)width + (float)c->site.num[TN_NUM_EPS]);
    int roundings = norm == TN_NORM_W ? 2 : norm == TN_NORM_W_GATED ? 3 : 1;
    double relative = 1.01 * (roundings * u + (16 + (double)width / 64 / 2 + 3) * f32);
    for (int64_t i = 0; i < width; i++) {
        double n = x[i] * scale, w = norm == TN_NORM_NO_WEIGHT ? 1 : weight[i];
        double factor = norm == TN_NORM_1_PLUS_W ? 1 + w : w;
        if (norm == TN_NORM_W_GATED)
            factor *= gate[i] / (1 + exp(-gate[i]));
        /* The grid below the normal numbers, passed on by the factors that follow a rounding. */
        double coarse = smallest(dtype) * (1 + fabs(factor) + fabs(factor / (w ? w : 1)));
        c->want[out][first + i] = n * factor;
        c->bound[out][first + i] = relative * fabs(n * factor) + coarse;
    }
}

/* A special value in a row makes the reference infinite or NaN where f32 arithmetic does so earlier: such rows are
 * compared with eager and between the tiers only. */
static void reference(check_case *c, int32_t out, const tn_tensor *x_tensor, const tn_tensor *gate_tensor)
{
    int64_t width = c->site.dim[TN_DIM_WIDTH], count = tn_tensor_count(x_tensor);
    double *x = case_values(c, x_tensor), *gate = gate_tensor ? case_values(c, gate_tensor) : NULL;
    const tn_param *p = &c->site.param[TN_ROLE_WEIGHT];
    double *weight = p->count ? case_values(c, p->tensors) : NULL;
    case_want(c, out);
    for (int64_t first = 0; first < count; first += width)
        reference_row(c, out, first, x + first, gate ? gate + first : NULL, weight);
}

static void describe(check_case *c, const shape *s)
{
    snprintf(c->what, sizeof c->what, "rows %lld x %lld, width %lld, gap %lld, eps %g, scale %g%s%s",
             (long long)s->rows, (long long)s->heads, (long long)s->width, (long long)s->gap, s->eps, s->scale,
             s->specials ? ", specials" : "", s->in_place ? ", in place" : "");
    c->tiers_equal = c->site.meaning[TN_AXIS_NORM] != TN_NORM_W_GATED;
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
    tn_tensor *x = case_in(&c, dtype, 3, dims, s->gap ? stride : NULL), *gate = NULL;
    fill_normal(x, &r, 0, s->scale);
    if (norm == TN_NORM_W_GATED) {
        gate = case_in(&c, dtype, 3, dims, NULL);
        fill_normal(gate, &r, 0, 3);
    }
    if (s->specials)
        fill_specials(x, &r, 1 + s->rows * s->heads / 2);
    case_out(&c, dtype, 3, dims, s->gap ? stride : NULL);
    if (s->in_place)
        c.alias[0] = 0;
    if (!s->specials)
        reference(&c, 0, x, gate);
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
    if (s->specials)
        fill_specials(h, &r, 1 + s->rows * s->heads / 2);
    case_out(&c, dtype, 3, dims, s->gap ? stride : NULL);
    case_out(&c, dtype, 3, dims, NULL);
    if (s->in_place)
        c.alias[0] = 0;
    describe(&c, s);
    if (s->specials)
        return c;
    /* The sum is one rounding of an exact double sum: no distance is allowed. The norm is that of the rounded sum. */
    case_want(&c, 0);
    tn_tensor sum = tn_tensor_dense(NULL, dtype, 3, dims);
    int64_t count = tn_tensor_count(&sum);
    sum.data = case_alloc(&c, (size_t)count * tn_dtype_size(dtype));
    double *a = case_values(&c, h), *b = case_values(&c, add);
    for (int64_t i = 0; i < count; i++) {
        c.want[0][i] = round_to(dtype, a[i] + b[i]);
        element_set(&sum, i, c.want[0][i]);
    }
    reference(&c, 1, &sum, NULL);
    return c;
}

static const shape shapes[] = {
    {0, 1, 16, 0, 1e-6, 1, false, false},     {1, 1, 1, 0, 1e-6, 1, false, false},
    {3, 1, 2, 0, 1e-6, 1, false, false},      {2, 1, 7, 3, 1e-5, 1, false, false},
    {2, 1, 8, 0, 1e-5, 1, false, true},       {2, 1, 9, 0, 1e-5, 1, false, false},
    {3, 2, 15, 1, 1e-6, 20, false, false},    {3, 2, 16, 0, 1e-6, 1, false, true},
    {3, 2, 17, 5, 0, 1, false, true},         {2, 3, 31, 0, 1e-6, 1, false, false},
    {2, 3, 33, 0, 1e-6, 0.01, false, false},  {1, 5, 63, 0, 1e-6, 1, false, false},
    {1, 5, 64, 2, 1e-6, 1, false, false},     {1, 5, 65, 0, 0, 1, false, false},
    {4, 4, 128, 128, 1e-6, 1, false, false},  {1, 1, 1024, 0, 1e-6, 1, false, false},
    {1, 1, 4095, 0, 1e-6, 1, false, true},    {150, 1, 1000, 8, 1e-6, 1, false, false},
    {70, 8, 128, 0, 1e-6, 1, false, false},   {1, 1, 65536, 0, 1e-6, 1, false, false},
    {4, 3, 40, 1, 1e-6, 1, true, false},      {9, 1, 100, 0, 0, 1, true, true},
    {3, 1, 20, 0, 1e-6, 2e-41, false, false}, {3, 1, 20, 0, 1e-6, 1e-7, false, false},
};

static void check_group(check_state *s, tn_op op, tn_norm norm, tn_dtype dtype)
{
    group_begin(s, "%s %s %s %s", op == TN_OP_RMS_NORM ? "rms_norm" : "add_rms_norm", norm_name(norm),
                tn_dtype_name(dtype), s->tier->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_case c =
            op == TN_OP_RMS_NORM ? norm_case(norm, dtype, &shapes[i]) : add_norm_case(norm, dtype, &shapes[i]);
        check_run(s, &c);
    }
    group_end(s);
}

static void check_declines(check_state *s)
{
    const shape plain = {1, 1, 16, 0, 1e-6, 1, false, false};
    group_begin(s, "rms_norm declines %s", s->tier->name);
    check_case c = norm_case(TN_NORM_W, TN_F32, &plain);
    c.site.num[TN_NUM_EPS] = -1;
    check_declined(s, &c, "eps");
    c = norm_case(TN_NORM_W, TN_F32, &plain);
    c.site.dim[TN_DIM_WIDTH] = 17;
    check_declined(s, &c, "weight");
    c = add_norm_case(TN_NORM_W, TN_F32, &plain);
    c.site.meaning[TN_AXIS_NORM] = TN_NORM_W_GATED;
    check_declined(s, &c, "norm");
    c = norm_case(TN_NORM_W, TN_BF16, &plain);
    ((tn_tensor *)c.site.param[TN_ROLE_WEIGHT].tensors)->dtype = TN_F32;
    check_declined(s, &c, "weight");
    group_end(s);
}

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static void check(check_state *s)
{
    for (int norm = TN_NORM_W; norm <= TN_NORM_NO_WEIGHT; norm++)
        for (int d = 0; d < 3; d++) {
            check_group(s, TN_OP_RMS_NORM, (tn_norm)norm, dtypes[d]);
            if (norm != TN_NORM_W_GATED)
                check_group(s, TN_OP_ADD_RMS_NORM, (tn_norm)norm, dtypes[d]);
        }
    check_declines(s);
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
                const shape layer = {bench_tokens[t], 1, model->hidden, 0, 1e-6, 1, false, false};
                const shape heads = {bench_tokens[t], model->q_heads, model->head, 0, 1e-6, 1, false, false};
                bench_shape(s, model->name, dtypes[d], &layer);
                if (m != 2) /* as many heads as the second has */
                    bench_shape(s, model->name, dtypes[d], &heads);
            }
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
        golden_run(s, &c, file, n, names);
        return true;
    }
    return false;
}

const check_test check_rms_norm = {.name = "rms_norm",
                                   .tiers = TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_NEON,
                                   .check = check,
                                   .bench = bench,
                                   .golden = golden};
