/* The cache folder: what is counted, what is removed, what never is, and that it keeps to its bounds by itself. */
#include "plugin/cachefile.h"

#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/tenon.h>
#include <time.h>
#include <unistd.h>

#define DIGITS "0123456789abcdef"
#define TRIAL DIGITS DIGITS DIGITS DIGITS

enum { DAY = 24 * 60 * 60 };

static char *folder;

static void setup(void)
{
    folder = tempdir_new();
    setenv("XDG_CACHE_HOME", folder, 1);
}

static const char *path_of(const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/tenon/%s", folder, name);
    return path;
}

/* A file of so many bytes, last used so long ago. */
static void put(const char *name, size_t bytes, int64_t days)
{
    struct timespec times[2] = {{.tv_sec = time(NULL) - days * DAY}, {.tv_sec = time(NULL) - days * DAY}};
    mkdir(path_of(""), 0700);
    FILE *file = fopen(path_of(name), "w");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < bytes; i++)
        fputc('x', file);
    fclose(file);
    ck_assert_int_eq(utimensat(AT_FDCWD, path_of(name), times, 0), 0);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(path_of(name), &st) == 0;
}

static size_t files(const char *pattern)
{
    glob_t found;
    size_t n = glob(path_of(pattern), 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return n;
}

static tn_cache_removed prune(const tn_cache_limits *limits)
{
    tn_error err = TN_ERROR_INIT;
    tn_cache_removed removed = {.size = sizeof removed};
    ck_assert_msg(tn_cache_prune(limits, &removed, &err) == TN_OK, "%s: %s", err.where, err.message);
    return removed;
}

/* ---- what is ours ------------------------------------------------------------------------------------------- */

/* Names that are nearly ours, and ours that are no files. */
static const char *const others[] = {"README",
                                     "measured-",
                                     "measured-" DIGITS "0",
                                     "measured-012345678",
                                     "measured-0123456789ABCDEF",
                                     "Measured-" DIGITS,
                                     "measured-" DIGITS ".old",
                                     ".measured-" DIGITS,
                                     ".measured-" DIGITS ".x1",
                                     ".README.12",
                                     TRIAL "0",
                                     DIGITS};

static void put_others(void)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        put(others[i], 1, 4000);
    put("../elsewhere", 1, 4000);
    ck_assert_int_eq(symlink("../elsewhere", path_of("checked-" DIGITS)), 0);
    ck_assert_int_eq(mkdir(path_of("checked-1123456789abcdef"), 0700), 0);
}

static void expect_others(void)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert_msg(is_there(others[i]), "%s was removed", others[i]);
    ck_assert(is_there("../elsewhere") && is_there("checked-" DIGITS) && is_there("checked-1123456789abcdef"));
}

START_TEST(only_our_files_are_removed)
{
    tn_cache_removed removed = {.size = sizeof removed};
    put_others();
    put("measured-" DIGITS, 10, 1);
    put(TRIAL, 20, 1);
    ck_assert_int_eq(tn_cache_clear(NULL, &removed, NULL), TN_OK);
    ck_assert_int_eq(removed.files, 2);
    ck_assert_int_eq(removed.bytes, 30);
    ck_assert(!is_there("measured-" DIGITS) && !is_there(TRIAL));
    expect_others();
    ck_assert_int_eq(prune(&(tn_cache_limits){.size = sizeof(tn_cache_limits), .max_files = 1}).files, 0);
    expect_others();
}
END_TEST

START_TEST(kinds_are_told_apart)
{
    tn_cache_kind **kinds;
    size_t count;
    put(TRIAL, 20, 3);
    put("checked-" DIGITS, 5, 1);
    put("checked-1123456789abcdef", 6, 9);
    put("unknown-" DIGITS, 7, 1);
    ck_assert_int_eq(tn_cache_list(&kinds, &count, NULL), TN_OK);
    int seen = 0;
    for (size_t i = 0; i < count; i++) {
        const tn_cache_kind *k = kinds[i];
        bool trials = !strcmp(k->name, "trials"), checks = !strcmp(k->name, "checks");
        ck_assert_int_eq(k->files, trials ? 1 : checks ? 2 : 0);
        ck_assert_int_eq(k->bytes, trials ? 20 : checks ? 11 : 0);
        ck_assert_int_eq((k->newest - k->oldest) / DAY, checks ? 8 : 0);
        ck_assert((k->newest == 0) == (k->files == 0) && k->summary[0]);
        seen += trials + checks;
    }
    ck_assert_int_eq(seen, 2);
    free(kinds);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_cache_clear("checks", NULL, &err), TN_OK);
    ck_assert(is_there(TRIAL) && !is_there("checked-" DIGITS));
    ck_assert_int_eq(tn_cache_clear("chess", NULL, &err), TN_E_USAGE);
    suite_expect_in(err.message, "'chess'; choose one of trials, hangs, checks");
    ck_assert(is_there(TRIAL));
}
END_TEST

/* ---- limits -------------------------------------------------------------------------------------------------- */

