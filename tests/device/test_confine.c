/* What children that try plugins may do to other processes, to the machine and to themselves: each deed is done by a
 * child to a process that is there, first without the filter, where none may be denied, and then under it. What the
 * system denies without a filter, too, is left out, aloud. */
#include "device/confine.h"

#include "suite.h"
#include "tempdir.h"

#include <asm/termbits.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/ioprio.h>
#include <linux/kcmp.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t victim;
static int segment;  /* of shared memory                                                                 */
static int terminal; /* open for reading                                                                 */
static char *folder;

static void setup(void)
{
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    victim = fork();
    if (victim == 0) {
        signal(SIGIO, SIG_IGN);
        if (write(ready[1], "", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    ck_assert_int_eq((int)read(ready[0], &byte, 1), 1);
    close(ready[0]), close(ready[1]);
    segment = shmget(IPC_PRIVATE, 4096, 0600);
    ck_assert_int_ge(segment, 0);
    int other_end = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert(other_end >= 0 && grantpt(other_end) == 0 && unlockpt(other_end) == 0);
    terminal = open(ptsname(other_end), O_RDONLY | O_NOCTTY);
    ck_assert_int_ge(terminal, 0);
    folder = tempdir_new();
}

static void teardown(void)
{
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    shmctl(segment, IPC_RMID, NULL);
}

/* ---- deeds on a process or thread: 0, or what went wrong as errno tells ----------------------------------------- */

static long set_affinity(pid_t pid)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    return sched_getaffinity(0, sizeof all, &all) != 0 || sched_setaffinity(pid, sizeof all, &all) != 0;
}

static long set_scheduler(pid_t pid)
{
    return sched_setscheduler(pid, SCHED_OTHER, &(struct sched_param){0});
}

static long set_param(pid_t pid)
{
    return sched_setparam(pid, &(struct sched_param){0});
}

static long set_attr(pid_t pid)
{
    uint32_t attributes[12] = {sizeof attributes}; /* struct sched_attr; the plain policy                       */
    return syscall(SYS_sched_setattr, pid, attributes, 0);
}

static long set_priority(pid_t pid)
{
    return setpriority(PRIO_PROCESS, (id_t)pid, 0);
}

static long set_io_priority(pid_t pid)
{
    return syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 4));
}

static long set_limit(pid_t pid)
{
    struct rlimit limit;
    return prlimit(pid, RLIMIT_CORE, NULL, &limit) != 0 || prlimit(pid, RLIMIT_CORE, &limit, NULL) != 0;
}

static long set_pages(pid_t pid)
{
    return syscall(SYS_move_pages, pid, 0L, NULL, NULL, NULL, 0);
}

static long set_nodes(pid_t pid)
{
    unsigned long nodes = 1;
    return syscall(SYS_migrate_pages, pid, 8L * (long)sizeof nodes, &nodes, &nodes);
}

static long count_events(pid_t pid)
{
    struct perf_event_attr event = {.size = sizeof event, .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY};
    event.exclude_kernel = 1;
    return syscall(SYS_perf_event_open, &event, pid, -1, -1, 0UL) < 0 ? -1 : 0;
}

static long compare_with(pid_t pid)
{
    return syscall(SYS_kcmp, getpid(), pid, KCMP_VM, 0UL, 0UL) < 0 ? -1 : 0;
}

typedef struct thread_deed {
    const char *name;
    long (*act)(pid_t pid);
} thread_deed;

static const thread_deed on_threads[] = {
    {"sched_setaffinity", set_affinity},
    {"sched_setscheduler", set_scheduler},
    {"sched_setparam", set_param},
    {"sched_setattr", set_attr},
    {"setpriority", set_priority},
    {"ioprio_set", set_io_priority},
    {"prlimit", set_limit},
    {"move_pages", set_pages},
    {"migrate_pages", set_nodes},
    {"perf_event_open", count_events},
    {"kcmp", compare_with},
};
enum { ON_THREADS = sizeof on_threads / sizeof on_threads[0] };

/* ---- deeds that nobody may do ----------------------------------------------------------------------------------- */

