/* Timing in turns: every round times a batch of each side, and medians are told. */
#include "check/timing.h"

#include "base/clock.h"
#include "run/guest.h"
#include "run/run.h"

#include <stdlib.h>

/* A call of the first length is warm after one; where one takes as long as the other, two rounds tell enough. */
static const double LONG_SECONDS = 2e-3, ENDLESS_SECONDS = 0.1;
enum { ENDLESS_ROUNDS = 2 };

static tn_status run_batch(const device *device, timing_side *s, int64_t calls, double *seconds, tn_error *err)
{
    tn_status status = TN_OK;
    double begin = clock_seconds();
    for (int64_t i = 0; i < calls && status == TN_OK; i++)
        status = s->call(s->ctx, &s->memory, s->turns++, err);
    if (status == TN_OK)
        status = device_sync(device, err);
    *seconds = (clock_seconds() - begin) / (double)calls;
    return status;
}

/* Finds out how much memory a call takes, and how many make a batch; known when the side is met again. */
static tn_status open_side(const device *device, timing_side *s, const timing_rules *rules, tn_error *err)
{
    double seconds = 0;
    if (s->batch > 0)
        return arena_init(&s->memory, device, s->bytes, err);
    tn_status status = arena_init(&s->memory, device, 0, err);
    if (status == TN_OK)
        status = s->call(s->ctx, &s->memory, 0, err);
    s->bytes = s->memory.peak > 0 ? s->memory.peak : 64;
    arena_close(&s->memory);
    if (status == TN_OK)
        status = arena_init(&s->memory, device, s->bytes, err);
    if (status == TN_OK)
        status = run_batch(device, s, 1, &seconds, err);
    if (status == TN_OK && seconds < LONG_SECONDS)
        status = run_batch(device, s, 1, &seconds, err);
    s->seconds = seconds;
    s->batch = seconds > 0 && seconds < rules->batch_seconds ? (int64_t)(rules->batch_seconds / seconds) + 1 : 1;
    return status;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

timing_spread timing_spread_of(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, ascending);
    return (timing_spread){times[count / 4], times[count / 2], times[count - 1 - count / 4]};
}

tn_status timing_take_turns(const device *device, timing_side *sides, size_t count, const timing_rules *rules,
                            volatile size_t *at, tn_error *err)
{
    tn_status status = TN_OK;
    volatile size_t unseen;
    size_t opened = 0;
    int least = rules->least_rounds;
    double passed = 0;
    at = at ? at : &unseen;
    for (; opened < count && status == TN_OK; opened++) {
        timing_side *s = &sides[opened];
        *at = opened;
        status = open_side(device, s, rules, err);
        least = s->seconds > ENDLESS_SECONDS ? ENDLESS_ROUNDS : least;
        for (int i = 0; i < s->rounds; i++)
            passed += s->times[i] * (double)s->batch;
    }
    double begin = clock_seconds() - passed;
    while (status == TN_OK && count > 0 && sides[0].rounds < TIMING_MOST_ROUNDS &&
           (sides[0].rounds < least || clock_seconds() - begin < rules->seconds))
        for (size_t i = 0; i < count && status == TN_OK; i++) {
            timing_side *s = &sides[i];
            *at = i;
            status = run_batch(device, s, s->batch, &s->times[s->rounds], err);
            s->rounds += status == TN_OK;
        }
    for (size_t i = 0; i < opened; i++)
        arena_close(&sides[i].memory);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        sides[i].spread = timing_spread_of(sides[i].times, sides[i].rounds);
        sides[i].seconds = sides[i].spread.median;
    }
    return status;
}

tn_status timing_bound(void *ctx, arena *a, size_t turn, tn_error *err)
{
    const timing_call *c = ctx;
    (void)turn;
    return run_bound_call(c->device, a, c->bound, c->call, err);
}

tn_status timing_bind(const device *device, const tn_site *site, const tn_impl *impl, graph_binding *bound,
                      tn_error *err)
{
    void *packed = NULL;
    tn_status status = TN_OK;
    bound->impl = impl;
    bound->plan = (tn_plan){.size = sizeof bound->plan, .threads = tn_thread_count(), .max_tokens = GRAPH_MAX_TOKENS};
    if (impl->plan)
        status = guest_plan(bound, site, &bound->plan, err);
    if (status != TN_OK || bound->plan.packed_bytes == 0)
        return status;
    status = device_alloc(device, bound->plan.packed_bytes, &packed, err);
    bound->packed = packed;
    return status == TN_OK && impl->pack ? guest_pack(bound, site, packed, device->queue, err) : status;
}
