/* Made-up upstream gradients, and memory for the others. */
#include "check/gradients.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

static tn_tensor dense_like(const tn_tensor *t)
{
    return tn_tensor_dense(NULL, t->dtype, t->ndim, t->shape);
}

/* What gradients come from: what must be given, and is no index. */
static bool has_upstream(const op_row *row, const tn_call *call, int output)
{
    return tensor_is_float(call->out[output].dtype) && !row->out[output].optional;
}

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory while checking gradients; free some memory");
}

/* ---- shapes ------------------------------------------------------------------------------------------------- */

static tn_status shape_params(gradients *g, const tn_site *site, tn_error *err)
{
    int64_t total = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        total += site->param[role].count;
    g->params = calloc((size_t)total + 1, sizeof *g->params);
    if (!g->params)
        return no_memory(err);
    tn_tensor *next = g->params;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &site->param[role];
        if (p->count == 0 || !op_param_has_gradient(op_find(site->op), (tn_role)role, p->tensors[0].dtype))
            continue;
        g->grads.param[role] = (tn_param){next, p->count};
        for (int64_t i = 0; i < p->count; i++)
            *next++ = dense_like(&p->tensors[i]);
    }
    return TN_OK;
}

size_t gradients_param_bytes(const tn_site *site)
{
    size_t bytes = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++)
            bytes += tensor_padded_bytes(&site->param[role].tensors[i]);
    return bytes;
}

/* ---- upstream -------------------------------------------------------------------------------------------------- */

/* For each chosen expert of each token a number of its own, in whichever column it stands. */
static void draw_route(const tn_tensor *t, const tn_tensor *experts)
{
    for (int64_t row = 0; row < t->shape[0]; row++)
        for (int64_t j = 0; j < t->shape[1]; j++) {
            int32_t expert = ((const int32_t *)experts->data)[row * experts->stride[0] + j];
            random_state r = {.state = (uint64_t)row << 32 ^ (uint64_t)expert};
            float value = random_nearly_normal(&r);
            convert_from_f32(&value, t->dtype,
                             (char *)t->data + (size_t)(row * t->shape[1] + j) * tn_dtype_size(t->dtype), 1);
        }
}

static void draw_rows(const tn_tensor *t, random_state *r)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i++) {
        float value = random_nearly_normal(r);
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * size, 1);
    }
}

/* What comes of a token whose choice may differ would differ too. */
static void clear_skipped(const tn_tensor *t, const bool *skip)
{
    size_t row = t->shape[0] > 0 ? (size_t)(tn_tensor_count(t) / t->shape[0]) * tn_dtype_size(t->dtype) : 0;
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (skip[i])
            memset((char *)t->data + (size_t)i * row, 0, row);
}

tn_status gradients_draw(gradients *g, const inputs *in, const tn_tensor *experts, tn_error *err)
{
    const tn_call *call = &in->call;
    const op_row *row = op_find(call->op);
    random_state random = {.state = 0x6772616473 ^ (uint64_t)in->tokens};
    size_t bytes = 0;
    *g = (gradients){.grads = {.size = sizeof g->grads}};
    for (int i = 0; i < call->in_count; i++)
        if (op_input_has_gradient(row, i, call->in[i].dtype))
            g->grads.in[i] = dense_like(&call->in[i]);
    for (int i = 0; i < call->out_count; i++)
        bytes += has_upstream(row, call, i) ? tensor_padded_bytes(&call->out[i]) : 0;
    tn_status status = shape_params(g, call->site, err);
    if (status == TN_OK && !(g->upstream = aligned_alloc(64, bytes ? bytes : 64)))
        status = no_memory(err);
    char *at = g->upstream;
    for (int i = 0; status == TN_OK && i < call->out_count; i++) {
        if (!has_upstream(row, call, i))
            continue;
        tn_tensor *t = &g->grads.out[i];
        *t = dense_like(&call->out[i]);
        t->data = at;
        at += tensor_padded_bytes(t);
        if (row->picks)
            draw_route(t, experts);
        else
            draw_rows(t, &random);
        if (in->skip)
            clear_skipped(t, in->skip);
    }
    return status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Gives each its place behind base (NULL: counts only); returns the bytes. */
static size_t place_all(gradients *g, char *base)
{
    size_t used = 0;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (g->grads.in[i].dtype != TN_DTYPE_NONE) {
            g->grads.in[i].data = base ? base + used : NULL;
            used += tensor_padded_bytes(&g->grads.in[i]);
        }
    tn_tensor *next = g->params;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < g->grads.param[role].count; i++, next++) {
            next->data = base ? base + used : NULL;
            used += tensor_padded_bytes(next);
        }
    return used;
}

tn_status gradients_allocate(gradients *g, tn_error *err)
{
    size_t bytes = place_all(g, NULL);
    g->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!g->memory)
        return no_memory(err);
    place_all(g, g->memory);
    return TN_OK;
}

void gradients_close(gradients *g)
{
    free(g->params);
    free(g->upstream);
    free(g->memory);
    *g = (gradients){0};
}
