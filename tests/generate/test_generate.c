/* The decode loop on small golden models: what it writes, and everything that ends it. */
#include "broken.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "tests/data/models/llama"
enum { MAX_TOKENS = 16 };

static tn_model *model;
static tn_safetensors *expected;
static const int64_t *prompt, *greedy;
static int64_t prompt_count;

static void setup(void)
{
    tn_tensor t;
    model = test_model(FOLDER, .dtype = NULL);
    expected = tn_safetensors_open(FOLDER "/expected.safetensors", NULL);
    ck_assert_ptr_nonnull(expected);
    ck_assert(tn_safetensors_get(expected, "input_ids", &t));
    ck_assert_int_eq(t.shape[0], 1);
    prompt = t.data;
    prompt_count = t.shape[1];
    ck_assert(tn_safetensors_get(expected, "greedy", &t));
    ck_assert_int_eq(t.shape[0], MAX_TOKENS);
    greedy = t.data;
}

static void teardown(void)
{
    tn_safetensors_close(expected);
}

static tn_generate_options plain(void)
{
    return (tn_generate_options){.size = sizeof(tn_generate_options), .max_tokens = MAX_TOKENS, .ignore_eos = true};
}

static tn_generate_result generate(tn_session *s, const tn_generate_options *o, int64_t *out)
{
    tn_error err = TN_ERROR_INIT;
    tn_generate_result r = {.size = sizeof r};
    tn_status status = tn_generate(s, prompt, prompt_count, o, out, &r, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
    return r;
}

typedef struct watch {
    int64_t tokens[MAX_TOKENS], count, stop_after;
    int64_t calls, last, total, stop_prompt_at;
} watch;

static int on_token(void *ctx, int64_t id)
{
    watch *w = ctx;
    w->tokens[w->count++] = id;
    return w->count == w->stop_after;
}

static int on_prompt(void *ctx, int64_t done, int64_t total)
{
    watch *w = ctx;
    ck_assert_int_gt(done, w->last);
    w->calls++;
    w->last = done;
    w->total = total;
    return w->stop_prompt_at && done >= w->stop_prompt_at;
}

START_TEST(greedy_tokens_are_those_of_transformers)
{
    static const int64_t chunks[] = {0, 1, 5};
    for (size_t i = 0; i < 3; i++) {
        tn_session *s = test_session(model, .chunk = chunks[i]);
        int64_t out[MAX_TOKENS] = {0};
        tn_generate_options o = plain();
        tn_generate_result r = generate(s, &o, out);
        ck_assert_int_eq(r.count, MAX_TOKENS);
        ck_assert_int_eq(r.stop, TN_STOP_LENGTH);
        ck_assert_mem_eq(out, greedy, sizeof out);
        ck_assert(r.prompt_seconds > 0 && r.decode_seconds > 0);
        /* The last token is not fed: a caller that goes on begins with it. */
        ck_assert_int_eq(tn_session_length(s), prompt_count + MAX_TOKENS - 1);
    }
}
END_TEST

START_TEST(sampling_follows_the_seed)
{
    int64_t out[3][MAX_TOKENS] = {{0}};
    static const uint64_t seeds[3] = {1, 1, 2};
    for (int i = 0; i < 3; i++) {
        tn_session *s = test_session(model, .context = 0);
        tn_generate_options o = plain();
        o.temperature = 2;
        o.seed = seeds[i];
        ck_assert_int_eq(generate(s, &o, out[i]).count, MAX_TOKENS);
    }
    ck_assert_mem_eq(out[0], out[1], sizeof out[0]);
    ck_assert(memcmp(out[0], out[2], sizeof out[0]) != 0);
    ck_assert(memcmp(out[0], greedy, sizeof out[0]) != 0);
    /* One candidate is greedy, whatever the temperature. */
    tn_session *s = test_session(model, .context = 0);
    tn_generate_options o = plain();
    o.temperature = 2;
    o.top_k = 1;
    generate(s, &o, out[0]);
    ck_assert_mem_eq(out[0], greedy, sizeof out[0]);
}
END_TEST

START_TEST(callbacks_see_and_stop)
{
    tn_session *s = test_session(model, .chunk = 5);
    int64_t out[MAX_TOKENS];
    watch w = {.stop_after = 3};
    tn_generate_options o = plain();
    o.on_token = on_token;
    o.on_prompt = on_prompt;
    o.ctx = &w;
    tn_generate_result r = generate(s, &o, out);
    ck_assert_int_eq(r.stop, TN_STOP_CALLBACK);
    ck_assert_int_eq(r.count, 3);
    ck_assert_mem_eq(w.tokens, greedy, 3 * sizeof out[0]);
    ck_assert_mem_eq(out, greedy, 3 * sizeof out[0]);
    ck_assert_int_eq(w.calls, (prompt_count + 4) / 5);
    ck_assert_int_eq(w.last, prompt_count);
    ck_assert_int_eq(w.total, prompt_count);
    tn_session_reset(s);
    w = (watch){.stop_prompt_at = 5};
    r = generate(s, &o, out);
    ck_assert_int_eq(r.stop, TN_STOP_CALLBACK);
    ck_assert_int_eq(r.count, 0);
    ck_assert_int_eq(w.calls, 1);
    ck_assert_int_eq(w.count, 0);
}
END_TEST

/* The model's configuration is changed so that the fourth greedy token ends a sequence. */
START_TEST(an_end_of_sequence_ends_it)
{
    int at = 3;
    for (int i = 0; i < at; i++)
        ck_assert_int_ne(greedy[i], greedy[at]);
    char *folder = broken_copy("llama"), value[64];
    snprintf(value, sizeof value, "[2, %lld]", (long long)greedy[at]);
    broken_json(folder, "config.json", "eos_token_id", value);
    tn_model *other = test_model(folder, .dtype = NULL);
    tn_session *s = test_session(other, .context = 0);
    int64_t out[MAX_TOKENS];
    tn_generate_options o = plain();
    tn_generate_result r = generate(s, &o, out);
    ck_assert_int_eq(r.count, MAX_TOKENS); /* ignored */
    tn_session_reset(s);
    o.ignore_eos = false;
    r = generate(s, &o, out);
    ck_assert_int_eq(r.stop, TN_STOP_EOS);
    ck_assert_int_eq(r.count, at + 1);
    ck_assert_int_eq(out[at], greedy[at]);
}
END_TEST

/* With room for n more tokens, n + 1 are found: the last needs no place. */
START_TEST(the_context_ends_it)
{
    for (int room = 0; room < 3; room++) {
        tn_session *s = test_session(model, .context = prompt_count + room);
        int64_t out[MAX_TOKENS];
        tn_generate_options o = plain();
        tn_generate_result r = generate(s, &o, out);
        ck_assert_int_eq(r.stop, TN_STOP_CONTEXT);
        ck_assert_int_eq(r.count, room + 1);
        ck_assert_mem_eq(out, greedy, (size_t)r.count * sizeof out[0]);
    }
    tn_session *s = test_session(model, .context = prompt_count - 1);
    tn_generate_options o = plain();
    tn_generate_result r = {.size = sizeof r};
    int64_t out[MAX_TOKENS];
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_generate(s, prompt, prompt_count, &o, out, &r, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "context", NULL);
    ck_assert_int_eq(r.count, 0);
}
END_TEST

START_TEST(no_tokens_may_be_asked_for)
{
    tn_session *s = test_session(model, .context = 0);
    tn_generate_options o = plain();
    o.max_tokens = 0;
    tn_generate_result r = generate(s, &o, NULL);
    ck_assert_int_eq(r.count, 0);
    ck_assert_int_eq(r.stop, TN_STOP_LENGTH);
    ck_assert_int_eq(tn_session_length(s), prompt_count);
}
END_TEST

START_TEST(bad_calls_are_errors)
{
    tn_session *s = test_session(model, .context = 0);
    int64_t out[MAX_TOKENS];
    const int64_t outside[] = {1, 264}, negative[] = {-1};
    tn_generate_options o = plain();
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_generate(s, prompt, 0, &o, out, NULL, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "prompt", "empty", NULL);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_generate(s, outside, 2, &o, out, NULL, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "264", NULL);
    ck_assert_int_eq(tn_generate(s, negative, 1, &o, out, NULL, NULL), TN_E_INPUT);
    ck_assert_int_eq(tn_session_length(s), 0);
    o.max_tokens = -1;
    ck_assert_int_eq(tn_generate(s, prompt, 1, &o, out, NULL, NULL), TN_E_USAGE);
    o = plain();
    o.temperature = -1;
    ck_assert_int_eq(tn_generate(s, prompt, 1, &o, out, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_generate(s, prompt, 1, &(tn_generate_options){.max_tokens = 3}, out, NULL, NULL), TN_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("generate", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    suite_add(tc, greedy_tokens_are_those_of_transformers, sampling_follows_the_seed, callbacks_see_and_stop,
              an_end_of_sequence_ends_it, the_context_ends_it, no_tokens_may_be_asked_for, bad_calls_are_errors);
    return suite_run();
}
