/* GATED_DELTA_RULE and SELECTIVE_SCAN on the NPU, many tokens: chunks as products of matrices, with c_i the sum of g up
 * to token i of a chunk, M the state before it and R what its tokens write, rows d_i (core/eager/delta_rule.c):
 *
 *     (1 + A) R = beta (V - e^c K M),  A_ij = beta_i e^{c_i - c_j} (k_i k_j) for j < i,
 *     O = e^c Q M + S R,               S_ij = e^{c_i - c_j} (q_i k_j) for j <= i,
 *     M = e^{c_n} M + (e^{c_n - c_j} k_j)^T R.
 *
 * and in a scan R = V. A, its inverse and S are made for all chunks at once, what has M in it from chunk to chunk. Each
 * difference c_i - c_j is a sum of the g between them, as good as those are: differences of sums would not be. The
 * inverse grows from blocks of one to the whole, by (1 + A)^-1 = (X 0; -Y C X, Y) where the blocks are (X^-1 0; C
 * Y^-1): no larger numbers than those of the inverse itself come up, as they would in powers of A. */
#include "delta_rule.h"
#include "operators.h"

#include <stdlib.h>

typedef struct chunks_work {
    tn_tensor below, from, until; /* [C,C] f32: 1 where row > column; row < column; row <= column */
    tn_tensor kk, s;              /* [h n,C,C]: A without its sign, then unused; S                 */
    tn_tensor between;            /* [h n,C,C]: j, i: the sum of g behind j up to i, then e of it  */
    tn_tensor inverse;            /* [h n,C,C]                                                     */
    tn_tensor sum;                /* [h n,1,C]: e^c                                                */
    tn_tensor x, y, c, cx;        /* [h n C^2 / 4]: blocks                                         */
    tn_tensor seen, written;      /* [h,C,Dv]                                                      */
    tn_tensor keys, late, part;   /* [h,C,D], e^{c_n - c_j} k_j; [h n,C,1]; [h,D,Dv]               */
    int64_t chunk, chunks;
} chunks_work;

static chunks_work chunks_take(npu_run *r, const delta_tokens *t)
{
    int64_t c = t->chunk, n = t->room / c, hn = t->heads * n, dk = t->k.shape[2], dv = t->v.shape[2];
    chunks_work w = {.chunk = c, .chunks = n};
    w.below = npu_take_2d(r, TN_F32, c, c);
    w.from = npu_take_2d(r, TN_F32, c, c);
    w.until = npu_take_2d(r, TN_F32, c, c);
    w.s = npu_take_3d(r, TN_F32, hn, c, c);
    w.between = npu_take_like(r, TN_F32, w.s);
    w.kk = npu_take_3d(r, TN_F32, t->adds ? 0 : hn, c, c);
    w.inverse = npu_take_like(r, TN_F32, w.kk);
    w.sum = npu_take_3d(r, TN_F32, hn, 1, c);
    int64_t quarter = tn_tensor_count(&w.kk) / 4;
    w.x = npu_take(r, TN_F32, 1, &quarter);
    w.y = npu_take_like(r, TN_F32, w.x);
    w.c = npu_take_like(r, TN_F32, w.x);
    w.cx = npu_take_like(r, TN_F32, w.x);
    w.seen = npu_take_3d(r, TN_F32, t->heads, c, dv);
    w.written = npu_take_like(r, TN_F32, w.seen);
    w.keys = npu_take_3d(r, TN_F32, t->heads, c, dk);
    w.late = npu_take_3d(r, TN_F32, hn, c, 1);
    w.part = npu_take_like(r, TN_F32, t->state);
    return w;
}

/* ---- all chunks at once ---------------------------------------------------------------------------------------- */

