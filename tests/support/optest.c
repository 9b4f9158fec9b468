/* Tests of single operations. */
#include "optest.h"
#include "device/device.h"
#include "eager/eager.h"
#include "run/run.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64
#define GUARD_BYTE 0xa5
#define MAX_BLOCKS 4096

static struct {
    char *base;
    size_t bytes;
} blocks[MAX_BLOCKS];
static size_t block_count;

/* Bytes between two guards, 64-byte aligned. */
static void *block_take(size_t bytes)
{
    ck_assert_uint_lt(block_count, MAX_BLOCKS);
    size_t padded = (bytes + 63) & ~(size_t)63;
    char *base = aligned_alloc(64, padded + 2 * GUARD);
    ck_assert_ptr_nonnull(base);
    memset(base, GUARD_BYTE, padded + 2 * GUARD);
    memset(base + GUARD, 0, bytes);
    blocks[block_count].base = base;
    blocks[block_count++].bytes = bytes;
    return base + GUARD;
}

/* An assertion of check costs a system call, so loops over elements only call it for what is wrong. */
static void blocks_check(void)
{
    for (size_t i = 0; i < block_count; i++) {
        const unsigned char *base = (const unsigned char *)blocks[i].base;
        size_t padded = (blocks[i].bytes + 63) & ~(size_t)63;
        for (size_t j = 0; j < padded + 2 * GUARD; j++) {
            if (j == GUARD)
                j += blocks[i].bytes;
            if (base[j] != GUARD_BYTE)
                ck_abort_msg("byte %td outside a block of %zu bytes was written", (ptrdiff_t)j - GUARD,
                             blocks[i].bytes);
        }
    }
}

void optest_setup(void)
{
    block_count = 0;
}

void optest_teardown(void)
{
    blocks_check();
    for (size_t i = 0; i < block_count; i++)
        free(blocks[i].base);
    block_count = 0;
    threads_set(0);
    threads_strict(true);
}

TCase *optest_suite(const char *name, double seconds)
{
    TCase *tcase = suite_open(name, seconds);
    tcase_add_checked_fixture(tcase, optest_setup, optest_teardown);
    return tcase;
}

tn_tensor optest_zeros(tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, ndim, shape);
    t.data = block_take((size_t)tn_tensor_count(&t) * tn_dtype_size(dtype));
    return t;
}

static int64_t offset_of(const tn_tensor *t, int64_t i)
{
    int64_t offset = 0;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        offset += i % t->shape[d] * t->stride[d];
        i /= t->shape[d];
    }
    return offset;
}

double optest_at(const tn_tensor *t, int64_t i)
{
    const char *at = (const char *)t->data + offset_of(t, i) * (int64_t)tn_dtype_size(t->dtype);
    double d;
    float f;
    int64_t i64;
    int32_t i32;
    switch (t->dtype) {
    case TN_F64:
        memcpy(&d, at, sizeof d);
        return d;
    case TN_I64:
        memcpy(&i64, at, sizeof i64);
        return (double)i64;
    case TN_I32:
        memcpy(&i32, at, sizeof i32);
        return i32;
    default:
        convert_to_f32(at, t->dtype, &f, 1);
        return (double)f;
    }
}

void optest_set(tn_tensor *t, int64_t i, double value)
{
    char *at = (char *)t->data + offset_of(t, i) * (int64_t)tn_dtype_size(t->dtype);
    if (t->dtype == TN_I64) {
        int64_t i64 = (int64_t)value;
        memcpy(at, &i64, sizeof i64);
    } else if (t->dtype == TN_I32) {
        int32_t i32 = (int32_t)value;
        memcpy(at, &i32, sizeof i32);
    } else {
        float f = (float)value;
        convert_from_f32(&f, t->dtype, at, 1);
    }
}

tn_tensor optest_random(tn_dtype dtype, int32_t ndim, const int64_t *shape, uint32_t seed)
{
    tn_tensor t = optest_zeros(dtype, ndim, shape);
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int64_t i = 0; i < tn_tensor_count(&t); i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        /* Multiples of 1/64 below 2: seven bits, exact in every type. */
        optest_set(&t, i, (double)((int64_t)(state >> 56) - 128) / 64.0);
    }
    return t;
}

