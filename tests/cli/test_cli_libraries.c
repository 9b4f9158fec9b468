/* A kernel that was found right is checked again when a library has changed that it calls: one that it is linked with,
 * one that the program had before, and one that it opens by itself, whenever that is. The kernel is as right as the
 * number in the library (tests/bad_plugins/calls_library.c). */
#include "process.h"
#include "sanitizer.h"
#include "suite.h"
#include "tempdir.h"

#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *root;
static char plugins[4096], library[4096], other[4096];

static void copy(const char *from, const char *to)
{
    char path[4300];
    size_t size;
    snprintf(path, sizeof path, "%s/tests/bad_plugins/%s.so", process_build(), from);
    void *content = tempdir_read(path, &size);
    tempdir_write(to, content, size);
    free(content);
}

static void set_up(void)
{
    char path[8300];
    root = tempdir_new();
    snprintf(plugins, sizeof plugins, "%.4000s/plugins", root);
    snprintf(path, sizeof path, "%s/lib", plugins);
    ck_assert_int_eq(mkdir(plugins, 0755), 0);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    snprintf(library, sizeof library, "%.4000s/plugins/lib/libfactor.so.1", root);
    snprintf(other, sizeof other, "%.4000s/other.so", root);
    copy("factor_library", library);
    copy("factor_library", other);
    snprintf(path, sizeof path, "%s/calls.so", plugins);
    copy("calls_library", path);
    snprintf(path, sizeof path, "%s/cache", root);
    setenv("XDG_CACHE_HOME", path, 1);
    setenv("TENON_TRIAL_SECONDS", "60", 1);
}

/* Writes another number into a library: into the same file, or into another that takes its place. */
static void spoil(const char *path, bool in_place)
{
    char fresh[4200];
    size_t size;
    char *content = tempdir_read(path, &size), *at = memmem(content, size, "factor=1.00", 11);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "factor=1.50", 11);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    tempdir_write(in_place ? path : fresh, content, size);
    ck_assert(in_place || rename(fresh, path) == 0);
    free(content);
}

#define RUN                                                                                                            \
    "run", "--temperature=0", "models/demo", "--tokens", "1,2,3", "-n", "2", "--ignore-eos", "--dtype", "f32",         \
        "--threads", "2", "--only-plugins", plugins, "--kernels", "test_calls_library"

static void expect_right(void)
{
    process_result r = TENON_CHECKED(NULL, RUN);
    ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
}

static void expect_wrong(void)
{
    process_result r = TENON(NULL, RUN);
    ck_assert_msg(r.status == 5 && strstr(r.err, "test_calls_library") && strstr(r.err, "wrong numbers"),
                  "status %d: %s", r.status, r.err);
}

static size_t remembered(void)
{
    char pattern[4300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/cache/tenon/checked-*", root);
    size_t count = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return count;
}

START_TEST(a_library_that_it_is_linked_with)
{
    expect_right();
    size_t count = remembered();
    ck_assert_uint_gt(count, 0);
    expect_right();
    ck_assert_uint_eq(remembered(), count);
    spoil(library, _i == 1);
    expect_wrong();
    expect_wrong();
}
END_TEST

START_TEST(a_library_that_the_environment_leads_to)
{
    char folder[4200], found[4300];
    snprintf(folder, sizeof folder, "%s/first", root);
    snprintf(found, sizeof found, "%s/libfactor.so.1", folder);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    setenv("LD_LIBRARY_PATH", folder, 1);
    expect_right();
    ck_assert_uint_gt(remembered(), 0);
    copy("factor_library", found); /* is found first from now on                                     */
    expect_right();
    spoil(found, false);
    expect_wrong();
}
END_TEST

START_TEST(a_library_that_the_program_has_already)
{
    if (SANITIZER || under_valgrind()) {
        printf("left out: nothing can be preloaded here\n");
        return;
    }
    setenv("LD_PRELOAD", other, 1);
    expect_right();
    ck_assert_uint_gt(remembered(), 0);
    spoil(other, _i == 1);
    expect_wrong();
}
END_TEST

/* What it opened before it was called is there for the check to be remembered with; in a call, nothing is remembered.
 */
START_TEST(a_library_that_it_opens)
{
    setenv("BAD_FILE", other, 1);
    if (_i >= 2)
        setenv("BAD_PLUGIN", "opens in available", 1);
    expect_right();
    ck_assert(_i >= 2 ? remembered() > 0 : remembered() == 0);
    spoil(other, _i % 2 == 1);
    expect_wrong();
}
END_TEST

/* One that makes the stack executable when it is opened in a call. */
START_TEST(a_library_that_wants_an_executable_stack)
{
    size_t size;
    char *content = tempdir_read(other, &size);
    ElfW(Ehdr) head;
    memcpy(&head, content, sizeof head);
    for (int i = 0; i < head.e_phnum; i++) {
        ElfW(Phdr) *p = (void *)(content + head.e_phoff + (size_t)i * head.e_phentsize);
        p->p_flags |= p->p_type == PT_GNU_STACK ? PF_X : 0;
    }
    tempdir_write(other, content, size);
    free(content);
    setenv("BAD_FILE", other, 1);
    process_result r = TENON(NULL, RUN);
    if (r.status == 0)
        printf("this C library does not open it\n"); /* so that the one that it is linked with is called */
    else
        ck_assert_msg(r.status == 3 && strstr(r.err, "makes the program's stack executable"), "%s", r.err);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("libraries of kernels", 600);
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_loop_test(tc, a_library_that_it_is_linked_with, 0, 2);
    suite_add(tc, a_library_that_the_environment_leads_to);
    tcase_add_loop_test(tc, a_library_that_the_program_has_already, 0, 2);
    tcase_add_loop_test(tc, a_library_that_it_opens, 0, 4);
    suite_add(tc, a_library_that_wants_an_executable_stack);
    return process_main();
}
