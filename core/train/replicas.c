/* Replicas: gradients go from each rank to those that add them up, block by block; what a step makes of a block goes to
 * all. */
#include "train/replicas.h"

#include "base/reserved.h"
#include "base/tensor.h"
#include "group/group.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32 }; /* blocks that cross at once                                                      */

typedef enum what { FRESH, FIRST, SECOND, STEPPED, DEALT } what;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The blocks of a rank: from first of it to first of the next. */
static size_t first_of(const train_params *p, int32_t rank)
{
    return p->block_count * (size_t)rank / (size_t)p->group->end.ranks;
}

/* The most that a rank has. */
static size_t most_of(const train_params *p)
{
    return p->block_count / (size_t)p->group->end.ranks + 1;
}

void replicas_open(train_params *p)
{
    if (!p->group)
        return;
    p->own = first_of(p, p->group->end.rank);
    p->own_end = first_of(p, p->group->end.rank + 1);
}

/* What crosses of a block, and where it is; 0 bytes: nothing does. */
static size_t place(const train_params *p, const optimiser *o, what kind, const train_block *b, char **at)
{
    const train_param *of = b->of;
    size_t element = kind == FRESH ? sizeof(float) : tn_dtype_size(of->dtype);
    bool crosses = kind == FRESH ? of->now : kind == STEPPED ? of->read : of->moved;
    *at = kind == FRESH                     ? (char *)(of->fresh + b->first)
          : kind == FIRST || kind == SECOND ? optimiser_moment(kind == FIRST ? o->first : o->second, p, b)
                                            : (char *)(uintptr_t)of->data + (size_t)b->first * element;
    return crosses ? (size_t)b->count * element : 0;
}

/* Blocks from begin to end, to or from bytes that lie together (NULL: they are counted alone). */
static size_t copy_blocks(const train_params *p, const optimiser *o, what kind, size_t begin, size_t end, char *bytes,
                          bool back)
{
    size_t all = 0;
    char *at;
    for (size_t i = begin; i < end; i++) {
        size_t size = place(p, o, kind, &p->blocks[i], &at);
        if (bytes && size)
            memcpy(back ? at : bytes + all, back ? bytes + all : at, size);
        all += size;
    }
    return all;
}

static char *take_room(size_t chunks, tn_error *err)
{
    char *room = malloc(chunks * CHUNK * TRAIN_BLOCK * sizeof(float));
    if (!room)
        tn_fail(err, TN_E_MEMORY, "replicas", "out of memory for %zu bytes that ranks exchange",
                chunks * CHUNK * TRAIN_BLOCK * sizeof(float));
    return room;
}

/* Some blocks from one rank to another, which has them in room. */
static tn_status pass_blocks(const train_params *p, const optimiser *o, what kind, int32_t from, int32_t to,
                             size_t begin, size_t end, char *room, tn_error *err)
{
    size_t bytes = copy_blocks(p, o, kind, begin, end, p->group->end.rank == from ? room : NULL, false);
    return bytes > 0 ? group_pass(p->group, from, to, room, bytes, err) : TN_OK;
}

/* Ranks that do not know of a failure go on with what crosses. */
static tn_status end_together(const train_params *p, tn_status status)
{
    p->group->failed |= status != TN_OK;
    return status;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

typedef struct adding {
    const train_params *p;
    size_t begin, *offset; /* the first block; of each block, in floats, in a room                           */
    const char *room;
    size_t stride;
} adding;

static void add_ranks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const adding *a = ctx;
    const group *g = a->p->group;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const train_block *b = &a->p->blocks[a->begin + (size_t)i];
        float *to = b->of->sums + b->first;
        for (int32_t r = 0; b->of->now && r < g->end.ranks; r++) {
            const float *from = r == g->end.rank
                                    ? b->of->fresh + b->first
                                    : (const float *)(const void *)(a->room + (size_t)r * a->stride) + a->offset[i];
            for (int64_t k = 0; k < b->count; k++)
                to[k] += from[k];
        }
    }
}

/* The j-th chunk of every rank's blocks: each rank meets every other one, in rounds in which all have another
 * partner. */
