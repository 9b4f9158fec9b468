/* Several rows in one call of the decode loop, and callbacks that see and change logits. */
#include "broken.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, LONGEST = 11, MAX_TOKENS = 9, MOST_VOCAB = 512 };

static const int64_t lengths[ROWS] = {LONGEST, 3, 7};

/* Prompts padded on the left, as a batch. */
typedef struct prompts {
    int64_t ids[ROWS * LONGEST], mask[ROWS * LONGEST];
    tn_batch batch;
} prompts;

static void fill(prompts *p)
{
    for (int64_t i = 0; i < ROWS * LONGEST; i++) {
        p->mask[i] = i % LONGEST >= LONGEST - lengths[i / LONGEST];
        p->ids[i] = p->mask[i] ? (i * 37 + 11) % 120 + 3 : 0;
    }
    p->batch = (tn_batch){.size = sizeof p->batch, .rows = ROWS, .tokens = LONGEST, .ids = p->ids, .mask = p->mask};
}

static tn_generate_options plain(void)
{
    return (tn_generate_options){.size = sizeof(tn_generate_options), .max_tokens = MAX_TOKENS, .ignore_eos = true};
}

/* A row's prompt alone. */
static tn_generate_result alone(tn_model *m, const prompts *p, int64_t row, tn_generate_options o, int64_t *out)
{
    tn_error err = TN_ERROR_INIT;
    tn_generate_result r = {.size = sizeof r};
    tn_session *s = test_model_session(m, .context = 64, .chunk = 4);
    const int64_t *ids = p->ids + (row + 1) * LONGEST - lengths[row];
    ck_assert_msg(tn_generate(s, ids, lengths[row], &o, out, &r, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_session_free(s);
    return r;
}

static tn_generate_result **together(tn_session *s, const prompts *p, const tn_generate_options *o, int64_t *out)
{
    tn_error err = TN_ERROR_INIT;
    tn_generate_result **r = NULL;
    tn_status status = tn_generate_rows(s, &p->batch, o, out, &r, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_ptr_nonnull(r);
    suite_keep(r, free);
    return r;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

typedef struct watch {
    int64_t seen[ROWS], stop_row, stop_after, last_row;
    int want; /* from stop_row after so many tokens */
} watch;

static int on_row_token(void *ctx, int64_t row, int64_t id)
{
    watch *w = ctx;
    ck_assert_int_ge(id, 0);
    w->last_row = row;
    return ++w->seen[row] == w->stop_after && row == w->stop_row ? w->want : TN_NEXT_TOKEN;
}

/* Windows, states that tokens update, experts. */
static const char *const models[] = {"llama",     "qwen2_sliding", "qwen3_next",  "lfm2",
                                     "qwen3_moe", "gemma3_text",   "kimi_linear", "deepseek_v32"};

/* The rows end at different times, and one that ended changes nothing in the others. */
START_TEST(rows_are_what_they_are_alone)
{
    tn_model *m = test_model(models[_i], .dtype = "f32");
    tn_session *s = test_session(m, .rows = ROWS, .context = 64, .chunk = 4);
    prompts p;
    fill(&p);
    for (int draws = 0; draws < 2; draws++) {
        int64_t out[ROWS * MAX_TOKENS] = {0}, one[MAX_TOKENS];
        watch w = {.stop_row = draws, .stop_after = 2 + draws, .want = TN_NEXT_END_ROW};
        tn_generate_options o = plain();
        o.temperature = draws ? 0.8 : 0;
        o.repetition_penalty = draws ? 1.2 : 0;
        o.seed = 5;
        tn_generate_options with = o;
        with.on_row_token = on_row_token;
        with.ctx = &w;
        tn_generate_result **r = together(s, &p, &with, out);
        for (int64_t b = 0; b < ROWS; b++) {
            bool stopped = b == w.stop_row;
            alone(m, &p, b, o, one);
            ck_assert_int_eq(r[b]->count, stopped ? w.stop_after : MAX_TOKENS);
            ck_assert_int_eq(r[b]->count, w.seen[b]);
            ck_assert_int_eq(r[b]->stop, stopped ? TN_STOP_CALLBACK : TN_STOP_LENGTH);
            ck_assert_mem_eq(out + b * MAX_TOKENS, one, (size_t)r[b]->count * sizeof *one);
            ck_assert(r[b]->prompt_seconds > 0 && r[b]->decode_seconds <= r[ROWS - 1]->decode_seconds);
            o.seed++;
        }
        tn_session_reset(s);
    }
}
END_TEST

START_TEST(a_callback_ends_all_rows)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_session *s = test_session(m, .rows = ROWS, .context = 64, .chunk = 4);
    prompts p;
    fill(&p);
    int64_t out[ROWS * MAX_TOKENS];
    watch w = {.stop_row = 1, .stop_after = 4, .want = TN_NEXT_END_ALL};
    tn_generate_options o = plain();
    o.on_row_token = on_row_token;
    o.ctx = &w;
    tn_generate_result **r = together(s, &p, &o, out);
    ck_assert_int_eq(w.last_row, 1); /* nobody behind it got a fourth */
    for (int64_t b = 0; b < ROWS; b++) {
        ck_assert_int_eq(r[b]->stop, TN_STOP_CALLBACK);
        ck_assert_int_eq(r[b]->count, b <= 1 ? 4 : 3);
    }
}
END_TEST

/* Each row has as much room as its own tokens leave. */
START_TEST(the_context_ends_each_row_by_itself)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_session *s = test_session(m, .rows = ROWS, .context = LONGEST + 2, .chunk = 4);
    prompts p;
    fill(&p);
    int64_t out[ROWS * MAX_TOKENS];
    tn_generate_options o = plain();
    tn_generate_result **r = together(s, &p, &o, out);
    for (int64_t b = 0; b < ROWS; b++) {
        int64_t room = LONGEST + 2 - lengths[b] + 1;
        ck_assert_int_eq(r[b]->count, room < MAX_TOKENS ? room : MAX_TOKENS);
        ck_assert_int_eq(r[b]->stop, room < MAX_TOKENS ? TN_STOP_CONTEXT : TN_STOP_LENGTH);
    }
}
END_TEST

START_TEST(bad_batches_are_refused)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_session *s = test_session(m, .rows = ROWS, .context = LONGEST + 2, .chunk = 4);
    prompts p;
    fill(&p);
    int64_t out[ROWS * MAX_TOKENS];
    tn_generate_result **r = NULL;
    tn_generate_options o = plain();
    tn_error err = TN_ERROR_INIT;
    p.batch.rows = 2;
    ck_assert_int_eq(tn_generate_rows(s, &p.batch, &o, out, &r, &err), TN_E_USAGE);
    broken_expect(&err, TN_E_USAGE, "the batch has 2 rows, the session 3", NULL);
    ck_assert_int_eq(r[ROWS - 1]->count, 0);
    free(r);
    fill(&p);
    p.ids[LONGEST - 1] = 4000;
    ck_assert_int_eq(tn_generate_rows(s, &p.batch, &o, out, NULL, NULL), TN_E_INPUT);
    fill(&p);
    o.max_tokens = (int64_t)INT32_MAX + 1;
    ck_assert_int_eq(tn_generate_rows(s, &p.batch, &o, out, NULL, NULL), TN_E_USAGE);
    o.max_tokens = 1;
    ck_assert_int_eq(tn_generate(s, p.ids, 1, &o, out, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_session_length(s), 0);
    ck_assert_int_eq(tn_generate_rows(s, &p.batch, &o, out, NULL, NULL), TN_OK);
}
END_TEST

/* ---- logits ----------------------------------------------------------------------------------------------------- */

typedef struct hook {
    float first[MOST_VOCAB];
    int64_t calls, forbid, end_at;
    int want;
    float write; /* to logits[forbid] */
} hook;

static int on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    hook *h = ctx;
    ck_assert_int_eq(row, 0);
    ck_assert_int_eq(step, h->calls);
    ck_assert_int_le(vocab, MOST_VOCAB);
    if (h->calls++ == 0)
        memcpy(h->first, logits, (size_t)vocab * sizeof *logits);
    if (h->forbid >= 0)
        logits[h->forbid] = h->write;
    return step == h->end_at ? h->want : TN_NEXT_TOKEN;
}

static tn_generate_result hooked(tn_model *m, hook *h, double temperature, int64_t *out, tn_error *err)
{
    prompts p;
    fill(&p);
    tn_session *s = test_model_session(m, .context = 64, .chunk = 4);
    tn_generate_options o = plain();
    tn_generate_result r = {.size = sizeof r};
    h->calls = 0;
    o.temperature = temperature;
    o.repetition_penalty = 1.3;
    o.on_logits = on_logits;
    o.ctx = h;
    tn_generate(s, p.ids, LONGEST, &o, out, &r, err);
    tn_session_free(s);
    return r;
}

/* What the model computed, before penalty and temperature; what is excluded never comes. */
START_TEST(a_callback_sees_and_changes_logits)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_error err = TN_ERROR_INIT;
    float logits[MOST_VOCAB];
    prompts p;
    fill(&p);
    tn_session *s = test_model_session(m, .context = 64, .chunk = 4);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = LONGEST, .ids = p.ids};
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = logits};
    ck_assert_int_eq(tn_session_run(s, &batch, &outputs, &err), TN_OK);
    tn_session_free(s);
    int64_t vocab = test_model_vocab(m);
    int64_t out[MAX_TOKENS], other[MAX_TOKENS];
    hook h = {.forbid = -1, .end_at = -1};
    ck_assert_int_eq(hooked(m, &h, 0.5, out, &err).count, MAX_TOKENS);
    ck_assert_mem_eq(h.first, logits, (size_t)vocab * sizeof *logits);
    ck_assert_int_eq(h.calls, MAX_TOKENS);
    h = (hook){.forbid = out[0], .end_at = -1, .write = -INFINITY};
    ck_assert_int_eq(hooked(m, &h, 0.5, other, &err).count, MAX_TOKENS);
    for (int i = 0; i < MAX_TOKENS; i++)
        ck_assert_int_ne(other[i], out[0]);
    h = (hook){.forbid = 77, .end_at = -1, .write = INFINITY};
    ck_assert_int_eq(hooked(m, &h, 0, other, &err).count, MAX_TOKENS);
    ck_assert(other[0] == 77 && other[MAX_TOKENS - 1] == 77);
}
END_TEST

