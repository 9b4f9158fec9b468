/* A filter of system calls for the children that try plugins. What it holds off fails as on a read-only disk without a
 * network, and does not end the child: a constructor that would write its cache goes on without it.
 *
 * What only changes the child itself stays allowed (setuid, chroot, limits, processors, a filter of its own): conduct.c
 * looks at what came of it and refuses the plugin by name. The filter sees numbers and no paths: /dev/null, too, cannot
 * be opened for writing in a trial; descriptors 0 to 2 are open there. Nor does it know the threads that the child will
 * start, on which run-time libraries call by number: see enter_on_threads. */
#include "device/confine.h"

#include "device/guard.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>

enum { SECONDS = 5 }; /* to ask whether there are filters                                                   */

#ifdef TN_SECCOMP
#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <linux/ioprio.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Names that this machine or this libseccomp does not know are left out. */
static const char *const denied[] = {
    /* the network */
    "socket",
    "socketcall",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "sendto",
    "sendmsg",
    "sendmmsg",
    /* names of files */
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "mkdir",
    "mkdirat",
    "rmdir",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mknod",
    "mknodat",
    /* what files are like */
    "truncate",
    "truncate64",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "chown32",
    "fchown",
    "fchown32",
    "lchown",
    "lchown32",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "utimensat_time64",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    /* other processes */
    "ptrace",
    "pidfd_getfd",
    "process_madvise",
    "process_mrelease",
    /* what others see, and may open */
    "fanotify_init",
    "fanotify_mark",
    /* the machine */
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "setns",
    "quotactl",
    "quotactl_fd",
    "acct",
    "swapon",
    "swapoff",
    "reboot",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "bpf",
    "sethostname",
    "setdomainname",
    "settimeofday",
    "stime",
    "clock_settime",
    "clock_settime64",
    "adjtimex",
    "clock_adjtime",
    "add_key",
    "keyctl",
    "request_key",
    "ioperm",
    "iopl",
    "syslog",
    "vhangup",
    /* ways around this filter */
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "open_by_handle_at",
};

/* Newer than libseccomp 2.5; one number on all machines: fchmodat2, setxattrat, removexattrat, open_tree_attr,
 * file_setattr. */
static const int denied_numbers[] = {452, 463, 466, 467, 469};

static const char *const denied_in_trials[] = {
    "creat",
    "tkill",
    "pidfd_send_signal",
    "mq_open",
    "mq_unlink",
    /* what processes share by numbers */
    "shmget",
    "shmat",
    "shmctl",
    "msgget",
    "msgctl",
    "msgsnd",
    "msgrcv",
    "semget",
    "semctl",
    "semop",
    "semtimedop",
    "semtimedop_time64",
};

/* Calls whose first argument is a process: of memory (peek.c reads this one's own), and that gets a signal. */
static const char *const own_memory[] = {"process_vm_readv", "process_vm_writev"};
static const char *const own_signals[] = {"kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"};

/* Calls on a process or a thread, and which argument is its number. */
typedef struct call_argument {
    const char *name;
    unsigned argument;
} call_argument;
static const call_argument on_threads[] = {
    {"sched_setaffinity", 0}, {"sched_setscheduler", 0}, {"sched_setparam", 0}, {"sched_setattr", 0},
    {"setpriority", 1},       {"ioprio_set", 1},         {"prlimit64", 0},      {"move_pages", 0},
    {"migrate_pages", 0},     {"perf_event_open", 1},    {"kcmp", 0},           {"kcmp", 1},
};

/* Those of them of which one value of an argument is about one thread, and the others about groups and users. */
static const struct {
    call_argument call;
    scmp_datum_t one;
} on_groups[] = {{{"setpriority", 0}, PRIO_PROCESS}, {{"ioprio_set", 0}, IOPRIO_WHO_PROCESS}};

/* Requests to an open file, which may be open for reading only: of a terminal's settings and what is typed there, of
 * the attributes of files, and of whole file systems. */
static const unsigned requests[] = {
    TIOCSTI,
    TIOCLINUX,
    TIOCCONS,
    TIOCSETD,
    TIOCSCTTY,
    TIOCSPGRP,
    TIOCSWINSZ,
    TIOCEXCL,
    TIOCVHANGUP,
    TCSETS,
    TCSETSW,
    TCSETSF,
    TCSETA,
    TCSETAW,
    TCSETAF,
    TCSETS2,
    TCSETSW2,
    TCSETSF2,
    TCFLSH,
    TCXONC,
    TCSBRK,
    TCSBRKP,
    FIFREEZE,
    FITHAW,
    FITRIM,
    FS_IOC_SETFLAGS,
    FS_IOC_SETVERSION,
    FS_IOC_FSSETXATTR,
    FS_IOC_ENABLE_VERITY,
};

/* So that the end of a read, say, is a signal to a process of one's choice. */
static const int signal_owners[] = {F_SETOWN, F_SETOWN_EX};

static bool add_names(scmp_filter_ctx filter, const char *const *names, size_t count)
{
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        int number = seccomp_syscall_resolve_name(names[i]);
        int result = number == __NR_SCMP_ERROR ? 0 : seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 0);
        good = good && (result == 0 || result == -EDOM || result == -EFAULT);
    }
    return good;
}

/* With no other process than this one. Its children lose their own, too: the filter is made before they are. */
static bool add_own(scmp_filter_ctx filter, const char *const *names, size_t count)
{
    bool good = true;
    for (size_t i = 0; i < count; i++)
        good = good && seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), seccomp_syscall_resolve_name(names[i]), 1,
                                        SCMP_A0(SCMP_CMP_NE, (scmp_datum_t)getpid(), 0)) == 0;
    return good;
}

