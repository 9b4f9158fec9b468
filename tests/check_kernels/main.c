/* Checks the kernels of build/plugins; with DIR, holds them against golden files; with --bench, times them. --device
 * checks what a plugin's device brings, its own operations and its kernels, in its memory. --emulate takes the plugins
 * of build/emulated, whose tile instructions are C, and runs the tier that is for them. */
#include "blocks.h"
#include "check_kernels.h"
#include "far.h"
#include "goldens.h"
#include "host.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line per contract. */
static const check_test *const tests[] = {&check_rms_norm, &check_rope,       &check_mlp,
                                          &check_moe,      &check_moe_route,  &check_grouped_matmul,
                                          &check_linear,   &check_delta_rule, &check_selective_scan,
                                          &check_attention};

#define UP_TO_VNNI (TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_AVX512_VNNI)
#define UP_TO_BF16 (TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_AVX512_BF16)

/* own: the flag that a test must name in its tiers for this tier to be run. */
static const struct tier {
    check_tier tier;
    uint64_t own;
    bool emulated;
} tiers[] = {
    {{"c", 0}, 0, false},
    {{"avx2", TN_CPU_AVX2}, TN_CPU_AVX2, false},
    {{"avxvnni", TN_CPU_AVX2 | TN_CPU_AVX_VNNI}, TN_CPU_AVX_VNNI, false},
    {{"avx512", TN_CPU_AVX2 | TN_CPU_AVX512}, TN_CPU_AVX512, false},
    {{"avx512vnni", UP_TO_VNNI}, TN_CPU_AVX512_VNNI, false},
    {{"avx512bf16", UP_TO_BF16}, TN_CPU_AVX512_BF16, false},
    {{"amx", UP_TO_BF16 | TN_CPU_AMX_BF16}, TN_CPU_AMX_BF16, false},
    {{"amx-emulated", UP_TO_BF16 | TN_CPU_AMX_BF16}, TN_CPU_AMX_BF16, true},
    {{"neon", TN_CPU_NEON}, TN_CPU_NEON, false},
};

enum { TESTS = sizeof tests / sizeof *tests, TIERS = sizeof tiers / sizeof *tiers };

typedef struct options {
    const char *ops, *blocks, *plugins, *tier, *test, *filter, *dtype, *group, *device;
    int every;   /* of the made-up cases of a group; 0: each                                       */
    int threads; /* of --bench and golden files; 0: one per core                                 */
    bool emulate, bench, quick, long_calls, usage, help;
} options;

static options parse(int argc, char **argv)
{
    options o = {.plugins = NULL};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--bench")) {
            o.bench = true;
            if (value && value[0] != '-')
                o.filter = argv[++i];
        } else if (!strcmp(argv[i], "--emulate")) {
            o.emulate = true;
        } else if (!strcmp(argv[i], "--ops") && value) {
            o.ops = argv[++i];
        } else if (!strcmp(argv[i], "--blocks") && value) {
            o.blocks = argv[++i];
        } else if (!strcmp(argv[i], "--plugins") && value) {
            o.plugins = argv[++i];
        } else if (!strcmp(argv[i], "--tier") && value) {
            o.tier = argv[++i];
        } else if (!strcmp(argv[i], "--device") && value) {
            o.device = argv[++i];
        } else if (!strcmp(argv[i], "--test") && value) {
            o.test = argv[++i];
        } else if (!strcmp(argv[i], "--group") && value) {
            o.group = argv[++i];
        } else if (!strcmp(argv[i], "--dtype") && value) {
            o.dtype = argv[++i];
        } else if (!strcmp(argv[i], "--help")) {
            o.help = true;
        } else if (!strcmp(argv[i], "--quick")) {
            o.quick = true;
        } else if (!strcmp(argv[i], "--long")) {
            o.long_calls = true;
        } else if (!strcmp(argv[i], "--every") && value) {
            o.every = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--threads") && value) {
            o.threads = atoi(argv[++i]);
        } else if (argv[i][0] != '-' && !o.ops) {
            o.ops = argv[i];
        } else {
            o.usage = true;
        }
    }
    return o;
}

