/* A long context: memory follows the tokens that are there, and what is computed is what a session computes that has
 * all of its memory from the start, bit for bit. */
#include "broken.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_models.h"

#include "device/growing.h"
#include "eager/eager.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tenon/tenon.h>

enum { CONTEXT = 100000 };

static int64_t *ids; /* [CONTEXT] */

static tn_status feed(tn_session *s, int64_t rows, int64_t from, int64_t tokens, float *last, tn_error *err)
{
    tn_batch b = {.size = sizeof b, .rows = rows, .tokens = tokens, .ids = ids + from};
    tn_outputs out = {.size = sizeof out, .last_logits = last};
    return tn_session_run(s, &b, &out, err);
}

static void setup(void)
{
    ids = malloc(CONTEXT * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (int64_t i = 0; i < CONTEXT; i++)
        ids[i] = (i * 37 + i / 251 + 11) % 200;
}

static void teardown(void)
{
    free(ids);
}

/* Both sessions get the same pieces, the last of them the rest of the context. */
static void compare_sessions(const char *name, int64_t rows, const int64_t *pieces, int count, int64_t context)
{
    tn_model *m = test_model(name, .dtype = NULL);
    tn_session *grows = test_session(m, .rows = rows, .context = context),
               *whole = test_session(m, .rows = rows, .context = context, .whole_cache = true);
    size_t logits = (size_t)(rows * test_model_vocab(m)), full = tn_session_cache_bytes(grows), before = 0;
    float *got = malloc(logits * sizeof *got), *want = malloc(logits * sizeof *want);
    ck_assert_uint_eq(tn_session_cache_bytes(whole), full);
    ck_assert_uint_ge(tn_session_cache_held(whole), full);
    for (int i = 0, at = 0; i < count; at += (int)pieces[i++]) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_msg(feed(grows, rows, at, pieces[i], got, &err) == TN_OK, "%s", err.message);
        ck_assert_msg(feed(whole, rows, at, pieces[i], want, &err) == TN_OK, "%s", err.message);
        ck_assert_mem_eq(got, want, logits * sizeof *got);
        size_t held = tn_session_cache_held(grows);
        printf("%s, %lld rows: %lld of %lld positions: %zu of %zu KiB\n", name, (long long)rows,
               (long long)tn_session_length(grows), (long long)context, held >> 10, full >> 10);
        ck_assert_uint_ge(held, before);
        before = held;
    }
    free(got);
    free(want);
}

/* Not all of the context is filled, which takes minutes without kernels. */
START_TEST(a_context_of_a_hundred_thousand)
{
    static const int64_t pieces[] = {1000, 16000, 1, 7000};
    compare_sessions("qwen3_win", 1, pieces, 4, CONTEXT);
}
END_TEST

START_TEST(rows_and_rings_grow)
{
    static const char *const models[] = {"llama", "qwen2_sliding", "gpt_oss", "deepseek_v2", "qwen3_next"};
    static const int64_t pieces[] = {5, 300, 1, 700};
    for (int64_t rows = 1; rows <= 3; rows++)
        compare_sessions(models[_i], rows, pieces, 4, 5000);
}
END_TEST

START_TEST(memory_follows_the_tokens)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = NULL);
    tn_session *s = test_model_session(m, .context = CONTEXT);
    ck_assert_uint_eq(tn_session_cache_held(s), 0);
    ck_assert_int_eq(feed(s, 1, 0, 1000, NULL, &err), TN_OK);
    size_t held = tn_session_cache_held(s), full = tn_session_cache_bytes(s);
    ck_assert_uint_gt(held, 0);
    ck_assert_uint_lt(held, full / 2);
    ck_assert_int_eq(tn_session_rewind(s, 10, &err), TN_OK); /* what is held is kept for what comes */
    ck_assert_uint_eq(tn_session_cache_held(s), held);
    tn_session_free(s);
    ck_assert_uint_eq(tn_session_cache_held(NULL), 0);
}
END_TEST

#if !SANITIZER
static rlim_t data_now(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmData: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    ck_assert_uint_gt(kib, 0);
    return (rlim_t)kib << 10;
}
#endif

