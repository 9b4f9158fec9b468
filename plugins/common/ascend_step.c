/* One call of an operator: its tensors, both phases, and what went wrong. */
#include "ascend.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Addresses of tensors are whole multiples of this; what lies between is an offset. */
enum { ADDRESS_BYTES = 32, TEXT_BYTES = 512 };

/* ---- errors ----------------------------------------------------------------------------------------------- */

/* What codes mean, as the vendor's headers name them. */
static const struct {
    int32_t code;
    const char *meaning;
} meanings[] = {
    {100000, "invalid parameter"},
    {100001, "not initialised"},
    {100002, "initialised twice"},
    {100003, "invalid file"},
    {100024, "operator not found"},
    {100026, "data type not supported"},
    {100027, "format does not match"},
    {100037, "finalised twice"},
    {100039, "a stub for linking was loaded instead of the driver's library"},
    {107000, "invalid parameter"},
    {107001, "invalid device number"},
    {107002, "no context in this thread"},
    {107003, "the stream belongs to another context"},
    {107008, "address not aligned"},
    {107016, "invalid type of memory"},
    {107017, "invalid handle"},
    {107018, "invalid type of allocation"},
    {107019, "waiting took too long"},
    {107020, "a task took too long"},
    {200000, "out of memory"},
    {200001, "not supported by this version"},
    {200002, "invalid device"},
    {200003, "memory address not aligned"},
    {200005, "invalid handle of a resource"},
    {200006, "feature not supported"},
    {207000, "feature not supported"},
    {207001, "out of memory"},
    {207002, "memory cannot be released"},
    {207004, "no device"},
    {207005, "a resource cannot be allocated"},
    {207008, "no stream left"},
    {207012, "over a limit"},
    {207015, "initialised twice"},
    {207018, "out of device memory"},
    {300000, "over the limit of storage"},
    {500000, "internal error"},
    {500001, "failure"},
    {500002, "failure of the graph engine"},
    {500003, "failure of the runtime"},
    {500004, "failure of the driver"},
    {500005, "failure of profiling"},
    {507000, "internal error of the runtime"},
    {507008, "the version of the chip does not fit"},
    {507011, "a model failed"},
    {507014, "a core took too long"},
    {507015, "exception in a core"},
    {507018, "exception in a control processor"},
    {507034, "a vector core took too long"},
    {507035, "exception in a vector core"},
    {507046, "waiting for the stream took too long"},
    {507899, "internal error of the driver"},
    {507901, "connection closed"},
    {161001, "a parameter is missing"},
    {161002, "invalid parameter"},
    {361001, "error of the runtime"},
    {561000, "internal error"},
    {561001, "shapes cannot be inferred"},
    {561002, "the operator cannot divide this shape (tiling)"},
    {561003, "the operator's kernel is not installed"},
    {561101, "no executor"},
    {561103, "a pointer is missing"},
    {561106, "invalid mode of implementation"},
    {561107, "ASCEND_OPP_PATH names no folder of operators"},
    {561112, "the package of kernels is not installed"},
};

static const char *meaning_of(int32_t code)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].code == code)
            return meanings[i].meaning;
    return "a code that is not known";
}

static tn_status class_of(int32_t code)
{
    return code == 200000 || code == 207001 || code == 207018 ? TN_E_MEMORY : TN_E_INTERNAL;
}

/* The vendor's text in one line: it has many, and spaces at their beginnings. */
static void flatten(const char *from, char *to, size_t size)
{
    size_t used = 0;
    for (; from && *from && used + 1 < size; from++) {
        bool space = (unsigned char)*from <= ' ';
        if (!space)
            to[used++] = *from;
        else if (used > 0 && to[used - 1] != ' ')
            to[used++] = ' ';
    }
    while (used > 0 && to[used - 1] == ' ')
        used--;
    to[used] = '\0';
}

static tn_status tell(const char *function, int32_t code, const char *text, tn_error *err)
{
    return tn_fail(err, class_of(code), "npu", "%s failed with %d, %s%s%s", function, (int)code, meaning_of(code),
                   text[0] ? ": " : "", text);
}

tn_status ascend_check(const ascend_api *api, const char *function, int32_t code, tn_error *err)
{
    char text[TEXT_BYTES];
    if (code == 0)
        return TN_OK;
    flatten(api->aclGetRecentErrMsg(), text, sizeof text); /* also takes it away from the next error */
    return tell(function, code, text, err);
}

/* ---- objects ---------------------------------------------------------------------------------------------- */

ascend_chip ascend_chip_of(const char *soc)
{
    static const struct {
        const char *prefix;
        ascend_chip chip;
    } names[] = {{"Ascend910_93", ASCEND_910_93}, {"Ascend310P", ASCEND_310P}};
    if (strncmp(soc, "Ascend910B", 10) == 0 && isdigit((unsigned char)soc[10]))
        return ASCEND_910B;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(soc, names[i].prefix, strlen(names[i].prefix)) == 0)
            return names[i].chip;
    return ASCEND_OTHER_CHIP;
}

