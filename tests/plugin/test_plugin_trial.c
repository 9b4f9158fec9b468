/* What a trial sees: deeds of a constructor, what comes after it, pointers to nothing. Right ones stand beside wrong
 * ones. Numbers such as B11 are the parts of the issue that asked for each. */
#include "device/confine.h"
#include "device/guard.h"
#include "plugin/registry.h"
#include "plugin_box.h"
#include "sanitizer.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <glob.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Scans a folder with the plugin, whose fault is named, and the good one behind it. */
static tn_plugin_info drop(const char *name, const char *fault)
{
    tn_error err = TN_ERROR_INIT;
    setenv("BAD_PLUGIN", fault, 1);
    plugin_box_add(name, "a.so");
    plugin_box_add("good", "good.so");
    ck_assert_msg(plugin_box_scan(NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_plugin_info good = plugin_box_of("good.so");
    ck_assert_msg(good.state == TN_PLUGIN_LOADED, "%s: %s", fault, good.reason);
    return plugin_box_of("a.so");
}

static bool is_remembered(const tn_plugin_info *info)
{
    char name[128];
    snprintf(name, sizeof name, "cache/tenon/%s", info->sha256);
    char *path = tempdir_at(plugin_box_root(), name);
    bool exists = tempdir_exists(path);
    return exists;
}

static void expect_refused(const char *name, const char *fault, tn_plugin_state state, const char *rest)
{
    tn_plugin_info info = drop(name, fault);
    ck_assert_msg(info.state == state, "%s: state %d, %s", fault, info.state, info.reason);
    ck_assert_msg(strstr(info.reason, rest) != NULL, "%s: %s", fault, info.reason);
    ck_assert_uint_eq(registry_count("cpu"), 1);
}

/* ---- B12, B14: deeds -------------------------------------------------------------------------------------------- */

static const struct {
    const char *deed;
    tn_plugin_state state;
    const char *rest;
} deeds[] = {
    {"a destructor that crashes", TN_PLUGIN_QUARANTINED, "its exit handlers or destructors: it crashed with SIGSEGV"},
    {"a destructor that leaves", TN_PLUGIN_QUARANTINED, "its exit handlers or destructors: it called exit(0)"},
    {"an exit handler that crashes", TN_PLUGIN_QUARANTINED, "its exit handlers or destructors: it crashed"},
    {"an exit handler with an argument that crashes", TN_PLUGIN_QUARANTINED, "its exit handlers or destructors: it"},
    {"a thread's end that crashes", TN_PLUGIN_QUARANTINED, "its exit handlers or destructors: it crashed"},
    {"a handler for forks that crashes first", TN_PLUGIN_QUARANTINED, "its handlers for forks"},
    {"a handler for forks that crashes in the parent", TN_PLUGIN_QUARANTINED, "its handlers for forks"},
    {"a handler for forks that crashes in the child", TN_PLUGIN_REFUSED, "its handlers for forks (pthread_atfork) end"},
    {"a thread that registers", TN_PLUGIN_REFUSED, "it registers from a thread of its own"},
    {"a thread that registers later", TN_PLUGIN_REFUSED, "it registers from a thread of its own"},
    {"alarm", TN_PLUGIN_REFUSED, "its constructor leaves a timer running"},
    {"setitimer", TN_PLUGIN_REFUSED, "its constructor leaves a timer running"},
    {"timer_create", TN_PLUGIN_REFUSED, "its constructor leaves a timer running"},
    {"a process", TN_PLUGIN_REFUSED, "its constructor leaves a process behind"},
    {"a process that got away", TN_PLUGIN_REFUSED, "its constructor leaves a process behind"},
    {"closes files", TN_PLUGIN_REFUSED, "its constructor closes files that others opened"},
    {"fewer files", TN_PLUGIN_REFUSED, "its constructor lowers the program's limit on open files"},
    {"changes a variable", TN_PLUGIN_REFUSED, "its constructor changes the environment variable HOME"},
    {"removes a variable", TN_PLUGIN_REFUSED, "its constructor changes the environment variable HOME"},
    {"allows itself less", TN_PLUGIN_REFUSED,
     "its constructor changes the program's user, group, root folder or allowed"},
    {"only when nobody else runs", TN_PLUGIN_REFUSED,
     "its constructor changes the program's priority, how it is sched"},
    {"reads files last", TN_PLUGIN_REFUSED, "its constructor changes the program's priority, how it is scheduled"},
    {"ends its thread", TN_PLUGIN_REFUSED, "its constructor ends the thread that opens it"},
    {"exit", TN_PLUGIN_QUARANTINED, "its constructor called exit(0)"},
};

START_TEST(b12_what_nobody_can_put_right_is_refused)
{
    if (THREAD_SANITIZER && !strcmp(deeds[_i].deed, "ends its thread")) {
        printf("SKIPPED a constructor that ends its thread: the sanitizer ends the process\n");
        return;
    }
    setenv("HOME", plugin_box_root(), 1);
    expect_refused("conduct", deeds[_i].deed, deeds[_i].state, deeds[_i].rest);
}
END_TEST

static const char *const harmless[] = {
    "nothing at all",       "a thread that stays",        "a thread that ends",
    "a process that ended", "handlers for forks",         "more files",
    "an exit handler",      "an alarm that is off again", "sets a variable of its own",
};

START_TEST(b12_what_harms_nobody_is_taken)
{
    tn_plugin_info info = drop("conduct", harmless[_i]);
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s: %s", harmless[_i], info.reason);
    ck_assert_uint_eq(registry_count("cpu"), 2);
    ck_assert(is_remembered(&info));
}
END_TEST

START_TEST(b12_a_program_on_one_processor_stays_on_all)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < 2) {
        printf("SKIPPED: one processor\n");
        return;
    }
    expect_refused("conduct", "one processor", TN_PLUGIN_REFUSED, "the processors that it may run on");
    expect_refused("conduct", "one processor for its thread", TN_PLUGIN_REFUSED, "the processors that it may run on");
}
END_TEST