tn_tensor optest_from(tn_dtype dtype, const tn_tensor *source)
{
    tn_tensor t = optest_zeros(dtype, source->ndim, source->shape);
    for (int64_t i = 0; i < tn_tensor_count(&t); i++)
        optest_set(&t, i, optest_at(source, i));
    return t;
}

double optest_epsilon(tn_dtype dtype)
{
    return dtype == TN_F32 ? 0x1p-24 : dtype == TN_BF16 ? 0x1p-8 : 0x1p-11;
}

double optest_rounded(double x, tn_dtype dtype)
{
    uint64_t element;
    tn_tensor t = tn_tensor_dense(&element, dtype, 1, (int64_t[]){1});
    optest_set(&t, 0, x);
    return optest_at(&t, 0);
}

tn_tensor optest_transpose(tn_tensor t, int32_t a, int32_t b)
{
    tn_tensor view = t;
    view.shape[a] = t.shape[b];
    view.shape[b] = t.shape[a];
    view.stride[a] = t.stride[b];
    view.stride[b] = t.stride[a];
    return view;
}

tn_site optest_site(tn_op op, tn_dtype dtype)
{
    tn_site site = {
        .size = sizeof site, .op = op, .path = "model.layers.0.test", .class_name = "Test", .model_type = "test"};
    site.meaning[TN_AXIS_DTYPE] = site.meaning[TN_AXIS_WEIGHT] = (int32_t)dtype;
    return site;
}

tn_call optest_call(tn_op op, tn_dtype dtype, int32_t in_count, int32_t out_count)
{
    tn_site *site = block_take(sizeof *site);
    *site = optest_site(op, dtype);
    return (tn_call){.size = sizeof(tn_call), .op = op, .site = site, .in_count = in_count, .out_count = out_count};
}

tn_site *optest_site_of(const tn_call *call)
{
    return (tn_site *)(uintptr_t)call->site;
}

void optest_param(tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count)
{
    tn_tensor *copy = block_take((size_t)count * sizeof *copy);
    memcpy(copy, tensors, (size_t)count * sizeof *copy);
    site->param[role] = (tn_param){copy, count};
}

/* The size must not depend on the data, nor on where they lie. */
static size_t scratch_bytes(const tn_call *call, size_t (*scratch)(const tn_call *))
{
    tn_call bare = *call;
    tn_grads grads = {0};
    if (call->grads) {
        grads = *call->grads;
        bare.grads = &grads;
    }
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        bare.in[i].data = bare.out[i].data = grads.in[i].data = grads.out[i].data = NULL;
    size_t bytes = scratch(&bare);
    ck_assert_uint_eq(bytes, scratch(call));
    return bytes;
}

static tn_status try_call(tn_call *call, size_t (*scratch)(const tn_call *),
                          tn_status (*perform)(const tn_call *, tn_error *), tn_error *err)
{
    call->size = sizeof *call;
    size_t bytes = scratch_bytes(call, scratch), mark = block_count;
    call->scratch = bytes ? block_take(bytes) : NULL;
    if (bytes)
        memset(call->scratch, 0xff, bytes); /* NaN in every type: contents are undefined          */
    tn_status status = perform(call, err);
    blocks_check();
    while (block_count > mark)
        free(blocks[--block_count].base);
    call->scratch = NULL;
    return status;
}

tn_status optest_try(tn_call *call, tn_error *err)
{
    return try_call(call, cpu_device.ops->scratch, cpu_device.ops->eager, err);
}

tn_status optest_try_backward(tn_call *call, tn_error *err)
{
    return try_call(call, cpu_device.ops->backward_scratch, cpu_device.ops->backward, err);
}

static void expect_ok(tn_status status, const tn_error *err)
{
    ck_assert_msg(status == TN_OK, "%s: %s", err->where, err->message);
}

void optest_run(tn_call *call)
{
    tn_error err = TN_ERROR_INIT;
    expect_ok(optest_try(call, &err), &err);
}

void optest_backward(tn_call *call)
{
    tn_error err = TN_ERROR_INIT;
    expect_ok(optest_try_backward(call, &err), &err);
}

