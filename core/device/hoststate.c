/* What foreign code may change behind the program's back: a plugin linked with -ffast-math switches denormals off for
 * the whole thread, which changes eager's numbers; others install handlers, change directory or close stdout. */
#include "device/hoststate.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { SIGNALS = 65, MASK_BYTES = 8, STREAMS = 3, TIMERS = 3, FIRST_COPY = 3 };

/* Those that a quick look is for. */
static const int usual[] = {SIGHUP, SIGINT, SIGQUIT, SIGSEGV, SIGPIPE, SIGALRM, SIGTERM, SIGCHLD};

/* Which file a descriptor or a name leads to. */
typedef struct place {
    bool there, unknown;
    dev_t device;
    ino_t inode;
} place;

typedef struct stream {
    place place;
    int flags, copy; /* copy: the same open file under another number; -1: none                      */
} stream;

struct hoststate {
    bool quick;
    uint64_t control;
    sigset_t mask;
    cpu_set_t processors;
    locale_t thread_locale;
    struct sigaction actions[SIGNALS];
    bool known[SIGNALS];
    char *locale;
    int cwd;
    place cwd_place;
    mode_t umask;
    stream streams[STREAMS];
    struct itimerval timers[TIMERS];
    struct rlimit limits[RLIM_NLIMITS];
};

/* ---- floating-point control -------------------------------------------------------------------------------------- */

#if defined(__x86_64__) || defined(__i386__)
/* Control bits only: the exception flags change with every operation. */
enum { MXCSR_FLAGS = 0x3f };
uint64_t hoststate_control(void)
{
    uint32_t mxcsr = 0;
    uint16_t word = 0;
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(word));
    return (uint64_t)word << 32 | (mxcsr & ~(uint32_t)MXCSR_FLAGS);
}
void hoststate_set_control(uint64_t control)
{
    uint32_t mxcsr = (uint32_t)control;
    uint16_t word = (uint16_t)(control >> 32);
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(mxcsr), "m"(word));
}
#elif defined(__aarch64__)
uint64_t hoststate_control(void)
{
    uint64_t fpcr = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}
void hoststate_set_control(uint64_t control)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
}
#else
uint64_t hoststate_control(void)
{
    return 0;
}
void hoststate_set_control(uint64_t control)
{
    (void)control;
}
#endif

/* ---- saving ----------------------------------------------------------------------------------------------- */

/* absent: what errno says where there is no such thing. After any other failure nothing is known. */
static place place_from(int got, const struct stat *st, int absent)
{
    if (got == 0)
        return (place){.there = true, .device = st->st_dev, .inode = st->st_ino};
    return (place){.unknown = errno != absent};
}

static place place_of_descriptor(int fd)
{
    struct stat st;
    int got = fstat(fd, &st);
    return place_from(got, &st, EBADF);
}

static place place_of_cwd(void)
{
    struct stat st;
    int got = stat(".", &st);
    return place_from(got, &st, ENOENT);
}

static bool same_place(const place *a, const place *b)
{
    return a->unknown || b->unknown ||
           (a->there == b->there && (!a->there || (a->device == b->device && a->inode == b->inode)));
}

/* It can only be read by setting it: to one that lets nobody in, should another thread make a file meanwhile. */
static mode_t current_umask(void)
{
    mode_t mask = umask(077);
    umask(mask);
    return mask;
}

static void save_streams(hoststate *state)
{
    for (int i = 0; i < STREAMS; i++) {
        stream *s = &state->streams[i];
        place now = place_of_descriptor(i);
        s->flags = now.there ? fcntl(i, F_GETFL) : 0;
        if (s->copy >= 0)
            close(s->copy);
        s->copy = now.there ? fcntl(i, F_DUPFD_CLOEXEC, FIRST_COPY) : -1;
        s->place = now;
    }
}

static void save_cwd(hoststate *state)
{
    if (state->cwd >= 0)
        close(state->cwd);
    state->cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    state->cwd_place = place_of_cwd();
}

static void save_locale(hoststate *state)
{
    const char *locale = setlocale(LC_ALL, NULL);
    state->thread_locale = uselocale((locale_t)0);
    if (locale && state->locale && strcmp(locale, state->locale) == 0)
        return;
    free(state->locale);
    state->locale = locale ? strdup(locale) : NULL;
}

