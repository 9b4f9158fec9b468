/* Element types and tensor views. */
#include "base/tensor.h"

#include "base/text.h"

#include <string.h>

static const struct dtype_entry {
    const char *name, *alias, *alias2;
    uint16_t elements, bytes; /* of a block                                                      */
} dtypes[TN_DTYPE_COUNT] = {
    [TN_F32] = {"f32", "float32", "float", 1, 4},
    [TN_BF16] = {"bf16", "bfloat16", NULL, 1, 2},
    [TN_F16] = {"f16", "float16", "half", 1, 2},
    [TN_F64] = {"f64", "float64", "double", 1, 8},
    [TN_I64] = {"i64", "int64", NULL, 1, 8},
    [TN_I32] = {"i32", "int32", NULL, 1, 4},
    [TN_I16] = {"i16", "int16", NULL, 1, 2},
    [TN_I8] = {"i8", "int8", NULL, 1, 1},
    [TN_U8] = {"u8", "uint8", NULL, 1, 1},
    [TN_BOOL] = {"bool", NULL, NULL, 1, 1},
    [TN_F8_E4M3] = {"f8_e4m3", NULL, NULL, 1, 1},
    [TN_F8_E5M2] = {"f8_e5m2", NULL, NULL, 1, 1},
    [TN_F8_E8M0] = {"f8_e8m0", NULL, NULL, 1, 1},
    [TN_U4] = {"u4", NULL, NULL, 2, 1},
    [TN_I4] = {"i4", NULL, NULL, 2, 1},
    [TN_Q4_0] = {"q4_0", NULL, NULL, 32, 18},
    [TN_Q4_1] = {"q4_1", NULL, NULL, 32, 20},
    [TN_Q5_0] = {"q5_0", NULL, NULL, 32, 22},
    [TN_Q5_1] = {"q5_1", NULL, NULL, 32, 24},
    [TN_Q8_0] = {"q8_0", NULL, NULL, 32, 34},
    [TN_Q2_K] = {"q2_k", NULL, NULL, 256, 84},
    [TN_Q3_K] = {"q3_k", NULL, NULL, 256, 110},
    [TN_Q4_K] = {"q4_k", NULL, NULL, 256, 144},
    [TN_Q5_K] = {"q5_k", NULL, NULL, 256, 176},
    [TN_Q6_K] = {"q6_k", NULL, NULL, 256, 210},
    [TN_IQ4_NL] = {"iq4_nl", NULL, NULL, 32, 18},
    [TN_IQ4_XS] = {"iq4_xs", NULL, NULL, 256, 136},
    [TN_MXFP4] = {"mxfp4", NULL, NULL, 32, 17},
    [TN_NVFP4] = {"nvfp4", NULL, NULL, 64, 36},
    [TN_IQ1_S] = {"iq1_s", NULL, NULL, 256, 50},
    [TN_IQ1_M] = {"iq1_m", NULL, NULL, 256, 56},
    [TN_IQ2_XXS] = {"iq2_xxs", NULL, NULL, 256, 66},
    [TN_IQ2_XS] = {"iq2_xs", NULL, NULL, 256, 74},
    [TN_IQ2_S] = {"iq2_s", NULL, NULL, 256, 82},
    [TN_IQ3_XXS] = {"iq3_xxs", NULL, NULL, 256, 98},
    [TN_IQ3_S] = {"iq3_s", NULL, NULL, 256, 110},
    [TN_TQ1_0] = {"tq1_0", NULL, NULL, 256, 54},
    [TN_TQ2_0] = {"tq2_0", NULL, NULL, 256, 66},
    [TN_E2M1] = {"e2m1", NULL, NULL, 2, 1},
    [TN_NF4] = {"nf4", NULL, NULL, 2, 1},
};

static const struct dtype_entry *dtype_find(tn_dtype dtype)
{
    static const struct dtype_entry unknown = {.name = "?"};
    return dtype > TN_DTYPE_NONE && dtype < TN_DTYPE_COUNT ? &dtypes[dtype] : &unknown;
}

size_t tn_dtype_size(tn_dtype dtype)
{
    const struct dtype_entry *d = dtype_find(dtype);
    return d->elements == 1 ? d->bytes : 0;
}

int64_t tn_dtype_block_elements(tn_dtype dtype)
{
    return dtype_find(dtype)->elements;
}

size_t tn_dtype_block_bytes(tn_dtype dtype)
{
    return dtype_find(dtype)->bytes;
}

size_t tn_dtype_bytes(tn_dtype dtype, int64_t elements)
{
    const struct dtype_entry *d = dtype_find(dtype);
    size_t bytes = 0;
    if (d->elements && elements > 0 && __builtin_mul_overflow((size_t)(elements / d->elements), d->bytes, &bytes))
        return SIZE_MAX;
    return bytes;
}

