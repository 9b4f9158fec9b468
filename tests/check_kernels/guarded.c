/* Guarded buffers by mmap, and faults caught by a signal handler. */
#include "guarded.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* No two neighbouring bytes are alike, so that a shifted copy of the pattern is noticed. It repeats within a page. */
static unsigned char pattern(const guarded *g, const char *p)
{
    return (unsigned char)(0x5b + 7 * (p - g->map));
}

/* Fills whole pages with it. */
static void fill_pages(const guarded *g, char *begin, size_t bytes, size_t page)
{
    for (char *p = begin; p < begin + page; p++)
        *p = (char)pattern(g, p);
    for (size_t at = page; at < bytes; at += page)
        memcpy(begin + at, begin, page);
}

guarded guarded_new(placement where, size_t bytes, size_t element, const char *name, int index)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + element + page - 1) / page * page;
    guarded g = {.map_bytes = inner + 2 * page, .bytes = bytes, .name = name, .index = index};
    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + page, inner, PROT_READ | PROT_WRITE)) {
        fprintf(stderr, "check_kernels: out of memory\n");
        exit(6);
    }
    size_t at = where == PLACE_LEFT ? 0 : where == PLACE_SHIFTED ? element : (inner - bytes) / element * element;
    g.data = g.map + page + at;
    fill_pages(&g, g.map + page, inner, page);
    return g;
}

void guarded_free(guarded *g)
{
    if (g->map)
        munmap(g->map, g->map_bytes);
    g->map = NULL;
}

char *guarded_inner(const guarded *g, size_t *bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *bytes = g->map_bytes - 2 * page;
    return g->map + page;
}

void guarded_protect(guarded *g)
{
    size_t bytes;
    char *begin = guarded_inner(g, &bytes);
    mprotect(begin, bytes, PROT_READ);
    g->read_only = true;
}

bool guarded_untouched(const guarded *g, size_t offset, size_t bytes)
{
    for (const char *p = g->data + offset; p < g->data + offset + bytes; p++)
        if ((unsigned char)*p != pattern(g, p))
            return false;
    return true;
}

bool guarded_intact(const guarded *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const char *begin = g->map + page, *end = g->map + g->map_bytes - page;
    for (const char *p = begin; p < end; p++) {
        if (p == g->data)
            p += g->bytes;
        if (p < end && (unsigned char)*p != pattern(g, p))
            return false;
    }
    return true;
}

static struct fault {
    sigjmp_buf jump;
    pthread_t thread;
    const char *address, *label;
    int signal;
} fault;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault.address = info->si_addr;
    fault.signal = number;
    if (pthread_equal(pthread_self(), fault.thread))
        siglongjmp(fault.jump, 1);
    /* A thread of the team cannot leave its region: the process ends here. */
    static const char text[] = ": a thread of the team touched memory that it may not\n";
    if (write(1, "  FAILED ", 9) < 0 || write(1, fault.label, strlen(fault.label)) < 0 ||
        write(1, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

static void describe(const guarded *buffers, size_t count, char *text, size_t size)
{
    for (size_t i = 0; i < count; i++) {
        const guarded *g = &buffers[i];
        if (fault.address < g->map || fault.address >= g->map + g->map_bytes)
            continue;
        long long before = g->data - fault.address, after = fault.address - (g->data + g->bytes);
        if (before > 0)
            snprintf(text, size, "touched byte %lld before %s %d", before, g->name, g->index);
        else if (after >= 0)
            snprintf(text, size, "touched byte %lld after the end of %s %d", after, g->name, g->index);
        else
            snprintf(text, size, "wrote to %s %d, which is read-only", g->name, g->index);
        return;
    }
    snprintf(text, size, "%s at %p", strsignal(fault.signal), (const void *)fault.address);
}

bool guarded_call(void (*body)(void *ctx), void *ctx, const char *label, const guarded *buffers, size_t count,
                  char *text, size_t size)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    enum { SIGNALS = sizeof signals / sizeof *signals };
    const struct fault outer = fault; /* calls may be nested */
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER}, before[SIGNALS];
    fault.thread = pthread_self();
    fault.label = label;
    volatile bool survived = false;
    if (sigsetjmp(fault.jump, 1) == 0) {
        for (int i = 0; i < SIGNALS; i++)
            sigaction(signals[i], &action, &before[i]);
        body(ctx);
        survived = true;
    }
    for (int i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    if (!survived)
        describe(buffers, count, text, size);
    fault = outer;
    return survived;
}
