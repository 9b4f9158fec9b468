/* C17: names from outside, as they are printed: nothing in them moves a terminal's cursor or spoils JSON for the
 * others; what is for another machine or device is listed as such. B14: without kernels no plugin is opened. */
#include "base/text.h"
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL "models/demo"

static char *folder;

static void set_up(void)
{
    umask(022);
    setenv("TENON_TRIAL_SECONDS", "60", 1);
    folder = tempdir_new();
}

static char *read_built(const char *name, size_t *size)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/tests/bad_plugins/%s.so", process_build(), name);
    return tempdir_read(path, size);
}

static const json_t *find(const json_t *list, const char *id)
{
    size_t i;
    const json_t *kernel;
    json_array_foreach (list, i, kernel)
        if (strcmp(json_string_value(json_object_get(kernel, "id")), id) == 0)
            return kernel;
    return NULL;
}

/* Nothing but printable characters, line ends and what UTF-8 can hold. */
static void expect_clean(const char *printed)
{
    json_t *as_json = json_string(printed);
    ck_assert_msg(as_json != NULL, "not UTF-8: %s", printed);
    json_decref(as_json);
    for (const unsigned char *c = (const unsigned char *)printed; *c; c++)
        ck_assert_msg((*c >= 0x20 && *c != 0x7f && !(c[0] == 0xc2 && c[1] < 0xa0)) || *c == '\n', "%s", printed);
}

static const char *const names[][2] = {
    {"line\nbreak.so", "/line\\x0abreak.so"},
    {"\033[2Jclear.so", "/\\x1b[2Jclear.so"},
    {"back\b\b\bspace.so", "/back\\x08\\x08\\x08space.so"},
    {"latin1-\xfc.so", "/latin1-\\xfc.so"},
    {"half-\xe2\x82.so", "/half-\\xe2\\x82.so"},
    {"csi-\xc2\x9b.so", "/csi-\\xc2\\x9b.so"},
    {"turned-\xe2\x80\xaeos.so", "/turned-\\xe2\\x80\\xaeos.so"},
    {"tab\t.so", "/tab\\x09.so"},
    {"umlaut-\xc3\xbc.so", "/umlaut-\xc3\xbc.so"},
    {"back\\slash.so", "/back\\slash.so"},
};

START_TEST(c17_names_of_files_are_escaped)
{
    const char *name = names[_i][0], *shown = names[_i][1];
    process_copy_built("tests/bad_plugins/good.so", folder, name);
    process_copy_built("tests/bad_plugins/crash.so", folder, "a.so");
    process_copy_built("tests/bad_plugins/not_available.so", folder, "z.so");
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    expect_clean(r.out);
    expect_clean(r.err);
    suite_expect_in(r.out, shown);
    r = TENON(NULL, "kernels", "--only-plugins", folder, "--json");
    expect_clean(r.err);
    json_t *list = printed_text(r.out);
    ck_assert_uint_eq(json_array_size(list), 3);
    const char *file = json_string_value(json_object_get(find(list, "test_rms_norm"), "file"));
    ck_assert_str_eq(strrchr(file, '/'), shown);
}
END_TEST

/* The same of files that are not used: each reason is one line. */
START_TEST(c17_names_of_refused_files_are_escaped)
{
    const char *name = names[_i][0], *shown = names[_i][1];
    process_copy_built("tests/bad_plugins/crash.so", folder, name);
    process_copy_built("tests/bad_plugins/good.so", folder, "good.so");
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    char line[256];
    snprintf(line, sizeof line, "%s: quarantined: its constructor crashed with SIGSEGV", shown);
    expect_clean(r.out);
    expect_clean(r.err);
    suite_expect_in(r.out, line);
    r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder);
    ck_assert_int_eq(r.status, 0);
    expect_clean(r.err);
    suite_expect_in(r.err, line);
}
END_TEST

