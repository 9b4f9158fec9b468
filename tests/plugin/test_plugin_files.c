/* Each bad plugin, dropped into a folder beside a good one: what is said of it, and that the good one still loads. */
#include "plugin/elfnote.h"
#include "plugin/registry.h"
#include "plugin_box.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <elf.h>
#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* Drops the plugin and a good one, scans, and returns what is known of the first. */
static tn_plugin_info drop(const char *name)
{
    tn_error err = TN_ERROR_INIT;
    char file[128];
    snprintf(file, sizeof file, "%s.so", name);
    plugin_box_add(name, file);
    plugin_box_add("good", "good.so");
    ck_assert_msg(plugin_box_scan(NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_plugin_info good = plugin_box_of("good.so");
    ck_assert_msg(good.state == TN_PLUGIN_LOADED, "%s", good.reason);
    ck_assert_str_eq(good.reason, "");
    ck_assert_ptr_nonnull(registry_find("cpu", "test_rms_norm"));
    return plugin_box_of(file);
}

/* What each file is refused for. rest: text that the reason contains. */
static const struct {
    const char *name;
    tn_plugin_state state;
    const char *rest;
} refused[] = {
    {"crash", TN_PLUGIN_QUARANTINED, "its constructor crashed with SIGSEGV when it was tried in a child process"},
    {"exit_early", TN_PLUGIN_QUARANTINED, "its constructor called exit(3) when it was tried in a child process"},
    {"missing_symbol", TN_PLUGIN_QUARANTINED, "undefined symbol: tn_function_that_nobody_has"},
    {"abi_major", TN_PLUGIN_REFUSED, "plugin ABI: expected major 2, got 99; rebuild it with this version's headers"},
    {"abi_minor", TN_PLUGIN_REFUSED, "plugin ABI: it needs 2.99, this host has 2.5; use a newer tenon"},
    {"no_note", TN_PLUGIN_SKIPPED, "no plugin note; not a plugin"},
    {"never_registers", TN_PLUGIN_REFUSED, "its constructor registers nothing with this host"},
    {"registers_twice", TN_PLUGIN_REFUSED, "it registers 2 times; use TN_PLUGIN once per file"},
    {"same_id_twice", TN_PLUGIN_REFUSED, "kernel 'test_twice' for cpu is registered twice"},
    {"empty_id", TN_PLUGIN_REFUSED, "kernel 0 has an empty id; give it one"},
    {"no_impl", TN_PLUGIN_REFUSED, "kernel 'test_no_impl' has no impl; it needs at least one"},
    {"no_forward", TN_PLUGIN_REFUSED, "kernel 'test_no_forward', impl 0: RMS_NORM has no forward; it needs one"},
    {"unknown_op", TN_PLUGIN_REFUSED, "kernel 'test_unknown_op', impl 0: unknown op 64"},
    {"open_match", TN_PLUGIN_REFUSED,
     "kernel 'test_open_match', impl 0: match is open-ended: RMS_NORM must name the norm values that it takes"},
};

START_TEST(a_bad_plugin_is_refused_with_its_reason)
{
    tn_plugin_info info = drop(refused[_i].name);
    ck_assert_int_eq(info.state, refused[_i].state);
    ck_assert_msg(strstr(info.reason, refused[_i].rest) != NULL, "%s: %s", refused[_i].name, info.reason);
    ck_assert_uint_eq(strlen(info.sha256), 64);
    /* Nothing of it is registered: the good one's kernel is the only one. */
    ck_assert_uint_eq(registry_count("cpu"), 1);
}
END_TEST

START_TEST(a_refused_plugin_is_named_when_its_note_can_be_read)
{
    tn_plugin_info info = drop("crash");
    ck_assert_str_eq(info.name, "crash");
    ck_assert_str_eq(info.version, "1.0.0");
}
END_TEST

START_TEST(an_endless_constructor_is_stopped)
{
    const char *name = _i == 0 ? "endless_loop" : "endless_wait";
    setenv("TENON_TRIAL_SECONDS", "0.5", 1);
    char file[64];
    snprintf(file, sizeof file, "%s.so", name);
    plugin_box_add(name, file);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of(file);
    ck_assert_int_eq(info.state, TN_PLUGIN_QUARANTINED);
    ck_assert_str_eq(info.reason, "its constructor did not finish within 0.5 s when it was tried in a child process");
}
END_TEST

START_TEST(a_file_that_is_not_elf_is_skipped)
{
    static const char *const contents[] = {"", "not a library\n", "\177ELF", "\177ELF\002\001\001"};
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "text%zu.so", i);
        tempdir_put(plugin_box_folder(), name, contents[i]);
    }
    drop("no_note");
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "text%zu.so", i);
        tn_plugin_info info = {.size = sizeof info};
        ck_assert(plugin_box_info(name, &info));
        ck_assert_int_eq(info.state, TN_PLUGIN_SKIPPED);
        ck_assert_str_eq(info.reason, "not an ELF file; not a plugin");
    }
}
END_TEST

