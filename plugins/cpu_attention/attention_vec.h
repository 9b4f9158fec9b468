/* What is written once for every width of vectors: include vec_<isa>.h first, and define vec_exp2 (2 to the power of
 * a: 0 below -150, NaN stays) and how many groups of lanes and how many rows the products take at a time. */
#include "attention.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { GROUP = ATTENTION_LANES, SPAN = ATTENTION_LANES / VEC_LANES }; /* vectors of a group              */

static inline size_t size_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? 4 : 2;
}

VEC_INLINE vec at(const float *p)
{
    return vec_load((const char *)p, TN_F32);
}

VEC_INLINE void put(float *p, vec a)
{
    vec_store((char *)p, TN_F32, a);
}

/* ---- queries and keys as the products want them ----------------------------------------------------- */

VEC_INLINE void queries_as(const char *const *row, tn_dtype dtype, int64_t d, float *panel)
{
    for (int64_t i = 0; i < d; i += VEC_LANES) {
        int64_t left = d - i, n = left < VEC_LANES ? left : VEC_LANES;
        for (int l = 0; l < GROUP; l += VEC_LANES) {
            vec v[VEC_LANES];
            for (int r = 0; r < VEC_LANES; r++) {
                const char *from = row[l + r] + (size_t)i * size_of(dtype);
                v[r] = left >= VEC_LANES ? vec_load(from, dtype) : vec_load_part(from, dtype, left);
            }
            vec_transpose(v);
            for (int64_t c = 0; c < n; c++)
                put(panel + (i + c) * GROUP + l, v[c]);
        }
    }
}

static void queries(const char *const *row, tn_dtype dtype, int64_t d, void *panel)
{
    if (dtype == TN_F32)
        queries_as(row, TN_F32, d, panel);
    else if (dtype == TN_BF16)
        queries_as(row, TN_BF16, d, panel);
    else
        queries_as(row, TN_F16, d, panel);
}

VEC_INLINE void widen_as(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n, float *to)
{
    for (int64_t r = 0; r < rows; r++, from += step, to += n) {
        int64_t i = 0;
        for (; i + VEC_LANES <= n; i += VEC_LANES)
            put(to + i, vec_load(from + (size_t)i * size_of(dtype), dtype));
        if (i < n)
            vec_store_part((char *)(to + i), TN_F32, vec_load_part(from + (size_t)i * size_of(dtype), dtype, n - i),
                           n - i);
    }
}

static void widen(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n, float *to)
{
    if (dtype == TN_BF16)
        widen_as(from, step, TN_BF16, rows, n, to);
    else if (dtype == TN_F16)
        widen_as(from, step, TN_F16, rows, n, to);
    else
        widen_as(from, step, TN_F32, rows, n, to);
}

