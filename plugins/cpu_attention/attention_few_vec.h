/* Few rows: included by attention_vec.h. Keys are turned in registers, so that scores are formed as for many rows: a
 * lane is a key, and elements follow one another. In the second product a lane is a column, and keys follow one
 * another. Up to four rows share what is loaded, and what comes next is asked for. */

enum { LINE = 64 }; /* bytes */

/* The elements i .. of keys (n of them; VEC_LANES where all are there), times those of the rows of q. */
VEC_INLINE void few_step(const attention_few *f, tn_dtype dtype, const char *const *key, int64_t s, int64_t i,
                         int64_t n, int vectors, int rows, const float *q, vec *sum)
{
    const int64_t at_ = i * (int64_t)size_of(dtype);
    for (int g = 0; g < vectors; g++) {
        vec v[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++) {
            const char *from = key[g * VEC_LANES + r] + at_;
            v[r] = n >= VEC_LANES ? vec_load(from, dtype) : vec_load_part(from, dtype, n);
        }
        for (int r = 0; at_ % LINE == 0 && r < VEC_LANES; r++)
            __builtin_prefetch(f->next + (s + g * VEC_LANES + r) * f->next_step + at_, 0, 2);
        vec_transpose(v);
        for (int c = 0; c < VEC_LANES; c++)
            for (int r = 0; c < n && r < rows; r++)
                sum[g * rows + r] = vec_fma(v[c], vec_set(q[r * f->row + i + c]), sum[g * rows + r]);
    }
}

/* The scores of some vectors of keys from s on. Behind the last key stands the last key. */
VEC_INLINE void few_scores_of(const attention_few *f, tn_dtype dtype, int64_t s, int vectors, int rows, const float *q,
                              float *x)
{
    vec sum[VEC_SUMS];
    const char *key[2 * VEC_LANES];
    int64_t i = 0;
    for (int r = 0; r < vectors * VEC_LANES; r++)
        key[r] = f->data + (s + r < f->count ? s + r : f->count - 1) * f->step;
    for (int r = 0; r < vectors * rows; r++)
        sum[r] = vec_set(0.0f);
    for (; i + VEC_LANES <= f->width; i += VEC_LANES)
        few_step(f, dtype, key, s, i, VEC_LANES, vectors, rows, q, sum);
    if (i < f->width)
        few_step(f, dtype, key, s, i, f->width - i, vectors, rows, q, sum);
    for (int r = 0; r < vectors * rows; r++)
        put(x + r % rows * ATTENTION_KEYS + s + r / rows * VEC_LANES, sum[r]);
}

/* Two vectors, as far as half of the registers for sums hold theirs: one waits while the other is turned. */
VEC_INLINE void few_scores_rows(const attention_few *f, tn_dtype dtype, int rows, const float *q, float *x)
{
    const int vectors = VEC_SUMS / 2 / rows < 2 ? 1 : 2;
    int64_t s = f->from;
    for (; s + vectors * VEC_LANES <= attention_up(f->end, VEC_LANES); s += vectors * VEC_LANES)
        few_scores_of(f, dtype, s, vectors, rows, q, x);
    for (; s < f->end; s += VEC_LANES)
        few_scores_of(f, dtype, s, 1, rows, q, x);
}

VEC_INLINE void few_scores_as(const attention_few *f, tn_dtype dtype, const float *q, float *x)
{
    int64_t r = 0;
    for (; r + 4 <= f->rows; r += 4)
        few_scores_rows(f, dtype, 4, q + r * f->row, x + r * ATTENTION_KEYS);
    for (; r + 2 <= f->rows; r += 2)
        few_scores_rows(f, dtype, 2, q + r * f->row, x + r * ATTENTION_KEYS);
    if (r < f->rows)
        few_scores_rows(f, dtype, 1, q + r * f->row, x + r * ATTENTION_KEYS);
}

static void few_scores(const attention_few *keys, const void *q, float *x)
{
    if (keys->dtype == TN_F32)
        few_scores_as(keys, TN_F32, q, x);
    else if (keys->dtype == TN_BF16)
        few_scores_as(keys, TN_BF16, q, x);
    else
        few_scores_as(keys, TN_F16, q, x);
}

