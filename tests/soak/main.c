/* soak SECONDS [PLUGINS]
 *
 * Mixed work in one process, round after round: models of several types are opened, run in sessions of several sizes,
 * with and without kernels, shadowed, verified, reverted, asked for what is wrong, and closed. Every round must give
 * the same bits; from the end of the warm-up on, memory must stay flat, and descriptors and threads must be as many as
 * then. Prints what it saw; ends with "N passed, N failed". PLUGINS: a folder, build/plugins otherwise. */
#include "sanitizer.h"
#include "tempdir.h"

#include <dirent.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 7, ROWS = 2, NEW_TOKENS = 6, VOCAB = 4096, LEAST_ROUNDS = 3 };

/* What may come after the warm-up: the heap's blocks in use; resident pages, which the allocator keeps as it likes. */
static const double HEAP_BYTES = 64e3;
#if !SANITIZER
static const double RESIDENT_BYTES = 16e6;
#endif

typedef struct figures {
    double resident, heap;
    int descriptors, threads;
} figures;

static const struct {
    const char *name, *dtype;
} models[] = {
    {"llama", "f32"},       {"qwen3_moe", "bf16"},  {"gemma3_text", "f32"}, {"lfm2", "f32"},
    {"qwen3_next", "bf16"}, {"deepseek_v3", "f32"}, {"gpt_oss", "bf16"},
};
enum { MODELS = sizeof models / sizeof models[0] };

static const int64_t ids[ROWS * TOKENS] = {1, 5, 9, 2, 11, 3, 7, 4, 8, 6, 12, 10, 2, 1};
static int failed;
static tn_config *config;

static void fail(const char *what, const tn_error *err)
{
    printf("FAIL %s: %s: %s\n", what, err ? err->where : "", err ? err->message : "");
    failed++;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int entries(const char *folder)
{
    int count = 0;
    DIR *list = opendir(folder);
    while (list && readdir(list))
        count++;
    if (list)
        closedir(list);
    return count - 2;
}

static figures look(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*u %lu", &pages) != 1)
        fail("resident memory is not known", NULL);
    if (file)
        fclose(file);
    struct mallinfo2 heap = mallinfo2();
    return (figures){(double)pages * (double)sysconf(_SC_PAGESIZE), (double)heap.uordblks + (double)heap.hblkhd,
                     entries("/proc/self/fd") - 1, entries("/proc/self/task")};
}

/* FNV-1a. */
static void add_bytes(uint64_t *sum, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        *sum = (*sum ^ bytes[i]) * UINT64_C(0x100000001b3);
}

/* ---- one session ---------------------------------------------------------------------------------------- */

static void run_session(tn_model *model, const tn_session_options *options, int64_t vocab, uint64_t *sum)
{
    static float logits[ROWS * VOCAB];
    tn_error err = TN_ERROR_INIT;
    int64_t out[NEW_TOKENS] = {0};
    tn_session *s = tn_session_new(model, options, &err);
    tn_batch batch = {.size = sizeof batch, .rows = options->rows, .tokens = TOKENS, .ids = ids};
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = logits};
    tn_generate_options o = {
        .size = sizeof o, .max_tokens = NEW_TOKENS, .temperature = 0.8, .seed = 5, .top_k = 20, .ignore_eos = true};
    if (!s || tn_session_run(s, &batch, &outputs, &err) != TN_OK) {
        fail("a session", &err);
    } else {
        add_bytes(sum, logits, (size_t)(options->rows * vocab) * sizeof *logits);
        if (options->rows == 1) {
            tn_session_reset(s);
            if (tn_generate(s, ids, TOKENS, &o, out, NULL, &err) != TN_OK)
                fail("generating", &err);
            add_bytes(sum, out, sizeof out);
        }
    }
    tn_session_free(s);
}

static uint64_t run_sizes(tn_model *model, int64_t vocab)
{
    static const tn_session_options sizes[] = {
        {.size = sizeof(tn_session_options), .rows = 1, .context = 16},
        {.size = sizeof(tn_session_options), .rows = 1, .context = 32, .chunk = 3},
        {.size = sizeof(tn_session_options), .rows = ROWS, .context = 24, .chunk = 5},
    };
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        run_session(model, &sizes[i], vocab, &sum);
    return sum;
}

/* ---- errors on purpose ----------------------------------------------------------------------------------- */

static void must_fail(const char *what, bool did, const tn_error *err)
{
    if (!did || err->message[0] == '\0')
        fail(what, NULL);
}

static void make_mistakes(tn_model *model)
{
    tn_error err = TN_ERROR_INIT;
    must_fail("a folder that is not there is opened", !tn_model_open("/nowhere/at/all", NULL, &err), &err);
    tn_error_clear(&err);
    must_fail("an unknown kernel is applied", tn_apply_kernels(model, config, "no_such_kernel", NULL, &err) != TN_OK,
              &err);
    tn_error_clear(&err);
    tn_session_options o = {.size = sizeof o, .rows = 1, .context = 4};
    tn_session *s = tn_session_new(model, &o, &err);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = TOKENS, .ids = ids};
    must_fail("more tokens than the context are run", s && tn_session_run(s, &batch, NULL, &err) != TN_OK, &err);
    tn_error_clear(&err);
    static const int64_t wrong[] = {1, -3};
    tn_session_reset(s);
    batch.tokens = 2;
    batch.ids = wrong;
    must_fail("a token that is none is run", s && tn_session_run(s, &batch, NULL, &err) != TN_OK, &err);
    tn_session_free(s);
}

