/* The ranks of a model: who has which part, and making a whole of parts. */
#include "group/group.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

group *group_new(const tn_group *end, tn_error *err)
{
    group *g = calloc(1, sizeof *g);
    int64_t *bytes = calloc((size_t)end->ranks, sizeof *bytes);
    if (!g || !bytes) {
        free(g);
        free(bytes);
        if (end->close)
            end->close(end->self);
        tn_fail(err, TN_E_MEMORY, "parallel", "out of memory");
        return NULL;
    }
    *g = (group){.end = *end, .bytes = bytes};
    return g;
}

void group_close(group *g)
{
    if (!g)
        return;
    group_close(g->stage);
    if (g->end.close && !g->failed)
        g->end.close(g->end.self);
    if (g->buffer)
        munmap(g->buffer, g->buffer_bytes);
    free(g->bytes);
    free(g);
}

/* ---- stages --------------------------------------------------------------------------------------------------- */

/* Blocks of ranks of a stage, side by side in all. */
typedef struct blocks {
    const group *stage;
    char *all;
    const int64_t *bytes;
    tn_error *err;
} blocks;

/* What count ranks from first on have, from one rank to another. */
static tn_status hand_over(const blocks *b, int32_t from, int32_t to, int32_t first, int32_t count)
{
    const tn_group *whole = &b->stage->whole->end;
    int32_t begin = whole->rank - b->stage->end.rank;
    int64_t at = 0, bytes = 0;
    for (int32_t r = 0; r < first + count; r++)
        *(r < first ? &at : &bytes) += b->bytes[r];
    return whole->pass(whole->self, begin + from, begin + to, b->all + at, bytes, b->err);
}

/* Each of count ranks from first on has its own block; each will have all of theirs. Both halves have theirs first,
 * then ranks of one exchange with those of the other; an odd one, the last, gets from the first of its half what that
 * got. All go through the pairs in one order, so that nobody waits in a circle, however long a pass waits to be taken.
 */
static tn_status join_blocks(const blocks *b, int32_t first, int32_t count)
{
    int32_t half = count / 2, middle = first + half, last = first + count - 1, own = b->stage->end.rank;
    if (count < 2)
        return TN_OK;
    bool lower = own < middle, odd = count % 2;
    int32_t left = lower ? own : own - half, right = left + half;
    tn_status status = lower ? join_blocks(b, first, half) : join_blocks(b, middle, count - half);
    if (status == TN_OK && !(odd && own == last)) {
        status = hand_over(b, left, right, first, half);
        if (status == TN_OK)
            status = hand_over(b, right, left, middle, count - half);
    }
    if (status == TN_OK && odd && (own == middle || own == last))
        status = hand_over(b, middle, last, first, half);
    return status;
}

static tn_status gather_by_passes(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    const group *stage = self;
    return join_blocks(&(blocks){stage, all, bytes, err}, 0, stage->end.ranks);
}

tn_status group_divide(group *g, int32_t ranks, tn_error *err)
{
    const tn_group end = {.size = sizeof end, .rank = g->end.rank % ranks, .ranks = ranks, .gather = gather_by_passes};
    if (!(g->stage = group_new(&end, err)))
        return TN_E_MEMORY;
    g->stage->end.self = g->stage;
    g->stage->whole = g;
    return TN_OK;
}

int32_t group_stage_ranks(const group *g)
{
    return g->stage ? g->stage->end.ranks : 1;
}

int32_t group_stages(const group *g)
{
    return g->end.ranks / group_stage_ranks(g);
}

/* ---- shares and messages -------------------------------------------------------------------------------------- */

int64_t group_share(const group *g, int32_t rank, int64_t total, int64_t unit, int64_t *first)
{
    int64_t units = total / unit, ranks = g->end.ranks;
    *first = units * rank / ranks * unit;
    return (rank + 1 == ranks ? total : units * (rank + 1) / ranks * unit) - *first;
}

