/* The team of threads, the arena, the cpu device's memory and dispatch, and what TENON_CPU takes away. */
#include "device/cpu_flags.h"
#include "eager/eager.h"
#include "device/device.h"
#include "suite.h"

#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- threads --------------------------------------------------------------------------------- */

#define MOST 1000

typedef struct cover {
    atomic_int touched[MOST];
    int64_t count, grain;
    atomic_int pieces, wrong;
    int32_t threads;
} cover;

static void cover_body(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    cover *c = ctx;
    atomic_fetch_add(&c->pieces, 1);
    bool whole = begin % c->grain == 0 && (end == c->count || end % c->grain == 0) && begin < end;
    if (!whole || thread < 0 || thread >= c->threads || (end - begin < c->grain && end != c->count))
        atomic_fetch_add(&c->wrong, 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&c->touched[i], 1);
}

START_TEST(everything_is_done_once)
{
    static cover c;
    for (int32_t threads = 1; threads <= 5; threads++)
        for (int64_t count = 0; count < MOST; count = count * 2 + (count < 20 ? 1 : 13))
            for (int64_t grain = 1; grain <= 64; grain = grain * 3 + 1) {
                threads_set(threads);
                memset(&c, 0, sizeof c);
                c.count = count;
                c.grain = grain;
                c.threads = threads;
                tn_parallel_for(count, grain, cover_body, &c);
                int64_t blocks = (count + grain - 1) / grain;
                ck_assert_int_eq(atomic_load(&c.wrong), 0);
                ck_assert_int_le(atomic_load(&c.pieces), blocks);
                for (int64_t i = 0; i < MOST; i++)
                    if (atomic_load(&c.touched[i]) != (i < count))
                        ck_abort_msg("%d of %d, grain %d", (int)i, (int)count, (int)grain);
            }
    threads_set(0);
    ck_assert_int_ge(tn_thread_count(), 1);
    tn_parallel_for(-5, 0, cover_body, NULL);
}
END_TEST

typedef struct team {
    atomic_int ran, step[64], early, inner;
    atomic_int threads;
} team;

static void count_one(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    atomic_fetch_add((atomic_int *)ctx, (int)(end - begin));
}

static void team_inner(void *ctx, int32_t thread, int32_t threads)
{
    team *t = ctx;
    tn_barrier(); /* must not wait for the outer team */
    atomic_fetch_add(&t->inner, thread == 0 && threads == 1);
}

static void team_body(void *ctx, int32_t thread, int32_t threads)
{
    team *t = ctx;
    atomic_store(&t->threads, threads);
    for (int i = 0; i < 64; i++) {
        atomic_fetch_add(&t->step[i], 1);
        tn_barrier();
        if (atomic_load(&t->step[i]) != threads)
            atomic_fetch_add(&t->early, 1);
    }
    if (thread == 0)
        tn_parallel(team_inner, t); /* alone: the others are past it */
    tn_parallel_for(10, 1, count_one, &t->ran);
}

START_TEST(barriers_and_nesting)
{
    for (int32_t threads = 1; threads <= 4; threads++) {
        team t = {0};
        threads_set(threads);
        tn_parallel(team_body, &t);
        ck_assert_int_eq(atomic_load(&t.threads), threads);
        ck_assert_int_eq(atomic_load(&t.early), 0);
        ck_assert_int_eq(atomic_load(&t.inner), 1);
        /* Inside the team every thread does all of its own work. */
        ck_assert_int_eq(atomic_load(&t.ran), 10 * threads);
    }
    threads_set(0);
}
END_TEST

/* Kernels take scratch for every thread of a team, so it is no larger than serves. */
START_TEST(a_team_is_bounded)
{
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int most = CPU_COUNT(&allowed) > 4 ? CPU_COUNT(&allowed) : 4;
    for (int32_t threads = 1; threads <= most; threads++) {
        threads_set(threads);
        ck_assert_int_eq(tn_thread_count(), threads);
    }
    for (int32_t threads = most + 1; threads > 0; threads = threads < INT32_MAX / 3 ? threads * 3 : 0) {
        threads_set(threads);
        ck_assert_int_eq(tn_thread_count(), most);
    }
    ck_assert_int_eq(threads_bound(0), 0);
    threads_set(0);
}
END_TEST