static tn_status add_chunk(train_params *p, size_t j, char *room, tn_error *err)
{
    const size_t stride = CHUNK * TRAIN_BLOCK * sizeof(float);
    const int32_t own = p->group->end.rank, ranks = p->group->end.ranks;
    size_t offset[CHUNK], begin = least(p->own + j * CHUNK, p->own_end), end = least(begin + CHUNK, p->own_end), at = 0;
    tn_status status = TN_OK;
    for (int32_t round = 0; round < ranks && status == TN_OK; round++) {
        int32_t with = (round - own + ranks) % ranks, low = own < with ? own : with, high = own < with ? with : own;
        for (int turn = 0; turn < 2 && with != own && status == TN_OK; turn++) {
            int32_t from = turn ? high : low, to = turn ? low : high;
            size_t first = least(first_of(p, to) + j * CHUNK, first_of(p, to + 1));
            status = pass_blocks(p, NULL, FRESH, from, to, first, least(first + CHUNK, first_of(p, to + 1)),
                                 room + (size_t)(to == own ? with : own) * stride, err);
        }
    }
    for (size_t i = begin; i < end; i++) {
        offset[i - begin] = at;
        at += p->blocks[i].of->now ? (size_t)p->blocks[i].count : 0;
    }
    adding a = {p, begin, offset, room, stride};
    if (status == TN_OK)
        tn_parallel_for((int64_t)(end - begin), 1, add_ranks, &a);
    return status;
}

/* Which parameters any rank has read in this call, and which ranks had texts. */
static tn_status share_flags(train_params *p, bool had, int64_t *calls, tn_error *err)
{
    const group *g = p->group;
    size_t size = p->count + 1;
    char *own = calloc((size_t)(g->end.ranks + 1), size);
    if (!own)
        return tn_fail(err, TN_E_MEMORY, "replicas", "out of memory for %zu parameters", p->count);
    char *all = own + size;
    for (size_t i = 0; i < p->count; i++)
        own[i] = p->at[i].now;
    own[p->count] = had;
    tn_status status = group_exchange(p->group, own, size, all, err);
    *calls = 0;
    for (int32_t r = 0; r < g->end.ranks && status == TN_OK; r++) {
        if (all[(size_t)r * size + p->count] && (*calls)++ != r)
            status = tn_fail(err, TN_E_USAGE, "tn_trainer_backward",
                             "rank %d has texts, and rank %d before it has none", (int)r, (int)r - 1);
        for (size_t i = 0; i < p->count; i++)
            own[i] |= all[(size_t)r * size + i];
    }
    for (size_t i = 0; i < p->count && status == TN_OK; i++) {
        if (own[i] && !p->at[i].now)
            params_zero(p->at[i].fresh, (size_t)params_count(&p->at[i]) * sizeof(float));
        p->at[i].now = own[i];
        p->at[i].read |= p->at[i].now;
    }
    free(own);
    return status;
}