const char *tn_dtype_name(tn_dtype dtype)
{
    return dtype_find(dtype)->name;
}

tn_dtype tn_dtype_parse(const char *name)
{
    static const char torch[] = "torch.";
    if (name && strncmp(name, torch, sizeof torch - 1) == 0)
        name += sizeof torch - 1;
    for (int i = 1; name && i < TN_DTYPE_COUNT; i++)
        if (!strcmp(name, dtypes[i].name) || (dtypes[i].alias && !strcmp(name, dtypes[i].alias)) ||
            (dtypes[i].alias2 && !strcmp(name, dtypes[i].alias2)))
            return (tn_dtype)i;
    return TN_DTYPE_NONE;
}

static bool has_shape(int32_t ndim, const int64_t *shape)
{
    bool has = ndim >= 0 && ndim <= TN_MAX_DIMS && (shape || ndim == 0);
    for (int32_t i = 0; has && i < ndim; i++)
        has = shape[i] >= 0;
    return has;
}

tn_tensor tn_tensor_dense(void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = {.data = data, .dtype = dtype, .ndim = ndim};
    int64_t stride = 1;
    if (!has_shape(ndim, shape))
        return (tn_tensor){.ndim = 1, .stride = {1}};
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i], &stride))
            stride = INT64_MAX;
    }
    return t;
}

int64_t tn_tensor_count(const tn_tensor *tensor)
{
    int64_t count = 1;
    bool more = false;
    if (!tensor || !has_shape(tensor->ndim, tensor->shape))
        return 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0)
            return 0;
        more = more || __builtin_mul_overflow(count, tensor->shape[i], &count);
    }
    return more ? INT64_MAX : count;
}

/* Do its elements lie further apart, or are they more, than there are addresses? */
static bool is_beyond(const tn_tensor *t)
{
    const struct dtype_entry *d = dtype_find(t->dtype);
    int64_t reach = 1, step, bytes = d->bytes > 0 ? d->bytes : 1, count = tn_tensor_count(t);
    bool beyond = false;
    for (int32_t i = 0; count > 0 && i < t->ndim; i++) {
        int64_t stride = t->stride[i] < 0 ? -(t->stride[i] + 1) : t->stride[i];
        beyond = beyond || __builtin_mul_overflow(t->shape[i] - 1, stride, &step) ||
                 __builtin_add_overflow(reach, step, &reach);
    }
    return beyond || __builtin_mul_overflow(reach, bytes, &reach) || __builtin_mul_overflow(count, bytes, &count);
}

tn_status tensor_check(const tn_tensor *t, const char *name, tn_error *err)
{
    if (!t)
        return tn_fail(err, TN_E_USAGE, name, "is NULL; pass a tensor");
    if (t->ndim < 0 || t->ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_E_USAGE, name, "has %d dimensions; a tensor has 0 to %d", (int)t->ndim, TN_MAX_DIMS);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0)
            return tn_fail(err, TN_E_USAGE, name, "has %lld elements along dimension %d; none can be negative",
                           (long long)t->shape[i], (int)i);
    if (is_beyond(t))
        return tn_fail(err, TN_E_USAGE, name, "is larger than memory can be; pass the shape and strides that it has");
    if (t->data && !dtype_find(t->dtype)->elements)
        return tn_fail(err, TN_E_USAGE, name, "is of no known type (%d)", (int)t->dtype);
    return TN_OK;
}

bool tensor_is_float(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16;
}

void tensor_shape_text(int32_t ndim, const int64_t *shape, char *text, size_t size)
{
    size_t used = text_cut(text, size, "[");
    for (int32_t i = 0; i < ndim && i < TN_MAX_DIMS; i++)
        used += text_cut(text + used, size - used, "%s%lld", i ? "," : "", (long long)shape[i]);
    text_cut(text + used, size - used, "]");
}

bool tensor_is_plain(const tn_tensor *t)
{
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0; stride *= t->shape[i--])
        if (t->stride[i] != stride && t->shape[i] > 1)
            return false;
    return tensor_is_float(t->dtype);
}

bool tensor_is_dense_last(const tn_tensor *t)
{
    return t->ndim < 1 || t->stride[t->ndim - 1] == 1 || t->shape[t->ndim - 1] <= 1;
}

const char *tensor_row(const tn_tensor *t, int64_t row)
{
    int64_t offset = 0;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        offset += row % t->shape[i] * t->stride[i];
        row /= t->shape[i];
    }
    return (const char *)t->data + offset * (int64_t)tn_dtype_size(t->dtype);
}

size_t tensor_padded_bytes(const tn_tensor *t)
{
    size_t bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(t));
    return bytes > SIZE_MAX - 63 ? SIZE_MAX : (bytes + 63) / 64 * 64;
}
