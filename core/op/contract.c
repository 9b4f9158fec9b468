/* The shapes of kernel.h as a table. A tensor is written as its dtype and one letter for each dimension:
 * d the site's dtype, w that of routing weights, l that of a router's logits, i i32; * any dimensions, the same
 * wherever it stands; B rows, T tokens, S cached positions, b B or 1: the same number wherever they stand; H hidden, O
 * out, W width, D head, V head of values, R width of rotary tables, N query heads, K key/value heads, E experts, k
 * experts of a token: the site's dimensions. */
#include "op/contract.h"

#include "check/gradients.h"
#include "base/text.h"

#include <string.h>
#include <tenon/tenon.h>

typedef struct contract {
    tn_op op;
    const char *in[6], *out[4];
} contract;

static const contract contracts[] = {
    {TN_OP_RMS_NORM, {"d*W"}, {"d*W"}},
    {TN_OP_ADD_RMS_NORM, {"d*W", "d*W"}, {"d*W", "d*W"}},
    {TN_OP_ROPE, {"dBTND", "dBTKD", "dbTR", "dbTR"}, {"dBTND", "dBTKD"}},
    {TN_OP_MLP, {"dTH"}, {"dTH"}},
    {TN_OP_MOE_ROUTE, {"dTH"}, {"wTk", "iTk", "lTE"}},
    {TN_OP_MOE_EXPERTS, {"dTH", "wTk", "iTk"}, {"dTH"}},
    {TN_OP_MOE_BLOCK, {"dTH"}, {"dTH", "lTE"}},
    {TN_OP_LINEAR, {"dTH"}, {"dTO"}},
    {TN_OP_ATTENTION, {"dBTND", "dBSKD", "dBSKV", "iBT", "iBS"}, {"dBTNV"}},
};

static const contract gated_norm = {TN_OP_RMS_NORM, {"d*W", "d*W"}, {"d*W"}};

/* What the free letters stand for in this call; -1: not met yet. */
typedef struct binding {
    const tn_site *site;
    int64_t rows, tokens, cached;
    int32_t any_count; /* of *                                                                      */
    int64_t any[TN_MAX_DIMS];
    tn_error *err;
} binding;

uint32_t contract_optional(tn_op op)
{
    return op == TN_OP_MOE_ROUTE ? 1u << 2 : op == TN_OP_MOE_BLOCK ? 1u << 1 : 0;
}

static const contract *find(const tn_site *site, tn_op op)
{
    if (op == TN_OP_RMS_NORM && site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED)
        return &gated_norm;
    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++)
        if (contracts[i].op == op)
            return &contracts[i];
    return NULL;
}

static tn_dtype dtype_of(const tn_site *site, char letter)
{
    if (letter == 'i')
        return TN_I32;
    if (letter == 'l' && (site->features & TN_HAS_F32_ROUTER))
        return TN_F32;
    return letter == 'w' && (site->features & TN_HAS_F32_ROUTING) ? TN_F32 : (tn_dtype)site->meaning[TN_AXIS_DTYPE];
}

static bool fits_free(int64_t *bound, int64_t size)
{
    if (*bound < 0)
        *bound = size;
    return *bound == size;
}

static bool fits(binding *b, char letter, int64_t size)
{
    static const struct {
        char letter;
        tn_dim dim;
    } dims[] = {{'H', TN_DIM_HIDDEN},  {'O', TN_DIM_OUT},      {'W', TN_DIM_WIDTH}, {'D', TN_DIM_HEAD},
                {'N', TN_DIM_Q_HEADS}, {'K', TN_DIM_KV_HEADS}, {'k', TN_DIM_TOP_K}, {'E', TN_DIM_EXPERTS}};
    const int64_t *dim = b->site->dim;
    int64_t rotary = dim[TN_DIM_ROTARY] > 0 ? dim[TN_DIM_ROTARY] : dim[TN_DIM_HEAD];
    switch (letter) {
    case 'B':
        return fits_free(&b->rows, size);
    case 'T':
        return fits_free(&b->tokens, size);
    case 'S':
        return fits_free(&b->cached, size);
    case 'b':
        return size == 1 || fits_free(&b->rows, size);
    case 'R':
        return size == (b->site->meaning[TN_AXIS_ROPE] == TN_ROPE_HALF_NARROW ? rotary / 2 : rotary);
    case 'V':
        return size == (dim[TN_DIM_HEAD_V] > 0 ? dim[TN_DIM_HEAD_V] : dim[TN_DIM_HEAD]);
    default:
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            if (dims[i].letter == letter)
                return size == dim[dims[i].dim];
        return false;
    }
}

static bool fits_any(binding *b, const tn_tensor *t)
{
    int32_t count = t->ndim - 1;
    if (b->any_count < 0) {
        b->any_count = count;
        memcpy(b->any, t->shape, sizeof b->any);
    }
    return count == b->any_count && !memcmp(b->any, t->shape, (size_t)count * sizeof *b->any);
}

static bool shape_fits(binding *b, const char *spec, const tn_tensor *t)
{
    if (t->ndim < 1 || t->ndim > TN_MAX_DIMS)
        return false;
    if (spec[1] == '*')
        return fits_any(b, t) && fits(b, spec[2], t->shape[t->ndim - 1]);
    if ((size_t)t->ndim != strlen(spec + 1))
        return false;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || !fits(b, spec[1 + i], t->shape[i]))
            return false;
    return true;
}

