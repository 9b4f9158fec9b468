/* Verdicts of earlier trials: what is kept, and what of it is believed. */
#include "plugin_box.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *verdict_path(const char *sha256)
{
    return tempdir_at(tempdir_at(plugin_box_root(), "cache/tenon"), sha256 ? sha256 : "");
}

static size_t files_in(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return count;
}

/* Swaps what an earlier trial said, to see which of the two a scan believes. */
static void edit_verdict(const char *path, const char *state, const char *with)
{
    size_t size;
    char *text = tempdir_read(path, &size), *at = strstr(text, state);
    ck_assert_msg(at != NULL, "%s", text);
    char edited[2048];
    int n = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, with, at + strlen(state));
    tempdir_write(path, edited, (size_t)n);
    free(text);
}

START_TEST(verdicts_are_written_once_per_content)
{
    plugin_box_add("good", "good.so");
    plugin_box_add("crash", "crash.so");
    plugin_box_add("missing_symbol", "missing_symbol.so");
    plugin_box_add("no_note", "no_note.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    char *folder = verdict_path(NULL), *good = verdict_path(plugin_box_of("good.so").sha256);
    char *crash = verdict_path(plugin_box_of("crash.so").sha256);
    struct stat st;
    /* Not of missing symbols, whose cause may lie outside of the file, and no temporary files. */
    ck_assert_uint_eq(files_in(folder), 2);
    ck_assert_int_eq(stat(good, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(stat(crash, &st), 0);
    ck_assert_int_eq(stat(folder, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0700);
}
END_TEST

START_TEST(a_quarantined_plugin_is_not_tried_again)
{
    plugin_box_add("crash", "crash.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    char *path = verdict_path(plugin_box_of("crash.so").sha256), want[4096];
    edit_verdict(path, "SIGSEGV", "SIGFAKE");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("crash.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_QUARANTINED);
    snprintf(want, sizeof want,
             "its constructor crashed with SIGFAKE when it was tried in a child process earlier; to try it again "
             "delete %s",
             path);
    ck_assert_str_eq(info.reason, want);
    /* Another content is another verdict. */
    plugin_box_add("good", "crash.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_int_eq(plugin_box_of("crash.so").state, TN_PLUGIN_LOADED);
}
END_TEST

/* After a first scan, spoils the verdict of crash.so so that believing it would show; then scans again. */
static void expect_disbelief(void (*spoil)(const char *path))
{
    plugin_box_add("crash", "crash.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    char *path = verdict_path(plugin_box_of("crash.so").sha256);
    edit_verdict(path, "SIGSEGV", "SIGFAKE");
    spoil(path);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("crash.so");
    ck_assert_str_eq(info.reason, "its constructor crashed with SIGSEGV when it was tried in a child process");
}

static void writable_file(const char *path)
{
    ck_assert_int_eq(chmod(path, 0602), 0);
}

static void writable_folder(const char *path)
{
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    ck_assert_int_eq(chmod(folder, 0770), 0);
}

static void linked_file(const char *path)
{
    char elsewhere[1024];
    snprintf(elsewhere, sizeof elsewhere, "%s.real", path);
    ck_assert_int_eq(rename(path, elsewhere), 0);
    ck_assert_int_eq(symlink(elsewhere, path), 0);
}

static void of_another_host(const char *path)
{
    edit_verdict(path, "host " TN_VERSION, "host 9.9.9");
}

static void cut_off(const char *path)
{
    ck_assert_int_eq(truncate(path, 60), 0);
}

static void foreign_state(const char *path)
{
    edit_verdict(path, "state quarantined", "state excellent");
}

static void no_text(const char *path)
{
    char noise[4096];
    memset(noise, 0xff, sizeof noise);
    tempdir_write(path, noise, sizeof noise);
}

START_TEST(a_verdict_that_others_could_have_written_is_not_believed)
{
    static void (*const spoils[])(const char *) = {writable_file, writable_folder, linked_file, of_another_host,
                                                   cut_off,       foreign_state,   no_text};
    expect_disbelief(spoils[_i]);
}
END_TEST

START_TEST(without_a_cache_every_scan_tries)
{
    char *file = tempdir_at(plugin_box_root(), "file");
    tempdir_write(file, "", 0);
    setenv("XDG_CACHE_HOME", _i == 0 ? file : "relative", 1);
    setenv("HOME", "", 1);
    plugin_box_add("good", "good.so");
    plugin_box_add("crash", "crash.so");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
        ck_assert_int_eq(plugin_box_of("good.so").state, TN_PLUGIN_LOADED);
        ck_assert_str_eq(plugin_box_of("crash.so").reason,
                         "its constructor crashed with SIGSEGV when it was tried in a child process");
    }
    ck_assert(!tempdir_exists("relative"));
}
END_TEST

START_TEST(the_home_folder_holds_the_cache_otherwise)
{
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", plugin_box_root(), 1);
    plugin_box_add("good", "good.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    char *cache = tempdir_at(plugin_box_root(), ".cache/tenon"),
         *file = tempdir_at(cache, plugin_box_of("good.so").sha256);
    ck_assert(tempdir_exists(file));
}
END_TEST

/* A busy machine may have been to blame. */
START_TEST(a_hang_that_did_not_spin_is_remembered_for_a_while)
{
    static const char reason[] = "its constructor did not finish within 0.5 s when it was tried in a child process";
    size_t size;
    setenv("TENON_TRIAL_SECONDS", "0.5", 1);
    plugin_box_add("endless_wait", "plugin.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_str_eq(plugin_box_of("plugin.so").reason, reason);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_msg(strstr(plugin_box_of("plugin.so").reason, " earlier; to try it again delete "), "%s",
                  plugin_box_of("plugin.so").reason);
    /* When that is over. */
    char *path = verdict_path(plugin_box_of("plugin.so").sha256), *text = tempdir_read(path, &size),
         *until = strstr(text, "\nuntil ");
    ck_assert_ptr_nonnull(until);
    ck_assert(until[7] != '0');
    for (char *digit = until + 7; *digit != '\n'; digit++)
        *digit = '1';
    tempdir_write(path, text, size);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_str_eq(plugin_box_of("plugin.so").reason, reason);
    free(text);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugin verdicts", 240);
    tcase_add_checked_fixture(tc, plugin_box_open, NULL);
    suite_add(tc, verdicts_are_written_once_per_content, a_quarantined_plugin_is_not_tried_again);
    tcase_add_loop_test(tc, a_verdict_that_others_could_have_written_is_not_believed, 0, 7);
    tcase_add_loop_test(tc, without_a_cache_every_scan_tries, 0, 2);
    suite_add(tc, the_home_folder_holds_the_cache_otherwise, a_hang_that_did_not_spin_is_remembered_for_a_while);
    return suite_run();
}