static int deny_if(scmp_filter_ctx filter, call_argument call, enum scmp_compare compare, scmp_datum_t a,
                   scmp_datum_t b)
{
    int number = seccomp_syscall_resolve_name(call.name);
    return number == __NR_SCMP_ERROR
               ? 0
               : seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 1, SCMP_CMP(call.argument, compare, a, b));
}

static bool add_on_groups(scmp_filter_ctx filter)
{
    bool good = true;
    for (size_t i = 0; i < sizeof on_groups / sizeof on_groups[0]; i++)
        good = good && deny_if(filter, on_groups[i].call, SCMP_CMP_NE, on_groups[i].one, 0) == 0;
    return good;
}

/* Allowed with 0, which is the caller, with this process and with the numbers that follow, among which those of its
 * threads will be: what is older is denied, and what is far younger. A program of our own: in libseccomp's rules, which
 * have one comparison for each argument, it would take hundreds of them and milliseconds. */
static bool enter_on_threads(void)
{
    enum {
        THREADS = 1 << 15, /* others start threads, too, between those of this process                     */
        CALLS = sizeof on_threads / sizeof on_threads[0],
        EACH = 7
    };
    const uint32_t own = (uint32_t)getpid(), number = offsetof(struct seccomp_data, nr);
    struct sock_filter code[EACH * CALLS + 1];
    size_t count = 0;
    for (size_t i = 0; i < CALLS; i++) {
        int call = seccomp_syscall_resolve_name(on_threads[i].name);
        uint32_t argument = (uint32_t)(offsetof(struct seccomp_data, args) + on_threads[i].argument * sizeof(uint64_t));
        const struct sock_filter each[EACH] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
                                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 5),
                                               BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
                                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0),
                                               BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, own + THREADS, 1, 0),
                                               BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, own, 1, 0),
                                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)};
        if (call >= 0)
            memcpy(code + count, each, sizeof each);
        count += call >= 0 ? EACH : 0;
    }
    code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)count, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* The kernel takes a request as 32 bits, and does not look at the others. */
static bool add_requests(scmp_filter_ctx filter)
{
    bool good = true;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        good = good && deny_if(filter, (call_argument){"ioctl", 1}, SCMP_CMP_MASKED_EQ, UINT32_MAX, requests[i]) == 0;
    return good;
}

/* Opening for reading stays; argument: the place of the flags. */
static bool add_open(scmp_filter_ctx filter, int number, unsigned argument)
{
    static const scmp_datum_t bits[] = {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC};
    if (number < 0)
        return true; /* this machine has no such call */
    bool good = true;
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
        good = good && seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 1,
                                        SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, bits[i], bits[i])) == 0;
    return good;
}

static bool add_trial(scmp_filter_ctx filter)
{
    bool good = true;
    for (size_t i = 0; i < sizeof signal_owners / sizeof signal_owners[0]; i++)
        good = good && deny_if(filter, (call_argument){"fcntl", 1}, SCMP_CMP_MASKED_EQ, UINT32_MAX,
                               (scmp_datum_t)signal_owners[i]) == 0;
    return good && add_names(filter, denied_in_trials, sizeof denied_in_trials / sizeof denied_in_trials[0]) &&
           add_own(filter, own_signals, sizeof own_signals / sizeof own_signals[0]) &&
           add_open(filter, SCMP_SYS(open), 1) && add_open(filter, SCMP_SYS(openat), 2) &&
           /* Its flags are in memory, where no filter looks; who uses it goes on with openat then. */
           seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(openat2), 0) == 0;
}

bool confine_enter(confine_rights rights)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (!filter)
        return false;
    /* Calls of another instruction set (32 bits, x32) would go around all this; the default is to end the process. */
    bool good = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(EPERM)) == 0 &&
                seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 1) == 0 &&
                /* Against reading its own memory from the side: nothing here is secret from this process. */
                seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1) == 0 &&
                add_names(filter, denied, sizeof denied / sizeof denied[0]) &&
                add_own(filter, own_memory, sizeof own_memory / sizeof own_memory[0]) && add_on_groups(filter) &&
                add_requests(filter);
    for (size_t i = 0; i < sizeof denied_numbers / sizeof denied_numbers[0]; i++)
        good = good && seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), denied_numbers[i], 0) == 0;
    good = good && (rights != CONFINE_TRIAL || add_trial(filter)) && enter_on_threads() && seccomp_load(filter) == 0;
    seccomp_release(filter);
    return good;
}
static const char *const cause = "this system takes no filter";
#else
bool confine_enter(confine_rights rights)
{
    (void)rights;
    return false;
}

static const char *const cause = "libtenon was built without libseccomp";
#endif

static int enter(void *unused)
{
    (void)unused;
    return confine_enter(CONFINE_TRIAL) ? 0 : 1;
}

static const char *missing;

static void ask(void)
{
    static char other[160];
    guard_result end = guard_run_long(enter, NULL, SECONDS);
    if (end.end == GUARD_RETURNED) {
        missing = end.value == 0 ? NULL : cause;
        return;
    }
    guard_describe(&end, SECONDS, other, sizeof other);
    missing = other;
}

const char *confine_missing(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return missing;
}

int confine_filters(void)
{
    char line[256];
    int count = -1;
    FILE *file = fopen("/proc/thread-self/status", "re");
    while (file && count < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "Seccomp_filters: %d", &count) != 1)
            count = -1;
    if (file)
        fclose(file);
    return count >= 0 ? count : prctl(PR_GET_SECCOMP, 0, 0, 0, 0);
}
