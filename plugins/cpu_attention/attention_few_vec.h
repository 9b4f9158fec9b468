/* Few rows with vectors along the head: included by attention_vec.h. Up to four rows share what is loaded of a key or
 * value; the keys of the next block are asked for while those of this one are used. */

enum { AHEAD = ATTENTION_FEW_KEYS, LINE = 64 };

/* The elements i .. of a row as a pack, with zeros behind its end. */
VEC_INLINE pack pack_at(const char *row, tn_dtype dtype, int64_t i, int64_t n)
{
    const char *from = row + (size_t)i * size_of(dtype);
    return n - i >= PACK ? pack_load(from, dtype) : pack_load_part(from, dtype, n - i);
}

VEC_INLINE void few_queries_as(const char *from, tn_dtype dtype, int64_t d, float *q)
{
    for (int64_t i = 0; i < d; i += PACK) {
        pack x = pack_at(from, dtype, i, d);
        put(q + i, x.a);
        put(q + i + VEC_LANES, x.b);
    }
}

static void few_queries(const char *from, tn_dtype dtype, int64_t d, float *q)
{
    if (dtype == TN_F32)
        few_queries_as(from, TN_F32, d, q);
    else if (dtype == TN_BF16)
        few_queries_as(from, TN_BF16, d, q);
    else
        few_queries_as(from, TN_F16, d, q);
}

/* x[row][s] of `keys` keys from s on. */
VEC_INLINE void few_dots_of(const attention_few *f, tn_dtype dtype, const float *q, int rows, int keys, int64_t s,
                            float (*x)[ATTENTION_FEW_KEYS])
{
    vec sum[8][2];
    const char *k[8];
    for (int i = 0; i < keys; i++)
        k[i] = f->k + f->key[s + i] * f->k_step;
    for (int i = 0; i < rows * keys; i++)
        sum[i][0] = sum[i][1] = vec_set(0.0f);
    for (int64_t i = 0; i < f->d; i += PACK)
        for (int c = 0; c < keys; c++) {
            pack key = pack_at(k[c], dtype, i, f->d);
            for (int r = 0; r < rows; r++) {
                sum[c * rows + r][0] = vec_fma(key.a, at(q + r * f->q_row + i), sum[c * rows + r][0]);
                sum[c * rows + r][1] = vec_fma(key.b, at(q + r * f->q_row + i + VEC_LANES), sum[c * rows + r][1]);
            }
        }
    for (int c = 0; c < keys; c++)
        for (int r = 0; r < rows; r++)
            x[r][s + c] = vec_sum(vec_add(sum[c * rows + r][0], sum[c * rows + r][1]));
}

VEC_INLINE void few_ask(const char *row, int64_t step, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch(row + AHEAD * step + i);
}

VEC_INLINE void few_dots(const attention_few *f, tn_dtype dtype, const float *q, int rows,
                         float (*x)[ATTENTION_FEW_KEYS])
{
    const int keys = VEC_DOTS / rows;
    int64_t s = 0, k_bytes = f->d * (int64_t)size_of(dtype), v_bytes = f->dv * (int64_t)size_of(dtype);
    for (; s + keys <= f->count; s += keys) {
        for (int c = 0; c < keys; c++) {
            few_ask(f->k + f->key[s + c] * f->k_step, f->k_step, k_bytes);
            few_ask(f->v + f->key[s + c] * f->v_step, f->v_step, v_bytes);
        }
        few_dots_of(f, dtype, q, rows, keys, s, x);
    }
    for (; s < f->count; s++)
        few_dots_of(f, dtype, q, rows, 1, s, x);
}

