/* Kernels of this project on weights at the ends of their type's range: what differs from eager there has a reason that
 * docs/numerics.md names, in every set of instructions. And a kernel that gives numbers for NaN has none. */
#include "check/check.h"
#include "check/draw_site.h"
#include "eager/eager.h"
#include "verify/verify_plugin_sites.h"
#include "plugin/registry.h"
#include "process.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_kernels.h"

#include "base/convert.h"
#include "plugin/folders.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* own: what a processor has that has the tier; without it the name stands for a lesser one. */
static const struct {
    const char *name;
    uint64_t own;
} tiers[] = {{"c", 0}, {"avx2", TN_CPU_AVX2}, {"avx512", TN_CPU_AVX512}, {"avx512bf16", TN_CPU_AVX512_BF16}};
static const char *const files[] = {"cpu_linear",    "npu_rmsnorm",    "npu_swiglu",        "npu_rope",
                                    "cpu_attention", "cpu_delta_rule", "cpu_selective_scan"};
enum { TIERS = sizeof tiers / sizeof *tiers, FILES = sizeof files / sizeof *files };

static const struct {
    const char *name;
    float f32, bf16, f16;
} extremes[] = {
    {"inf", INFINITY, INFINITY, INFINITY},
    {"-inf", -INFINITY, -INFINITY, -INFINITY},
    {"nan", NAN, NAN, NAN},
    {"-0", -0.0f, -0.0f, -0.0f},
    {"denormal", 0x9p-148f, 0x5p-133f, 0x5p-24f},
    {"largest", FLT_MAX, 0x1.fep127f, 65504.0f},
};
enum { EXTREMES = sizeof extremes / sizeof *extremes };

/* Some of the weights become that number: a few, or all of them, with either sign. */
static void put_extreme(const tn_site *site, int which, int64_t every)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            const tn_tensor *t = &site->param[role].tensors[i];
            float number = t->dtype == TN_F32    ? extremes[which].f32
                           : t->dtype == TN_BF16 ? extremes[which].bf16
                                                 : extremes[which].f16;
            for (int64_t j = every / 2; j < tn_tensor_count(t); j += every) {
                float signed_number = every == 1 && j * 2654435761 >> 7 & 1 ? -number : number;
                convert_from_f32(&signed_number, t->dtype, (char *)t->data + (size_t)j * tn_dtype_size(t->dtype), 1);
            }
        }
}

static tn_status try_site(const tn_impl *impl, const tn_site *like, int which, int64_t every, tn_error *err)
{
    static const check_case cases[] = {
        {.batch = 1, .tokens = 1}, {.batch = 1, .tokens = 3}, {.batch = 1, .tokens = 19, .profile = INPUTS_SCALED}};
    draw_site d;
    ck_assert_int_eq(draw_site_open(&d, like, 7, err), TN_OK);
    put_extreme(&d.site, which, every);
    check_subject s = {.device = &cpu_device, .site = &d.site, .impl = impl, .gradients = impl->backward != NULL};
    tn_status status = check_site(&s, cases, sizeof cases / sizeof *cases, NULL, err);
    draw_site_close(&d);
    return status;
}

/* The first two sites of a type: some weights of the one, all of the other. The gradient of a norm over one element
 * cancels to what is left of rounding. */
static void try_impl(const registry_kernel *kernel, const tn_impl *impl, tn_dtype dtype)
{
    enum { SITES = 2 };
    tn_site sites[VERIFY_PLUGIN_SITES_MAX];
    size_t count = verify_plugin_sites_draw(impl, dtype, true, sites), tried = 0;
    for (size_t i = 0; i < count && tried < SITES; i++) {
        if (sites[i].dim[TN_DIM_WIDTH] == 1)
            continue;
        int64_t every = tried++ == 0 ? 7 : 1;
        for (int which = 0; which < EXTREMES; which++) {
            tn_error err = TN_ERROR_INIT;
            tn_status status = try_site(impl, &sites[i], which, every, &err);
            ck_assert_msg(status == TN_OK, "%s, %s, %s in one of %lld: %s: %s", kernel->kernel.id, tn_dtype_name(dtype),
                          extremes[which].name, (long long)every, err.where, err.message);
        }
    }
    ck_assert_uint_eq(tried, SITES);
}

START_TEST(extreme_weights_pass)
{
    char path[4200];
    const char *name;
    tn_error err = TN_ERROR_INIT;
    setenv("TENON_CPU", tiers[_i % TIERS].name, 1);
    if (tiers[_i % TIERS].own & ~tn_cpu_flags()) {
        printf("SKIPPED %s: not on this machine\n", tiers[_i % TIERS].name);
        return;
    }
    if (SANITIZER && _i % TIERS != 0) {
        if (_i == TIERS - 1)
            printf("SKIPPED tiers other than C: under the sanitizers they take a quarter of an hour\n");
        return;
    }
    snprintf(path, sizeof path, "%s/plugins/%s.so", process_build(), files[_i / TIERS]);
    ck_assert_msg(folders_load_file(path, &name, &err) == TN_OK, "%s: %s", err.where, err.message);
    registry_kernel *kernel;
    for (size_t i = 0; (kernel = registry_any(i)); i++) {
        if (strcmp(kernel->kernel.device, "cpu") != 0)
            continue;
        ck_assert_msg(registry_probe(kernel, &err) == TN_OK && kernel->available, "%s: %s", kernel->kernel.id,
                      kernel->reason);
        for (uint32_t j = 0; j < kernel->kernel.impl_count; j++)
            for (tn_dtype dtype = TN_F32; dtype <= TN_F16; dtype++)
                if (kernel->kernel.impls[j].match.takes[TN_AXIS_DTYPE] & TN_TAKES(dtype))
                    try_impl(kernel, &kernel->kernel.impls[j], dtype);
    }
}
END_TEST

/* ---- what must not pass ----------------------------------------------------------------------------------------- */

static float instead_of;

/* Numbers for NaN, or for infinity. */
static tn_status swallow(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    float *y = call->out[0].data;
    for (int64_t i = 0; i < tn_tensor_count(&call->out[0]); i++)
        if (isnan(instead_of) ? isnan(y[i]) : isinf(y[i]))
            y[i] = isnan(instead_of) ? 0 : copysignf(FLT_MAX, y[i]);
    return status;
}

START_TEST(swallowed_numbers_fail)
{
    static const int which[] = {2, 0};
    instead_of = _i ? INFINITY : NAN;
    test_kernel_add(&(test_kernel){.id = "swallow", .op = TN_OP_LINEAR, .forward = swallow});
    const tn_impl *impl = &registry_find("cpu", "swallow")->kernel.impls[0];
    tn_site like = draw_site_plain(TN_OP_LINEAR);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(try_site(impl, &like, which[_i], 7, &err), TN_E_VERIFY);
    ck_assert_msg(strstr(err.message, _i ? "inf" : "nan"), "%s", err.message);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("extremes", 300);
#if defined(__x86_64__)
    tcase_add_loop_test(tc, extreme_weights_pass, 0, TIERS * FILES);
#endif
    tcase_add_loop_test(tc, swallowed_numbers_fail, 0, 2);
    return suite_run();
}
