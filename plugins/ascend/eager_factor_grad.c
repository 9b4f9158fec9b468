/* Gradients of what the CPU has none of, since no contract asks for them: ADD, SCALE, ROW_SCALE and EMBEDDING. */
#include "eager_grad.h"
#include "operators.h"
#include "scalar.h"

#include <inttypes.h>
#include <stdlib.h>

static void add(npu_run *r)
{
    const tn_call *call = r->call;
    tn_tensor g = grad_wide(r, &call->grads->out[0], &call->in[0]);
    grad_store(r, &g, &call->grads->in[0]);
    grad_store(r, &g, &call->grads->in[1]);
}

static void scale(npu_run *r)
{
    const tn_call *call = r->call;
    tn_tensor g = grad_wide(r, &call->grads->out[0], &call->in[0]);
    npu_multiply_number(r, g, (float)call->site->num[TN_NUM_SCALE], g);
    grad_store(r, &g, &call->grads->in[0]);
}

/* dx = g s, ds the sum of g x over the row. */
static void row_scale(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *s = &call->in[1], *ds = &call->grads->in[1];
    tn_tensor g = grad_wide(r, &call->grads->out[0], &call->in[0]), x = grad_wide(r, &call->in[0], &call->in[0]);
    tn_tensor factors = npu_view(s->data, TN_F32, 2, (int64_t[]){s->shape[0], 1}, (int64_t[]){s->stride[0], 1});
    tn_tensor sums = npu_take(r, TN_F32, 2, factors.shape);
    npu_multiply(r, x, g, x);
    grad_sums(r, &x, &sums);
    npu_multiply(r, g, factors, g);
    sums.ndim = 1;
    grad_store(r, &sums, ds);
    grad_store(r, &g, &call->grads->in[0]);
}

/* ---- EMBEDDING ---------------------------------------------------------------------------------------------- */

/* Ids are looked at before they are used: forward has, but nobody says that it was called. */
static void check_ids(npu_run *r, const tn_tensor *ids, int64_t rows)
{
    void *owned = NULL;
    const int64_t *from = r->measuring ? NULL : npu_host_copy(r, ids, &owned);
    for (int64_t i = 0; from && i < ids->shape[0] && r->status == TN_OK; i++) {
        int64_t id = from[i * ids->stride[0]];
        if (id < 0 || id >= rows)
            r->status =
                tn_fail(r->err, TN_E_INPUT, r->call->site->path,
                        "token %" PRId64 " has id %" PRId64 ", the vocabulary has 0 to %" PRId64, i, id, rows - 1);
    }
    free(owned);
}

/* Row i of the table has the sum of g over the tokens with id i, times the factor of forward, which is rounded to the
 * table's type. The order of the sums is the chip's. */
static void embedding(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *table = npu_param(call->site, TN_ROLE_WEIGHT), *to = grad_param(r, TN_ROLE_WEIGHT);
    int64_t tokens = tn_tensor_count(&call->in[0]), width = table->shape[1];
    double factor = call->site->num[TN_NUM_SCALE];
    tn_tensor ids = npu_view(call->in[0].data, TN_I64, 1, &tokens, NULL);
    tn_tensor like = npu_view(NULL, TN_F32, 2, (int64_t[]){tokens, width}, NULL);
    tn_tensor dense = npu_take_like(r, TN_I64, ids), g = npu_take_like(r, TN_F32, like);
    tn_tensor zeros = npu_take_like(r, TN_F32, *table), sums = npu_take_like(r, TN_F32, *table);
    if (!to || r->measuring)
        return;
    ids.stride[0] = call->in[0].ndim > 0 ? call->in[0].stride[call->in[0].ndim - 1] : 1;
    check_ids(r, &ids, table->shape[0]);
    tn_tensor as_given = npu_view(g.data, TN_F32, call->grads->out[0].ndim, call->grads->out[0].shape, NULL);
    npu_copy(r, call->grads->out[0], as_given);
    npu_copy(r, ids, dense);
    npu_fill(r, zeros, 0);
    npu_add_rows(r, zeros, dense, g, factor != 0 ? scalar_round((float)factor, table->dtype) : 1, sums);
    npu_copy(r, sums, *to);
}

static tn_status embedding_declines(const tn_call *call, tn_error *err)
{
    if (call->site->features & TN_HAS_PARTIAL)
        return tn_fail(err, TN_DECLINED, "npu", "the gradients of a partial table are not there yet");
    return npu_needs("aclnnIndexAdd", err);
}

const ascend_gradient ascend_add_grad = {.op = TN_OP_ADD, .body = add};
const ascend_gradient ascend_scale_grad = {.op = TN_OP_SCALE, .body = scale};
const ascend_gradient ascend_row_scale_grad = {.op = TN_OP_ROW_SCALE, .body = row_scale};
const ascend_gradient ascend_embedding_grad = {
    .op = TN_OP_EMBEDDING, .body = embedding, .declines = embedding_declines};
