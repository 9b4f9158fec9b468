/* Do a site and the tensors of a call fit their operation's row? */
#include "op/op.h"

#include "base/blocks.h"
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

/* Where weights are of several types each may have any that weights can have. */
static bool type_fits(const tn_site *site, const op_param *p, tn_dtype dtype, tn_dtype like)
{
    bool mixed = (site->features & TN_HAS_MIXED) && op_group_role(p->role);
    if (p->any_float)
        return tensor_is_float(dtype);
    return dtype == like || (mixed && (blocks_is_quantised(dtype) || (int32_t)dtype == site->meaning[TN_AXIS_DTYPE]));
}

static bool param_fits(const tn_site *site, const op_param *p, const tn_tensor *t, const tn_tensor *like)
{
    bool type = type_fits(site, p, t->dtype, like->dtype);
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
        if (!param_fits(site, p, &has->tensors[i], &like))
            return refuse_param(site, p->role, i, count, &has->tensors[i], &like, err);
    return TN_OK;
}

/* [out,groups], in a type that scales or these zero points have; rows may share one. */
static bool part_fits(const tn_tensor *t, const tn_tensor *w, bool zero)
{
    bool type = zero ? t->dtype == (w->dtype == TN_U4 ? TN_U8 : w->dtype)
                     : tensor_is_float(t->dtype) || t->dtype == TN_F8_E4M3 || t->dtype == TN_F8_E8M0;
    if (zero && w->dtype == TN_E2M1)
        return t->dtype == TN_F32 && t->ndim == 1 && t->shape[0] == 1;
    return type && t->ndim == 2 && t->shape[0] == w->shape[0] && tensor_is_dense_last(t) && t->stride[0] >= 0;
}

/* Groups of columns in order, or named one by one. */
static bool groups_fit(const tn_tensor *scale, const tn_tensor *group, const tn_tensor *w)
{
    if (group)
        return group->dtype == TN_I32 && group->ndim == 1 && group->shape[0] == w->shape[1];
    return !scale || op_group_columns(w->shape[1], scale->shape[1]) > 0;
}

/* Whole blocks in each row, and scales, zero points and groups that fit. */
static bool quantised_fits(const tn_tensor *w, const tn_tensor *scale, const tn_tensor *zero, const tn_tensor *group)
{
    int64_t block = tn_dtype_block_elements(w->dtype);
    bool whole = w->ndim == 2 && w->shape[1] % block == 0 && w->stride[0] % block == 0;
    return whole && (!scale || part_fits(scale, w, false)) && (!zero || part_fits(zero, w, true)) &&
           (!zero || w->dtype == TN_E2M1 || (scale && zero->shape[1] == scale->shape[1])) &&
           groups_fit(scale, group, w);
}

static const tn_tensor *part_of(const tn_site *site, int role, int64_t index)
{
    const tn_param *p = &site->param[role < TN_ROLE_MAX ? role : 0];
    return role > 0 && p->count > index ? &p->tensors[index] : NULL;
}

static tn_status check_quantised(const tn_site *site, tn_role role, tn_error *err)
{
    const tn_param *has = &site->param[role];
    tn_role roles[] = {TN_ROLE_SCALE_OF(role), TN_ROLE_ZERO_OF(role), op_group_role(role)};
    for (int i = 0; i < 3; i++)
        if (roles[i] > 0 && site->param[roles[i]].count != 0 && site->param[roles[i]].count != has->count)
            return tn_fail(err, TN_E_USAGE, site->path, "%s: scales, zero points or groups of %lld of its %lld tensors",
                           tn_role_name(role), (long long)site->param[roles[i]].count, (long long)has->count);
    for (int64_t i = 0; i < has->count; i++)
        if (blocks_is_quantised(has->tensors[i].dtype) &&
            !quantised_fits(&has->tensors[i], part_of(site, roles[0], i), part_of(site, roles[1], i),
                            part_of(site, roles[2], i)))
            return tn_fail(
                err, TN_E_USAGE, site->path,
                "%s %lld: its scales, zero points or groups do not fit, or its rows are no whole blocks of %s",
                tn_role_name(role), (long long)i, tn_dtype_name(has->tensors[i].dtype));
    return TN_OK;
}

/* The parameter that a role belongs to: itself, or the one whose scales, zero points or groups it has. */
static int owner_of(const tn_site *site, int role)
{
    for (int weight = 0; weight < TN_ROLE_FIRST_GROUP && (role >= TN_ROLE_FIRST_GROUP && role < TN_ROLE_FIRST_SCALE);
         weight++)
        if (site->param[weight].count && (int)op_group_role((tn_role)weight) == role)
            return weight;
    return role % TN_ROLE_FIRST_SCALE;
}

/* A role that the operation does not have here, scales and zero points apart. */
static bool is_stray(const op_row *row, const tn_site *site, int role)
{
    if (site->param[role].count == 0)
        return false;
    for (int i = 0; i < OP_PARAMS && row->param[i].shape; i++)
        if ((int)row->param[i].role == role && op_is_there(&row->param[i].when, site))
            return false;
    for (int i = 0; i < OP_PARAMS && row->param[i].shape; i++)
        if ((int)row->param[i].role == owner_of(site, role) && op_is_there(&row->param[i].when, site))
            return role >= TN_ROLE_FIRST_ZERO    ? !(site->features & TN_HAS_ZERO_POINTS)
                   : role >= TN_ROLE_FIRST_GROUP ? !(site->features & TN_HAS_SCALES)
                                                 : false;
    return true;
}

static tn_status check_params(const op_row *row, const tn_site *site, tn_error *err)
{
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < OP_PARAMS && row->param[i].shape; i++)
        if (op_is_there(&row->param[i].when, site))
            status = check_param(site, &row->param[i], err);
    for (int role = 0; status == TN_OK && role < TN_ROLE_FIRST_GROUP; role++)
        if (op_group_role((tn_role)role)) /* others have no such parts, whose numbers an adapter's factors have */
            status = check_quantised(site, (tn_role)role, err);
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
    if (t->dtype != dtype) {
        char wanted[64];
        text_cut(wanted, sizeof wanted, "must have dtype %s", tn_dtype_name(dtype));
        return refuse(c, name, index, wanted, t);
    }
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
