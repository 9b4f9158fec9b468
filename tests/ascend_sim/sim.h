/* A look-alike of CANN's three libraries on host memory, for tests of programs that call them: what they share. It is
 * strict: what the vendor's documents forbid is refused with the code that they name, said on stderr, and counted.
 * libascendcl.so: state.c, runtime.c, memory.c, stream.c, values.c; libnnopbase.so: objects.c, executor.c;
 * libopapi.so: view.c and the operators, op_*.c. README.md has the switches and what the simulator cannot see. */
#ifndef ASCEND_SIM_H
#define ASCEND_SIM_H

#pragma GCC visibility push(default)
#include "acl.h"

#define SIM_RANK_MAX 8

/* ---- for tests that load the simulator ------------------------------------------------------------------------- */

int64_t sim_violations(void);        /* rules broken so far                                                       */
int64_t sim_calls(void);             /* calls so far that ASCEND_SIM_FAIL could let fail                          */
int64_t sim_leaks(void);             /* objects and allocations that live; default contexts are not counted       */
void sim_fail_after(int64_t number); /* the number-th call from now fails, as with ASCEND_SIM_FAIL; 0: none does  */

/* What was done so far, in all streams. Waits of copies to ordinary memory of the host count as synchronisations. */
typedef struct sim_figures {
    int64_t launches;           /* operators that were queued, fills of memory and copies within it      */
    int64_t uploads, downloads; /* copies from and to the host                                          */
    int64_t uploaded_bytes, downloaded_bytes; /* and what they had                                                    */
    int64_t synchronisations;
    int64_t executors, descriptors; /* made: by first phases; tensors, scalars, arrays and lists                      */
    int64_t moved_bytes;            /* read and written by operators that ran: each element of a view once, of tables
                                       and stacked matrices what was used, and twice what has to be made contiguous   */
    int64_t captured, graphs, replayed; /* what was captured of streams, in calls; graphs that were launched, each of
                                       which is one launch; and the calls in these                               */
} sim_figures;
void sim_figures_so_far(sim_figures *figures);
/* The index-th operator that was queued at all, in graphs too, and how often it was; NULL: there were not so many. */
const char *sim_launched(int index, int64_t *count);
extern sim_figures sim_counted;          /* under the lock, as the next */
void sim_count_launch(const char *name); /* one launch of this                                              */
void sim_count_name(const char *name);   /* of this, within a graph                                         */

/* ---- state.c: one lock around every call, rules, switches ------------------------------------------------------ */

int sim_lock(void);
void sim_unlock(int *held);
#define SIM_HOLD __attribute__((cleanup(sim_unlock), unused)) int sim_held = sim_lock()

