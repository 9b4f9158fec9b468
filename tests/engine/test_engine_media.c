/* Pictures and sounds of an engine's sequences: what a session gives alone an engine gives among others, in pieces, put
 * back, and behind a beginning in common; who shows something else shares nothing of it. */
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/file.h>
#include <tenon/tenon.h>

enum { ANSWER = 5, CONTEXT = 160, TEXTS = 3 };

/* A golden case's prompt with all that it shows. */
typedef struct shown {
    tn_model *model;
    tn_safetensors *file;
    int64_t tokens, vocab;
    const int64_t *ids;
    tn_pictures images, videos;
    tn_sounds sounds;
    bool has_images, has_videos, has_sounds;
    float *logits; /* [tokens + ANSWER, vocab], as a session gives them                             */
    int64_t answer[ANSWER];
} shown;

static tn_tensor find(const shown *c, const char *name)
{
    tn_tensor t = {0};
    return tn_safetensors_get(c->file, name, &t) ? t : (tn_tensor){0};
}

static tn_pictures pictures_of(const shown *c, const char *pixels, const char *grids)
{
    tn_tensor p = find(c, pixels), g = find(c, grids);
    tn_pictures out = {.size = sizeof out, .pixels = p.data, .count = p.shape[0]};
    if (g.data) {
        out.grids = g.data;
        out.count = g.shape[0];
        out.patches = p.shape[0];
        out.width = p.shape[1];
        return out;
    }
    int64_t *shape = calloc(TN_MAX_DIMS, sizeof *shape);
    suite_keep(shape, free);
    memcpy(shape, p.shape, TN_MAX_DIMS * sizeof *shape);
    out.pixel_ndim = p.ndim;
    out.pixel_shape = shape;
    out.sizes = find(c, "image_sizes").data;
    out.places = find(c, "image_position_ids").data;
    return out;
}

static tn_batch batch_of(const shown *c, const tn_pictures *images)
{
    return (tn_batch){.size = sizeof(tn_batch),
                      .rows = 1,
                      .tokens = c->tokens,
                      .ids = c->ids,
                      .images = c->has_images ? images : NULL,
                      .videos = c->has_videos ? &c->videos : NULL,
                      .sounds = c->has_sounds ? &c->sounds : NULL};
}

/* What a session gives: logits of the prompt, and behind each token of the likeliest answer. */
static void by_session(shown *c, const tn_pictures *images, float *logits, int64_t *answer)
{
    tn_session *s = test_session(c->model, .context = CONTEXT);
    tn_error err = TN_ERROR_INIT;
    const tn_batch batch = batch_of(c, images);
    const tn_outputs out = {.size = sizeof out, .logits = logits};
    ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s: %s", err.where, err.message);
    for (int64_t n = 0; n < ANSWER; n++) {
        const float *last = logits + (c->tokens + n - 1) * c->vocab;
        answer[n] = 0;
        for (int64_t i = 1; i < c->vocab; i++)
            answer[n] = last[i] > last[answer[n]] ? i : answer[n];
        test_model_run(s, 1, &answer[n], .logits = logits + (c->tokens + n) * c->vocab);
    }
}

static float *room(const shown *c)
{
    float *logits = calloc((size_t)((c->tokens + ANSWER) * c->vocab), sizeof *logits);
    suite_keep(logits, free);
    return logits;
}

static shown open_case(const char *name)
{
    shown c = {0};
    char path[256];
    tn_error err = TN_ERROR_INIT;
    c.model = test_model(name, .dtype = "f32");
    c.vocab = test_model_vocab(c.model);
    snprintf(path, sizeof path, "tests/data/models/%s/expected.safetensors", name);
    c.file = tn_safetensors_open(path, &err);
    ck_assert_msg(c.file != NULL, "%s", err.message);
    tn_tensor ids = find(&c, "input_ids"), sound = find(&c, "input_features");
    c.ids = ids.data;
    c.tokens = ids.shape[1];
    c.has_images = find(&c, "pixel_values").data;
    c.has_videos = find(&c, "pixel_values_videos").data;
    c.has_sounds = sound.data;
    if (c.has_images)
        c.images = pictures_of(&c, "pixel_values", "image_grid_thw");
    if (c.has_videos)
        c.videos = pictures_of(&c, "pixel_values_videos", "video_grid_thw");
    c.videos.grid_seconds = find(&c, "second_per_grid_ts").data;
    if (c.has_sounds)
        c.sounds = (tn_sounds){.size = sizeof c.sounds,
                               .count = sound.shape[0],
                               .mel = sound.data,
                               .bins = sound.shape[1],
                               .frames = sound.shape[2],
                               .mask = find(&c, "feature_attention_mask").data};
    c.logits = room(&c);
    by_session(&c, &c.images, c.logits, c.answer);
    return c;
}