tn_status replicas_add(train_params *p, bool had, int64_t *calls, tn_error *err)
{
    tn_status status = share_flags(p, had, calls, err);
    char *room = status == TN_OK ? take_room((size_t)p->group->end.ranks, err) : NULL;
    if (!room)
        return end_together(p, status == TN_OK ? TN_E_MEMORY : status);
    for (size_t j = 0; j * CHUNK < most_of(p) && status == TN_OK; j++)
        status = add_chunk(p, j, room, err);
    free(room);
    for (size_t i = 0; i < p->count; i++)
        p->at[i].now = false;
    return end_together(p, status);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

tn_status replicas_join_squares(const train_params *p, double *squares, tn_error *err)
{
    group *g = p->group;
    int64_t *rows = g ? calloc((size_t)g->end.ranks, sizeof *rows) : NULL;
    if (g && !rows)
        return tn_fail(err, TN_E_MEMORY, "replicas", "out of memory");
    for (int32_t r = 0; g && r < g->end.ranks; r++)
        rows[r] = (int64_t)((first_of(p, r + 1) - first_of(p, r)) * sizeof *squares);
    const tn_tensor all =
        tn_tensor_dense(squares, TN_U8, 2, (int64_t[]){(int64_t)(p->block_count * sizeof *squares), 1});
    tn_status status = g ? group_join_rows(g, &all, rows, err) : TN_OK;
    free(rows);
    return status;
}

/* The j-th chunk of every rank's blocks, side by side in room. */
static tn_status join_chunk(const train_params *p, size_t j, char *room, int64_t *rows, tn_error *err)
{
    group *g = p->group;
    tn_status status = TN_OK;
    for (int back = 0; back < 2 && status == TN_OK; back++) {
        size_t at = 0;
        for (int32_t r = 0; r < g->end.ranks; r++) {
            size_t begin = least(first_of(p, r) + j * CHUNK, first_of(p, r + 1));
            bool copies = back ? r != g->end.rank : r == g->end.rank;
            rows[r] = (int64_t)copy_blocks(p, NULL, STEPPED, begin, least(begin + CHUNK, first_of(p, r + 1)),
                                           copies ? room + at : NULL, back);
            at += (size_t)rows[r];
        }
        const tn_tensor all = tn_tensor_dense(room, TN_U8, 2, (int64_t[]){(int64_t)at, 1});
        if (!back)
            status = group_join_rows(g, &all, rows, err);
    }
    return status;
}

tn_status replicas_join_weights(const train_params *p, tn_error *err)
{
    tn_status status = TN_OK;
    if (!p->group)
        return TN_OK;
    char *room = take_room((size_t)p->group->end.ranks, err);
    int64_t *rows = calloc((size_t)p->group->end.ranks, sizeof *rows);
    if (!room || !rows)
        status = tn_fail(err, TN_E_MEMORY, "replicas", "out of memory");
    for (size_t j = 0; status == TN_OK && j * CHUNK < most_of(p); j++)
        status = join_chunk(p, j, room, rows, err);
    free(room);
    free(rows);
    return end_together(p, status);
}

/* ---- states ----------------------------------------------------------------------------------------------------- */

/* Moments of every other rank's blocks, between it and rank 0. */
static tn_status pass_moments(const train_params *p, const optimiser *o, bool collects, tn_error *err)
{
    const int32_t own = p->group->end.rank;
    char *room = take_room(1, err);
    tn_status status = room ? TN_OK : TN_E_MEMORY;
    for (int32_t r = 1; r < p->group->end.ranks; r++)
        for (size_t i = first_of(p, r), end = first_of(p, r + 1); i < end && (own == 0 || own == r); i += CHUNK)
            for (int kind = FIRST; kind <= SECOND && status == TN_OK; kind++) {
                int32_t from = collects ? r : 0, to = collects ? 0 : r;
                status = pass_blocks(p, o, (what)kind, from, to, i, least(i + CHUNK, end), room, err);
                if (status == TN_OK && own == to)
                    copy_blocks(p, o, (what)kind, i, least(i + CHUNK, end), room, true);
            }
    free(room);
    return end_together(p, status);
}

tn_status replicas_collect(const train_params *p, const optimiser *o, tn_error *err)
{
    return p->group && o->second ? pass_moments(p, o, true, err) : TN_OK;
}

void replicas_forget(const train_params *p, const optimiser *o)
{
    for (size_t i = 0; p->group && o->second && i < p->block_count; i++) {
        const train_block *b = &p->blocks[i];
        size_t bytes = (size_t)b->count * tn_dtype_size(b->of->dtype);
        if (i >= p->own && i < p->own_end)
            continue;
        reserved_clear(optimiser_moment(o->first, p, b), bytes);
        reserved_clear(optimiser_moment(o->second, p, b), bytes);
    }
}

static tn_status tell_weights(const train_params *p, tn_error *err)
{
    char *room = take_room(1, err);
    tn_status status = room ? TN_OK : TN_E_MEMORY;
    bool gives = p->group->end.rank == 0;
    for (size_t i = 0; i < p->block_count && status == TN_OK; i += CHUNK) {
        size_t end = least(i + CHUNK, p->block_count);
        size_t bytes = copy_blocks(p, NULL, DEALT, i, end, gives ? room : NULL, false);
        status = bytes > 0 ? group_tell(p->group, room, bytes, false, err) : TN_OK;
        if (status == TN_OK && !gives)
            copy_blocks(p, NULL, DEALT, i, end, room, true);
    }
    free(room);
    return status;
}

tn_status replicas_deal(train_params *p, optimiser *o, const tn_model *model, tn_error *err)
{
    int64_t counts[2] = {o->steps, o->drawn};
    char *moved = calloc(p->count + 1, 1);
    if (!p->group || !moved) {
        free(moved);
        return p->group ? tn_fail(err, TN_E_MEMORY, "replicas", "out of memory") : TN_OK;
    }
    for (size_t i = 0; i < p->count; i++)
        moved[i] = p->at[i].moved;
    tn_status status = optimiser_open(o, p, err);
    if (status == TN_OK)
        status = group_tell(p->group, counts, sizeof counts, false, err);
    if (status == TN_OK)
        status = group_tell(p->group, moved, p->count, false, err);
    for (size_t i = 0; i < p->count; i++)
        if ((p->at[i].moved = moved[i]))
            params_unlock(p, &p->at[i]);
    free(moved);
    if (status == TN_OK)
        status = tell_weights(p, err);
    for (size_t i = 0; i < p->count; i++)
        if (p->at[i].moved)
            params_round(p, &p->at[i]);
    for (size_t i = 0; i < p->count; i++)
        if (p->at[i].moved)
            params_lock(p, &p->at[i], model);
    if (status == TN_OK)
        status = pass_moments(p, o, false, err);
    o->steps = counts[0];
    o->drawn = counts[1];
    params_clear(p);
    replicas_forget(p, o);
    return end_together(p, status);
}

bool replicas_writes(const train_params *p)
{
    return !p->group || p->group->end.rank == 0;
}

tn_status replicas_agree(const train_params *p, tn_status status, tn_error *err)
{
    return p->group ? group_settle(p->group, status, err) : status;
}