/* A copy of the good plugin with its content changed by edit. */
static tn_plugin_info drop_edited(void (*edit)(char *content, size_t *size))
{
    size_t size;
    char *content = tempdir_read(plugin_box_built("good"), &size);
    edit(content, &size);
    char *path = tempdir_at(plugin_box_folder(), "edited.so");
    tempdir_write(path, content, size);
    free(content);
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(plugin_box_scan(NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    return plugin_box_of("edited.so");
}

static void other_machine(char *content, size_t *size)
{
    (void)size;
    ((Elf64_Ehdr *)content)->e_machine = EM_IA_64;
}

START_TEST(a_plugin_for_another_machine_is_skipped)
{
    tn_plugin_info info = drop_edited(other_machine);
    ck_assert_int_eq(info.state, TN_PLUGIN_SKIPPED);
    ck_assert_msg(strncmp(info.reason, "built for another machine: expected ", 36) == 0, "%s", info.reason);
    suite_expect_in(info.reason, "got machine 50, 64 bit, little-endian; rebuild it here");
}
END_TEST

static void truncated(char *content, size_t *size)
{
    (void)content;
    *size = *size / 8;
}

static void note_too_long(char *content, size_t *size)
{
    static const char owner[] = "Tenon";
    for (char *at = content; at + 64 < content + *size; at++)
        if (memcmp(at, owner, sizeof owner) == 0) {
            uint32_t huge = 0x7fffffff;
            memcpy(at - 8, &huge, sizeof huge);
            return;
        }
}

static void note_without_end(char *content, size_t *size)
{
    static const char owner[] = "Tenon";
    for (char *at = content; at + 64 < content + *size; at++)
        if (memcmp(at, owner, sizeof owner) == 0) {
            uint32_t bytes;
            memcpy(&bytes, at - 8, sizeof bytes);
            memset(at + 16, 'x', bytes - 8);
            return;
        }
}

START_TEST(a_damaged_plugin_is_refused)
{
    static void (*const edits[])(char *, size_t *) = {truncated, note_too_long, note_without_end};
    static const tn_plugin_state states[] = {TN_PLUGIN_REFUSED, TN_PLUGIN_SKIPPED, TN_PLUGIN_REFUSED};
    static const char *const rest[] = {"it is cut off after ", "no plugin note; not a plugin",
                                       "its plugin note is damaged: name and version"};
    tn_plugin_info info = drop_edited(edits[_i]);
    ck_assert_msg(info.state == states[_i], "%s", info.reason);
    suite_expect_in(info.reason, rest[_i]);
}
END_TEST

static uint32_t next_random(uint32_t *state)
{
    return *state = *state * 1664525u + 1013904223u;
}

/* The note of files with damage anywhere, mostly in the headers, in memory that ends where the file ends. */
START_TEST(any_damage_to_a_file_is_bearable)
{
    size_t size;
    char *good = tempdir_read(plugin_box_built("good"), &size);
    uint32_t state = 1;
    int seen[3] = {0};
    for (int round = 0; round < 6000; round++) {
        size_t length = round % 3 == 0 ? next_random(&state) % (size + 1) : size;
        char *content = malloc(length ? length : 1);
        ck_assert_ptr_nonnull(content);
        memcpy(content, good, length);
        for (uint32_t i = next_random(&state) >> 29; length > 0 && i > 0; i--) {
            size_t within = (next_random(&state) >> 31) && length > 1024 ? 1024 : length;
            content[(next_random(&state) >> 8) % within] = (char)(next_random(&state) >> 24);
        }
        elfnote note;
        tn_error err = TN_ERROR_INIT;
        tn_status status = elfnote_read(content, length, "damaged.so", &note, &err);
        ck_assert(status == TN_OK || status == TN_DECLINED || status == TN_E_KERNEL);
        ck_assert(status == TN_OK || err.message[0]);
        ck_assert(strnlen(note.name, sizeof note.name) < sizeof note.name);
        seen[status == TN_OK ? 0 : status == TN_DECLINED ? 1 : 2]++;
        free(content);
    }
    ck_assert(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
    free(good);
}
END_TEST

START_TEST(a_duplicate_id_is_refused_whole_and_names_both_files)
{
    plugin_box_add("duplicate_id", "zz_duplicate.so"); /* files are taken in order */
    drop("no_note");
    tn_plugin_info info = plugin_box_of("zz_duplicate.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    char want[1024];
    snprintf(want, sizeof want,
             "kernel 'test_rms_norm' for cpu is already registered by %s/good.so; remove one of the two files",
             plugin_box_folder());
    ck_assert_str_eq(info.reason, want);
    ck_assert_ptr_null(registry_find("cpu", "test_bystander"));
    ck_assert_uint_eq(registry_count("cpu"), 1);
}
END_TEST

START_TEST(the_same_file_under_two_names_is_one_plugin)
{
    char *one = tempdir_at(plugin_box_folder(), "good.so"), *hard = tempdir_at(plugin_box_folder(), "hard.so");
    char *soft = tempdir_at(plugin_box_folder(), "soft.so");
    plugin_box_add("good", "copy.so");
    plugin_box_add("good", "good.so");
    ck_assert_int_eq(link(one, hard), 0);
    ck_assert_int_eq(symlink("good.so", soft), 0);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_uint_eq(tn_plugin_count(), 1);
    ck_assert_uint_eq(registry_count("cpu"), 1);
    tn_plugin_info info = plugin_box_of("copy.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
}
END_TEST

/* valgrind's processor keeps the rounding only. */
static bool keeps_control(void)
{
#ifdef __SSE__
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    bool kept = _mm_getcsr() != before;
    _mm_setcsr(before);
    return kept;
#else
    return true;
#endif
}

START_TEST(floating_point_control_is_put_back)
{
    volatile double tiny = 1e-310;
    if (!keeps_control()) {
        printf("SKIPPED floating-point control: this processor does not keep it (valgrind)\n");
        return;
    }
    tn_plugin_info info = drop("changes_fp");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert_str_eq(info.reason, "its constructor changed: floating-point control; put back");
    ck_assert(tiny * 0.5 != 0);
    ck_assert_int_eq(fegetround(), FE_TONEAREST);
}
END_TEST

static void on_signal(int s)
{
    (void)s;
}

START_TEST(signal_handlers_are_put_back)
{
    struct sigaction mine = {.sa_handler = on_signal}, now;
    sigaction(SIGUSR1, &mine, NULL);
    tn_plugin_info info = drop("changes_signals");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert_str_eq(info.reason, "its constructor changed: handler of SIGUSR1; put back");
    sigaction(SIGUSR1, NULL, &now);
    ck_assert(now.sa_handler == on_signal);
}
END_TEST

START_TEST(folder_and_locale_are_put_back)
{
    char *before = getcwd(NULL, 0);
    setlocale(LC_ALL, "C");
    tn_plugin_info info = drop("changes_folder");
    char *after = getcwd(NULL, 0);
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert_str_eq(info.reason, "its constructor changed: locale, working directory; put back");
    ck_assert_str_eq(before, after);
    ck_assert_str_eq(setlocale(LC_ALL, NULL), "C");
    free(before);
    free(after);
}
END_TEST

START_TEST(availability_is_asked_in_a_child_first)
{
    drop("not_available");
    tn_kernel_info **list;
    size_t count;
    ck_assert_int_eq(tn_kernels_available("cpu", &list, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(list[0]->id, "test_crashes_when_asked");
    ck_assert(!list[0]->available);
    ck_assert_str_eq(list[0]->reason, "when asked whether it is available it crashed with SIGSEGV");
    ck_assert_str_eq(list[1]->id, "test_not_available");
    ck_assert(!list[1]->available);
    ck_assert_str_eq(list[1]->reason, "needs an abacus with at least 12 rods");
    ck_assert_str_eq(list[1]->summary, "needs what is not there");
    ck_assert_str_eq(list[2]->id, "test_rms_norm");
    ck_assert(list[2]->available);
    ck_assert_str_eq(list[2]->reason, "");
    ck_assert_str_eq(list[2]->version, "1.0.0");
    ck_assert_str_eq(list[2]->device, "cpu");
    free(list);
}
END_TEST

START_TEST(plugins_with_faults_in_forward_load)
{
    /* What they compute is judged when they are applied. */
    plugin_box_add("writes_outside", "writes_outside.so");
    tn_plugin_info info = drop("wrong_numbers");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert(plugin_box_info("writes_outside.so", &info));
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert_uint_eq(registry_count("cpu"), 3);
    ck_assert_str_eq(registry_at("cpu", 1)->kernel.id, "test_writes_outside");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugin files", 240);
    tcase_add_checked_fixture(tc, plugin_box_open, NULL);
    tcase_add_loop_test(tc, a_bad_plugin_is_refused_with_its_reason, 0, sizeof refused / sizeof refused[0]);
    suite_add(tc, a_refused_plugin_is_named_when_its_note_can_be_read);
    tcase_add_loop_test(tc, an_endless_constructor_is_stopped, 0, 2);
    suite_add(tc, a_file_that_is_not_elf_is_skipped, a_plugin_for_another_machine_is_skipped);
    tcase_add_loop_test(tc, a_damaged_plugin_is_refused, 0, 3);
    suite_add(tc, any_damage_to_a_file_is_bearable, a_duplicate_id_is_refused_whole_and_names_both_files,
              the_same_file_under_two_names_is_one_plugin, floating_point_control_is_put_back,
              signal_handlers_are_put_back, folder_and_locale_are_put_back, availability_is_asked_in_a_child_first,
              plugins_with_faults_in_forward_load);
    return suite_run();
}
