/* A thread that is beyond the edge comes back by a jump: out of the handler of SIGSEGV, or out of what the runtime of
 * C++ calls where nothing catches an exception, which can be chosen from C by the name that C++ gives that function. */
#include "base/edge.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Addresses that stand for a null pointer and a member or an element behind it. */
static const uintptr_t NEAR_NULL = 1 << 16;

/* Where a thread goes on that is beyond the edge. Reading it in a handler must not allocate. */
static _Thread_local sigjmp_buf *way_out __attribute__((tls_model("initial-exec")));

typedef void terminate_handler(void);
static struct sigaction previous;
static terminate_handler *previous_terminate;

static void hand_on(int signal_number, siginfo_t *info, void *context)
{
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(signal_number, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(signal_number);
    else
        signal(SIGSEGV, SIG_DFL); /* and the instruction is repeated */
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    if (way_out && info->si_code > 0 && (uintptr_t)info->si_addr < NEAR_NULL)
        siglongjmp(*way_out, 1);
    hand_on(signal_number, info, context);
}

static void on_exception(void)
{
    if (way_out)
        siglongjmp(*way_out, 1);
    if (previous_terminate)
        previous_terminate();
    abort();
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    /* std::set_terminate(void (*)()), of the libstdc++ that oneDNN brings along. */
    terminate_handler *(*set_terminate)(terminate_handler *);
    *(void **)(void *)&set_terminate = dlsym(RTLD_DEFAULT, "_ZSt13set_terminatePFvvE");
    if (set_terminate)
        previous_terminate = set_terminate(on_exception);
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous);
}

void edge_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

/* An exception on its way out passes through frames of the C library (pthread_once, qsort), which opens the unwinder's
 * library for itself when it needs it for the first time, and ends the process where there is no memory for that. So
 * it is made to before anything can throw. false: there is no memory now. */
static bool load_unwinder(void)
{
    static atomic_bool loaded;
    void *caller;
    if (!atomic_load(&loaded))
        atomic_store(&loaded, backtrace(&caller, 1) > 0);
    return atomic_load(&loaded);
}

bool edge_call(void (*work)(void *), void *argument)
{
    sigjmp_buf here;
    sigjmp_buf *const before = way_out;
    volatile bool done = false;
    edge_install();
    if (!load_unwinder())
        return false;
    if (sigsetjmp(here, 0) == 0) {
        way_out = &here;
        work(argument);
        done = true;
    }
    way_out = before;
    return done;
}