/* The constant matrices: where the device keeps them for all layers, or in scratch. */
static void put_constants(npu_run *r, chunks_work *w)
{
    int64_t c = w->chunk;
    size_t bytes = (size_t)(c * c) * sizeof(float);
    float *matrices = malloc(3 * bytes);
    tn_tensor *to[] = {&w->below, &w->from, &w->until};
    if (!matrices) {
        npu_no_memory(r);
        return;
    }
    for (int64_t i = 0; i < c * c; i++) {
        int64_t row = i / c, column = i % c;
        matrices[i] = row > column ? 1 : 0;
        matrices[c * c + i] = row < column ? 1 : 0;
        matrices[2 * c * c + i] = row <= column ? 1 : 0;
    }
    char *kept = npu_mask_of(r, matrices, 3 * bytes);
    for (int m = 0; m < 3; m++)
        if (kept)
            to[m]->data = kept + (size_t)m * bytes;
        else
            npu_put(r, to[m]->data, matrices + m * c * c, bytes);
    free(matrices);
}

/* [h,P,W] as [h n,C,W]. */
static tn_tensor by_chunk(const chunks_work *w, const tn_tensor *t)
{
    return npu_view(t->data, t->dtype, 3, (int64_t[]){t->shape[0] * w->chunks, w->chunk, t->shape[2]}, NULL);
}

/* between: e of the sum of g behind token j up to token i >= j; sum: e^c. */
static void find_decays(npu_run *r, const delta_tokens *t, const chunks_work *w)
{
    int64_t c = w->chunk, hn = t->heads * w->chunks;
    tn_tensor g = npu_view(t->g.data, TN_F32, 3, (int64_t[]){hn, 1, c}, NULL);
    tn_tensor g_rows = npu_view(t->g.data, TN_F32, 2, (int64_t[]){hn, c}, NULL);
    tn_tensor sums = npu_view(w->sum.data, TN_F32, 2, (int64_t[]){hn, c}, NULL);
    tn_tensor behind = npu_view(w->s.data, TN_F32, 2, (int64_t[]){hn * c, c}, NULL);
    tn_tensor between = npu_view(w->between.data, TN_F32, 2, behind.shape, NULL);
    npu_multiply(r, g, w->from, w->s); /* j, m: g_m where m > j                                        */
    npu_matmul(r, behind, w->until, between);
    npu_exp(r, w->between, w->between);
    npu_matmul(r, g_rows, w->until, sums);
    npu_exp(r, w->sum, w->sum);
}

/* kk becomes -A, s S. */
static void find_products(npu_run *r, const delta_tokens *t, const chunks_work *w)
{
    tn_tensor q = by_chunk(w, &t->q), k = by_chunk(w, &t->k), beta = by_chunk(w, &t->beta);
    tn_tensor columns = npu_transposed(k), decay = npu_transposed(w->between);
    tn_tensor until = npu_transposed(w->until);
    if (!t->adds) {
        npu_batch_matmul(r, k, columns, w->kk);
        npu_multiply(r, w->kk, decay, w->kk);
        npu_multiply(r, w->kk, w->below, w->kk);
        npu_multiply(r, w->kk, beta, w->kk);
        npu_multiply_number(r, w->kk, -1, w->kk);
    }
    npu_batch_matmul(r, q, columns, w->s);
    npu_multiply(r, w->s, decay, w->s);
    npu_multiply(r, w->s, until, w->s);
}

/* Of the blocks of that size on the diagonals of t [h n,C,C], in pairs: one of the four parts of each pair, as
 * [h n,pairs,size,size]. */
static tn_tensor blocks(const tn_tensor *t, int64_t size, int row, int column)
{
    int64_t c = t->shape[1], pair = 2 * size;
    tn_tensor b = npu_view(t->data, TN_F32, 4, (int64_t[]){t->shape[0], c / pair, size, size},
                           (int64_t[]){c * c, pair * (c + 1), c, 1});
    if (t->data)
        b.data = (float *)t->data + row * size * c + column * size;
    return b;
}

