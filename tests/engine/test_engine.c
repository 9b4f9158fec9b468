/* An engine's sequences: what is refused, how they end, what their callbacks see, and what they leave. That a sequence
 * among others is what it is alone, bit for bit, is check_engine's to show, for every model. */
#include "sanitizer.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tenon/tenon.h>
#include <unistd.h>

enum { CONTEXT = 400, MOST = 32 };

/* What a sequence did. */
typedef struct heard {
    int64_t tokens[MOST], count, stop_at, forced, prompts;
    double prompt_sum;
    bool poison;
    int ends;
    tn_engine_result result;
} heard;

static int on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    heard *h = ctx;
    ck_assert_int_eq(row, 0);
    ck_assert_int_eq(step, h->count);
    for (int64_t i = 0; i < vocab && h->forced > 0; i++)
        logits[i] = i == h->forced ? 1 : -INFINITY;
    if (h->poison)
        logits[0] = NAN;
    return TN_NEXT_TOKEN;
}

static int on_token(void *ctx, int64_t row, int64_t id)
{
    heard *h = ctx;
    ck_assert_int_eq(row, 0);
    ck_assert_int_lt(h->count, MOST);
    ck_assert_int_eq(h->ends, 0);
    h->tokens[h->count++] = id;
    return h->count == h->stop_at ? TN_NEXT_END_ROW : TN_NEXT_TOKEN;
}

static void on_prompt_logits(void *ctx, int64_t position, const float *logits, int64_t vocab)
{
    heard *h = ctx;
    ck_assert_int_eq(position, h->prompts++);
    for (int64_t i = 0; i < vocab; i++)
        h->prompt_sum += logits[i];
}

static void on_end(void *ctx, const tn_engine_result *result)
{
    heard *h = ctx;
    h->ends++;
    h->result = *result;
}

static tn_engine *new_engine(tn_model *m, const tn_engine_options *options)
{
    tn_error err = TN_ERROR_INIT;
    tn_engine *e = tn_engine_new(m, options, &err);
    ck_assert_msg(e != NULL, "%s: %s", err.where, err.message);
    return e;
}

static tn_engine *engine_of(tn_model *m)
{
    return new_engine(m, &(tn_engine_options){.size = sizeof(tn_engine_options), .context = CONTEXT});
}

static tn_generate_options options_of(heard *h, int64_t max_tokens)
{
    return (tn_generate_options){.size = sizeof(tn_generate_options),
                                 .max_tokens = max_tokens,
                                 .ignore_eos = true,
                                 .on_logits = on_logits,
                                 .on_row_token = on_token,
                                 .ctx = h};
}

static void fill(int64_t *ids, int64_t count, int64_t factor)
{
    for (int64_t i = 0; i < count; i++)
        ids[i] = (i * factor + 3) % 60;
}

static uint64_t add(tn_engine *e, heard *h, const int64_t *prompt, int64_t count, int64_t max_tokens)
{
    tn_error err = TN_ERROR_INIT;
    uint64_t id = 0;
    tn_generate_options o = options_of(h, max_tokens);
    tn_engine_request r = {.size = sizeof r, .prompt = prompt, .prompt_count = count, .options = &o, .on_end = on_end};
    ck_assert_msg(tn_engine_add(e, &r, &id, &err) == TN_OK, "%s: %s", err.where, err.message);
    return id;
}