/* Only here, where no trial sees it. */
START_TEST(b12_a_registration_that_nobody_asked_for_is_reported)
{
    tn_plugin_info info = drop("conduct", "nothing at all");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    static const tn_plugin late = {.size = sizeof late, .name = (const char *)8};
    tn_register(&late);
    tn_register((const tn_plugin *)8);
    size_t before = tn_plugin_count();
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_uint_eq(tn_plugin_count(), before + 2);
    ck_assert_int_eq(tn_plugin_get(before, &info), TN_OK);
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    suite_expect_in(info.file, "test_plugin_trial (late registration 1)");
    suite_expect_in(info.reason, "it registers when nobody opens it");
    ck_assert_int_eq(tn_plugin_get(before + 1, &info), TN_OK);
    ck_assert_str_eq(info.file, "unknown library (late registration 2)");
    ck_assert_uint_eq(registry_count("cpu"), 2);
}
END_TEST

START_TEST(b12_a_library_that_opens_another_plugin_is_refused)
{
    setenv("BAD_FILE", plugin_box_built("wrong_numbers"), 1);
    expect_refused("conduct", "opens another plugin", TN_PLUGIN_REFUSED, "it registers 2 times");
}
END_TEST

START_TEST(b12_a_destructor_that_hangs_is_stopped)
{
    setenv("TENON_TRIAL_SECONDS", "1", 1);
    setenv("BAD_PLUGIN", "a destructor that hangs", 1);
    plugin_box_add("conduct", "a.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("a.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_QUARANTINED);
    suite_expect_in(info.reason, "did not finish within 1 s");
}
END_TEST

START_TEST(b14_a_trial_holds_no_descriptors_of_the_program)
{
    ck_assert_int_eq(dup2(STDOUT_FILENO, 50), 50);
    tn_plugin_info info = drop("conduct", "looks at descriptor 50");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
}
END_TEST

START_TEST(b14_a_trial_has_limits_on_memory)
{
    if (SANITIZER || under_valgrind())
        printf("SKIPPED: no such limit under the sanitizers and valgrind\n");
    else
        expect_refused("conduct", "all memory", TN_PLUGIN_QUARANTINED, "its constructor crashed with SIGABRT");
}
END_TEST