static void close_case(shown *c)
{
    tn_safetensors_close(c->file);
}

/* What a sequence did. */
typedef struct heard {
    const shown *of;
    const float *expected; /* NULL: nothing is                                                         */
    const int64_t *answer;
    int64_t count, prompts;
    int ends;
    tn_engine_result result;
} heard;

static void compare(const heard *h, int64_t place, const float *logits)
{
    const float *from = h->expected ? h->expected + place * h->of->vocab : logits;
    for (int64_t i = 0; i < h->of->vocab; i++)
        ck_assert_msg(fabsf(logits[i] - from[i]) <= 2e-4f * (1 + fabsf(from[i])),
                      "logit %lld behind token %lld is %g, not %g", (long long)i, (long long)place, (double)logits[i],
                      (double)from[i]);
}

static void on_prompt_logits(void *ctx, int64_t position, const float *logits, int64_t vocab)
{
    heard *h = ctx;
    ck_assert_int_eq(vocab, h->of->vocab);
    ck_assert_int_eq(position, h->prompts++);
    compare(h, position, logits);
}

static int on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    heard *h = ctx;
    (void)row;
    (void)vocab;
    if (h->expected)
        compare(h, h->of->tokens + step - 1, logits);
    return TN_NEXT_TOKEN;
}

static int on_token(void *ctx, int64_t row, int64_t id)
{
    heard *h = ctx;
    (void)row;
    if (h->expected)
        ck_assert_int_eq(id, h->answer[h->count]);
    h->count++;
    return TN_NEXT_TOKEN;
}

static void on_end(void *ctx, const tn_engine_result *result)
{
    heard *h = ctx;
    h->ends++;
    h->result = *result;
}

static tn_engine *new_engine(const shown *c, int64_t budget, size_t cache_bytes)
{
    tn_error err = TN_ERROR_INIT;
    const tn_engine_options o = {.size = sizeof o, .context = CONTEXT, .budget = budget, .cache_bytes = cache_bytes};
    tn_engine *e = tn_engine_new(c->model, &o, &err);
    ck_assert_msg(e != NULL, "%s: %s", err.where, err.message);
    return e;
}

/* whole: logits of the prompt are asked for, so that no beginning is shared. */
static tn_status add(tn_engine *e, const shown *c, const tn_pictures *images, heard *h, bool whole, tn_error *err)
{
    const tn_batch b = batch_of(c, images);
    const tn_generate_options o = {.size = sizeof o,
                                   .max_tokens = ANSWER,
                                   .ignore_eos = true,
                                   .on_logits = on_logits,
                                   .on_row_token = on_token,
                                   .ctx = h};
    const tn_engine_request r = {.size = sizeof r,
                                 .prompt = c->ids,
                                 .prompt_count = c->tokens,
                                 .options = &o,
                                 .on_prompt_logits = whole ? on_prompt_logits : NULL,
                                 .on_end = on_end,
                                 .images = b.images,
                                 .videos = b.videos,
                                 .sounds = b.sounds};
    return tn_engine_add(e, &r, NULL, err);
}

static void add_well(tn_engine *e, const shown *c, const tn_pictures *images, heard *h, bool whole)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(add(e, c, images, h, whole, &err) == TN_OK, "%s: %s", err.where, err.message);
}