static void finish(tn_engine *e)
{
    tn_error err = TN_ERROR_INIT;
    bool more = true;
    for (int i = 0; more; i++) {
        ck_assert_msg(tn_engine_step(e, &more, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_int_lt(i, 4000);
    }
}

static tn_engine_info info_of(const tn_engine *e)
{
    tn_engine_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_engine_get_info(e, &info), TN_OK);
    return info;
}

START_TEST(what_cannot_be_is_refused)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_engine *e = engine_of(m);
    int64_t vocab = test_model_vocab(m), ids[CONTEXT + 1];
    heard h = {0};
    tn_generate_options o = options_of(&h, 4);
    tn_error err = TN_ERROR_INIT;
    fill(ids, CONTEXT + 1, 7);
    tn_engine_request r = {.size = sizeof r, .prompt = ids, .prompt_count = 4, .options = &o, .on_end = on_end};
    struct {
        tn_engine_request request;
        tn_status status;
        const char *words;
    } cases[6] = {{r, TN_E_INPUT, "prompt is empty"}, {r, TN_E_INPUT, "do not fit into the context of 400"},
                  {r, TN_E_USAGE, "on_end"},          {r, TN_E_USAGE, "options"},
                  {r, TN_E_USAGE, "prompt"},          {r, TN_E_USAGE, "tn_engine_request"}};
    cases[0].request.prompt_count = 0;
    cases[1].request.prompt_count = CONTEXT + 1;
    cases[2].request.on_end = NULL;
    cases[3].request.options = NULL;
    cases[4].request.prompt = NULL;
    cases[5].request.size = 0;
    for (int i = 0; i < 6; i++) {
        tn_error_clear(&err);
        ck_assert_int_eq(tn_engine_add(e, &cases[i].request, NULL, &err), cases[i].status);
        suite_expect_in(i < 2 ? err.message : err.where, cases[i].words);
    }
    tn_error_clear(&err);
    ids[2] = vocab;
    ck_assert_int_eq(tn_engine_add(e, &r, NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, "outside the vocabulary");
    tn_error_clear(&err);
    ids[2] = 1;
    o.temperature = -1;
    ck_assert_int_ne(tn_engine_add(e, &r, NULL, &err), TN_OK);
    bool more = true;
    ck_assert_int_eq(tn_engine_step(e, &more, &err), TN_OK);
    ck_assert(!more);
    ck_assert_int_eq(h.ends, 0);
    tn_engine_free(e);
}
END_TEST

START_TEST(ends_are_told_once)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_engine *e = engine_of(m);
    int64_t ids[20];
    fill(ids, 20, 7);
    heard full = {0}, stopped = {.stop_at = 3}, nothing = {0}, late = {0}, waits = {0};
    add(e, &full, ids, 20, 9);
    add(e, &stopped, ids, 11, 9);
    add(e, &nothing, ids, 5, 0);
    uint64_t id = add(e, &late, ids, 7, 30);
    bool more = true;
    tn_error err = TN_ERROR_INIT;
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(tn_engine_step(e, &more, &err), TN_OK);
    tn_engine_cancel(e, id);
    ck_assert_int_eq(late.ends, 1);
    ck_assert_int_eq(late.result.status, TN_E_CANCELLED);
    ck_assert_int_gt(late.count, 0);
    tn_engine_cancel(e, id);
    id = add(e, &waits, ids, 7, 30);
    tn_engine_cancel(e, id);
    tn_engine_cancel(e, 12345);
    finish(e);
    ck_assert_int_eq(full.count, 9);
    ck_assert_int_eq(full.result.stop, TN_STOP_LENGTH);
    ck_assert_int_eq(stopped.count, 3);
    ck_assert_int_eq(stopped.result.stop, TN_STOP_CALLBACK);
    ck_assert_int_eq(nothing.count, 0);
    ck_assert_int_eq(nothing.result.stop, TN_STOP_LENGTH);
    ck_assert_int_eq(waits.result.status, TN_E_CANCELLED);
    ck_assert_int_eq(waits.count, 0);
    heard left = {0}, behind = {0};
    add(e, &left, ids, 6, 30);
    ck_assert_int_eq(tn_engine_step(e, &more, &err), TN_OK);
    add(e, &behind, ids, 6, 30);
    tn_engine_free(e);
    heard *all[] = {&full, &stopped, &nothing, &late, &waits, &left, &behind};
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(all[i]->ends, 1);
    ck_assert_int_eq(left.result.status, TN_E_CANCELLED);
    ck_assert_int_eq(behind.result.status, TN_E_CANCELLED);
}
END_TEST

/* A row of logits that chooses nothing ends its own sequence. */
START_TEST(one_error_is_of_one_sequence)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_engine *e = engine_of(m);
    int64_t ids[20];
    fill(ids, 20, 11);
    heard good = {0}, bad = {.poison = true}, forced = {.forced = 17};
    add(e, &good, ids, 20, 5);
    add(e, &bad, ids, 9, 5);
    add(e, &forced, ids, 3, 5);
    finish(e);
    ck_assert_int_eq(good.count, 5);
    ck_assert_int_eq(good.result.status, TN_OK);
    ck_assert_int_eq(bad.count, 0);
    ck_assert_int_eq(bad.result.status, TN_E_INPUT);
    suite_expect_in(bad.result.error.message, "NaN");
    ck_assert_int_eq(forced.count, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(forced.tokens[i], 17);
    tn_engine_free(e);
}
END_TEST

