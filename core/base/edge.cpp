/* The only file in C++: nothing else can catch what a library in C++ throws. */
#include "base/edge.h"

#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cxxabi.h>
#include <pthread.h>

/* Addresses that stand for a null pointer and a member or an element behind it. */
static const uintptr_t NEAR_NULL = 1 << 16;

/* Where a thread goes on that is beyond the edge. Reading it in a handler must not allocate. */
static thread_local sigjmp_buf *way_out __attribute__((tls_model("initial-exec")));
static struct sigaction previous;

static void hand_on(int signal, siginfo_t *info, void *context)
{
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(signal, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(signal);
    else
        ::signal(SIGSEGV, SIG_DFL); /* and the instruction is repeated */
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    if (way_out && info->si_code > 0 && reinterpret_cast<uintptr_t>(info->si_addr) < NEAR_NULL)
        siglongjmp(*way_out, 1);
    hand_on(signal, info, context);
}

static void install(void)
{
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous);
}

void edge_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

/* A function of its own: where it is left by a jump, nothing of its caller's is lost in registers. */
static bool call_and_catch(void (*work)(void *), void *argument)
{
    try {
        work(argument);
    } catch (abi::__forced_unwind &) {
        throw; /* the thread is being cancelled */
    } catch (...) {
        return false;
    }
    return true;
}

bool edge_call(void (*work)(void *), void *argument)
{
    sigjmp_buf here;
    sigjmp_buf *const before = way_out;
    volatile bool done = false;
    edge_install();
    if (sigsetjmp(here, 0) == 0) {
        way_out = &here;
        done = call_and_catch(work, argument);
    }
    way_out = before;
    return done;
}
