/* Products of matrices through oneDNN. f32 goes to its sgemm. bf16 goes to matmul primitives, one per form, whose
 * sizes are only given at execution: they take any number of tokens without generating code for it, and measure as fast
 * as primitives of fixed size. */
#include "eager/gemm.h"

#include "base/blocks.h"
#include "base/edge.h"
#include "eager/vec.h"

#include <dnnl.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* oneDNN brings OpenMP's runtime along; of it we only tell oneDNN to stay on the thread that calls. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int threads);

#define GEMM_SHAPES 32     /* shapes whose memory objects a context keeps                       */
#define GEMM_WORK_ROWS 128 /* weight rows (or columns) converted at a time; sgemm is slow with fewer */
#define GEMM_MAX_ROWS 512  /* tokens of a tile                                                  */
#define GEMM_MAX_COLUMNS 512
#define GEMM_MIN_COLUMNS 128
#define GEMM_PACK_ROWS 24             /* what packing the weights costs, in tokens                  */
#define GEMM_WORTH (INT64_C(1) << 20) /* multiplications, packing included: some microseconds    */

/* What libgomp allocates for a thread: 216 bytes in that of gcc 12, and some room. */
#define OPENMP_BYTES 1024

/* The three matrices of one shape; their addresses are set before each execution. */
typedef struct gemm_memories {
    gemm_shape shape;
    dnnl_memory_t a, w, c;
} gemm_memories;

struct gemm_context {
    gemm_context *next;
    int omp_threads;
    dnnl_stream_t stream; /* NULL: oneDNN is of no use here                                      */
    gemm_memories kept[GEMM_SHAPES];
};

/* oneDNN's side of the process and the pool of contexts; both live as long as the process. */
static struct {
    pthread_once_t once;
    pthread_mutex_t lock;
    gemm_context *idle;
    dnnl_engine_t engine;
    dnnl_primitive_t bf16[GEMM_FORMS]; /* NULL: this machine has no bf16 product                  */
    atomic_bool failed;                /* it ran out of memory, and is left alone from then on    */
    pthread_mutex_t making;
    atomic_bool made[2]; /* f32, bf16: it has its code for products of that type             */
} dnn = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER, .making = PTHREAD_MUTEX_INITIALIZER};

/* Is this a success? Whatever is neither that nor "there is no such thing here" is lack of memory. */
static bool gemm_good(dnnl_status_t status)
{
    if (status != dnnl_success && status != dnnl_unimplemented && status != dnnl_invalid_arguments)
        atomic_store(&dnn.failed, true);
    return status == dnnl_success;
}

static dnnl_primitive_t gemm_primitive(gemm_form form)
{
    const dnnl_dim_t any = DNNL_RUNTIME_DIM_VAL;
    dnnl_dims_t dims = {any, any}, rows = {any, 1}, columns = {1, any};
    dnnl_memory_desc_t a, w, c;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t primitive_desc = NULL;
    dnnl_primitive_t primitive = NULL;
    if (dnnl_memory_desc_init_by_strides(&a, 2, dims, dnnl_bf16, form == GEMM_TN ? columns : rows) == dnnl_success &&
        dnnl_memory_desc_init_by_strides(&w, 2, dims, dnnl_bf16, form == GEMM_NT ? columns : rows) == dnnl_success &&
        dnnl_memory_desc_init_by_strides(&c, 2, dims, dnnl_f32, rows) == dnnl_success &&
        dnnl_matmul_desc_init(&desc, &a, &w, NULL, &c) == dnnl_success &&
        gemm_good(dnnl_primitive_desc_create(&primitive_desc, &desc, NULL, dnn.engine, NULL)) &&
        !gemm_good(dnnl_primitive_create(&primitive, primitive_desc)))
        primitive = NULL;
    if (primitive_desc)
        dnnl_primitive_desc_destroy(primitive_desc);
    return primitive;
}

