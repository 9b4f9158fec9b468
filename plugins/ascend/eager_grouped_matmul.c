/* GROUPED_MATMUL on the NPU, and the products of MOE_EXPERTS. Weights that are stored [out,in] are transposed by their
 * strides. */
#include "eager_grouped.h"
#include "queue.h"

#include <inttypes.h>
#include <stdlib.h>

/* A group's matrix, as [in,out]. */
static tn_tensor matrix_of(const tn_param *weights, tn_layout layout, int64_t group)
{
    tn_tensor t = grouped_is_list(layout) ? weights->tensors[group] : npu_member(weights->tensors, group);
    return grouped_is_oi(layout) ? npu_transposed(t) : t;
}

/* ---- with the vendor's operator --------------------------------------------------------------------------- */

static bool operator_takes(const tn_param *weights, tn_layout layout, int64_t groups, const tn_tensor *x,
                           const tn_tensor *y)
{
    const tn_tensor *t = weights->tensors;
    if (groups < 2 || x->shape[1] > NPU_WIDTH_MOST || y->shape[1] > NPU_WIDTH_MOST)
        return false;
    if (!grouped_is_list(layout))
        return groups <= NPU_STACK_MOST && ascend_is_dense(t);
    if (npu_stack(t, NULL, groups, &(tn_tensor){0}))
        return groups <= NPU_STACK_MOST;
    bool packed = groups <= NPU_LIST_MOST && t->dtype != TN_F32;
    for (int64_t i = 0; i < groups && packed; i++)
        packed = ascend_is_dense(&t[i]);
    return packed;
}

static void by_operator(npu_run *r, const grouped *g, const tn_param *weights, tn_layout layout, const tn_tensor *x,
                        const tn_tensor *y)
{
    tn_tensor matrices[NPU_LIST_MOST], stack; /* or the stack of them alone                           */
    bool list = grouped_is_list(layout), stacked = list && npu_stack(weights->tensors, NULL, g->groups, &stack);
    const tn_tensor *from = stacked ? &stack : weights->tensors;
    int64_t count = list && !stacked ? g->groups : 1;
    for (int64_t i = 0; i < count; i++)
        matrices[i] = grouped_is_oi(layout) ? npu_transposed(from[i]) : from[i];
    npu_grouped_matmul(r, NPU_OF_ROWS, *x, matrices, count, *g->counts, *y);
}

/* ---- one group after the other --------------------------------------------------------------------------- */

/* Whether the counts are those of so many rows. */
static tn_status check_counts(const char *path, const int64_t *counts, int64_t groups, int64_t rows, tn_error *err)
{
    int64_t at = 0;
    for (int64_t i = 0; i < groups; i++) {
        if (counts[i] < 0 || counts[i] > rows - at)
            return tn_fail(err, TN_E_INPUT, path,
                           "group %" PRId64 " has %" PRId64 " rows, and %" PRId64 " of the rows of x are left; "
                           "the counts must add up to the rows of x",
                           i, counts[i], rows - at);
        at += counts[i];
    }
    return at == rows ? TN_OK
                      : tn_fail(err, TN_E_INPUT, path,
                                "the groups end at row %" PRId64 " of %" PRId64 "; the counts must add up to the rows "
                                "of x",
                                at, rows);
}

/* The counts on the host. Those that the device computed are not what the host last put there. */
static const int64_t *known_counts(npu_run *r, grouped *g)
{
    size_t bytes = (size_t)g->groups * sizeof(int64_t);
    if (!g->computed)
        return npu_host_copy(r, g->counts, &g->owned);
    g->owned = malloc(bytes);
    if (!g->owned)
        npu_no_memory(r);
    else
        r->status = npu_download(r->queue, g->owned, g->counts->data, bytes, r->err);
    return g->owned;
}

const int64_t *grouped_counts(npu_run *r, grouped *g, int64_t rows)
{
    if (!g->known && g->computed && g->groups == 1) {
        g->only = rows;
        g->known = &g->only;
    }
    if (!g->known)
        g->known = known_counts(r, g);
    if (r->status == TN_OK)
        r->status = check_counts(g->path, g->known, g->groups, rows, r->err);
    return r->status == TN_OK ? g->known : NULL;
}

static void by_group(npu_run *r, grouped *g, const tn_param *weights, tn_layout layout, const tn_tensor *x,
                     const tn_tensor *y)
{
    const int64_t *counts = grouped_counts(r, g, x->shape[0]);
    for (int64_t i = 0, at = 0; i < g->groups && r->status == TN_OK; at += counts[i++]) {
        tn_tensor w = matrix_of(weights, layout, i), from = npu_narrow(*x, 0, at, counts[i]);
        tn_tensor to = npu_narrow(*y, 0, at, counts[i]);
        npu_matmul(r, from, w, to);
    }
}

void grouped_product(npu_run *r, grouped *g, const tn_param *weights, tn_layout layout, const tn_tensor *x,
                     const tn_tensor *y)
{
    if (r->measuring || r->status != TN_OK || tn_tensor_count(y) == 0)
        return;
    if (operator_takes(weights, layout, g->groups, x, y))
        by_operator(r, g, weights, layout, x, y);
    else
        by_group(r, g, weights, layout, x, y);
}

void grouped_end(grouped *g)
{
    free(g->owned);
}

/* ---- the operation ----------------------------------------------------------------------------------------- */

/* The tensor, or dense memory for a copy of it. */
static tn_tensor dense_like(npu_run *r, const tn_tensor *t)
{
    tn_tensor room = npu_take_like(r, t->dtype, *t);
    return ascend_is_dense(t) ? *t : room;
}

static void grouped_matmul(npu_run *r)
{
    const tn_tensor *in = r->call->in, *out = &r->call->out[0];
    tn_tensor x = dense_like(r, &in[0]), counts = dense_like(r, &in[1]), y = dense_like(r, out);
    grouped g = {.path = r->call->site->path, .counts = &in[1], .groups = counts.shape[0]};
    if (r->measuring)
        return;
    if (x.data != in[0].data)
        npu_copy(r, in[0], x);
    /* The operator would make something of any counts: those that the host has put there are looked at. */
    const int64_t *known = r->queue->shadow(r->queue, counts.data, (size_t)g.groups * sizeof *known);
    if (known)
        r->status = check_counts(g.path, known, g.groups, x.shape[0], r->err);
    if (counts.data != in[1].data)
        npu_copy(r, in[1], counts);
    g.counts = &counts;
    g.computed = counts.data != in[1].data;
    grouped_product(r, &g, &r->call->site->param[TN_ROLE_WEIGHT], (tn_layout)r->call->site->meaning[TN_AXIS_LAYOUT], &x,
                    &y);
    npu_settle(r, y, *out);
    grouped_end(&g);
}

static tn_status matmul_supports(const tn_site *site, tn_error *err)
{
    const tn_tensor *w = npu_param(site, TN_ROLE_WEIGHT);
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    if (w && w->dtype != dtype)
        return tn_fail(err, TN_DECLINED, "npu",
                       "grouped products of %s with weights of %s are not there yet, types have to be the same",
                       tn_dtype_name(dtype), tn_dtype_name(w->dtype));
    return npu_supports_param(site, TN_ROLE_WEIGHT, err);
}

const ascend_operation ascend_grouped_matmul = {
    .op = TN_OP_GROUPED_MATMUL, .supports = matmul_supports, .body = grouped_matmul};
