/* Calls made again, in the child, after each was made once: a plan asked for other sites in between, memory and other
 * things lost with each call, and two sessions at the same time. With small calls; what is lost, with large ones, too.
 */
#include "base/clock.h"
#include "base/text.h"
#include "check/fenced_child.h"
#include "op/op.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Most operations of these calls. */
static const double SMALL = 3e7, MEDIUM = 1e8;

/* ---- what there is ---------------------------------------------------------------------------------------------- */

/* The heap of AddressSanitizer counts nothing, and takes more while it keeps what was freed. */
#ifdef __has_feature
#define ASAN_OF_CLANG __has_feature(address_sanitizer)
#else
#define ASAN_OF_CLANG 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ASAN_OF_CLANG
static const bool counts_memory = false;
#else
static const bool counts_memory = true;
#endif

typedef struct usage {
    size_t heap, pages, descriptors, threads;
} usage;
static const usage NO_BOUND = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};

static size_t count_entries(const char *path)
{
    size_t count = 0;
    DIR *list = opendir(path);
    while (list && readdir(list))
        count++;
    if (list)
        closedir(list);
    return count;
}

static size_t heap_in_use(void)
{
    struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

/* The heap, which looking at the rest changes, right before or behind what is looked at. */
static usage look(bool before)
{
    usage u = {.heap = heap_in_use(), .descriptors = count_entries("/proc/self/fd")};
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%zu", &u.pages) != 1)
        u.pages = 0;
    if (file)
        fclose(file);
    u.threads = count_entries("/proc/self/task");
    if (before)
        u.heap = heap_in_use();
    return u;
}

/* Keeps of each figure the least growth of a call so far. */
static void note_growth(usage *least, const usage *before, const usage *after)
{
    const size_t *b = &before->heap, *a = &after->heap;
    size_t *l = &least->heap;
    for (size_t i = 0; i < sizeof *least / sizeof *l; i++) {
        size_t growth = a[i] > b[i] ? a[i] - b[i] : 0;
        l[i] = growth < l[i] ? growth : l[i];
    }
}

/* Nothing where nothing was noted. */
static int tell_growth(fenced_child *c, const usage *least, const char *each)
{
    char text[160];
    if (least->heap == NO_BOUND.heap)
        return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE),
           bytes = least->pages * page > least->heap ? least->pages * page : least->heap;
    if (bytes > 0 && counts_memory)
        text_cut(text, sizeof text, "keeps %zu bytes of memory more with each %s", bytes, each);
    else if (least->descriptors > 0)
        text_cut(text, sizeof text, "leaves %zu files open with each %s", least->descriptors, each);
    else if (least->threads > 0)
        text_cut(text, sizeof text, "leaves %zu threads with each %s", least->threads, each);
    else
        return 0;
    return fenced_give_up(c->note, TN_E_KERNEL, text);
}

/* ---- plan ------------------------------------------------------------------------------------------------------- */

/* A kernel that notes something of a site in a variable of its own mixes sites up. So it is asked about one that has
 * other numbers, for other calls, and about this one again. What it takes from the heap each time is never given back:
 * nothing ends a plan. */
static int plan_again(fenced_child *c)
{
    const fenced_trial *t = c->t;
    tn_site other = *t->site;
    usage least = NO_BOUND;
    if (!t->impl->plan || !c->watch)
        return 0;
    for (int i = 0; i < TN_NUM_MAX; i++)
        other.num[i] *= 2;
    for (int i = 0; i < 4; i++) {
        tn_plan plan = {.size = sizeof plan, .threads = t->threads, .max_tokens = i < 2 ? t->max_tokens : 1 + i};
        usage before = look(true);
        int failed = fenced_watch_plan(c, i % 2 ? t->site : &other, &plan, ", asked again");
        if (failed && c->note->status != TN_DECLINED)
            return 1;
        c->note->message[0] = '\0';
        usage after = look(false);
        if (!failed)
            note_growth(&least, &before, &after);
    }
    return tell_growth(c, &least, "plan");
}

/* ---- what is lost ----------------------------------------------------------------------------------------------- */

