/* --shadow and tenon check --replay: a kernel that is right in its check and wrong on live data is taken off, the text
 * is eager's, and its call is made again from the file (tests/bad_kernels/bad_guest.c). */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS_37                                                                                                      \
    "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37"
#define FILE_NAME "tenon-shadow-npu_bad_guest.safetensors"

static char top[4096], *folder;

/* The file goes to the current folder. */
static void enter(void)
{
    ck_assert_ptr_nonnull(getcwd(top, sizeof top));
    process_build(); /* is found from the top of the tree                                           */
    folder = tempdir_new();
    setenv("XDG_CACHE_HOME", folder, 1); /* what was wrong would be refused next time                        */
}

static void leave(void)
{
    ck_assert_int_eq(chdir(top), 0);
}

static process_result run_with(const char *fault, const char *kernels, const char *shadow)
{
    static char plugins[4200], model[4200];
    setenv("BAD_GUEST", fault, 1);
    snprintf(plugins, sizeof plugins, "%s/tests/bad_kernels", process_build());
    snprintf(model, sizeof model, "%s/models/demo", top);
    ck_assert_int_eq(chdir(folder), 0);
    process_result r =
        TENON(NULL, "run", "--temperature=0", model, "--tokens", TOKENS_37, "-n", "32", "--ignore-eos", "--dtype",
              "f32", "--threads", "2", "--only-plugins", plugins, "--kernels", kernels, "--shadow", shadow);
    ck_assert_int_eq(chdir(top), 0);
    return r;
}

static process_result replay(const char *fault, bool named)
{
    char *file = tempdir_at(folder, FILE_NAME), plugins[4200], plugin[4300];
    setenv("BAD_GUEST", fault, 1);
    snprintf(plugins, sizeof plugins, "%s/tests/bad_kernels", process_build());
    snprintf(plugin, sizeof plugin, "%s/bad_guest.so", plugins);
    process_result r = named ? TENON(NULL, "check", plugin, "--replay", file)
                             : TENON(NULL, "check", "--replay", file, "--only-plugins", plugins);
    return r;
}

static const char *const faults[] = {"wrong with 37 tokens", "wrong late"};

START_TEST(a_wrong_kernel_is_found)
{
    process_result eager = run_with("", "none", "1"), r = run_with(faults[_i], "npu_bad_guest", "1");
    ck_assert_msg(eager.status == 0 && r.status == 0, "%s%s", eager.err, r.err);
    ck_assert_str_eq(r.out, eager.out);
    const char *line = strstr(r.err, "tenon: warning: npu_bad_guest is wrong at model.layers.");
    ck_assert_msg(line != NULL, "%s", r.err);
    ck_assert_ptr_null(process_warning(line + 1));
    suite_expect_in(line, ", eager has ");
    suite_expect_in(line, "; the call is in " FILE_NAME ": tenon check /");
    suite_expect_in(line, "/bad_guest.so --replay " FILE_NAME "\n");
}
END_TEST

