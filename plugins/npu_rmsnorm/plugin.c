/* The kernel npu_fused_rmsnorm on the CPU: RMS_NORM and ADD_RMS_NORM. */
#include <math.h>
#include <tenon/kernel.h>

#include "rmsnorm.h"
#include "rows.h"

/* plan->user: what plan found out for forward. */
enum { USER_FUNCTION = 0 };

/* Rows are given to a thread in pieces of about this many bytes of input: below two of them, waking the team costs more
 * than it saves (README.md has the measurement). */
static const int64_t PIECE_BYTES = 64 * 1024;

static const char *const declined_weight = "weight: not one dense tensor of the row's width in the site's dtype";

static bool weight_fits(const tn_site *site)
{
    const tn_param *w = &site->param[TN_ROLE_WEIGHT];
    if (site->meaning[TN_AXIS_NORM] == TN_NORM_NO_WEIGHT)
        return true;
    return w->count == 1 && w->tensors->ndim == 1 && w->tensors->shape[0] == site->dim[TN_DIM_WIDTH] &&
           w->tensors->stride[0] == 1 && (int32_t)w->tensors->dtype == site->meaning[TN_AXIS_DTYPE];
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    rmsnorm_kernels table;
    rmsnorm_kernels_init(&table, tn_cpu_flags());
    int32_t dtype = site->meaning[TN_AXIS_DTYPE];
    if (!weight_fits(site))
        return tn_fail(err, TN_DECLINED, site->path, "%s", declined_weight);
    if (!(site->num[TN_NUM_EPS] >= 0 && isfinite(site->num[TN_NUM_EPS])))
        return tn_fail(err, TN_DECLINED, site->path, "eps: site has %g, kernel takes 0 and more",
                       site->num[TN_NUM_EPS]);
    rmsnorm_fn *fn = site->op == TN_OP_ADD_RMS_NORM ? table.add_norm[dtype] : table.norm[dtype];
    plan->user[USER_FUNCTION] = (uint64_t)(uintptr_t)fn;
    return TN_OK;
}

typedef struct norm_call {
    rmsnorm_fn *fn;
    rmsnorm_rows rows; /* all but the pointers */
    rows walk;         /* x, y, then gate; or x, y, r, sum */
    bool add;
} norm_call;

static void norm_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const norm_call *c = ctx;
    rmsnorm_rows a = c->rows;
    char *at[ROWS_TENSORS] = {NULL};
    for (int64_t row = begin; row < end; row += a.count) {
        a.count = rows_run(&c->walk, row, end, at);
        a.x = at[0];
        a.y = at[1];
        if (c->add) {
            a.r = at[2];
            a.sum = at[3];
        } else {
            a.gate = at[2];
        }
        c->fn(&a);
    }
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_site *site = call->site;
    bool add = call->op == TN_OP_ADD_RMS_NORM, gated = site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED;
    const tn_tensor *tensors[ROWS_TENSORS] = {&call->in[0], add ? &call->out[1] : &call->out[0], &call->in[1],
                                              &call->out[0]};
    norm_call c = {.fn = (rmsnorm_fn *)(uintptr_t)call->plan->user[USER_FUNCTION], .add = add};
    c.walk = rows_of(tensors, add ? 4 : gated ? 3 : 2);
    int32_t last = c.walk.ndim - 1;
    c.rows = (rmsnorm_rows){.x_step = c.walk.step[0][last],
                            .y_step = c.walk.step[1][last],
                            .r_step = c.walk.step[2][last],
                            .gate_step = c.walk.step[2][last],
                            .sum_step = c.walk.step[3][last],
                            .width = c.walk.width,
                            .eps = (float)site->num[TN_NUM_EPS],
                            .norm = (tn_norm)site->meaning[TN_AXIS_NORM]};
    if (site->param[TN_ROLE_WEIGHT].count)
        c.rows.weight = site->param[TN_ROLE_WEIGHT].tensors->data;
    int64_t row_bytes = c.walk.width * (int64_t)tn_dtype_size(call->in[0].dtype);
    if (c.walk.count * row_bytes < 2 * PIECE_BYTES)
        norm_piece(&c, 0, c.walk.count, 0);
    else
        tn_parallel_for(c.walk.count, PIECE_BYTES / row_bytes + 1, norm_piece, &c);
    return TN_OK;
}

#define DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define PLAIN_NORMS                                                                                                    \
    (TN_TAKES(TN_NORM_W) | TN_TAKES(TN_NORM_1_PLUS_W) | TN_TAKES(TN_NORM_W_F32) | TN_TAKES(TN_NORM_NO_WEIGHT))

static const tn_dim_rule dims[] = {{.dim = TN_DIM_WIDTH, .min = 1}};

/* Two last places for a rounding in the middle that falls to the other side and the last one that follows it, three
 * when there is one rounding more; see README.md. */
static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_RMS_NORM,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_NORM] = PLAIN_NORMS},
               .dims = dims,
               .dim_count = 1},
     .tolerance = {.ulps_f32 = 8, .ulps_bf16 = 4, .ulps_f16 = 4},
     .plan = plan,
     .forward = forward},
    {.size = sizeof(tn_impl),
     .op = TN_OP_RMS_NORM,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W_GATED)},
               .dims = dims,
               .dim_count = 1},
     .tolerance = {.ulps_f32 = 8, .ulps_bf16 = 6, .ulps_f16 = 6},
     .plan = plan,
     .forward = forward},
    {.size = sizeof(tn_impl),
     .op = TN_OP_ADD_RMS_NORM,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_NORM] = PLAIN_NORMS},
               .dims = dims,
               .dim_count = 1},
     .tolerance = {.ulps_f32 = 8, .ulps_bf16 = 4, .ulps_f16 = 4},
     .plan = plan,
     .forward = forward},
};

static const tn_kernel kernels[] = {
    {.size = sizeof(tn_kernel),
     .id = "npu_fused_rmsnorm",
     .version = "1.0.0",
     .summary = "RMS norm in one pass over memory, with the residual where a layer adds it first",
     .device = TN_DEVICE_CPU,
     .priority = 0,
     .impls = impls,
     .impl_count = sizeof impls / sizeof *impls},
};

TN_PLUGIN("npu_rmsnorm", "1.0.0", .kernels = kernels, .kernel_count = 1);
