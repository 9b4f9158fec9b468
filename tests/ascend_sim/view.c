/* Views of device memory while work runs: packed copies of their elements, and the rules that operators share. */
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE 64 /* columns of a tile */

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

int64_t sim_product(const int64_t *shape, int from, int to)
{
    int64_t product = 1;
    for (int i = from; i < to; i++)
        product *= shape[i];
    return product;
}

int64_t sim_elements(const sim_tensor *t)
{
    return t->present ? sim_product(t->shape, 0, t->rank) : 0;
}

int64_t sim_bytes(const sim_tensor *t)
{
    return sim_elements(t) * (int64_t)aclDataTypeSize(t->type);
}

bool sim_contiguous(const sim_tensor *t)
{
    int64_t step = 1;
    for (int i = t->rank; i-- > 0;) {
        if (t->shape[i] != 1 && t->strides[i] != step)
            return sim_elements(t) == 0;
        step *= t->shape[i];
    }
    return true;
}

/* The vendor's test: only strides tell. A matrix of one row or column may be both. */
bool sim_transposed(const sim_tensor *t)
{
    int r = t->rank;
    if (r < 2 || t->strides[r - 2] != 1 || t->strides[r - 1] != t->shape[r - 2])
        return false;
    int64_t step = t->shape[r - 1] * t->shape[r - 2];
    for (int i = r - 3; i >= 0; step *= t->shape[i--])
        if (t->strides[i] != step)
            return false;
    return true;
}

bool sim_has_shape(const sim_tensor *t, int rank, const int64_t *shape)
{
    return t->rank == rank && memcmp(t->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

bool sim_broadcast(const sim_tensor *t, int rank, const int64_t *shape, sim_tensor *out)
{
    *out = *t;
    if (t->rank > rank || rank > SIM_RANK_MAX)
        return false;
    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        int own = i - (rank - t->rank);
        bool repeated = own < 0 || (t->shape[own] == 1 && shape[i] != 1);
        if (!repeated && t->shape[own] != shape[i])
            return false;
        out->shape[i] = shape[i];
        out->strides[i] = repeated ? 0 : t->strides[own];
    }
    return true;
}

int sim_axis(sim_op *op, int64_t dim, int rank)
{
    int64_t least = rank ? rank : 1; /* a tensor of rank 0 has the axes 0 and -1 */
    if (dim >= -least && dim < least)
        return (int)(dim < 0 ? dim + least : dim);
    sim_fault(op, 161002, "dimension %lld of a tensor of rank %d", (long long)dim, rank);
    return 0;
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

void sim_want_type(sim_op *op, const sim_tensor *t, int types)
{
    if (sim_soc_of() == SIM_310P)
        types &= ~SIM_BF16;
    if (t->present && !(sim_type_bit(t->type) & types))
        sim_fault(op, 161002, "%s is %s, which is not among its types", t->role, sim_type_name(t->type));
}

void sim_want_same_type(sim_op *op, const sim_tensor *a, const sim_tensor *b)
{
    if (a->present && b->present && a->type != b->type)
        sim_fault(op, 161002, "%s is %s, and %s is %s", a->role, sim_type_name(a->type), b->role,
                  sim_type_name(b->type));
}

void sim_want_contiguous(sim_op *op, const sim_tensor *t)
{
    if (!sim_contiguous(t))
        sim_fault(op, 161002, "%s has to be contiguous", t->role);
}

void sim_want_shape(sim_op *op, int code, const sim_tensor *t, int rank, const int64_t *shape)
{
    if (!t->present || sim_has_shape(t, rank, shape))
        return;
    if (t->rank != rank)
        sim_fault(op, code, "%s has rank %d instead of %d", t->role, t->rank, rank);
    for (int i = 0; i < rank && i < t->rank; i++)
        if (t->shape[i] != shape[i])
            sim_fault(op, code, "dimension %d of %s is %lld instead of %lld", i, t->role, (long long)t->shape[i],
                      (long long)shape[i]);
}

void sim_want_rank(sim_op *op, int code, const sim_tensor *t, int least, int most)
{
    if (t->present && (t->rank < least || t->rank > most))
        sim_fault(op, code, "%s has rank %d, not %d to %d", t->role, t->rank, least, most);
}

void ops_check_row(sim_op *op, int chips, const char *types, const char *strides)
{
    char given[32] = "", names[512] = "";
    if (chips == A2_A3 && sim_soc_of() == SIM_310P)
        sim_fault(op, 561003, "no kernel of this chip");
    for (int i = 0; i < op->count && i < (int)sizeof given; i++) {
        const sim_tensor *t = op->tensors[i];
        given[i] = t->present ? acl_letter(t->type) : '\0';
        if (t->present && (!given[i] || (t->type == ACL_BF16 && sim_soc_of() == SIM_310P)))
            sim_fault(op, 161002, "%s is %s, which is not among its types", t->role, sim_type_name(t->type));
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s %s", t->role,
                 t->present ? sim_type_name(t->type) : "NULL");
    }
    if (*types && !acl_types_fit(types, given, op->count))
        sim_fault(op, 161002, "no combination of types has%s; there are %s", names, types);
    for (int i = 0; i < op->count && strides[i]; i++)
        if (strides[i] == 'd')
            sim_want_contiguous(op, op->tensors[i]);
}

/* ---- elements -------------------------------------------------------------------------------------------------- */

typedef struct plane {
    char *view, *packed;
    size_t size;                /* of an element */
    int64_t rows, columns;      /* packed has them one after the other */
    int64_t row_step, col_step; /* in the view */
    bool to_view;
} plane;

static void copy_run(const plane *p, int64_t row, int64_t column, int64_t count)
{
    char *view = p->view + (size_t)(row * p->row_step + column * p->col_step) * p->size;
    char *packed = p->packed + (size_t)(row * p->columns + column) * p->size;
    if (p->col_step == 1) {
        memcpy(p->to_view ? view : packed, p->to_view ? packed : view, (size_t)count * p->size);
        return;
    }
    size_t step = (size_t)p->col_step * p->size;
    char *from = p->to_view ? packed : view, *to = p->to_view ? view : packed;
    size_t from_step = p->to_view ? p->size : step, to_step = p->to_view ? step : p->size;
    if (p->size == 2) /* the one case that has to be quick: weights that are transposed views */
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, 2);
    else
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, p->size);
}