START_TEST(the_longest_unused_go_first)
{
    tn_cache_limits limits = {.size = sizeof limits};
    put("measured-0000000000000001", 1 << 20, 1);
    put("measured-0000000000000002", 1 << 20, 20);
    put("measured-0000000000000003", 1 << 20, 10);
    put("checked-0000000000000004", 100, 89);
    put("checked-0000000000000005", 100, 91);
    /* The usual limits. */
    ck_assert_int_eq(prune(NULL).files, 1);
    ck_assert(is_there("checked-0000000000000004"));
    limits.max_bytes = 2 << 20;
    ck_assert_int_eq(prune(&limits).files, 2);
    ck_assert(is_there("measured-0000000000000001") && is_there("measured-0000000000000003"));
    limits = (tn_cache_limits){.size = sizeof limits, .max_age_days = 5, .kind = "checks"};
    ck_assert_int_eq(prune(&limits).files, 0);
    limits.kind = NULL;
    ck_assert_int_eq(prune(&limits).files, 1);
    ck_assert(is_there("measured-0000000000000001"));
    limits.max_age_days = INT64_MAX;
    ck_assert_int_eq(prune(&limits).files, 0);
    tn_error err = TN_ERROR_INIT;
    limits.max_files = -1;
    ck_assert_int_eq(tn_cache_prune(&limits, NULL, &err), TN_E_USAGE);
}
END_TEST

/* What a process that was killed left, and what another is writing now. */
START_TEST(unfinished_files_go_when_they_are_old)
{
    put(".measured-" DIGITS ".77", 5, 1);
    put(".measured-" DIGITS ".78", 5, 0);
    ck_assert_int_eq(prune(NULL).files, 1);
    ck_assert(!is_there(".measured-" DIGITS ".77") && is_there(".measured-" DIGITS ".78"));
}
END_TEST

START_TEST(use_is_noted_once_a_day)
{
    struct stat st;
    put("measured-" DIGITS, 3, 80);
    free(cachefile_load("measured-" DIGITS, 100, NULL, 0));
    ck_assert_int_eq(stat(path_of("measured-" DIGITS), &st), 0);
    ck_assert_int_lt(time(NULL) - st.st_mtim.tv_sec, DAY);
    put("measured-" DIGITS, 3, 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, path_of("measured-" DIGITS),
                               (struct timespec[2]){{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}}, 0),
                     0);
    free(cachefile_load("measured-" DIGITS, 100, NULL, 0));
    ck_assert_int_eq(stat(path_of("measured-" DIGITS), &st), 0);
    ck_assert_int_gt(time(NULL) - st.st_mtim.tv_sec, 3000);
}
END_TEST

/* Nobody calls anything: stores are enough. */
START_TEST(it_keeps_to_its_bounds)
{
    char name[64];
    put_others();
    put("checked-00000000000000aa", 1, 91);
    for (int i = 0; i < 4096 + 200; i++) {
        snprintf(name, sizeof name, "measured-%016x", i);
        cachefile_store(name, "text\n", 5);
    }
    ck_assert_uint_le(files("measured-*"), 4096);
    ck_assert_uint_gt(files("measured-*"), 3000);
    ck_assert(!is_there("checked-00000000000000aa") && is_there(name));
    expect_others();
}
END_TEST

/* ---- folders that are not used ------------------------------------------------------------------------------- */

START_TEST(a_folder_of_others_is_left_alone)
{
    tn_error err = TN_ERROR_INIT;
    tn_cache_kind **kinds;
    size_t count;
    put("measured-" DIGITS, 3, 4000);
    ck_assert_int_eq(chmod(path_of(""), 0770), 0);
    ck_assert_int_eq(tn_cache_clear(NULL, NULL, &err), TN_E_INPUT);
    ck_assert_msg(strstr(err.message, "others than this user can write there") && strstr(err.where, folder), "%s: %s",
                  err.where, err.message);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_cache_list(&kinds, &count, &err), TN_E_INPUT);
    ck_assert(is_there("measured-" DIGITS));
    ck_assert_int_eq(chmod(path_of(""), 0700), 0);
    /* Nor is one that a link leads to. */
    char real[4200], link[4200];
    snprintf(real, sizeof real, "%s/real", folder);
    snprintf(link, sizeof link, "%s/tenon", folder);
    ck_assert(rename(link, real) == 0 && symlink("real", link) == 0);
    ck_assert_int_eq(tn_cache_clear(NULL, NULL, NULL), TN_E_INPUT);
    ck_assert(is_there("measured-" DIGITS));
}
END_TEST

START_TEST(a_missing_folder_is_empty)
{
    tn_cache_kind **kinds;
    size_t count;
    char *path = tn_cache_folder(NULL);
    ck_assert_ptr_nonnull(strstr(path, folder));
    free(path);
    ck_assert_int_eq(prune(NULL).files, 0);
    ck_assert_int_eq(tn_cache_list(&kinds, &count, NULL), TN_OK);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(kinds[i]->files, 0);
    free(kinds);
    ck_assert(!is_there(""));
    tn_error err = TN_ERROR_INIT;
    setenv("XDG_CACHE_HOME", "here", 1);
    unsetenv("HOME");
    ck_assert_ptr_null(tn_cache_folder(&err));
    suite_expect_in(err.message, "XDG_CACHE_HOME");
    ck_assert_int_eq(tn_cache_clear(NULL, NULL, NULL), TN_E_INPUT);
    ck_assert_int_eq(tn_cache_list(NULL, &count, NULL), TN_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cachefile", 60);
    tcase_add_checked_fixture(all, setup, NULL);
    suite_add(all, only_our_files_are_removed, kinds_are_told_apart, the_longest_unused_go_first,
              unfinished_files_go_when_they_are_old, use_is_noted_once_a_day, it_keeps_to_its_bounds,
              a_folder_of_others_is_left_alone, a_missing_folder_is_empty);
    return suite_run();
}
