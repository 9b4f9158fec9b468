/* Pictures in sessions: cut anywhere, in padded rows, continued token by token, as features from elsewhere; what does
 * not fit together is said by name. */
#include "generate/session.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/file.h>
#include <tenon/tenon.h>

#define DATA "tests/data/models/"
enum { BEFORE = 6, DEEP = 2 };

typedef struct picture_case {
    tn_model *model;
    tn_safetensors *expected;
    tn_tensor ids, pixels, grids;
    int64_t tokens, features, hidden, vocab;
    tn_pictures images;
} picture_case;

static tn_tensor tensor(const picture_case *c, const char *name)
{
    tn_tensor t;
    ck_assert_msg(tn_safetensors_get(c->expected, name, &t), "there is no %s", name);
    return t;
}

static picture_case open_case(const char *name)
{
    picture_case c = {0};
    char path[256];
    tn_error err = TN_ERROR_INIT;
    tn_model_info info = {.size = sizeof info};
    c.model = test_model(name, .dtype = "f32");
    tn_model_get_info(c.model, &info);
    snprintf(path, sizeof path, DATA "%s/expected.safetensors", name);
    c.expected = tn_safetensors_open(path, &err);
    c.ids = tensor(&c, "input_ids");
    c.pixels = tensor(&c, "pixel_values");
    c.grids = tensor(&c, "image_grid_thw");
    c.tokens = c.ids.shape[1];
    c.features = tensor(&c, "image_features").shape[0];
    c.hidden = info.hidden;
    c.vocab = info.vocab;
    c.images = (tn_pictures){.size = sizeof c.images,
                             .count = c.grids.shape[0],
                             .grids = c.grids.data,
                             .pixels = c.pixels.data,
                             .patches = c.pixels.shape[0],
                             .width = c.pixels.shape[1]};
    return c;
}

static void close_case(picture_case *c)
{
    tn_safetensors_close(c->expected);
}

static tn_session *new_session(const picture_case *c, int64_t rows, int64_t chunk)
{
    return test_session(c->model, .rows = rows, .context = c->tokens + BEFORE, .chunk = chunk);
}

static void run(tn_session *s, const tn_batch *b, const tn_outputs *out)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_session_run(s, b, out, &err) == TN_OK, "%s: %s", err.where, err.message);
}

static tn_batch batch_of(const picture_case *c)
{
    return (tn_batch){
        .size = sizeof(tn_batch), .rows = 1, .tokens = c->tokens, .ids = c->ids.data, .images = &c->images};
}

static float *room(int64_t count)
{
    return calloc((size_t)count, sizeof(float));
}

static void near(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 1e-4f, "number %lld is %g, not %g", (long long)i, (double)a[i],
                      (double)b[i]);
}

static const char *const names[] = {"qwen2_5_vl", "qwen3_vl", "glm4v_moe", "qwen2_vl"};
enum { CASES = sizeof names / sizeof *names };

START_TEST(chunks_end_inside_pictures)
{
    picture_case c = open_case(names[_i]);
    float *logits = room(c.tokens * c.vocab);
    tn_batch b = batch_of(&c);
    tn_outputs out = {.size = sizeof out, .logits = logits};
    for (int64_t chunk = 1; chunk < c.tokens; chunk += 4) {
        tn_session *s = new_session(&c, 1, chunk);
        run(s, &b, &out);
        near(logits, tensor(&c, "logits").data, c.tokens * c.vocab);
    }
    free(logits);
    close_case(&c);
}
END_TEST