/* The system refuses to give more: an error that says so, and with memory the session goes on after a reset. */
START_TEST(no_memory_is_an_error)
{
#if SANITIZER
    printf("SKIPPED no memory: the sanitizer's allocator takes from the same limit\n");
#else
    struct rlimit before, tight;
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model_open("llama", NULL);
    tn_session *s = test_model_session(m, .context = CONTEXT);
    float *got = malloc((size_t)test_model_vocab(m) * sizeof *got),
          *want = malloc((size_t)test_model_vocab(m) * sizeof *want);
    /* oneDNN makes all of its code here, also that for products with more than 11,000 keys, which are met below. */
    ck_assert_int_eq(feed(s, 1, 0, 600, want, &err), TN_OK);
    tn_session_reset(s);
    size_t held = tn_session_cache_held(s);
    ck_assert_int_eq(getrlimit(RLIMIT_DATA, &before), 0);
    tight = before;
    tight.rlim_cur = data_now() + ((rlim_t)12 << 20); /* room for what oneDNN packs                        */
    ck_assert_int_eq(setrlimit(RLIMIT_DATA, &tight), 0);
    tn_status status = feed(s, 1, 0, 40000, NULL, &err);
    setrlimit(RLIMIT_DATA, &before);
    ck_assert_int_eq(status, TN_E_MEMORY);
    broken_expect(&err, TN_E_MEMORY, "KV cache", "positions", "use a shorter context", NULL);
    ck_assert_uint_ge(tn_session_cache_held(s), held);
    tn_session_reset(s);
    tn_error_clear(&err);
    ck_assert_int_eq(feed(s, 1, 0, 600, got, &err), TN_OK);
    ck_assert_mem_eq(got, want, (size_t)test_model_vocab(m) * sizeof *got);
    ck_assert_int_eq(feed(s, 1, 600, 17000, NULL, &err), TN_OK);
    tn_session_free(s);
    free(got);
    free(want);
    tn_model_close(m);
#endif
}
END_TEST

/* The memory itself: zero where it was not written, and what is held is counted once. */
START_TEST(parts_are_held_once)
{
    static const size_t sizes[] = {100, 70000, (size_t)9 << 20};
    for (size_t i = 0; i < 3; i++) {
        growing g;
        device d = {.ops = &eager_cpu};
        ck_assert_int_eq(growing_init(&g, &d, sizes[i], NULL), TN_OK);
        ck_assert_int_eq(growing_hold(&g, 10, 60, NULL), TN_OK);
        size_t once = g.held;
        ck_assert_int_eq(growing_hold(&g, 10, 60, NULL), TN_OK);
        ck_assert_uint_eq(g.held, once);
        memset(g.data + 10, 7, 50);
        ck_assert_int_eq(growing_hold(&g, 0, sizes[i], NULL), TN_OK);
        ck_assert_uint_ge(g.held, sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            if (g.data[k] != (k >= 10 && k < 60 ? 7 : 0))
                ck_abort_msg("byte %zu", k);
        ck_assert_uint_eq((uintptr_t)g.data % 64, 0);
        growing_free(&g);
    }
}
END_TEST

/* Of a large block the first huge page is taken piece by piece, unless all of it is wanted at once. */
START_TEST(few_tokens_hold_little)
{
    static const struct {
        size_t to[3], held[3];
    } cases[] = {{{100, 300000, 2 << 20}, {64 << 10, 320 << 10, 2 << 20}},
                 {{1, (2 << 20) + 1, (4 << 20) + 1}, {64 << 10, 4 << 20, 6 << 20}},
                 {{3 << 20, 3 << 20, 9 << 20}, {4 << 20, 4 << 20, 10 << 20}}};
    growing g;
    device d = {.ops = &eager_cpu};
    for (size_t c = 0; c < 3; c++) {
        ck_assert_int_eq(growing_init(&g, &d, (size_t)9 << 20, NULL), TN_OK);
        for (int i = 0; i < 3; i++) {
            ck_assert_uint_eq(growing_would_hold(&g, 0, cases[c].to[i]), cases[c].held[i]);
            ck_assert_int_eq(growing_hold(&g, 0, cases[c].to[i], NULL), TN_OK);
            ck_assert_uint_eq(g.held, cases[c].held[i]);
            memset(g.data, 1, cases[c].to[i]);
        }
        growing_free(&g);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("growing", 600);
    tcase_add_checked_fixture(tc, setup, teardown);
    suite_add(tc, memory_follows_the_tokens);
    tcase_add_loop_test(tc, rows_and_rings_grow, 0, 5);
    suite_add(tc, no_memory_is_an_error, parts_are_held_once, few_tokens_hold_little, a_context_of_a_hundred_thousand);
    return suite_run();
}