static bool is_confined(void)
{
    if (confine_missing())
        printf("SKIPPED: %s\n", confine_missing());
    return !confine_missing();
}

/* Without the filter the constructor would abort, and the file be gone. */
START_TEST(b14_a_trial_has_no_network_and_writes_nothing)
{
    if (!is_confined())
        return;
    char *path = tempdir_at(plugin_box_root(), "file"), *other = tempdir_at(plugin_box_root(), "file.new");
    tempdir_write(path, "contents", 8);
    setenv("BAD_FILE", path, 1);
    tn_plugin_info info = drop("conduct", "leaves traces in the trial");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    ck_assert(tempdir_exists(path));
    ck_assert(!tempdir_exists(other));
}
END_TEST

START_TEST(b14_a_plugin_that_cannot_write_its_cache_is_taken)
{
    if (!is_confined())
        return;
    char *path = tempdir_at(plugin_box_root(), "file"), *cache = tempdir_at(plugin_box_root(), "file.cache");
    setenv("BAD_FILE", path, 1);
    tn_plugin_info info = drop("conduct", "writes a cache in the trial");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    ck_assert(!tempdir_exists(cache));
}
END_TEST

static size_t processes_called(const char *name)
{
    glob_t found;
    size_t count = 0;
    ck_assert_int_eq(glob("/proc/[0-9]*/comm", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char text[32] = "";
        FILE *file = fopen(found.gl_pathv[i], "r");
        bool known = file && fgets(text, sizeof text, file);
        if (file)
            fclose(file);
        count += known && !strcmp(strtok(text, "\n"), name);
    }
    globfree(&found);
    return count;
}

/* Called by this process's number: the same test may run beside. The first one is found, the constructor's are not. */
START_TEST(b14_a_trial_leaves_no_process)
{
    char name[16], byte;
    int ends[2];
    snprintf(name, sizeof name, "away-%d", (int)getpid());
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, name);
        (void)!write(ends[1], "", 1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    ck_assert_uint_eq(processes_called(name), 1);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    setenv("BAD_NAME", name, 1);
    drop("conduct", "a process that got away");
    ck_assert_uint_eq(processes_called(name), 0);
}
END_TEST

/* ---- B12: pointers ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *fault, *rest;
} pointers[] = {
    {"class_glob", "kernel 'test_pointers', impl 0: a pointer leads to no memory"},
    {"a text without end", "impl 0: the pattern of class names must be one line"},
    {"id", "kernel 0: a pointer leads to no memory"},
    {"summary", "kernel 'test_pointers': a pointer leads to no memory"},
    {"version", "kernel 'test_pointers': a pointer leads to no memory"},
    {"device name", "kernel 'test_pointers': a pointer leads to no memory"},
    {"plugin name", "plugin: a pointer leads to no memory"},
    {"dims", "impl 0: a pointer leads to no memory"},
    {"impls", "impl 0: a pointer leads to no memory"},
    {"more impls than there are", "kernel 'test_pointers', impl "},
    {"kernels", "kernel 0: a pointer leads to no memory"},
    {"half a struct", "kernel 0: its size is "},
    {"forward", "impl 0: one of its functions is at an address where no code is"},
    {"plan", "impl 0: one of its functions is at an address where no code is"},
    {"available", "kernel 'test_pointers': one of its functions is at an address where no code is"},
    {"device operation", "device: one of its functions is at an address where no code is"},
    {"device", "device: a pointer leads to no memory"},
    {"plugin", "plugin: a pointer leads to no memory"},
};
enum { POINTERS = sizeof pointers / sizeof pointers[0] };

/* In the trial, and here when the trial saw another. */
START_TEST(b12_a_pointer_to_nothing_is_an_error)
{
    char fault[64];
    const char *name = pointers[_i % POINTERS].fault;
    snprintf(fault, sizeof fault, "%s%s", _i < POINTERS ? "" : "here ", name);
    expect_refused("pointers", fault, TN_PLUGIN_REFUSED, pointers[_i % POINTERS].rest);
}
END_TEST

START_TEST(b12_without_a_fault_it_is_taken)
{
    tn_plugin_info info = drop("pointers", "none of them");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    ck_assert_ptr_nonnull(registry_find("cpu", "test_pointers"));
}
END_TEST

/* ---- B11 -------------------------------------------------------------------------------------------------------- */

START_TEST(b11_a_death_from_outside_is_no_lasting_verdict)
{
    static const char *const signals[] = {"SIGTERM", "SIGKILL", "SIGABRT"};
    char want[64];
    snprintf(want, sizeof want, "its constructor crashed with %s", signals[_i]);
    tn_plugin_info info = drop("conduct", signals[_i]);
    ck_assert_int_eq(info.state, TN_PLUGIN_QUARANTINED);
    suite_expect_in(info.reason, want);
    ck_assert_int_eq(is_remembered(&info), _i == 2); /* what a process does to itself                  */
    if (_i == 2)
        return;
    setenv("BAD_PLUGIN", "", 1);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert(plugin_box_info("a.so", &info));
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
}
END_TEST

static atomic_bool trial_is_over;

static void *change_often(void *path)
{
    while (!atomic_load(&trial_is_over)) {
        chmod(path, 0700);
        usleep(2000);
    }
    return NULL;
}

START_TEST(b11_what_changes_meanwhile_has_no_verdict)
{
    char *path = tempdir_at(plugin_box_folder(), "a.so");
    setenv("BAD_FILE", path, 1);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, change_often, path), 0);
    tn_plugin_info info = drop("conduct", "waits until its file changes");
    atomic_store(&trial_is_over, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    ck_assert_str_eq(info.reason, "it changed while it was being examined; scan again");
    ck_assert(!is_remembered(&info));
    setenv("BAD_PLUGIN", "", 1);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert(plugin_box_info("a.so", &info));
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
}
END_TEST

