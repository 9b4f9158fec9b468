/* The kernel npu_fused_rmsnorm: RMS_NORM and ADD_RMS_NORM on the CPU, forward and backward, and its list of devices. */
#define TN_ABI_NEEDED 3 /* TN_SAME_BITS */
#include <string.h>
#include <tenon/kernel.h>

#include "rmsnorm.h"
#include "rows.h"

/* Rows are given to a thread in pieces of about this many bytes of x: below two of them, waking the team costs more
 * than it saves (README.md has the measurement). */
static const int64_t PIECE_BYTES = 64 * 1024;

/* The weight's gradient is a sum over rows: first over the rows of a block, then over the blocks. How rows fall into
 * blocks follows from their number and width alone, so the result does not depend on the number of threads. A block
 * has enough rows to be worth its own sums; there are no more blocks than threads could want. */
enum { BLOCK_ROWS = 32, BLOCKS = 64 };

/* plan->user: what plan found out for the calls. */
enum { USER_FORWARD = 0, USER_BACKWARD = 1, USER_ADD_BLOCKS = 2 };

static int64_t blocks_step(int64_t width)
{
    return (width + RMSNORM_DW_MULTIPLE - 1) / RMSNORM_DW_MULTIPLE * RMSNORM_DW_MULTIPLE;
}

/* Every site of these operations has a function: there is nothing to decline. */
static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    rmsnorm_kernels table;
    rmsnorm_kernels_init(&table, tn_cpu_flags());
    plan->user[USER_FORWARD] = (uint64_t)(uintptr_t)table.forward;
    plan->user[USER_BACKWARD] = (uint64_t)(uintptr_t)table.backward;
    plan->user[USER_ADD_BLOCKS] = (uint64_t)(uintptr_t)table.add_blocks;
    /* A row of zeros, then the sums of the blocks. */
    plan->backward_scratch_bytes = (size_t)((1 + BLOCKS) * blocks_step(site->dim[TN_DIM_WIDTH])) * sizeof(float);
    return TN_OK;
}

/* ---- both directions ------------------------------------------------------------------------------ */

/* A call on its way to the kernels: its tensors, walked together, and what is the same for all rows. */
typedef struct norm_call {
    rmsnorm_fn *fn;
    rmsnorm_rows rows;
    rows walk;
    rmsnorm_tensor name[ROWS_TENSORS]; /* of the tensors of walk                                 */
    int64_t row_bytes, block_rows;     /* of a block: backward                                   */
    float *sums;                       /* of the blocks; NULL: dw is not wanted                  */
    rmsnorm_blocks blocks;
    rmsnorm_blocks_fn *add_blocks;
} norm_call;

typedef struct norm_tensor {
    rmsnorm_tensor name;
    const tn_tensor *tensor;
} norm_tensor;

/* list: x first. Tensors without data are left out. */
static norm_call norm_call_of(const tn_call *call, const norm_tensor *list, int32_t count)
{
    norm_call c = {.fn = NULL};
    const tn_tensor *tensors[ROWS_TENSORS];
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++)
        if (list[i].tensor->data || i == 0) {
            c.name[n] = list[i].name;
            tensors[n++] = list[i].tensor;
        }
    c.walk = rows_of(tensors, n);
    c.row_bytes = c.walk.width * (int64_t)tn_dtype_size(tensors[0]->dtype);
    for (int32_t t = 0; t < n; t++)
        c.rows.step[c.name[t]] = c.walk.step[t][c.walk.ndim - 1];
    c.rows.width = c.walk.width;
    c.rows.dtype = tensors[0]->dtype;
    c.rows.eps = (float)call->site->num[TN_NUM_EPS];
    c.rows.norm = (tn_norm)call->site->meaning[TN_AXIS_NORM];
    if (c.rows.norm != TN_NORM_NO_WEIGHT)
        c.rows.weight = call->site->param[TN_ROLE_WEIGHT].tensors->data;
    return c;
}

static void norm_rows(const norm_call *c, int64_t begin, int64_t end, float *dw)
{
    rmsnorm_rows a = c->rows;
    char *at[ROWS_TENSORS];
    a.dw = dw;
    for (int64_t row = begin; row < end; row += a.count) {
        a.count = rows_run(&c->walk, row, end, at);
        for (int32_t t = 0; t < c->walk.tensors; t++)
            a.row[c->name[t]] = at[t];
        c->fn(&a);
    }
}

/* Calls body for 0 .. count - 1, which read bytes of x each: on this thread when that is little. */
static void divide(norm_call *c, int64_t count, int64_t bytes,
                   void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread))
{
    if (count * bytes < 2 * PIECE_BYTES)
        body(c, 0, count, 0);
    else
        tn_parallel_for(count, PIECE_BYTES / bytes + 1, body, c);
}

/* ---- forward -------------------------------------------------------------------------------------- */

static void forward_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    norm_rows(ctx, begin, end, NULL);
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *in = call->in, *out = call->out;
    const norm_tensor plain[] = {{NORM_X, &in[0]}, {NORM_Y, &out[0]}, {NORM_GATE, &in[1]}};
    const norm_tensor add[] = {{NORM_X, &in[0]}, {NORM_R, &in[1]}, {NORM_SUM, &out[0]}, {NORM_Y, &out[1]}};
    bool gated = call->site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED;
    norm_call c = call->op == TN_OP_ADD_RMS_NORM ? norm_call_of(call, add, 4) : norm_call_of(call, plain, 2 + gated);
    c.fn = (rmsnorm_fn *)(uintptr_t)call->plan->user[USER_FORWARD];
    divide(&c, c.walk.count, c.row_bytes, forward_piece);
    return TN_OK;
}