START_TEST(an_end_token_ends)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    ck_assert_uint_gt(info.eos_total, 0);
    tn_engine *e = engine_of(m);
    int64_t ids[4];
    fill(ids, 4, 5);
    heard h = {.forced = info.eos_ids[0]};
    tn_error err = TN_ERROR_INIT;
    tn_generate_options o = options_of(&h, 9);
    o.ignore_eos = false;
    tn_engine_request r = {.size = sizeof r, .prompt = ids, .prompt_count = 4, .options = &o, .on_end = on_end};
    ck_assert_int_eq(tn_engine_add(e, &r, NULL, &err), TN_OK);
    finish(e);
    ck_assert_int_eq(h.count, 1);
    ck_assert_int_eq(h.result.stop, TN_STOP_EOS);
    tn_engine_free(e);
}
END_TEST

START_TEST(the_context_ends)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_engine *e = new_engine(m, &(tn_engine_options){.size = sizeof(tn_engine_options), .context = 12});
    int64_t ids[12];
    fill(ids, 12, 5);
    heard h = {0}, whole = {0};
    add(e, &h, ids, 8, 30);
    add(e, &whole, ids, 12, 30);
    finish(e);
    ck_assert_int_eq(h.count, 5); /* four that fit, and one that comes of the last                    */
    ck_assert_int_eq(h.result.stop, TN_STOP_CONTEXT);
    ck_assert_int_eq(whole.count, 1);
    tn_engine_free(e);
}
END_TEST

/* Prompts are heard token by token, in order and once, as a session gives them; in pieces, too, and nothing is taken
 * from what was computed before. */
START_TEST(prompts_are_heard)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    int64_t vocab = test_model_vocab(m), ids[50];
    fill(ids, 50, 13);
    float *logits = malloc((size_t)(50 * vocab) * sizeof *logits);
    tn_session *s = test_session(m, .context = CONTEXT);
    test_model_run(s, 50, ids, .logits = logits);
    double want = 0;
    for (int64_t i = 0; i < 50 * vocab; i++)
        want += logits[i];
    free(logits);
    tn_engine *e = new_engine(
        m, &(tn_engine_options){.size = sizeof(tn_engine_options), .context = CONTEXT, .sequences = 3, .budget = 7});
    heard first = {0}, h[2];
    memset(h, 0, sizeof h);
    add(e, &first, ids, 50, 3);
    finish(e);
    for (int i = 0; i < 2; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_generate_options o = options_of(&h[i], i * 2);
        tn_engine_request r = {.size = sizeof r,
                               .prompt = ids,
                               .prompt_count = 50,
                               .options = &o,
                               .on_prompt_logits = on_prompt_logits,
                               .on_end = on_end};
        ck_assert_int_eq(tn_engine_add(e, &r, NULL, &err), TN_OK);
    }
    finish(e);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(h[i].prompts, 50);
        ck_assert_int_eq(h[i].result.cached, 0);
        ck_assert_int_eq(h[i].count, i * 2);
        ck_assert_double_eq_tol(h[i].prompt_sum, want, 1e-3 * (1 + fabs(want)));
    }
    tn_engine_free(e);
}
END_TEST

static int heads;
static int64_t vocab_of_heads;

static tn_status counted(const tn_call *call, tn_error *err)
{
    heads += call->out[0].shape[call->out[0].ndim - 1] == vocab_of_heads;
    return test_kernel_forward(call, err);
}