/* The largest exponent is that of infinity and NaN; the loops are the compiler's to widen. */
static bool finite_rows(const char *from, int64_t step, tn_dtype dtype, int64_t rows, int64_t n)
{
    uint32_t worst = 0, most = dtype == TN_F32 ? 0x7f800000u : dtype == TN_BF16 ? 0x7f80u : 0x7c00u;
    for (int64_t r = 0; r < rows && worst < most; r++, from += step) {
        for (int64_t i = 0; dtype == TN_F32 && i < n; i++) {
            uint32_t bits;
            memcpy(&bits, from + 4 * i, 4);
            bits &= 0x7fffffffu;
            worst = bits > worst ? bits : worst;
        }
        uint16_t half = 0;
        for (int64_t i = 0; dtype != TN_F32 && i < n; i++) {
            uint16_t bits;
            memcpy(&bits, from + 2 * i, 2);
            bits &= 0x7fffu;
            half = bits > half ? bits : half;
        }
        worst = half > worst ? half : worst;
    }
    return worst < most;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* n rows times groups groups of lanes. */
VEC_INLINE void product(const float *w, int64_t row, int64_t step, int n, int64_t depth, const float *panel,
                        int64_t panel_group, int groups, bool add, float *out, int64_t out_group)
{
    vec sum[VEC_ROWS][VEC_GROUPS * SPAN];
    for (int r = 0; r < n; r++)
        for (int v = 0; v < groups * SPAN; v++)
            sum[r][v] = add ? at(out + v / SPAN * out_group + r * GROUP + v % SPAN * VEC_LANES) : vec_set(0.0f);
    for (int64_t i = 0; i < depth; i++) {
        vec x[VEC_GROUPS * SPAN];
        for (int v = 0; v < groups * SPAN; v++)
            x[v] = at(panel + v / SPAN * panel_group + i * GROUP + v % SPAN * VEC_LANES);
        for (int r = 0; r < n; r++) {
            vec one = vec_set(w[r * row + i * step]);
            for (int v = 0; v < groups * SPAN; v++)
                sum[r][v] = vec_fma(one, x[v], sum[r][v]);
        }
    }
    for (int r = 0; r < n; r++)
        for (int v = 0; v < groups * SPAN; v++)
            put(out + v / SPAN * out_group + r * GROUP + v % SPAN * VEC_LANES, sum[r][v]);
}

VEC_INLINE void products_of(const attention_operand *w, int64_t rows, int64_t depth, const float *panel,
                            int64_t panel_group, int groups, bool add, float *out, int64_t out_group)
{
    const float *from = w->data;
    int64_t r = 0;
    for (; r + VEC_ROWS <= rows; r += VEC_ROWS)
        product(from + r * w->row, w->row, w->step, VEC_ROWS, depth, panel, panel_group, groups, add, out + r * GROUP,
                out_group);
    for (; r + 2 <= rows; r += 2)
        product(from + r * w->row, w->row, w->step, 2, depth, panel, panel_group, groups, add, out + r * GROUP,
                out_group);
    if (r < rows)
        product(from + r * w->row, w->row, w->step, 1, depth, panel, panel_group, groups, add, out + r * GROUP,
                out_group);
}

VEC_INLINE void products(const attention_operand *w, int64_t rows, int64_t depth, const float *panel,
                         int64_t panel_group, int32_t groups, bool add, float *out, int64_t out_group)
{
    int32_t g = 0;
    for (; g + VEC_GROUPS <= groups; g += VEC_GROUPS)
        products_of(w, rows, depth, panel + g * panel_group, panel_group, VEC_GROUPS, add, out + g * out_group,
                    out_group);
#if VEC_GROUPS > 2
    for (; g + 2 <= groups; g += 2)
        products_of(w, rows, depth, panel + g * panel_group, panel_group, 2, add, out + g * out_group, out_group);
#endif
    for (; g < groups; g++)
        products_of(w, rows, depth, panel + g * panel_group, panel_group, 1, add, out + g * out_group, out_group);
}

static void scores_of(const attention_operand *keys, int64_t count, int64_t depth, const void *panel, int32_t groups,
                      float *to)
{
    products(&(attention_operand){keys->data, keys->row, 1}, count, depth, panel, depth * GROUP, groups, false, to,
             ATTENTION_KEYS * GROUP);
}

static void mix(const attention_operand *values, int64_t dv, int64_t count, const void *panel, int64_t panel_group,
                int32_t groups, float *o, int64_t o_group)
{
    if (values->row == 1)
        products(&(attention_operand){values->data, 1, values->step}, dv, count, panel, panel_group, groups, true, o,
                 o_group);
    else
        products(&(attention_operand){values->data, values->row, 1}, dv, count, panel, panel_group, groups, true, o,
                 o_group);
}

/* ---- softmax --------------------------------------------------------------------------------------------- */

/* tanh within 4 units of the last place: a series near 0, where the quotient would cancel. */
VEC_INLINE vec vec_tanh(vec x)
{
    static const float series[] = {-1382.0f / 155925, 62.0f / 2835, -17.0f / 315, 2.0f / 15, -1.0f / 3};
    vec one = vec_set(1.0f), square = vec_mul(x, x), p = vec_set(series[0]);
    for (int i = 1; i < 5; i++)
        p = vec_fma(p, square, vec_set(series[i]));
    vec near = vec_fma(vec_mul(x, square), p, x), a = vec_abs(x);
    vec e = vec_exp2(vec_mul(a, vec_set(-2.88539008f))), far = vec_div(vec_sub(one, e), vec_add(one, e));
    far = vec_where_negative(x, vec_sub(vec_set(0.0f), far), far);
    return vec_where_greater(vec_set(0.35f), a, near, far);
}

static void cap(float *x, int64_t n, float in, float out)
{
    for (int64_t i = 0; i < n; i += VEC_LANES)
        put(x + i, vec_mul(vec_set(out), vec_tanh(vec_mul(vec_set(in), at(x + i)))));
}

static void mask(attention_lanes *lanes, const int32_t *index, int64_t count, float *x)
{
    int32_t seen[GROUP], low[GROUP], high[GROUP];
    memcpy(seen, lanes->seen, sizeof seen);
    memcpy(low, lanes->low, sizeof low);
    memcpy(high, lanes->high, sizeof high);
    for (int64_t s = 0; s < count; s++)
        for (int l = 0; l < GROUP; l++) {
            int32_t sees = (index[s] >= low[l]) & (index[s] <= high[l]);
            seen[l] |= sees;
            x[s * GROUP + l] = sees ? x[s * GROUP + l] : -INFINITY;
        }
    memcpy(lanes->seen, seen, sizeof seen);
}

/* What max becomes for one vector of lanes, and the factor of what was summed before. */
VEC_INLINE vec raise_max(attention_lanes *lanes, int l, float scale, int64_t count, const float *x)
{
    vec top[4], before = at(lanes->max + l);
    for (int c = 0; c < 4; c++)
        top[c] = vec_set(-INFINITY);
    for (int64_t s = 0; s < count; s += 4)
        for (int c = 0; c < 4; c++)
            top[c] = vec_max(at(x + (s + c) * GROUP + l), top[c]);
    vec largest = vec_mul(vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3])), vec_set(scale));
    vec max = vec_where_greater(largest, vec_add(before, vec_set(ATTENTION_RAISE)), largest, before);
    put(lanes->max + l, max);
    put(lanes->factor + l, vec_exp2(vec_sub(before, max)));
    return max;
}