START_TEST(its_call_is_made_again)
{
    process_result r = run_with("wrong with 37 tokens", "npu_bad_guest", "1");
    r = replay("wrong with 37 tokens", _i);
    ck_assert_msg(r.status == 5, "%d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, "npu_bad_guest RMS_NORM at model.layers.");
    suite_expect_in(r.out, "\n  then: ");
    suite_expect_in(r.out, ": WRONG\n        wrong on ");
    suite_expect_in(r.out, " threads in 20 of 20 calls, wrong on one in 3 of 3\n");
    suite_expect_in(r.err, "is still wrong at model.layers.");
    r = replay("races", _i);
    ck_assert_msg(r.status == 5, "%d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, " threads in 8 of 20 calls, right on one in 3: its threads race\n");
    suite_expect_in(r.err, " threads in 8 of 20 calls, right on one in 3: its threads race");
    r = replay("", _i);
    ck_assert_msg(r.status == 0, "%d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, ": right\n        right on ");
    suite_expect_in(r.out, " threads in 20 calls, right on one in 3\n");
    /* The path in the file is data. */
    char *file = tempdir_at(folder, FILE_NAME);
    process_expect_error(TENON(NULL, "check", "--replay", file), 3, "npu_bad_guest", "it came from /",
                         "bad_guest.so, which can be given beside the call", NULL);
}
END_TEST

/* What the file says is told, and neither moves the cursor nor ends in the wrong error. */
START_TEST(its_texts_are_written_out)
{
    size_t size;
    process_result r = run_with("wrong with 37 tokens", "npu_bad_guest", "1");
    char *file = tempdir_at(folder, FILE_NAME), *data = tempdir_read(file, &size);
    char *detail = memmem(data, size, "row ", 4);
    ck_assert_ptr_nonnull(detail);
    memcpy(detail, "\x1b[2J\xff", 5);
    tempdir_write(file, data, size);
    r = replay("", true);
    ck_assert_msg(r.status == 0, "%d: %s%s", r.status, r.out, r.err);
    ck_assert_ptr_null(strchr(r.out, '\x1b'));
    suite_expect_in(r.out, "output 0, \\x1b[2J\\xff");
    char plugin[4300];
    snprintf(plugin, sizeof plugin, "%s/tests/bad_kernels/bad_guest.so", process_build());
    r = TENON(NULL, "check", plugin, "--replay", file, "--json");
    ck_assert_msg(r.status == 0, "%d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, "\"then\": \"output 0, \\\\x1b[2J\\\\xff");
    free(data);
}
END_TEST

/* Folders, pipes and empty files are none. */
START_TEST(only_files_are_read)
{
    char *pipe = tempdir_at(folder, "pipe"), *empty = tempdir_at(folder, "empty");
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    tempdir_write(empty, "", 0);
    process_expect_error(TENON(NULL, "check", "--replay", folder), 4, "is not a regular file", NULL);
    process_expect_error(TENON(NULL, "check", "--replay", pipe), 4, "is not a regular file", NULL);
    process_expect_error(TENON(NULL, "check", "--replay", empty), 4, "is empty", NULL);
}
END_TEST

/* A name that is no UTF-8 is that, and no lack of memory. */
START_TEST(names_that_json_cannot_hold)
{
    char *model = tempdir_at(folder, "a\xff"), *demo = realpath("models/demo", NULL);
    ck_assert_int_eq(symlink(demo, model), 0);
    process_expect_error(TENON(NULL, "run", model, "--tokens", "1", "-n", "1", "--json", "--kernels", "none", "-q"), 4,
                         "JSON", "a name or a text is not UTF-8", NULL);
    free(demo);
}
END_TEST

START_TEST(a_right_one_stays)
{
    process_result r = run_with("", "npu_bad_guest", _i ? "0.01" : "1");
    ck_assert_int_eq(r.status, 0);
    ck_assert_ptr_null(process_warning(r.err));
    char *file = tempdir_at(folder, FILE_NAME);
    ck_assert(!tempdir_exists(file));
}
END_TEST

/* The kernels of this project on live data, every call of them. */
START_TEST(our_own_stay)
{
    static const char *const models[] = {"models/demo", "tests/data/models/qwen3_moe_pad", "tests/data/models/llama",
                                         "tests/data/models/mixtral", "tests/data/models/gemma2"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    for (int d = 0; d < 3; d++) {
        process_result r =
            TENON(NULL, "run", "--temperature=0", models[_i], "--tokens", "1,2,3,4,5,6,7,8,9,10,11,12", "-n", "24",
                  "--ignore-eos", "--dtype", dtypes[d], "--kernels", "auto", "--shadow", "1");
        ck_assert_msg(r.status == 0, "%s", r.err);
        ck_assert_msg(!strstr(r.err, "is wrong at"), "%s", r.err);
    }
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    process_expect_error(TENON(NULL, "run", "models/demo", "--tokens", "1", "--shadow", "2"), 2, "--shadow",
                         "out of range", NULL);
    process_expect_error(TENON(NULL, "check", "--replay", "models/demo/model.safetensors"), 4, "model.safetensors",
                         "is this a file that --shadow wrote?", NULL);
    process_expect_error(TENON(NULL, "check"), 2, "no plugin given", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("tenon --shadow", 600);
    tcase_add_checked_fixture(tc, enter, leave);
    tcase_add_loop_test(tc, a_wrong_kernel_is_found, 0, 2);
    tcase_add_loop_test(tc, its_call_is_made_again, 0, 2);
    suite_add(tc, its_texts_are_written_out, only_files_are_read, names_that_json_cannot_hold);
    tcase_add_loop_test(tc, a_right_one_stays, 0, 2);
    tcase_add_loop_test(tc, our_own_stay, 0, 5);
    suite_add(tc, what_cannot_be_is_refused);
    return process_main();
}