static bool same_bits(const tn_tensor *a, const tn_tensor *b)
{
    size_t size = tn_dtype_size(a->dtype);
    for (int64_t i = 0; i < tn_tensor_count(a); i++)
        if (memcmp((const char *)a->data + offset_of(a, i) * (int64_t)size,
                   (const char *)b->data + offset_of(b, i) * (int64_t)size, size))
            return false;
    return true;
}

void optest_threads(tn_call *call)
{
    tn_tensor first[TN_CALL_TENSORS], place[TN_CALL_TENSORS];
    for (int32_t i = 0; i < call->out_count; i++) {
        place[i] = call->out[i];
        first[i] = optest_zeros(call->out[i].dtype, call->out[i].ndim, call->out[i].shape);
    }
    threads_set(1);
    memcpy(call->out, first, sizeof first);
    optest_run(call);
    for (int32_t threads = 1; threads <= 3; threads++) {
        threads_set(threads);
        memcpy(call->out, place, sizeof place);
        optest_run(call);
        for (int32_t i = 0; i < call->out_count; i++)
            ck_assert_msg(same_bits(&first[i], &place[i]), "output %d changes with %d threads", (int)i, (int)threads);
    }
    threads_set(0);
}

/* Every gradient that a call asks for; returns how many. */
static int wanted_grads(const tn_grads *grads, const tn_tensor **list, int most)
{
    int count = 0;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->in[i].data)
            list[count++] = &grads->in[i];
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < grads->param[role].count; i++) {
            ck_assert_int_lt(count, most);
            list[count++] = &grads->param[role].tensors[i];
        }
    return count;
}

void optest_backward_threads(tn_call *call)
{
    enum { MOST = 256 };
    const tn_tensor *place[MOST];
    tn_tensor first[MOST];
    int count = wanted_grads(call->grads, place, MOST);
    for (int32_t threads = 0; threads <= 3; threads++) {
        threads_set(threads ? threads : 1);
        /* What was there before is overwritten. */
        for (int i = 0; i < count; i++)
            for (int64_t j = 0; j < tn_tensor_count(place[i]); j++)
                optest_set((tn_tensor *)(uintptr_t)place[i], j, threads + 1.0);
        optest_backward(call);
        for (int i = 0; i < count; i++)
            if (threads == 0)
                first[i] = optest_from(place[i]->dtype, place[i]);
            else
                ck_assert_msg(same_bits(&first[i], place[i]), "gradient %d changes with %d threads", i, (int)threads);
    }
    threads_set(0);
}

void optest_composed(const tn_call *call)
{
    tn_status (*run)(const device *, arena *, const tn_call *, tn_error *) =
        call->grads ? run_eager_backward : run_eager_call;
    arena a;
    ck_assert_int_eq(arena_init(&a, &cpu_device, 0, NULL), TN_OK);
    ck_assert_int_eq(run(&cpu_device, &a, call, NULL), TN_OK);
    size_t size = a.peak;
    ck_assert_uint_gt(size, 0);
    arena_close(&a);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(arena_init(&a, &cpu_device, size, NULL), TN_OK);
    memset(a.base, 0xff, a.size);
    ck_assert_msg(run(&cpu_device, &a, call, &err) == TN_OK, "%s", err.message);
    ck_assert_uint_eq(a.used, 0);
    arena_close(&a);
}

tn_grads *optest_grads_of(const tn_call *call)
{
    return (tn_grads *)(uintptr_t)call->grads;
}

static bool differentiable(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16;
}

tn_grads *optest_grads(tn_call *call, uint32_t seed)
{
    tn_grads *grads = block_take(sizeof *grads);
    *grads = (tn_grads){.size = sizeof *grads};
    for (int32_t i = 0; i < call->out_count; i++)
        if (differentiable(call->out[i].dtype))
            grads->out[i] =
                optest_random(call->out[i].dtype, call->out[i].ndim, call->out[i].shape, seed + (uint32_t)i);
    for (int32_t i = 0; i < call->in_count; i++)
        if (differentiable(call->in[i].dtype))
            grads->in[i] = optest_zeros(call->in[i].dtype, call->in[i].ndim, call->in[i].shape);
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &call->site->param[role];
        if (!p->count || !differentiable(p->tensors->dtype))
            continue;
        tn_tensor *tensors = block_take((size_t)p->count * sizeof *tensors);
        for (int64_t i = 0; i < p->count; i++)
            tensors[i] = optest_zeros(p->tensors[i].dtype, p->tensors[i].ndim, p->tensors[i].shape);
        grads->param[role] = (tn_param){tensors, p->count};
    }
    call->grads = grads;
    return grads;
}

