/* CANN at run time, for the device and for the NPU sides of kernels: its functions, looked up once, the queue of a
 * model, and what calls of operators are made of (npu_ops.h has the calls). Nothing is computed when a step returns:
 * work waits in the stream, and what it needs was copied or stays until then. */
#ifndef ASCEND_H
#define ASCEND_H

#include <tenon/device.h>
#include "acl.h"

/* ---- functions ------------------------------------------------------------------------------------------ */

/* Every installation that is served has these. */
#define ASCEND_RUNTIME(X)                                                                                              \
    X(aclInit)                                                                                                         \
    X(aclGetRecentErrMsg)                                                                                              \
    X(aclrtGetSocName)                                                                                                 \
    X(aclrtSetDevice)                                                                                                  \
    X(aclrtResetDevice)                                                                                                \
    X(aclrtGetDeviceCount)                                                                                             \
    X(aclrtCreateContext)                                                                                              \
    X(aclrtDestroyContext)                                                                                             \
    X(aclrtSetCurrentContext)                                                                                          \
    X(aclrtCreateStream)                                                                                               \
    X(aclrtDestroyStream)                                                                                              \
    X(aclrtSynchronizeStream)                                                                                          \
    X(aclrtMalloc)                                                                                                     \
    X(aclrtFree)                                                                                                       \
    X(aclrtMallocHost)                                                                                                 \
    X(aclrtFreeHost) X(aclrtMemcpy) X(aclrtMemcpyAsync) X(aclrtMemsetAsync) X(aclrtGetMemInfo)
#define ASCEND_OBJECTS(X)                                                                                              \
    X(aclCreateTensor)                                                                                                 \
    X(aclCreateScalar)                                                                                                 \
    X(aclCreateIntArray)                                                                                               \
    X(aclCreateTensorList) X(aclDestroyTensor) X(aclDestroyScalar) X(aclDestroyIntArray) X(aclDestroyTensorList)

/* Headers of 8.1.RC1 have these; an installation without them makes an executor for each call. */
#define ASCEND_REPEATING(X) X(aclSetAclOpExecutorRepeatable) X(aclDestroyAclOpExecutor)
/* So have they these, of the runtime; without one of them every operator is launched. */
#define ASCEND_CAPTURING(X) X(aclmdlRICaptureBegin) X(aclmdlRICaptureEnd) X(aclmdlRIExecuteAsync) X(aclmdlRIDestroy)

