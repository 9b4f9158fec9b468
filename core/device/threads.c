/* The process's one team of threads. A region of work begins with an invitation: the threads that answer soon take
 * part, and the region is as wide as they are many. So a thread that the system has given away to somebody else is not
 * waited for, and a busy neighbour costs its share of the machine and no more. Threads without work spin, which bridges
 * the gaps between the operations of a model, and then sleep. How long they spin, and how long an invitation stands,
 * follows how long the last region took: behind long pieces of work a thread may wait for some milliseconds, and one
 * that sleeps takes a tenth of one to come back on a virtual machine. Where the team is taken (nested or concurrent
 * regions) or gone (in a forked child) work runs on the calling thread: results never depend on how many take part. */
#include "base/structs.h"
#include "device/device.h"
#include "device/hoststate.h"
#include "device/processors.h"

#include <tenon/borrow.h>

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MASK_BYTES = 8, THREADS_MAX = 1024, THREADS_ALWAYS = 4 };

/* Nanoseconds: shares of the last regions' time, within limits. */
enum { SPIN_SHARE = 2, SPIN_LEAST = 40000, SPIN_MOST = 5000000 };
enum { INVITATION_SHARE = 8, INVITATION_LEAST = 10000, INVITATION_MOST = 500000 };
enum { BUSY = 20000000 };     /* after another program had a thread's processor                       */
enum { LOST = 500000 };       /* for so long at least: what the system itself has to do takes less       */
enum { LONG = 100000 };       /* after which a thread asks whether it had                               */
enum { LOOKS_PER_TIME = 32 }; /* spins between looks at the clock                                      */

#define CLOSED (1ull << 31)

typedef void team_body(void *ctx, int32_t thread, int32_t threads);

/* What a waiting thread watches: a number, and how many sleep on it. */
typedef struct watched {
    _Alignas(64) atomic_uint value;
    atomic_int sleepers;
} watched;

static struct {
    pthread_mutex_t busy; /* held during a region                                                 */
    atomic_int asked;     /* threads_set; 0: one per core                                         */
    atomic_int processors;
    atomic_bool serial, strict;
    atomic_bool watched; /* workers look at their signal masks, too                              */
    atomic_uint changed; /* threads_changed                                                      */
    int32_t workers;     /* threads besides the caller's, waiting for work                            */
    int32_t wanted;      /* how many of them were asked for; the system may have granted fewer         */
    bool fork_handled;
    team_body *body; /* the region: written before the invitation                                 */
    void *ctx;
    int32_t threads;            /* taking part, the caller among them: written before go                      */
    _Atomic int64_t took;       /* the last regions, ns                                                    */
    _Atomic int64_t busy_until; /* of the clock: others want the processors, too                      */
    atomic_bool leave;          /* workers end                                                             */
    watched start;              /* counts invitations; its number names the region                           */
    watched go;                 /* the region whose width is settled                                         */
    watched barrier, done;
    /* The region's number in the upper half; in the lower how many have entered, and whether it is closed. */
    _Alignas(64) atomic_ullong entry;
    atomic_int places; /* how many may enter: written before entry is opened                      */
    _Alignas(64) atomic_int running, arrived;
    atomic_int starting; /* made, and not yet waiting for work                                       */
    pthread_t ids[THREADS_MAX];
    tn_team lent;      /* run NULL: none. Changed while busy is held                              */
    atomic_int width;  /* of lent; 0: none                                                       */
    atomic_bool alone; /* the child of a fork, where lent's threads are not                       */
} team = {.busy = PTHREAD_MUTEX_INITIALIZER, .entry = CLOSED};

/* The number of threads of the region that this thread is in; 0: in none. */
static _Thread_local int32_t region_threads;

/* threads_limit of this thread; 0: none. */
static _Thread_local int32_t limit;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Where this thread stood when it looked last: how often the system had taken its processor away, and for how long it
 * had not run without having slept here. */
static _Thread_local struct {
    long taken;
    int64_t away;
} looked;

/* For how long this thread has slept in wait_change. */
static _Thread_local int64_t slept;

/* Has another program had the processor of this thread since it looked last? */
static bool lost_processor(int64_t time)
{
    struct rusage usage;
    struct timespec ran;
    if (getrusage(RUSAGE_THREAD, &usage) != 0 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran) != 0)
        return false;
    int64_t away = time - ((int64_t)ran.tv_sec * 1000000000 + ran.tv_nsec) - slept;
    bool lost = usage.ru_nivcsw != looked.taken && away - looked.away > LOST;
    looked.taken = usage.ru_nivcsw;
    looked.away = away;
    return lost;
}

