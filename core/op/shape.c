/* Shapes of the table for one site: what its letters stand for. */
#include "op/op.h"

#include "base/blocks.h"

#include <string.h>

const op_free op_nothing_free = {-1, -1, -1, -1, -1, -1, {0}};

/* The value may be any: nobody may have checked the site yet. */
static bool has_bit(uint32_t bits, int32_t value)
{
    return value >= 0 && value < 32 && (bits >> value & 1);
}

bool op_is_there(const op_when *when, const tn_site *site)
{
    const int32_t *meaning = site->meaning;
    return (site->features & when->features) == when->features &&
           (!when->layouts || has_bit(when->layouts, meaning[TN_AXIS_LAYOUT])) &&
           (!when->norms || has_bit(when->norms, meaning[TN_AXIS_NORM]));
}

int op_in_count(const op_row *row, const tn_site *site)
{
    int count = 0;
    while (count < OP_INPUTS && row->in[count].shape && op_is_there(&row->in[count].when, site))
        count++;
    return count;
}

int op_out_count(const op_row *row, const tn_site *site, bool with_optional)
{
    int count = 0;
    while (count < OP_OUTPUTS && row->out[count].shape && op_is_there(&row->out[count].when, site) &&
           (with_optional || !row->out[count].optional))
        count++;
    return count;
}

uint32_t op_optional_outputs(tn_op op)
{
    const op_row *row = op_find(op);
    uint32_t bits = 0;
    for (int i = 0; row && i < OP_OUTPUTS; i++)
        bits |= (uint32_t)row->out[i].optional << i;
    return bits;
}

op_free op_free_of(const op_row *row, int64_t batch, int64_t tokens, int64_t cached)
{
    bool flat = !strchr(row->in[0].shape, 'B');
    op_free f = {
        .rows = batch, .tokens = flat ? batch * tokens : tokens, .cached = cached, .capacity = cached, .any = 1};
    /* One row per token, or, where there are several batch rows, the dimensions that a norm of heads sees. */
    const int64_t lead[3] = {batch, tokens, 2};
    f.lead_count = batch > 1 ? 3 : 1;
    memcpy(f.lead, batch > 1 ? lead : &f.tokens, (size_t)f.lead_count * sizeof *f.lead);
    return f;
}

tn_dtype op_dtype_of(const char *spec, const tn_site *site)
{
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    int32_t rope = site->meaning[TN_AXIS_ROPE];
    switch (spec[0]) {
    case 'i':
        return TN_I32;
    case 'l':
        return TN_I64;
    case 'f':
        return TN_F32;
    case 'w':
        return site->features & TN_HAS_F32_ROUTING ? TN_F32 : dtype;
    case 'r':
        return site->features & TN_HAS_F32_ROUTER ? TN_F32 : dtype;
    case 'y':
        return site->features & TN_HAS_F32_RESULT ? TN_F32 : dtype;
    case 'c':
        return rope == TN_ROPE_COMPLEX || rope == TN_ROPE_HALF_F32 ? TN_F32 : dtype;
    default:
        return dtype;
    }
}