#define ASCEND_FIELD(name) __typeof__(&name) name;
#define ACL_OP(operator, need, chips, known, types, strides, arguments)                                                \
    __typeof__(&operator##GetWorkspaceSize) operator##GetWorkspaceSize;                                                \
    aclnn_second *operator;
/* Operators have both phases. Those that an installation may lack are NULL there, and whoever uses one asks first. */
typedef struct ascend_api {
    ASCEND_RUNTIME(ASCEND_FIELD)
    ASCEND_OBJECTS(ASCEND_FIELD)
    ASCEND_REPEATING(ASCEND_FIELD)
    ASCEND_CAPTURING(ASCEND_FIELD)
#include "acl_ops.def"
} ascend_api;
#undef ACL_OP

/* The functions of this machine's installation, looked up at the first call; NULL with the reason (what is missing, and
 * where it was looked for) in err. [any thread] */
const ascend_api *ascend_load(tn_error *err);

/* Whether this installation has both phases of an operator, by its name, and the chip is one of its row's. takes: and
 * whether the row has this combination of types, of its tensors in their order, at most 16. [any thread] */
bool ascend_has(const char *name);
bool ascend_takes(const char *name, const tn_dtype *types, int count);

/* Families of chips that are known, by their numbers in names. */
typedef enum ascend_chip {
    ASCEND_OTHER_CHIP,
    ASCEND_910B,   /* Atlas A2: "Ascend910B1" and on; "Ascend910B" alone is the first generation      */
    ASCEND_910_93, /* Atlas A3                                                                        */
    ASCEND_310P    /* for inference                                                                   */
} ascend_chip;

/* Of the name that aclrtGetSocName gives. [any thread] */
ascend_chip ascend_chip_of(const char *soc);

/* ---- the queue ------------------------------------------------------------------------------------------ */

/* What describes a call's arguments on the host. */
typedef struct ascend_object {
    const void *object;
    aclnnStatus (*destroy)(const void *object);
} ascend_object;

/* An executor that is kept for calls of the same operator with the same arguments, addresses included, and the objects
 * that it was made of. key: of all of that and the thread, two sums of 64 bits that no other call of a process has. */
typedef struct ascend_kept {
    uint64_t key[2];
    aclOpExecutor *executor; /* NULL: none */
    uint64_t bytes;          /* of workspace */
    ascend_object *objects;  /* owned */
    int32_t count;
} ascend_kept;

/* A call of an operator on its way into the stream: its second phase, and what that takes. */
typedef struct ascend_launch {
    const char *name; /* of the operator, for errors; stays where it is                            */
    aclnn_second *second;
    aclOpExecutor *executor;
    void *workspace;
    uint64_t bytes; /* of that                                                                     */
} ascend_launch;

/* A call that waits for the next one, which may be one with it (npu_held.c): y = a b, b a dense matrix turned, of one
 * row; or y = a + b of one type and shape. All dense. */
typedef enum ascend_waits { ASCEND_NOTHING, ASCEND_PRODUCT, ASCEND_SUM } ascend_waits;
typedef struct ascend_held {
    ascend_waits what;
    tn_tensor a, b, y;
} ascend_held;

/* Of one model: what tn_queue is for the device "npu". Kernels read it and change nothing. The second version: what is
 * launched goes by way of launch. */
#define ASCEND_QUEUE 0x4e505532u
struct tn_queue {
    uint32_t magic, size; /* ASCEND_QUEUE; of this struct                                          */
    const ascend_api *api;
    int32_t unit;
    char soc[64]; /* "Ascend910B3"                                                                 */
    aclrtContext context;
    aclrtStream stream;
    bool idle;        /* nothing was put into the stream since somebody waited for it                      */
    ascend_held held; /* what comes first of all that is put into the stream from now on                  */
    /* Device memory that steps in the stream may use until the next call of workspace: grows by itself, NULL with err
     * set when there is none. */
    void *(*workspace)(struct tn_queue *queue, uint64_t bytes, tn_error *err);
    /* What the host last uploaded to this place, when it was among the first bytes of an upload (indices, slots) and
     * nothing has written there since; NULL: the bytes are known on the device only. Borrowed until the next call of
     * the device. Only for inputs that no operation computes (ids, slots, positions, counts): what kernels write is not
     * seen. */
    const void *(*shadow)(struct tn_queue *queue, const void *device, size_t bytes);
    /* find: borrowed until the next call of keep; NULL: there is none. keep takes the executor and its objects, or
     * returns false. */
    const ascend_kept *(*find)(struct tn_queue *queue, const uint64_t key[2]);
    bool (*keep)(struct tn_queue *queue, const ascend_kept *kept);
    /* Puts the call into the stream. Where its executor is kept that may be later, with the calls that follow: what
     * fails then is told by whoever uses the stream next. */
    tn_status (*launch)(struct tn_queue *queue, const ascend_launch *l, bool kept, tn_error *err);
};

/* ---- steps ---------------------------------------------------------------------------------------------- */

/* A list of one matrix for each of 128 experts, the most that a grouped product takes, and what goes beside it. */
enum { ASCEND_OBJECTS_MAX = 160 };

/* One operator's call. Its arguments are gone through twice: first while noting, when nothing is made and pointers to
 * what would be only say that it is there; where no executor is kept for what was noted, again, to make it. What
 * ascend_tensor and the like make belongs to the step, which ascend_run ends, whatever comes of it. Where one cannot be
 * made the step fails with "out of memory" when it is run. */
typedef struct ascend_step {
    const ascend_api *api;
    tn_queue *queue;
    const char *name; /* of the operator, for errors                                               */
    uint64_t bytes;   /* first phase: workspace                                                    */
    aclOpExecutor *executor;
    uint64_t key[2];
    const ascend_kept *kept; /* the executor to run again, NULL: there is none                      */
    int32_t count;
    bool noting, failed;
    int32_t code;  /* of aclrtSetCurrentContext, where the step failed at that; 0: out of memory     */
    char why[200]; /* the vendor's text, where failed: later calls would replace it                 */
    ascend_object objects[ASCEND_OBJECTS_MAX];
} ascend_step;

/* Makes the queue's context that of the calling thread, and begins noting. known ends that: whether an executor is kept
 * for what was noted. note: takes bytes of an argument into the key. */
void ascend_note(ascend_step *s, const void *bytes, size_t count);
bool ascend_known(ascend_step *s);
void ascend_begin(ascend_step *s, tn_queue *queue, const char *name);
/* A view of the tensor's memory: shape, strides, dtype. Addresses need 32 bytes of alignment: the rest becomes an
 * offset. */
aclTensor *ascend_tensor(ascend_step *s, const tn_tensor *t);
/* Are its elements side by side, in the order of the dimensions? */
bool ascend_is_dense(const tn_tensor *t);
/* The same memory seen as ndim dimensions, strides in elements. */
aclTensor *ascend_view(ascend_step *s, const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape,
                       const int64_t *stride);
aclScalar *ascend_f32(ascend_step *s, float value);
aclIntArray *ascend_ints(ascend_step *s, const int64_t *values, int64_t count);
/* Takes the tensors over. */
aclTensorList *ascend_list(ascend_step *s, aclTensor *const *tensors, int64_t count);

/* Given the first phase's result: takes the workspace, runs the second phase, and releases the step's objects. An error
 * says the operator, the code, what it means and the vendor's text: class TN_E_INTERNAL, or TN_E_MEMORY. */
tn_status ascend_run(ascend_step *s, aclnnStatus first, aclnn_second *second, tn_error *err);

/* err from a code of the runtime or of an operator; TN_OK for 0. */
tn_status ascend_check(const ascend_api *api, const char *function, int32_t code, tn_error *err);

/* ACL_FLOAT, ACL_BF16, ...; ACL_DT_UNDEFINED for what the interface has no type for. */
aclDataType ascend_dtype(tn_dtype dtype);

#endif
