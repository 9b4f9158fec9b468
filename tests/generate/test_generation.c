/* What generation_config.json says: tokens that end a text, however many, and how tokens are drawn. Seeds draw the same
 * on any number of threads and with any chunk. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "tests/data/models/llama"

/* A copy of the model with this generation_config.json, "" for none. */
static char *copy_with(const char *json)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "generation_config.json");
    tempdir_copy(FOLDER, folder);
    unlink(path);
    if (json[0])
        tempdir_write(path, json, strlen(json));
    return folder;
}

static tn_model *open_with(const char *json, tn_error *err)
{
    return tn_model_open(copy_with(json), NULL, err);
}

/* Greedily, at most 16 tokens. */
static tn_generate_result continue_prompt(tn_model *m, const tn_generate_options *given, int64_t chunk, int64_t *out)
{
    tn_error err = TN_ERROR_INIT;
    tn_session *s = test_model_session(m, .context = 64, .chunk = chunk);
    tn_generate_options o = given ? *given : (tn_generate_options){.size = sizeof o};
    o.max_tokens = 16;
    tn_generate_result r = {.size = sizeof r};
    static const int64_t prompt[] = {5, 9, 3, 17, 11, 2, 8, 21, 4, 13, 7};
    ck_assert_msg(tn_generate(s, prompt, sizeof prompt / sizeof *prompt, &o, out, &r, &err) == TN_OK, "%s",
                  err.message);
    tn_session_free(s);
    return r;
}