/* Then the machine is busy for a while. */
static bool preempted(int64_t time)
{
    bool lost = lost_processor(time);
    if (lost)
        atomic_store_explicit(&team.busy_until, time + BUSY, memory_order_relaxed);
    return lost;
}

/* A running mean. */
static void region_took(int64_t took, int64_t time)
{
    int64_t mean = atomic_load_explicit(&team.took, memory_order_relaxed);
    atomic_store_explicit(&team.took, mean + (took - mean) / 4, memory_order_relaxed);
    if (took > LONG)
        preempted(time); /* for what it notes                                                        */
}

/* A share of the time that the last regions took; the least where processors are taken away: whoever sleeps at once is
 * the first to get one back. The least, too, in the child of a check, whose team is waited for: who spins there between
 * calls takes the time of others. */
static int64_t share_of_region(int64_t time, int64_t share, int64_t least, int64_t most)
{
    int64_t part = atomic_load_explicit(&team.took, memory_order_relaxed) / share;
    if (time < atomic_load_explicit(&team.busy_until, memory_order_relaxed) ||
        atomic_load_explicit(&team.strict, memory_order_relaxed))
        return least;
    return part < least ? least : part > most ? most : part;
}

/* Returns when the value is no longer old. */
static void wait_change(watched *w, unsigned old)
{
    for (int64_t end = 0, look = 0;;) {
        for (int i = 0; i < LOOKS_PER_TIME; i++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
                return;
            relax();
        }
        int64_t time = now();
        if (end == 0) {
            end = time + share_of_region(time, SPIN_SHARE, SPIN_LEAST, SPIN_MOST);
            look = time + LONG;
        } else if (time >= end || (time >= look && preempted(time)))
            break;
        else if (time >= look)
            look = time + LONG;
    }
    /* The sleeper announces itself before it looks again, the waker bumps before it looks for sleepers. */
    atomic_fetch_add(&w->sleepers, 1);
    int64_t began = now();
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    slept += now() - began;
    atomic_fetch_sub(&w->sleepers, 1);
}

static void bump(watched *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers) > 0)
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, THREADS_MAX, NULL, NULL, 0);
}

/* Waits until counter is 0; whoever brings it there bumps done. */
static void wait_zero(atomic_int *counter)
{
    for (;;) {
        unsigned old = atomic_load(&team.done.value);
        if (atomic_load(counter) == 0)
            return;
        wait_change(&team.done, old);
    }
}

static void count_down(atomic_int *counter)
{
    if (atomic_fetch_sub(counter, 1) == 1)
        bump(&team.done);
}

/* Answers the invitation that is open, if one is. Returns this thread's rank in the region, or 0, and the region. */
static int32_t enter(unsigned *region)
{
    unsigned long long seen = atomic_load(&team.entry);
    /* A region that ends meanwhile changes entry, so places belongs to the region that is entered. */
    while (!(seen & CLOSED) && (int32_t)(seen & (CLOSED - 1)) < atomic_load(&team.places))
        if (atomic_compare_exchange_weak(&team.entry, &seen, seen + 1)) {
            *region = (unsigned)(seen >> 32);
            return (int32_t)(seen & (CLOSED - 1)) + 1;
        }
    return 0;
}

/* The work of a region by a worker, whose thread then is as it was: what it computes next must not depend on what
 * foreign code left behind. */
static void work_and_restore(int32_t rank, int32_t threads)
{
    sigset_t before, now;
    uint64_t control = hoststate_control();
    bool masks = atomic_load_explicit(&team.watched, memory_order_relaxed);
    if (masks)
        pthread_sigmask(SIG_BLOCK, NULL, &before);
    team.body(team.ctx, rank, threads);
    if (hoststate_control() != control) {
        hoststate_set_control(control);
        atomic_fetch_or(&team.changed, THREADS_CONTROL);
    }
    if (masks && pthread_sigmask(SIG_SETMASK, &before, &now) == 0 && memcmp(&before, &now, MASK_BYTES) != 0)
        atomic_fetch_or(&team.changed, THREADS_MASK);
}

static void take_part(int32_t rank, unsigned region)
{
    unsigned settled;
    while ((settled = atomic_load_explicit(&team.go.value, memory_order_acquire)) != region)
        wait_change(&team.go, settled);
    region_threads = team.threads;
    work_and_restore(rank, team.threads);
    region_threads = 0;
    count_down(&team.running);
}

/* argument: the number of the last region before this thread was made. */
static void *work(void *argument)
{
    unsigned seen = (unsigned)(uintptr_t)argument, region = 0;
    count_down(&team.starting);
    for (;;) {
        wait_change(&team.start, seen);
        seen = atomic_load_explicit(&team.start.value, memory_order_acquire);
        if (atomic_load(&team.leave))
            break;
        int32_t rank = enter(&region);
        if (rank > 0)
            take_part(rank, region);
    }
    return NULL;
}