static void gemm_make_stream(void *argument)
{
    gemm_context *context = argument;
    if (dnn.engine && !gemm_good(dnnl_stream_create(&context->stream, dnn.engine, dnnl_stream_default_flags)))
        context->stream = NULL;
}

/* OpenMP's runtime allocates for a thread that first tells it something, and ends the process where that fails. So
 * there must be memory for it just before. */
static bool gemm_tell_openmp(int threads)
{
    static _Thread_local bool told;
    if (!told) {
        void *volatile probe = malloc(OPENMP_BYTES);
        told = probe;
        free(probe);
    }
    if (told)
        omp_set_num_threads(threads);
    else
        atomic_store(&dnn.failed, true);
    return told;
}

/* Calls what calls oneDNN, unless that failed before. makes: code may be made meanwhile. */
static bool gemm_call(void (*work)(void *), void *argument, bool makes)
{
    if (atomic_load(&dnn.failed))
        return false;
    /* Where it cannot make code it takes slow loops without a word, whose sums round otherwise: errno tells. Elsewhere
     * it says nothing: malloc sets it and finds memory in another place. */
    int before = errno;
    errno = 0;
    if (!edge_call(work, argument) || (makes && errno == ENOMEM))
        atomic_store(&dnn.failed, true);
    errno = before;
    return !atomic_load(&dnn.failed);
}

/* NULL when there is no memory for it. */
static gemm_context *gemm_context_new(void)
{
    gemm_context *context = calloc(1, sizeof *context);
    if (!context)
        atomic_store(&dnn.failed, true);
    else
        gemm_call(gemm_make_stream, context, false);
    return context;
}

static void gemm_keep(gemm_context *context)
{
    pthread_mutex_lock(&dnn.lock);
    context->next = dnn.idle;
    dnn.idle = context;
    pthread_mutex_unlock(&dnn.lock);
}

static void gemm_make_primitives(void *nothing)
{
    (void)nothing;
    if (!gemm_good(dnnl_engine_create(&dnn.engine, dnnl_cpu, 0)))
        dnn.engine = NULL;
    /* Without AVX-512 oneDNN would fall back to a reference loop. */
    for (int form = 0; dnn.engine && tn_cpu_flags() & TN_CPU_AVX512 && form < GEMM_FORMS; form++)
        dnn.bf16[form] = gemm_primitive((gemm_form)form);
}

static void gemm_init(void)
{
    int threads = omp_get_max_threads();
    if (!gemm_tell_openmp(1))
        return;
    gemm_call(gemm_make_primitives, NULL, true);
    omp_set_num_threads(threads);
    /* One for each thread now, so that none is made in the middle of decoding. */
    gemm_context *context;
    for (int32_t i = 0; i < tn_thread_count() && (context = gemm_context_new()); i++)
        gemm_keep(context);
}

gemm_context *gemm_acquire(void)
{
    pthread_once(&dnn.once, gemm_init);
    pthread_mutex_lock(&dnn.lock);
    gemm_context *context = dnn.idle;
    if (context)
        dnn.idle = context->next;
    pthread_mutex_unlock(&dnn.lock);
    if (!context && !(context = gemm_context_new()))
        return NULL;
    context->omp_threads = omp_get_max_threads();
    if (context->omp_threads != 1 && !gemm_tell_openmp(1))
        context->omp_threads = 1; /* nothing to put back */
    return context;
}

void gemm_release(gemm_context *context)
{
    if (!context)
        return;
    if (context->omp_threads != 1)
        omp_set_num_threads(context->omp_threads);
    gemm_keep(context);
}

tn_dtype gemm_type(tn_dtype x, tn_dtype w)
{
    pthread_once(&dnn.once, gemm_init);
    bool direct = x == TN_BF16 && (w == TN_BF16 || blocks_is_quantised(w));
    for (int form = 0; form < GEMM_FORMS; form++)
        direct = direct && dnn.bf16[form];
    return direct ? TN_BF16 : TN_F32;
}

