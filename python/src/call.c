/* Work without the interpreter's lock that Ctrl-C ends. */
#include "binding.h"

#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void call_begin(call *c)
{
    *c = (call){.looked = now(), .state = PyEval_SaveThread()};
}

void call_end(call *c)
{
    PyEval_RestoreThread(c->state);
}

void call_enter(call *c)
{
    PyEval_RestoreThread(c->state);
}

void call_leave(call *c)
{
    c->state = PyEval_SaveThread();
}

bool call_goes_on(call *c)
{
    double t = now();
    if (c->raised || t < c->looked + 0.01)
        return !c->raised;
    c->looked = t;
    call_enter(c);
    c->raised = PyErr_CheckSignals() != 0;
    call_leave(c);
    return !c->raised;
}
