/* Decoding allocates nothing per token. The allocator is replaced by one that counts, by the object that called it:
 * oneDNN makes a few small allocations of its own inside every product, and the OpenMP runtime below it one for each
 * thread that meets its first product late; they are reported and not ours to change. Before the latter there is one of
 * ours, which looks whether there is memory for it. */
#include <check.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

#include "sanitizer.h"
#include "suite.h"
#include "test_models.h"

static atomic_bool counting;
static atomic_long ours, others;

#if !SANITIZER
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static void count(const void *caller)
{
    Dl_info info;
    if (!atomic_load(&counting))
        return;
    atomic_store(&counting, false); /* dladdr may allocate */
    bool known = dladdr(caller, &info) && info.dli_fname;
    bool foreign = known && (strstr(info.dli_fname, "libdnnl") || strstr(info.dli_fname, "libstdc++") ||
                             strstr(info.dli_fname, "libgomp"));
    atomic_fetch_add(foreign ? &others : &ours, 1);
    atomic_store(&counting, true);
}

void *malloc(size_t size)
{
    count(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_realloc(p, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    count(__builtin_return_address(0));
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : 12;
}
#endif

/* Asserts nothing itself: an assertion of check allocates. */
static tn_status run_token(tn_session *s, int64_t id, float *logits)
{
    tn_error err = TN_ERROR_INIT;
    tn_batch b = {.size = sizeof b, .rows = 1, .tokens = 1, .ids = &id};
    tn_outputs out = {.size = sizeof out, .last_logits = logits};
    return tn_session_run(s, &b, &out, &err);
}

static const char *const specs[] = {"none", "auto"};
static const char *const folders[] = {"tests/data/models/qwen3", "tests/data/models/qwen3_moe"};

START_TEST(decoding_allocates_nothing)
{
    tn_error err = TN_ERROR_INIT;
    const char *spec = specs[_i % 2];
    const char *build = getenv("TENON_BUILD");
    char plugins[4096], absolute[4096];
    snprintf(plugins, sizeof plugins, "%s/plugins", build ? build : "build");
    tn_config *config = tn_config_new();
    ck_assert(realpath(plugins, absolute) != NULL);
    ck_assert_int_eq(tn_config_set_plugins(config, absolute, &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    tn_model *m = test_model(folders[_i / 2], .dtype = NULL);
    test_model_apply(m, config, spec);
    tn_session *s = test_session(m, .context = 64);
    float *logits = malloc(264 * sizeof *logits);
    int failures = 0;
    for (int64_t i = 0; i < 40; i++) /* the first call of each size allocates where kernels are compared then */
        failures += run_token(s, i + 3, logits) != TN_OK;
    tn_session_reset(s);
    for (int64_t i = 0; i < 8; i++)
        failures += run_token(s, i + 3, logits) != TN_OK;
    atomic_store(&ours, 0);
    atomic_store(&others, 0);
    atomic_store(&counting, true);
    for (int64_t i = 0; i < 32; i++)
        failures += run_token(s, i + 3, logits) != TN_OK;
    atomic_store(&counting, false);
    ck_assert_int_eq(failures, 0);
    printf("%s %s: 32 tokens: %ld allocations of ours, %ld inside oneDNN\n", folders[_i / 2], spec, atomic_load(&ours),
           atomic_load(&others));
    long count = atomic_load(&ours);
    ck_assert_int_lt(count, tn_thread_count()); /* all threads but this one may be late */
    free(logits);
    tn_config_free(config);
}
END_TEST

/* The counter itself works: else the test above proves nothing. */
START_TEST(the_counter_counts)
{
    atomic_store(&ours, 0);
    atomic_store(&counting, true);
    void *volatile p = malloc(100);
    atomic_store(&counting, false);
    free(p);
    long count = atomic_load(&ours);
    ck_assert_int_eq(count, 1);
}
END_TEST

int main(void)
{
    if (SANITIZER) {
        puts("SKIPPED: the sanitizer owns the allocator");
        puts("100%: Checks: 0, Failures: 0, Errors: 0");
        return EXIT_SUCCESS;
    }
    TCase *tc = suite_open("allocation", 120);
    tcase_add_loop_test(tc, decoding_allocates_nothing, 0, 4);
    suite_add(tc, the_counter_counts);
    return suite_run();
}