static dnnl_memory_t gemm_memory(dnnl_data_type_t type, int64_t rows, int64_t columns, int64_t row_stride,
                                 int64_t column_stride)
{
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    dnnl_memory_desc_t desc;
    dnnl_memory_t memory = NULL;
    if (dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides) != dnnl_success ||
        !gemm_good(dnnl_memory_create(&memory, &desc, dnn.engine, DNNL_MEMORY_NONE)))
        return NULL;
    return memory;
}

static void gemm_forget(gemm_memories *kept)
{
    dnnl_memory_t memories[] = {kept->a, kept->w, kept->c};
    for (int i = 0; i < 3; i++)
        if (memories[i])
            dnnl_memory_destroy(memories[i]);
    *kept = (gemm_memories){.a = NULL};
}

/* The memory objects of a shape, from the context's table or made anew in their place there. */
static gemm_memories *gemm_recall(gemm_context *context, const gemm_shape *s)
{
    uint64_t hash = (uint64_t)s->form;
    const int64_t keys[] = {s->m, s->n, s->k, s->lda, s->ldw, s->ldc};
    for (int i = 0; i < 6; i++)
        hash = (hash ^ (uint64_t)keys[i]) * UINT64_C(0x9e3779b97f4a7c15);
    gemm_memories *kept = &context->kept[(hash >> 32) % GEMM_SHAPES];
    const gemm_shape *k = &kept->shape;
    if (kept->a && k->form == s->form && k->m == s->m && k->n == s->n && k->k == s->k && k->lda == s->lda &&
        k->ldw == s->ldw && k->ldc == s->ldc)
        return kept;
    gemm_forget(kept);
    kept->shape = *s;
    kept->a = gemm_memory(dnnl_bf16, s->m, s->k, s->form == GEMM_TN ? 1 : s->lda, s->form == GEMM_TN ? s->lda : 1);
    kept->w = gemm_memory(dnnl_bf16, s->k, s->n, s->form == GEMM_NT ? 1 : s->ldw, s->form == GEMM_NT ? s->ldw : 1);
    kept->c = gemm_memory(dnnl_f32, s->m, s->n, s->ldc, 1);
    if (!kept->a || !kept->w || !kept->c) {
        gemm_forget(kept);
        return NULL;
    }
    return kept;
}

/* One product for oneDNN. */
typedef struct gemm_task {
    gemm_context *context;
    const gemm_shape *shape;
    const void *a, *w;
    float *c;
    bool done;
} gemm_task;

static bool gemm_bf16(gemm_context *context, const gemm_shape *shape, const void *a, const void *w, float *c)
{
    if (!context->stream)
        return false;
    gemm_memories *m = gemm_recall(context, shape);
    if (!m || dnnl_memory_set_data_handle(m->a, (void *)(uintptr_t)a) != dnnl_success ||
        dnnl_memory_set_data_handle(m->w, (void *)(uintptr_t)w) != dnnl_success ||
        dnnl_memory_set_data_handle(m->c, c) != dnnl_success)
        return false;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->a}, {DNNL_ARG_WEIGHTS, m->w}, {DNNL_ARG_DST, m->c}};
    return gemm_good(dnnl_primitive_execute(dnn.bf16[shape->form], context->stream, 3, args));
}

/* The product in plain C, for what oneDNN cannot do. One row of c at a time, f32 throughout. */
static void gemm_plain(const gemm_shape *s, const void *a, const void *w, float *c)
{
    size_t size = tn_dtype_size(s->type);
    int64_t row_step = s->form == GEMM_NT ? s->ldw : 1, k_step = s->form == GEMM_NT ? 1 : s->ldw;
    int64_t a_row = s->form == GEMM_TN ? 1 : s->lda, a_k = s->form == GEMM_TN ? s->lda : 1;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < s->k; p++) {
                float x, y;
                convert_to_f32((const char *)a + (size_t)(i * a_row + p * a_k) * size, s->type, &x, 1);
                convert_to_f32((const char *)w + (size_t)(j * row_step + p * k_step) * size, s->type, &y, 1);
                sum += x * y;
            }
            c[i * s->ldc + j] = sum;
        }
}