bool group_cuts(const group *g, int64_t total, int64_t unit)
{
    return total / unit >= g->end.ranks;
}

/* Room for what crosses, which no child of a check needs. */
static tn_status reserve(group *g, size_t bytes, tn_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes <= g->buffer_bytes)
        return TN_OK;
    bytes = (bytes + page - 1) / page * page;
    char *more = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED)
        return tn_fail(err, TN_E_MEMORY, "parallel", "out of memory for %zu bytes that ranks exchange", bytes);
    madvise(more, bytes, MADV_DONTFORK);
    if (g->buffer)
        munmap(g->buffer, g->buffer_bytes);
    g->buffer = more;
    g->buffer_bytes = bytes;
    return TN_OK;
}

/* A call of the group's end that began then. */
static tn_status note(group *g, double begin, int64_t given, tn_status status)
{
    for (; g; g = g->whole) {
        g->messages++;
        g->given += given;
        g->seconds += clock_seconds() - begin;
        g->failed |= status != TN_OK;
    }
    return status;
}

static tn_status gather(group *g, tn_error *err)
{
    double begin = clock_seconds();
    return note(g, begin, g->bytes[g->end.rank], g->end.gather(g->end.self, g->buffer, g->bytes, err));
}

tn_status group_join(group *g, const tn_tensor *part, const tn_tensor *whole, int64_t unit, tn_error *err)
{
    int64_t rows = whole->shape[0], total = whole->shape[1], first, own = 0, all = 0;
    size_t element = tn_dtype_size(whole->dtype);
    for (int32_t r = 0; r < g->end.ranks; r++) {
        own = r == g->end.rank ? all : own;
        g->bytes[r] = rows * group_share(g, r, total, unit, &first) * (int64_t)element;
        all += g->bytes[r];
    }
    tn_status status = all > 0 ? reserve(g, (size_t)all, err) : TN_OK;
    if (status != TN_OK || all == 0)
        return status;
    memcpy(g->buffer + own, part->data, (size_t)g->bytes[g->end.rank]);
    if ((status = gather(g, err)) != TN_OK)
        return status;
    const char *from = g->buffer;
    for (int32_t r = 0; r < g->end.ranks; r++) {
        size_t width = (size_t)group_share(g, r, total, unit, &first) * element;
        for (int64_t row = 0; row < rows; row++, from += width)
            memcpy((char *)whole->data + (size_t)(row * total + first) * element, from, width);
    }
    return TN_OK;
}

tn_status group_join_rows(group *g, const tn_tensor *whole, const int64_t *rows, tn_error *err)
{
    size_t row = (size_t)whole->shape[1] * tn_dtype_size(whole->dtype), own = 0, all = 0;
    for (int32_t r = 0; r < g->end.ranks; r++) {
        own = r == g->end.rank ? all : own;
        g->bytes[r] = rows[r] * (int64_t)row;
        all += (size_t)g->bytes[r];
    }
    tn_status status = all > 0 ? reserve(g, all, err) : TN_OK;
    if (status != TN_OK || all == 0)
        return status;
    memcpy(g->buffer + own, (const char *)whole->data + own, (size_t)g->bytes[g->end.rank]);
    status = gather(g, err);
    if (status == TN_OK)
        memcpy(whole->data, g->buffer, all);
    return status;
}

static void expect(group *g, int64_t bytes)
{
    group_expected *e = g->whole ? &g->whole->expected : &g->expected;
    *(g->whole ? &e->stage_gathers : &e->gathers) += 1;
    *(g->whole ? &e->stage_gathered : &e->gathered) += bytes;
}

void group_expect_join(group *g, const tn_tensor *whole)
{
    expect(g, (int64_t)tn_dtype_bytes(whole->dtype, tn_tensor_count(whole)));
}

