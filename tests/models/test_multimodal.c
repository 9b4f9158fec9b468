/* Positions on three axes, by hand: text, pictures, videos, and what follows them. */
#include "models/multimodal.h"
#include "suite.h"

#include <check.h>
#include <string.h>

enum { MOST = 32 };

/* Positions of a row as numbers in time, height and width of one token after the other. */
static tn_status positions(const multimodal *m, multimodal_grids *grids, const char *row, float first, float *out,
                           float *highest, tn_error *err)
{
    int8_t kinds[MOST] = {0};
    int64_t at[MOST] = {0}, n = (int64_t)strlen(row);
    float time[MOST], height[MOST], width[MOST], *const axes[] = {time, height, width};
    for (int64_t i = 0; i < n; i++) {
        kinds[i] = row[i] == 'i' ? MULTIMODAL_IMAGE : row[i] == 'v' ? MULTIMODAL_VIDEO : MULTIMODAL_TEXT;
        at[i] = n - 1 - i; /* wherever the caller wants them */
    }
    tn_status status = multimodal_positions(m, grids, kinds, at, n, first, axes, highest, err);
    for (int64_t i = 0; i < n; i++)
        for (int a = 0; a < ROPE_AXES; a++)
            out[ROPE_AXES * i + a] = axes[a][at[i]];
    return status;
}

static void expect(const multimodal *m, multimodal_grids *grids, const char *row, float first, const float *expected,
                   float highest)
{
    tn_error err = TN_ERROR_INIT;
    float got[ROPE_AXES * MOST], most;
    ck_assert_msg(positions(m, grids, row, first, got, &most, &err) == TN_OK, "%s: %s", err.where, err.message);
    for (size_t i = 0; i < ROPE_AXES * strlen(row); i++)
        ck_assert_msg(got[i] == expected[i], "number %zu is %g, not %g", i, (double)got[i], (double)expected[i]);
    ck_assert_float_eq(most, highest);
}

static multimodal model(multimodal_rules rules)
{
    return (multimodal){.merge = 2,
                        .rules = rules,
                        .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"}};
}

static const int64_t images[] = {1, 4, 6, 1, 2, 2}, videos[] = {3, 2, 4};

/* Rows take their grids one after the other; what follows a picture is behind its larger side. */
START_TEST(images_of_two_rows)
{
    const multimodal m = model((multimodal_rules){.image_interval = 1, .video_interval = 4});
    multimodal_grids grids = {.grids = {[MULTIMODAL_IMAGE] = images}, .count = {[MULTIMODAL_IMAGE] = 2}};
    expect(&m, &grids, "tiiiiiit", 0,
           (const float[]){0, 0, 0, 1, 1, 1, 1, 1, 2, 1, 1, 3, 1, 2, 1, 1, 2, 2, 1, 2, 3, 4, 4, 4}, 4);
    expect(&m, &grids, "tit", 5, (const float[]){5, 5, 5, 6, 6, 6, 7, 7, 7}, 7);
}
END_TEST

/* Frames are interval times seconds apart, rounded down; text goes on before the last frame's time. Seconds count only
 * where the rules say so. */
START_TEST(frames_in_time)
{
    multimodal m = model((multimodal_rules){.image_interval = 1, .video_interval = 3, .by_seconds = true});
    multimodal_grids grids = {
        .grids = {[MULTIMODAL_VIDEO] = videos}, .count = {[MULTIMODAL_VIDEO] = 1}, .seconds = (const float[]){0.5f}};
    expect(&m, &grids, "tvvvvvvt", 0,
           (const float[]){0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 1, 1, 2, 1, 2, 4, 1, 1, 4, 1, 2, 3, 3, 3}, 4);
    m.rules.by_seconds = false;
    m.rules.video_interval = 1;
    grids.next[MULTIMODAL_VIDEO] = 0;
    expect(&m, &grids, "tvvvvvvt", 0,
           (const float[]){0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 1, 1, 2, 1, 2, 3, 1, 1, 3, 1, 2, 3, 3, 3}, 3);
}
END_TEST

/* Behind the highest of all; fractions stay where the model wants them. */
START_TEST(text_behind_the_highest)
{
    multimodal m =
        model((multimodal_rules){.from_highest = true, .by_seconds = true, .image_interval = 3, .video_interval = 3});
    multimodal_grids grids = {
        .grids = {[MULTIMODAL_VIDEO] = videos}, .count = {[MULTIMODAL_VIDEO] = 1}, .seconds = (const float[]){0.5f}};
    expect(&m, &grids, "vvvvvvt", 0, (const float[]){0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 3, 0, 0, 3, 0, 1, 4, 4, 4}, 4);
    m.rules.fractions = true;
    grids.next[MULTIMODAL_VIDEO] = 0;
    expect(&m, &grids, "vvvvvvt", 0,
           (const float[]){0, 0, 0, 0, 0, 1, 1.5f, 0, 0, 1.5f, 0, 1, 3, 0, 0, 3, 0, 1, 4, 4, 4}, 4);
}
END_TEST

/* Each frame is a picture of its own, with text between them. */
START_TEST(split_frames)
{
    const multimodal m = model((multimodal_rules){.split_frames = true, .image_interval = 1, .video_interval = 1});
    multimodal_grids grids = {.grids = {[MULTIMODAL_VIDEO] = videos}, .count = {[MULTIMODAL_VIDEO] = 1}};
    expect(&m, &grids, "vvtvvtvv", 0,
           (const float[]){0, 0, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7}, 7);
    ck_assert_int_eq(grids.next[MULTIMODAL_VIDEO], 1);
}
END_TEST

START_TEST(tokens_that_do_not_fit)
{
    const multimodal m = model((multimodal_rules){.image_interval = 1});
    static const struct {
        const char *row, *says;
    } list[] = {{"iiiiitt", "makes 6 tokens (1 in time, 2 by 3), 5 stand for it"},
                {"iiiiiiiti", "more images than the 2 whose grids are given"},
                {"v", "more videos than the 0"}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        multimodal_grids grids = {.grids = {[MULTIMODAL_IMAGE] = images}, .count = {[MULTIMODAL_IMAGE] = 2}};
        tn_error err = TN_ERROR_INIT;
        float got[ROPE_AXES * MOST], most;
        ck_assert_int_eq(positions(&m, &grids, list[i].row, 0, got, &most, &err), TN_E_INPUT);
        suite_expect_in(err.message, list[i].says);
        ck_assert_str_eq(err.where, i < 2 ? "image_token_id" : "video_token_id");
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("multimodal", 0);
    suite_add(tc, images_of_two_rows, frames_in_time, text_behind_the_highest, split_frames, tokens_that_do_not_fit);
    return suite_run();
}