/* What grows with each of some calls is lost; what grows with a few of them is a cache that fills. */
static int lose(fenced_child *c, fenced_run *run, const fenced_prepared *site)
{
    enum { FIRST = 2, CALLS = 12 }; /* more than blocks that a thread keeps of a size when they are freed */
    usage least = NO_BOUND;
    fenced_call call;
    tn_error err = TN_ERROR_INIT;
    unsigned char *results = fenced_copy_results(run);
    c->note->manner = ", made again and again";
    if (!results || fenced_open_call(c, run, site, false, &call) != 0)
        return results ? 1 : 0;
    for (int i = 0; i < CALLS; i++) {
        fenced_limit_time(c, run->seconds);
        usage before = look(true);
        tn_status status = fenced_make_call(c, &call, &err);
        usage after = look(false);
        if (status != TN_OK)
            return fenced_give_up(c->note, TN_E_KERNEL, "failed when the same call was made again");
        if (!fenced_same_results(run, results))
            return fenced_give_up(c->note, TN_E_VERIFY, "gives other bits when the same call is made again");
        if (i >= FIRST)
            note_growth(&least, &before, &after);
    }
    fenced_close_call(c, &call);
    return tell_growth(c, &least, "call");
}

/* ---- two sessions ----------------------------------------------------------------------------------------------- */

/* One of them: its own call, its own memory. */
typedef struct session {
    fenced_child *c;
    fenced_call call;
    unsigned char *results;
    atomic_int *begun; /* calls of each; ENDED: all of them                                           */
    int own;           /* which of them is this one's                                                 */
    int least, most;   /* calls                                                                       */
    double until, last;
    bool failed, differs;
} session;

enum { ENDED = INT_MAX, LOOKS = 1000 };

/* Calls begin together, or nothing would show of two where a busy machine runs one behind the other. Who waits for long
 * gives its processor away: the other may be waiting for one. */
static bool begin_with_other(session *s, int call)
{
    atomic_store(&s->begun[s->own], call + 1);
    for (int i = 0; atomic_load(&s->begun[1 - s->own]) <= call; i++) {
        if (i < LOOKS)
            continue;
        sched_yield();
        if (clock_seconds() > s->last)
            return false;
    }
    return true;
}

static void *call_on(void *ctx)
{
    session *s = ctx;
    tn_error err = TN_ERROR_INIT;
    for (int i = 0; i < s->most && !s->failed && !s->differs && (i < s->least || clock_seconds() < s->until); i++) {
        if (!begin_with_other(s, i))
            break;
        s->failed = fenced_make_call(s->c, &s->call, &err) != TN_OK;
        s->differs = !fenced_same_results(s->call.run, s->results);
    }
    atomic_store(&s->begun[s->own], ENDED);
    return NULL;
}

static void *call_elsewhere(void *ctx)
{
    fenced_give_stack(NULL, 1, 2);
    return call_on(ctx);
}

static double interrupted_until;

static void give_way(int signal_number)
{
    int before = errno;
    (void)signal_number;
    if (clock_seconds() < interrupted_until)
        sched_yield();
    errno = before;
}

/* From now on a signal comes in the midst of calls, and whoever gets it gives its processor away: a busy machine may
 * leave them only one, where calls would follow one another. Not for longer than so many seconds: each time may cost a
 * round of all that wait for a processor. Both end with the child. */
static void interrupt_calls(double seconds)
{
    interrupted_until = clock_seconds() + seconds;
    struct sigaction yield = {.sa_handler = give_way, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM};
    const struct timespec each = {.tv_nsec = 100000};
    timer_t clock;
    if (sigaction(SIGVTALRM, &yield, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &event, &clock) == 0)
        timer_settime(clock, 0, &(struct itimerspec){each, each}, NULL);
}

/* Two models may call a kernel at the same time, so two threads do, each with a call of its own. What says that it
 * keeps state, behind a lock, is tried for longer. */