/* The first of the folder would spoil all later forks once it is open here; the trial refuses it, and what comes behind
 * it was tried before. */
START_TEST(b11_all_files_are_tried_before_one_is_opened)
{
    plugin_box_add("wrong_numbers", "b.so");
    tn_plugin_info info = drop("conduct", "a thread that stays");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert(plugin_box_info("b.so", &info));
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    ck_assert_uint_eq(registry_count("cpu"), 3);
}
END_TEST

static void crash_in_children(void)
{
    raise(SIGSEGV);
}

/* A handler for forks that no trial has seen: the next plugin is not to blame, and not even refused. */
START_TEST(b11_a_handler_for_forks_condemns_nobody)
{
    pthread_atfork(NULL, NULL, crash_in_children);
    tn_plugin_info info = drop("conduct", "nothing at all");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    plugin_box_add("crash", "crash.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert(plugin_box_info("crash.so", &info));
    ck_assert_str_eq(info.reason, "its constructor crashed with SIGSEGV when it was tried in a child process");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugin trials", 240);
    tcase_add_checked_fixture(tc, plugin_box_open, NULL);
    tcase_add_loop_test(tc, b12_what_nobody_can_put_right_is_refused, 0, sizeof deeds / sizeof deeds[0]);
    tcase_add_loop_test(tc, b12_what_harms_nobody_is_taken, 0, sizeof harmless / sizeof harmless[0]);
    suite_add(tc, b12_a_program_on_one_processor_stays_on_all, b12_a_registration_that_nobody_asked_for_is_reported,
              b12_a_library_that_opens_another_plugin_is_refused, b12_a_destructor_that_hangs_is_stopped,
              b14_a_trial_holds_no_descriptors_of_the_program, b14_a_trial_has_limits_on_memory,
              b14_a_trial_leaves_no_process, b14_a_trial_has_no_network_and_writes_nothing,
              b14_a_plugin_that_cannot_write_its_cache_is_taken);
    tcase_add_loop_test(tc, b12_a_pointer_to_nothing_is_an_error, 0, 2 * POINTERS);
    suite_add(tc, b12_without_a_fault_it_is_taken);
    tcase_add_loop_test(tc, b11_a_death_from_outside_is_no_lasting_verdict, 0, 3);
    suite_add(tc, b11_what_changes_meanwhile_has_no_verdict, b11_all_files_are_tried_before_one_is_opened,
              b11_a_handler_for_forks_condemns_nobody);
    return suite_run();
}