aclDataType ascend_dtype(tn_dtype dtype)
{
    switch (dtype) {
    case TN_F32:
        return ACL_FLOAT;
    case TN_BF16:
        return ACL_BF16;
    case TN_F16:
        return ACL_FLOAT16;
    case TN_F64:
        return ACL_DOUBLE;
    case TN_I64:
        return ACL_INT64;
    case TN_I32:
        return ACL_INT32;
    case TN_I16:
        return ACL_INT16;
    case TN_I8:
        return ACL_INT8;
    case TN_U8:
        return ACL_UINT8;
    case TN_BOOL:
        return ACL_BOOL;
    default:
        return ACL_DT_UNDEFINED;
    }
}

typedef aclnnStatus destroyer(const void *object);

static void fail(ascend_step *s)
{
    if (!s->failed)
        flatten(s->api->aclGetRecentErrMsg(), s->why, sizeof s->why);
    s->failed = true;
}

/* Gives an object to the step. */
static void own(ascend_step *s, const void *object, destroyer *destroy)
{
    if (!object) {
        fail(s);
    } else if (s->count < ASCEND_OBJECTS_MAX) {
        s->objects[s->count].object = object;
        s->objects[s->count++].destroy = destroy;
    } else {
        destroy(object);
        fail(s);
    }
}

/* Takes an object back from the step. */
static void disown(ascend_step *s, const void *object)
{
    for (int32_t i = 0; i < s->count; i++)
        if (s->objects[i].object == object)
            s->objects[i].object = NULL;
}

static void release(ascend_step *s)
{
    for (int32_t i = s->count - 1; i >= 0; i--)
        if (s->objects[i].object)
            s->objects[i].destroy(s->objects[i].object);
    s->count = 0;
}

/* Eight bytes at a time into two sums that have nothing to do with each other. */
void ascend_note(ascend_step *s, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + i, count - i < sizeof word ? count - i : sizeof word);
        s->key[0] = (s->key[0] ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        s->key[0] ^= s->key[0] >> 32;
        s->key[1] = (s->key[1] + word) * UINT64_C(0xc2b2ae3d27d4eb4f);
        s->key[1] ^= s->key[1] >> 29;
    }
}

bool ascend_known(ascend_step *s)
{
    s->noting = false;
    s->kept = s->failed || !s->api->aclSetAclOpExecutorRepeatable || !s->api->aclDestroyAclOpExecutor
                  ? NULL
                  : s->queue->find(s->queue, s->key);
    return s->kept != NULL;
}

void ascend_begin(ascend_step *s, tn_queue *queue, const char *name)
{
    pthread_t thread = pthread_self(); /* both phases of a call are one thread's                        */
    memset(s, 0, offsetof(ascend_step, objects));
    s->api = queue->api;
    s->queue = queue;
    s->name = name;
    s->noting = true;
    ascend_note(s, name, strlen(name));
    ascend_note(s, &thread, sizeof thread);
    s->code = s->api->aclrtSetCurrentContext(queue->context);
    if (s->code != 0)
        fail(s);
}

aclTensor *ascend_tensor(ascend_step *s, const tn_tensor *t)
{
    return ascend_view(s, t->data, t->dtype, t->ndim, t->shape, t->stride);
}

static bool is_dense(int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    int64_t span = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        if (shape[i] != 1 && stride[i] != span)
            return false;
        span *= shape[i];
    }
    return true;
}

bool ascend_is_dense(const tn_tensor *t)
{
    return is_dense(t->ndim, t->shape, t->stride);
}

aclTensor *ascend_view(ascend_step *s, const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape,
                       const int64_t *stride)
{
    static const int64_t one = 1;
    if (s->noting) {
        ascend_note(s, &data, sizeof data);
        ascend_note(s, (const int32_t[]){(int32_t)dtype, ndim}, 2 * sizeof ndim);
        ascend_note(s, shape, (size_t)ndim * sizeof *shape);
        ascend_note(s, stride, (size_t)ndim * sizeof *stride);
        return (aclTensor *)(uintptr_t)s->api;
    }
    aclDataType type = ascend_dtype(dtype);
    size_t beyond = (uintptr_t)data % ADDRESS_BYTES, size = tn_dtype_size(dtype);
    if (s->failed || type == ACL_DT_UNDEFINED || beyond % size != 0) {
        s->failed = true;
        return NULL;
    }
    if (ndim == 0) {
        ndim = 1;
        shape = stride = &one;
    }
    int64_t offset = (int64_t)(beyond / size), reach = offset + 1;
    for (int32_t i = 0; i < ndim; i++)
        reach += shape[i] > 0 ? (shape[i] - 1) * stride[i] : 0;
    /* The storage is what the view reaches. Where the two are the same they have the same shape too, as in the vendor's
     * examples: some operators divide their work by it. */
    bool same = offset == 0 && is_dense(ndim, shape, stride);
    aclTensor *t = s->api->aclCreateTensor(shape, (uint64_t)ndim, type, stride, offset, ACL_FORMAT_ND,
                                           same ? shape : &reach, same ? (uint64_t)ndim : 1, (char *)data - beyond);
    own(s, t, (destroyer *)s->api->aclDestroyTensor);
    return s->failed ? NULL : t;
}