/* A rule was broken: counts it, prints the text, keeps it for aclGetRecentErrMsg, and returns code. */
int sim_violation(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same without counting and printing: for what happens to correct programs. */
int sim_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Counts a call that can fail; true: it is the one that has to. */
bool sim_injected(const char *call);

void *sim_allocate(size_t size); /* zeroed; aborts when there is none */

typedef enum sim_soc { SIM_A2, SIM_A3, SIM_310P, SIM_NO_SOC } sim_soc;
sim_soc sim_soc_of(void);
int64_t sim_switch(const char *name, int64_t otherwise); /* an environment variable that holds a number */

typedef enum sim_kind {
    SIM_MEMORY,
    SIM_HOST_MEMORY,
    SIM_STREAMS,
    SIM_CONTEXTS,
    SIM_TENSORS,
    SIM_SCALARS,
    SIM_ARRAYS,
    SIM_LISTS,
    SIM_EXECUTORS,
    SIM_MODELS,
    SIM_KINDS
} sim_kind;
void sim_count_live(sim_kind kind, int change);

/* Ends an object: its memory stays readable for a while, so that a second use is seen and not undefined. */
void sim_bury(void *object);

/* ---- runtime.c ------------------------------------------------------------------------------------------------- */

typedef struct sim_context sim_context;
sim_context *sim_current(void);                 /* the calling thread's; NULL: none                                 */
int sim_current_device(void);                   /* -1: none                                                         */
int sim_context_device(const sim_context *c);   /* its device                                                       */
aclrtStream *sim_default_stream(sim_context *); /* where the context keeps its own                                  */
int sim_need_context(const char *call);         /* 0, or the code of a broken rule: not initialised, no device      */

/* ---- memory.c -------------------------------------------------------------------------------------------------- */

/* Host address of size bytes of device memory; NULL: they are not within one live allocation of that device. */
void *sim_translate(const void *address, size_t size, int device);
bool sim_is_device(const void *address);     /* in the range of device addresses, live or not */
void sim_memory_reset(int device);           /* its allocations end                           */
bool sim_is_pinned(const void *p, size_t n); /* within one allocation of aclrtMallocHost     */

/* ---- stream.c -------------------------------------------------------------------------------------------------- */

typedef struct sim_range {
    const char *begin, *end;
    bool written;
} sim_range;

/* A piece of queued work. discard may be NULL; both see state, which discard frees. */
typedef struct sim_work {
    struct sim_work *next;
    const char *name;
    int (*run)(void *state, int device);
    void (*discard)(void *state);
    void *state;
    sim_range *ranges; /* memory that it uses; owned */
    int range_count;
    const void *executor; /* that is repeatable and made it; NULL: none                                             */
} sim_work;

/* Checks handle, context and thread. 0, or the code of a broken rule. */
int sim_check_stream(aclrtStream stream, const char *call);
/* Takes a copy of the work, with its state and ranges; false: it is captured, and not queued. The stream was checked.
 */
bool sim_enqueue(aclrtStream stream, const sim_work *work);
int sim_perform(aclrtStream stream); /* the whole queue; the first error of the stream since it was last asked */
/* Name of queued work that uses (or, with writes, writes) one of these bytes; NULL: none. */
const char *sim_queued_use(const void *begin, size_t size, bool writes_only);
/* What waits or may wait for another is refused to a thread that captures, and to all while one captures for all
 * (GLOBAL): 0, or the code of the broken rule, which ends the capture. With a stream: also of that, by any thread. */
int sim_not_captured(aclrtStream stream, const char *call);
/* Name of captured work that uses one of these bytes, or the executor; NULL: none. */
const char *sim_captured_use(const void *begin, size_t size, const void *executor);
void sim_streams_reset(sim_context *context, bool perform);
int sim_streams_of(const sim_context *context);
int sim_perform_device(int device);

/* ---- values.c -------------------------------------------------------------------------------------------------- */

float sim_from_f16(uint16_t value);
uint16_t sim_to_f16(float value); /* to nearest, ties to even */
float sim_from_bf16(uint16_t value);
uint16_t sim_to_bf16(float value);
enum {
    SIM_F32 = 1,
    SIM_F16 = 2,
    SIM_BF16 = 4,
    SIM_I32 = 8,
    SIM_I64 = 16,
    SIM_BOOL = 32,
    SIM_SMALL = 64, /* INT8, UINT8, INT16 */
    SIM_F64 = 128,
    SIM_UNSIGNED = 256, /* UINT16, UINT32, UINT64: moved, never computed with */
    SIM_FLOATS = SIM_F32 | SIM_F16 | SIM_BF16,
    SIM_ANY = 511
};
const char *sim_type_name(aclDataType type);
int sim_type_bit(aclDataType type); /* 0: none of them */

/* ---- objects.c, executor.c ------------------------------------------------------------------------------------- */

typedef struct sim_tensor {
    bool present, output;
    const char *role; /* the vendor's name of the argument */
    aclDataType type;
    int rank;
    int64_t shape[SIM_RANK_MAX], strides[SIM_RANK_MAX], offset; /* in elements */
    void *data;                                                 /* device address of the storage */
    char *host;                                                 /* while work runs: its first element */
    aclTensor *source;
} sim_tensor;

typedef struct sim_scalar {
    aclDataType type;
    double real;
} sim_scalar;

/* Looks into objects; what is NULL or no such object is not found (false). */
bool sim_tensor_of(const aclTensor *tensor, sim_tensor *out);
bool sim_scalar_of(const aclScalar *scalar, sim_scalar *out);
bool sim_ints_of(const aclIntArray *array, const int64_t **values, int64_t *count);
bool sim_list_of(const aclTensorList *list, aclTensor *const **tensors, int64_t *count);
void sim_tensor_pending(aclTensor *tensor, int change); /* executors that still need it */
bool sim_tensor_alive(const aclTensor *tensor);

#define SIM_ATTRIBUTES 16
/* A call of an operator: built by its first phase, performed by run when its stream gets to it. */
typedef struct sim_op {
    const char *name;
    int code; /* of the first rule broken; 0: none */
    sim_tensor **tensors;
    int count;
    bool elementwise;           /* an output may be one of the inputs */
    const sim_tensor *in_place; /* the one output that may be; NULL: none */
    int64_t i[SIM_ATTRIBUTES];
    double f[4];
    int64_t *ints; /* copied */
    int64_t int_count;
    int64_t idle_bytes; /* of its tensors that it does not touch, set where it runs; below 0: it copies some first    */
    uint64_t workspace;
    const void *workspace_at; /* device address, while it runs */
    int (*run)(struct sim_op *op);
} sim_op;

/* First phase. sim_begin never gives NULL; what is wrong is remembered in op, and sim_finish returns it. */
sim_op *sim_begin(const char *name);
/* Adds a tensor and returns its description, never NULL: an empty one when it is NULL, which is 161001. */
const sim_tensor *sim_in(sim_op *op, const aclTensor *tensor, const char *role);
const sim_tensor *sim_out(sim_op *op, const aclTensor *tensor, const char *role);
const sim_tensor *sim_in_optional(sim_op *op, const aclTensor *tensor, const char *role);
const sim_tensor *sim_out_optional(sim_op *op, const aclTensor *tensor, const char *role);
void sim_fault(sim_op *op, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Frees what failed, or makes the executor. workspace: bytes that the operator wants, 0 for none. */
aclnnStatus sim_finish(sim_op *op, uint64_t workspace, uint64_t *workspaceSize, aclOpExecutor **executor);
/* Second phase of all operators, which differ in their names alone. */
aclnnStatus sim_second(const char *name, void *workspace, uint64_t size, aclOpExecutor *executor, aclrtStream stream);
#pragma GCC visibility pop

/* ---- view.c: within libopapi.so -------------------------------------------------------------------------------- */

int64_t sim_elements(const sim_tensor *t);
int64_t sim_bytes(const sim_tensor *t);
int64_t sim_product(const int64_t *shape, int from, int to);
bool sim_contiguous(const sim_tensor *t);
bool sim_transposed(const sim_tensor *t); /* contiguous with its last two dimensions exchanged */
bool sim_has_shape(const sim_tensor *t, int rank, const int64_t *shape);
int sim_axis(sim_op *op, int64_t dim, int rank); /* a dimension counted from either end; a fault gives 0 */

/* Rules of several operators, 161002 unless they take a code. */
void sim_want_type(sim_op *op, const sim_tensor *t, int types);
void sim_want_same_type(sim_op *op, const sim_tensor *a, const sim_tensor *b);
void sim_want_contiguous(sim_op *op, const sim_tensor *t);
void sim_want_shape(sim_op *op, int code, const sim_tensor *t, int rank, const int64_t *shape);
void sim_want_rank(sim_op *op, int code, const sim_tensor *t, int least, int most);

/* Elements in the order of the view, packed; owned, free() them. Of a tensor without elements: memory of no use. */
void *sim_load_raw(const sim_tensor *t);
float *sim_load(const sim_tensor *t);
int64_t *sim_load_ints(const sim_tensor *t);
void sim_store_raw(const sim_tensor *t, const void *packed);
void sim_store(const sim_tensor *t, const float *packed);
void sim_store_ints(const sim_tensor *t, const int64_t *packed);
/* t as if it had this shape: axes of length 1 and missing ones are repeated. false: it does not broadcast. */
bool sim_broadcast(const sim_tensor *t, int rank, const int64_t *shape, sim_tensor *out);

#endif