static tn_status refuse(const binding *b, const char *name, int64_t index, const char *what, const tn_tensor *t)
{
    char shape[160] = "";
    size_t used = 0;
    for (int32_t i = 0; i < t->ndim && i < TN_MAX_DIMS; i++)
        used += text_cut(shape + used, sizeof shape - used, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    return tn_fail(b->err, TN_E_USAGE, b->site->path, "%s %lld (%s [%s]) %s; see the operation in tenon/kernel.h", name,
                   (long long)index, tn_dtype_name(t->dtype), shape, what);
}

static bool is_dense_last(const tn_tensor *t)
{
    return t->stride[t->ndim - 1] == 1 || t->shape[t->ndim - 1] <= 1;
}

/* data_optional: may have none, as what a rotation backwards does not read. */
static tn_status check_tensor(binding *b, const char *spec, const tn_tensor *t, const char *name, int64_t index,
                              bool data_optional)
{
    tn_dtype dtype = dtype_of(b->site, spec[0]);
    char wanted[64];
    text_cut(wanted, sizeof wanted, "must have dtype %s", tn_dtype_name(dtype));
    if (t->dtype != dtype)
        return refuse(b, name, index, wanted, t);
    if (!shape_fits(b, spec, t))
        return refuse(b, name, index, "does not have the shape that the site and the other tensors imply", t);
    if (!is_dense_last(t))
        return refuse(b, name, index, "must be dense in its last dimension", t);
    if (!t->data && !data_optional && tn_tensor_count(t) > 0)
        return refuse(b, name, index, "has no data", t);
    return TN_OK;
}

static int count_of(const char *const *specs)
{
    int n = 0;
    while (specs[n])
        n++;
    return n;
}

/* A gradient with data has the dtype and shape of what it belongs to. */
static tn_status check_params(const binding *b, const tn_grads *grads)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *g = &grads->param[role], *p = &b->site->param[role];
        if (g->count == 0)
            continue;
        if (g->count != p->count)
            return tn_fail(b->err, TN_E_USAGE, b->site->path,
                           "grads->param[%d] has %lld tensors, the site has %lld; give as many or none", role,
                           (long long)g->count, (long long)p->count);
        for (int64_t i = 0; i < g->count; i++) {
            const tn_tensor *t = &g->tensors[i], *like = &p->tensors[i];
            bool same = t->data && t->dtype == like->dtype && t->ndim == like->ndim && is_dense_last(t) &&
                        !memcmp(t->shape, like->shape, (size_t)like->ndim * sizeof *like->shape);
            if (!same || !gradients_of_param((tn_role)role, like->dtype))
                return refuse(b, "gradient of parameter", role, "does not fit its parameter, or that has no gradient",
                              t);
        }
    }
    return TN_OK;
}

static tn_status check_grads(binding *b, const contract *c, const tn_call *call)
{
    const tn_grads *grads = call->grads;
    tn_status status = check_params(b, grads);
    for (int i = 0; status == TN_OK && i < TN_CALL_TENSORS; i++) {
        const tn_tensor *t = &grads->out[i];
        if (!t->data)
            continue;
        if (i >= count_of(c->out) || c->out[i][0] == 'i' || (contract_optional(call->op) & 1u << i))
            return refuse(b, "upstream gradient", i, "belongs to no output that has a gradient", t);
        status = check_tensor(b, c->out[i], t, "upstream gradient", i, false);
    }
    for (int i = 0; status == TN_OK && i < TN_CALL_TENSORS; i++) {
        const tn_tensor *t = &grads->in[i];
        if (!t->data)
            continue;
        if (i >= call->in_count || !gradients_of_input(call->op, i, call->in[i].dtype))
            return refuse(b, "gradient of input", i, "belongs to no input that has a gradient", t);
        status = check_tensor(b, c->in[i], t, "gradient of input", i, false);
    }
    return status;
}

tn_status contract_check(const tn_call *call, tn_error *err)
{
    binding b = {.site = call->site, .rows = -1, .tokens = -1, .cached = -1, .any_count = -1, .err = err};
    const contract *c = find(call->site, call->op);
    if (!c)
        return tn_fail(err, TN_DECLINED, call->site->path, "there is no way to call %s on its own",
                       tn_op_name(call->op));
    int in = count_of(c->in), out = call->grads ? 0 : count_of(c->out);
    while (out > call->out_count && (contract_optional(call->op) & 1u << (out - 1)))
        out--;
    if (call->in_count != in || call->out_count != out)
        return tn_fail(err, TN_E_USAGE, call->site->path, "%s takes %d inputs and %d outputs, got %d and %d",
                       tn_op_name(call->op), in, out, (int)call->in_count, (int)call->out_count);
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < in; i++)
        status = check_tensor(&b, c->in[i], &call->in[i], "input", i, call->grads && call->op == TN_OP_ROPE && i < 2);
    for (int i = 0; status == TN_OK && i < out; i++)
        if (call->out[i].data || !(contract_optional(call->op) & 1u << i))
            status = check_tensor(&b, c->out[i], &call->out[i], "output", i, false);
    return status == TN_OK && call->grads ? check_grads(&b, c, call) : status;
}

int64_t contract_tokens(const tn_call *call)
{
    const tn_tensor *x = &call->in[0];
    return x->ndim > 2 ? x->shape[0] * x->shape[1] : x->ndim > 1 ? x->shape[0] : 1;
}