static bool tier_exists(const options *o, const check_test *test, size_t i)
{
    return !(tiers[i].own & ~test->tiers) && tiers[i].emulated == o->emulate;
}

/* The last tier of a test that this machine has. */
static size_t best_tier(const options *o, const check_test *test, uint64_t machine)
{
    size_t best = 0;
    for (size_t i = 0; i < TIERS; i++)
        if (tier_exists(o, test, i) && !(tiers[i].tier.flags & ~machine))
            best = i;
    return best;
}

static bool tier_wanted(const options *o, const check_test *test, size_t i, uint64_t machine)
{
    if (!tier_exists(o, test, i))
        return false;
    if (o->tier && strcmp(o->tier, "all"))
        return !strcmp(o->tier, tiers[i].tier.name);
    return !o->bench || o->tier || i == best_tier(o, test, machine);
}

/* Calls body for every test with what a device brings: first its own operations, then its kernels. */
static void for_each_on_device(check_state *s, const options *o, void (*body)(check_state *s, const check_test *test))
{
    static const struct {
        const char *name;
        check_by by;
    } sides[] = {{"eager", BY_DEVICE_EAGER}, {"kernels", BY_DEVICE_KERNEL}};
    for (size_t t = 0; t < TESTS; t++)
        for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s %s", far_name(), sides[i].name);
            const check_tier tier = {name, 0};
            if ((o->test && strcmp(o->test, tests[t]->name)) ||
                (o->tier && strcmp(o->tier, "all") && strcmp(o->tier, sides[i].name)))
                continue;
            s->tier = &tier;
            s->by = sides[i].by;
            body(s, tests[t]);
        }
}

/* false, and said: the state's tier is not on this machine. */
static bool tier_is_here(check_state *s, const check_test *test, uint64_t machine)
{
    if (!(s->tier->flags & ~machine))
        return true;
    printf("SKIPPED %s %s: not on this machine, or not in TENON_CPU\n", test->name, s->tier->name);
    s->skipped++;
    return false;
}

/* Calls body for every test and tier that is asked for and there. */
static void for_each(check_state *s, const options *o, void (*body)(check_state *s, const check_test *test))
{
    uint64_t machine = host_flags();
    if (o->device) {
        for_each_on_device(s, o, body);
        return;
    }
    for (size_t t = 0; t < TESTS; t++) {
        if (o->test && strcmp(o->test, tests[t]->name))
            continue;
        for (size_t i = 0; i < TIERS; i++) {
            s->tier = &tiers[i].tier;
            if (!tier_wanted(o, tests[t], i, machine))
                continue;
            if (!tier_is_here(s, tests[t], machine))
                continue;
            host_restrict(s->tier->flags);
            body(s, tests[t]);
            host_restrict(~UINT64_C(0));
        }
    }
}

static void check_body(check_state *s, const check_test *test)
{
    test->check(s);
}

static void bench_body(check_state *s, const check_test *test)
{
    test->bench(s);
}

/* 0: all; -1: no such type. */
static int dtype_of(const char *name)
{
    static const tn_dtype known[] = {TN_F32, TN_BF16, TN_F16};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, tn_dtype_name(known[i])))
            return known[i];
    return strcmp(name, "all") ? -1 : 0;
}

static int run_bench(check_state *s, const options *o)
{
    int dtype = dtype_of(o->dtype ? o->dtype : "bf16");
    if (dtype < 0) {
        fprintf(stderr, "check_kernels: --dtype %s: use f32, bf16, f16 or all\n", o->dtype);
        return 2;
    }
    s->bench.filter = o->filter;
    s->bench.dtype = (tn_dtype)dtype;
    s->bench.threads = o->threads;
    s->bench.seconds = o->quick ? 0.02 : 0.1;
    s->bench.most_flops = o->long_calls ? 1e18 : o->quick ? 5e9 : 5e11;
    if (!bench_open(s))
        return 6;
    for_each(s, o, bench_body);
    bench_close(s);
    return 0;
}

