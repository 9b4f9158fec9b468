/* Products of matrices: BatchMatMul, Matmul. Sums in 32 bits, in order; one rounding at the end. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

void ops_product(const float *a, const float *b, float *c, int64_t rows, int64_t inner, int64_t columns)
{
    memset(c, 0, (size_t)(rows * columns) * sizeof *c);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < inner; k++) {
            float factor = a[r * inner + k];
            for (int64_t n = 0; n < columns; n++)
                c[r * columns + n] += factor * b[k * columns + n];
        }
}

/* A matrix with batch dimensions before it; from a vector, a matrix of one row or column. */
static void as_matrix(sim_tensor *t, bool left)
{
    if (t->rank != 1)
        return;
    t->rank = 2;
    int64_t length = t->shape[0], step = t->strides[0];
    t->shape[0] = left ? 1 : length;
    t->strides[0] = left ? 0 : step;
    t->shape[1] = left ? length : 1;
    t->strides[1] = left ? step : 0;
}

/* Shapes of one product: batch is what both broadcast to. false: they do not fit. */
typedef struct product {
    sim_tensor a, b;
    int batch_rank;
    int64_t batch[SIM_RANK_MAX], rows, inner, columns;
} product;

static bool shape_of(const sim_tensor *self, const sim_tensor *mat2, product *p)
{
    p->a = *self;
    p->b = *mat2;
    as_matrix(&p->a, true);
    as_matrix(&p->b, false);
    int ra = p->a.rank, rb = p->b.rank;
    if (ra < 2 || rb < 2 || p->a.shape[ra - 1] != p->b.shape[rb - 2])
        return false;
    p->rows = p->a.shape[ra - 2];
    p->inner = p->a.shape[ra - 1];
    p->columns = p->b.shape[rb - 1];
    p->batch_rank = (ra > rb ? ra : rb) - 2;
    for (int i = 0; i < p->batch_rank; i++) {
        int ia = i - (p->batch_rank + 2 - ra), ib = i - (p->batch_rank + 2 - rb);
        int64_t na = ia < 0 ? 1 : p->a.shape[ia], nb = ib < 0 ? 1 : p->b.shape[ib];
        if (na != nb && na != 1 && nb != 1)
            return false;
        p->batch[i] = na == 1 ? nb : na;
    }
    return true;
}

static float *load_batched(const product *p, const sim_tensor *t)
{
    int64_t shape[SIM_RANK_MAX];
    sim_tensor repeated;
    memcpy(shape, p->batch, sizeof shape);
    shape[p->batch_rank] = t->shape[t->rank - 2];
    shape[p->batch_rank + 1] = t->shape[t->rank - 1];
    sim_broadcast(t, p->batch_rank + 2, shape, &repeated);
    return sim_load(&repeated);
}

/* What a product of batches reads has to be contiguous, or a plain transposition: anything else is copied first. */
static void count_copy(sim_op *op, const sim_tensor *t)
{
    if (t->rank > 2 && !sim_contiguous(t) && !sim_transposed(t))
        op->idle_bytes -= 2 * sim_bytes(t);
}

static int run_matmul(sim_op *op)
{
    const sim_tensor *out = op->tensors[2];
    product p;
    shape_of(op->tensors[0], op->tensors[1], &p);
    count_copy(op, op->tensors[0]);
    count_copy(op, op->tensors[1]);
    float *a = load_batched(&p, &p.a), *b = load_batched(&p, &p.b);
    float *c = sim_allocate((size_t)sim_elements(out) * sizeof *c);
    for (int64_t i = 0, count = sim_product(p.batch, 0, p.batch_rank); i < count; i++)
        ops_product(a + i * p.rows * p.inner, b + i * p.inner * p.columns, c + i * p.rows * p.columns, p.rows, p.inner,
                    p.columns);
    sim_store(out, c);
    free(a);
    free(b);
    free(c);
    return 0;
}

/* 0 keeps types, 1 may lower FP32, 2 is FP16 (not with BF16), 3 is HF32 (FP32 only). Results here are FP32's. */
static void check_cube(sim_op *op, int8_t cube, aclDataType type)
{
    if (cube < 0 || cube > 3)
        sim_fault(op, 161002, "cubeMathType %d", cube);
    if (cube == 2 && type == ACL_BF16)
        sim_fault(op, 161002, "cubeMathType 2 is not for BF16");
    if (cube == 3 && type != ACL_FLOAT)
        sim_fault(op, 161002, "cubeMathType 3 is for FLOAT alone");
    if (cube == 0 && type == ACL_FLOAT && sim_soc_of() == SIM_310P)
        sim_fault(op, 161002, "cubeMathType 0 with FLOAT is refused on this chip");
}

/* The vendor also has FLOAT16 with FLOAT; which type comes out is not in the documents at hand: equal types here. */
static uint64_t check(sim_op *op, const sim_tensor *a, const sim_tensor *b, const sim_tensor *c, int8_t cube, int least,
                      int most)
{
    product p;
    int64_t shape[SIM_RANK_MAX + 2];
    sim_want_rank(op, 161002, a, least, most);
    sim_want_rank(op, 161002, b, least, most);
    check_cube(op, cube, a->type);
    if (!op->code && !shape_of(a, b, &p))
        sim_fault(op, 161002, "the shapes of self and mat2 do not fit");
    if (!op->code) {
        int rank = p.batch_rank;
        memcpy(shape, p.batch, sizeof p.batch);
        if (a->rank > 1)
            shape[rank++] = p.rows;
        if (b->rank > 1)
            shape[rank++] = p.columns;
        sim_want_shape(op, 161002, c, rank, shape);
    }
    return sim_runs(op, run_matmul, OPS_WORKSPACE);
}

SIM_RULE(aclnnMatmul, ACL_PRODUCT)
{
    return check(op, self, mat2, out, cubeMathType, 1, 6);
}

SIM_RULE(aclnnBatchMatMul, ACL_PRODUCT)
{
    return check(op, self, mat2, out, cubeMathType, 3, 3);
}