/* ---- backward ------------------------------------------------------------------------------------- */

static void backward_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const norm_call *c = ctx;
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block * c->block_rows, rest = c->walk.count - first;
        float *dw = c->sums ? c->sums + block * c->blocks.step : NULL;
        if (dw)
            memset(dw, 0, (size_t)c->blocks.step * sizeof *dw);
        norm_rows(c, first, first + (rest < c->block_rows ? rest : c->block_rows), dw);
    }
}

static void add_blocks_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const norm_call *c = ctx;
    int64_t last = end * RMSNORM_DW_MULTIPLE;
    c->add_blocks(&c->blocks, begin * RMSNORM_DW_MULTIPLE, last < c->rows.width ? last : c->rows.width);
}

static tn_status backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *in = call->in, *up = call->grads->out, *to = call->grads->in;
    const norm_tensor plain[] = {
        {NORM_X, &in[0]}, {NORM_DY, &up[0]}, {NORM_DX, &to[0]}, {NORM_GATE, &in[1]}, {NORM_DGATE, &to[1]}};
    const norm_tensor add[] = {{NORM_X, &in[0]},  {NORM_R, &in[1]},  {NORM_DSUM, &up[0]},
                               {NORM_DY, &up[1]}, {NORM_DX, &to[0]}, {NORM_DR, &to[1]}};
    bool gated = call->site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED;
    norm_call c =
        call->op == TN_OP_ADD_RMS_NORM ? norm_call_of(call, add, 6) : norm_call_of(call, plain, gated ? 5 : 3);
    c.fn = (rmsnorm_fn *)(uintptr_t)call->plan->user[USER_BACKWARD];
    c.add_blocks = (rmsnorm_blocks_fn *)(uintptr_t)call->plan->user[USER_ADD_BLOCKS];
    int64_t count = c.walk.count, most = (count + BLOCKS - 1) / BLOCKS, step = blocks_step(c.walk.width);
    c.block_rows = most > BLOCK_ROWS ? most : BLOCK_ROWS;
    c.blocks =
        (rmsnorm_blocks){.count = (count + c.block_rows - 1) / c.block_rows, .step = step, .dtype = c.rows.dtype};
    /* No gradient of y is one of zeros. */
    c.rows.row[NORM_DY] = memset(call->scratch, 0, (size_t)step * sizeof(float));
    const tn_param *weight = &call->grads->param[TN_ROLE_WEIGHT];
    if (weight->count && weight->tensors->data) {
        c.blocks.dw = weight->tensors->data;
        c.blocks.sums = c.sums = (float *)call->scratch + step;
    }
    divide(&c, c.blocks.count, c.block_rows * c.row_bytes, backward_piece);
    if (c.sums)
        divide(&c, step / RMSNORM_DW_MULTIPLE, c.blocks.count * RMSNORM_DW_MULTIPLE * (int64_t)sizeof(float) + 1,
               add_blocks_piece);
    return TN_OK;
}

#define DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define PLAIN_NORMS                                                                                                    \
    (TN_TAKES(TN_NORM_W) | TN_TAKES(TN_NORM_1_PLUS_W) | TN_TAKES(TN_NORM_W_F32) | TN_TAKES(TN_NORM_NO_WEIGHT))

/* Tolerances: README.md derives them. */
#define IMPL(number, norms, narrow)                                                                                    \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = number,                                                                         \
        .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_NORM] = norms}},              \
        .tolerance = {.ulps_f32 = 8, .ulps_bf16 = narrow, .ulps_f16 = narrow},                                         \
        .gradient_tolerance = {.ulps_f32 = 64, .ulps_bf16 = 8, .ulps_f16 = 8}, .plan = plan, .forward = forward,       \
        .traits = TN_SAME_BITS, .backward = backward                                                                   \
    }
static const tn_impl impls[] = {
    IMPL(TN_OP_RMS_NORM, PLAIN_NORMS, 3.1),
    IMPL(TN_OP_RMS_NORM, TN_TAKES(TN_NORM_W_GATED), 4.1),
    IMPL(TN_OP_ADD_RMS_NORM, PLAIN_NORMS, 3.1),
};

static const tn_kernel kernels[] = {
    {.size = sizeof(tn_kernel),
     .id = "npu_fused_rmsnorm",
     .version = "1.2.0",
     .summary = "RMS norm in one pass over memory, with the residual where a layer adds it first",
     .device = "cpu",
     .priority = 0,
     .impls = impls,
     .impl_count = sizeof impls / sizeof *impls},
    {.size = sizeof(tn_kernel),
     .id = "npu_fused_rmsnorm",
     .version = "1.2.0",
     .summary = "RMS norm by aclnnRmsNorm, with the residual where a layer adds it first",
     .device = "npu",
     .priority = 0,
     .impls = rmsnorm_ascend_impls,
     .impl_count = RMSNORM_ASCEND_IMPLS},
};

TN_PLUGIN("npu_rmsnorm", "1.2.0", .kernels = kernels, .kernel_count = sizeof kernels / sizeof *kernels);
