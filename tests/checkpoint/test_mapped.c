/* Files that another program cuts short or changes while they are mapped. */
#include "base/mapped.h"
#include "broken.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tenon/tenon.h>
#include <unistd.h>

enum { PAGES = 8 };

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* A file of PAGES pages of ones, mapped. */
static mapped *open_ones(const char *path)
{
    tn_error err = TN_ERROR_INIT;
    char *ones = malloc(PAGES * page());
    ck_assert_ptr_nonnull(ones);
    memset(ones, 1, PAGES * page());
    tempdir_write(path, ones, PAGES * page());
    free(ones);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    mapped *m = mapped_open(fd, path, PAGES * page(), &err);
    close(fd);
    ck_assert_msg(m != NULL, "%s", err.message);
    ck_assert_int_eq(mapped_check(m, &err), TN_OK);
    return m;
}

static void *sum_bytes(void *arg)
{
    const unsigned char *data = mapped_data(arg);
    size_t sum = 0;
    for (size_t i = 0; i < PAGES * page(); i++)
        sum += data[i];
    return (void *)sum; /* NOLINT(performance-no-int-to-ptr) */
}

START_TEST(what_is_cut_off_reads_as_zeros)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = tempdir_new(), *path = tempdir_at(folder, "file");
    pthread_t threads[4];
    void *sum;
    char *second = tempdir_at(folder, "other");
    mapped *m = open_ones(path), *other = open_ones(second);
    ck_assert_int_eq(truncate(path, (off_t)page() * 3 + 7), 0);
    for (int i = 0; i < 4; i++) /* in any thread, and more than once */
        ck_assert_int_eq(pthread_create(&threads[i], NULL, sum_bytes, m), 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &sum), 0);
        ck_assert_uint_eq((size_t)sum, page() * 3 + 7);
    }
    ck_assert_int_eq(mapped_check(m, &err), TN_E_INPUT);
    ck_assert_str_eq(err.where, path);
    suite_expect_in(err.message, "cut short");
    ck_assert_int_eq(mapped_check(other, NULL), TN_OK);
    mapped_close(m);
    mapped_close(other);
    /* The entry is used again. */
    m = open_ones(path);
    mapped_close(m);
    mapped_close(NULL);
}
END_TEST

START_TEST(changes_in_place_are_seen)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = tempdir_new(), *path = tempdir_at(folder, "file"), *new = tempdir_at(folder, "new");
    mapped *m = open_ones(path);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    tempdir_write(new, "x", 1);
    ck_assert_int_eq(rename(new, path), 0); /* another file: this one stays as it was */
    ck_assert_int_eq(mapped_check(m, &err), TN_OK);
    mapped_close(m);
    m = open_ones(path);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mapped_check(m, &err), TN_OK);
    mapped_close(m);
    m = open_ones(path);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    ck_assert_int_eq(mapped_check(m, &err), TN_E_INPUT);
    suite_expect_in(err.message, "was changed while it was in use");
    mapped_close(m);
}
END_TEST

static void leave_with_7(int signal)
{
    (void)signal;
    _exit(7);
}

/* The exit status or, negative, the signal of a child that touches a page behind the end of a file that is not ours. */
static int fault_elsewhere(const char *folder, bool own_handler)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/foreign", folder);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGBUS, own_handler ? leave_with_7 : SIG_DFL); /* sanitizers have one of their own      */
        mapped *m = open_ones(path);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        volatile char *bytes = mmap(NULL, page(), PROT_READ, MAP_SHARED, fd, 0);
        if (!m || bytes == MAP_FAILED || ftruncate(fd, 0) != 0)
            _exit(1);
        (void)bytes[0];
        _exit(2);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

START_TEST(other_faults_go_where_they_went_before)
{
    char *folder = tempdir_new();
    ck_assert_int_eq(fault_elsewhere(folder, true), 7);
    ck_assert_int_eq(fault_elsewhere(folder, false), -SIGBUS);
}
END_TEST

START_TEST(a_model_says_which_file)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = broken_copy("llama"), *path = tempdir_at(folder, "model.safetensors");
    tn_model *model = test_model_open(folder, NULL);
    tn_session *session = test_model_session(model, .context = 16);
    const int64_t ids[] = {1, 2, 3};
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = ids};
    ck_assert_int_eq(tn_session_run(session, &batch, NULL, &err), TN_OK);
    ck_assert_int_eq(truncate(path, 5000), 0);
    ck_assert_int_eq(tn_session_run(session, &batch, NULL, &err), TN_E_INPUT);
    ck_assert_str_eq(err.where, path);
    tn_session_free(session);
    err = (tn_error)TN_ERROR_INIT;
    tn_model_close(model);
    ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
}
END_TEST

/* KiB of a file that are in this process's memory, of its first mapping; -1: it is not mapped. */
static long resident(const char *path)
{
    char line[512];
    long kb = -1;
    bool here = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps)) {
        here = here || strstr(line, path);
        if (here && kb < 0)
            sscanf(line, "Rss: %ld", &kb);
    }
    fclose(maps);
    return kb;
}

/* Whole pages leave this process's memory, and come back as they were; what is no file's stays. */
START_TEST(what_is_forgotten_comes_back)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "file");
    mapped *m = open_ones(path);
    ck_assert_uint_eq((size_t)sum_bytes(m), PAGES * page());
    ck_assert_int_eq(resident(path), (long)(PAGES * page() / 1024));
    mapped_forget((const char *)mapped_data(m) + 1, (PAGES - 1) * page());
    ck_assert_int_eq(resident(path), (long)(2 * page() / 1024));
    ck_assert_uint_eq((size_t)sum_bytes(m), PAGES * page());
    char *own = malloc(PAGES * page());
    ck_assert_ptr_nonnull(own);
    memset(own, 7, PAGES * page());
    mapped_forget(own, PAGES * page());
    for (size_t i = 0; i < PAGES * page(); i++)
        ck_assert_int_eq(own[i], 7);
    free(own);
    mapped_close(m);
}
END_TEST

/* Weights of another dtype are copies, and the file is not in memory beside them. */
START_TEST(what_was_copied_is_forgotten)
{
    static const char *const dtypes[] = {"auto", "f32"};
    char *path = realpath("models/demo/model.safetensors", NULL);
    ck_assert_ptr_nonnull(path);
    for (int i = 0; i < 2; i++) {
        tn_model *model = test_model_open("models/demo", dtypes[i]);
        tn_session *session = test_model_session(model, .context = 16);
        const int64_t ids[] = {1, 2, 3};
        tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = ids};
        ck_assert_int_eq(tn_session_run(session, &batch, NULL, NULL), TN_OK);
        ck_assert_int_ge(resident(path), i == 0 ? 2048 : 0);
        ck_assert_int_le(resident(path), i == 0 ? 6144 : 512);
        tn_session_free(session);
        tn_model_close(model);
    }
    free(path);
}
END_TEST

int main(void)
{
    TCase *cases = suite_open("mapped", 0);
    suite_add(cases, what_is_cut_off_reads_as_zeros, changes_in_place_are_seen, other_faults_go_where_they_went_before,
              a_model_says_which_file, what_is_forgotten_comes_back, what_was_copied_is_forgotten);
    return suite_run();
}
