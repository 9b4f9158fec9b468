/* Folders, files and pins. */
#include "plugin/kernels_config.h"
#include "plugin/registry.h"
#include "base/sha256.h"
#include "plugin_box.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Scans one folder and expects that it is refused. */
static void expect_refused(const char *folder, const char *why)
{
    tn_config *config = tn_config_new();
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_config_set_plugins(config, folder, NULL), TN_OK);
    ck_assert_int_eq(tn_scan(config, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, folder);
    suite_expect_in(err.message, why);
    ck_assert_uint_eq(tn_plugin_count(), 0);
    tn_config_free(config);
}

/* ---- folders ------------------------------------------------------------------------------------------------- */

START_TEST(a_folder_that_others_can_write_to_is_refused)
{
    plugin_box_add("good", "good.so");
    ck_assert_int_eq(chmod(plugin_box_folder(), 0757), 0);
    expect_refused(plugin_box_folder(), "writable by everyone; run chmod go-w on it");
    ck_assert_int_eq(chmod(plugin_box_folder(), 0775), 0);
    expect_refused(plugin_box_folder(), "writable by its group; run chmod go-w on it");
}
END_TEST

START_TEST(a_folder_of_another_user_is_refused)
{
    if (geteuid() != 0) {
        printf("SKIPPED: only root can give files away\n");
        return;
    }
    plugin_box_add("good", "good.so");
    ck_assert_int_eq(chown(plugin_box_folder(), 12345, (gid_t)-1), 0);
    expect_refused(plugin_box_folder(), "owned by user 12345, not by root or you");
}
END_TEST

START_TEST(a_folder_that_is_missing_or_none_is_refused)
{
    char *missing = tempdir_at(plugin_box_root(), "missing"), *file = tempdir_at(plugin_box_root(), "file");
    tempdir_write(file, "", 0);
    expect_refused(missing, "plugin folder cannot be opened: No such file or directory");
    expect_refused(file, "not a folder; give the plugins' folder");
}
END_TEST

START_TEST(one_refused_folder_leaves_the_others)
{
    plugin_box_add("good", "good.so");
    char *missing = tempdir_at(plugin_box_root(), "missing");
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_plugins(config, missing, NULL), TN_OK);
    ck_assert_int_eq(tn_config_add_plugins(config, plugin_box_folder(), NULL), TN_OK);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_scan(config, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, missing);
    ck_assert_int_eq(plugin_box_of("good.so").state, TN_PLUGIN_LOADED);
    tn_config_free(config);
}
END_TEST

START_TEST(a_relative_folder_counts_from_the_current_one)
{
    plugin_box_add("good", "good.so");
    ck_assert_int_eq(chdir(plugin_box_root()), 0);
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_plugins(config, "plugins", NULL), TN_OK);
    ck_assert_str_eq(kernels_config_folder(config, 0), plugin_box_folder());
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
    ck_assert_int_eq(plugin_box_of("good.so").state, TN_PLUGIN_LOADED);
    tn_config_free(config);
}
END_TEST

START_TEST(files_are_taken_in_order_and_by_name)
{
    static const char *const names[] = {"b.so", "a.so", "good.so.bak", ".hidden.so", "c.txt", "so"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        plugin_box_add("no_note", names[i]);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_uint_eq(tn_plugin_count(), 2);
    tn_plugin_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_plugin_get(0, &info), TN_OK);
    ck_assert_str_eq(strrchr(info.file, '/'), "/a.so");
    ck_assert_int_eq(tn_plugin_get(1, &info), TN_OK);
    ck_assert_str_eq(strrchr(info.file, '/'), "/b.so");
    ck_assert_int_eq(tn_plugin_get(2, &info), TN_E_USAGE);
}
END_TEST

