#include "local_group.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROOM = 64 << 20, PATIENCE = 120, MOST = 16, BOX = 1 << 18 };

struct local_group {
    int32_t ranks;
    atomic_int arrived, round;
    atomic_llong calls, bytes;
    atomic_uint shaken; /* 0: nobody is late                                                           */
    char data[ROOM];
    struct {
        atomic_int full;
        char data[BOX];
    } box[MOST][MOST]; /* from, to                                                                 */
};

typedef struct end {
    local_group *g;
    int32_t rank;
    uint32_t late;
} end;

local_group *local_group_new(int32_t ranks)
{
    local_group *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g == MAP_FAILED)
        return NULL;
    g->ranks = ranks;
    return g;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The i-th look was in vain. */
static tn_status rest(int i, double until, tn_error *err)
{
    if (i < 100)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 20000}, NULL);
    return i % 1000 == 999 && now() > until ? tn_fail(err, TN_E_KERNEL, "local group", "a rank did not answer") : TN_OK;
}

/* Until all ranks are here. */
static tn_status meet(local_group *g, bool idle, tn_error *err)
{
    int round = atomic_load(&g->round);
    double until = idle ? INFINITY : now() + PATIENCE;
    if (atomic_fetch_add(&g->arrived, 1) == g->ranks - 1) {
        atomic_store(&g->arrived, 0);
        atomic_fetch_add(&g->round, 1);
        return TN_OK;
    }
    tn_status status = TN_OK;
    for (int i = 0; atomic_load(&g->round) == round && status == TN_OK; i++)
        status = rest(i, until, err);
    return status;
}

/* Each rank for another time, in each call. */
static void be_late(end *e)
{
    uint32_t shaken = atomic_load(&e->g->shaken);
    if (!shaken)
        return;
    e->late = (e->late ^ shaken ^ (uint32_t)e->rank) * 2654435761U + 12345;
    nanosleep(&(struct timespec){0, (long)(e->late >> 16) * 4}, NULL);
}

static tn_status gather(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    end *e = self;
    local_group *g = e->g;
    be_late(e);
    size_t own = 0, total = 0;
    for (int32_t r = 0; r < g->ranks; r++) {
        own = r == e->rank ? total : own;
        total += (size_t)bytes[r];
    }
    for (size_t at = 0; at < total; at += ROOM) {
        size_t piece = total - at < ROOM ? total - at : ROOM, first = own > at ? own : at;
        size_t last = own + (size_t)bytes[e->rank] < at + piece ? own + (size_t)bytes[e->rank] : at + piece;
        if (first < last)
            memcpy(g->data + (first - at), (char *)all + first, last - first);
        tn_status status = meet(g, false, err);
        if (status == TN_OK)
            memcpy((char *)all + at, g->data, piece);
        if (status == TN_OK)
            status = meet(g, false, err);
        if (status != TN_OK)
            return status;
    }
    atomic_fetch_add(&g->calls, e->rank == 0);
    atomic_fetch_add(&g->bytes, e->rank == 0 ? (long long)total : 0);
    return TN_OK;
}

static tn_status tell(void *self, void *data, int64_t bytes, bool idle, tn_error *err)
{
    const end *e = self;
    tn_status status = TN_OK;
    for (int64_t at = 0; at < bytes && status == TN_OK; at += ROOM) {
        size_t piece = (size_t)(bytes - at < ROOM ? bytes - at : ROOM);
        if (e->rank == 0)
            memcpy(e->g->data, (char *)data + at, piece);
        status = meet(e->g, idle && at == 0, err);
        if (status == TN_OK && e->rank > 0)
            memcpy((char *)data + at, e->g->data, piece);
        if (status == TN_OK)
            status = meet(e->g, false, err);
    }
    return status;
}

/* Until the box is full, or empty. */
static tn_status await(atomic_int *full, int wanted, tn_error *err)
{
    double until = now() + PATIENCE;
    tn_status status = TN_OK;
    for (int i = 0; atomic_load(full) != wanted && status == TN_OK; i++)
        status = rest(i, until, err);
    return status;
}

static tn_status pass(void *self, int32_t from, int32_t to, void *data, int64_t bytes, tn_error *err)
{
    const end *e = self;
    bool gives = e->rank == from;
    tn_status status = TN_OK;
    for (int64_t at = 0; at < bytes && status == TN_OK; at += BOX) {
        size_t piece = (size_t)(bytes - at < BOX ? bytes - at : BOX);
        char *box = e->g->box[from][to].data, *own = (char *)data + at;
        if ((status = await(&e->g->box[from][to].full, !gives, err)) != TN_OK)
            break;
        memcpy(gives ? box : own, gives ? own : box, piece);
        atomic_store(&e->g->box[from][to].full, gives);
    }
    atomic_fetch_add(&e->g->calls, gives);
    atomic_fetch_add(&e->g->bytes, gives ? (long long)bytes : 0);
    return status;
}

static void finish(void *self)
{
    free(self);
}

tn_group local_group_end(local_group *g, int32_t rank)
{
    end *e = malloc(sizeof *e);
    if (!e)
        abort();
    *e = (end){.g = g, .rank = rank};
    return (tn_group){.size = sizeof(tn_group),
                      .rank = rank,
                      .ranks = g->ranks,
                      .self = e,
                      .gather = gather,
                      .tell = tell,
                      .pass = pass,
                      .close = finish};
}

void local_group_shake(local_group *g, uint32_t seed)
{
    atomic_store(&g->shaken, seed);
}

void local_group_count(const local_group *g, int64_t *calls, int64_t *bytes)
{
    *calls = atomic_load(&g->calls);
    *bytes = atomic_load(&g->bytes);
}