static bool raised(const attention_lanes *lanes)
{
    int32_t other = 0;
    for (int l = 0; l < GROUP; l++)
        other |= lanes->factor[l] != 1.0f;
    return other;
}

static bool soften(attention_lanes *lanes, float scale, int64_t count, const float *x, void *panel)
{
    float *p = panel;
    for (int l = 0; l < GROUP; l += VEC_LANES) {
        vec max = raise_max(lanes, l, scale, count, x), minus = vec_sub(vec_set(0.0f), max), sum[ATTENTION_SUMS];
        for (int c = 0; c < ATTENTION_SUMS; c++)
            sum[c] = vec_set(0.0f);
        for (int64_t s = 0; s < count; s += ATTENTION_SUMS)
            for (int c = 0; c < ATTENTION_SUMS; c++) {
                vec one = vec_exp2(vec_fma(at(x + (s + c) * GROUP + l), vec_set(scale), minus));
                sum[c] = vec_add(sum[c], one);
                put(p + (s + c) * GROUP + l, one);
            }
        vec all = vec_add(vec_add(sum[0], sum[2]), vec_add(sum[1], sum[3]));
        put(lanes->sum + l, vec_fma(at(lanes->sum + l), at(lanes->factor + l), all));
    }
    return raised(lanes);
}

/* Rounded product and scale, softcap in three steps. */
VEC_INLINE vec score_of(const attention_rule *rule, tn_dtype dtype, vec x)
{
    x = vec_round(vec_mul(vec_round(x, dtype), vec_set(rule->scale)), dtype);
    if (rule->softcap == 0.0f)
        return x;
    x = vec_round(vec_tanh(vec_round(vec_div(x, vec_set(rule->softcap)), dtype)), dtype);
    return vec_round(vec_mul(x, vec_set(rule->softcap)), dtype);
}

/* Scores of a vector of lanes become powers; returns their sum. With a sink the largest is taken away in the model's
 * type, before the softmax. */
VEC_INLINE vec powers_of(const attention_rule *rule, tn_dtype dtype, int l, int64_t count, const float *x, float *p)
{
    const vec log2_e = vec_set(1.44269504f);
    vec max = vec_set(-FLT_MAX), sum = vec_set(0.0f), own = at(rule->sink + l);
    for (int64_t s = 0; s < count; s++)
        max = vec_max(at(x + s * GROUP + l), max);
    if (rule->has_sink) {
        max = vec_max(own, max);
        sum = vec_exp2(vec_mul(vec_round(vec_sub(own, max), dtype), log2_e));
    }
    for (int64_t s = 0; s < count; s++) {
        vec away = vec_sub(at(x + s * GROUP + l), max);
        vec power = vec_exp2(vec_mul(rule->has_sink ? vec_round(away, dtype) : away, log2_e));
        sum = vec_add(sum, power);
        put(p + s * GROUP + l, power);
    }
    return sum;
}