tn_dim op_dim_of(char letter)
{
    static const struct {
        char letter;
        tn_dim dim;
    } dims[] = {{'H', TN_DIM_HIDDEN},       {'I', TN_DIM_INTER},   {'O', TN_DIM_OUT},      {'W', TN_DIM_WIDTH},
                {'D', TN_DIM_HEAD},         {'N', TN_DIM_Q_HEADS}, {'K', TN_DIM_KV_HEADS}, {'k', TN_DIM_TOP_K},
                {'J', TN_DIM_SHARED_INTER}, {'E', TN_DIM_EXPERTS}, {'F', TN_DIM_TAPS},     {'Z', TN_DIM_STREAMS},
                {'L', TN_DIM_RANK}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (dims[i].letter == letter)
            return dims[i].dim;
    return TN_DIM_MAX;
}

/* A dimension that the site knows; -1: the letter is a free one. */
static int64_t known(const tn_site *site, char letter)
{
    if (letter == 'M' || letter == 'm')
        return site->dim[TN_DIM_EXPERTS] * site->dim[letter == 'M' ? TN_DIM_RANK : TN_DIM_RANK_DOWN];
    int64_t head = site->dim[TN_DIM_HEAD], rotary = site->dim[TN_DIM_ROTARY], head_v = site->dim[TN_DIM_HEAD_V];
    if (letter == 'U')
        return 1;
    if (letter == 'R')
        return (rotary > 0 ? rotary : head) / (site->meaning[TN_AXIS_ROPE] == TN_ROPE_HALF_NARROW ? 2 : 1);
    if (letter == 'G')
        return head;
    if (letter == 'P')
        return site->dim[TN_DIM_TAPS] - 1;
    if (letter == 'Q')
        return site->dim[TN_DIM_STREAMS] * site->dim[TN_DIM_STREAMS];
    if (letter == 'V')
        return head_v > 0 ? head_v : head;
    tn_dim dim = op_dim_of(letter);
    return dim < TN_DIM_MAX ? site->dim[dim] : -1;
}

static int64_t *free_of(op_free *f, char letter)
{
    return letter == 'T'   ? &f->tokens
           : letter == 'S' ? &f->cached
           : letter == 'C' ? &f->capacity
           : letter == 'A' ? &f->any
                           : &f->rows; /* B and b */
}

/* Is that letter no dimension at this site? */
static bool is_left_out(const tn_site *site, char letter)
{
    return letter == 'G' && !(site->features & TN_HAS_CHANNEL_DECAY);
}

/* The next dimension of a spec. */
static char next_letter(const char **spec, int64_t *factor)
{
    *factor = 1;
    if (**spec >= '0' && **spec <= '9')
        *factor = *(*spec)++ - '0';
    return *(*spec)++;
}

static int32_t shape_of(const char *spec, const tn_site *site, const op_free *given, int64_t shape[TN_MAX_DIMS])
{
    op_free f = *given;
    int32_t ndim = 0;
    while (*spec) {
        int64_t factor, size;
        char letter = next_letter(&spec, &factor);
        if (is_left_out(site, letter))
            continue;
        if (letter == '*') {
            for (int32_t i = 0; i < f.lead_count; i++)
                shape[ndim++] = f.lead[i];
            continue;
        }
        size = known(site, letter);
        size = size < 0 ? *free_of(&f, letter) : size;
        shape[ndim++] = size < 0 ? 0 : factor * size;
    }
    return ndim;
}

/* The tensor that a spec describes, dense and without data. A letter that is still free counts as 0. */
static tn_tensor tensor_of(const char *spec, const tn_site *site, const op_free *free_letters)
{
    int64_t shape[TN_MAX_DIMS];
    int32_t ndim = shape_of(spec + 1, site, free_letters, shape);
    return tn_tensor_dense(NULL, op_dtype_of(spec, site), ndim, shape);
}

tn_role op_group_role(tn_role role)
{
    bool matrix = role == TN_ROLE_WEIGHT || (role >= TN_ROLE_GATE && role <= TN_ROLE_GATE_UP) ||
                  (role >= TN_ROLE_SHARED_GATE && role <= TN_ROLE_SHARED_DOWN);
    return matrix ? TN_ROLE_GROUP_OF(role) : (tn_role)0;
}

int64_t op_group_columns(int64_t columns, int64_t groups)
{
    int64_t size = groups > 0 ? 1 : 0;
    if (groups == 1)
        return columns > 0 ? columns : 1;
    while (size > 0 && size < columns && (columns + size - 1) / size > groups)
        size *= 2;
    return size > 0 && (columns + size - 1) / size == groups ? size : 0;
}

/* What is not quantised beside quantised weights has the type of activations. */
tn_dtype op_param_shape(const op_param *param, const tn_site *site, int32_t *ndim, int64_t shape[TN_MAX_DIMS])
{
    int32_t weight = site->meaning[TN_AXIS_WEIGHT] ? site->meaning[TN_AXIS_WEIGHT] : site->meaning[TN_AXIS_DTYPE];
    *ndim = shape_of(param->shape, site, &op_nothing_free, shape);
    bool plain = blocks_is_quantised((tn_dtype)weight) && !op_group_role(param->role);
    return (tn_dtype)(plain ? site->meaning[TN_AXIS_DTYPE] : weight);
}

tn_tensor op_param_tensor(const op_param *param, const tn_site *site)
{
    int64_t shape[TN_MAX_DIMS];
    int32_t ndim;
    tn_dtype dtype = op_param_shape(param, site, &ndim, shape);
    return tn_tensor_dense(NULL, dtype, ndim, shape);
}

int64_t op_param_count(const op_param *param, const tn_site *site)
{
    return param->per_expert ? site->dim[TN_DIM_EXPERTS] : 1;
}

static bool fits_free(int64_t *bound, int64_t size)
{
    if (*bound < 0)
        *bound = size;
    return *bound == size;
}

static bool fits_lead(op_free *f, const tn_tensor *t)
{
    int32_t count = t->ndim - 1;
    if (f->lead_count < 0) {
        f->lead_count = count;
        memcpy(f->lead, t->shape, sizeof f->lead);
    }
    return count == f->lead_count && !memcmp(f->lead, t->shape, (size_t)count * sizeof *f->lead);
}

bool op_fits(const char *spec, const tn_site *site, op_free *f, const tn_tensor *t)
{
    if (t->ndim < 1 || t->ndim > TN_MAX_DIMS)
        return false;
    int32_t at = 0;
    while (*spec) {
        int64_t factor;
        char letter = next_letter(&spec, &factor);
        if (is_left_out(site, letter))
            continue;
        if (letter == '*') {
            if (!fits_lead(f, t))
                return false;
            at = t->ndim - 1;
            continue;
        }
        if (at >= t->ndim || t->shape[at] < 0)
            return false;
        int64_t size = t->shape[at++], must = known(site, letter);
        bool one = letter == 'b' && size == 1;
        if (must >= 0 ? size != factor * must : !one && !fits_free(free_of(f, letter), size))
            return false;
    }
    return at == t->ndim;
}

tn_call op_call_of(const op_row *row, const tn_site *site, const op_free *free_letters)
{
    tn_call call = {.size = sizeof call, .op = row->op, .site = site};
    call.in_count = op_in_count(row, site);
    call.out_count = op_out_count(row, site, true);
    for (int i = 0; i < call.in_count; i++)
        call.in[i] = tensor_of(row->in[i].shape, site, free_letters);
    for (int i = 0; i < call.out_count; i++)
        call.out[i] = tensor_of(row->out[i].shape, site, free_letters);
    return call;
}

int64_t op_tokens(const tn_call *call)
{
    const tn_tensor *x = &call->in[0];
    return x->ndim > 2 ? x->shape[0] * x->shape[1] : x->ndim > 1 ? x->shape[0] : 1;
}
