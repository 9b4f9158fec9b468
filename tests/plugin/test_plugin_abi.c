/* A plugin that was built from the 2.0 headers still loads and works: tests/data/abi-2.0. */
#include "device/device.h"
#include "op/match.h"
#include "plugin/registry.h"
#include "plugin_box.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static registry_kernel *load(void)
{
    tempdir_copy_file("tests/data/abi-2.0/abi_2_0.so", plugin_box_folder(), "abi_2_0.so");
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(plugin_box_scan(NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_plugin_info info = plugin_box_of("abi_2_0.so");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
    ck_assert_str_eq(info.name, "abi_2_0");
    ck_assert_str_eq(info.version, "1.0.0");
    return registry_find("cpu", "abi_2_0_rms_norm");
}

START_TEST(it_loads_with_every_field)
{
    registry_kernel *k = load();
    ck_assert_ptr_nonnull(k);
    ck_assert_int_eq(registry_probe(k, NULL), TN_OK);
    ck_assert_msg(k->available, "%s", k->reason);
    ck_assert_int_eq(k->kernel.priority, -1);
    ck_assert_uint_eq(k->kernel.impl_count, 1);
    ck_assert_str_eq(k->kernel.impls[0].match.class_glob, "*RMSNorm");
    ck_assert_double_eq(k->kernel.impls[0].tolerance.ulps_f32, 64);
    ck_assert_double_eq(k->kernel.impls[0].gradient_tolerance.ulps_f32, 128);
    ck_assert_uint_eq(k->kernel.impls[0].optional_outputs, 0);
}
END_TEST

START_TEST(it_matches_and_computes)
{
    registry_kernel *k = load();
    float x[2][4] = {{1, 2, 3, 4}, {-2, 2, -2, 2}}, w[4] = {1, 0.5f, 2, -1}, y[2][4] = {{0}};
    tn_tensor weight = tn_tensor_dense(w, TN_F32, 1, (int64_t[]){4});
    tn_site site = {.size = sizeof site,
                    .op = TN_OP_RMS_NORM,
                    .path = "model.norm",
                    .class_name = "Qwen3RMSNorm",
                    .model_type = "qwen3",
                    .meaning = {[TN_AXIS_DTYPE] = TN_F32, [TN_AXIS_WEIGHT] = TN_F32, [TN_AXIS_NORM] = TN_NORM_W},
                    .dim = {[TN_DIM_WIDTH] = 4},
                    .param = {[TN_ROLE_WEIGHT] = {.tensors = &weight, .count = 1}}};
    tn_call call = {.size = sizeof call,
                    .op = TN_OP_RMS_NORM,
                    .site = &site,
                    .in_count = 1,
                    .out_count = 1,
                    .in = {tn_tensor_dense(x, TN_F32, 2, (int64_t[]){2, 4})},
                    .out = {tn_tensor_dense(y, TN_F32, 2, (int64_t[]){2, 4})}};
    char reason[128];
    ck_assert_int_eq(match_site(&site, &k->kernel.impls[0], reason, sizeof reason), TN_OK);
    ck_assert_int_eq(k->kernel.impls[0].forward(&call, NULL), TN_OK);
    tn_plan plan = {.size = sizeof plan};
    uint64_t packed[8] = {0};
    ck_assert_int_eq(k->kernel.impls[0].plan(&site, &plan, NULL), TN_OK);
    ck_assert_uint_eq(plan.scratch_bytes, 128);
    ck_assert_uint_eq(plan.backward_scratch_bytes, 256);
    ck_assert_uint_eq(plan.packed_bytes, sizeof packed);
    ck_assert_int_eq(k->kernel.impls[0].pack(&site, &plan, packed, NULL, NULL), TN_OK);
    ck_assert_uint_eq(packed[0], 7);
    float dw[4], dy[2][4] = {{1, 1, 1, 1}, {1, -1, 1, 2}};
    tn_tensor dweight = tn_tensor_dense(dw, TN_F32, 1, (int64_t[]){4});
    tn_grads grads = {.size = sizeof grads, .out = {tn_tensor_dense(dy, TN_F32, 2, (int64_t[]){2, 4})}};
    grads.param[TN_ROLE_WEIGHT] = (tn_param){&dweight, 1};
    call.grads = &grads;
    ck_assert_int_eq(k->kernel.impls[0].backward(&call, NULL), TN_OK);
    for (int i = 0; i < 4; i++) /* the second row's norm is 2 */
        ck_assert_double_eq_tol(dw[i], x[0][i] / sqrt(7.5) * dy[0][i] + x[1][i] / 2.0 * dy[1][i], 8 * 0x1p-24 * 3);
    for (int r = 0; r < 2; r++) {
        double sum = 0;
        for (int i = 0; i < 4; i++)
            sum += (double)x[r][i] * x[r][i];
        for (int i = 0; i < 4; i++) /* some six roundings to float32 */
            ck_assert_double_eq_tol(y[r][i], x[r][i] / sqrt(sum / 4) * w[i], 6 * 0x1p-24 * fabs((double)y[r][i]));
    }
    site.dim[TN_DIM_WIDTH] = 5;
    ck_assert_int_eq(match_site(&site, &k->kernel.impls[0], reason, sizeof reason), TN_DECLINED);
    ck_assert_str_eq(reason, "width: site has 5, kernel takes multiples of 2");
}
END_TEST

START_TEST(its_device_is_opened)
{
    tn_error err = TN_ERROR_INIT;
    int32_t ordinal;
    ck_assert_ptr_nonnull(load());
    const tn_device *ops = registry_device("abi_2_0:1", &ordinal, &err);
    ck_assert_msg(ops != NULL, "%s", err.message);
    ck_assert_str_eq(ops->summary, "a device from the days of ABI 2.0");
    ck_assert(ops->host_memory);
    device d;
    ck_assert_int_eq(device_open(&d, ops, 2, false, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.message, "'abi_2_0:2' cannot be opened: there are 2 units");
    tn_error_clear(&err);
    ck_assert_int_eq(device_open(&d, ops, ordinal, false, &err), TN_OK);
    void *memory;
    char there[6] = "hello", back[6] = "";
    ck_assert_int_eq(device_alloc(&d, 64, &memory, &err), TN_OK);
    ck_assert_int_eq(device_upload(&d, memory, there, sizeof there, &err), TN_OK);
    ck_assert_int_eq(device_download(&d, back, memory, sizeof back, &err), TN_OK);
    ck_assert_str_eq(back, "hello");
    ck_assert_int_eq(device_alloc(&d, 1 << 20, &memory, &err), TN_E_MEMORY);
    tn_error_clear(&err);
    ck_assert_int_eq(device_sync(&d, &err), TN_E_INTERNAL);
    ck_assert_str_eq(err.message, "unit 1, for the time 1");
    tn_site site = {.size = sizeof site, .op = TN_OP_LINEAR};
    ck_assert_int_eq(device_supports(&d, &site, NULL), TN_OK);
    site.op = TN_OP_ROPE;
    ck_assert_int_eq(device_supports(&d, &site, NULL), TN_DECLINED);
    tn_call call = {.size = sizeof call, .in_count = 1};
    ck_assert_uint_eq(device_scratch(&d, &call), 192);
    call.in_count = 2;
    ck_assert_uint_eq(device_backward_scratch(&d, &call), 320);
    ck_assert_int_eq(d.ops->eager(&call, NULL), TN_E_INTERNAL);
    device_free(&d, memory, 64);
    device_close(&d);
    device_close(&d);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugin of ABI 2.0", 120);
    tcase_add_checked_fixture(tc, plugin_box_open, NULL);
#ifdef __x86_64__
    suite_add(tc, it_loads_with_every_field, it_matches_and_computes, its_device_is_opened);
#else
    (void)it_loads_with_every_field;
    (void)it_matches_and_computes;
    (void)its_device_is_opened;
    printf("SKIPPED: tests/data/abi-2.0/abi_2_0.so is built for x86-64\n");
#endif
    return suite_run();
}
