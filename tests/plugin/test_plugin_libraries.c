/* B10: the libraries that a plugin brings. Where they come from is settled before any of their code runs, and a verdict
 * holds for them too. The program runs as a user runs it, from a folder that holds what it must not take. */
#include "base/sha256.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "lib_that_plugins_of_the_tests_need.so.1"
#define RUN_PATH "/a/place/that/is/not/there"

static char *root, *model;
static char built[4096];

static void copy(const char *from, const char *to)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/tests/bad_plugins/%s.so", built, from);
    tempdir_copy_file(path, root, to);
}

static void make(const char *folder)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    ck_assert_int_eq(mkdir(path, 0755), 0);
}

/* Writes `to` over the text of the file that begins with `from`. */
static void edit(const char *file, const char *from, const char *to)
{
    char path[8192];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", root, file);
    char *content = tempdir_read(path, &size), *at = memmem(content, size, from, strlen(from));
    ck_assert_msg(at && strlen(to) <= strlen(at), "%s is too long", to);
    memset(at, 0, strlen(at));
    memcpy(at, to, strlen(to));
    tempdir_write(path, content, size);
    free(content);
}

static void set_up(void)
{
    snprintf(built, sizeof built, "%s", process_build());
    if (built[0] != '/')
        ck_assert_ptr_nonnull(realpath(process_build(), built));
    setenv("TENON_BUILD", built, 1);
    umask(022);
    root = tempdir_new();
    model = realpath("models/demo", NULL);
    ck_assert_ptr_nonnull(model);
    ck_assert_int_eq(chdir(root), 0);
    make("cache");
    make("plugins");
    make("lib");
    char cache[4096];
    snprintf(cache, sizeof cache, "%s/cache", root);
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("TENON_TRIAL_SECONDS", "60", 1);
    copy("needs_library", "plugins/needs.so");
    copy("dependency", "lib/" LIBRARY);
}

static void tear_down(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    free(model);
}

/* NULL: it loads. Otherwise the reason holds this text. */
static void expect(const char *why)
{
    process_result r = TENON(NULL, "kernels", "--only-plugins", "plugins");
    ck_assert_msg(r.status == (why ? 3 : 0), "exit status %d\n%s%s", r.status, r.out, r.err);
    if (why)
        ck_assert_msg(strstr(r.out, "/plugins/needs.so: ") && strstr(r.out, why), "not '%s':\n%s", why, r.out);
    else
        suite_expect_in(r.out, "test_needs_library  cpu     1.0.0    yes ");
}

