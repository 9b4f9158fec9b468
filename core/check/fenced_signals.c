/* Faults and lateness in the child that tries a kernel: a signal handler tells which memory an access went beyond, and
 * what took too long. */
#include "base/clock.h"
#include "check/fenced_child.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 64 * 1024 };

/* Where handlers look, which have no argument of their own and may run on threads of the kernel's. */
static fenced_child *watched;

static bool is_write(const ucontext_t *context)
{
#if defined(__x86_64__)
    return context->uc_mcontext.gregs[REG_ERR] & 2; /* the page fault's error code */
#else
    (void)context;
    return true;
#endif
}

static void on_fault(int signal_number, siginfo_t *info, void *context_pointer)
{
    (void)signal_number;
    const fenced_child *c = watched;
    fenced_note *note = c->note;
    note->fault_writes = is_write(context_pointer);
    for (size_t i = 0; i < c->count; i++) {
        const fenced_region *r = &c->regions[i];
        const unsigned char *address = info->si_addr;
        if (!fence_contains(&r->fence, address))
            continue;
        note->fault_kind = r->kind;
        note->fault_inside = address >= r->fence.data && address < r->fence.data + r->fence.bytes;
    }
    if (note->fault_kind == FENCED_OTHER && note->site && fenced_params_contain(note->site, info->si_addr)) {
        note->fault_kind = FENCED_PARAMS;
        note->fault_inside = true;
    }
    note->fault = true;
    _exit(1);
}

void *fenced_take_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Without a stack of its own for the handler one that overflows ends the child, too, and is told less well. */
void fenced_give_stack(void *unused, int32_t thread, int32_t threads)
{
    (void)unused;
    (void)thread;
    (void)threads;
    void *memory = fenced_take_memory(STACK_BYTES);
    if (memory)
        sigaltstack(&(stack_t){.ss_sp = memory, .ss_size = STACK_BYTES}, NULL);
}

static void wait_for_half(fenced_child *c)
{
    double half = c->note->seconds / 2;
    struct itimerspec left = {.it_value = {.tv_sec = (time_t)half, .tv_nsec = (long)(fmod(half, 1) * 1e9) + 1}};
    c->half_over = clock_seconds() + half;
    timer_settime(c->clock, 0, &left, NULL);
}

/* The first half of the time is over, or all of it. Where that is heard much later the machine stood still, which is no
 * kernel's fault: the time begins anew. */
static void on_time(int signal_number, siginfo_t *info, void *context_pointer)
{
    static const double HELD_UP = 1;
    int before = errno;
    (void)signal_number;
    (void)info;
    (void)context_pointer;
    watched->halves = clock_seconds() - watched->half_over > HELD_UP ? 0 : watched->halves + 1;
    if (watched->halves == 2) {
        watched->note->overdue = true;
        _exit(1);
    }
    wait_for_half(watched);
    errno = before;
}

/* The clock is none that a kernel's alarm could stop, or that would count as left by it. */
void fenced_limit_time(fenced_child *c, double seconds)
{
    c->note->seconds = floor(seconds);
    c->halves = 0;
    wait_for_half(c);
}

bool fenced_open_signals(fenced_child *c)
{
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction late = {.sa_sigaction = on_time, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    watched = c;
    return sigaction(SIGSEGV, &fault, NULL) == 0 && sigaction(SIGALRM, &late, NULL) == 0 &&
           timer_create(CLOCK_MONOTONIC, &event, &c->clock) == 0;
}