START_TEST(c17_a_folder_of_any_name_is_bearable)
{
    char *odd = tempdir_at(folder, "odd\n\033[1m\xff");
    ck_assert_int_eq(mkdir(odd, 0755), 0);
    char *outer = folder;
    folder = odd;
    process_copy_built("tests/bad_plugins/good.so", folder, "good.so");
    folder = outer;
    process_result r = TENON(NULL, "kernels", "--only-plugins", odd, "--json", "-v");
    json_t *list = printed_text(r.out);
    ck_assert_msg(list && find(list, "test_rms_norm"), "%s%s", r.out, r.err);
    ck_assert_int_eq(chmod(odd, 0777), 0);
    r = TENON(NULL, "kernels", "--only-plugins", odd);
    ck_assert_int_eq(r.status, 3);
    expect_clean(r.err);
    suite_expect_in(r.err, "odd\\x0a\\x1b[1m\\xff: writable by everyone");
}
END_TEST

/* The good plugin with another id of the same length, which the trial reads. */
static const char *const ids[][2] = {
    {"test\nrms norm", "kernel 0: its id must be one line of at most 255 bytes; it is 'test\\x0arms norm'"},
    {"test\033rms_norm", "it is 'test\\x1brms_norm'"},
    {"test rms norm",
     "'_', '-' or '.', not begin with '-', and not be 'auto', 'none', 'true' or 'false'; it is 'test rms norm'"},
    {"test_rms\xfcnorm", "'none', 'true' or 'false'; it is 'test_rms\\xfcnorm'"},
    {"test,rms,norm", "it is 'test,rms,norm'"},
    {"", "kernel 0 has an empty id; give it one"},
};

START_TEST(c17_ids_that_nobody_could_type_are_refused)
{
    static const char good[] = "test_rms_norm";
    size_t size;
    char *content = read_built("good", &size), *at = memmem(content, size, good, sizeof good);
    ck_assert_ptr_nonnull(at);
    memset(at, 0, sizeof good);
    memcpy(at, ids[_i][0], strlen(ids[_i][0]));
    char *path = tempdir_at(folder, "odd.so");
    tempdir_write(path, content, size);
    process_copy_built("tests/bad_plugins/not_available.so", folder, "z.so");
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder, "--json");
    expect_clean(r.err);
    ck_assert_int_eq(r.status, 3);
    suite_expect_in(r.err, ids[_i][1]);
    json_t *list = printed_text(r.out);
    ck_assert_uint_eq(json_array_size(list), 2);
    free(content);
}
END_TEST

/* A summary in another encoding harms nobody. */
START_TEST(c17_other_texts_are_escaped)
{
    static const char good[] = "RMS norm";
    size_t size;
    char *content = read_built("good", &size), *at = memmem(content, size, good, sizeof good);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "f\xfcr alle", sizeof good);
    char *path = tempdir_at(folder, "odd.so");
    tempdir_write(path, content, size);
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder, "--json");
    json_t *list = printed_json(&r, 0);
    ck_assert_str_eq(json_string_value(json_object_get(find(list, "test_rms_norm"), "summary")), "f\\xfcr alle");
    free(content);
}
END_TEST

START_TEST(c17_what_is_for_another_machine_is_listed_as_such)
{
    size_t size;
    char *content = read_built("good", &size), *path = tempdir_at(folder, "elsewhere.so");
    ((Elf64_Ehdr *)(void *)content)->e_machine =
        ((Elf64_Ehdr *)(void *)content)->e_machine == EM_S390 ? EM_PPC64 : EM_S390;
    tempdir_write(path, content, size);
    process_copy_built("tests/bad_plugins/good.so", folder, "good.so");
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out, "test_rms_norm  cpu     1.0.0    yes ");
    suite_expect_in(r.out, "/elsewhere.so: skipped: built for another machine: expected ");
    r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder);
    ck_assert_int_eq(r.status, 0);
    free(content);
}
END_TEST