static long by_descriptor(long number, long second)
{
    int fd = (int)syscall(SYS_pidfd_open, victim, 0);
    long result = fd < 0 ? 0 : syscall(number, fd, second, 0L, 0L, 0L);
    int kept = errno;
    close(fd);
    errno = kept;
    return result < 0 ? -1 : 0;
}

static long release_memory(void)
{
    return by_descriptor(SYS_process_mrelease, 0);
}

static long take_descriptor(void)
{
    return by_descriptor(SYS_pidfd_getfd, 0);
}

static long enter_namespace(void)
{
    return by_descriptor(SYS_setns, 0x04000000 /* CLONE_NEWUTS */);
}

static long group_priority(void)
{
    return setpriority(PRIO_PGRP, (id_t)getpgid(victim), 0);
}

static long user_priority(void)
{
    return setpriority(PRIO_USER, getuid(), getpriority(PRIO_PROCESS, 0));
}

static long group_io_priority(void)
{
    return syscall(SYS_ioprio_set, IOPRIO_WHO_PGRP, getpgid(victim), IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 4));
}

static long read_memory(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)&victim, 1};
    return process_vm_readv(victim, &here, 1, &there, 1, 0) < 0 ? -1 : 0;
}

/* A request that its reader may make, and one that he may not. */
static long at_terminal(unsigned long request)
{
    struct termios settings;
    return ioctl(terminal, TCGETS, &settings) != 0 || ioctl(terminal, request, &settings) != 0;
}

static long set_terminal(void)
{
    return at_terminal(TCSETS);
}

static long flush_terminal(void)
{
    return at_terminal(TCFLSH);
}

static long set_attributes(void)
{
    int flags = 0, file = open(folder, O_RDONLY | O_CLOEXEC);
    return ioctl(file, FS_IOC_GETFLAGS, &flags) < 0 || ioctl(file, FS_IOC_SETFLAGS, &flags) < 0;
}

static long send_signal(void)
{
    return by_descriptor(SYS_pidfd_send_signal, 0);
}

static long kill_it(void)
{
    return kill(victim, 0);
}

static long own_signal(void)
{
    int ends[2];
    return pipe(ends) == 0 && fcntl(ends[0], F_SETOWN, victim) == 0 ? 0 : -1;
}

static long share_memory(void)
{
    return shmat(segment, NULL, 0) == (void *)-1 ? -1 : 0;
}

static long remove_shared(void)
{
    return shmctl(segment, IPC_STAT, &(struct shmid_ds){0});
}

/* in_trials: otherwise allowed. */
static const struct {
    const char *name;
    long (*act)(void);
    bool in_trials;
} on_others[] = {
    {"process_mrelease", release_memory, false},
    {"pidfd_getfd", take_descriptor, false},
    {"setns", enter_namespace, false},
    {"setpriority of a group", group_priority, false},
    {"setpriority of a user", user_priority, false},
    {"ioprio_set of a group", group_io_priority, false},
    {"process_vm_readv", read_memory, false},
    {"TCSETS", set_terminal, false},
    {"TCFLSH", flush_terminal, false},
    {"FS_IOC_SETFLAGS", set_attributes, false},
    {"pidfd_send_signal", send_signal, true},
    {"kill", kill_it, true},
    {"fcntl F_SETOWN", own_signal, true},
    {"shmat", share_memory, true},
    {"shmctl", remove_shared, true},
};
enum { ON_OTHERS = sizeof on_others / sizeof on_others[0] };

/* ---- children --------------------------------------------------------------------------------------------------- */

typedef enum rights { NO_FILTER, CALLS, TRIAL } rights;

