/* LoRA of experts. Rows e R + k of A and columns k E + e of B are those of expert e, R the rank:
 *
 *     h = s A_e x, beside = B_e h;     dB_e = g^T h, u = s B_e^T g, dA_e = u^T x, dx = A_e^T u
 *
 * with the rows of one expert in x, h, g and u. Experts share the threads; each has its own rows of all that is made.
 */
#include "eager/experts_adapter.h"

#include "eager/rows.h"

/* One pair of factors: [E rank, in] and [out, rank E]. a NULL: there is none. */
typedef struct pair {
    const tn_tensor *a, *b;
    tn_role role;
    int64_t rank, in, out;
    float scale;
} pair;

static pair pair_of(const experts_job *e, tn_role role)
{
    const tn_tensor *a = rows_param(e->site, TN_ROLE_A_OF(role)), *b = rows_param(e->site, TN_ROLE_B_OF(role));
    if (!a || !b)
        return (pair){0};
    return (pair){.a = a,
                  .b = b,
                  .role = role,
                  .rank = a->shape[0] / e->expert_count,
                  .in = a->shape[1],
                  .out = b->shape[0],
                  .scale = (float)e->site->num[role == TN_ROLE_DOWN ? TN_NUM_SCALE_DOWN : TN_NUM_SCALE]};
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void experts_adapter_layout(experts_job *e, char *base, size_t *used, bool backward)
{
    if (!(e->site->features & TN_HAS_ADAPTER))
        return;
    static const tn_role roles[] = {TN_ROLE_GATE_UP, TN_ROLE_GATE, TN_ROLE_UP, TN_ROLE_DOWN};
    int64_t rank = 1, widest = larger(e->hidden, 2 * e->inter);
    for (int i = 0; i < 4; i++)
        rank = larger(rank, pair_of(e, roles[i]).rank);
    size_t slots = (size_t)e->slots, row = sizeof(float) * slots;
    experts_beside *s = &e->beside;
    s->gate_up = (float *)(void *)rows_take(base, used, row * 2 * (size_t)e->inter);
    s->down = (float *)(void *)rows_take(base, used, row * (size_t)e->hidden);
    s->x = (float *)(void *)rows_take(base, used, row * (size_t)widest);
    s->g = (float *)(void *)rows_take(base, used, backward ? row * (size_t)widest : 0);
    s->h = (float *)(void *)rows_take(base, used, row * (size_t)rank);
    s->u = (float *)(void *)rows_take(base, used, backward ? row * (size_t)rank : 0);
    s->factor_bytes = rows_align((size_t)(rank * widest) * sizeof(float));
    s->factors = rows_take(base, used, (backward ? 3 : 2) * s->factor_bytes * (size_t)tn_thread_count());
    s->there = true;
}

/* ---- one expert ------------------------------------------------------------------------------------------------- */

typedef struct job {
    const experts_job *e;
    pair p;
    const char *x; /* [slots, in] in type                                                          */
    /* Forward: [slots, out] becomes B h, columns of rows of `stride`. Backward: read, the gradient of that.  */
    float *y;
    int64_t stride;
    const tn_param *da, *db; /* backward: written; count 0: not wanted                             */
    float *dx;               /* [slots, in]: added to                                              */
} job;

/* A_e, dense, in f32. */
static void read_a(const pair *p, int64_t expert, float *a)
{
    for (int64_t k = 0; k < p->rank; k++)
        convert_to_f32(rows_at(p->a, expert * p->rank + k), p->a->dtype, a + k * p->in, p->in);
}

/* B_e, [out, rank]. */
static void read_b(const experts_job *e, const pair *p, int64_t expert, float *b)
{
    size_t size = tn_dtype_size(p->b->dtype);
    for (int64_t o = 0; o < p->out; o++)
        for (int64_t k = 0; k < p->rank; k++)
            convert_to_f32(rows_at(p->b, o) + (size_t)(k * e->expert_count + expert) * size, p->b->dtype,
                           b + o * p->rank + k, 1);
}

static void scale(float *x, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= by;
}

/* The rows of an expert and its factors in f32, and h. */
static void begin_expert(const job *j, gemm_context *context, int64_t expert, float *a, float *b)
{
    const experts_job *e = j->e;
    const pair *p = &j->p;
    int64_t first = e->start[expert], n = e->start[expert + 1] - first;
    float *x = e->beside.x + first * p->in, *h = e->beside.h + first * p->rank;
    convert_to_f32(j->x + (size_t)(first * p->in) * tn_dtype_size(e->type), e->type, x, n * p->in);
    read_a(p, expert, a);
    read_b(e, p, expert, b);
    gemm_dense(context, GEMM_NT, n, p->rank, p->in, x, a, h);
    scale(h, n * p->rank, p->scale);
}

static void forward_experts(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const job *j = ctx;
    const experts_job *e = j->e;
    const pair *p = &j->p;
    float *a = (float *)(void *)(e->beside.factors + 2 * (size_t)thread * e->beside.factor_bytes);
    float *b = (float *)(void *)((char *)a + e->beside.factor_bytes);
    gemm_context *context = gemm_acquire();
    for (int64_t expert = begin; expert < end; expert++) {
        int64_t first = e->start[expert], n = e->start[expert + 1] - first;
        if (n == 0)
            continue;
        begin_expert(j, context, expert, a, b);
        gemm_shape shape = {.type = TN_F32,
                            .w_type = TN_F32,
                            .form = GEMM_NT,
                            .m = n,
                            .n = p->out,
                            .k = p->rank,
                            .lda = p->rank,
                            .ldw = p->rank,
                            .ldc = j->stride};
        gemm_run(context, &shape, e->beside.h + first * p->rank, b, j->y + first * j->stride, NULL);
    }
    gemm_release(context);
}

static void forward(const experts_job *e, tn_role role, const char *x, float *y, int64_t stride)
{
    job j = {.e = e, .p = pair_of(e, role), .x = x, .y = y, .stride = stride};
    if (j.p.a)
        tn_parallel_for(e->expert_count, 1, forward_experts, &j);
}

void experts_adapter_gate_up(const experts_job *e)
{
    if (!e->beside.there)
        return;
    float *to = e->beside.gate_up;
    memset(to, 0, (size_t)(e->slots * 2 * e->inter) * sizeof *to);
    forward(e, TN_ROLE_GATE_UP, e->gathered, to, 2 * e->inter);
    forward(e, TN_ROLE_GATE, e->gathered, to, 2 * e->inter);
    forward(e, TN_ROLE_UP, e->gathered, to + e->inter, 2 * e->inter);
}

void experts_adapter_down(const experts_job *e)
{
    if (!e->beside.there)
        return;
    memset(e->beside.down, 0, (size_t)(e->slots * e->hidden) * sizeof(float));
    forward(e, TN_ROLE_DOWN, e->activated, e->beside.down, e->hidden);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void write_a(const pair *p, const tn_param *to, int64_t expert, const float *a)
{
    const tn_tensor *t = to->tensors;
    for (int64_t k = 0; to->count > 0 && k < p->rank; k++)
        convert_from_f32(a + k * p->in, t->dtype, rows_at(t, expert * p->rank + k), p->in);
}

static void write_b(const experts_job *e, const pair *p, const tn_param *to, int64_t expert, const float *b)
{
    const tn_tensor *t = to->tensors;
    for (int64_t o = 0; to->count > 0 && o < p->out; o++)
        for (int64_t k = 0; k < p->rank; k++)
            convert_from_f32(b + o * p->rank + k, t->dtype,
                             rows_at(t, o) + (size_t)(k * e->expert_count + expert) * tn_dtype_size(t->dtype), 1);
}

static void backward_experts(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const job *j = ctx;
    const experts_job *e = j->e;
    const pair *p = &j->p;
    char *mine = e->beside.factors + 3 * (size_t)thread * e->beside.factor_bytes;
    float *a = (float *)(void *)mine, *b = (float *)(void *)(mine + e->beside.factor_bytes);
    float *d = (float *)(void *)(mine + 2 * e->beside.factor_bytes);
    gemm_context *context = gemm_acquire();
    for (int64_t expert = begin; expert < end; expert++) {
        int64_t first = e->start[expert], n = e->start[expert + 1] - first;
        float *x = e->beside.x + first * p->in, *h = e->beside.h + first * p->rank;
        float *u = e->beside.u + first * p->rank, *g = j->y + first * p->out, *dx = j->dx + first * p->in;
        if (n == 0) { /* nobody chose it                                                             */
            memset(d, 0, e->beside.factor_bytes);
            write_a(p, j->da, expert, d);
            write_b(e, p, j->db, expert, d);
            continue;
        }
        begin_expert(j, context, expert, a, b);
        gemm_dense(context, GEMM_TN, p->out, p->rank, n, g, h, d);
        write_b(e, p, j->db, expert, d);
        gemm_dense(context, GEMM_NN, n, p->rank, p->out, g, b, u);
        scale(u, n * p->rank, p->scale);
        gemm_dense(context, GEMM_TN, p->rank, p->in, n, u, x, d);
        write_a(p, j->da, expert, d);
        gemm_dense(context, GEMM_NN, n, p->in, p->rank, u, a, x);
        for (int64_t i = 0; i < n * p->in; i++)
            dx[i] += x[i];
    }
    gemm_release(context);
}

/* g: of what the pair gave, [slots, out]. */
static void backward(const experts_job *e, tn_role role, const tn_grads *grads, const char *x, float *g, float *dx)
{
    job j = {.e = e,
             .p = pair_of(e, role),
             .x = x,
             .y = g,
             .da = &grads->param[TN_ROLE_A_OF(role)],
             .db = &grads->param[TN_ROLE_B_OF(role)],
             .dx = dx};
    if (j.p.a)
        tn_parallel_for(e->expert_count, 1, backward_experts, &j);
}

void experts_adapter_down_grads(const experts_job *e, const tn_grads *grads, const char *upstream)
{
    if (!e->beside.there)
        return;
    memset(e->beside.gate_up, 0, (size_t)(e->slots * e->inter) * sizeof(float));
    convert_to_f32(upstream, e->type, e->beside.g, e->slots * e->hidden);
    backward(e, TN_ROLE_DOWN, grads, e->activated, e->beside.g, e->beside.gate_up);
}

/* Gradients of gate and up, side by side as GATE_UP has them. */
static void both_grads(const experts_job *e, float *g)
{
    size_t size = tn_dtype_size(e->type);
    for (int64_t row = 0; row < e->slots; row++, g += 2 * e->inter) {
        if (e->pairs) {
            convert_to_f32(e->gate + (size_t)(row * 2 * e->inter) * size, e->type, g, 2 * e->inter);
            continue;
        }
        convert_to_f32(e->gate + (size_t)(row * e->inter) * size, e->type, g, e->inter);
        convert_to_f32(e->up + (size_t)(row * e->inter) * size, e->type, g + e->inter, e->inter);
    }
}

void experts_adapter_gate_up_grads(const experts_job *e, const tn_grads *grads)
{
    if (!e->beside.there)
        return;
    float *dx = e->beside.down, *g = e->beside.g;
    memset(dx, 0, (size_t)(e->slots * e->hidden) * sizeof *dx);
    if (pair_of(e, TN_ROLE_GATE_UP).a) {
        both_grads(e, g);
        backward(e, TN_ROLE_GATE_UP, grads, e->gathered, g, dx);
    }
    if (e->pairs) /* they have no factors of their own                                               */
        return;
    convert_to_f32(e->gate, e->type, g, e->slots * e->inter);
    backward(e, TN_ROLE_GATE, grads, e->gathered, g, dx);
    convert_to_f32(e->up, e->type, g, e->slots * e->inter);
    backward(e, TN_ROLE_UP, grads, e->gathered, g, dx);
}
