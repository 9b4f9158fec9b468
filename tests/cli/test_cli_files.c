/* Sounds for a prompt, and pictures and sounds in a conversation: files of the first question, words that name files,
 * and what is computed again when there are more of them. */
#include "printed.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEARING "tests/data/models/qwen2_5_omni_thinker"
#define PHOTO "tests/data/media/files/exif6_100x60.jpg" /* 15 rows                                     */
#define SOUND "tests/data/media/files/s16_22k_mono.wav" /* 50 frames at 16 kHz: 25 and then 12 rows */
#define TALK(input, ...)                                                                                               \
    TENON(input, "chat", HEARING, "--kernels=none", "--temperature=0", "-n1", "-v", "--no-history", __VA_ARGS__)

/* ---- run ---- */

static size_t count_id(const json_t *printed, json_int_t wanted)
{
    size_t i, count = 0;
    json_t *id;
    json_array_foreach (json_object_get(printed, "prompt_ids"), i, id)
        count += json_integer_value(id) == wanted;
    return count;
}

START_TEST(run_hears_sounds)
{
    process_result r = TENON(NULL, "run", HEARING, "What is this", "--audio", SOUND, "-n4", "--temperature=0", "--json",
                             "--kernels=none");
    process_result two = TENON(NULL, "run", HEARING, "What is this", "--audio", SOUND, "--image", PHOTO, "--audio",
                               SOUND, "-n4", "--temperature=0", "--json", "--kernels=none");
    json_t *one = printed_json(&r, 0), *both = printed_json(&two, 0);
    ck_assert_uint_eq(count_id(one, 9), 12);
    ck_assert_uint_eq(count_id(one, 10), 1);
    ck_assert_uint_eq(count_id(both, 9), 24);
    ck_assert_uint_eq(count_id(both, 5), 24 / 8 * 40 / 8);
    ck_assert_int_eq(json_integer_value(json_object_get(one, "generated_tokens")), 4);
}
END_TEST

/* Of a text that somebody else may have written no word is a file. */
START_TEST(run_opens_no_words)
{
    char *folder = tempdir_new();
    tempdir_put(folder, "talk.json", "[{\"role\": \"user\", \"content\": \"See @" PHOTO "\"}]");
    process_result prompt = TENON(NULL, "run", HEARING, "See @" PHOTO, "--audio", SOUND, "-n1", "--json"),
                   talk = TENON(NULL, "run", HEARING, "--messages", tempdir_at(folder, "talk.json"), "-n1", "--json"),
                   chat = TENON(NULL, "run", HEARING, "--chat", "See @" PHOTO, "-n1", "--json"),
                   image = TENON(NULL, "run", HEARING, "See", "--image", PHOTO, "-n1", "--json");
    ck_assert_uint_eq(count_id(printed_json(&prompt, 0), 5), 0);
    ck_assert_uint_eq(count_id(printed_json(&talk, 0), 5), 0);
    ck_assert_uint_eq(count_id(printed_json(&chat, 0), 5), 0);
    ck_assert_uint_eq(count_id(printed_json(&image, 0), 5), 15);
}
END_TEST

/* The model's processor takes four seconds. */
START_TEST(run_says_what_is_cut)
{
    enum { RATE = 22050, BYTES = 5 * 2 * RATE };
    size_t size;
    char *folder = tempdir_new(), *path = tempdir_at(folder, "long.wav"), *sound = tempdir_read(SOUND, &size),
         *file = calloc(1, 44 + BYTES);
    memcpy(file, sound, 44);
    memcpy(file + 40, &(uint32_t){BYTES}, 4);
    tempdir_write(path, file, 44 + BYTES);
    process_result cut = TENON(NULL, "run", HEARING, "x", "--audio", path, "-n1", "--kernels=none");
    process_result whole = TENON(NULL, "run", HEARING, "x", "--audio", SOUND, "-n1", "--kernels=none");
    ck_assert_msg(cut.status == 0, "%s", cut.err);
    ck_assert_ptr_nonnull(strstr(cut.err, "long.wav: of its 5.0 s the model's processor takes the first 4\n"));
    ck_assert_ptr_null(strstr(whole.err, "processor takes"));
    free(sound);
    free(file);
}
END_TEST