/* Invites up to others threads and returns how many come. */
static int32_t invite(int32_t others)
{
    unsigned region = atomic_load(&team.start.value) + 1;
    atomic_store(&team.places, others);
    atomic_store(&team.entry, (unsigned long long)region << 32);
    bump(&team.start);
    int64_t began = now(), end = began + share_of_region(began, INVITATION_SHARE, INVITATION_LEAST, INVITATION_MOST);
    bool late = false;
    for (int i = 1; !late || atomic_load_explicit(&team.strict, memory_order_relaxed); i++) {
        if ((int32_t)(atomic_load_explicit(&team.entry, memory_order_relaxed) & (CLOSED - 1)) >= others)
            break;
        if (late)
            sched_yield();
        else if (i % LOOKS_PER_TIME == 0)
            late = now() >= end;
        else
            relax();
    }
    int32_t came = (int32_t)(atomic_fetch_or(&team.entry, CLOSED) & (CLOSED - 1));
    team.threads = came + 1;
    atomic_store(&team.running, came);
    if (came > 0) {
        atomic_store(&team.go.value, region - 1);
        bump(&team.go);
    }
    return came;
}

static void dismiss(void)
{
    if (team.workers == 0)
        return;
    atomic_store(&team.leave, true);
    bump(&team.start);
    while (team.workers > 0)
        pthread_join(team.ids[--team.workers], NULL);
    atomic_store(&team.leave, false);
    team.wanted = 0;
}

/* In the child of a fork only the forking thread exists. */
void threads_forget(void)
{
    pthread_mutex_init(&team.busy, NULL);
    team.workers = team.wanted = 0;
    if (team.lent.run)
        atomic_store(&team.alone, true);
    team.lent = (tn_team){0};
    atomic_store(&team.width, 0);
    atomic_store(&team.start.sleepers, 0);
    atomic_store(&team.go.sleepers, 0);
    atomic_store(&team.done.sleepers, 0);
    atomic_store(&team.barrier.sleepers, 0);
    atomic_store(&team.entry, CLOSED);
    atomic_store(&team.running, 0);
    atomic_store(&team.arrived, 0);
    atomic_store(&team.starting, 0);
    atomic_store(&team.leave, false);
    region_threads = 0;
}