/* The signal to look at in step i; 0: no more. */
static int signal_at(const hoststate *state, int i)
{
    if (state->quick)
        return i < (int)(sizeof usual / sizeof *usual) ? usual[i] : 0;
    return i + 1 < SIGNALS ? i + 1 : 0;
}

static void save_everything(hoststate *state)
{
    state->control = hoststate_control();
    pthread_sigmask(SIG_BLOCK, NULL, &state->mask);
    CPU_ZERO(&state->processors);
    if (!state->quick)
        sched_getaffinity(0, sizeof state->processors, &state->processors);
    for (int i = 0, s; (s = signal_at(state, i)) != 0; i++)
        state->known[s] = sigaction(s, NULL, &state->actions[s]) == 0;
    for (int i = 0; i < TIMERS; i++)
        getitimer((__itimer_which_t)i, &state->timers[i]);
    for (int i = 0; i < (int)RLIM_NLIMITS && !state->quick; i++)
        getrlimit((__rlimit_resource_t)i, &state->limits[i]);
    state->umask = current_umask();
    save_locale(state);
    save_cwd(state);
    save_streams(state);
}

hoststate *hoststate_save(void)
{
    hoststate *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->cwd = -1;
    for (int i = 0; i < STREAMS; i++)
        state->streams[i].copy = -1;
    save_everything(state);
    return state;
}

void hoststate_again(hoststate *state)
{
    state->quick = true;
    save_everything(state);
}

void hoststate_release(hoststate *state)
{
    if (state->cwd >= 0)
        close(state->cwd);
    state->cwd = -1;
    for (int i = 0; i < STREAMS; i++) {
        if (state->streams[i].copy >= 0)
            close(state->streams[i].copy);
        state->streams[i].copy = -1;
    }
}

void hoststate_free(hoststate *state)
{
    if (!state)
        return;
    hoststate_release(state);
    free(state->locale);
    free(state);
}

/* ---- comparing -------------------------------------------------------------------------------------------- */

/* What a comparison does and finds. */
typedef struct finding {
    const hoststate *state;
    bool put_back, any;
    char *text;
    size_t size;
} finding;

static void add(finding *f, const char *what, const char *detail)
{
    size_t used = strlen(f->text);
    f->any = true;
    if (used < f->size)
        snprintf(f->text + used, f->size - used, "%s%s%s", used ? ", " : "", what, detail);
}

static bool same_action(const struct sigaction *before, const struct sigaction *now)
{
    if ((before->sa_flags & (int)SA_RESETHAND) && now->sa_handler == SIG_DFL)
        return true; /* its signal came                                                        */
    if ((before->sa_flags & SA_SIGINFO) != (now->sa_flags & SA_SIGINFO))
        return false;
    return before->sa_flags & SA_SIGINFO ? before->sa_sigaction == now->sa_sigaction
                                         : before->sa_handler == now->sa_handler;
}

static void compare_signals(finding *f)
{
    for (int i = 0, s; (s = signal_at(f->state, i)) != 0; i++) {
        struct sigaction now;
        if (!f->state->known[s] || sigaction(s, NULL, &now) != 0 || same_action(&f->state->actions[s], &now))
            continue;
        if (f->put_back)
            sigaction(s, &f->state->actions[s], NULL);
        char number[16];
        const char *name = sigabbrev_np(s);
        snprintf(number, sizeof number, "%d", s);
        add(f, name ? "handler of SIG" : "handler of signal ", name ? name : number);
    }
}

static bool is_zero(const struct timeval *t)
{
    return t->tv_sec == 0 && t->tv_usec == 0;
}

/* A timer runs down by itself: what counts is one that was not set, rings later than it did, or repeats otherwise. */
static bool same_timer(const struct itimerval *before, const struct itimerval *now)
{
    if (timercmp(&before->it_interval, &now->it_interval, !=))
        return is_zero(&before->it_interval) && is_zero(&now->it_value) && is_zero(&now->it_interval);
    if (!is_zero(&before->it_interval))
        return is_zero(&before->it_value) == is_zero(&now->it_value);
    return !timercmp(&now->it_value, &before->it_value, >);
}