static bool gemm_f32(const gemm_shape *s, const float *a, const float *w, float *c)
{
    return gemm_good(dnnl_sgemm(s->form == GEMM_TN ? 'T' : 'N', s->form == GEMM_NT ? 'T' : 'N', s->m, s->n, s->k, 1.0f,
                                a, s->lda, w, s->ldw, 0.0f, c, s->ldc));
}

/* oneDNN's bf16 product without AMX multiplies pairs. It repeats the last element of an odd row of a, and gives the
 * weight beside it as zero: infinity would become NaN. Such rows are computed once more. */
static void gemm_mend_last(const gemm_shape *s, const void *a, const void *w, float *c)
{
    int64_t a_row = s->form == GEMM_TN ? 1 : s->lda, a_k = s->form == GEMM_TN ? s->lda : 1;
    gemm_shape one = *s;
    one.m = 1;
    if (s->k % 2 == 0)
        return;
    for (int64_t i = 0; i < s->m; i++) {
        const uint16_t *row = (const uint16_t *)a + i * a_row;
        if ((row[(s->k - 1) * a_k] & 0x7fff) == 0x7f80)
            gemm_plain(&one, row, w, c + i * s->ldc);
    }
}

static void gemm_do(void *argument)
{
    gemm_task *t = argument;
    t->done = t->shape->type == TN_BF16 ? gemm_bf16(t->context, t->shape, t->a, t->w, t->c)
                                        : gemm_f32(t->shape, t->a, t->w, t->c);
    if (t->done && t->shape->type == TN_BF16)
        gemm_mend_last(t->shape, t->a, t->w, t->c);
}

/* oneDNN makes code when it first meets a shape that takes another path through it, megabytes at once: products of five
 * to fifteen rows are one that a context may get to after ten thousand tokens, when rows of scores have become long.
 * With these shapes it has all of its code before the first product is made. */
enum { CODE_M = 16, CODE_N = 128, CODE_K = 64 };

static void gemm_make_code(void *argument)
{
    static const int64_t sizes[][3] = {{CODE_M, CODE_N, CODE_K}, {5, CODE_K, CODE_K}, {CODE_M, CODE_K, CODE_N}};
    static const float zeros[CODE_N * CODE_K];
    float c[CODE_M * CODE_N];
    const gemm_task *first = argument;
    gemm_shape shape = *first->shape;
    gemm_task task = {.context = first->context, .shape = &shape, .a = zeros, .w = zeros, .c = c};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < GEMM_FORMS && !atomic_load(&dnn.failed); form++) {
            int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            shape.form = (gemm_form)form;
            shape.m = m;
            shape.n = shape.ldc = n;
            shape.k = k;
            shape.lda = form == GEMM_TN ? m : k;
            shape.ldw = form == GEMM_NT ? k : n;
            gemm_do(&task);
        }
}

static bool gemm_ready(gemm_context *context, const gemm_shape *shape)
{
    atomic_bool *made = &dnn.made[shape->type == TN_BF16];
    if (atomic_load(made))
        return true;
    gemm_task task = {.context = context, .shape = shape};
    pthread_mutex_lock(&dnn.making);
    if (!atomic_load(made))
        atomic_store(made, gemm_call(gemm_make_code, &task, true));
    pthread_mutex_unlock(&dnn.making);
    return atomic_load(made);
}

void gemm_prepare(tn_dtype type)
{
    const gemm_shape shape = {.type = gemm_type(type, type)};
    gemm_context *context = gemm_acquire();
    if (context)
        gemm_ready(context, &shape);
    gemm_release(context);
}

static void gemm_direct(gemm_context *context, const gemm_shape *shape, const void *a, const void *w, float *c)
{
    gemm_task task = {.context = context, .shape = shape, .a = a, .w = w, .c = c};
    if (context && shape->k > 0 && gemm_ready(context, shape))
        gemm_call(gemm_do, &task, false);
    if (!task.done)
        gemm_plain(shape, a, w, c);
}