/* Probabilities times 2^max; factor: of what was summed before. */
VEC_INLINE float few_soften(const attention_few *f, int64_t r, float *x)
{
    int64_t count = attention_up(f->count, VEC_LANES);
    for (int64_t s = f->count; s < count; s++)
        x[s] = -INFINITY;
    if (f->cap_out != 0.0f)
        cap(x, f->count - f->count % VEC_LANES, f->cap_in, f->cap_out);
    for (int64_t s = f->count - f->count % VEC_LANES; f->cap_out != 0.0f && s < f->count; s++)
        x[s] = f->cap_out * tanhf(f->cap_in * x[s]);
    vec top = at(x), sum = vec_set(0.0f);
    for (int64_t s = VEC_LANES; s < count; s += VEC_LANES)
        top = vec_max(at(x + s), top);
    float lane[VEC_LANES], largest = -INFINITY, before = f->max[r];
    put(lane, top);
    for (int l = 0; l < VEC_LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    largest *= f->scale;
    if (largest > before + ATTENTION_RAISE)
        f->max[r] = largest;
    vec minus = vec_set(-f->max[r]);
    for (int64_t s = 0; s < count; s += VEC_LANES) {
        vec p = vec_exp2(vec_fma(at(x + s), vec_set(f->scale), minus));
        sum = vec_add(sum, p);
        put(x + s, p);
    }
    put(lane, vec_exp2(vec_set(before - f->max[r])));
    f->sum[r] = f->sum[r] * lane[0] + vec_sum(sum);
    return lane[0];
}

VEC_INLINE void few_mix(const attention_few *f, tn_dtype dtype, int64_t first, int rows,
                        float (*p)[ATTENTION_FEW_KEYS], const float *factor)
{
    for (int64_t i = 0; i < f->dv; i += PACK) {
        float *o = f->o + first * f->o_row + i;
        vec sum[4][2];
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                sum[r][h] = vec_mul(at(o + r * f->o_row + h * VEC_LANES), vec_set(factor[r]));
        for (int64_t s = 0; s < f->count; s++) {
            pack value = pack_at(f->v + f->key[s] * f->v_step, dtype, i, f->dv);
            for (int r = 0; r < rows; r++) {
                vec one = vec_set(p[r][s]);
                sum[r][0] = vec_fma(one, value.a, sum[r][0]);
                sum[r][1] = vec_fma(one, value.b, sum[r][1]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                put(o + r * f->o_row + h * VEC_LANES, sum[r][h]);
    }
}

VEC_INLINE void few_rows(const attention_few *f, tn_dtype dtype, int64_t first, int rows)
{
    float x[4][ATTENTION_FEW_KEYS], factor[4];
    few_dots(f, dtype, f->q + first * f->q_row, rows, x);
    for (int r = 0; r < rows; r++)
        factor[r] = few_soften(f, first + r, x[r]);
    few_mix(f, dtype, first, rows, x, factor);
}

VEC_INLINE void few_as(const attention_few *f, tn_dtype dtype)
{
    int64_t r = 0;
    for (; r + 4 <= f->rows; r += 4)
        few_rows(f, dtype, r, 4);
    if (r + 2 <= f->rows) {
        few_rows(f, dtype, r, 2);
        r += 2;
    }
    if (r < f->rows)
        few_rows(f, dtype, r, 1);
}

static void few(const attention_few *f)
{
    if (f->dtype == TN_F32)
        few_as(f, TN_F32);
    else if (f->dtype == TN_BF16)
        few_as(f, TN_BF16);
    else
        few_as(f, TN_F16);
}

/* Back from the order of packs: bf16 has even elements before odd ones. */
static void few_plain(const float *o, tn_dtype dtype, int64_t dv, float *to)
{
    for (int64_t i = 0; i < dv; i++) {
        int64_t in = i % PACK, from = dtype == TN_BF16 ? in / 2 + in % 2 * VEC_LANES : in;
        to[i] = o[i - in + from];
    }
}

VEC_INLINE void few_store_as(const float *o, float factor, int64_t dv, tn_dtype dtype, char *to)
{
    for (int64_t i = 0; i < dv; i += PACK) {
        const vec times = vec_set(factor);
        pack x = {vec_mul(at(o + i), times), vec_mul(at(o + i + VEC_LANES), times)};
        if (dv - i >= PACK)
            pack_store(to + (size_t)i * size_of(dtype), dtype, x);
        else
            pack_store_part(to + (size_t)i * size_of(dtype), dtype, x, dv - i);
    }
}

static void few_store(const float *o, float factor, int64_t dv, tn_dtype dtype, char *to)
{
    if (dtype == TN_F32)
        few_store_as(o, factor, dv, TN_F32, to);
    else if (dtype == TN_BF16)
        few_store_as(o, factor, dv, TN_BF16, to);
    else
        few_store_as(o, factor, dv, TN_F16, to);
}
