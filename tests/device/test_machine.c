/* The machine's ceilings: what is measured is there, finite and positive. How large it is no test can say. */
#include "device/ceiling.h"
#include "device/cpu_flags.h"
#include "device/device.h"
#include "device/machine.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static void expect_rates(const char *what, const double *rates, bool there)
{
    for (int i = 0; i < 2; i++)
        if (there ? !(isfinite(rates[i]) && rates[i] > 0) : rates[i] != 0)
            ck_abort_msg("%s: %g on %s", what, rates[i], i ? "all threads" : "one thread");
}

START_TEST(all_that_the_machine_has_is_measured)
{
    tn_error err = TN_ERROR_INIT;
    tn_machine m = {.size = sizeof m};
    uint64_t flags = tn_cpu_flags();
    ck_assert_msg(tn_measure_machine(&m, &err) == TN_OK, "%s", err.message);
    ck_assert_uint_eq(m.size, sizeof m);
    ck_assert_uint_gt(strlen(m.cpu), 0);
    ck_assert_int_eq(m.threads[0], 1);
    ck_assert_int_eq(m.threads[1], tn_thread_count());
    ck_assert_int_gt(m.cache_bytes, 0);
    ck_assert_int_gt(m.memory_bytes, 0);
    expect_rates("read", m.read, true);
    expect_rates("copy", m.copy, true);
    expect_rates("f32", m.f32, true);
    expect_rates("bf16", m.bf16, flags & TN_CPU_AVX512_BF16);
    expect_rates("f16", m.f16, flags & TN_CPU_AVX512_FP16);
    expect_rates("amx", m.amx_bf16, flags & TN_CPU_AMX_BF16);
}
END_TEST

START_TEST(an_older_struct_is_filled_as_far_as_it_goes)
{
    tn_machine m;
    memset(&m, 0x5A, sizeof m);
    m.size = offsetof(tn_machine, read);
    ck_assert_int_eq(tn_measure_machine(&m, NULL), TN_OK);
    ck_assert_int_gt(m.memory_bytes, 0);
    const unsigned char *rest = (const unsigned char *)m.read;
    for (size_t i = 0; i < sizeof m - offsetof(tn_machine, read); i++)
        ck_assert_uint_eq(rest[i], 0x5A);
}
END_TEST

START_TEST(a_struct_without_size_is_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_machine m = {0};
    ck_assert_int_eq(tn_measure_machine(&m, &err), TN_E_USAGE);
    suite_expect_in(err.message, "sizeof(tn_machine)");
    ck_assert_int_eq(tn_measure_machine(NULL, NULL), TN_E_USAGE);
}
END_TEST

START_TEST(only_allowed_instructions_are_measured)
{
    ceilings c;
    cpu_flags_restrict(0);
    ck_assert(ceiling_open());
    ceiling_measure(&c, 1);
    ck_assert_int_eq(c.threads, 1);
    for (int p = 0; ceiling_peak_at(p); p++)
        ck_assert_msg((c.peak[p] > 0) == (ceiling_peak_at(p)->flags == 0), "%s", ceiling_peak_at(p)->name);
    ceiling_close();
    cpu_flags_restrict(~UINT64_C(0));
}
END_TEST

START_TEST(the_threads_that_were_set_stay_set)
{
    ceilings c;
    threads_set(3);
    ck_assert(ceiling_open());
    ceiling_measure(&c, 2);
    ck_assert_int_eq(c.threads, 2);
    ceiling_measure(&c, 0);
    ck_assert_int_eq(c.threads, 3);
    ck_assert_int_eq(tn_thread_count(), 3);
    ceiling_close();
    threads_set(0);
}
END_TEST

START_TEST(a_pass_in_cache_takes_time)
{
    ck_assert(ceiling_open());
    const ceiling_kind kinds[] = {CEILING_READ, CEILING_COPY, CEILING_UPDATE};
    for (int team = 0; team < 2; team++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            double seconds = ceiling_pass_seconds(kinds[k], 1 << 16, team);
            ck_assert(isfinite(seconds) && seconds > 0);
        }
    ck_assert(ceiling_pass_seconds(CEILING_READ, (double)ceiling_memory_bytes(), false) == 0);
    ceiling_close();
    ck_assert_int_eq(ceiling_memory_bytes(), 0);
}
END_TEST

START_TEST(the_larger_of_each_rate_is_kept)
{
    ceilings a = {.read = 1, .copy = 5, .peak = {2}}, b = {.read = 3, .copy = 4, .peak = {9}};
    ceiling_join(&a, &b);
    ck_assert(a.read == 3 && a.copy == 5 && a.peak[0] == 9);
}
END_TEST

START_TEST(more_threads_reach_no_less_cache)
{
    ck_assert_int_gt(machine_cache_bytes(1), 0);
    ck_assert_int_ge(machine_cache_bytes(INT32_MAX), machine_cache_bytes(1));
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("machine", 120);
    suite_add(tc, all_that_the_machine_has_is_measured, an_older_struct_is_filled_as_far_as_it_goes,
              a_struct_without_size_is_refused, only_allowed_instructions_are_measured,
              the_threads_that_were_set_stay_set, a_pass_in_cache_takes_time, the_larger_of_each_rate_is_kept,
              more_threads_reach_no_less_cache);
    return suite_run();
}
