/* A plugin that ends the program (exit, quick_exit, _exit, pthread_exit) would end it with a status of its own, which
 * may say that all went well. Such an end is told, and has the status of a kernel that fails. What ends the process
 * without a function of the C library (a system call of its own, exec) is not seen. */
#include "cli.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    pid_t process; /* children of plugins may end as they like                                       */
    bool over;     /* the program has done its work, with this status                                */
    int status;
} ending;

static _Noreturn void leave(int status)
{
    for (;;)
        syscall(SYS_exit_group, status);
}

/* Returns where no plugin did it. */
static void tell(const char *call)
{
    char who[512];
    if (getpid() != ending.process || ending.over || !tn_plugin_called(who, sizeof who))
        return;
    fflush(stdout);
    fputs("tenon: ", stderr);
    print_clean(stderr, who, true);
    fprintf(stderr, ": it called %s, which ends the program; leave the plugin out\n", call);
    leave(-TN_E_KERNEL);
}

static void at_exit(int status, void *unused)
{
    char call[32];
    (void)unused;
    snprintf(call, sizeof call, "exit(%d)", status);
    tell(call);
}

static void on_quick_exit(void)
{
    tell("quick_exit");
}

/* Of the thread of main. */
static void at_thread_exit(void *unused)
{
    (void)unused;
    tell("pthread_exit");
}

static _Noreturn void end_at_once(const char *function, int status)
{
    char call[32];
    snprintf(call, sizeof call, "%s(%d)", function, status);
    tell(call);
    leave(getpid() == ending.process && ending.over ? ending.status : status);
}

/* The C library's run no handlers. Functions of the program come before those of libraries, so plugins call these. */
__attribute__((visibility("default"))) void _exit(int status)
{
    end_at_once("_exit", status);
}

__attribute__((visibility("default"))) void _Exit(int status)
{
    end_at_once("_Exit", status);
}

void ending_watch(void)
{
    static pthread_key_t key;
    ending.process = getpid();
    on_exit(at_exit, NULL);
    (void)at_quick_exit(on_quick_exit);
    if (pthread_key_create(&key, at_thread_exit) == 0)
        pthread_setspecific(key, &ending);
}

int ending_status(int status)
{
    ending.over = true;
    return ending.status = status;
}
