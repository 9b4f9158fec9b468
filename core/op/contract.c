/* Do a site and the tensors of a call fit their operation's row? */
#include "op/op.h"

#include "base/tensor.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

/* ---- sites ------------------------------------------------------------------------------------------------------ */

static tn_status refuse_param(const tn_site *site, tn_role role, int64_t index, int64_t count, const tn_tensor *t,
                              const tn_tensor *like, tn_error *err)
{
    char has[96], wants[96], which[32] = "";
    tensor_shape_text(t->ndim, t->shape, has, sizeof has);
    tensor_shape_text(like->ndim, like->shape, wants, sizeof wants);
    if (count > 1)
        text_cut(which, sizeof which, " %lld", (long long)index);
    return tn_fail(err, TN_E_USAGE, site->path, "%s%s: is %s %s; %s takes %s %s, dense in its last dimension",
                   tn_role_name(role), which, tn_dtype_name(t->dtype), has, tn_op_name(site->op),
                   tn_dtype_name(like->dtype), wants);
}

static bool param_fits(const op_param *p, const tn_tensor *t, const tn_tensor *like)
{
    bool type = p->any_float ? tensor_is_float(t->dtype) : t->dtype == like->dtype;
    return type && t->ndim == like->ndim && tensor_is_dense_last(t) &&
           !memcmp(t->shape, like->shape, (size_t)like->ndim * sizeof *like->shape);
}

static tn_status check_param(const tn_site *site, const op_param *p, tn_error *err)
{
    const tn_param *has = &site->param[p->role];
    int64_t count = op_param_count(p, site);
    if (p->maybe && has->count == 0)
        return TN_OK;
    if (has->count != count || !has->tensors)
        return tn_fail(err, TN_E_USAGE, site->path, "%s: the site has %lld tensors, %s takes %lld",
                       tn_role_name(p->role), (long long)has->count, tn_op_name(site->op), (long long)count);
    tn_tensor like = {0};
    like.dtype = op_param_shape(p, site, &like.ndim, like.shape);
    for (int64_t i = 0; i < count; i++)
        if (!param_fits(p, &has->tensors[i], &like))
            return refuse_param(site, p->role, i, count, &has->tensors[i], &like, err);
    return TN_OK;
}

/* A role that the operation does not have here, scales and zero points apart. */
static bool is_stray(const op_row *row, const tn_site *site, int role)
{
    if (site->param[role].count == 0)
        return false;
    for (int i = 0; i < OP_PARAMS && row->param[i].shape; i++)
        if (row->param[i].role == (tn_role)(role % TN_ROLE_FIRST_SCALE) && op_is_there(&row->param[i].when, site))
            return role >= TN_ROLE_FIRST_ZERO    ? !(site->features & TN_HAS_ZERO_POINTS)
                   : role >= TN_ROLE_FIRST_SCALE ? !(site->features & TN_HAS_SCALES)
                                                 : false;
    return true;
}

static tn_status check_params(const op_row *row, const tn_site *site, tn_error *err)
{
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < OP_PARAMS && row->param[i].shape; i++)
        if (op_is_there(&row->param[i].when, site))
            status = check_param(site, &row->param[i], err);
    for (int role = 0; status == TN_OK && role < TN_ROLE_MAX; role++)
        if (is_stray(row, site, role))
            status = tn_fail(err, TN_E_USAGE, site->path, "%s: %s of this layout and these features has none",
                             tn_role_name((tn_role)role), row->name);
    return status;
}

static tn_status check_axes(const op_row *row, const tn_site *site, tn_error *err)
{
    for (int axis = 0; axis < TN_AXIS_MAX; axis++) {
        int32_t value = site->meaning[axis], last = op_last_value((tn_axis)axis);
        if (value < 0 || value > last)
            return tn_fail(err, TN_E_USAGE, site->path, "%s: is %d, which is nothing; values go up to %d",
                           tn_axis_name((tn_axis)axis), (int)value, (int)last);
        if ((row->needs >> axis & 1) && value == 0)
            return tn_fail(err, TN_E_USAGE, site->path, "%s: the site has none, %s needs one",
                           tn_axis_name((tn_axis)axis), row->name);
    }
    return TN_OK;
}

static tn_status check_dims(const op_row *row, const tn_site *site, tn_error *err)
{
    for (int dim = 0; dim < TN_DIM_MAX; dim++) {
        int64_t size = site->dim[dim], least = row->dims >> dim & 1;
        if (size < least)
            return tn_fail(err, TN_E_USAGE, site->path, "%s: is %lld, %s takes at least %d", tn_dim_name((tn_dim)dim),
                           (long long)size, row->name, (int)least);
        if (size > OP_LARGEST_DIM)
            return tn_fail(err, TN_E_USAGE, site->path, "%s: is %lld, which no memory holds", tn_dim_name((tn_dim)dim),
                           (long long)size);
    }
    return TN_OK;
}

static tn_status check_meaning(const op_row *row, const tn_site *site, tn_error *err)
{
    tn_status status = check_axes(row, site, err);
    if (status == TN_OK)
        status = check_dims(row, site, err);
    if (status != TN_OK)
        return status;
    for (int num = 0; num < TN_NUM_MAX; num++)
        if ((row->nums >> num & 1) && !isfinite(site->num[num]))
            return tn_fail(err, TN_E_USAGE, site->path, "%s: is %g, must be a finite number", tn_num_name((tn_num)num),
                           site->num[num]);
    if (site->features & ~row->features)
        return tn_fail(err, TN_E_USAGE, site->path, "%s is nothing that %s can have",
                       tn_feature_name(site->features & ~row->features & (~(site->features & ~row->features) + 1)),
                       row->name);
    return TN_OK;
}

