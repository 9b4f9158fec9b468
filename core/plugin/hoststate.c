/* What a library's constructor may change behind the program's back: a plugin linked with -ffast-math switches
 * denormals off for the whole thread, which changes eager's numbers; others install handlers or change directory. */
#include "plugin/hoststate.h"

#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIGNALS = 65 }; /* 1 .. 64 on Linux */

struct hoststate {
    uint32_t fp_control, fp_legacy;
    struct sigaction actions[SIGNALS];
    bool known[SIGNALS];
    char *locale;
    int cwd;
};

/* Control bits only: the exception flags change with every operation. */
#if defined(__x86_64__) || defined(__i386__)
enum { MXCSR_FLAGS = 0x3f };
static void fp_get(uint32_t *control, uint32_t *legacy)
{
    uint32_t mxcsr = 0;
    uint16_t word = 0;
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(word));
    *control = mxcsr & ~(uint32_t)MXCSR_FLAGS;
    *legacy = word;
}
static void fp_set(uint32_t control, uint32_t legacy)
{
    uint16_t word = (uint16_t)legacy;
    __asm__ volatile("ldmxcsr %0\n\tfldcw %1" : : "m"(control), "m"(word));
}
#elif defined(__aarch64__)
static void fp_get(uint32_t *control, uint32_t *legacy)
{
    uint64_t fpcr = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    *control = (uint32_t)fpcr;
    *legacy = 0;
}
static void fp_set(uint32_t control, uint32_t legacy)
{
    (void)legacy;
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)control));
}
#else
static void fp_get(uint32_t *control, uint32_t *legacy)
{
    *control = *legacy = 0;
}
static void fp_set(uint32_t control, uint32_t legacy)
{
    (void)control;
    (void)legacy;
}
#endif

hoststate *hoststate_save(void)
{
    hoststate *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    fp_get(&state->fp_control, &state->fp_legacy);
    for (int s = 1; s < SIGNALS; s++)
        state->known[s] = sigaction(s, NULL, &state->actions[s]) == 0;
    const char *locale = setlocale(LC_ALL, NULL);
    state->locale = locale ? strdup(locale) : NULL;
    state->cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return state;
}

static void add(char *changed, size_t size, const char *what, const char *detail)
{
    size_t used = strlen(changed);
    if (used < size)
        snprintf(changed + used, size - used, "%s%s%s", used ? ", " : "", what, detail);
}

static bool same_action(const struct sigaction *a, const struct sigaction *b)
{
    if ((a->sa_flags & SA_SIGINFO) != (b->sa_flags & SA_SIGINFO))
        return false;
    return a->sa_flags & SA_SIGINFO ? a->sa_sigaction == b->sa_sigaction : a->sa_handler == b->sa_handler;
}

static void restore_signals(const hoststate *state, char *changed, size_t size)
{
    for (int s = 1; s < SIGNALS; s++) {
        struct sigaction now;
        if (!state->known[s] || sigaction(s, NULL, &now) != 0 || same_action(&now, &state->actions[s]))
            continue;
        sigaction(s, &state->actions[s], NULL);
        char number[16];
        const char *name = sigabbrev_np(s);
        snprintf(number, sizeof number, "%d", s);
        add(changed, size, name ? "handler of SIG" : "handler of signal ", name ? name : number);
    }
}

static bool moved(int cwd)
{
    struct stat before, now;
    return cwd >= 0 && (fstat(cwd, &before) != 0 || stat(".", &now) != 0 || before.st_dev != now.st_dev ||
                        before.st_ino != now.st_ino);
}

void hoststate_restore(hoststate *state, char *changed, size_t changed_size)
{
    changed[0] = '\0';
    if (!state)
        return;
    uint32_t control, legacy;
    fp_get(&control, &legacy);
    if (control != state->fp_control || legacy != state->fp_legacy) {
        fp_set(state->fp_control, state->fp_legacy);
        add(changed, changed_size, "floating-point control", "");
    }
    restore_signals(state, changed, changed_size);
    const char *locale = setlocale(LC_ALL, NULL);
    if (state->locale && locale && strcmp(state->locale, locale) != 0) {
        setlocale(LC_ALL, state->locale);
        add(changed, changed_size, "locale", "");
    }
    if (moved(state->cwd) && fchdir(state->cwd) == 0)
        add(changed, changed_size, "working directory", "");
    if (state->cwd >= 0)
        close(state->cwd);
    free(state->locale);
    free(state);
}