/* ---- one model ------------------------------------------------------------------------------------------- */

static bool verify(tn_model *model, tn_error *err)
{
    tn_verify_row **rows = NULL;
    size_t count = 0;
    bool good = tn_verify(model, &rows, &count, err) == TN_OK;
    free(rows);
    return good;
}

static uint64_t run_model(const char *name, const char *dtype, bool shadowed)
{
    char path[256];
    tn_error err = TN_ERROR_INIT;
    tn_model_options o = {.size = sizeof o, .dtype = dtype};
    tn_model_info info = {.size = sizeof info};
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    tn_model *model = tn_model_open(path, &o, &err);
    if (!model || tn_model_get_info(model, &info) != TN_OK || info.vocab > VOCAB) {
        fail(name, &err);
        tn_model_close(model);
        return 0;
    }
    tn_report *report = NULL;
    uint64_t plain = run_sizes(model, info.vocab), with = 0;
    make_mistakes(model);
    if (tn_apply_kernels(model, config, "auto", &report, &err) != TN_OK || !verify(model, &err) ||
        (shadowed && tn_model_shadow(model, 1, NULL, &err) != TN_OK))
        fail(name, &err);
    tn_report_free(report);
    with = run_sizes(model, info.vocab);
    if (tn_apply_kernels(model, config, "none", NULL, &err) != TN_OK)
        fail(name, &err);
    if (run_sizes(model, info.vocab) != plain)
        fail("a model without its kernels again gives other bits", NULL);
    tn_model_close(model);
    add_bytes(&plain, &with, sizeof with);
    return plain;
}

/* ---- rounds ---------------------------------------------------------------------------------------------- */

static void run_round(int number, uint64_t sums[MODELS])
{
    for (int i = 0; i < MODELS; i++) {
        uint64_t sum = run_model(models[i].name, models[i].dtype, (number + i) % 2 == 0);
        if (number > 0 && sum != sums[i])
            fail(models[i].name, &(tn_error){.message = "another result than in the first round"});
        sums[i] = sum;
    }
}

static void compare(const figures *first, const figures *last, double most)
{
    printf("resident MB: %.2f after the warm-up, %.2f at the end, %.2f at most; heap in use: %.3f, then %.3f\n",
           first->resident / 1e6, last->resident / 1e6, most / 1e6, first->heap / 1e6, last->heap / 1e6);
    printf("descriptors: %d, then %d; threads: %d, then %d\n", first->descriptors, last->descriptors, first->threads,
           last->threads);
    if (last->heap - first->heap > HEAP_BYTES)
        fail("the heap grows", NULL);
#if SANITIZER
    printf("SKIPPED resident memory: the sanitizer keeps what was freed\n");
#else
    if (most - first->resident > RESIDENT_BYTES)
        fail("resident memory grows", NULL);
#endif
    if (last->descriptors != first->descriptors)
        fail("descriptors are left", NULL);
    if (last->threads != first->threads)
        fail("threads are left", NULL);
}

static void soak(double seconds)
{
    uint64_t sums[MODELS] = {0};
    figures first = {0}, last = {0};
    double begin = now(), most = 0;
    int rounds = 0, warm = 0;
    while (failed == 0 && (now() - begin < seconds || rounds < warm + LEAST_ROUNDS)) {
        run_round(rounds++, sums);
        last = look();
        if (rounds <= 2 || now() - begin < 0.1 * seconds) {
            first = last;
            warm = rounds;
        }
        if ((rounds & (rounds - 1)) == 0) {
            printf("round %d: resident MB %.2f, heap in use %.3f\n", rounds, last.resident / 1e6, last.heap / 1e6);
            fflush(stdout);
        }
        most = last.resident > most || rounds == warm ? last.resident : most;
    }
    printf("%d rounds of %d models in %.0f s, of which %d to warm up\n", rounds, MODELS, now() - begin, warm);
    compare(&first, &last, most);
}

int main(int argc, char **argv)
{
    tn_error err = TN_ERROR_INIT;
    char folder[4096], *end = NULL;
    double seconds = argc > 1 ? strtod(argv[1], &end) : 0;
    if (argc < 2 || argc > 3 || *end || seconds <= 0) {
        fprintf(stderr, "usage: soak SECONDS [PLUGINS]\n");
        return 2;
    }
    /* The C library's caches of each thread count as blocks in use: without them the heap is flat to some bytes. */
    if (!getenv("GLIBC_TUNABLES") && setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1) == 0)
        execv("/proc/self/exe", argv);
    char *cache = tempdir_new();
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("TENON_MEASURE", "no", 1); /* times would choose other kernels each round */
    config = tn_config_new();
    if (!realpath(argc > 2 ? argv[2] : "build/plugins", folder) ||
        tn_config_set_plugins(config, folder, &err) != TN_OK || tn_scan(config, &err) != TN_OK)
        fail("plugins", &err);
    else
        soak(seconds);
    for (size_t i = 0; i < tn_notice_count(); i++)
        printf("notice: %s\n", tn_notice_get(i));
    tn_config_free(config);
    tempdir_remove(cache);
    printf("%d passed, %d failed\n", failed == 0, failed);
    return failed != 0;
}