/* In tiles, so that transposed views do not miss the cache at each element. */
static void copy_plane(const plane *p)
{
    int64_t tile = p->col_step == 1 ? p->columns : TILE;
    for (int64_t column = 0; column < p->columns; column += tile)
        for (int64_t row = 0; row < p->rows; row++)
            copy_run(p, row, column, p->columns - column < tile ? p->columns - column : tile);
}

/* Copies between a view and packed elements, the last two dimensions at a time. */
static void move_elements(const sim_tensor *t, char *packed, bool to_view)
{
    int64_t count = sim_elements(t), index[SIM_RANK_MAX] = {0}, at = 0;
    int last = t->rank - 1;
    plane p = {.size = aclDataTypeSize(t->type), .rows = 1, .columns = 1, .col_step = 1, .to_view = to_view};
    if (last >= 0) {
        p.columns = t->shape[last];
        p.col_step = p.columns == 1 ? 1 : t->strides[last];
    }
    if (last >= 1) {
        p.rows = t->shape[last - 1];
        p.row_step = t->strides[last - 1];
    }
    for (int64_t done = 0; done < count; done += p.rows * p.columns) {
        p.view = t->host + (size_t)at * p.size;
        p.packed = packed + (size_t)done * p.size;
        copy_plane(&p);
        for (int axis = last - 2; axis >= 0; axis--) {
            at += t->strides[axis];
            if (++index[axis] < t->shape[axis])
                break;
            at -= t->strides[axis] * t->shape[axis];
            index[axis] = 0;
        }
    }
}

void *sim_load_raw(const sim_tensor *t)
{
    char *packed = sim_allocate((size_t)sim_elements(t) * aclDataTypeSize(t->type));
    move_elements(t, packed, false);
    return packed;
}

void sim_store_raw(const sim_tensor *t, const void *packed)
{
    if (sim_elements(t))
        move_elements(t, (char *)(uintptr_t)packed, true);
}

float *sim_load(const sim_tensor *t)
{
    void *raw = sim_load_raw(t);
    if (t->type == ACL_FLOAT)
        return raw;
    int64_t count = sim_elements(t);
    const uint16_t *half = raw;
    float *values = sim_allocate((size_t)count * sizeof *values);
    if (t->type == ACL_BF16)
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)half[i] << 16; /* sim_from_bf16, without a call for each */
            memcpy(values + i, &bits, sizeof bits);
        }
    else if (t->type == ACL_FLOAT16)
        for (int64_t i = 0; i < count; i++)
            values[i] = sim_from_f16(half[i]);
    else {
        int64_t *whole = sim_load_ints(t);
        for (int64_t i = 0; i < count; i++)
            values[i] = (float)whole[i];
        free(whole);
    }
    free(raw);
    return values;
}

void sim_store(const sim_tensor *t, const float *packed)
{
    int64_t count = sim_elements(t);
    if (t->type == ACL_FLOAT) {
        sim_store_raw(t, packed);
        return;
    }
    uint16_t *half = sim_allocate((size_t)count * sizeof *half);
    for (int64_t i = 0; i < count; i++)
        half[i] = t->type == ACL_BF16 ? sim_to_bf16(packed[i]) : sim_to_f16(packed[i]);
    sim_store_raw(t, half);
    free(half);
}

int64_t *sim_load_ints(const sim_tensor *t)
{
    int64_t count = sim_elements(t);
    void *raw = sim_load_raw(t);
    if (t->type == ACL_INT64)
        return raw;
    int64_t *values = sim_allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        switch ((int)t->type) {
        case ACL_INT32:
            values[i] = ((const int32_t *)raw)[i];
            break;
        case ACL_BOOL:
        case ACL_UINT8:
            values[i] = ((const uint8_t *)raw)[i];
            break;
        case ACL_INT8:
            values[i] = ((const int8_t *)raw)[i];
            break;
        case ACL_INT16:
            values[i] = ((const int16_t *)raw)[i];
            break;
        default:
            values[i] = 0;
        }
    free(raw);
    return values;
}

void sim_store_ints(const sim_tensor *t, const int64_t *packed)
{
    int64_t count = sim_elements(t);
    if (t->type == ACL_INT64) {
        sim_store_raw(t, packed);
        return;
    }
    char *raw = sim_allocate((size_t)count * aclDataTypeSize(t->type));
    for (int64_t i = 0; i < count; i++)
        switch ((int)t->type) {
        case ACL_INT32:
            ((int32_t *)(void *)raw)[i] = (int32_t)packed[i];
            break;
        case ACL_INT16:
            ((int16_t *)(void *)raw)[i] = (int16_t)packed[i];
            break;
        case ACL_BOOL:
            raw[i] = packed[i] != 0;
            break;
        default:
            raw[i] = (char)packed[i];
        }
    sim_store_raw(t, raw);
    free(raw);
}