START_TEST(run_refuses_sounds)
{
    static const struct {
        const char *model, *prompt, *sound, *says;
    } bad[] = {{"models/demo", "x", SOUND, "hears none; leave them out"},
               {"tests/data/models/qwen2_vl", "x", SOUND, "hears none; leave them out"},
               {HEARING, "x", PHOTO, "is no WAV, FLAC, OGG or MP3 file"},
               {HEARING, "x", "tests/data/media/files/none.wav", "none.wav"},
               {HEARING, "x", "tests/data/media/files/short_16k.wav", "sound 0 is too short: its 1 frames make no row"},
               {HEARING, "x <|AUDIO|>", SOUND, "has 2 places for sounds ('<|AUDIO|>'), and 1 sounds are given"},
               {HEARING, "x <|IMAGE|>", SOUND, "has 1 places for pictures ('<|IMAGE|>'), and 0 pictures are given"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        process_expect_error(TENON(NULL, "run", bad[i].model, bad[i].prompt, "--audio", bad[i].sound, "-q"), 4,
                             bad[i].says, NULL);
    process_expect_error(TENON(NULL, "run", HEARING, "--messages", "x", "--audio", SOUND), 2,
                         "--audio goes with a prompt", NULL);
}
END_TEST

/* ---- chat ---- */

/* Tokens of the turn-th prompt, and how many of them are new. */
static void turn_of(const process_result *r, int turn, int *all, int *fresh)
{
    const char *at = r->err;
    for (int i = 0; i <= turn; i++, at++)
        ck_assert_msg((at = strstr(at, "\nprompt: ")) != NULL, "turn %d: %s", turn, r->err);
    ck_assert_int_eq(sscanf(at - 1, "\nprompt: %d tokens, %d of them new", all, fresh), 2);
}

static int tokens(const process_result *r, int turn)
{
    int all, fresh;
    turn_of(r, turn, &all, &fresh);
    return all;
}

static int fresh(const process_result *r, int turn)
{
    int all, count;
    turn_of(r, turn, &all, &count);
    return count;
}

/* A file's mark and its two ends stand for its rows; they stay where they are when the conversation goes on. */
START_TEST(files_of_the_first_question)
{
    process_result none = TALK("x\ny\n", "-n1"), sound = TALK("x\ny\n", "--audio", SOUND),
                   both = TALK("x\ny\n", "--image", PHOTO, "--audio", SOUND);
    ck_assert_int_eq(tokens(&sound, 0), tokens(&none, 0) + 12 + 2);
    ck_assert_int_eq(tokens(&both, 0), tokens(&none, 0) + 12 + 2 + 15 + 2);
    ck_assert_int_eq(fresh(&both, 0), tokens(&both, 0));
    /* The second question is new, and not what came before it. */
    ck_assert_int_eq(fresh(&both, 1), tokens(&both, 1) - tokens(&both, 0));
    process_result asked = TALK(NULL, "x", "--audio", SOUND);
    ck_assert_int_eq(tokens(&asked, 0), tokens(&sound, 0));
}
END_TEST

/* A word that names a file is that file, in its place; with it the conversation is computed anew, and goes on from
 * there. */
START_TEST(words_that_name_files)
{
    process_result r = TALK("x\nSee @" PHOTO ", or hear @" SOUND "?\ny\n", "--audio", SOUND);
    process_result none = TALK("x\nSee , or hear ?\ny\n", "--audio", SOUND);
    ck_assert_int_eq(tokens(&r, 1), tokens(&none, 1) + 12 + 2 + 15 + 2);
    ck_assert_int_eq(fresh(&r, 1), tokens(&r, 1));
    ck_assert_int_eq(fresh(&r, 2), tokens(&r, 2) - tokens(&r, 1));
    static const char *const no_files[] = {"a@" PHOTO, "@none.png", "@README.md", "@", "@tests/data.png", "@@" PHOTO};
    for (size_t i = 0; i < sizeof no_files / sizeof *no_files; i++) {
        process_result word = TALK(NULL, no_files[i]);
        ck_assert_int_eq(fresh(&word, 0), tokens(&word, 0));
        ck_assert_int_ge(tokens(&word, 0), tokens(&none, 0) - 12 - 2 - 1);
        ck_assert_msg(word.status == 0, "%s", word.err);
    }
}
END_TEST

/* Another picture of the same size has the same tokens, and is another picture nevertheless. */
START_TEST(other_files_after_a_reset)
{
    char *folder = tempdir_new(), *first = tempdir_at(folder, "a.wav"), *second = tempdir_at(folder, "b.wav");
    size_t size;
    char input[9000], *data = tempdir_read(SOUND, &size);
    tempdir_write(first, data, size);
    for (size_t i = 44; i < size; i += 2)
        data[i + 1] = (char)(i * i >> 9);
    tempdir_write(second, data, size);
    free(data);
    snprintf(input, sizeof input, "@%s x\n/reset\n@%s x\n/reset\n@%s x\n", first, second, first);
    process_result r = TALK(input, "-n6");
    ck_assert_int_eq(fresh(&r, 1), tokens(&r, 0));
    ck_assert_int_eq(fresh(&r, 2), tokens(&r, 0));
    snprintf(input, sizeof input, "@%s x\n", second);
    process_result alone = TALK(input, "-n6");
    ck_assert_ptr_nonnull(strstr(r.out, alone.out));
    ck_assert_str_ne(r.out, alone.out);
}
END_TEST

/* What is no sound is told in one line, and its message is no part of what follows. */
START_TEST(files_that_are_refused)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "no.wav"), input[4200];
    tempdir_put(folder, "no.wav", "none");
    snprintf(input, sizeof input, "hear @%s\n", path);
    process_expect_error(TENON(input, "chat", HEARING, "--kernels=none", "-q"), 4,
                         "no.wav: is no WAV, FLAC, OGG or MP3 file", NULL);
    process_expect_error(TENON("x\n", "chat", HEARING, "--kernels=none", "-q", "--audio", PHOTO), 4, "is no WAV", NULL);
    process_expect_error(TENON("@" SOUND "\n", "chat", "tests/data/models/qwen2_vl", "--kernels=none", "-q"), 4,
                         "hears none", NULL);
    process_expect_error(TENON("x <|AUDIO|>\n", "chat", HEARING, "--kernels=none", "-q", "--audio", SOUND), 4,
                         "has 2 places for sounds", NULL);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("files in conversations", 120);
    suite_add(c, run_hears_sounds, run_opens_no_words, run_says_what_is_cut, run_refuses_sounds,
              files_of_the_first_question, words_that_name_files, other_files_after_a_reset, files_that_are_refused);
    return suite_run();
}