START_TEST(links_out_of_the_folder_are_refused)
{
    char *out = tempdir_at(plugin_box_folder(), "out.so"), *lost = tempdir_at(plugin_box_folder(), "lost.so");
    char *dir = tempdir_at(plugin_box_folder(), "folder.so"), *fifo = tempdir_at(plugin_box_folder(), "fifo.so");
    ck_assert_int_eq(symlink(plugin_box_built("good"), out), 0);
    ck_assert_int_eq(symlink("nowhere.so", lost), 0);
    ck_assert_int_eq(mkdir(dir, 0755), 0);
    ck_assert_int_eq(mkfifo(fifo, 0644), 0);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("out.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    suite_expect_in(info.reason, "a link out of its folder, to /");
    info = plugin_box_of("lost.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    ck_assert_str_eq(info.reason, "a link that leads nowhere: No such file or directory");
    info = plugin_box_of("folder.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_SKIPPED);
    ck_assert_str_eq(info.reason, "not a regular file; not a plugin");
    ck_assert_str_eq(plugin_box_of("fifo.so").reason, "not a regular file; not a plugin");
}
END_TEST

START_TEST(a_file_that_others_can_write_to_is_refused)
{
    plugin_box_add("good", "good.so");
    char *path = tempdir_at(plugin_box_folder(), "good.so");
    ck_assert_int_eq(chmod(path, 0646), 0);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("good.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    ck_assert_str_eq(info.reason, "writable by everyone; run chmod go-w on it");
    /* Put right, it is taken by the next scan. */
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_int_eq(plugin_box_of("good.so").state, TN_PLUGIN_LOADED);
    ck_assert_uint_eq(tn_plugin_count(), 1);
}
END_TEST

START_TEST(a_second_scan_leaves_loaded_files_alone)
{
    plugin_box_add("good", "good.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info before = plugin_box_of("good.so");
    const registry_kernel *kernel = registry_find("cpu", "test_rms_norm");
    plugin_box_add("no_note", "late.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info after = plugin_box_of("good.so");
    ck_assert_ptr_eq(before.file, after.file);
    ck_assert_str_eq(after.reason, "");
    ck_assert_ptr_eq(registry_find("cpu", "test_rms_norm"), kernel);
    ck_assert_int_eq(plugin_box_of("late.so").state, TN_PLUGIN_SKIPPED);
}
END_TEST

static void *scan_repeatedly(void *unused)
{
    for (int i = 0; i < 5; i++) {
        tn_kernel_info **list;
        size_t count;
        if (plugin_box_scan(NULL, NULL) != TN_OK || tn_kernels_available("cpu", &list, &count, NULL) != TN_OK)
            return (void *)"failed";
        free(list);
    }
    return unused;
}

START_TEST(threads_may_scan_at_once)
{
    pthread_t threads[4];
    plugin_box_add("good", "good.so");
    plugin_box_add("not_available", "not_available.so");
    plugin_box_add("crash", "crash.so");
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, scan_repeatedly, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_null(result);
    }
    ck_assert_uint_eq(tn_plugin_count(), 3);
    ck_assert_uint_eq(registry_count("cpu"), 3);
    ck_assert_int_eq(plugin_box_of("good.so").state, TN_PLUGIN_LOADED);
    ck_assert_int_eq(plugin_box_of("crash.so").state, TN_PLUGIN_QUARANTINED);
}
END_TEST

/* ---- pins ------------------------------------------------------------------------------------------------------- */

static tn_config *config_with_pins(const char *pins)
{
    char *path = tempdir_at(plugin_box_root(), "kernels.json"), text[1024];
    int n = snprintf(text, sizeof text, "{\"plugins\": [\"plugins\"], \"pins\": {%s}}", pins);
    tempdir_write(path, text, (size_t)n);
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_load(path, &err);
    ck_assert_msg(config != NULL, "%s: %s", err.where, err.message);
    return config;
}

static void sha_of(const char *name, char hex[65])
{
    char *path = tempdir_at(plugin_box_folder(), name);
    size_t size;
    void *content = tempdir_read(path, &size);
    ck_assert(sha256_hex(content, size, hex));
    free(content);
}

START_TEST(a_pinned_plugin_loads_and_others_do_not)
{
    char hex[65], pins[256];
    plugin_box_add("good", "good.so");
    plugin_box_add("wrong_numbers", "other.so");
    sha_of("good.so", hex);
    snprintf(pins, sizeof pins, "\"good.so\": \"sha256:%s\"", hex);
    tn_config *config = config_with_pins(pins);
    ck_assert_int_eq(plugin_box_scan(config, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("good.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert_str_eq(info.sha256, hex);
    info = plugin_box_of("other.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    const char *want = "not pinned while other files are; to allow it add \"other.so\": \"sha256:";
    ck_assert_msg(strncmp(info.reason, want, strlen(want)) == 0, "%s", info.reason);
    tn_config_free(config);
}
END_TEST

START_TEST(a_pin_that_does_not_match_refuses_before_any_code_runs)
{
    char pins[256], want[512], hex[65];
    plugin_box_add("crash", "crash.so");
    sha_of("crash.so", hex);
    snprintf(pins, sizeof pins, "\"crash.so\": \"sha256:%064d\"", 7);
    tn_config *config = config_with_pins(pins);
    ck_assert_int_eq(plugin_box_scan(config, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("crash.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    snprintf(want, sizeof want, "pin mismatch: expected sha256:%064d, got sha256:%s; restore the file or its pin", 7,
             hex);
    ck_assert_str_eq(info.reason, want);
    tn_config_free(config);
}
END_TEST

START_TEST(sha256_is_that_of_the_standard)
{
    char hex[65];
    ck_assert(sha256_hex("abc", 3, hex));
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    ck_assert(sha256_hex("", 0, hex));
    ck_assert_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugin scan", 240);
    tcase_add_checked_fixture(tc, plugin_box_open, NULL);
    suite_add(tc, a_folder_that_others_can_write_to_is_refused, a_folder_of_another_user_is_refused,
              a_folder_that_is_missing_or_none_is_refused, one_refused_folder_leaves_the_others,
              a_relative_folder_counts_from_the_current_one, files_are_taken_in_order_and_by_name,
              links_out_of_the_folder_are_refused, a_file_that_others_can_write_to_is_refused,
              a_second_scan_leaves_loaded_files_alone, threads_may_scan_at_once,
              a_pinned_plugin_loads_and_others_do_not, a_pin_that_does_not_match_refuses_before_any_code_runs,
              sha256_is_that_of_the_standard);
    return suite_run();
}