/* One step of the inverse, from blocks of that size to twice as large ones. */
static void double_blocks(npu_run *r, const chunks_work *w, int64_t size)
{
    tn_tensor x = blocks(&w->inverse, size, 0, 0), y = blocks(&w->inverse, size, 1, 1);
    tn_tensor c = blocks(&w->kk, size, 1, 0), to = blocks(&w->inverse, size, 1, 0);
    const tn_tensor *room[] = {&w->x, &w->y, &w->c, &w->cx}, *from[] = {&x, &y, &c};
    tn_tensor flat[4], dense[4];
    for (int i = 0; i < 4; i++) {
        flat[i] = npu_view(room[i]->data, TN_F32, 3, (int64_t[]){x.shape[0] * x.shape[1], size, size}, NULL);
        dense[i] = npu_view(room[i]->data, TN_F32, 4, x.shape, NULL);
        if (i < 3)
            npu_copy(r, *from[i], dense[i]);
    }
    npu_batch_matmul(r, flat[2], flat[0], flat[3]);
    npu_batch_matmul(r, flat[1], flat[3], flat[2]);
    npu_copy(r, dense[2], to);
}

static void invert(npu_run *r, const chunks_work *w)
{
    int64_t c = w->chunk;
    tn_tensor diagonal =
        npu_view(w->inverse.data, TN_F32, 2, (int64_t[]){w->inverse.shape[0], c}, (int64_t[]){c * c, c + 1});
    tn_tensor first = blocks(&w->kk, 1, 1, 0), to = blocks(&w->inverse, 1, 1, 0);
    npu_fill(r, w->inverse, 0);
    npu_fill(r, diagonal, 1);
    npu_copy(r, first, to);
    for (int64_t size = 2; size < c; size *= 2)
        double_blocks(r, w, size);
}

/* ---- from chunk to chunk ----------------------------------------------------------------------------------------- */

/* Chunk i of [h n,...] as [h,...]. */
static tn_tensor chunk_of(const chunks_work *w, const tn_tensor *t, int64_t i)
{
    tn_tensor part = *t;
    part.shape[0] = t->shape[0] / w->chunks;
    part.stride[0] = t->stride[0] * w->chunks;
    if (t->data)
        part.data = (float *)t->data + i * t->stride[0];
    return part;
}

static void run_chunk(npu_run *r, const delta_tokens *t, const chunks_work *w, int64_t i)
{
    int64_t c = w->chunk;
    tn_tensor q = npu_narrow(t->q, 1, i * c, c), k = npu_narrow(t->k, 1, i * c, c);
    tn_tensor v = npu_narrow(t->v, 1, i * c, c), o = npu_narrow(t->o, 1, i * c, c);
    tn_tensor beta = npu_narrow(t->beta, 1, i * c, c), row = chunk_of(w, &w->sum, i);
    tn_tensor decay = npu_transposed(row), all = npu_part(row, c - 1, 1, 1);
    tn_tensor inverse = chunk_of(w, &w->inverse, i), s = chunk_of(w, &w->s, i), late = chunk_of(w, &w->late, i);
    tn_tensor written = t->adds ? v : w->written;
    if (!t->adds) {
        npu_batch_matmul(r, k, t->state, w->seen);
        npu_multiply(r, w->seen, decay, w->seen);
        npu_add(r, v, w->seen, -1, v);
        npu_multiply(r, v, beta, v);
        npu_batch_matmul(r, inverse, v, written);
    }
    npu_batch_matmul(r, q, t->state, w->seen);
    npu_multiply(r, w->seen, decay, o);
    npu_batch_matmul(r, s, written, w->seen);
    npu_add(r, o, w->seen, 1, o);
    npu_multiply(r, k, late, w->keys);
    tn_tensor columns = npu_transposed(w->keys);
    npu_batch_matmul(r, columns, written, w->part);
    npu_multiply(r, t->state, all, t->state);
    npu_add(r, t->state, w->part, 1, t->state);
}

void delta_rule_chunks(npu_run *r, const delta_tokens *t)
{
    chunks_work w = chunks_take(r, t);
    if (r->measuring)
        return;
    put_constants(r, &w);
    find_decays(r, t, &w);
    find_products(r, t, &w);
    if (!t->adds)
        invert(r, &w);
    tn_tensor late = npu_part(w.between, w.chunk - 1, 1, 1);
    npu_copy(r, late, w.late);
    for (int64_t i = 0; i * w.chunk < t->count; i++)
        run_chunk(r, t, &w, i);
}