static float few_soften(float *max, float *sum, float scale, int64_t from, int64_t end, float *x)
{
    float lane[VEC_LANES], top = -INFINITY, before = *max, sums[ATTENTION_SUMS] = {0};
    vec most = vec_set(-INFINITY);
    for (int64_t s = from; s < end; s += VEC_LANES)
        most = vec_max(at(x + s), most);
    put(lane, most);
    for (int l = 0; l < VEC_LANES; l++)
        top = lane[l] > top ? lane[l] : top;
    *max = top * scale > before + ATTENTION_RAISE ? top * scale : before;
    for (int64_t s = from; s < end; s += VEC_LANES)
        put(x + s, vec_exp2(vec_fma(at(x + s), vec_set(scale), vec_set(-*max))));
    for (int64_t s = from; s < end; s += ATTENTION_SUMS)
        for (int c = 0; c < ATTENTION_SUMS; c++)
            sums[c] += x[s + c];
    put(lane, vec_exp2(vec_set(before - *max)));
    *sum = fmaf(*sum, lane[0], sums[0] + sums[2] + (sums[1] + sums[3]));
    return lane[0];
}

/* Some vectors of columns from i on. */
VEC_INLINE void few_mix_at(const attention_few *f, tn_dtype dtype, int64_t i, int vectors, int rows, const float *p,
                           float *o)
{
    vec sum[4][VEC_SUMS];
    int64_t left = f->width - i;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            sum[r][c] = at(o + r * f->row + i + c * VEC_LANES);
    for (int64_t s = f->from; s < f->end; s++) {
        const char *row = f->data + s * f->step + i * (int64_t)size_of(dtype);
        for (int c = 0; c < vectors * VEC_LANES * (int)size_of(dtype); c += LINE)
            __builtin_prefetch(f->next + s * f->next_step + i * (int64_t)size_of(dtype) + c, 0, 2);
        for (int c = 0; c < vectors; c++) {
            const char *from = row + c * VEC_LANES * (int64_t)size_of(dtype);
            vec value = vectors > 1 || left >= VEC_LANES ? vec_load(from, dtype) : vec_load_part(from, dtype, left);
            for (int r = 0; r < rows; r++)
                sum[r][c] = vec_fma(vec_set(p[r * ATTENTION_KEYS + s]), value, sum[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            put(o + r * f->row + i + c * VEC_LANES, sum[r][c]);
}

VEC_INLINE void few_mix_rows(const attention_few *f, tn_dtype dtype, int rows, const float *p, float *o)
{
    const int vectors = VEC_SUMS / rows < 8 ? VEC_SUMS / rows : 8;
    int64_t i = 0;
    for (; i + vectors * VEC_LANES <= f->width; i += vectors * VEC_LANES)
        few_mix_at(f, dtype, i, vectors, rows, p, o);
    for (; i < f->width; i += VEC_LANES)
        few_mix_at(f, dtype, i, 1, rows, p, o);
}

VEC_INLINE void few_mix_as(const attention_few *f, tn_dtype dtype, const float *p, float *o)
{
    int64_t r = 0;
    for (; r + 4 <= f->rows; r += 4)
        few_mix_rows(f, dtype, 4, p + r * ATTENTION_KEYS, o + r * f->row);
    for (; r + 2 <= f->rows; r += 2)
        few_mix_rows(f, dtype, 2, p + r * ATTENTION_KEYS, o + r * f->row);
    if (r < f->rows)
        few_mix_rows(f, dtype, 1, p + r * ATTENTION_KEYS, o + r * f->row);
}

static void few_mix(const attention_few *values, const float *p, float *o)
{
    if (values->dtype == TN_F32)
        few_mix_as(values, TN_F32, p, o);
    else if (values->dtype == TN_BF16)
        few_mix_as(values, TN_BF16, p, o);
    else
        few_mix_as(values, TN_F16, p, o);
}
