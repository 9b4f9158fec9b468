/* Tensors as DLPack. */
#include <check.h>
#include <stddef.h>
#include <tenon/dlpack.h>
#include <tenon/tenon.h>

#include "broken.h"
#include "suite.h"

/* The layout is an interface between libraries. */
_Static_assert(sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8, "DLPack types");
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40,
               "DLTensor");
_Static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, deleter) == 56, "DLManagedTensor");
#endif

static void count_release(void *ctx)
{
    ++*(int *)ctx;
}

START_TEST(a_view_with_its_release)
{
    int released = 0;
    float data[24];
    tn_tensor t = tn_tensor_dense(data, TN_F32, 2, (int64_t[]){4, 6});
    t.shape[1] = 3; /* strided */
    tn_error err = TN_ERROR_INIT;
    DLManagedTensor *d = tn_tensor_to_dlpack(&t, count_release, &released, &err);
    ck_assert_ptr_nonnull(d);
    t.shape[0] = 99; /* the view keeps its own */
    ck_assert_ptr_eq(d->dl_tensor.data, data);
    ck_assert_int_eq(d->dl_tensor.device.device_type, kDLCPU);
    ck_assert_int_eq(d->dl_tensor.ndim, 2);
    ck_assert_int_eq(d->dl_tensor.shape[0], 4);
    ck_assert_int_eq(d->dl_tensor.shape[1], 3);
    ck_assert_int_eq(d->dl_tensor.strides[0], 6);
    ck_assert_int_eq(d->dl_tensor.strides[1], 1);
    ck_assert_uint_eq(d->dl_tensor.byte_offset, 0);
    ck_assert_int_eq(released, 0);
    d->deleter(d);
    ck_assert_int_eq(released, 1);
    d = tn_tensor_to_dlpack(&t, NULL, NULL, &err);
    ck_assert_ptr_nonnull(d);
    d->deleter(d);
}
END_TEST

START_TEST(every_type)
{
    static const struct {
        tn_dtype dtype;
        int code, bits;
    } types[] = {{TN_F32, kDLFloat, 32}, {TN_F16, kDLFloat, 16}, {TN_F64, kDLFloat, 64}, {TN_BF16, kDLBfloat, 16},
                 {TN_I64, kDLInt, 64},   {TN_I32, kDLInt, 32},   {TN_I16, kDLInt, 16},   {TN_I8, kDLInt, 8},
                 {TN_U8, kDLUInt, 8},    {TN_BOOL, kDLBool, 8}};
    char data[8];
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        tn_tensor t = tn_tensor_dense(data, types[i].dtype, 0, NULL);
        DLManagedTensor *d = tn_tensor_to_dlpack(&t, NULL, NULL, NULL);
        ck_assert_ptr_nonnull(d);
        ck_assert_int_eq(d->dl_tensor.dtype.code, types[i].code);
        ck_assert_int_eq(d->dl_tensor.dtype.bits, types[i].bits);
        ck_assert_int_eq(d->dl_tensor.dtype.lanes, 1);
        d->deleter(d);
    }
}
END_TEST

START_TEST(what_dlpack_does_not_have)
{
    int released = 0;
    char data[1];
    tn_tensor t = tn_tensor_dense(data, TN_F8_E4M3, 0, NULL);
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_tensor_to_dlpack(&t, count_release, &released, &err));
    broken_expect(&err, TN_E_USAGE, "f8_e4m3", NULL);
    ck_assert_int_eq(released, 0);
    ck_assert_ptr_null(tn_tensor_to_dlpack(NULL, NULL, NULL, NULL));
    t.ndim = TN_MAX_DIMS + 1;
    ck_assert_ptr_null(tn_tensor_to_dlpack(&t, NULL, NULL, NULL));
}
END_TEST

START_TEST(what_is_no_tensor)
{
    static const struct {
        tn_tensor tensor;
        const char *word;
    } wrong[] = {
        {{.dtype = TN_F32, .ndim = -1}, "dimensions"},
        {{.dtype = TN_F32, .ndim = 1, .shape = {-1}, .stride = {1}}, "negative"},
        {{.dtype = TN_F32, .ndim = 2, .shape = {0, -1}, .stride = {1, 1}}, "negative"},
        {{.dtype = TN_F32, .ndim = 2, .shape = {INT64_MAX, 2}, .stride = {2, 1}}, "memory"},
        {{.dtype = TN_F64, .ndim = 1, .shape = {INT64_MAX / 4}, .stride = {1}}, "memory"},
        {{.dtype = TN_F32, .ndim = 1, .shape = {3}, .stride = {INT64_MAX}}, "memory"},
        {{.dtype = TN_F32, .ndim = 1, .shape = {3}, .stride = {INT64_MIN}}, "memory"},
    };
    float data[4];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_tensor t = wrong[i].tensor;
        t.data = data;
        ck_assert_msg(!tn_tensor_to_dlpack(&t, NULL, NULL, &err), "%zu", i);
        broken_expect(&err, TN_E_USAGE, wrong[i].word, NULL);
    }
    tn_error err = TN_ERROR_INIT;
    tn_tensor t = tn_tensor_dense(NULL, TN_F32, 1, (const int64_t[]){3});
    ck_assert_ptr_null(tn_tensor_to_dlpack(&t, NULL, NULL, &err));
    broken_expect(&err, TN_E_USAGE, "no data", NULL);
    /* Nothing at no address is a tensor. */
    t = tn_tensor_dense(NULL, TN_F32, 1, (const int64_t[]){0});
    DLManagedTensor *d = tn_tensor_to_dlpack(&t, NULL, NULL, NULL);
    ck_assert_ptr_nonnull(d);
    d->deleter(d);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("dlpack", 0);
    suite_add(tc, a_view_with_its_release, every_type, what_dlpack_does_not_have, what_is_no_tensor);
    return suite_run();
}