/* A child has none of its parent's threads. */
START_TEST(serial_after_fork)
{
    threads_set(3);
    atomic_int warm = 0;
    tn_parallel_for(300, 1, count_one, &warm);
    ck_assert_int_eq(atomic_load(&warm), 300);
    pid_t child = fork();
    if (child == 0) {
        suite_limit_child();
        threads_serial(true);
        atomic_int done = 0;
        team t = {0};
        tn_parallel_for(300, 1, count_one, &done);
        tn_parallel(team_body, &t);
        _exit(atomic_load(&done) == 300 && tn_thread_count() == 1 && atomic_load(&t.ran) == 10 ? 0 : 1);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
    threads_set(0);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------- */

static bool all_zero(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

START_TEST(memory_is_aligned_and_zero)
{
    const size_t sizes[] = {0, 1, 63, 64, 65, 100000, ((size_t)4 << 20) - 1, (size_t)4 << 20, ((size_t)5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int again = 0; again < 2; again++) {
            void *memory = NULL;
            tn_error err = TN_ERROR_INIT;
            ck_assert_int_eq(device_alloc(&cpu_device, sizes[i], &memory, &err), TN_OK);
            ck_assert_ptr_nonnull(memory);
            ck_assert_uint_eq((uintptr_t)memory % 64, 0);
            ck_assert(all_zero(memory, sizes[i]));
            memset(memory, 0xff, sizes[i]); /* so that memory that comes back is seen */
            device_free(&cpu_device, memory, sizes[i]);
        }
    device_free(&cpu_device, NULL, 0);
    cpu_device.ops->free(NULL, NULL, 0);
    device_free(&cpu_device, NULL, (size_t)8 << 20);
}
END_TEST

START_TEST(memory_that_cannot_be)
{
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - ((size_t)4 << 20), SIZE_MAX / 2};
    for (int i = 0; i < 3; i++) {
        void *memory = &memory;
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(device_alloc(&cpu_device, sizes[i], &memory, &err), TN_E_MEMORY);
        ck_assert_ptr_null(memory);
        ck_assert_str_ne(err.message, "");
    }
}
END_TEST

START_TEST(copies)
{
    char a[] = "abcdef", b[8] = "";
    ck_assert_int_eq(device_upload(&cpu_device, b, a, 7, NULL), TN_OK);
    ck_assert_str_eq(b, "abcdef");
    ck_assert_int_eq(device_download(&cpu_device, a, b + 2, 3, NULL), TN_OK);
    ck_assert_str_eq(a, "cdedef");
    ck_assert_int_eq(device_upload(&cpu_device, NULL, NULL, 0, NULL), TN_OK);
    ck_assert_int_eq(device_sync(&cpu_device, NULL), TN_OK);
}
END_TEST

START_TEST(arena_is_a_stack)
{
    arena a;
    tn_error err = TN_ERROR_INIT;
    void *first, *second, *third;
    ck_assert_int_eq(arena_init(&a, &cpu_device, 300, &err), TN_OK);
    ck_assert_int_eq(arena_take(&a, 1, &first, &err), TN_OK);
    size_t mark = arena_mark(&a);
    ck_assert_int_eq(arena_take(&a, 100, &second, &err), TN_OK);
    ck_assert_uint_eq((uintptr_t)second % 64, 0);
    ck_assert_ptr_eq(second, (char *)first + 64);
    ck_assert_int_eq(arena_take(&a, 129, &third, &err), TN_E_INTERNAL);
    ck_assert_ptr_null(third);
    tn_error_clear(&err);
    arena_release(&a, mark);
    ck_assert_int_eq(arena_take(&a, 256, &third, &err), TN_OK);
    ck_assert_ptr_eq(third, second);
    ck_assert_uint_eq(a.peak, 320);
    ck_assert_int_eq(arena_take(&a, SIZE_MAX, &third, NULL), TN_E_INTERNAL);
    ck_assert_int_eq(arena_take(&a, 0, &third, &err), TN_OK);
    arena_close(&a);
    arena_close(&a);
}
END_TEST

START_TEST(arena_measures)
{
    arena a, real;
    void *p;
    ck_assert_int_eq(arena_init(&a, &cpu_device, 0, NULL), TN_OK);
    ck_assert(a.measuring);
    for (int i = 0; i < 3; i++) {
        size_t mark = arena_mark(&a);
        ck_assert_int_eq(arena_take(&a, (size_t)100 << i, &p, NULL), TN_OK);
        ck_assert_ptr_null(p);
        ck_assert_int_eq(arena_take(&a, 1, &p, NULL), TN_OK);
        arena_release(&a, mark);
    }
    ck_assert_uint_eq(a.used, 0);
    ck_assert_uint_eq(a.peak, 448 + 64);
    ck_assert_int_eq(arena_take(&a, SIZE_MAX - 5, &p, NULL), TN_E_MEMORY);
    ck_assert_int_eq(arena_init(&real, &cpu_device, a.peak, NULL), TN_OK);
    ck_assert_int_eq(arena_take(&real, 400, &p, NULL), TN_OK);
    ck_assert_int_eq(arena_take(&real, 1, &p, NULL), TN_OK);
    arena_close(&real);
    arena_close(&a);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(arena_init(&real, &cpu_device, SIZE_MAX, &err), TN_E_MEMORY);
}
END_TEST

/* ---- dispatch --------------------------------------------------------------------------------------- */

START_TEST(operations_that_the_device_performs)
{
    tn_site site = {.size = sizeof site, .path = "p", .op = TN_OP_LINEAR};
    site.meaning[TN_AXIS_DTYPE] = TN_BF16;
    ck_assert_int_eq(device_supports(&cpu_device, &site, NULL), TN_OK);
    tn_error err = TN_ERROR_INIT;
    site.meaning[TN_AXIS_DTYPE] = TN_I8;
    ck_assert_int_eq(device_supports(&cpu_device, &site, &err), TN_DECLINED);
    suite_expect_in(err.message, "i8");
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.op = TN_OP_DECODER_LAYER;
    ck_assert_int_eq(device_supports(&cpu_device, &site, NULL), TN_DECLINED);
    tn_call call = {.size = sizeof call, .op = TN_OP_MLP, .site = &site};
    ck_assert_uint_eq(device_scratch(&cpu_device, &call), 0);
    ck_assert_int_eq(cpu_device.ops->eager(&call, NULL), TN_E_INTERNAL);
    call.site = NULL;
    ck_assert_int_eq(cpu_device.ops->eager(&call, NULL), TN_E_INTERNAL);
}
END_TEST

/* ---- instruction sets ---------------------------------------------------------------------------------- */

START_TEST(tiers)
{
    const uint64_t x86 = TN_CPU_AVX2 | TN_CPU_AVX_VNNI | TN_CPU_AVX512 | TN_CPU_AVX512_BF16 | TN_CPU_AVX512_FP16 |
                         TN_CPU_AMX_BF16 | TN_CPU_AVX512_VNNI;
    static const char *const names[] = {"c",          "avx2",       "avxvnni",    "avx512",
                                        "avx512vnni", "avx512bf16", "avx512fp16", "amx"};
    static const uint64_t adds[] = {0,
                                    TN_CPU_AVX2,
                                    TN_CPU_AVX_VNNI,
                                    TN_CPU_AVX512,
                                    TN_CPU_AVX512_VNNI,
                                    TN_CPU_AVX512_BF16,
                                    TN_CPU_AVX512_FP16,
                                    TN_CPU_AMX_BF16};
    uint64_t expected = 0;
    for (int i = 0; i < 8; i++) {
        expected |= adds[i];
        ck_assert_uint_eq(cpu_flags_parse(names[i], x86), expected);
        ck_assert_uint_eq(cpu_flags_parse(names[i], TN_CPU_AVX2), expected & TN_CPU_AVX2);
        ck_assert_uint_eq(cpu_flags_parse(names[i], 0), 0);
    }
    ck_assert_uint_eq(cpu_flags_parse("amx", x86 | TN_CPU_SLOW_BF16), x86);
    ck_assert_uint_eq(cpu_flags_parse("neon", TN_CPU_NEON), TN_CPU_NEON);
    ck_assert_uint_eq(cpu_flags_parse("c", TN_CPU_NEON), 0);
    ck_assert_uint_eq(cpu_flags_parse(NULL, x86), x86);
    ck_assert_uint_eq(cpu_flags_parse("", x86), x86);
    ck_assert_uint_eq(cpu_flags_parse("AVX2", x86), x86);
}
END_TEST

/* The compiler's runtime asks the processor too, in its own way. */
START_TEST(flags_agree_with_the_compilers)
{
    unsetenv("TENON_CPU");
    uint64_t flags = tn_cpu_flags();
    ck_assert_uint_eq(flags, tn_cpu_flags());
#if defined(__x86_64__)
    __builtin_cpu_init();
    ck_assert_int_eq((flags & TN_CPU_AVX2) != 0, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    ck_assert_int_eq((flags & TN_CPU_AVX512) != 0,
                     __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vl"));
    ck_assert_int_eq((flags & TN_CPU_AVX512_VNNI) != 0, __builtin_cpu_supports("avx512vnni") != 0);
#endif
}
END_TEST

/* A processor with everything, and what is left without one of its bits. */
START_TEST(flags_of_cpuid)
{
    const uint64_t avx2 = TN_CPU_AVX2 | TN_CPU_AVX_VNNI, avx512 = avx2 | TN_CPU_AVX512;
    const uint64_t all = avx512 | TN_CPU_AVX512_VNNI | TN_CPU_AVX512_BF16 | TN_CPU_AVX512_FP16 | TN_CPU_AMX_BF16;
    const cpu_words full = {.leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29,
                            .leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31,
                            .leaf7_ecx = 1u << 11,
                            .leaf7_edx = 1u << 22 | 1u << 23 | 1u << 24,
                            .leaf7_1_eax = 1u << 4 | 1u << 5,
                            .xcr0 = 0x600e7};
    const struct {
        cpu_words without;
        uint64_t left;
    } table[] = {
        {{0}, all},
        {{.leaf1_ecx = 1u << 27}, 0}, /* OSXSAVE */
        {{.leaf1_ecx = 1u << 28}, 0}, /* AVX */
        {{.leaf1_ecx = 1u << 12}, 0}, /* FMA */
        {{.leaf1_ecx = 1u << 29}, 0}, /* F16C */
        {{.leaf7_ebx = 1u << 5}, 0},  /* AVX2 */
        {{.xcr0 = 0x4}, 0},           /* upper halves of ymm */
        {{.leaf7_ebx = 1u << 16}, avx2},
        {{.leaf7_ebx = 1u << 17}, avx2},
        {{.leaf7_ebx = 1u << 28}, avx2},
        {{.leaf7_ebx = 1u << 30}, avx2},
        {{.leaf7_ebx = 1u << 31}, avx2},
        {{.xcr0 = 0x20}, avx2}, /* mask registers */
        {{.xcr0 = 0x40}, avx2}, /* upper halves of zmm */
        {{.xcr0 = 0x80}, avx2}, /* zmm16 and above */
        {{.leaf7_ecx = 1u << 11}, all & ~TN_CPU_AVX512_VNNI},
        {{.leaf7_1_eax = 1u << 4}, all & ~TN_CPU_AVX_VNNI},
        {{.leaf7_1_eax = 1u << 5}, all & ~TN_CPU_AVX512_BF16},
        {{.leaf7_edx = 1u << 23}, all & ~TN_CPU_AVX512_FP16},
        {{.leaf7_edx = 1u << 22}, all & ~TN_CPU_AMX_BF16}, /* AMX-BF16 */
        {{.leaf7_edx = 1u << 24}, all & ~TN_CPU_AMX_BF16}, /* AMX-TILE */
        {{.xcr0 = 0x20000}, all & ~TN_CPU_AMX_BF16},       /* tile configuration */
        {{.xcr0 = 0x40000}, all & ~TN_CPU_AMX_BF16},       /* tile data */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const cpu_words *w = &table[i].without;
        const cpu_words words = {full.leaf1_ecx & ~w->leaf1_ecx,
                                 full.leaf7_ebx & ~w->leaf7_ebx,
                                 full.leaf7_ecx & ~w->leaf7_ecx,
                                 full.leaf7_edx & ~w->leaf7_edx,
                                 full.leaf7_1_eax & ~w->leaf7_1_eax,
                                 full.xcr0 & ~w->xcr0,
                                 false};
        ck_assert_msg(cpu_flags_x86(&words) == table[i].left, "row %zu: %llx", i,
                      (unsigned long long)cpu_flags_x86(&words));
        cpu_words intel = words;
        const uint64_t both = TN_CPU_AVX512_BF16 | TN_CPU_AVX512_FP16;
        intel.intel = true;
        ck_assert_uint_eq(cpu_flags_x86(&intel),
                          table[i].left | ((table[i].left & both) == both ? TN_CPU_SLOW_BF16 : 0));
    }
}
END_TEST

START_TEST(emulated_flags_are_added)
{
    uint64_t flags = tn_cpu_flags();
    cpu_flags_emulate(TN_CPU_AMX_BF16);
    ck_assert_uint_eq(tn_cpu_flags(), (flags & ~TN_CPU_SLOW_BF16) | TN_CPU_AMX_BF16);
    cpu_flags_restrict(TN_CPU_AVX2);
    ck_assert_uint_eq(tn_cpu_flags(), flags & TN_CPU_AVX2);
}
END_TEST

START_TEST(environment_takes_flags_away)
{
    setenv("TENON_CPU", "c", 1);
    ck_assert_uint_eq(tn_cpu_flags(), 0);
    setenv("TENON_CPU", "amx", 1); /* the same during the life of the process */
    ck_assert_uint_eq(tn_cpu_flags(), 0);
}
END_TEST

int main(void)
{
    threads_strict(true);
    TCase *tc = suite_open("device", 120);
    suite_add(tc, everything_is_done_once, barriers_and_nesting, a_team_is_bounded, serial_after_fork,
              memory_is_aligned_and_zero, memory_that_cannot_be, copies, arena_is_a_stack, arena_measures,
              operations_that_the_device_performs, tiers, flags_agree_with_the_compilers, flags_of_cpuid,
              emulated_flags_are_added, environment_takes_flags_away);
    return suite_run();
}
