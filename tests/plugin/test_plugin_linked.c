/* Plugins that come without a scan: linked into the program, or opened by the program itself. */
#include "empty_device.h"
#include "plugin/registry.h"
#include "plugin_box.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_impl impls[] = {{.size = sizeof(tn_impl),
                                 .op = TN_OP_LINEAR,
                                 .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32)}},
                                 .forward = empty_forward}};
/* One id for two devices: two kernels. */
static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "linked_linear",
                                     .version = "1.0.0",
                                     .device = "npu",
                                     .impls = impls,
                                     .impl_count = 1},
                                    {.size = sizeof(tn_kernel),
                                     .id = "linked_linear",
                                     .version = "1.0.0",
                                     .device = "cpu",
                                     .impls = impls,
                                     .impl_count = 1}};

/* Registers before main. */
TN_PLUGIN("linked", "1.0.0", .kernels = kernels, .kernel_count = 2);

/* The entry of the plugin whose name is name. */
static bool find(const char *name, tn_plugin_info *info)
{
    info->size = sizeof *info;
    for (size_t i = 0; tn_plugin_get(i, info) == TN_OK; i++)
        if (strcmp(info->name, name) == 0)
            return true;
    return false;
}

START_TEST(a_linked_plugin_is_taken_by_the_next_scan)
{
    tn_plugin_info info = {.size = sizeof info};
    ck_assert_ptr_null(registry_find("cpu", "linked_linear"));
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    ck_assert_uint_eq(tn_plugin_count(), 1);
    ck_assert(find("linked", &info));
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    suite_expect_in(info.file, "test_plugin_linked (linked plugin 1)");
    ck_assert_ptr_nonnull(registry_find("cpu", "linked_linear"));
}
END_TEST

START_TEST(one_that_the_program_opened_is_taken_and_stays)
{
    plugin_box_add("good", "good.so");
    char *path = tempdir_at(plugin_box_folder(), "good.so");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(handle != NULL, "%s", dlerror());
    dlclose(handle);
    if (_i == 0) { /* found as a file */
        ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
        tn_plugin_info info = {.size = sizeof info};
        ck_assert(plugin_box_info("good.so", &info));
        ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    } else { /* found as part of the program, and as a file later */
        ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
        ck_assert_ptr_nonnull(registry_find("cpu", "test_rms_norm"));
        ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    }
    ck_assert_uint_eq(tn_plugin_count(), 2);
    registry_kernel *k = registry_find("cpu", "test_rms_norm");
    ck_assert_ptr_nonnull(k);
    ck_assert_str_eq(k->kernel.summary, "RMS norm"); /* its memory is still there */
}
END_TEST

START_TEST(a_bad_descriptor_of_the_program_is_refused)
{
    static const tn_plugin bad = {.size = sizeof bad, .abi_major = TN_ABI_MAJOR + 1, .name = "bad", .version = "1"};
    tn_plugin *heap = calloc(1, sizeof *heap);
    tn_register(&bad);
    tn_register(NULL);
    tn_register(heap); /* lies in no object that could be kept loaded: ignored */
    free(heap);
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    ck_assert_uint_eq(tn_plugin_count(), 2);
    tn_plugin_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_plugin_get(1, &info), TN_OK);
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    ck_assert_str_eq(info.reason, "plugin ABI: expected major 2, got 3; rebuild it");
}
END_TEST

START_TEST(more_than_anyone_links_is_bearable)
{
    static tn_plugin many[100];
    for (int i = 0; i < 100; i++)
        tn_register(&many[i]);
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    ck_assert_uint_eq(registry_count("cpu"), 1);
}
END_TEST