START_TEST(a_callback_of_logits_ends_a_row)
{
    tn_model *m = test_model("llama", .dtype = "f32");
    tn_error err = TN_ERROR_INIT;
    int64_t out[MAX_TOKENS];
    for (int want = TN_NEXT_END_ROW; want <= TN_NEXT_END_ALL + 1; want++) {
        hook h = {.forbid = -1, .end_at = 3, .want = want};
        tn_generate_result r = hooked(m, &h, 0, out, &err);
        ck_assert_int_eq(r.stop, TN_STOP_CALLBACK);
        ck_assert_int_eq(r.count, 3);
    }
    hook h = {.forbid = 5, .end_at = -1, .write = NAN};
    ck_assert_int_eq(hooked(m, &h, 0, out, &err).count, 0);
    broken_expect(&err, TN_E_INPUT, "logits", "there is a NaN; on_logits may change them", NULL);
    tn_error_clear(&err);
    h = (hook){.forbid = 5, .end_at = -1, .write = INFINITY};
    hooked(m, &h, 1, out, &err);
    broken_expect(&err, TN_E_INPUT, "one is infinite; on_logits", NULL);
}
END_TEST

/* The call for many, with one row, is that for one: bit for bit. */
START_TEST(one_row_is_a_prompt_alone)
{
    tn_model *m = test_model("qwen3_moe", .dtype = "f32");
    tn_error err = TN_ERROR_INIT;
    prompts p;
    fill(&p);
    int64_t out[MAX_TOKENS], one[MAX_TOKENS];
    hook h = {.forbid = -1, .end_at = -1}, other = h;
    tn_session *s = test_session(m, .context = 64, .chunk = 4);
    tn_generate_options o = plain();
    o.temperature = 1.5;
    o.on_logits = on_logits;
    o.ctx = &h;
    alone(m, &p, 0, o, one);
    p.batch.rows = 1;
    o.ctx = &other;
    ck_assert_int_eq(tn_generate_rows(s, &p.batch, &o, out, NULL, &err), TN_OK);
    ck_assert_mem_eq(out, one, sizeof out);
    ck_assert_mem_eq(h.first, other.first, sizeof h.first);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("rows", 60);
    tcase_add_loop_test(tc, rows_are_what_they_are_alone, 0, sizeof models / sizeof *models);
    suite_add(tc, a_callback_ends_all_rows, the_context_ends_each_row_by_itself, bad_batches_are_refused,
              a_callback_sees_and_changes_logits, a_callback_of_logits_ends_a_row, one_row_is_a_prompt_alone);
    return suite_run();
}