static void compare_timers(finding *f)
{
    static const char *const names[TIMERS] = {"alarm", "virtual timer", "profiling timer"};
    for (int i = 0; i < TIMERS; i++) {
        struct itimerval now;
        if (getitimer((__itimer_which_t)i, &now) != 0 || same_timer(&f->state->timers[i], &now))
            continue;
        if (f->put_back)
            setitimer((__itimer_which_t)i, &f->state->timers[i], NULL);
        add(f, names[i], "");
    }
}

static void compare_streams(finding *f)
{
    static const char *const names[STREAMS] = {"standard input", "standard output", "standard error"};
    const int watched = O_NONBLOCK | O_APPEND | O_ASYNC;
    for (int i = 0; i < STREAMS; i++) {
        const stream *s = &f->state->streams[i];
        place now = place_of_descriptor(i);
        bool moved = !same_place(&now, &s->place);
        if (now.unknown || s->place.unknown)
            continue;
        if (!moved && (!now.there || !((fcntl(i, F_GETFL) ^ s->flags) & watched)))
            continue;
        if (f->put_back && moved && s->copy >= 0)
            dup2(s->copy, i);
        else if (f->put_back && moved)
            close(i);
        if (f->put_back && s->place.there)
            fcntl(i, F_SETFL, s->flags);
        add(f, names[i], "");
    }
}

static void compare_limits(finding *f)
{
    for (int i = 0; i < (int)RLIM_NLIMITS && !f->state->quick; i++) {
        struct rlimit now;
        const struct rlimit *before = &f->state->limits[i];
        if (getrlimit((__rlimit_resource_t)i, &now) != 0 ||
            (now.rlim_cur == before->rlim_cur && now.rlim_max == before->rlim_max))
            continue;
        if (f->put_back)
            setrlimit((__rlimit_resource_t)i, before);
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        add(f, "resource limit ", number);
    }
}

static void compare_thread(finding *f)
{
    const hoststate *state = f->state;
    sigset_t mask;
    cpu_set_t processors;
    CPU_ZERO(&processors);
    if (hoststate_control() != state->control) {
        if (f->put_back)
            hoststate_set_control(state->control);
        add(f, "floating-point control", "");
    }
    if (pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && memcmp(&mask, &state->mask, MASK_BYTES) != 0) {
        if (f->put_back)
            pthread_sigmask(SIG_SETMASK, &state->mask, NULL);
        add(f, "signal mask", "");
    }
    if (!state->quick && sched_getaffinity(0, sizeof processors, &processors) == 0 &&
        !CPU_EQUAL(&processors, &state->processors)) {
        if (f->put_back)
            sched_setaffinity(0, sizeof state->processors, &state->processors);
        add(f, "set of processors", "");
    }
}

static void compare_process(finding *f)
{
    const hoststate *state = f->state;
    const char *locale = setlocale(LC_ALL, NULL);
    bool renamed = state->locale && locale && strcmp(state->locale, locale) != 0;
    if (renamed || uselocale((locale_t)0) != state->thread_locale) {
        if (f->put_back && renamed)
            setlocale(LC_ALL, state->locale);
        if (f->put_back)
            uselocale(state->thread_locale);
        add(f, "locale", "");
    }
    place cwd = place_of_cwd();
    if (!same_place(&cwd, &state->cwd_place) && (!f->put_back || (state->cwd >= 0 && fchdir(state->cwd) == 0)))
        add(f, "working directory", "");
    mode_t mask = current_umask();
    if (mask != state->umask) {
        if (f->put_back)
            umask(state->umask);
        add(f, "umask", "");
    }
}

bool hoststate_differs(const hoststate *state, bool put_back, char *changed, size_t changed_size)
{
    changed[0] = '\0';
    if (!state)
        return false;
    finding f = {.state = state, .put_back = put_back, .text = changed, .size = changed_size};
    compare_thread(&f);
    compare_signals(&f);
    compare_process(&f);
    compare_streams(&f);
    compare_timers(&f);
    compare_limits(&f);
    return f.any;
}

void hoststate_restore(hoststate *state, char *changed, size_t changed_size)
{
    hoststate_differs(state, true, changed, changed_size);
    hoststate_free(state);
}