static void add_text(tn_engine *e, heard *h, int64_t length)
{
    tn_error err = TN_ERROR_INIT;
    int64_t ids[CONTEXT];
    for (int64_t i = 0; i < length; i++)
        ids[i] = 20 + (i * 7 + length) % 30;
    const tn_generate_options o = {
        .size = sizeof o, .max_tokens = ANSWER, .ignore_eos = true, .on_row_token = on_token, .ctx = h};
    const tn_engine_request r = {
        .size = sizeof r, .prompt = ids, .prompt_count = length, .options = &o, .on_end = on_end};
    ck_assert_msg(tn_engine_add(e, &r, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
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

static void ended(const heard *h)
{
    ck_assert_int_eq(h->ends, 1);
    ck_assert_msg(h->result.status == TN_OK, "%s: %s", h->result.error.where, h->result.error.message);
    ck_assert_int_eq(h->count, ANSWER);
}

static const char *const names[] = {"qwen2_5_vl",
                                    "qwen3_vl",
                                    "qwen3_5",
                                    "gemma3",
                                    "gemma4",
                                    "llava",
                                    "llava_next",
                                    "mistral3",
                                    "llama4",
                                    "gemma3n",
                                    "qwen3_omni_moe_thinker",
                                    "qwen2_5_vl_video"};
enum { CASES = sizeof names / sizeof *names, PICTURES = 10 }; /* the first ones have nothing but pictures     */

/* Two of the case among texts; budget: prompt tokens of a step. */
static void among(const char *name, int64_t budget, bool whole)
{
    shown c = open_case(name);
    tn_engine *e = new_engine(&c, budget, 0);
    heard own[2] = {{.of = &c, .expected = c.logits, .answer = c.answer},
                    {.of = &c, .expected = c.logits, .answer = c.answer}};
    heard texts[TEXTS] = {{.of = &c}, {.of = &c}, {.of = &c}};
    add_text(e, &texts[0], 9);
    add_well(e, &c, &c.images, &own[0], whole);
    add_text(e, &texts[1], 40);
    add_well(e, &c, &c.images, &own[1], whole);
    add_text(e, &texts[2], 17);
    finish(e);
    for (int i = 0; i < 2; i++)
        ended(&own[i]);
    for (int i = 0; i < TEXTS; i++)
        ended(&texts[i]);
    ck_assert_int_eq(own[0].prompts, whole ? c.tokens : 0);
    tn_engine_free(e);
    close_case(&c);
}

START_TEST(among_others_as_alone)
{
    among(names[_i], 0, true);
    among(names[_i], 0, false);
}
END_TEST

START_TEST(in_small_steps_as_in_one)
{
    among(names[_i], 6, true);
}
END_TEST

/* The first token of the prompt that occurs most: those that stand for pictures do. */
static int64_t place_of_pictures(const shown *c)
{
    int64_t best = 0, most = 0;
    for (int64_t i = 0; i < c->tokens; i++) {
        int64_t n = 0;
        for (int64_t k = 0; k < c->tokens; k++)
            n += c->ids[k] == c->ids[i];
        if (n > most) {
            most = n;
            best = i;
        }
    }
    return best;
}

/* The same pictures again, and then others: of these only what stands before them is shared. */
START_TEST(a_beginning_is_shared_with_its_pictures)
{
    shown c = open_case(names[_i]);
    tn_engine *e = new_engine(&c, 0, 0);
    heard h[3] = {{.of = &c, .expected = c.logits, .answer = c.answer},
                  {.of = &c, .expected = c.logits, .answer = c.answer}};
    for (int i = 0; i < 2; i++) {
        add_well(e, &c, &c.images, &h[i], false);
        finish(e);
        ended(&h[i]);
    }
    bool states = strcmp(names[_i], "qwen3_5") == 0;
    ck_assert_int_eq(h[0].result.cached, 0);
    if (!states)
        ck_assert_int_gt(h[1].result.cached, place_of_pictures(&c));
    tn_pictures others = c.images;
    tn_tensor pixels = find(&c, "pixel_values");
    int64_t count = tn_tensor_count(&pixels), answer[ANSWER];
    float *changed = malloc((size_t)count * sizeof *changed), *expected = room(&c);
    suite_keep(changed, free);
    memcpy(changed, pixels.data, (size_t)count * sizeof *changed);
    for (int64_t i = 0; i < count; i++)
        changed[i] = i % 3 ? changed[i] : 0.25f;
    others.pixels = changed;
    by_session(&c, &others, expected, answer);
    h[2] = (heard){.of = &c, .expected = expected, .answer = answer};
    add_well(e, &c, &others, &h[2], false);
    finish(e);
    ended(&h[2]);
    ck_assert_int_le(h[2].result.cached, place_of_pictures(&c));
    tn_engine_free(e);
    close_case(&c);
}
END_TEST

/* The last token of a prompt is always computed; where that is one of those that see each other, all of these are. */
START_TEST(a_picture_may_end_a_prompt)
{
    shown c = open_case(names[_i]);
    int64_t picture = c.ids[place_of_pictures(&c)], last = c.tokens - 1;
    while (c.ids[last] != picture)
        last--;
    c.tokens = last + 1;
    by_session(&c, &c.images, c.logits, c.answer);
    tn_engine *e = new_engine(&c, 0, 0);
    for (int i = 0; i < 2; i++) {
        heard h = {.of = &c, .expected = c.logits, .answer = c.answer};
        add_well(e, &c, &c.images, &h, false);
        finish(e);
        ended(&h);
    }
    tn_engine_free(e);
    close_case(&c);
}
END_TEST

/* Memory for the keys of one and a half: the younger gives way and is computed again. */
START_TEST(who_gives_way_is_computed_again)
{
    shown c = open_case(names[_i]);
    tn_engine *e = new_engine(&c, 0, 0);
    heard first = {.of = &c, .expected = c.logits, .answer = c.answer};
    add_well(e, &c, &c.images, &first, false);
    finish(e);
    tn_engine_info info = {.size = sizeof info};
    tn_engine_get_info(e, &info);
    tn_engine_free(e);
    ck_assert_uint_gt(info.cache_held, 0);
    e = new_engine(&c, 0, info.cache_held + info.cache_held / 2);
    heard own[3];
    for (int i = 0; i < 3; i++) {
        own[i] = (heard){.of = &c, .expected = c.logits, .answer = c.answer};
        add_well(e, &c, &c.images, &own[i], true);
    }
    finish(e);
    for (int i = 0; i < 3; i++)
        ended(&own[i]);
    tn_engine_free(e);
    close_case(&c);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    shown c = open_case("gemma3"), text = {0};
    tn_engine *e = new_engine(&c, 3, 0);
    tn_error err = TN_ERROR_INIT;
    heard h = {.of = &c};
    ck_assert_int_eq(add(e, &c, &c.images, &h, false, &err), TN_E_INPUT);
    suite_expect_in(err.message, "see each other");
    int64_t plain[] = {20, 21, 22};
    shown none = c;
    none.ids = plain;
    none.tokens = 3;
    tn_error_clear(&err);
    ck_assert_int_eq(add(e, &none, &c.images, &h, false, &err), TN_E_INPUT);
    suite_expect_in(err.message, "no token of the prompt stands for them");
    tn_engine_free(e);
    /* One picture for two pictures' tokens: found when they are looked at, and its own failure alone. */
    e = new_engine(&c, 0, 0);
    tn_pictures one = c.images;
    int64_t shape[TN_MAX_DIMS];
    memcpy(shape, one.pixel_shape, sizeof shape);
    one.count = shape[0] = 1;
    one.pixel_shape = shape;
    heard good = {.of = &c, .expected = c.logits, .answer = c.answer};
    add_well(e, &c, &one, &h, false);
    add_well(e, &c, &c.images, &good, false);
    finish(e);
    ck_assert_int_eq(h.ends, 1);
    ck_assert_int_eq(h.result.status, TN_E_INPUT);
    suite_expect_in(h.result.error.message, "whose features are");
    ended(&good);
    tn_engine_free(e);
    text.model = test_model("llama", .dtype = "f32");
    text.vocab = test_model_vocab(text.model);
    text.ids = plain;
    text.tokens = 3;
    text.has_images = true;
    e = new_engine(&text, 0, 0);
    tn_error_clear(&err);
    ck_assert_int_eq(add(e, &text, &c.images, &h, false, &err), TN_E_INPUT);
    suite_expect_in(err.message, "no tokens for images");
    tn_engine_free(e);
    close_case(&c);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("engine_media", 0);
    tcase_add_loop_test(tcase, among_others_as_alone, 0, CASES);
    tcase_add_loop_test(tcase, in_small_steps_as_in_one, 0, CASES);
    tcase_add_loop_test(tcase, a_beginning_is_shared_with_its_pictures, 0, CASES);
    tcase_add_loop_test(tcase, a_picture_may_end_a_prompt, 0, PICTURES);
    tcase_add_loop_test(tcase, who_gives_way_is_computed_again, 0, CASES);
    suite_add(tcase, what_does_not_fit_is_refused);
    return suite_run();
}
