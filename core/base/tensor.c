/* Element types and tensor views. */
#include <tenon/tensor.h>

#include <string.h>

static const struct dtype_entry {
    const char *name, *alias, *alias2;
    size_t size;
} dtypes[TN_DTYPE_COUNT] = {
    [TN_F32] = {"f32", "float32", "float", 4}, [TN_BF16] = {"bf16", "bfloat16", NULL, 2},
    [TN_F16] = {"f16", "float16", "half", 2},  [TN_F64] = {"f64", "float64", "double", 8},
    [TN_I64] = {"i64", "int64", NULL, 8},      [TN_I32] = {"i32", "int32", NULL, 4},
    [TN_I16] = {"i16", "int16", NULL, 2},      [TN_I8] = {"i8", "int8", NULL, 1},
    [TN_U8] = {"u8", "uint8", NULL, 1},        [TN_BOOL] = {"bool", NULL, NULL, 1},
    [TN_F8_E4M3] = {"f8_e4m3", NULL, NULL, 1}, [TN_F8_E5M2] = {"f8_e5m2", NULL, NULL, 1},
};

size_t tn_dtype_size(tn_dtype dtype)
{
    return dtype > TN_DTYPE_NONE && dtype < TN_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *tn_dtype_name(tn_dtype dtype)
{
    return dtype > TN_DTYPE_NONE && dtype < TN_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

tn_dtype tn_dtype_parse(const char *name)
{
    for (int i = 1; name && i < TN_DTYPE_COUNT; i++)
        if (!strcmp(name, dtypes[i].name) || (dtypes[i].alias && !strcmp(name, dtypes[i].alias)) ||
            (dtypes[i].alias2 && !strcmp(name, dtypes[i].alias2)))
            return (tn_dtype)i;
    return TN_DTYPE_NONE;
}

tn_tensor tn_tensor_dense(void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = {.data = data, .dtype = dtype, .ndim = ndim};
    int64_t stride = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        stride *= shape[i];
    }
    return t;
}

int64_t tn_tensor_count(const tn_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}