/* One row with the prompt behind padding, one with it behind other text: each as when it is alone. */
START_TEST(rows_of_unlike_length)
{
    picture_case c = open_case(names[_i]);
    int64_t all = c.tokens + BEFORE, *ids = calloc((size_t)(2 * all), sizeof *ids),
            *mask = malloc(sizeof *mask * 2 * (size_t)all);
    size_t pixels = (size_t)(c.pixels.shape[0] * c.pixels.shape[1]), grids = (size_t)(3 * c.images.count);
    float *pixels_twice = room(2 * (int64_t)pixels), *logits = room(2 * all * c.vocab), *alone = room(all * c.vocab);
    int64_t *grids_twice = malloc(2 * grids * sizeof *grids_twice);
    for (int64_t b = 0; b < 2; b++) {
        memcpy(ids + b * all + BEFORE, c.ids.data, (size_t)c.tokens * sizeof *ids);
        memcpy(pixels_twice + (size_t)b * pixels, c.pixels.data, pixels * sizeof(float));
        memcpy(grids_twice + (size_t)b * grids, c.grids.data, grids * sizeof *grids_twice);
        for (int64_t t = 0; t < all; t++)
            mask[b * all + t] = b == 1 || t >= BEFORE;
    }
    for (int64_t t = 0; t < BEFORE; t++)
        ids[all + t] = 20 + t;
    tn_pictures images = c.images;
    images.count *= 2;
    images.patches *= 2;
    images.pixels = pixels_twice;
    images.grids = grids_twice;
    tn_batch b = {.size = sizeof b, .rows = 2, .tokens = all, .ids = ids, .mask = mask, .images = &images};
    tn_outputs out = {.size = sizeof out, .logits = logits};
    tn_session *two = new_session(&c, 2, 7), *one = new_session(&c, 1, 0);
    run(two, &b, &out);
    near(logits + BEFORE * c.vocab, tensor(&c, "logits").data, c.tokens * c.vocab);
    tn_batch last = {.size = sizeof last, .rows = 1, .tokens = all, .ids = ids + all, .images = &c.images};
    out.logits = alone;
    run(one, &last, &out);
    near(logits + all * c.vocab, alone, all * c.vocab);
    free(ids);
    free(mask);
    free(pixels_twice);
    free(grids_twice);
    free(logits);
    free(alone);
    close_case(&c);
}
END_TEST

/* Tokens fed one by one behind the pictures have the positions and logits that they have in one call. */
START_TEST(positions_go_on)
{
    picture_case c = open_case(names[_i]);
    float *axes = room(3 * c.tokens), one[3], *logits = room(c.vocab);
    const int64_t *ids = c.ids.data;
    const float *expected = tensor(&c, "logits").data;
    tn_batch b = batch_of(&c);
    tn_outputs out = {.size = sizeof out, .axes = axes};
    tn_session *s = new_session(&c, 1, 0);
    run(s, &b, &out);
    tn_session_reset(s);
    b.tokens = c.tokens - 4;
    run(s, &b, NULL);
    for (int64_t t = b.tokens; t < c.tokens; t++) {
        tn_batch step = {.size = sizeof step, .rows = 1, .tokens = 1, .ids = ids + t};
        tn_outputs get = {.size = sizeof get, .last_logits = logits, .axes = one};
        run(s, &step, &get);
        near(logits, expected + t * c.vocab, c.vocab);
        for (int a = 0; a < 3; a++)
            ck_assert_float_eq(one[a], axes[a * c.tokens + t]);
    }
    free(axes);
    free(logits);
    close_case(&c);
}
END_TEST

