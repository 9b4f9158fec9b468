/* Few rows with vectors along the head: included by attention_vec.h. Up to four rows share what is loaded of a key or
 * value, and what comes some keys later is asked for. */

enum { AHEAD = 16, LINE = 64 }; /* keys; bytes */

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

VEC_INLINE void few_ask(const char *row, int64_t step, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch(row + AHEAD * step + i, 0, 2);
}

/* x[key][rows] of `keys` keys from s on: as many sums at a time as VEC_SUMS. */
VEC_INLINE void few_dots_of(const attention_few *f, tn_dtype dtype, const float *q, int rows, int keys, int64_t s,
                            float *x)
{
    vec sum[VEC_SUMS];
    const char *k[VEC_SUMS];
    for (int c = 0; c < keys; c++)
        k[c] = f->k + f->key[s + c] * f->k_step;
    for (int i = 0; i < VEC_SUMS; i++)
        sum[i] = vec_set(0.0f);
    for (int64_t i = 0; i < f->d; i += PACK) {
        pack query[4];
        for (int r = 0; r < rows; r++)
            query[r] = (pack){at(q + r * f->q_row + i), at(q + r * f->q_row + i + VEC_LANES)};
        for (int c = 0; c < keys; c++) {
            pack key = pack_at(k[c], dtype, i, f->d);
            for (int r = 0; r < rows; r++) {
                sum[c * rows + r] = vec_fma(key.a, query[r].a, sum[c * rows + r]);
                sum[c * rows + r] = vec_fma(key.b, query[r].b, sum[c * rows + r]);
            }
        }
    }
    for (int i = 0; i < VEC_SUMS; i += VEC_LANES)
        if (i < keys * rows)
            put(x + s * rows + i, attention_sums(sum + i));
}

VEC_INLINE void few_dots(const attention_few *f, tn_dtype dtype, const float *q, int rows, float *x)
{
    const int keys = VEC_SUMS / rows;
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

/* Probabilities times 2^max; factor: of what was summed before. Lane l belongs to row l % rows. */
VEC_INLINE void few_soften(const attention_few *f, int64_t first, int rows, float *x, float *factor)
{
    int64_t n = f->count * rows, end = attention_up(n, VEC_LANES);
    float lane[VEC_LANES], minus[VEC_LANES], top[4];
    for (int64_t i = n; i < end; i++)
        x[i] = 0.0f;
    if (f->cap_out != 0.0f)
        cap(x, end, f->cap_in, f->cap_out);
    for (int64_t i = n; i < end; i++)
        x[i] = -INFINITY;
    vec most = at(x), sum = vec_set(0.0f);
    for (int64_t i = VEC_LANES; i < end; i += VEC_LANES)
        most = vec_max(at(x + i), most);
    put(lane, most);
    for (int r = 0; r < rows; r++) {
        top[r] = lane[r];
        for (int l = r; l < VEC_LANES; l += rows)
            top[r] = lane[l] > top[r] ? lane[l] : top[r];
        top[r] *= f->scale;
        float before = f->max[first + r];
        f->max[first + r] = top[r] > before + ATTENTION_RAISE ? top[r] : before;
        factor[r] = before;
    }
    for (int l = 0; l < VEC_LANES; l++)
        minus[l] = -f->max[first + l % rows];
    for (int l = 0; l < VEC_LANES; l++)
        lane[l] = factor[l % rows];
    put(lane, vec_exp2(vec_add(at(lane), at(minus))));
    for (int r = 0; r < rows; r++) {
        factor[r] = lane[r];
        f->sum[first + r] *= lane[r];
    }
    for (int64_t i = 0; i < end; i += VEC_LANES) {
        vec p = vec_exp2(vec_fma(at(x + i), vec_set(f->scale), at(minus)));
        sum = vec_add(sum, p);
        put(x + i, p);
    }
    put(lane, sum);
    for (int l = 0; l < VEC_LANES; l++)
        f->sum[first + l % rows] += lane[l];
}

/* The columns i .. of o, `packs` at a time. */
VEC_INLINE void few_mix_at(const attention_few *f, tn_dtype dtype, int64_t i, int packs, float *o, int rows,
                           const float *p, const float *factor)
{
    vec sum[4][VEC_SUMS / 2][2];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2 * packs; c++)
            sum[r][c / 2][c % 2] = vec_mul(at(o + r * f->o_row + i + c * VEC_LANES), vec_set(factor[r]));
    for (int64_t s = 0; s < f->count; s++) {
        const char *row = f->v + f->key[s] * f->v_step;
        for (int c = 0; c < packs; c++) {
            pack value = pack_at(row, dtype, i + c * PACK, packs > 1 ? i + packs * PACK : f->dv);
            for (int r = 0; r < rows; r++) {
                vec one = vec_set(p[s * rows + r]);
                sum[r][c][0] = vec_fma(one, value.a, sum[r][c][0]);
                sum[r][c][1] = vec_fma(one, value.b, sum[r][c][1]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < 2 * packs; c++)
            put(o + r * f->o_row + i + c * VEC_LANES, sum[r][c / 2][c % 2]);
}

VEC_INLINE void few_mix(const attention_few *f, tn_dtype dtype, float *o, int rows, const float *p, const float *factor)
{
    const int packs = VEC_SUMS / 2 / rows;
    int64_t i = 0;
    for (; i + packs * PACK <= f->dv; i += packs * PACK)
        few_mix_at(f, dtype, i, packs, o, rows, p, factor);
    for (; i < f->dv; i += PACK)
        few_mix_at(f, dtype, i, 1, o, rows, p, factor);
}

VEC_INLINE void few_rows(const attention_few *f, tn_dtype dtype, int64_t first, int rows)
{
    _Alignas(64) float x[4 * ATTENTION_FEW_KEYS + VEC_SUMS];
    float factor[4];
    few_dots(f, dtype, f->q + first * f->q_row, rows, x);
    few_soften(f, first, rows, x, factor);
    few_mix(f, dtype, f->o + first * f->o_row, rows, x, factor);
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