/* However many prompts end in a step, and however many rows a session has, the head's weights are read once. */
START_TEST(heads_are_read_once)
{
    enum { PROMPTS = 5 };
    static const int64_t lengths[PROMPTS] = {9, 1, 12, 3, 20};
    int64_t ids[PROMPTS][20];
    heard together[PROMPTS], alone[PROMPTS];
    memset(together, 0, sizeof together);
    memset(alone, 0, sizeof alone);
    tn_model *m = test_model("llama", .dtype = "f32");
    vocab_of_heads = test_model_vocab(m);
    test_kernel_add(&(test_kernel){.id = "counted", .op = TN_OP_LINEAR, .forward = counted});
    test_model_apply(m, test_config("{\"verify\": \"never\", \"measure\": false}"), "counted");
    tn_engine *e = engine_of(m);
    for (int i = 0; i < PROMPTS; i++) {
        for (int64_t t = 0; t < lengths[i]; t++)
            ids[i][t] = (t * 7 + i) % 60;
        add(e, &alone[i], ids[i], lengths[i], 4);
        finish(e);
    }
    tn_engine_free(e);
    e = engine_of(m);
    for (int i = 0; i < PROMPTS; i++)
        add(e, &together[i], ids[i], lengths[i], 4);
    heads = 0;
    finish(e);
    ck_assert_int_eq(heads, 4);
    tn_engine_free(e);
    for (int i = 0; i < PROMPTS; i++)
        ck_assert_mem_eq(together[i].tokens, alone[i].tokens, 4 * sizeof *alone[i].tokens);
    float *last = malloc((size_t)(3 * vocab_of_heads) * sizeof *last);
    tn_session *s = test_session(m, .rows = 3, .context = CONTEXT);
    heads = 0;
    const tn_batch batch = {.size = sizeof batch, .rows = 3, .tokens = 3, .ids = ids[2]};
    ck_assert_int_eq(tn_session_run(s, &batch, &(tn_outputs){.size = sizeof(tn_outputs), .last_logits = last}, NULL),
                     TN_OK);
    ck_assert_int_eq(heads, 1);
    for (int64_t b = 0; b < 3; b++) {
        tn_session *one = test_session(m, .context = CONTEXT);
        float *right = malloc((size_t)vocab_of_heads * sizeof *right);
        test_model_run(one, 3, &ids[2][3 * b], .last_logits = right);
        for (int64_t i = 0; i < vocab_of_heads; i++)
            ck_assert_double_eq_tol(last[b * vocab_of_heads + i], right[i], 1e-4 * (1 + fabs(right[i])));
        free(right);
    }
    free(last);
}
END_TEST

/* Beginnings are shared by sequences of one salt, among those that run, too. */
START_TEST(beginnings_are_shared)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_engine *e = engine_of(m);
    int64_t ids[200];
    fill(ids, 200, 17);
    heard a = {0}, b = {0}, c = {0};
    add(e, &a, ids, 200, 8);
    add(e, &b, ids, 200, 8); /* waits for what a is computing                                          */
    finish(e);
    ck_assert_int_eq(a.result.cached, 0);
    ck_assert_int_eq(b.result.cached, 199);
    ck_assert(memcmp(a.tokens, b.tokens, 8 * sizeof *a.tokens) == 0);
    tn_engine_info info = info_of(e);
    ck_assert_int_eq(info.prompt_tokens, 201);
    ck_assert_int_eq(info.prefix_hits, 199);
    ck_assert_int_eq(info.prefix_queries, 400);
    ck_assert_int_eq(info.generated_tokens, 16);
    ck_assert_uint_gt(info.cache_held, 0);
    tn_error err = TN_ERROR_INIT;
    tn_generate_options o = options_of(&c, 2);
    tn_engine_request r = {
        .size = sizeof r, .prompt = ids, .prompt_count = 200, .options = &o, .salt = 5, .on_end = on_end};
    ck_assert_int_eq(tn_engine_add(e, &r, NULL, &err), TN_OK);
    finish(e);
    ck_assert_int_eq(c.result.cached, 0);
    tn_engine_free(e);
}
END_TEST

/* Bytes of one sequence with so many tokens. */
static size_t bytes_of(tn_model *m, int64_t tokens)
{
    tn_session *s = test_session(m, .context = CONTEXT);
    int64_t ids[CONTEXT];
    fill(ids, tokens, 3);
    test_model_run(s, tokens, ids, .last_logits = NULL);
    return tn_session_cache_held(s);
}

/* A cache for one of them at a time: the younger gives way and is computed again; one alone that outgrows it fails. */
START_TEST(memory_is_bounded)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    size_t small = bytes_of(m, 200), large = bytes_of(m, 300);
    ck_assert_uint_gt(large, small);
    tn_engine *e = new_engine(
        m,
        &(tn_engine_options){.size = sizeof(tn_engine_options), .context = CONTEXT, .cache_bytes = small + large - 1});
    int64_t ids[CONTEXT];
    fill(ids, CONTEXT, 7);
    heard a = {0}, b = {0};
    add(e, &a, ids, 184, MOST);
    add(e, &b, ids + 1, 183, MOST);
    tn_error err = TN_ERROR_INIT;
    bool more = true;
    size_t most = 0;
    while (more) {
        ck_assert_int_eq(tn_engine_step(e, &more, &err), TN_OK);
        size_t held = info_of(e).cache_held;
        most = held > most ? held : most;
    }
    ck_assert_uint_le(most, small + large - 1);
    ck_assert_int_eq(a.count, MOST);
    ck_assert_int_eq(b.count, MOST);
    tn_engine_free(e);
    e = new_engine(m,
                   &(tn_engine_options){.size = sizeof(tn_engine_options), .context = CONTEXT, .cache_bytes = small});
    heard c = {0};
    tn_generate_options o = options_of(&c, 4);
    tn_engine_request r = {.size = sizeof r, .prompt = ids, .prompt_count = 300, .options = &o, .on_end = on_end};
    ck_assert_int_eq(tn_engine_add(e, &r, NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, "that the cache may take");
    add(e, &c, ids, 250, MOST);
    finish(e);
    ck_assert_int_eq(c.result.status, TN_E_MEMORY);
    suite_expect_in(c.result.error.message, "that the cache may take");
    ck_assert_int_gt(c.count, 0);
    heard d = {0};
    add(e, &d, ids, 20, 4);
    finish(e);
    ck_assert_int_eq(d.result.status, TN_OK);
    tn_engine_free(e);
}
END_TEST