/* What a tower made can be given in its place; without pictures the tokens are text. */
/* Pictures in the prompts, or fed before their last token. */
START_TEST(tokens_follow_pictures)
{
    picture_case c = open_case(names[_i]);
    tn_session *s = new_session(&c, 1, 7);
    tn_error err = TN_ERROR_INIT;
    int64_t out[BEFORE], want[BEFORE];
    tn_generate_options o = {.size = sizeof o, .max_tokens = BEFORE, .ignore_eos = true};
    tn_batch b = batch_of(&c);
    ck_assert_msg(tn_generate_rows(s, &b, &o, out, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_session_reset(s);
    b.tokens--;
    run(s, &b, NULL);
    ck_assert_int_eq(tn_generate(s, b.ids + b.tokens, 1, &o, want, NULL, &err), TN_OK);
    ck_assert_mem_eq(out, want, sizeof out);
    close_case(&c);
}
END_TEST

START_TEST(features_from_elsewhere)
{
    picture_case c = open_case("qwen3_vl");
    int64_t n = c.tokens * c.vocab, rows = c.features * c.hidden;
    float *made = room(n), *given = room(n), *features = room(rows), *deep[DEEP] = {room(rows), room(rows)};
    float *axes = room(3 * c.tokens);
    tn_batch b = batch_of(&c);
    tn_outputs out = {.size = sizeof out, .logits = made, .image_features = features, .image_deep = deep};
    tn_session *s = new_session(&c, 1, 0);
    run(s, &b, &out);
    near(features, tensor(&c, "image_features").data, rows);
    near(deep[1], tensor(&c, "deepstack.1").data, rows);
    tn_pictures images = {.size = sizeof images,
                          .count = c.images.count,
                          .grids = c.images.grids,
                          .features = features,
                          .feature_count = c.features,
                          .deep = (const float *const *)deep,
                          .deep_count = DEEP};
    b.images = &images;
    out = (tn_outputs){.size = sizeof out, .logits = given};
    tn_session_reset(s);
    run(s, &b, &out);
    ck_assert(!memcmp(made, given, (size_t)n * sizeof *made));
    b.images = NULL;
    out = (tn_outputs){.size = sizeof out, .axes = axes};
    tn_session_reset(s);
    run(s, &b, &out);
    for (int64_t i = 0; i < 3 * c.tokens; i++)
        ck_assert_float_eq(axes[i], (float)(i % c.tokens));
    free(made);
    free(given);
    free(features);
    free(deep[0]);
    free(deep[1]);
    free(axes);
    close_case(&c);
}
END_TEST

/* More patches than a call may have tokens: frames that are all the same have the same features. */
START_TEST(a_picture_larger_than_a_call)
{
    enum { FRAMES = 600, PATCHES = 8, TOKENS = FRAMES * PATCHES / 4 };
    picture_case c = open_case(names[_i]);
    const int64_t grid[] = {FRAMES, 2, 4}, frame = PATCHES * c.pixels.shape[1];
    int64_t *ids = malloc(TOKENS * sizeof *ids);
    float *pixels = room(FRAMES * frame), *features = room(TOKENS * c.hidden);
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = 5;
    for (int64_t i = 0; i < FRAMES; i++)
        memcpy(pixels + i * frame, c.pixels.data, (size_t)frame * sizeof *pixels);
    tn_pictures images = c.images;
    images.count = 1;
    images.grids = grid;
    images.pixels = pixels;
    images.patches = FRAMES * PATCHES;
    test_model_apply(c.model, NULL, "auto");
    tn_session *s = test_model_session(c.model, .context = TOKENS, .chunk = 64);
    tn_batch b = {.size = sizeof b, .rows = 1, .tokens = TOKENS, .ids = ids, .images = &images};
    tn_outputs out = {.size = sizeof out, .image_features = features};
    run(s, &b, &out);
    for (int64_t i = 1; i < FRAMES; i++)
        near(features + i * PATCHES / 4 * c.hidden, features, PATCHES / 4 * c.hidden);
    ck_assert_float_ne(features[0], features[c.hidden]);
    tn_session_free(s);
    free(ids);
    free(pixels);
    free(features);
    close_case(&c);
}
END_TEST

static void expect_error(tn_session *s, const tn_batch *b, const char *where, const char *says)
{
    tn_error err = TN_ERROR_INIT;
    tn_session_reset(s);
    ck_assert_int_eq(tn_session_run(s, b, NULL, &err), TN_E_INPUT);
    ck_assert_msg(!strcmp(err.where, where) && strstr(err.message, says), "%s: %s", err.where, err.message);
}

START_TEST(what_does_not_fit)
{
    picture_case c = open_case("qwen3_vl");
    tn_session *s = new_session(&c, 1, 0);
    int64_t *text = calloc((size_t)c.tokens, sizeof *text), grids[6];
    tn_batch b = batch_of(&c), good = b;
    b.ids = text;
    expect_error(s, &b, "images", "no token of the batch is their image_token_id, 5");
    memcpy(text, c.ids.data, (size_t)c.tokens * sizeof *text);
    for (int64_t i = 0; i < c.tokens; i++)
        if (text[i] == 5) {
            text[i] = 20;
            break;
        }
    expect_error(s, &b, "images", "15 tokens stand for images (image_token_id 5), whose features are 16");
    tn_pictures images = c.images;
    b = good;
    b.images = &images;
    images.patches -= 4;
    expect_error(s, &b, "image_grid_thw", "the grids hold 64 patches, pixel_values has 60");
    images = c.images;
    memcpy(grids, c.images.grids, sizeof grids);
    images.grids = grids;
    grids[1]++;
    expect_error(s, &b, "image_grid_thw", "must be multiples of spatial_merge_size, 2");
    images.grids = NULL;
    expect_error(s, &b, "image_grid_thw", "images need both pixel_values and image_grid_thw");
    images = (tn_pictures){.size = sizeof images, .features = c.images.pixels, .feature_count = 16};
    expect_error(s, &b, "images", "have 0 deepstack features beside their own, the model wants 2");
    tn_sounds sounds = {.size = sizeof sounds};
    b = good;
    b.sounds = &sounds;
    expect_error(s, &b, "sounds", "the model has no tokens for sounds");
    free(text);
    close_case(&c);
}
END_TEST

START_TEST(a_model_that_only_reads)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    tn_session *s = test_session(m, .context = 4);
    tn_pictures images = {.size = sizeof images};
    const int64_t id = 1;
    tn_batch b = {.size = sizeof b, .rows = 1, .tokens = 1, .ids = &id, .images = &images};
    expect_error(s, &b, "images", "the model has no tokens for images");
    b.images = NULL;
    b.axes = (const float[]){0, 0, 0};
    expect_error(s, &b, "axes", "one axis");
}
END_TEST

typedef struct seen {
    int64_t all, of_tower;
} seen;

static void count(seen *s, const char *path)
{
    s->all++;
    s->of_tower += path && strstr(path, "visual") != NULL;
}

static void see(void *ctx, const tn_event *event)
{
    count(ctx, event->path);
}

static tn_status look(void *ctx, const tn_call *call, tn_error *err)
{
    (void)err;
    count(ctx, call->site ? call->site->path : NULL);
    return TN_OK;
}

/* Who watches a session, and who looks at its calls, get those of the tower, too. */
START_TEST(towers_are_seen)
{
    picture_case c = open_case(names[_i]);
    tn_session *s = new_session(&c, 1, 0);
    tn_batch b = batch_of(&c);
    seen watched = {0}, looked = {0};
    session_look(s, look, &looked);
    run(s, &b, NULL);
    tn_session_reset(s);
    ck_assert_int_eq(tn_session_observe(s, see, &watched, NULL), TN_OK);
    run(s, &b, NULL);
    ck_assert_int_gt(watched.of_tower, 0);
    ck_assert_int_gt(watched.all, watched.of_tower);
    ck_assert_int_eq(looked.of_tower, watched.of_tower);
    ck_assert_int_eq(looked.all, watched.all);
    close_case(&c);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("media", 120);
    tcase_add_loop_test(tc, chunks_end_inside_pictures, 0, CASES);
    tcase_add_loop_test(tc, rows_of_unlike_length, 0, CASES);
    tcase_add_loop_test(tc, positions_go_on, 0, CASES);
    tcase_add_loop_test(tc, tokens_follow_pictures, 0, CASES);
    suite_add(tc, features_from_elsewhere);
    tcase_add_loop_test(tc, a_picture_larger_than_a_call, 0, CASES);
    suite_add(tc, what_does_not_fit, a_model_that_only_reads);
    tcase_add_loop_test(tc, towers_are_seen, 0, CASES);
    return suite_run();
}