void group_expect_all(group *g, const tn_tensor *part)
{
    expect(g, g->end.ranks * (int64_t)tn_dtype_bytes(part->dtype, tn_tensor_count(part)));
}

void group_expect_pass(group *g, size_t bytes)
{
    g->expected.passes++;
    g->expected.passed += (int64_t)bytes;
}

tn_status group_tell(group *g, void *data, size_t bytes, bool idle, tn_error *err)
{
    tn_status status = reserve(g, bytes, err);
    if (status != TN_OK)
        return status;
    if (g->end.rank == 0)
        memcpy(g->buffer, data, bytes);
    double begin = clock_seconds();
    status = note(g, begin, g->end.rank == 0 ? (int64_t)bytes : 0,
                  g->end.tell(g->end.self, g->buffer, (int64_t)bytes, idle, err));
    if (status == TN_OK && g->end.rank > 0)
        memcpy(data, g->buffer, bytes);
    return status;
}

tn_status group_pass(group *g, int32_t from, int32_t to, void *data, size_t bytes, tn_error *err)
{
    tn_status status = reserve(g, bytes, err);
    if (status != TN_OK)
        return status;
    if (g->end.rank == from)
        memcpy(g->buffer, data, bytes);
    double begin = clock_seconds();
    status = note(g, begin, g->end.rank == from ? (int64_t)bytes : 0,
                  g->end.pass(g->end.self, from, to, g->buffer, (int64_t)bytes, err));
    if (status == TN_OK && g->end.rank == to)
        memcpy(data, g->buffer, bytes);
    return status;
}

tn_status group_all(group *g, const void *own, size_t size, const char **all, tn_error *err)
{
    tn_status status = reserve(g, size * (size_t)g->end.ranks, err);
    for (int32_t r = 0; r < g->end.ranks; r++)
        g->bytes[r] = (int64_t)size;
    if (status != TN_OK)
        return status;
    memcpy(g->buffer + size * (size_t)g->end.rank, own, size);
    *all = g->buffer;
    return gather(g, err);
}

tn_status group_exchange(group *g, const void *own, size_t size, void *all, tn_error *err)
{
    const char *side_by_side;
    tn_status status = group_all(g, own, size, &side_by_side, err);
    if (status == TN_OK)
        memcpy(all, side_by_side, size * (size_t)g->end.ranks);
    return status;
}

/* What a rank says of itself. */
typedef struct outcome {
    int32_t status;
    char host[64];
    tn_error err;
} outcome;

tn_status group_agree(group *g, tn_status status, tn_error *err)
{
    outcome own = {.status = status};
    outcome *all = calloc((size_t)g->end.ranks, sizeof *all);
    if (!all)
        return tn_fail(err, TN_E_MEMORY, "parallel", "out of memory");
    if (status != TN_OK && err)
        own.err = *err;
    gethostname(own.host, sizeof own.host - 1);
    tn_status exchanged = group_exchange(g, &own, sizeof own, all, err);
    for (int32_t r = 0; r < g->end.ranks && exchanged == TN_OK && status == TN_OK; r++) {
        all[r].host[sizeof own.host - 1] = all[r].err.where[sizeof own.err.where - 1] = '\0';
        all[r].err.message[sizeof own.err.message - 1] = '\0';
        if (all[r].status != TN_OK)
            status = tn_fail(err, (tn_status)all[r].status, all[r].err.where, "rank %d on %s: %s", (int)r, all[r].host,
                             all[r].err.message);
    }
    free(all);
    return exchanged != TN_OK ? exchanged : status;
}

tn_status group_settle(group *g, tn_status status, tn_error *err)
{
    char here = 0;
    if (g->failed)
        return status != TN_OK ? status : tn_fail(err, TN_E_KERNEL, "parallel", "ranks did not answer before");
    tn_status told = group_tell(g, &here, 1, true, status == TN_OK ? err : NULL);
    return told == TN_OK ? group_agree(g, status, err) : status == TN_OK ? told : status;
}