VEC_INLINE void as_eager_in(attention_lanes *lanes, const attention_rule *rule, tn_dtype dtype, const int32_t *index,
                            int64_t count, float *x, float *p)
{
    for (int64_t i = 0; i < count * GROUP; i += VEC_LANES)
        put(x + i, score_of(rule, dtype, at(x + i)));
    mask(lanes, index, count, x);
    for (int l = 0; l < GROUP; l += VEC_LANES) {
        float inverse[VEC_LANES];
        put(inverse, powers_of(rule, dtype, l, count, x, p));
        for (int i = 0; i < VEC_LANES; i++) {
            inverse[i] = lanes->seen[l + i] ? 1.0f / inverse[i] : 0.0f;
            lanes->max[l + i] = 0.0f;
            lanes->sum[l + i] = 1.0f;
        }
        for (int64_t s = 0; s < count; s++)
            put(p + s * GROUP + l, vec_round(vec_mul(at(p + s * GROUP + l), at(inverse)), dtype));
    }
}

static void as_eager(attention_lanes *lanes, const attention_rule *rule, const int32_t *index, int64_t count, float *x,
                     float *p)
{
    if (rule->dtype == TN_BF16)
        as_eager_in(lanes, rule, TN_BF16, index, count, x, p);
    else
        as_eager_in(lanes, rule, TN_F16, index, count, x, p);
}

static void rescale(const float *factor, int64_t dv, float *o)
{
    for (int64_t i = 0; i < dv; i++)
        for (int l = 0; l < GROUP; l += VEC_LANES)
            put(o + i * GROUP + l, vec_mul(at(o + i * GROUP + l), at(factor + l)));
}

static void join(float *all, const float *before, const float *o, const float *factor, int64_t n)
{
    for (int64_t i = 0; i < n * GROUP; i += GROUP)
        for (int l = 0; l < GROUP; l += VEC_LANES)
            put(all + i + l, vec_fma(at(o + i + l), at(factor + l), vec_mul(at(all + i + l), at(before + l))));
}

static void store(const float *o, const float *factor, int64_t dv, tn_dtype dtype, int32_t rows, char *const *to)
{
    for (int64_t i = 0; i < dv; i += VEC_LANES) {
        int64_t left = dv - i;
        for (int l = 0; l < rows; l += VEC_LANES) {
            vec v[VEC_LANES];
            for (int c = 0; c < VEC_LANES; c++)
                v[c] = c < left ? vec_fma(at(o + (i + c) * GROUP + l), at(factor + l), vec_set(0.0f)) : vec_set(0.0f);
            vec_transpose(v);
            for (int r = 0; r < VEC_LANES && l + r < rows; r++) {
                char *row = to[l + r] + (size_t)i * size_of(dtype);
                if (left >= VEC_LANES)
                    vec_store(row, dtype, v[r]);
                else
                    vec_store_part(row, dtype, v[r], left);
            }
        }
    }
}

VEC_INLINE void store_row_as(const float *o, float factor, int64_t dv, tn_dtype dtype, char *to)
{
    for (int64_t i = 0; i < dv; i += VEC_LANES, to += VEC_LANES * size_of(dtype)) {
        vec v = vec_fma(at(o + i), vec_set(factor), vec_set(0.0f));
        if (dv - i >= VEC_LANES)
            vec_store(to, dtype, v);
        else
            vec_store_part(to, dtype, v, dv - i);
    }
}

static void store_row(const float *o, float factor, int64_t dv, tn_dtype dtype, char *to)
{
    if (dtype == TN_F32)
        store_row_as(o, factor, dv, TN_F32, to);
    else if (dtype == TN_BF16)
        store_row_as(o, factor, dv, TN_BF16, to);
    else
        store_row_as(o, factor, dv, TN_F16, to);
}

#include "attention_few_vec.h"

static void attention_init_vec(attention_kernels *kernels)
{
    *kernels = (attention_kernels){ATTENTION_KERNELS, .few_rows = ATTENTION_FEW, .few_scores = few_scores,
                                   .few_soften = few_soften, .few_mix = few_mix};
}
