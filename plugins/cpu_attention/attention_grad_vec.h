/* The middle of backward for every width of vectors: included behind attention_vec.h. */
#include "attention_grad.h"

/* Scores are multiplied and the largest taken away in two roundings, as it was found: the largest gives 1. */
VEC_INLINE vec grad_power(const attention_grad_block *b, int64_t at_, vec max)
{
    return vec_exp2(vec_sub(vec_mul(at(b->x + at_), vec_set(b->scale)), max));
}

static void grad_sum(attention_grad_lanes *lanes, const attention_grad_block *b)
{
    const vec zero = vec_set(0.0f);
    for (int l = 0; l < GROUP; l += VEC_LANES) {
        vec before = at(lanes->max + l), max = before;
        for (int64_t s = 0; s < b->count; s++)
            max = vec_max(vec_mul(at(b->x + s * GROUP + l), vec_set(b->scale)), max);
        vec factor = vec_exp2(vec_sub(before, max)), sum = vec_mul(at(lanes->inverse + l), factor);
        vec inner = vec_mul(at(lanes->inner + l), factor);
        for (int64_t s = 0; s < b->count; s++) {
            vec p = grad_power(b, s * GROUP + l, max);
            sum = vec_add(sum, p);
            inner = vec_add(inner, vec_where_greater(p, zero, vec_mul(p, at(b->dp + s * GROUP + l)), p));
        }
        put(lanes->max + l, max);
        put(lanes->inverse + l, sum);
        put(lanes->inner + l, inner);
    }
}

/* p, and ds: no product with what is not seen, whose dp may be anything. */
VEC_INLINE vec grad_of(const attention_grad_lanes *lanes, const attention_grad_block *b, int64_t s, int l, vec *p)
{
    vec x = at(b->x + s * GROUP + l), slope = vec_set(b->natural);
    *p = vec_mul(vec_exp2(vec_sub(vec_mul(x, vec_set(b->scale)), at(lanes->max + l))), at(lanes->inverse + l));
    if (b->cap_out != 0.0f) {
        vec t = vec_mul(x, vec_set(1.0f / b->cap_out));
        slope = vec_mul(slope, vec_fnma(t, t, vec_set(1.0f)));
    }
    vec ds = vec_mul(vec_mul(*p, vec_sub(at(b->dp + s * GROUP + l), at(lanes->inner + l))), slope);
    return vec_where_greater(*p, vec_set(0.0f), ds, *p);
}

static void grad_soften(const attention_grad_lanes *lanes, const attention_grad_block *b)
{
    for (int64_t s = 0; s < b->count; s++)
        for (int l = 0; l < GROUP; l += VEC_LANES) {
            vec p, ds = grad_of(lanes, b, s, l, &p);
            put((float *)b->p + s * ATTENTION_ROWS + l, p);
            put((float *)b->ds + s * ATTENTION_ROWS + l, ds);
            put((float *)b->ds_panel + s * GROUP + l, ds);
        }
}

VEC_INLINE vec grad_load(const char *p, tn_dtype dtype, int64_t left)
{
    return left >= VEC_LANES ? vec_load(p, dtype) : left > 0 ? vec_load_part(p, dtype, left) : vec_set(0.0f);
}

VEC_INLINE void grad_rows_as(const char *const *row, tn_dtype dtype, int64_t n, float *panel)
{
    for (int r = 0; r < GROUP; r++)
        for (int64_t c = 0; c < n; c += GROUP)
            for (int l = 0; l < GROUP; l += VEC_LANES)
                put(panel + c * ATTENTION_ROWS + r * GROUP + l,
                    grad_load(row[r] + (size_t)(c + l) * size_of(dtype), dtype, n - c - l));
}

static void grad_rows(const char *const *row, tn_dtype dtype, int64_t n, void *panel)
{
    if (dtype == TN_F32)
        grad_rows_as(row, TN_F32, n, panel);
    else if (dtype == TN_BF16)
        grad_rows_as(row, TN_BF16, n, panel);
    else
        grad_rows_as(row, TN_F16, n, panel);
}

VEC_INLINE void grad_narrow_as(const float *from, int64_t n, tn_dtype dtype, char *to)
{
    for (int64_t c = 0; c < n; c += VEC_LANES) {
        vec v = at(from + c / GROUP * ATTENTION_KEYS * GROUP + c % GROUP);
        if (n - c >= VEC_LANES)
            vec_store(to + (size_t)c * size_of(dtype), dtype, v);
        else
            vec_store_part(to + (size_t)c * size_of(dtype), dtype, v, n - c);
    }
}

static void grad_narrow(const float *from, int64_t n, tn_dtype dtype, char *to)
{
    if (dtype == TN_F32)
        grad_narrow_as(from, n, TN_F32, to);
    else if (dtype == TN_BF16)
        grad_narrow_as(from, n, TN_BF16, to);
    else
        grad_narrow_as(from, n, TN_F16, to);
}

static void attention_grad_init_vec(attention_grad_kernels *kernels)
{
    *kernels = (attention_grad_kernels){grad_sum, grad_soften, grad_rows, grad_narrow};
}