/* A conversation that fills the cache goes on in it, since its keys are taken over; another text has to give it up. */
START_TEST(a_full_cache_is_gone_on_with)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_engine *e = new_engine(
        m,
        &(tn_engine_options){.size = sizeof(tn_engine_options), .context = CONTEXT, .cache_bytes = bytes_of(m, 300)});
    int64_t ids[CONTEXT];
    fill(ids, CONTEXT, 7);
    heard first = {0}, next = {0}, half = {0}, other = {0};
    add(e, &first, ids, 200, 4);
    finish(e);
    add(e, &next, ids, 220, 4); /* nearly all of what is kept                                           */
    finish(e);
    ck_assert_int_eq(next.result.cached, 200);
    ids[150]++;
    add(e, &half, ids, 220, 4); /* a copy would not fit                                                  */
    finish(e);
    ck_assert_int_eq(half.result.cached, 150);
    add(e, &other, ids + 1, 220, 4);
    finish(e);
    ck_assert_int_eq(other.result.cached, 0);
    ck_assert_int_eq(other.count, 4);
    tn_engine_free(e);
}
END_TEST

#if !SANITIZER
static rlim_t addresses_now(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert(file && fscanf(file, "%llu", &pages) == 1);
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}
#endif

/* The system has room for fewer texts than the cache may hold: kept ones go, and nobody hears of it. */
START_TEST(kept_texts_make_room)
{
#if SANITIZER
    printf("SKIPPED kept texts: the sanitizer takes all addresses\n");
#else
    enum { TEXTS = 12, ROOM = 3, LONG = 100000 };
    struct rlimit before, tight;
    tn_model *m = test_model("llama", .dtype = NULL);
    tn_session *s = test_model_session(m, .context = LONG);
    rlim_t one = (rlim_t)tn_session_cache_bytes(s);
    tn_session_free(s);
    tn_engine *e = new_engine(m, &(tn_engine_options){.size = sizeof(tn_engine_options), .context = LONG});
    int64_t prompt[24];
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    for (int i = 0; i < TEXTS; i++) {
        heard h = {0};
        fill(prompt, 24, 5 + i);
        add(e, &h, prompt, 24, 2);
        finish(e);
        ck_assert_msg(h.result.status == TN_OK, "text %d", i);
        ck_assert_int_eq(h.count, 2);
        if (i > 0)
            continue;
        tight = before;
        tight.rlim_cur = addresses_now() + ROOM * one;
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &tight), 0);
    }
    setrlimit(RLIMIT_AS, &before);
    tn_engine_free(e);
#endif
}
END_TEST

START_TEST(models_that_see_ahead_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("embeddinggemma", .dtype = "f32");
    ck_assert(!tn_engine_new(m, NULL, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    tn_error_clear(&err);
    ck_assert(!tn_engine_new(NULL, NULL, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    m = test_model("llama", .dtype = "f32");
    static const tn_engine_options wrong[] = {{.size = sizeof *wrong, .sequences = -1},
                                              {.size = sizeof *wrong, .budget = -4},
                                              {.size = sizeof *wrong, .context = -1},
                                              {.size = sizeof *wrong, .sequences = 1 << 20}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_error_clear(&err);
        ck_assert(!tn_engine_new(m, &wrong[i], &err));
        ck_assert_int_eq(err.code, TN_E_USAGE);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("engine", 0);
    suite_add(tcase, what_cannot_be_is_refused, ends_are_told_once, one_error_is_of_one_sequence, an_end_token_ends,
              the_context_ends, prompts_are_heard, heads_are_read_once, beginnings_are_shared, memory_is_bounded,
              a_full_cache_is_gone_on_with, kept_texts_make_room, models_that_see_ahead_are_refused);
    return suite_run();
}