/* In a child with these rights; 0: as wanted. */
static int outcome(rights with, int (*act)(int which, bool denied), int which, bool denied)
{
    pid_t child = fork();
    if (child == 0) {
        if (with != NO_FILTER && !confine_enter(with == CALLS ? CONFINE_CALLS : CONFINE_TRIAL))
            _exit(9);
        _exit(act(which, denied));
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

static void expect(rights with, int (*act)(int which, bool denied), int which, bool denied, const char *name)
{
    int status = outcome(with, act, which, denied);
    ck_assert_msg(status == 0, "%s, rights %d: status %x, %s", name, (int)with, (unsigned)status,
                  denied ? "it is not denied" : "it is denied");
}

/* There is a filter, and it is the filter that denies. */
static bool can_tell(int (*act)(int which, bool denied), int which, const char *name)
{
    const char *why = confine_missing();
    if (!why && outcome(NO_FILTER, act, which, false) != 0)
        why = "this system denies it without a filter";
    if (why)
        printf("SKIPPED %s: %s\n", name, why);
    return !why;
}

static int judge(long result, bool denied)
{
    return (result != 0 && errno == EPERM) == denied ? 0 : 1;
}

static int on_victim(int which, bool denied)
{
    errno = 0;
    return judge(on_threads[which].act(victim), denied);
}

static int on_first_process(int which, bool denied)
{
    errno = 0;
    return judge(on_threads[which].act(getppid()), denied);
}

static int on_other(int which, bool denied)
{
    errno = 0;
    return judge(on_others[which].act(), denied);
}

/* By 0, by its own number, and by that of a thread that it starts. */
static void *act_in_thread(void *deed)
{
    errno = 0;
    return judge(((const thread_deed *)deed)->act(gettid()), false) ? deed : NULL;
}

static int on_itself(int which, bool denied)
{
    thread_deed deed = on_threads[which];
    pthread_t thread;
    void *failed = NULL;
    errno = 0;
    int bad = judge(deed.act(0), denied) + judge(deed.act(getpid()), denied);
    if (deed.act == compare_with)
        bad = judge(deed.act(getpid()), denied); /* which knows no 0                                           */
    if (pthread_create(&thread, NULL, act_in_thread, &deed) != 0 || pthread_join(thread, &failed) != 0)
        return 2;
    return bad || failed ? 1 : 0;
}

START_TEST(other_processes_are_left_alone)
{
    const char *name = on_threads[_i].name;
    if (!can_tell(on_victim, _i, name))
        return;
    expect(CALLS, on_victim, _i, true, name);
    expect(TRIAL, on_victim, _i, true, name);
    expect(TRIAL, on_first_process, _i, true, name);
}
END_TEST

START_TEST(a_process_may_do_it_to_itself)
{
    if (!can_tell(on_itself, _i, on_threads[_i].name))
        return;
    expect(CALLS, on_itself, _i, false, on_threads[_i].name);
    expect(TRIAL, on_itself, _i, false, on_threads[_i].name);
}
END_TEST

START_TEST(groups_terminals_and_the_machine_are_left_alone)
{
    const char *name = on_others[_i].name;
    if (!can_tell(on_other, _i, name))
        return;
    expect(CALLS, on_other, _i, !on_others[_i].in_trials, name);
    expect(TRIAL, on_other, _i, true, name);
}
END_TEST

/* A thread that is bound when it is made, as OpenMP's run-time library binds its own. */
static void *return_at_once(void *unused)
{
    return unused;
}

static int start_bound(int which, bool denied)
{
    (void)which;
    cpu_set_t one;
    pthread_t thread;
    pthread_attr_t attributes;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    bool good = pthread_attr_init(&attributes) == 0 &&
                pthread_attr_setaffinity_np(&attributes, sizeof one, &one) == 0 &&
                pthread_create(&thread, &attributes, return_at_once, NULL) == 0 && pthread_join(thread, NULL) == 0;
    return good != denied ? 0 : 1;
}

START_TEST(threads_may_be_bound_to_processors)
{
    if (!can_tell(start_bound, 0, "a bound thread"))
        return;
    expect(CALLS, start_bound, 0, false, "a bound thread");
    expect(TRIAL, start_bound, 0, false, "a bound thread");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("device: confine", 0);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, other_processes_are_left_alone, 0, ON_THREADS);
    tcase_add_loop_test(tc, a_process_may_do_it_to_itself, 0, ON_THREADS);
    tcase_add_loop_test(tc, groups_terminals_and_the_machine_are_left_alone, 0, ON_OTHERS);
    suite_add(tc, threads_may_be_bound_to_processors);
    return suite_run();
}
