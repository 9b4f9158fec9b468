/* An RMS norm and the same with the sum before it, in every type, right but at the sites whose paths BAD_SITES names,
 * in part, separated by colons: there BAD_FAULT happens, a scale ("scale 1.01"), another epsilon ("eps 1e-3"), a wrong
 * scale from a row on ("rows 132"), or only where one token is computed at a time ("decode") or seven rows are left of
 * a tile of eight ("remainder"). What `tenon verify --text` must find. BAD_ID, when set, is the one of the two kernels
 * that is wrong. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <tenon/half.h>
#include <tenon/kernel.h>

typedef struct norm_fault {
    double eps, scale;
    int64_t from_row, most_rows;
    bool remainder;
} norm_fault;

static bool named(const char *path)
{
    const char *at = getenv("BAD_SITES");
    for (size_t n; at && *at; at += n + (at[n] == ':')) {
        n = strcspn(at, ":");
        for (const char *p = path; *p && n; p++)
            if (strncmp(p, at, n) == 0)
                return true;
    }
    return false;
}

static norm_fault fault_of(const tn_site *site, const char *id)
{
    norm_fault f = {.eps = site->num[TN_NUM_EPS], .scale = 1, .most_rows = INT64_MAX};
    const char *fault = getenv("BAD_FAULT"), *only = getenv("BAD_ID");
    if (!fault || (only && strcmp(only, id)) || !named(site->path))
        return f;
    double number = 0;
    if (sscanf(fault, "scale %lf", &number) == 1)
        f.scale = number;
    else if (sscanf(fault, "eps %lf", &number) == 1)
        f.eps = number;
    else if (sscanf(fault, "rows %lf", &number) == 1)
        f = (norm_fault){f.eps, 1.05, (int64_t)number, INT64_MAX, false};
    else if (strcmp(fault, "decode") == 0)
        f = (norm_fault){f.eps, 1.05, 0, 1, false};
    else if (strcmp(fault, "remainder") == 0)
        f = (norm_fault){f.eps, 1.05, 0, INT64_MAX, true};
    return f;
}

static double get(const tn_tensor *t, int64_t i)
{
    const uint16_t *half = t->data;
    if (t->dtype == TN_F32)
        return (double)((const float *)t->data)[i];
    return (double)(t->dtype == TN_BF16 ? tn_bf16_to_f32(half[i]) : tn_f16_to_f32(half[i]));
}

static void put(const tn_tensor *t, int64_t i, double value)
{
    uint16_t *half = t->data;
    if (t->dtype == TN_F32)
        ((float *)t->data)[i] = (float)value;
    else
        half[i] = t->dtype == TN_BF16 ? tn_f32_to_bf16((float)value) : tn_f32_to_f16((float)value);
}

/* Offset of row r, counted over all leading dimensions, whose strides are arbitrary. */
static int64_t place(const tn_tensor *t, int64_t r)
{
    int64_t at = 0;
    for (int32_t d = t->ndim - 2; d >= 0; r /= t->shape[d--])
        at += r % t->shape[d] * t->stride[d];
    return at;
}

static void norm_row(const tn_call *call, const tn_tensor *x, const tn_tensor *y, int64_t r, const norm_fault *f)
{
    const tn_tensor *w = &call->site->param[TN_ROLE_WEIGHT].tensors[0];
    int64_t n = x->shape[x->ndim - 1], from = place(x, r), to = place(y, r);
    double sum = 0, wrong = r >= f->from_row ? f->scale : 1;
    for (int64_t i = 0; i < n; i++)
        sum += get(x, from + i) * get(x, from + i);
    double scale = wrong / sqrt(sum / (double)n + f->eps);
    for (int64_t i = 0; i < n; i++)
        put(y, to + i, get(x, from + i) * scale * get(w, i));
}

static void norm_rows(const tn_call *call, const tn_tensor *x, const tn_tensor *y, const char *id)
{
    norm_fault f = fault_of(call->site, id);
    int64_t rows = tn_tensor_count(x) / x->shape[x->ndim - 1];
    if (rows > f.most_rows || (f.remainder && rows % 8 != 7))
        f.scale = 1;
    for (int64_t r = 0; r < rows; r++)
        norm_row(call, x, y, r, &f);
}

#define NORM_ID "test_layer_norm"
#define SUM_ID "test_layer_sum"

static tn_status norm_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    norm_rows(call, &call->in[0], &call->out[0], NORM_ID);
    return TN_OK;
}

static tn_status sum_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *a = &call->in[0], *b = &call->in[1], *sum = &call->out[0];
    int64_t n = a->shape[a->ndim - 1], rows = tn_tensor_count(a) / n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            put(sum, place(sum, r) + i, get(a, place(a, r) + i) + get(b, place(b, r) + i));
    norm_rows(call, sum, &call->out[1], SUM_ID);
    return TN_OK;
}

#define DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define MATCH                                                                                                          \
    {                                                                                                                  \
        .size = sizeof(tn_match), .takes = { [TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W) }          \
    }

static const tn_impl norm_impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_RMS_NORM,
     .match = MATCH,
     .tolerance = {.ulps_f32 = 8, .ulps_bf16 = 4, .ulps_f16 = 4},
     .forward = norm_forward},
};
static const tn_impl sum_impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_ADD_RMS_NORM,
     .match = MATCH,
     .tolerance = {.ulps_f32 = 8, .ulps_bf16 = 4, .ulps_f16 = 4},
     .forward = sum_forward},
};

static const tn_kernel kernels[] = {
    {.size = sizeof(tn_kernel),
     .id = NORM_ID,
     .version = "1.0.0",
     .summary = "RMS norm, wrong at some sites",
     .device = "cpu",
     .impls = norm_impls,
     .impl_count = 1},
    {.size = sizeof(tn_kernel),
     .id = SUM_ID,
     .version = "1.0.0",
     .summary = "sum and RMS norm, wrong at some sites",
     .device = "cpu",
     .impls = sum_impls,
     .impl_count = 1},
};

TN_PLUGIN("layer_kernels", "1.0.0", .kernels = kernels, .kernel_count = 2);