START_TEST(a_ninth_token_ends_the_text)
{
    int64_t plain[16], out[16];
    tn_error err = TN_ERROR_INIT;
    char json[512];
    tn_model *m = open_with("{\"eos_token_id\": []}", &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    ck_assert_int_eq(continue_prompt(m, NULL, 0, plain).stop, TN_STOP_LENGTH);
    tn_model_close(m);
    /* Eight ids that never come, then the one that comes fourth at the latest. */
    snprintf(json, sizeof json, "{\"eos_token_id\": [1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, %d]}",
             (int)plain[3]);
    m = open_with(json, &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(m, &info);
    ck_assert_int_eq(info.eos_count, 8);
    ck_assert_int_eq(info.eos_total, 9);
    ck_assert_int_eq(info.eos_ids[8], plain[3]);
    tn_generate_result r = continue_prompt(m, NULL, 0, out);
    ck_assert_int_eq(r.stop, TN_STOP_EOS);
    ck_assert_int_le(r.count, 4);
    ck_assert_int_eq(out[r.count - 1], plain[3]);
    tn_model_close(m);
}
END_TEST

static const struct {
    const char *json;
    tn_sampling is;
} files[] = {
    {"", {.top_p = 1, .repetition_penalty = 1}},
    {"{}", {.top_p = 1, .repetition_penalty = 1}},
    {"{\"temperature\": 0.6, \"top_p\": 0.9}", {.top_p = 0.9, .repetition_penalty = 1}},
    {"{\"do_sample\": true}", {.temperature = 1, .top_k = 50, .top_p = 1, .repetition_penalty = 1}},
    {"{\"do_sample\": true, \"top_k\": null, \"temperature\": null}",
     {.temperature = 1, .top_k = 50, .top_p = 1, .repetition_penalty = 1}},
    {"{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": 0.05, "
     "\"repetition_penalty\": 1.1}",
     {.temperature = 0.6, .top_k = 20, .top_p = 0.95, .min_p = 0.05, .repetition_penalty = 1.1}},
    {"{\"do_sample\": false, \"repetition_penalty\": 1.2, \"top_k\": 7}",
     {.top_k = 7, .top_p = 1, .repetition_penalty = 1.2}},
    {"{\"do_sample\": true, \"top_k\": 0}", {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
};

START_TEST(defaults_are_read)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_with(files[_i].json, &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    tn_sampling s = {.size = sizeof s};
    ck_assert_int_eq(tn_model_sampling(m, &s, &err), TN_OK);
    ck_assert(s.temperature == files[_i].is.temperature && s.top_k == files[_i].is.top_k);
    ck_assert(s.top_p == files[_i].is.top_p && s.min_p == files[_i].is.min_p);
    ck_assert(s.repetition_penalty == files[_i].is.repetition_penalty);
    ck_assert_int_eq(tn_model_sampling(NULL, &s, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_model_sampling(m, NULL, NULL), TN_E_USAGE);
    tn_model_close(m);
}
END_TEST

START_TEST(stop_strings_are_read)
{
    static const struct {
        const char *json, *is[3];
    } cases[] = {{"{}", {NULL}},
                 {"{\"stop_strings\": null}", {NULL}},
                 {"{\"stop_strings\": []}", {NULL}},
                 {"{\"stop_strings\": \"###\"}", {"###"}},
                 {"{\"stop_strings\": [\"</s>\", \"\\n\\u00e9\"]}", {"</s>", "\n\xc3\xa9"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m = open_with(cases[i].json, &err);
        ck_assert_msg(m != NULL, "%s", err.message);
        tn_sampling s = {.size = sizeof s};
        ck_assert_int_eq(tn_model_sampling(m, &s, &err), TN_OK);
        size_t count = 0;
        for (; cases[i].is[count]; count++)
            ck_assert_str_eq(count < s.stop_count ? s.stop_strings[count] : "(none)", cases[i].is[count]);
        ck_assert_uint_eq(s.stop_count, count);
        ck_assert_uint_eq(tn_notice_count(), 0);
        tn_model_close(m);
    }
}
END_TEST

static const struct {
    const char *json, *says[3]; /* NULL: nothing more                                                   */
} undone[] = {
    {"{\"num_beams\": 4, \"typical_p\": 0.9}", {"key 'num_beams' is 4, which has no effect here"}},
    {"{\"num_beams\": 4.0, \"do_sample\": true, \"typical_p\": 0.9}",
     {"key 'num_beams' is 4.0, which", "key 'typical_p' is 0.9, which"}},
    {"{\"no_repeat_ngram_size\": 3, \"bad_words_ids\": [[5, 7], [9]]}",
     {"key 'no_repeat_ngram_size' is 3,", "key 'bad_words_ids' is [[5,7],[9]],"}},
    {"{\"penalty_alpha\": 0.6, \"top_k\": 4, \"forced_eos_token_id\": 0}",
     {"key 'penalty_alpha' is 0.6,", "key 'forced_eos_token_id' is 0,"}},
    {"{\"suppress_tokens\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]}",
     {"key 'suppress_tokens' is [1,2,3,4,5,6,7,8,9,10,", "..., which"}},
    {"{\"min_new_tokens\": 5, \"watermarking_config\": \"\\n\\u001b\"}",
     {"key 'min_new_tokens' is 5,", "key 'watermarking_config' is \"\\n\\u001B\","}},
    {"{\"token_healing\": true, \"watermarking_config\": {\"bias\": 2.5}}",
     {"key 'token_healing' is true,", "key 'watermarking_config' is {\"bias\":2.5},"}},
    /* What asks for nothing, or changes no text. */
    {"{\"num_beams\": 1, \"num_beam_groups\": 1.0, \"penalty_alpha\": 0, \"guidance_scale\": 1, \"sequence_bias\": {}, "
     "\"no_repeat_ngram_size\": 0, \"bad_words_ids\": [], \"min_length\": 0, \"forced_eos_token_id\": null, "
     "\"token_healing\": false, \"stop_strings\": [], \"do_sample\": true, \"typical_p\": 1.0, \"epsilon_cutoff\": "
     "0.0, "
     "\"eta_cutoff\": 0, \"length_penalty\": 2, \"max_length\": 20, \"max_new_tokens\": 9, \"pad_token_id\": 0, "
     "\"bos_token_id\": 1, \"use_cache\": false, \"transformers_version\": \"4.57.1\", \"of_nobody\": 3}",
     {NULL}},
    {"{\"typical_p\": 0.5, \"eta_cutoff\": 0.1, \"epsilon_cutoff\": 0.1, \"top_h\": 0.4}", {NULL}},
};

/* One line for each, which names the file, and nothing else is said. */
START_TEST(what_is_not_done_is_told)
{
    tn_error err = TN_ERROR_INIT;
    size_t count = 0;
    tn_model *m = open_with(undone[_i].json, &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    char all[4096] = "";
    for (size_t i = 0; i < tn_notice_count(); i++) {
        ck_assert_ptr_nonnull(strstr(tn_notice_get(i), "/generation_config.json: key '"));
        strncat(strcat(all, "\n"), tn_notice_get(i), 1000);
    }
    for (; count < 3 && undone[_i].says[count]; count++)
        ck_assert_msg(strstr(all, undone[_i].says[count]), "'%s' is not in:%s", undone[_i].says[count], all);
    if (count > 0 && strncmp(undone[_i].says[count - 1], "...", 3) == 0)
        count--; /* which is the end of the line before                                                  */
    ck_assert_msg(tn_notice_count() == count, "%s", all);
    tn_model_close(m);
}
END_TEST

static const struct {
    const char *json, *word;
} broken[] = {{"{", "JSON"},
              {"{\"temperature\": -1}", "temperature"},
              {"{\"temperature\": \"hot\"}", "temperature"},
              {"{\"top_k\": -2}", "top_k"},
              {"{\"top_p\": 1.5}", "top_p"},
              {"{\"min_p\": -0.5}", "min_p"},
              {"{\"repetition_penalty\": 0}", "repetition_penalty"},
              {"{\"do_sample\": 1}", "do_sample"},
              {"{\"eos_token_id\": [1, \"x\"]}", "eos_token_id"},
              {"{\"stop_strings\": 7}", "stop_strings"},
              {"{\"stop_strings\": [\"a\", 7]}", "stop_strings"},
              {"{\"stop_strings\": [\"a\", \"\"]}", "an empty text, which would end everything"}};

START_TEST(a_broken_file_is_an_error)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(open_with(broken[_i].json, &err));
    broken_expect(&err, TN_E_INPUT, "generation_config.json", broken[_i].word, NULL);
}
END_TEST

START_TEST(a_broken_link_is_an_error)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = copy_with(""), *path = tempdir_at(folder, "generation_config.json");
    ck_assert_int_eq(symlink("../../blobs/gone", path), 0);
    ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
    broken_expect(&err, TN_E_INPUT, "generation_config.json", "link that leads nowhere", NULL);
}
END_TEST

START_TEST(a_seed_draws_the_same_on_any_threads_and_chunk)
{
    static const int64_t chunks[] = {0, 1, 3, 8};
    tn_generate_options o = {.size = sizeof o,
                             .temperature = 1.5,
                             .top_k = 40,
                             .top_p = 0.98,
                             .min_p = 0.01,
                             .repetition_penalty = 1.3,
                             .seed = 11,
                             .ignore_eos = true};
    int64_t first[16], out[16];
    for (int threads = 1; threads <= 4; threads++)
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            tn_model *m = test_model_open_with(FOLDER, .threads = threads);
            continue_prompt(m, &o, chunks[c], threads == 1 && c == 0 ? first : out);
            if (threads > 1 || c > 0)
                ck_assert_mem_eq(out, first, sizeof first);
            tn_model_close(m);
        }
    tn_model *m = tn_model_open(FOLDER, NULL, NULL);
    o.seed = 12;
    continue_prompt(m, &o, 0, out);
    ck_assert_mem_ne(out, first, sizeof first);
    tn_model_close(m);
}
END_TEST

/* A penalty that no logit survives keeps every token from coming twice. History counts as what came. */
START_TEST(a_penalty_keeps_tokens_from_repeating)
{
    tn_model *m = test_model(FOLDER, .dtype = NULL);
    tn_generate_options o = {.size = sizeof o, .repetition_penalty = 1e30, .ignore_eos = true};
    int64_t out[16], again[16];
    ck_assert_int_eq(continue_prompt(m, &o, 0, out).count, 16);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++)
            ck_assert_int_ne(out[i], out[j]);
    o.history = out;
    o.history_count = 16;
    continue_prompt(m, &o, 0, again);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            ck_assert_int_ne(again[i], out[j]);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("generation_config.json", 120);
    suite_add(tc, a_ninth_token_ends_the_text);
    tcase_add_loop_test(tc, defaults_are_read, 0, sizeof files / sizeof *files);
    suite_add(tc, stop_strings_are_read);
    tcase_add_loop_test(tc, what_is_not_done_is_told, 0, sizeof undone / sizeof *undone);
    tcase_add_loop_test(tc, a_broken_file_is_an_error, 0, sizeof broken / sizeof *broken);
    suite_add(tc, a_broken_link_is_an_error, a_seed_draws_the_same_on_any_threads_and_chunk,
              a_penalty_keeps_tokens_from_repeating);
    return suite_run();
}