/* A run path with the root's name where it says ROOT. */
static const char *in_root(const char *text)
{
    static char path[8192];
    const char *at = strstr(text, "ROOT");
    snprintf(path, sizeof path, "%.*s%s%s", at ? (int)(at - text) : 0, text, at ? root : "", at ? at + 4 : text);
    return path;
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static const char *const good_paths[] = {"ROOT/lib", "$ORIGIN/../lib", "${ORIGIN}/../lib", "/nowhere:ROOT/lib",
                                         "$ORIGIN/nowhere:$ORIGIN/../lib"};

START_TEST(b10_a_library_of_a_known_place_is_taken)
{
    edit("plugins/needs.so", RUN_PATH, in_root(good_paths[_i]));
    expect(NULL);
    expect(NULL); /* with the verdict of before                                                     */
}
END_TEST

START_TEST(b10_a_library_beside_the_plugin_is_taken)
{
    copy("dependency", "plugins/" LIBRARY);
    edit("plugins/needs.so", RUN_PATH, "$ORIGIN");
    expect(NULL);
}
END_TEST

static const char *const bad_paths[][2] = {
    {"lib", "its run path has 'lib', which counts from the current folder"},
    {"./lib", "its run path has './lib', which counts from the current folder"},
    {"", "an empty entry, which is the current folder"},
    {"ROOT/lib:", "an empty entry, which is the current folder"},
    {":ROOT/lib", "an empty entry, which is the current folder"},
    {"ROOT/lib::/usr/lib", "an empty entry, which is the current folder"},
    {"$ORIGIN/../lib:lib", "its run path has 'lib', which counts from"},
    {"$LIB", "of names with '$' only $ORIGIN at the beginning is taken"},
    {"ROOT/$LIB", "of names with '$' only $ORIGIN at the beginning is taken"},
    {"$ORIGIN/$PLATFORM", "of names with '$' only $ORIGIN at the beginning is taken"},
    {"$ORIGINAL", "of names with '$' only $ORIGIN at the beginning is taken"},
    {"lib/$ORIGIN", "of names with '$' only $ORIGIN at the beginning is taken"},
};

/* The library would be found in most of them; it is the name that is refused, before any code runs. */
START_TEST(b10_a_run_path_that_depends_on_the_current_folder_is_refused)
{
    copy("dependency", LIBRARY);
    setenv("BAD_PLUGIN", "its library crashes", 1);
    edit("plugins/needs.so", RUN_PATH, in_root(bad_paths[_i][0]));
    expect(bad_paths[_i][1]);
}
END_TEST

static const char *const bad_names[][2] = {
    {"lib/x.so", "it needs 'lib/x.so', which counts from the current folder"},
    {"./x.so", "it needs './x.so', which counts from the current folder"},
    {"../x.so", "it needs '../x.so', which counts from the current folder"},
    {"$ORIGIN/x.so", "it needs '$ORIGIN/x.so'; names of libraries with '$' are not taken"},
    {"$LIB.so", "it needs '$LIB.so'; names of libraries with '$' are not taken"},
    {"", "its list of libraries is damaged"},
};

START_TEST(b10_a_name_that_depends_on_the_current_folder_is_refused)
{
    copy("dependency", "lib/x.so");
    copy("dependency", "x.so");
    setenv("BAD_PLUGIN", "its library crashes", 1);
    edit("plugins/needs.so", LIBRARY, bad_names[_i][0]);
    expect(bad_names[_i][1]);
}
END_TEST

START_TEST(b10_an_absolute_name_is_taken)
{
    char name[4096];
    snprintf(name, sizeof name, "%s/d", root);
    copy("dependency", "d");
    edit("plugins/needs.so", LIBRARY, name);
    expect(NULL);
    /* Whose own run path counts from there is not. */
    copy("needs_library", "d");
    edit("d", RUN_PATH, "lib");
    expect("its run path has 'lib', which counts from the current folder");
}
END_TEST

START_TEST(b10_the_environment_leads_nowhere_else)
{
    copy("dependency", LIBRARY);
    setenv("BAD_PLUGIN", "its library crashes", 1);
    static const char *const paths[][2] = {{"lib", "the entry 'lib', which counts from the current folder"},
                                           {":/usr/lib", "the entry '', which is the current folder"},
                                           {"/usr/lib;", "the entry '', which is the current folder"}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        setenv("LD_LIBRARY_PATH", paths[i][0], 1);
        expect(paths[i][1]);
    }
    unsetenv("BAD_PLUGIN");
    setenv("LD_LIBRARY_PATH", in_root("ROOT/lib"), 1);
    expect(NULL);
    /* What needs nothing is not concerned. */
    copy("good", "plugins/needs.so");
    setenv("LD_LIBRARY_PATH", ":lib", 1);
    process_result r = TENON(NULL, "kernels", "--only-plugins", "plugins");
    ck_assert_msg(r.status == 0 && strstr(r.out, "test_rms_norm"), "%s%s", r.out, r.err);
}
END_TEST

/* What a constructor opens is known when its trial has seen it. */
START_TEST(b10_libraries_that_a_constructor_opens_are_seen)
{
    static const struct {
        const char *file, *printed;
    } cases[] = {{"./x.so", "it loads './x.so', which depends on the current folder"},
                 {"lib/x.so", "it loads 'lib/x.so', which depends on the current folder"},
                 {"ROOT/open/x.so", "open: writable by everyone; run chmod go-w on it"},
                 {"ROOT/lib/x.so", "test_conduct  cpu     1.0.0    yes "}};
    make("open");
    ck_assert_int_eq(chmod("open", 0777), 0);
    copy("dependency", "x.so");
    copy("dependency", "lib/x.so");
    copy("dependency", "open/x.so");
    copy("conduct", "plugins/needs.so");
    setenv("BAD_PLUGIN", "opens another library", 1);
    setenv("BAD_FILE", in_root(cases[_i].file), 1);
    process_result r = TENON(NULL, "kernels", "--only-plugins", "plugins");
    ck_assert_msg(strstr(r.out, cases[_i].printed) != NULL, "not '%s':\n%s%s", cases[_i].printed, r.out, r.err);
}
END_TEST

/* ---- rights ----------------------------------------------------------------------------------------------------- */

typedef enum change { STACK_RUNS, STACK_UNSAID, DATA_RUNS } change;

/* Changes a file's program headers. */
static void edit_rights(const char *file, change c)
{
    char path[8192];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", root, file);
    char *content = tempdir_read(path, &size);
    ElfW(Ehdr) head;
    memcpy(&head, content, sizeof head);
    for (int i = 0; i < head.e_phnum; i++) {
        char *at = content + head.e_phoff + (size_t)i * head.e_phentsize;
        ElfW(Phdr) p;
        memcpy(&p, at, sizeof p);
        if (p.p_type == PT_GNU_STACK && c == STACK_RUNS)
            p.p_flags |= PF_X;
        if (p.p_type == PT_GNU_STACK && c == STACK_UNSAID)
            p.p_type = PT_NULL;
        if (p.p_type == PT_LOAD && c == DATA_RUNS && (p.p_flags & PF_W))
            p.p_flags |= PF_X;
        memcpy(at, &p, sizeof p);
    }
    tempdir_write(path, content, size);
    free(content);
}

static const char *const rights[] = {[STACK_RUNS] = "asks for an executable stack",
                                     [STACK_UNSAID] = "asks for an executable stack",
                                     [DATA_RUNS] = "has a segment that can be written and executed"};

/* Of the plugin and of what it is linked with, before any of their code runs. */
START_TEST(b10_memory_that_can_be_written_and_run_is_refused)
{
#if !defined(__x86_64__)
    if (_i == STACK_UNSAID) {
        printf("left out: on this machine silence means no\n");
        return;
    }
#endif
    setenv("BAD_PLUGIN", "its library crashes", 1);
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/lib"));
    edit_rights("lib/" LIBRARY, (change)_i);
    expect(LIBRARY);
    expect(rights[_i]);
    copy("dependency", "lib/" LIBRARY);
    edit_rights("plugins/needs.so", (change)_i);
    expect(rights[_i]);
}
END_TEST

/* A library that is opened by hand is seen when the trial has opened it. */
START_TEST(b10_a_stack_that_became_executable_is_seen)
{
    copy("dependency", "lib/x.so");
    edit_rights("lib/x.so", STACK_RUNS);
    copy("conduct", "plugins/needs.so");
    setenv("BAD_PLUGIN", "opens another library", 1);
    setenv("BAD_FILE", in_root("ROOT/lib/x.so"), 1);
    process_result r = TENON(NULL, "kernels", "--only-plugins", "plugins");
    /* Newer C libraries do not open such a file at all. */
    ck_assert_msg(r.status == 3 && (strstr(r.out, "executable stack") || strstr(r.out, "SIGABRT")), "%s%s", r.out,
                  r.err);
}
END_TEST

/* ---- who may write ---------------------------------------------------------------------------------------------- */

START_TEST(b10_the_rules_for_folders_hold_for_libraries)
{
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/lib"));
    ck_assert_int_eq(chmod("lib/" LIBRARY, 0666), 0);
    expect("writable by everyone; run chmod go-w on it");
    ck_assert_int_eq(chmod("lib/" LIBRARY, 0644), 0);
    ck_assert_int_eq(chmod("lib", 0775), 0);
    expect("writable by its group; run chmod go-w on it");
    ck_assert_int_eq(chmod("lib", 0755), 0);
    expect(NULL);
}
END_TEST

static void sha_of(const char *file, char hex[65])
{
    size_t size;
    void *content = tempdir_read(file, &size);
    ck_assert(sha256_hex(content, size, hex));
    free(content);
}

/* Whoever can write above a folder can put another in its place. */
START_TEST(b10_the_rules_hold_for_all_folders_above)
{
    char path[8192];
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/above/lib"));
    make("above");
    snprintf(path, sizeof path, "%s/above/lib", root);
    ck_assert_int_eq(rename("lib", path), 0);
    expect(NULL);
    ck_assert_int_eq(chmod("above", 0777), 0);
    expect("/above above it is writable by everyone; run chmod go-w on it");
    ck_assert_int_eq(chmod("above", 0775), 0);
    expect("/above above it is writable by its group; run chmod go-w on it");
    ck_assert_int_eq(chmod("above", 01777), 0); /* as /tmp                                                */
    expect(NULL);
    if (geteuid() == 0) {
        ck_assert_int_eq(chmod("above", 0755), 0);
        ck_assert_int_eq(chown("above", 1, 1), 0);
        expect("/above above it is owned by user 1, not by root or you");
        ck_assert_int_eq(chown("above", 0, 0), 0);
    }
    ck_assert_int_eq(chmod("above", 0755), 0);
    ck_assert_int_eq(chmod(root, 0777), 0); /* of the plugins                                              */
    process_result r = TENON(NULL, "kernels", "--only-plugins", "plugins");
    ck_assert_msg(r.status == 3 && strstr(r.err, "above it is writable by everyone"), "%s%s", r.out, r.err);
    ck_assert_int_eq(chmod(root, 0700), 0);
}
END_TEST

/* A link's name lies in a folder, too. */
START_TEST(b10_the_rules_hold_for_links)
{
    char to[8192];
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/open/link/lib"));
    make("open");
    snprintf(to, sizeof to, "%s", root);
    ck_assert_int_eq(symlink(to, "open/link"), 0);
    expect(NULL);
    ck_assert_int_eq(chmod("open", 0777), 0);
    expect("/open above it is writable by everyone");
}
END_TEST

static void list_plugins(void)
{
    TENON(NULL, "kernels", "--only-plugins", "plugins");
}

/* Verdicts are not believed, nor made, where others can put a folder of theirs. */
START_TEST(b10_the_rules_hold_for_the_cache)
{
    char path[8192];
    make("above");
    snprintf(path, sizeof path, "%s/above/cache", root);
    setenv("XDG_CACHE_HOME", path, 1);
    copy("good", "plugins/needs.so");
    ck_assert_int_eq(chmod("above", 0777), 0);
    list_plugins();
    char hex[65];
    sha_of("plugins/needs.so", hex);
    snprintf(path, sizeof path, "above/cache/tenon/%s", hex);
    ck_assert(!tempdir_exists(path));
    ck_assert_int_eq(chmod("above", 0755), 0);
    list_plugins();
    ck_assert(tempdir_exists(path));
}
END_TEST

/* As expect, with a configuration that has pins for the plugin and, unless it is NULL, the library. */
static void expect_pinned(const char *library, const char *why)
{
    char hex[65], text[1024];
    sha_of("plugins/needs.so", hex);
    int n = snprintf(text, sizeof text, "{\"plugins\": [\"plugins\"], \"pins\": {\"needs.so\": \"sha256:%s\"%s%s%s}}",
                     hex, library ? ", \"" LIBRARY "\": \"sha256:" : "", library ? library : "", library ? "\"" : "");
    tempdir_write("kernels.json", text, (size_t)n);
    process_result r = TENON(NULL, "kernels", "--config", "kernels.json");
    ck_assert_msg(strstr(r.out, why) != NULL, "not '%s':\n%s%s", why, r.out, r.err);
}

/* A model with that configuration. */
static void expect_model(int status, const char *why)
{
    process_result r = TENON(NULL, "inspect", model, "--config", "kernels.json");
    ck_assert_msg(r.status == status && strstr(r.err, why) != NULL, "%d: %s", r.status, r.err);
}

START_TEST(b10_pins_hold_for_libraries)
{
    char hex[65];
    sha_of("lib/" LIBRARY, hex);
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/lib"));
    for (int i = 0; i < 2; i++) { /* tried, and with the verdict of before                            */
        expect_pinned(NULL, LIBRARY ", which is not pinned; to allow it add \"" LIBRARY "\": \"sha256:");
        expect_pinned(hex, "test_needs_library  cpu     1.0.0    yes ");
        expect_model(0, ""); /* the library's pin is a name that something has                     */
        hex[0] = hex[0] == '0' ? '1' : '0';
        expect_pinned(hex, LIBRARY ": pin mismatch: expected sha256:");
        hex[0] = '\0';
        sha_of("lib/" LIBRARY, hex);
    }
}
END_TEST

/* ---- verdicts --------------------------------------------------------------------------------------------------- */

/* The plugin's verdict as it lies there, or NULL. Owned. */
static char *verdict(void)
{
    char hex[65], path[256];
    size_t size;
    sha_of("plugins/needs.so", hex);
    snprintf(path, sizeof path, "cache/tenon/%s", hex);
    return tempdir_exists(path) ? tempdir_read(path, &size) : NULL;
}

START_TEST(b10_a_verdict_holds_for_the_libraries)
{
    struct stat before, now;
    char hex[65], path[256];
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/lib"));
    sha_of("plugins/needs.so", hex);
    snprintf(path, sizeof path, "cache/tenon/%s", hex);
    expect(NULL);
    char *text = verdict();
    ck_assert_msg(text && strstr(text, "/lib/" LIBRARY "\n"), "%s", text ? text : "no verdict");
    free(text);
    ck_assert_int_eq(stat(path, &before), 0);
    expect(NULL);
    ck_assert_int_eq(stat(path, &now), 0);
    ck_assert(before.st_ino == now.st_ino); /* believed, and not written again                        */
    /* Another library of that name: the plugin is tried again, and nothing but the trial dies. */
    copy("dependency", "lib/new");
    ck_assert_int_eq(rename("lib/new", "lib/" LIBRARY), 0);
    setenv("BAD_PLUGIN", "its library crashes", 1);
    expect("its constructor crashed with SIGABRT when it was tried in a child process");
    /* What is to blame is not known: that is no lasting verdict. */
    unsetenv("BAD_PLUGIN");
    expect(NULL);
}
END_TEST

START_TEST(b10_a_library_that_is_found_earlier_is_another)
{
    make("first");
    char paths[8192];
    snprintf(paths, sizeof paths, "%s/first:%s/lib", root, root);
    edit("plugins/needs.so", RUN_PATH, paths);
    expect(NULL);
    copy("dependency", "first/" LIBRARY);
    setenv("BAD_PLUGIN", "its library crashes", 1);
    expect("its constructor crashed with SIGABRT when it was tried in a child process");
}
END_TEST

START_TEST(b10_a_library_that_is_gone_is_no_crash)
{
    edit("plugins/needs.so", RUN_PATH, in_root("ROOT/lib"));
    expect(NULL);
    ck_assert_int_eq(unlink("lib/" LIBRARY), 0);
    expect("cannot be opened: " LIBRARY ": cannot open shared object file");
    copy("dependency", "lib/" LIBRARY);
    expect(NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugins' libraries", 240);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_loop_test(tc, b10_a_library_of_a_known_place_is_taken, 0, sizeof good_paths / sizeof good_paths[0]);
    suite_add(tc, b10_a_library_beside_the_plugin_is_taken);
    tcase_add_loop_test(tc, b10_a_run_path_that_depends_on_the_current_folder_is_refused, 0,
                        sizeof bad_paths / sizeof bad_paths[0]);
    tcase_add_loop_test(tc, b10_a_name_that_depends_on_the_current_folder_is_refused, 0,
                        sizeof bad_names / sizeof bad_names[0]);
    suite_add(tc, b10_an_absolute_name_is_taken, b10_the_environment_leads_nowhere_else);
    tcase_add_loop_test(tc, b10_libraries_that_a_constructor_opens_are_seen, 0, 4);
    tcase_add_loop_test(tc, b10_memory_that_can_be_written_and_run_is_refused, 0, DATA_RUNS + 1);
    suite_add(tc, b10_a_stack_that_became_executable_is_seen, b10_the_rules_for_folders_hold_for_libraries,
              b10_the_rules_hold_for_all_folders_above, b10_the_rules_hold_for_links, b10_the_rules_hold_for_the_cache,
              b10_pins_hold_for_libraries, b10_a_verdict_holds_for_the_libraries,
              b10_a_library_that_is_found_earlier_is_another, b10_a_library_that_is_gone_is_no_crash);
    return process_main();
}
