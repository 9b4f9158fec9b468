/* What a constructor did to the process that nobody can put right, or that would only show later. What the host can put
 * back (floating-point control, handlers, masks, folder, locale) is hoststate.c's. All of this runs in a trial's child.
 */
#include "plugin/conduct.h"

#include "device/confine.h"
#include "device/libraries.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 4, FAR_FILE = 100 };

static const struct {
    int resource;
    const char *name;
} limits[] = {
    {RLIMIT_AS, "address space"}, {RLIMIT_CPU, "processor time"},     {RLIMIT_DATA, "data"},
    {RLIMIT_FSIZE, "file size"},  {RLIMIT_MEMLOCK, "locked memory"},  {RLIMIT_NOFILE, "open files"},
    {RLIMIT_NPROC, "processes"},  {RLIMIT_STACK, "the stack's size"},
};
enum { LIMITS = sizeof limits / sizeof limits[0] };

static struct {
    struct rlimit limit[LIMITS];
    uid_t uid, euid;
    gid_t gid, egid;
    struct stat root, nowhere;
    cpu_set_t processors;
    int filter, priority, policy, io_priority;
    struct sched_param urgency;
    bool stack_runs;
    int files[FILES];
    char **environment; /* "NAME=value" each, copied                                                */
} before;

extern char **environ;

/* Of this thread, which the C library has no function for. */
static int io_priority(void)
{
    return (int)syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
}

void conduct_begin(void)
{
    for (int i = 0; i < LIMITS; i++)
        getrlimit((__rlimit_resource_t)limits[i].resource, &before.limit[i]);
    before.uid = getuid(), before.euid = geteuid();
    before.gid = getgid(), before.egid = getegid();
    (void)!stat("/", &before.root);
    CPU_ZERO(&before.processors);
    sched_getaffinity(0, sizeof before.processors, &before.processors);
    before.filter = confine_filters();
    before.priority = getpriority(PRIO_PROCESS, 0);
    before.stack_runs = libraries_stack_runs();
    before.policy = sched_getscheduler(0);
    sched_getparam(0, &before.urgency);
    before.io_priority = io_priority();
    /* Descriptors as a program has them: some after the first three, and one far off. */
    for (int i = 0; i < FILES; i++) {
        before.files[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (i == FILES - 1 && before.files[i] >= 0)
            before.files[i] = fcntl(before.files[i], F_DUPFD_CLOEXEC, FAR_FILE);
    }
    (void)!stat("/dev/null", &before.nowhere);
    size_t count = 0;
    while (environ && environ[count])
        count++;
    before.environment = calloc(count + 1, sizeof *before.environment);
    for (size_t i = 0; before.environment && i < count; i++)
        before.environment[i] = strdup(environ[i]);
}

static bool timer_runs(void)
{
    static const __itimer_which_t kinds[] = {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF};
    struct itimerval now;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (getitimer(kinds[i], &now) == 0 && (now.it_value.tv_sec || now.it_value.tv_usec))
            return true;
    /* Those of timer_create, which no call lists. */
    char byte;
    int list = open("/proc/self/timers", O_RDONLY | O_CLOEXEC);
    bool some = list >= 0 && read(list, &byte, 1) > 0;
    if (list >= 0)
        close(list);
    return some;
}

static bool files_are_open(void)
{
    struct stat st;
    for (int i = 0; i < FILES; i++)
        if (before.files[i] >= 0 && (fstat(before.files[i], &st) != 0 || st.st_rdev != before.nowhere.st_rdev))
            return false;
    return true;
}

/* Ended or not: the program would be the parent of something that it did not start. What got away from its own parent
 * has come to this one, as guard.c arranges it. */
static bool process_is_left(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/* The name of a resource of which there is less now. */
static const char *lowered_limit(void)
{
    struct rlimit now;
    for (int i = 0; i < LIMITS; i++)
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &now) == 0 &&
            (now.rlim_cur < before.limit[i].rlim_cur || now.rlim_max < before.limit[i].rlim_max))
            return limits[i].name;
    return NULL;
}

/* A variable that the user set and that is another now, or gone. New ones are none of the program's business. */
static bool changed_variable(char name[64])
{
    for (char **v = before.environment; v && *v; v++) {
        size_t n = strcspn(*v, "=");
        const char *now = NULL;
        for (char **e = environ; e && *e && !now; e++)
            if (strncmp(*e, *v, n) == 0 && (*e)[n] == '=')
                now = *e;
        if (!now || strcmp(now, *v) != 0) {
            snprintf(name, 64, "%.*s", (int)(n < 63 ? n : 63), *v);
            return true;
        }
    }
    return false;
}

static bool other_rights(void)
{
    struct stat root;
    return getuid() != before.uid || geteuid() != before.euid || getgid() != before.gid || getegid() != before.egid ||
           stat("/", &root) != 0 || root.st_dev != before.root.st_dev || root.st_ino != before.root.st_ino ||
           confine_filters() != before.filter;
}

static bool other_turns(void)
{
    cpu_set_t now;
    struct sched_param urgency = before.urgency;
    CPU_ZERO(&now);
    sched_getparam(0, &urgency);
    return (sched_getaffinity(0, sizeof now, &now) == 0 && !CPU_EQUAL(&now, &before.processors)) ||
           getpriority(PRIO_PROCESS, 0) != before.priority || sched_getscheduler(0) != before.policy ||
           urgency.sched_priority != before.urgency.sched_priority || io_priority() != before.io_priority;
}

tn_status conduct_check(tn_error *err)
{
    char name[64];
    const char *limit = lowered_limit();
    if (timer_runs())
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "its constructor leaves a timer running (alarm, setitimer or timer_create), whose signal would "
                       "reach the program");
    if (!files_are_open())
        return tn_fail(err, TN_E_KERNEL, NULL, "its constructor closes files that others opened");
    if (process_is_left())
        return tn_fail(err, TN_E_KERNEL, NULL, "its constructor leaves a process behind");
    if (libraries_stack_runs() && !before.stack_runs)
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "it loads a library that asks for an executable stack, which the whole program would get");
    if (limit)
        return tn_fail(err, TN_E_KERNEL, NULL, "its constructor lowers the program's limit on %s", limit);
    if (other_rights())
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "its constructor changes the program's user, group, root folder or allowed system calls");
    if (changed_variable(name))
        return tn_fail(err, TN_E_KERNEL, NULL, "its constructor changes the environment variable %s", name);
    if (other_turns())
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "its constructor changes the program's priority, how it is scheduled or the processors that it "
                       "may run on");
    return TN_OK;
}