static bool run_goldens(check_state *s, const options *o)
{
    if (!goldens_open(s, o->ops))
        return false;
    for_each(s, o, goldens_run);
    goldens_close(s, !o->test && !o->group);
    return true;
}

/* Eager, then the kernel on every tier. */
static bool run_blocks(check_state *s, const options *o)
{
    static const check_test test = {.name = "blocks", .tiers = CHECK_PRODUCTS | TN_CPU_AVX_VNNI | TN_CPU_AVX512_VNNI};
    uint64_t machine = host_flags();
    bool opened = blocks_run(s, o->blocks);
    for (size_t i = 0; opened && i < TIERS; i++) {
        if (!tier_wanted(o, &test, i, machine))
            continue;
        s->tier = &tiers[i].tier;
        if (!tier_is_here(s, &test, machine))
            continue;
        host_restrict(s->tier->flags);
        opened = blocks_run(s, o->blocks);
        host_restrict(~UINT64_C(0));
    }
    return opened;
}

static const char usage[] =
    "usage: check_kernels [--bench [FILTER] [--dtype NAME|all] [--quick|--long] | [--ops] DIR | --blocks DIR]\n"
    "                     [--emulate | --device NAME] [--plugins DIR] [--tier NAME|all] [--test NAME]\n"
    "                     [--group TEXT] [--every N] [--threads N]\n";

/* What usage leaves open. */
static const char help[] =
    "  --ops DIR      golden files, in place of made-up cases\n"
    "  --blocks DIR   raw quantised weights of every format, with their values\n"
    "  --bench        times kernels for the CPU; FILTER: lines whose names hold it\n"
    "  --device NAME  what a plugin's device computes, in its memory; what it declines is skipped, with the reason\n"
    "  --tier NAME    c, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amx, amx-emulated, neon; with --device: eager, "
    "kernels\n"
    "  --test NAME    one contract: rms_norm, rope, mlp, ...\n"
    "  --group TEXT   groups whose names begin so\n"
    "  --every N      of the made-up cases of each group only every Nth\n"
    "  --threads N    of golden files and --bench; 0: one for each core\n"
    "ends with N passed, N failed, N skipped: groups, and for skips a line for each reason in a group\n";

int main(int argc, char **argv)
{
    options o = parse(argc, argv);
    if (o.help) {
        printf("%s%s", usage, help);
        return 0;
    }
    /* What was found is still there when a kernel takes the process along. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (o.usage || (o.bench && o.emulate) || (o.device && (o.bench || o.emulate))) {
        fputs(usage, stderr);
        return 2;
    }
    char beside[4096], self[4096];
    snprintf(self, sizeof self, "%s", argv[0]);
    snprintf(beside, sizeof beside, "%s/../%splugins", dirname(self), o.emulate ? "emulated/" : "");
    /* Around the tiles the emulated tier uses what the one before it uses. */
    if (o.emulate && (host_flags() & UP_TO_BF16) != UP_TO_BF16) {
        printf("SKIPPED amx-emulated: AVX-512 with BF16 is not on this machine, or not in TENON_CPU\n"
               "0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    if (o.emulate)
        host_emulate(TN_CPU_AMX_BF16);
    check_state s = {.only = o.group, .every = o.every > 1 ? o.every : 1};
    if (o.every > 1)
        printf("SKIPPED all but each %dth made-up case of a group: emulation is slow\n", o.every);
    if (!host_open(o.plugins ? o.plugins : beside))
        return 3;
    if (o.device && !far_open(o.device))
        return 3;
    host_threads(o.threads);
    if (o.bench)
        return run_bench(&s, &o);
    if (o.blocks && !run_blocks(&s, &o))
        return 4;
    else if (!o.ops && !o.blocks)
        for_each(&s, &o, check_body);
    else if (o.ops && !run_goldens(&s, &o))
        return 4;
    far_close();
    printf("%lld passed, %lld failed", (long long)s.passed, (long long)s.failed);
    if (s.skipped)
        printf(", %lld skipped", (long long)s.skipped);
    printf("\n");
    return s.failed || !s.passed ? 1 : 0;
}
