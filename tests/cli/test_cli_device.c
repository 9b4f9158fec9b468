/* A plugin that brings a device: nothing changes by its being there, and who asks for it is told what is wrong. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const plain[] = {"run", "--temperature=0", "models/demo", "And it came", "-n",
                                    "8",   "--kernels=none",  "-q",          NULL};

/* A folder with noop_device.so in it: owned. */
static char *noop_folder(void)
{
    char from[4200];
    char *folder = tempdir_new(), *to = tempdir_at(folder, "noop_device.so");
    snprintf(from, sizeof from, "%s/tests/bad_plugins/noop_device.so", process_build());
    char command[9000];
    snprintf(command, sizeof command, "cp '%s' '%s' && chmod 755 '%s' '%s'", from, to, to, folder);
    ck_assert_int_eq(system(command), 0);
    return folder;
}

START_TEST(a_device_that_nobody_asked_for_changes_nothing)
{
    char *folder = noop_folder();
    process_result want = process_run(NULL, plain);
    ck_assert_int_eq(want.status, 0);
    const char *const ways[] = {"--kernels=none", "--kernels=auto", "--device=auto", "--device=cpu", "--device=cpu:0"};
    process_result got = TENON(NULL, "run", "--temperature=0", "models/demo", "And it came", "-n", "8",
                               "--only-plugins", folder, ways[_i]);
    ck_assert_str_eq(got.out, want.out);
    ck_assert_ptr_null(strstr(got.err, "device"));
    ck_assert_int_eq(got.status, 0);
}
END_TEST

/* Each ends before anything is computed, having said whose device that is. */
START_TEST(one_that_is_asked_for_is_announced_and_checked)
{
    char *folder = noop_folder();
    const char *const commands[][9] = {
        {"run", "models/demo", "x", "--device", "noop", "--only-plugins", folder},
        {"inspect", "models/demo", "--device", "noop", "--only-plugins", folder},
        {"verify", "models/demo", "--device", "noop", "--only-plugins", folder},
        {"bench", "models/demo", "--device", "noop", "--only-plugins", folder, "--kernels=none"},
        {"perplexity", "models/demo", "models/demo/heldout.txt", "--device", "noop", "--only-plugins", folder}};
    process_result r = process_run(NULL, commands[_i]);
    ck_assert_int_eq(r.status, 3);
    ck_assert_str_eq(r.out, "");
    ck_assert_msg(strstr(r.err, "device: noop (noop_device.so 1.0.0), asked for by --device\n") == r.err, "%s", r.err);
    suite_expect_in(r.err, "\ntenon: model.embed_tokens: device noop performs EMBEDDING wrong (1 token)");
}
END_TEST

START_TEST(one_that_asks_for_too_much_is_to_blame)
{
    char *folder = noop_folder();
    setenv("BAD_PLUGIN", "scratch", 1);
    process_result r = TENON(NULL, "run", "models/demo", "x", "--device", "noop", "--only-plugins", folder);
    unsetenv("BAD_PLUGIN");
    ck_assert_int_eq(r.status, 3);
    suite_expect_in(r.err, "EMBEDDING asks for 18446744073709551615 bytes of scratch; at most ");
}
END_TEST

START_TEST(a_configuration_that_asks_for_it_is_named)
{
    char *folder = noop_folder(), *config = tempdir_at(folder, "kernels.json"), announced[4200];
    tempdir_write(config, "{\"device\": \"noop\", \"plugins\": [\".\"]}", 36);
    process_result r = TENON(NULL, "run", "--temperature=0", "models/demo", "x", "--config", config);
    snprintf(announced, sizeof announced, "device: noop (noop_device.so 1.0.0), asked for by %s\n", config);
    ck_assert_msg(strstr(r.err, announced) == r.err, "%s", r.err);
    ck_assert_int_eq(r.status, 3);
    process_expect_output(TENON(NULL, "run", "--temperature=0", "models/demo", "And it", "-n", "1", "-q", "--config",
                                config, "--device=cpu"),
                          " came\n");
}
END_TEST

START_TEST(kernels_lists_it)
{
    char *folder = noop_folder(), line[4200];
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    ck_assert_int_eq(r.status, 0);
    snprintf(line, sizeof line, "\ndevice: noop, does nothing, brought by %s/noop_device.so 1.0.0; ", folder);
    ck_assert_msg(strstr(r.err, "no kernels for the CPU; ") == r.err && strstr(r.err, line), "%s", r.err);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli: devices", 120);
    tcase_add_loop_test(tc, a_device_that_nobody_asked_for_changes_nothing, 0, 5);
    tcase_add_loop_test(tc, one_that_is_asked_for_is_announced_and_checked, 0, 5);
    suite_add(tc, one_that_asks_for_too_much_is_to_blame, a_configuration_that_asks_for_it_is_named, kernels_lists_it);
    return process_main();
}