tn_status op_check_site(const tn_site *site, tn_error *err)
{
    const op_row *row = op_find(site->op);
    if (!row || row->kind != OP_CONTRACT)
        return tn_fail(err, TN_E_USAGE, site->path, "%s is no operation of a site", tn_op_name(site->op));
    tn_status status = check_meaning(row, site, err);
    if (status == TN_OK && row->check)
        status = row->check(site, err);
    return status == TN_OK ? check_params(row, site, err) : status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef struct checking {
    const op_row *row;
    const tn_call *call;
    op_free free_letters;
    tn_error *err;
} checking;

static tn_status refuse(const checking *c, const char *name, int64_t index, const char *what, const tn_tensor *t)
{
    char shape[160];
    tensor_shape_text(t->ndim, t->shape, shape, sizeof shape);
    return tn_fail(c->err, TN_E_USAGE, c->call->site->path,
                   "%s %lld (%s %s) %s; see the operation in tenon/operation.h", name, (long long)index,
                   tn_dtype_name(t->dtype), shape, what);
}

static tn_status check_tensor(checking *c, const op_tensor *spec, const tn_tensor *t, const char *name, int64_t index,
                              bool data_optional)
{
    const tn_site *site = c->call->site;
    tn_dtype dtype = op_dtype_of(spec->shape, site);
    char wanted[64];
    text_cut(wanted, sizeof wanted, "must have dtype %s", tn_dtype_name(dtype));
    if (t->dtype != dtype)
        return refuse(c, name, index, wanted, t);
    if (!op_fits(spec->shape + 1, site, &c->free_letters, t))
        return refuse(c, name, index, "does not have the shape that the site and the other tensors imply", t);
    if (!tensor_is_dense_last(t))
        return refuse(c, name, index, "must be dense in its last dimension", t);
    if (!t->data && !data_optional && tn_tensor_count(t) > 0)
        return refuse(c, name, index, "has no data", t);
    return TN_OK;
}

/* A gradient with data has the dtype and shape of what it belongs to. */
static tn_status check_param_grads(const checking *c)
{
    const tn_site *site = c->call->site;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *g = &c->call->grads->param[role], *p = &site->param[role];
        if (g->count == 0)
            continue;
        if (g->count != p->count)
            return tn_fail(c->err, TN_E_USAGE, site->path,
                           "grads->param[%d] has %lld tensors, the site has %lld; give as many or none", role,
                           (long long)g->count, (long long)p->count);
        for (int64_t i = 0; i < g->count; i++) {
            const tn_tensor *t = &g->tensors[i], *like = &p->tensors[i];
            bool same = t->data && t->dtype == like->dtype && t->ndim == like->ndim && tensor_is_dense_last(t) &&
                        !memcmp(t->shape, like->shape, (size_t)like->ndim * sizeof *like->shape);
            if (!same || !op_param_has_gradient(c->row, (tn_role)role, like->dtype))
                return refuse(c, "gradient of parameter", role, "does not fit its parameter, or that has no gradient",
                              t);
        }
    }
    return TN_OK;
}

static tn_status check_grads(checking *c)
{
    const tn_call *call = c->call;
    const tn_grads *grads = call->grads;
    tn_status status = check_param_grads(c);
    int outs = op_out_count(c->row, call->site, false);
    for (int i = 0; status == TN_OK && i < TN_CALL_TENSORS; i++) {
        const tn_tensor *t = &grads->out[i];
        if (!t->data)
            continue;
        if (i >= outs || !tensor_is_float(op_dtype_of(c->row->out[i].shape, call->site)))
            return refuse(c, "upstream gradient", i, "belongs to no output that has a gradient", t);
        status = check_tensor(c, &c->row->out[i], t, "upstream gradient", i, false);
    }
    for (int i = 0; status == TN_OK && i < TN_CALL_TENSORS; i++) {
        const tn_tensor *t = &grads->in[i];
        if (!t->data)
            continue;
        if (i >= call->in_count || !op_input_has_gradient(c->row, i, call->in[i].dtype))
            return refuse(c, "gradient of input", i, "belongs to no input that has a gradient", t);
        status = check_tensor(c, &c->row->in[i], t, "gradient of input", i, false);
    }
    return status;
}

static tn_status check_counts(const checking *c)
{
    const tn_call *call = c->call;
    int in = op_in_count(c->row, call->site);
    int least = call->grads ? 0 : op_out_count(c->row, call->site, false);
    int most = call->grads ? 0 : op_out_count(c->row, call->site, true);
    if (call->in_count == in && call->out_count >= least && call->out_count <= most)
        return TN_OK;
    return tn_fail(c->err, TN_E_USAGE, call->site->path, "%s takes %d inputs and %d outputs, got %d and %d",
                   c->row->name, in, least, (int)call->in_count, (int)call->out_count);
}

tn_status op_check_call(const tn_call *call, tn_error *err)
{
    checking c = {.row = op_find(call->op), .call = call, .free_letters = op_nothing_free, .err = err};
    if (!c.row || c.row->kind != OP_CONTRACT)
        return tn_fail(err, TN_DECLINED, call->site->path, "there is no way to call %s on its own",
                       tn_op_name(call->op));
    tn_status status = check_counts(&c);
    for (int i = 0; status == TN_OK && i < call->in_count; i++)
        status = check_tensor(&c, &c.row->in[i], &call->in[i], "input", i, call->grads && c.row->in[i].unread);
    for (int i = 0; status == TN_OK && i < call->out_count; i++)
        if (call->out[i].data || !c.row->out[i].optional)
            status = check_tensor(&c, &c.row->out[i], &call->out[i], "output", i, false);
    return status == TN_OK && call->grads ? check_grads(&c) : status;
}