START_TEST(c17_what_is_for_another_device_is_listed_as_such)
{
    size_t size;
    char *content = read_built("good", &size), *path = tempdir_at(folder, "elsewhere.so");
    char *at = memmem(content, size, "\0cpu\0", 5);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "\0npu\0", 5);
    tempdir_write(path, content, size);
    process_copy_built("tests/bad_plugins/not_available.so", folder, "z.so");
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder, "--json");
    json_t *list = printed_json(&r, 0);
    const json_t *kernel = find(list, "test_rms_norm");
    ck_assert_uint_eq(json_array_size(list), 3);
    ck_assert_str_eq(json_string_value(json_object_get(kernel, "device")), "npu");
    ck_assert(json_is_false(json_object_get(kernel, "available")));
    ck_assert_str_eq(json_string_value(json_object_get(kernel, "reason")), "for device 'npu', not for 'cpu'");
    free(content);
}
END_TEST

START_TEST(c17_text_is_escaped_in_whole_characters)
{
    char out[8];
    ck_assert_uint_eq(text_escape(out, sizeof out, "abc\ndef"), 7);
    ck_assert_str_eq(out, "abc\\x0a");
    ck_assert_uint_eq(text_escape(out, sizeof out, "abcd\nef"), 4);
    ck_assert_str_eq(out, "abcd");
    ck_assert_uint_eq(text_escape(out, sizeof out, "abcdef\xc3\xbc"), 6);
    ck_assert_str_eq(out, "abcdef");
    ck_assert_uint_eq(text_escape(out, sizeof out, "\xe2\x82\xac\xe2\x82\xac"), 6);
    ck_assert_uint_eq(text_escape(out, 1, "a"), 0);
    ck_assert_str_eq(out, "");
}
END_TEST

/* ---- B14 -------------------------------------------------------------------------------------------------------- */

/* Says on standard error which process it was opened by, if any: the trial's is not connected to it. */
START_TEST(b14_without_kernels_no_plugin_is_opened)
{
    process_copy_built("tests/bad_plugins/conduct.so", folder, "conduct.so");
    setenv("BAD_PLUGIN", "prints", 1);
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    suite_expect_in(r.out, "from the constructor\n"); /* opened in the program itself      */
    static const char *const commands[][6] = {{"inspect", MODEL},
                                              {"run", MODEL, "And", "-n1"},
                                              {"run", MODEL, "And", "-n1", "--device=cpu"},
                                              {"bench", MODEL, "--prompt=4", "--decode=1", "--repeat=1"}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *const *c = commands[i];
        r = TENON(NULL, c[0], c[1], "--kernels=none", "--only-plugins", folder, c[2], c[3], c[4]);
        ck_assert_msg(r.status == 0, "%s", r.err);
        ck_assert_ptr_null(strstr(r.out, "from the constructor"));
        ck_assert_ptr_null(strstr(r.err, "from the constructor"));
    }
    r = TENON(NULL, "bench", MODEL, "--kernels=none", "--against=auto", "--only-plugins", folder, "--prompt=4",
              "--decode=1", "--repeat=1");
    suite_expect_in(r.out, "from the constructor\n"); /* the other side wants it           */
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("names from outside", 240);
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_loop_test(tc, c17_names_of_files_are_escaped, 0, sizeof names / sizeof names[0]);
    tcase_add_loop_test(tc, c17_names_of_refused_files_are_escaped, 0, sizeof names / sizeof names[0]);
    suite_add(tc, c17_a_folder_of_any_name_is_bearable);
    tcase_add_loop_test(tc, c17_ids_that_nobody_could_type_are_refused, 0, sizeof ids / sizeof ids[0]);
    suite_add(tc, c17_other_texts_are_escaped, c17_what_is_for_another_machine_is_listed_as_such,
              c17_what_is_for_another_device_is_listed_as_such, c17_text_is_escaped_in_whole_characters,
              b14_without_kernels_no_plugin_is_opened);
    return process_main();
}