tn_status gemm_check(tn_error *err)
{
    if (!atomic_load(&dnn.failed))
        return TN_OK;
    return tn_fail(err, TN_E_MEMORY, "oneDNN", "out of memory; close other programs and start this one again");
}

/* n elements of from to type to, at any address. */
static void gemm_convert(const char *src, tn_dtype from, char *dst, tn_dtype to, int64_t n)
{
    if (from == to)
        memcpy(dst, src, (size_t)n * tn_dtype_size(to));
    else
        convert_to_f32(src, from, (float *)(void *)dst, n);
}

/* rows of columns weights, from output j on, one after the other in the product's type. */
static void gemm_unpack(const gemm_shape *shape, const void *w, int64_t j, int64_t rows, int64_t columns, char *to)
{
    bool by_row = shape->form == GEMM_NT;
    size_t size = tn_dtype_size(shape->type), w_size = tn_dtype_size(shape->w_type);
    for (int64_t r = 0; r < rows; r++, to += (size_t)columns * size)
        if (shape->quantised)
            weight_read(shape->quantised, shape->w_row + r + (by_row ? j : 0), shape->w_column + (by_row ? 0 : j),
                        columns, shape->type, to);
        else
            gemm_convert((const char *)w + (size_t)(by_row ? (j + r) * shape->ldw : r * shape->ldw + j) * w_size,
                         shape->w_type, to, shape->type, columns);
}

size_t gemm_work_size(int64_t k)
{
    return ((size_t)GEMM_WORK_ROWS * (size_t)k * sizeof(float) + 63) & ~(size_t)63;
}

void gemm_run(gemm_context *context, const gemm_shape *shape, const void *a, const void *w, float *c, void *work)
{
    if (shape->m <= 0 || shape->n <= 0)
        return;
    size_t w_size = tn_dtype_size(shape->w_type);
    if (!shape->quantised && shape->w_type == shape->type && (uintptr_t)w % w_size == 0) {
        gemm_direct(context, shape, a, w, c);
        return;
    }
    bool by_row = shape->form == GEMM_NT;
    for (int64_t j = 0; j < shape->n; j += GEMM_WORK_ROWS) {
        gemm_shape part = *shape;
        part.w_type = shape->type;
        part.quantised = NULL;
        part.n = shape->n - j < GEMM_WORK_ROWS ? shape->n - j : GEMM_WORK_ROWS;
        part.ldw = by_row ? shape->k : part.n;
        gemm_unpack(shape, w, j, by_row ? part.n : shape->k, part.ldw, work);
        gemm_direct(context, &part, a, work, c + j);
    }
}

void gemm_dense(gemm_context *context, gemm_form form, int64_t m, int64_t n, int64_t k, const float *a, const float *w,
                float *c)
{
    gemm_shape shape = {.type = TN_F32,
                        .w_type = TN_F32,
                        .form = form,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = form == GEMM_TN ? m : k,
                        .ldw = form == GEMM_NT ? k : n,
                        .ldc = n};
    gemm_run(context, &shape, a, w, c, NULL);
}

int64_t gemm_tile_columns(int64_t n)
{
    /* At least eight tiles where that leaves them wide enough to be efficient. */
    int64_t columns = n / 8 / 64 * 64;
    return columns < GEMM_MIN_COLUMNS ? GEMM_MIN_COLUMNS : columns > GEMM_MAX_COLUMNS ? GEMM_MAX_COLUMNS : columns;
}

int64_t gemm_tile_rows(int64_t m)
{
    if (m <= GEMM_MAX_ROWS)
        return m > 0 ? m : 1;
    int64_t tiles = (m + GEMM_MAX_ROWS - 1) / GEMM_MAX_ROWS;
    return ((m + tiles - 1) / tiles + 15) / 16 * 16;
}

int64_t gemm_grain(int64_t m, int64_t n, int64_t k)
{
    int64_t work = n * k > 0 ? (m + GEMM_PACK_ROWS) * n * k : 1;
    return (GEMM_WORTH + work - 1) / work;
}