static int two_sessions(fenced_child *c, bool keeps, fenced_run *const runs[2], const fenced_prepared *const sites[2])
{
    const session few = {.c = c, .least = 8, .most = 120, .until = 0.002, .last = 0.1},
                  many = {.c = c, .least = 100, .most = 120, .until = 0.2, .last = 3};
    atomic_int begun[2] = {0, 0};
    session s[2];
    pthread_t other;
    for (int i = 0; i < 2; i++) {
        s[i] = keeps ? many : few;
        s[i].results = fenced_copy_results(runs[i]);
        s[i].begun = begun;
        s[i].own = i;
        if (!s[i].results || fenced_open_call(c, runs[i], sites[i], false, &s[i].call) != 0)
            return s[i].results ? 1 : 0;
    }
    fenced_limit_time(c, 4 * CHECK_LEAST_SECONDS);
    c->note->manner = ", called by two sessions at the same time";
    if (keeps)
        interrupt_calls(many.last);
    double began = clock_seconds();
    for (int i = 0; i < 2; i++) {
        s[i].until += began;
        s[i].last += began;
    }
    if (pthread_create(&other, NULL, call_elsewhere, &s[1]) != 0)
        return 0;
    /* It goes with the child. LeakSanitizer would wait here for a thread of the program's that had the same number. */
    pthread_detach(other);
    call_on(&s[0]);
    while (atomic_load(&begun[1]) != ENDED)
        usleep(100);
    if (s[0].failed || s[1].failed)
        return fenced_give_up(c->note, TN_E_KERNEL, "failed");
    if (s[0].differs || s[1].differs)
        return fenced_give_up(c->note, TN_E_VERIFY, "gives other bits than when it is called by one");
    return 0;
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static const fenced_prepared *prepared_of(const fenced_child *c, const fenced_run *run)
{
    for (size_t i = 0; i < c->site_count; i++)
        if (c->sites[i].site == run->in->call.site)
            return &c->sites[i];
    return NULL;
}

/* A call that can be made again: dense, in memory of its own, with tokens, at a site that is still prepared, and with
 * no more than so many operations. */
static bool is_simple(const fenced_run *run, double most)
{
    return !run->only && !run->padded && run->in_place == 0 && run->in->tokens > 0 &&
           op_operations(&run->in->call) <= most;
}

/* Of the small ones the shortest, or the longest, that is another one than but, and of so many threads (0: any).
 * SIZE_MAX: none is small. */
static size_t small(const fenced_trial *t, const inputs *but, int32_t team, bool longest)
{
    size_t best = SIZE_MAX;
    double of_best = 0;
    for (size_t i = 0; i < t->run_count; i++) {
        const fenced_run *run = &t->runs[i];
        double work = op_operations(&run->in->call);
        if (run->in == but || (team > 0 && run->team != team) || !is_simple(run, SMALL))
            continue;
        if (best == SIZE_MAX || (longest ? work > of_best : work < of_best)) {
            best = i;
            of_best = work;
        }
    }
    return best;
}

/* One of the other end of the list, forward or backward: a way through the kernel that few tokens do not take. */
static size_t largest(const fenced_trial *t, bool backward)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < t->run_count; i++) {
        const fenced_run *run = &t->runs[i];
        if (is_simple(run, MEDIUM) && backward == (run->wanted != NULL) &&
            (best == SIZE_MAX || run->in->tokens > t->runs[best].in->tokens))
            best = i;
    }
    return best;
}

static int lose_at(fenced_child *c, size_t run)
{
    const fenced_trial *t = c->t;
    if (run >= t->run_count)
        return 0;
    c->note->run = run;
    c->note->stage = STAGE_CALL;
    c->note->site = t->runs[run].in->call.site;
    fenced_use_team(c, t->runs[run].team);
    return lose(c, &t->runs[run], prepared_of(c, &t->runs[run]));
}

int fenced_again(fenced_child *c)
{
    const fenced_trial *t = c->t;
    if (t->plain)
        return 0;
    size_t first = small(t, NULL, 0, false);
    if (plan_again(c) != 0 || lose_at(c, largest(t, false)) != 0 || lose_at(c, largest(t, true)) != 0 ||
        lose_at(c, first) != 0)
        return 1;
    /* Behind a lock, or where one should be, calls meet if they are long. */
    bool keeps = t->impl->traits & TN_KEEPS_STATE;
    size_t one = small(t, NULL, 1, keeps), two = one < t->run_count ? small(t, t->runs[one].in, 1, keeps) : SIZE_MAX;
    /* A device's queue is one model's, and used by one thread at a time. */
    if (two >= t->run_count || t->device->queue)
        return 0;
    fenced_run *const runs[2] = {&t->runs[one], &t->runs[two]};
    const fenced_prepared *const sites[2] = {prepared_of(c, runs[0]), prepared_of(c, runs[1])};
    c->note->run = one;
    c->note->site = runs[0]->in->call.site;
    c->note->stage = STAGE_CALL;
    fenced_use_team(c, 1);
    return two_sessions(c, keeps, runs, sites);
}