START_TEST(devices_are_found_by_name)
{
    tn_error err = TN_ERROR_INIT;
    int32_t ordinal = -1;
    const tn_device *cpu = registry_device("cpu", &ordinal, &err);
    ck_assert_ptr_nonnull(cpu);
    ck_assert_str_eq(cpu->name, "cpu");
    ck_assert_int_eq(ordinal, 0);
    ck_assert_ptr_eq(registry_device("auto", &ordinal, &err), cpu);
    ck_assert_ptr_eq(registry_device(NULL, &ordinal, &err), cpu);
    ck_assert_ptr_eq(registry_device("cpu:3", &ordinal, &err), cpu);
    ck_assert_int_eq(ordinal, 3);
    ck_assert_ptr_null(registry_device("npu", &ordinal, &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_str_eq(err.message, "'npu' is not here: no plugin brings this device; there are: cpu");
    tn_error_clear(&err);
    ck_assert_ptr_null(registry_device("npu:x", &ordinal, &err));
    ck_assert_str_eq(err.message, "'npu:x' is not a device; give NAME or NAME:ORDINAL, such as cpu:0");
}
END_TEST

START_TEST(kernels_are_listed_by_device)
{
    tn_kernel_info **list;
    size_t count;
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    ck_assert_int_eq(tn_kernels_available("auto", &list, &count, &err), TN_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(list[0]->id, "linked_linear");
    ck_assert(list[0]->available);
    free(list);
    ck_assert_int_eq(tn_kernels_available("npu", &list, &count, &err), TN_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(list[0]->device, "npu");
    ck_assert(!list[0]->available);
    ck_assert_str_eq(list[0]->reason, "'npu' is not here: no plugin brings this device; there are: cpu");
    free(list);
    ck_assert_int_eq(tn_kernels_available("tpu", &list, &count, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.message, "'tpu' is not here: no plugin brings this device; there are: cpu");
    ck_assert_ptr_null(list);
    ck_assert_str_eq(registry_nearest("cpu", "linked_liner"), "linked_linear");
    ck_assert_str_eq(registry_nearest("npu", "liked_linear"), "linked_linear");
    ck_assert_ptr_null(registry_nearest("cpu", "zzz"));
    ck_assert_ptr_null(registry_at("cpu", 1));
}
END_TEST

/* ---- a device from a plugin ---------------------------------------------------------------------------------- */

static bool card_is_there;
static tn_status dev_available(tn_error *err)
{
    return card_is_there ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "no card is plugged in");
}

static const tn_device npu = {.size = sizeof npu,
                              .name = "npu",
                              .available = dev_available,
                              .alloc = empty_alloc,
                              .free = empty_free,
                              .upload = empty_copy,
                              .download = empty_copy,
                              .eager = empty_forward};
static const tn_plugin npu_plugin = {
    .size = sizeof npu_plugin, .abi_major = TN_ABI_MAJOR, .name = "cards", .version = "1", .device = &npu};

START_TEST(a_device_of_a_plugin_is_used_when_it_is_there)
{
    tn_error err = TN_ERROR_INIT;
    tn_kernel_info **list;
    size_t count;
    card_is_there = _i == 0;
    tn_register(&npu_plugin);
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    int32_t ordinal;
    const tn_device *got = registry_device("npu:2", &ordinal, &err);
    ck_assert_int_eq(ordinal, 2);
    const char *reason = "'npu' is not available: no card is plugged in; use cpu";
    ck_assert(card_is_there ? got != NULL : got == NULL);
    ck_assert_str_eq(err.message, card_is_there ? "" : reason);
    ck_assert_str_eq(registry_device("auto", &ordinal, NULL)->name, "cpu"); /* only where it is asked for */
    ck_assert_ptr_null(registry_device("tpu", &ordinal, &(tn_error){0}));
    ck_assert_int_eq(tn_kernels_available("npu", &list, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(list[0]->available, card_is_there);
    ck_assert_str_eq(list[0]->reason, card_is_there ? "" : reason);
    free(list);
}
END_TEST

START_TEST(the_name_of_the_built_in_device_is_taken)
{
    static tn_device cpu;
    static const tn_plugin second = {
        .size = sizeof second, .abi_major = TN_ABI_MAJOR, .name = "another cpu", .version = "1", .device = &cpu};
    cpu = npu;
    cpu.name = "cpu";
    tn_register(&second);
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = {.size = sizeof info};
    ck_assert(find("another cpu", &info));
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    ck_assert_str_eq(info.reason, "device 'cpu' is built in; give the plugin's another name");
}
END_TEST

START_TEST(a_second_device_of_a_name_is_refused)
{
    static const tn_plugin second = {
        .size = sizeof second, .abi_major = TN_ABI_MAJOR, .name = "other cards", .version = "1", .device = &npu};
    tn_register(&npu_plugin);
    tn_register(&second);
    ck_assert_int_eq(tn_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = {.size = sizeof info};
    ck_assert(find("other cards", &info));
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    ck_assert_msg(strncmp(info.reason, "device 'npu' is already registered by /", 39) == 0, "%s", info.reason);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("linked plugins", 120);
    tcase_add_checked_fixture(tc, plugin_box_open, NULL);
    suite_add(tc, a_linked_plugin_is_taken_by_the_next_scan);
    tcase_add_loop_test(tc, one_that_the_program_opened_is_taken_and_stays, 0, 2);
    suite_add(tc, a_bad_descriptor_of_the_program_is_refused, more_than_anyone_links_is_bearable,
              devices_are_found_by_name, kernels_are_listed_by_device);
    tcase_add_loop_test(tc, a_device_of_a_plugin_is_used_when_it_is_there, 0, 2);
    suite_add(tc, the_name_of_the_built_in_device_is_taken, a_second_device_of_a_name_is_refused);
    return suite_run();
}