aclScalar *ascend_f32(ascend_step *s, float value)
{
    if (s->noting) {
        ascend_note(s, &value, sizeof value);
        return (aclScalar *)(uintptr_t)s->api;
    }
    aclScalar *scalar = s->failed ? NULL : s->api->aclCreateScalar(&value, ACL_FLOAT);
    own(s, scalar, (destroyer *)s->api->aclDestroyScalar);
    return s->failed ? NULL : scalar;
}

aclIntArray *ascend_ints(ascend_step *s, const int64_t *values, int64_t count)
{
    if (s->noting) {
        ascend_note(s, values, (size_t)count * sizeof *values);
        return (aclIntArray *)(uintptr_t)s->api;
    }
    aclIntArray *array = s->failed ? NULL : s->api->aclCreateIntArray(values, (uint64_t)count);
    own(s, array, (destroyer *)s->api->aclDestroyIntArray);
    return s->failed ? NULL : array;
}

aclTensorList *ascend_list(ascend_step *s, aclTensor *const *tensors, int64_t count)
{
    if (s->noting) {
        ascend_note(s, &count, sizeof count);
        return (aclTensorList *)(uintptr_t)s->api;
    }
    aclTensorList *list =
        s->failed ? NULL : s->api->aclCreateTensorList((const aclTensor *const *)tensors, (uint64_t)count);
    for (int64_t i = 0; list && i < count; i++)
        disown(s, tensors[i]);
    own(s, list, (destroyer *)s->api->aclDestroyTensorList);
    return s->failed ? NULL : list;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

/* Ends an executor that will not run: the second phase does that where a workspace is asked for and none is given. */
static void drop_executor(ascend_step *s, aclnn_second *second)
{
    if (s->executor)
        second(NULL, s->bytes > 0 ? s->bytes : 1, s->executor, s->queue->stream);
}

static tn_status step_failed(const ascend_step *s, tn_error *err)
{
    if (s->code)
        return tell("aclrtSetCurrentContext", s->code, s->why, err);
    return tn_fail(err, TN_E_MEMORY, "npu", "%s: out of memory for what describes its tensors%s%s", s->name,
                   s->why[0] ? ": " : "", s->why);
}

/* May an executor run again? Not where the operator copies something to the device on its way. */
static bool repeatable(ascend_step *s)
{
    if (!s->api->aclSetAclOpExecutorRepeatable || !s->api->aclDestroyAclOpExecutor)
        return false;
    if (s->api->aclSetAclOpExecutorRepeatable(s->executor) == 0)
        return true;
    s->api->aclGetRecentErrMsg();
    return false;
}

/* Gives a repeatable executor and its objects to the queue; where that does not take them they end here. */
static void keep(ascend_step *s)
{
    ascend_kept kept = {.key = {s->key[0], s->key[1]}, .executor = s->executor, .bytes = s->bytes, .count = s->count};
    kept.objects = malloc(((size_t)s->count + 1) * sizeof *kept.objects);
    if (kept.objects)
        memcpy(kept.objects, s->objects, (size_t)s->count * sizeof *kept.objects);
    if (kept.objects && s->queue->keep(s->queue, &kept)) {
        s->count = 0;
        return;
    }
    free(kept.objects);
    s->api->aclDestroyAclOpExecutor(s->executor);
}

/* The second phase, of a kept executor or of one that was made; whether it can be kept is only known now. */
static tn_status run_second(ascend_step *s, aclnn_second *second, tn_error *err)
{
    void *workspace = NULL;
    if (s->bytes > 0 && !(workspace = s->queue->workspace(s->queue, s->bytes, err))) {
        if (!s->kept)
            drop_executor(s, second);
        s->api->aclGetRecentErrMsg();
        return tn_fail(err, TN_E_MEMORY, "npu", "%s: out of memory for %llu bytes of workspace", s->name,
                       (unsigned long long)s->bytes);
    }
    bool repeats = !s->kept && repeatable(s);
    const ascend_launch l = {s->name, second, s->executor, workspace, s->bytes};
    tn_status status = s->queue->launch(s->queue, &l, s->kept != NULL, err);
    if (repeats)
        keep(s);
    return status;
}

static tn_status run(ascend_step *s, aclnnStatus first, aclnn_second *second, tn_error *err)
{
    char name[128];
    if (s->kept) {
        s->executor = s->kept->executor;
        s->bytes = s->kept->bytes;
        return run_second(s, second, err);
    }
    if (first != 0)
        s->executor = NULL; /* there is none after an error                                         */
    if (s->failed) {
        drop_executor(s, second);
        s->api->aclGetRecentErrMsg(); /* the first phase's, about what it was not given               */
        return step_failed(s, err);
    }
    if (first != 0) {
        snprintf(name, sizeof name, "%sGetWorkspaceSize", s->name);
        return ascend_check(s->api, name, first, err);
    }
    return run_second(s, second, err);
}
tn_status ascend_run(ascend_step *s, aclnnStatus first, aclnn_second *second, tn_error *err)
{
    tn_status status = run(s, first, second, err);
    release(s);
    return status;
}
