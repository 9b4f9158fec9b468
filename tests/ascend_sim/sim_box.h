/* For tests of the simulator: its libraries loaded as programs load CANN's, and tensors on its device. */
#ifndef SIM_BOX_H
#define SIM_BOX_H

#include "process.h"
#include "sim.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define VALUES(...) ((const float[]){__VA_ARGS__})

/* Types of floating point, and for each half of its last place, relative: what one rounding may do. 32 bits also have
 * the roundings of sums and functions. */
static const aclDataType floats[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
static const double bounds[] = {2e-6, 0.00049, 0.0039};

typedef void any_function(void);

static void *box_libraries[3];
static aclrtStream box_stream;
static uint64_t needed; /* what first phases give */
static aclOpExecutor *executor;

/* A function of the libraries; NULL: they have none of that name. */
static inline any_function *box_find(const char *name)
{
    for (int i = 0; i < 3; i++) {
        void *found = dlsym(box_libraries[i], name);
        any_function *function;
        memcpy(&function, &found, sizeof function);
        if (found)
            return function;
    }
    return NULL;
}

#define CALL(name) ((__typeof__(&name))box_find(#name))

/* Loads the libraries of BUILD/tests/FOLDER. Switches are set before. */
static inline void box_load(const char *folder)
{
    const char *names[] = {"ascendcl", "nnopbase", "opapi"};
    setenv("ASCEND_SIM_QUIET", "1", 0);
    for (int i = 0; i < 3; i++) {
        char path[4400];
        snprintf(path, sizeof path, "%s/tests/%s/lib%s.so", process_build(), folder, names[i]);
        box_libraries[i] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        ck_assert_msg(box_libraries[i] != NULL, "%s", dlerror());
    }
}

/* Loads them, and sets device 0 with a stream. */
static inline void box_open(void)
{
    box_load("ascend_sim");
    ck_assert_int_eq(CALL(aclInit)(NULL), 0);
    ck_assert_int_eq(CALL(aclrtSetDevice)(0), 0);
    ck_assert_int_eq(CALL(aclrtCreateStream)(&box_stream), 0);
}

static inline int64_t broken(void)
{
    return CALL(sim_violations)();
}

/* The code of a call that breaks one rule (or more: see least). */
static inline void expect_broken(int code, int expected, int64_t before)
{
    ck_assert_int_eq(code, expected);
    ck_assert_int_gt(broken(), before);
}

#define BROKEN(call, code)                                                                                             \
    do {                                                                                                               \
        int64_t before_ = broken();                                                                                    \
        expect_broken((int)(call), code, before_);                                                                     \
    } while (0)

/* Queues what a first phase prepared, with the workspace that it asked for, and waits. The first code that is not 0. */
static inline int go(const char *name, int first)
{
    void *workspace = NULL;
    if (first)
        return first;
    if (needed)
        ck_assert_int_eq(CALL(aclrtMalloc)(&workspace, needed, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    aclnn_second *second = (aclnn_second *)box_find(name);
    int code = second(workspace, needed, executor, box_stream);
    int later = CALL(aclrtSynchronizeStream)(box_stream);
    if (workspace)
        ck_assert_int_eq(CALL(aclrtFree)(workspace), 0);
    return code ? code : later;
}

/* The first phase of an operator, and both of a right call. */
#define FIRST(name, ...) CALL(aclnn##name##GetWorkspaceSize)(__VA_ARGS__, &needed, &executor)
#define GO(name, ...) ck_assert_int_eq(go("aclnn" #name, FIRST(name, __VA_ARGS__)), 0)

typedef struct box {
    aclTensor *tensor;
    void *device;
    aclDataType type;
    int64_t count;
    int rank;
    int64_t shape[8];
} box;

static inline void encode(aclDataType type, float value, void *to)
{
    if (type == ACL_FLOAT)
        memcpy(to, &value, 4);
    else if (type == ACL_BF16)
        memcpy(to, &(uint16_t){CALL(sim_to_bf16)(value)}, 2);
    else if (type == ACL_FLOAT16)
        memcpy(to, &(uint16_t){CALL(sim_to_f16)(value)}, 2);
    else if (type == ACL_INT32)
        memcpy(to, &(int32_t){(int32_t)value}, 4);
    else if (type == ACL_INT16)
        memcpy(to, &(int16_t){(int16_t)value}, 2);
    else if (CALL(aclDataTypeSize)(type) == 1) /* BOOL, INT8, UINT8: the same bits */
        memcpy(to, &(uint8_t){(uint8_t)(int)value}, 1);
    else /* other whole numbers: the low bytes */
        memcpy(to, &(int64_t){(int64_t)value}, CALL(aclDataTypeSize)(type) < 8 ? CALL(aclDataTypeSize)(type) : 8);
}

static inline float decode(aclDataType type, const void *from)
{
    float value = 0.0f;
    uint16_t half;
    int32_t word;
    int64_t wide;
    if (type == ACL_FLOAT) {
        memcpy(&value, from, 4);
    } else if (type == ACL_BF16 || type == ACL_FLOAT16) {
        memcpy(&half, from, 2);
        value = type == ACL_BF16 ? CALL(sim_from_bf16)(half) : CALL(sim_from_f16)(half);
    } else if (type == ACL_INT32) {
        memcpy(&word, from, 4);
        value = (float)word;
    } else if (type == ACL_INT16) {
        memcpy(&half, from, 2);
        value = (float)(int16_t)half;
    } else if (CALL(aclDataTypeSize)(type) == 1) {
        uint8_t byte = *(const uint8_t *)from;
        value = type == ACL_INT8 ? (float)(int8_t)byte : (float)byte;
    } else {
        memcpy(&wide, from, 8);
        value = (float)wide;
    }
    return value;
}

static inline aclTensor *view_of(const box *b, int rank, const int64_t *shape, const int64_t *strides, int64_t offset)
{
    aclTensor *t =
        CALL(aclCreateTensor)(shape, (uint64_t)rank, b->type, strides, offset, ACL_FORMAT_ND, &b->count, 1, b->device);
    ck_assert_ptr_nonnull(t);
    return t;
}

/* A contiguous tensor with these values (NULL: undefined) in memory of its own. */
static inline box tensor(aclDataType type, int rank, const int64_t *shape, const float *values)
{
    box b = {.type = type, .count = 1, .rank = rank};
    for (int i = 0; i < rank; i++)
        b.count *= b.shape[i] = shape[i];
    size_t size = CALL(aclDataTypeSize)(type), bytes = (size_t)b.count * size;
    ck_assert_int_eq(CALL(aclrtMalloc)(&b.device, bytes ? bytes : 1, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    char *packed = malloc(bytes + 1);
    for (int64_t i = 0; values && i < b.count; i++)
        encode(type, values[i], packed + (size_t)i * size);
    if (values)
        ck_assert_int_eq(CALL(aclrtMemcpy)(b.device, bytes, packed, bytes, ACL_MEMCPY_HOST_TO_DEVICE), 0);
    free(packed);
    b.tensor = view_of(&b, rank, shape, NULL, 0);
    return b;
}

static inline void drop(box *b)
{
    ck_assert_int_eq(CALL(aclDestroyTensor)(b->tensor), 0);
    ck_assert_int_eq(CALL(aclrtFree)(b->device), 0);
}

#define DROP(...)                                                                                                      \
    do {                                                                                                               \
        box *all_[] = {__VA_ARGS__};                                                                                   \
        for (size_t i_ = 0; i_ < sizeof all_ / sizeof *all_; i_++)                                                     \
            drop(all_[i_]);                                                                                            \
    } while (0)

/* Element i of the memory. */
static inline float at(const box *b, int64_t i)
{
    char bytes[8];
    size_t size = CALL(aclDataTypeSize)(b->type);
    ck_assert_int_eq(
        CALL(aclrtMemcpy)(bytes, sizeof bytes, (char *)b->device + (size_t)i * size, size, ACL_MEMCPY_DEVICE_TO_HOST),
        0);
    return decode(b->type, bytes);
}

/* Every element, as it is when value is rounded to the type. */
static inline void expect(const box *b, const float *values)
{
    for (int64_t i = 0; i < b->count; i++) {
        char bytes[8];
        encode(b->type, values[i], bytes);
        float wanted = decode(b->type, bytes), found = at(b, i);
        if (found != wanted && !(isnan(found) && isnan(wanted)))
            ck_abort_msg("element %d is %.9g instead of %.9g", (int)i, (double)found, (double)wanted);
    }
}

/* Within bound times the largest of the values. */
static inline void expect_near(const box *b, const double *values, double bound)
{
    double largest = 0.0;
    for (int64_t i = 0; i < b->count; i++)
        largest = fmax(largest, fabs(values[i]));
    for (int64_t i = 0; i < b->count; i++)
        if (!(fabs((double)at(b, i) - values[i]) <= bound * largest))
            ck_abort_msg("element %d is %.9g instead of %.9g", (int)i, (double)at(b, i), values[i]);
}

/* Made-up values between -1 and 1 that bf16 holds. */
static inline void draw(float *values, int64_t count, uint32_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = (float)((int)(seed >> 16 & 255) - 128) / 128.0f;
    }
}

static inline aclScalar *number(float value)
{
    return CALL(aclCreateScalar)(&value, ACL_FLOAT);
}

#define FREE_SCALARS(...)                                                                                              \
    do {                                                                                                               \
        const aclScalar *all_[] = {__VA_ARGS__};                                                                       \
        for (size_t i_ = 0; i_ < sizeof all_ / sizeof *all_; i_++)                                                     \
            ck_assert_int_eq(CALL(aclDestroyScalar)(all_[i_]), 0);                                                     \
    } while (0)

/* Nothing is left of what a test made, and it broke no more rules than it meant to. */
static inline void box_close(int64_t rules)
{
    ck_assert_int_eq(broken(), rules);
    ck_assert_int_eq(CALL(aclrtDestroyStream)(box_stream), 0);
    ck_assert_int_eq(CALL(sim_leaks)(), 0);
    ck_assert_int_eq(CALL(aclrtResetDevice)(0), 0);
    ck_assert_int_eq(CALL(aclFinalize)(), 0);
    ck_assert_int_eq(broken(), rules);
}

#endif
