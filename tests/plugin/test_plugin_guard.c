/* Code in a child: how each way to end is told, and that nothing of the parent is touched. */
#include "device/guard.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char reason[256];

static tn_status guarded(int (*body)(void *), void *ctx)
{
    memset(reason, 'x', sizeof reason);
    return guard_run(body, ctx, 60, reason, sizeof reason);
}

/* With a warden. */
static void guarded_long(int (*body)(void *), void *ctx)
{
    guard_result result = guard_run_long(body, ctx, 60);
    guard_describe(&result, 60, reason, sizeof reason);
}

static int give(void *ctx)
{
    return *(int *)ctx;
}

static int die(void *ctx)
{
    raise(*(int *)ctx);
    return 0;
}

static int leave(void *ctx)
{
    exit(*(int *)ctx);
}

static int leave_at_once(void *ctx)
{
    _exit(*(int *)ctx);
}

static int wait_forever(void *ctx)
{
    (void)ctx;
    while (pause() < 1)
        continue;
    return 0;
}

static void *hold_still(void *unused)
{
    (void)unused;
    while (pause() < 1)
        continue;
    return 0;
}

START_TEST(what_body_returns_decides)
{
    ck_assert_int_eq(guarded(give, &(int){0}), TN_OK);
    ck_assert_str_eq(reason, "");
    ck_assert_int_eq(guarded(give, &(int){2}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "returned 2");
    ck_assert_int_eq(guarded(give, &(int){-300}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "returned -300");
}
END_TEST

START_TEST(each_end_is_told)
{
    ck_assert_int_eq(guarded(die, &(int){SIGSEGV}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "crashed with SIGSEGV");
    ck_assert_int_eq(guarded(die, &(int){SIGILL}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "crashed with SIGILL");
    ck_assert_int_eq(guarded(die, &(int){SIGKILL}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "crashed with SIGKILL");
    ck_assert_int_eq(guarded(leave, &(int){3}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "called exit(3)");
    ck_assert_int_eq(guarded(leave, &(int){0}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "called exit(0)");
    ck_assert_int_eq(guarded(leave_at_once, &(int){0}), TN_E_KERNEL);
    ck_assert_str_eq(reason, "called exit(0)");
    ck_assert_int_eq(guard_run(wait_forever, NULL, 0.2, reason, sizeof reason), TN_E_KERNEL);
    ck_assert_str_eq(reason, "did not finish within 0.2 s");
}
END_TEST

static void on_exit_of_program(void)
{
    static const char text[] = "an exit handler of the program ran in the child\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    abort();
}

START_TEST(exit_in_the_child_touches_nothing_of_the_program)
{
    char *folder = tempdir_new(), *path = tempdir_path(folder, "out");
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "once\n"); /* not written yet */
    atexit(on_exit_of_program);
    guarded(leave, &(int){5});
    ck_assert_str_eq(reason, "called exit(5)");
    fclose(out);
    size_t size;
    char *text = tempdir_read(path, &size);
    ck_assert_str_eq(text, "once\n");
    free(text);
    free(path);
    tempdir_remove(folder);
    _exit(0); /* this process has that handler, too */
}
END_TEST

static int print(void *ctx)
{
    (void)ctx;
    printf("from the child");
    fflush(stdout);
    fprintf(stderr, "from the child");
    return fgetc(stdin) == EOF ? 0 : 1;
}

START_TEST(the_child_is_silent)
{
    char *folder = tempdir_new(), *path = tempdir_path(folder, "out");
    int saved_out = dup(STDOUT_FILENO), saved_err = dup(STDERR_FILENO);
    fflush(stdout);
    ck_assert_ptr_nonnull(freopen(path, "w", stdout));
    dup2(STDOUT_FILENO, STDERR_FILENO);
    tn_status status = guarded(print, NULL);
    fflush(stdout);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_err, STDERR_FILENO);
    size_t size;
    free(tempdir_read(path, &size));
    ck_assert_int_eq(status, TN_OK);
    ck_assert_uint_eq(size, 0);
    free(path);
    tempdir_remove(folder);
}
END_TEST

static int write_shared(void *ctx)
{
    *(int *)ctx = 42;
    return 0;
}

START_TEST(shared_memory_comes_back_and_other_memory_does_not)
{
    int own = 1;
    int *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_int_eq(guarded(write_shared, shared), TN_OK);
    ck_assert_int_eq(guarded(write_shared, &own), TN_OK);
    ck_assert_int_eq(*shared, 42);
    ck_assert_int_eq(own, 1);
    munmap(shared, sizeof *shared);
}
END_TEST

static void on_signal(int s)
{
    (void)s;
}

/* The handler that the program has for crashes must not run in the child. */
START_TEST(handlers_and_masks_of_the_program_do_not_reach_the_child)
{
    struct sigaction mine = {.sa_handler = on_signal};
    sigaction(SIGABRT, &mine, NULL);
    sigaction(SIGTERM, &mine, NULL);
    sigset_t set, now;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    guarded(die, &(int){SIGTERM});
    ck_assert_str_eq(reason, "crashed with SIGTERM");
    guarded(die, &(int){SIGABRT});
    ck_assert_str_eq(reason, "crashed with SIGABRT");
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    ck_assert_int_eq(sigismember(&now, SIGTERM), 1);
    ck_assert_int_eq(sigismember(&now, SIGINT), 0);
}
END_TEST

static void reap_all(int s)
{
    (void)s;
    int saved = errno;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    errno = saved;
}

START_TEST(a_program_that_takes_every_exit_status_is_bearable)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, reap = {.sa_handler = reap_all};
    for (int i = 0; i < 2; i++) {
        sigaction(SIGCHLD, i == 0 ? &ignore : &reap, NULL);
        ck_assert_int_eq(guarded(give, &(int){0}), TN_OK);
        ck_assert_int_eq(guarded(give, &(int){7}), TN_E_KERNEL);
        ck_assert_str_eq(reason, "returned 7");
        ck_assert_int_eq(guarded(leave, &(int){3}), TN_E_KERNEL);
        ck_assert_str_eq(reason, "called exit(3)");
        ck_assert_int_eq(guarded(die, &(int){SIGSEGV}), TN_E_KERNEL);
        if (i == 0) /* with a handler, either may be first */
            ck_assert_str_eq(reason, "ended early (another process took its exit status)");
        guarded_long(die, &(int){SIGSEGV});
        ck_assert_str_eq(reason, "crashed with SIGSEGV");
    }
}
END_TEST

static int start_another(void *ctx)
{
    int *ends = ctx;
    close(ends[0]);
    if (fork() == 0) {
        for (;;)
            pause();
    }
    return 0;
}

START_TEST(what_the_child_started_goes_with_it)
{
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(guarded(start_another, ends), TN_OK);
    close(ends[1]);
    /* The last writer is gone. Were the grandchild alive, this would wait for the test's time limit. */
    ck_assert_int_eq(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}
END_TEST

/* Out of the group, the session and its parent's hands. */
static int start_a_stranger(void *ctx)
{
    int *ends = ctx;
    close(ends[0]);
    pid_t between = fork();
    if (between == 0) {
        setsid();
        if (fork() > 0)
            _exit(0);
        for (;;)
            pause();
    }
    waitpid(between, NULL, 0);
    if (ends[1] == 60)
        raise(SIGSEGV);
    if (ends[1] == 61)
        exit(3);
    if (ends[1] == 62)
        wait_forever(NULL);
    return 0;
}

START_TEST(b14_what_got_away_goes_too)
{
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    ends[1] = fcntl(ends[1], F_DUPFD, 60 + _i); /* whose number says how the child ends               */
    static const char *const how[] = {"crashed with SIGSEGV", "called exit(3)", "did not finish within 2 s", ""};
    if (_i == 0) /* nobody but a warden can know of it                                               */
        guarded_long(start_a_stranger, ends);
    else
        guard_run(start_a_stranger, ends, 2, reason, sizeof reason);
    ck_assert_str_eq(reason, how[_i]);
    for (int fd = 3; fd < 128; fd++)
        if (fd != ends[0])
            close(fd);
    ck_assert_int_eq(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}
END_TEST

static int kill_the_parent(void *ctx)
{
    kill(getppid(), *(int *)ctx);
    return wait_forever(NULL);
}

START_TEST(b14_a_child_that_ends_its_warden_gains_nothing)
{
    guarded_long(kill_the_parent, &(int){SIGKILL});
    ck_assert_str_eq(reason, "ended early (another process took its exit status)");
}
END_TEST

typedef struct questions {
    volatile size_t at;
    size_t slow; /* that takes for ever                                                           */
} questions;

static int answer_slowly(void *ctx)
{
    questions *q = ctx;
    for (q->at = 0; q->at < 12; q->at++) {
        usleep(300000);
        if (q->at == q->slow)
            wait_forever(NULL);
    }
    return 0;
}

/* Together they take longer than the limit, each less; or one does not end. */
START_TEST(b14_each_question_has_the_limit_for_itself)
{
    questions *q = mmap(NULL, sizeof *q, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    q->slow = _i == 0 ? 100 : 6;
    tn_status status = guard_run_each(answer_slowly, q, 3, &q->at, NULL, reason, sizeof reason);
    ck_assert_str_eq(reason, _i == 0 ? "" : "did not finish within 3 s");
    ck_assert_int_eq(status, _i == 0 ? TN_OK : TN_E_KERNEL);
    ck_assert_uint_eq(q->at, _i == 0 ? 12 : 6);
    munmap(q, sizeof *q);
}
END_TEST

/* Stops the program, as a machine that stands still does, for longer than the child has; and then takes a while. */
static int hold_the_program(void *ctx)
{
    (void)ctx;
    kill(getppid(), SIGSTOP);
    usleep(3200000);
    kill(getppid(), SIGCONT);
    usleep(300000);
    return 0;
}

START_TEST(while_nobody_looks_no_time_passes)
{
    ck_assert_int_eq(guard_run(hold_the_program, NULL, 3, reason, sizeof reason), TN_OK);
    ck_assert_str_eq(reason, "");
}
END_TEST

static void crash_in_the_child(void)
{
    raise(SIGSEGV);
}

START_TEST(b11_a_handler_for_forks_is_nobodys_fault)
{
    pthread_atfork(NULL, NULL, crash_in_the_child);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(guarded(give, &(int){0}) == TN_OK, "%s", reason);
    guarded(give, &(int){7});
    ck_assert_str_eq(reason, "returned 7");
}
END_TEST

static int close_everything(void *ctx)
{
    (void)ctx;
    for (int fd = 0; fd < 256; fd++)
        close(fd);
    usleep(50000);
    return 0;
}

START_TEST(a_child_that_closes_its_files_is_waited_for)
{
    ck_assert_int_eq(guarded(close_everything, NULL), TN_OK);
}
END_TEST

START_TEST(a_program_with_threads_can_use_it)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hold_still, NULL), 0);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(guarded(give, &(int){0}), TN_OK);
    for (int i = 0; i < 3; i++) {
        pthread_cancel(threads[i]);
        pthread_join(threads[i], NULL);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("guard", 120);
    suite_add(tc, what_body_returns_decides, each_end_is_told, exit_in_the_child_touches_nothing_of_the_program,
              the_child_is_silent, shared_memory_comes_back_and_other_memory_does_not,
              handlers_and_masks_of_the_program_do_not_reach_the_child,
              a_program_that_takes_every_exit_status_is_bearable, what_the_child_started_goes_with_it);
    tcase_add_loop_test(tc, b14_what_got_away_goes_too, 0, 4);
    suite_add(tc, b14_a_child_that_ends_its_warden_gains_nothing);
    tcase_add_loop_test(tc, b14_each_question_has_the_limit_for_itself, 0, 2);
    suite_add(tc, while_nobody_looks_no_time_passes, b11_a_handler_for_forks_is_nobodys_fault,
              a_child_that_closes_its_files_is_waited_for, a_program_with_threads_can_use_it);
    return suite_run();
}