void optest_close(const tn_tensor *got, const tn_tensor *expected, double absolute, double relative, const char *what)
{
    ck_assert_int_eq(tn_tensor_count(got), tn_tensor_count(expected));
    for (int64_t i = 0; i < tn_tensor_count(got); i++) {
        double a = optest_at(got, i), b = optest_at(expected, i);
        if (isnan(a) && isnan(b))
            continue;
        if (!(a == b || fabs(a - b) <= absolute + relative * fabs(b)))
            ck_abort_msg("%s: element %lld is %.9g, expected %.9g", what, (long long)i, a, b);
    }
}

void optest_expect_zero(const tn_tensor *t)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        if (optest_at(t, i) != 0.0)
            ck_abort_msg("element %d is %g", (int)i, optest_at(t, i));
}

static void in_place(tn_call *call, tn_tensor *result, const tn_tensor *place, void (*perform)(tn_call *call))
{
    tn_tensor kept = *result;
    *result = *place;
    perform(call);
    optest_close(result, &kept, 0.0, 0.0, "in place");
}

void optest_in_place(tn_call *call)
{
    in_place(call, &call->out[0], &call->in[0], optest_run);
}

void optest_backward_in_place(tn_call *call)
{
    tn_grads *grads = optest_grads_of(call);
    in_place(call, &grads->in[0], &grads->out[0], optest_backward);
}

void optest_golden(const tn_tensor *got, const tn_tensor *truth, const tn_tensor *theirs, const char *what)
{
    if (got->dtype == TN_F32) {
        optest_close(got, truth, 2e-5, 2e-5, what);
        return;
    }
    double ours = 0.0, reference = 0.0;
    for (int64_t i = 0; i < tn_tensor_count(truth); i++) {
        double t = optest_at(truth, i), a = optest_at(got, i) - t, b = optest_at(theirs, i) - t;
        ours += a * a;
        reference += b * b;
    }
    ck_assert_msg(ours <= 1.5 * 1.5 * reference, "%s %s: rms error %.4g, transformers has %.4g", what,
                  tn_dtype_name(got->dtype), sqrt(ours), sqrt(reference));
}

double optest_error(const tn_tensor *got, const tn_tensor *truth)
{
    double error = 0.0, size = 0.0;
    ck_assert_int_eq(tn_tensor_count(got), tn_tensor_count(truth));
    for (int64_t i = 0; i < tn_tensor_count(truth); i++) {
        double t = optest_at(truth, i), d = optest_at(got, i) - t;
        error += d * d;
        size += t * t;
    }
    return size > 0.0 ? sqrt(error / size) : sqrt(error);
}

void optest_golden_grad(const tn_tensor *got, const tn_tensor *truth, const char *what)
{
    if (got->dtype == TN_F32) {
        optest_close(got, truth, 2e-5, 2e-5, what);
        return;
    }
    ck_assert_int_eq(tn_tensor_count(got), tn_tensor_count(truth));
    double error = 0.0, size = 0.0, n = (double)tn_tensor_count(truth);
    for (int64_t i = 0; i < tn_tensor_count(truth); i++) {
        double t = optest_at(truth, i), d = optest_at(got, i) - t;
        error += d * d;
        size += t * t;
    }
    double eps = got->dtype == TN_BF16 ? 0x1p-8 : 0x1p-11;
    ck_assert_msg(sqrt(error / n) <= 4 * eps * sqrt(size / n) + 2e-5, "%s %s: rms error %.4g, of the gradient %.4g",
                  what, tn_dtype_name(got->dtype), sqrt(error / n), sqrt(size / n));
}

double optest_derivative(double (*f)(void *ctx, double x), void *ctx, double x, double h)
{
    double near = f(ctx, x + h) - f(ctx, x - h), far = f(ctx, x + 2.0 * h) - f(ctx, x - 2.0 * h);
    return (8.0 * near - far) / (12.0 * h);
}