/* Signals of the process are for its own threads; faults stay with the thread that causes them. */
static void block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* Makes the team as large as asked for, or as large as the system lets it be. A thread that starts or ends takes locks
 * of the allocator; a fork meanwhile would leave them taken in the child, where the allocator does not see to that
 * itself (a sanitizer's). So threads have started, or are gone, when this returns. */
static void hire(int32_t threads)
{
    sigset_t before;
    if (team.wanted == threads - 1)
        return;
    if (!team.fork_handled)
        team.fork_handled = pthread_atfork(NULL, NULL, threads_forget) == 0;
    dismiss();
    team.wanted = threads - 1;
    block_signals(&before);
    uintptr_t seen = atomic_load(&team.start.value);
    for (; team.workers < team.wanted; team.workers++) {
        atomic_fetch_add(&team.starting, 1);
        if (pthread_create(&team.ids[team.workers], NULL, work, (void *)seen) == 0)
            continue;
        atomic_fetch_sub(&team.starting, 1);
        break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    wait_zero(&team.starting);
}

int32_t threads_hired(void)
{
    if (pthread_mutex_trylock(&team.busy) != 0)
        return -1;
    int32_t workers = team.lent.run ? -1 : team.workers;
    pthread_mutex_unlock(&team.busy);
    return workers;
}

int32_t threads_bound(int32_t count)
{
    cpu_set_t set;
    int most = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    most = most < THREADS_ALWAYS ? THREADS_ALWAYS : most < THREADS_MAX ? most : THREADS_MAX;
    return count < most ? count : most;
}

void threads_set(int32_t count)
{
    atomic_store(&team.asked, count > 0 ? threads_bound(count) : 0);
}

void threads_strict(bool strict)
{
    atomic_store(&team.strict, strict);
}

bool threads_are_strict(void)
{
    return atomic_load_explicit(&team.strict, memory_order_relaxed);
}

bool threads_in_region(void)
{
    return region_threads > 0;
}

void threads_watch(bool masks)
{
    atomic_store(&team.watched, masks);
}

unsigned threads_changed(void)
{
    if (atomic_load_explicit(&team.changed, memory_order_acquire) == 0)
        return 0;
    return atomic_exchange(&team.changed, 0);
}

void threads_serial(bool serial)
{
    atomic_store(&team.serial, serial);
    if (!serial)
        atomic_store(&team.alone, false);
}

static int32_t count_processors(void)
{
    cpu_set_t set;
    int count =
        sched_getaffinity(0, sizeof set, &set) == 0 ? processors_count("", &set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count < THREADS_MAX ? count : THREADS_MAX;
}

int32_t threads_limit(int32_t count)
{
    int32_t before = limit;
    limit = count;
    return before;
}

/* How large the team should be. */
static int32_t team_size(void)
{
    int32_t count = atomic_load_explicit(&team.asked, memory_order_relaxed);
    if (count == 0 && (count = atomic_load_explicit(&team.processors, memory_order_relaxed)) == 0) {
        count = count_processors();
        atomic_store(&team.processors, count);
    }
    return count;
}

int32_t tn_thread_count(void)
{
    if (atomic_load_explicit(&team.serial, memory_order_relaxed) ||
        atomic_load_explicit(&team.alone, memory_order_relaxed))
        return 1;
    int32_t width = atomic_load_explicit(&team.width, memory_order_relaxed), count = width ? width : team_size();
    return limit > 0 && limit < count ? limit : count;
}

/* A region on threads of the program. */
typedef struct lent_region {
    int32_t threads; /* the most that may take part                                               */
    atomic_int began;
} lent_region;

static void lent_body(void *arg, int32_t index, int32_t count)
{
    lent_region *r = arg;
    count = count < r->threads ? count : r->threads;
    if (index < 0 || index >= count)
        return;
    int32_t outer = region_threads;
    atomic_fetch_add(&r->began, 1);
    region_threads = count;
    work_and_restore(index, count);
    region_threads = outer;
}

/* Where the pool runs nothing, this thread does the work. */
static void run_lent(int32_t threads)
{
    lent_region r = {.threads = threads};
    team.lent.run(team.lent.context, threads, lent_body, &r);
    if (atomic_load(&r.began) == 0)
        lent_body(&r, 0, 1);
}

tn_status tn_threads_use(const tn_team *lent, tn_error *err)
{
    tn_team own = {0};
    tn_status status = lent ? structs_take(&own, sizeof own, lent, "tn_team", err) : TN_OK;
    if (status == TN_OK && lent && (!own.run || own.width < 1 || own.width > THREADS_MAX))
        status = tn_fail(err, TN_E_USAGE, "tn_team", own.run ? "has %d threads; 1 to %d can be used" : "has no run()",
                         (int)own.width, (int)THREADS_MAX);
    if (status == TN_OK && region_threads > 0)
        status = tn_fail(err, TN_E_USAGE, "tn_threads_use", "threads cannot change inside a region of work");
    if (status != TN_OK)
        return status;
    pthread_mutex_lock(&team.busy);
    if (!team.fork_handled)
        team.fork_handled = pthread_atfork(NULL, NULL, threads_forget) == 0;
    dismiss();
    team.lent = own;
    atomic_store(&team.width, own.width);
    atomic_store(&team.alone, false);
    pthread_mutex_unlock(&team.busy);
    return TN_OK;
}

void threads_region(void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx, int32_t threads)
{
    int32_t outer = region_threads;
    if (threads > 1 && outer == 0 && pthread_mutex_trylock(&team.busy) == 0) {
        team.body = body;
        team.ctx = ctx;
        if (team.lent.run) {
            run_lent(threads);
            pthread_mutex_unlock(&team.busy);
            return;
        }
        hire(team_size());
        int32_t others = threads - 1 < team.workers ? threads - 1 : team.workers;
        region_threads = others > 0 ? invite(others) + 1 : 1;
        int64_t began = now();
        if (atomic_load_explicit(&team.took, memory_order_relaxed) > LONG)
            lost_processor(began); /* this thread may have waited for anything since                 */
        body(ctx, 0, region_threads);
        region_threads = 0;
        if (others > 0)
            wait_zero(&team.running);
        int64_t ended = now();
        region_took(ended - began, ended);
        pthread_mutex_unlock(&team.busy);
        return;
    }
    region_threads = 1; /* a team of its own, so that a barrier does not wait for the outer one */
    body(ctx, 0, 1);
    region_threads = outer;
}

void tn_parallel(void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx)
{
    if (body)
        threads_region(body, ctx, tn_thread_count());
}

void tn_barrier(void)
{
    if (region_threads < 2)
        return;
    unsigned old = atomic_load_explicit(&team.barrier.value, memory_order_acquire);
    if (atomic_fetch_add(&team.arrived, 1) + 1 < region_threads) {
        wait_change(&team.barrier, old);
        return;
    }
    atomic_store(&team.arrived, 0);
    bump(&team.barrier);
}
