/* LINEAR, EMBEDDING and EMBEDDING_BAG: what reads a matrix of weights. */
#include "operators.h"
#include "queue.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- LINEAR ----------------------------------------------------------------------------------------------- */

/* y = x w^T + b. The weight [out,in] is read as a transposed view. The sum of a narrow product and its bias has two
 * roundings where the CPU's has one. */
static void linear(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *w = npu_param(call->site, TN_ROLE_WEIGHT), *b = npu_param(call->site, TN_ROLE_BIAS);
    tn_tensor x, y;
    if (!w || !npu_rows(&call->in[0], &x) || !npu_rows(&call->out[0], &y)) {
        r->status = tn_fail(r->err, TN_E_INTERNAL, call->site->path,
                            "a linear layer without its weight, or whose rows do not follow one stride");
        return;
    }
    tn_dtype type = x.dtype == w->dtype ? x.dtype : TN_F32;
    x = npu_in_type(r, type, &x);
    tn_tensor transposed = npu_transposed(npu_in_type(r, type, w));
    tn_tensor product = npu_take_like(r, type, y);
    if (!r->measuring && y.dtype == type && ascend_is_dense(&y))
        product = y;
    npu_matmul(r, x, transposed, product);
    if (b)
        npu_add(r, product, *b, 1, product);
    npu_settle(r, product, y);
}

/* ---- EMBEDDING -------------------------------------------------------------------------------------------- */

/* Ids are looked at before they are used: the device does not. Where a table is partial, those beyond it count as 0 and
 * go up again. */
static void check_ids(npu_run *r, const tn_tensor *ids, int64_t rows, const tn_tensor *changed)
{
    bool partial = r->call->site->features & TN_HAS_PARTIAL, any = false;
    int64_t count = tn_tensor_count(ids), step = ids->stride[0];
    void *owned = NULL;
    const int64_t *from = npu_host_copy(r, ids, &owned);
    int64_t *to = partial && from ? malloc((size_t)count * sizeof *to) : NULL;
    if (partial && from && !to)
        r->status = tn_fail(r->err, TN_E_MEMORY, "npu", "out of memory");
    for (int64_t i = 0; from && i < count && r->status == TN_OK; i++) {
        int64_t id = from[i * step];
        bool beyond = id >= rows;
        if (id < 0 || (beyond && !partial))
            r->status = tn_fail(r->err, TN_E_INPUT, r->call->site->path,
                                "token %" PRId64 " has id %" PRId64 ", the vocabulary has 0 to %" PRId64
                                "; use the model's own tokenizer",
                                i, id, rows - 1);
        if (to)
            to[i] = beyond ? 0 : id;
        any |= beyond;
    }
    if (partial && any && r->status == TN_OK)
        r->status = npu_upload(r->queue, changed->data, to, (size_t)count * sizeof *to, r->err);
    else if (partial)
        npu_copy(r, *ids, *changed);
    free(to);
    free(owned);
}

/* The factor is rounded to the table's type by way of a tensor of that type, and the products in f32 are rounded once.
 */
static void multiply(npu_run *r, const tn_tensor *rows, double factor, const tn_tensor *y)
{
    tn_tensor narrow = npu_take(r, rows->dtype, 1, (int64_t[]){1}), number = npu_take(r, TN_F32, 1, (int64_t[]){1});
    tn_tensor wide = npu_take_like(r, TN_F32, *rows);
    npu_fill(r, narrow, (float)factor);
    npu_copy(r, narrow, number);
    npu_copy(r, *rows, wide);
    npu_multiply(r, wide, number, wide);
    npu_copy(r, wide, *y);
}

static void embedding(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *table = npu_param(call->site, TN_ROLE_WEIGHT), *in = &call->in[0];
    tn_tensor ids = tn_tensor_dense(in->data, TN_I64, 1, (int64_t[]){tn_tensor_count(in)}), y;
    if (!table || !npu_rows(&call->out[0], &y)) {
        r->status = tn_fail(r->err, TN_E_INTERNAL, call->site->path,
                            "an embedding without its table, or whose rows do "
                            "not follow one stride; report this defect");
        return;
    }
    ids.stride[0] = in->ndim > 0 ? in->stride[in->ndim - 1] : 1;
    bool partial = call->site->features & TN_HAS_PARTIAL;
    tn_tensor changed = npu_take(r, TN_I64, 1, (int64_t[]){partial ? ids.shape[0] : 0});
    if (!r->measuring)
        check_ids(r, &ids, table->shape[0], &changed);
    double factor = call->site->num[TN_NUM_SCALE];
    tn_tensor rows = npu_take_like(r, table->dtype, y);
    if (!r->measuring && factor == 0 && y.dtype == table->dtype && ascend_is_dense(&y))
        rows = y;
    npu_gather(r, *table, partial ? changed : ids, rows);
    if (factor != 0)
        multiply(r, &rows, factor, &y);
    else
        npu_settle(r, rows, y);
}

/* ---- EMBEDDING_BAG ---------------------------------------------------------------------------------------- */

/* sum += weight rows of the table, by the ids and weights of one tap. */
static void add_tap(npu_run *r, const tn_tensor *table, int64_t tap, const tn_tensor *sum)
{
    tn_tensor places = npu_part(r->call->in[0], tap, 1, 1), weights = npu_part(r->call->in[1], tap, 1, 1);
    tn_tensor ids = npu_take(r, TN_I64, 2, places.shape), rows = npu_take_like(r, table->dtype, *sum);
    tn_tensor wide = npu_take_like(r, TN_F32, *sum);
    npu_copy(r, places, ids);
    ids.ndim = 1;
    npu_gather(r, *table, ids, rows);
    npu_copy(r, rows, wide);
    npu_multiply(r, wide, weights, wide);
    npu_add(r, *sum, wide, 1, *sum);
}

/* Products and sums in f32, one rounding. */
static void embedding_bag(npu_run *r)
{
    const tn_tensor *table = npu_param(r->call->site, TN_ROLE_WEIGHT), *y = &r->call->out[0];
    tn_tensor sum = npu_take_like(r, TN_F32, *y);
    npu_fill(r, sum, 0);
    for (int64_t tap = 0; table && tap < r->call->in[0].shape[1]; tap++)
        add_tap(r, table, tap, &sum);
    npu_copy(r, sum, *y);
}

const ascend_operation ascend_embedding_bag = {
    .op = TN_OP_EMBEDDING_BAG, .supports = npu_supports_weights, .body = embedding_bag};
const ascend_operation ascend_linear = {.op = TN_OP_LINEAR, .supports = npu_supports_weights, .body = linear};
const ascend_operation ascend_embedding = {.op = TN_OP_EMBEDDING, .supports = npu_supports_weights, .body = embedding};
