/* Pictures and sounds in a chat's messages: what the model is given of them, and what is refused. */
#include "asked.h"
#include "suite.h"
#include "tempdir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEING "tests/data/models/qwen2_vl"
#define HEARING "tests/data/models/qwen2_5_omni_thinker"
#define FILES "tests/data/media/files/"

static const api_options seeing = {.folder = SEEING, .queue = 8};

/* A file in base64, a line end behind each 76 letters as mail has it. */
static char *base64_of(const char *path)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = 0, n = 0;
    unsigned char *data = tempdir_read(path, &size);
    suite_keep(data, free);
    char *out = malloc(size * 2 + 16);
    suite_keep(out, free);
    for (size_t i = 0; i < size; i += 3) {
        uint32_t bits = (uint32_t)data[i] << 16 | (uint32_t)(i + 1 < size ? data[i + 1] : 0) << 8 |
                        (uint32_t)(i + 2 < size ? data[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            out[n++] = i + (size_t)k > size ? '=' : letters[bits >> (18 - 6 * k) & 63];
        if (i % 57 == 54) {
            out[n++] = '\\';
            out[n++] = 'n';
        }
    }
    out[n] = '\0';
    return out;
}

/* A request's body; parts: of the user's message, in front of its text. Owned by the test. */
static const char *body_of(const char *parts, const char *more)
{
    char *body = NULL;
    ck_assert_int_gt(asprintf(&body,
                              "{\"messages\": [{\"role\": \"user\", \"content\": [%s, {\"type\": \"text\", \"text\": "
                              "\"What is this\"}]}], \"temperature\": 0, \"max_tokens\": 4%s}",
                              parts, more),
                     0);
    suite_keep(body, free);
    return body;
}

static const char *picture(const char *file)
{
    char *part = NULL;
    ck_assert_int_gt(asprintf(&part,
                              "{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,%s\", "
                              "\"detail\": \"auto\"}}",
                              base64_of(file)),
                     0);
    suite_keep(part, free);
    return part;
}

static size_t times(const char *text, const char *words)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, words)); at += strlen(words))
        n++;
    return n;
}

/* The logarithm of the probability of the likeliest first token, of a session that sees the file. */
static double by_session(const char *prompt, const char *file, int64_t *tokens)
{
    tn_error err = TN_ERROR_INIT;
    const tn_model_options loading = {.size = sizeof loading, .dtype = "f32", .threads = 1};
    tn_model *model = tn_model_open(SEEING, &loading, &err);
    tn_tokenizer *tokenizer = tn_tokenizer_open(SEEING, &err);
    tn_model_info info = {.size = sizeof info};
    tn_media *media = tn_media_images(model, &file, 1, &err);
    int64_t *ids = NULL;
    size_t count = 0;
    ck_assert_msg(model && tokenizer && media, "%s", err.message);
    tn_model_get_info(model, &info);
    ck_assert_int_eq(tn_tokenizer_encode(tokenizer, prompt, strlen(prompt), false, &ids, &count, &err), TN_OK);
    const tn_session_options options = {.size = sizeof options, .rows = 1};
    tn_session *s = tn_session_new(model, &options, &err);
    float *logits = malloc((size_t)info.vocab * sizeof *logits), highest = -INFINITY;
    const tn_batch batch = {
        .size = sizeof batch, .rows = 1, .tokens = (int64_t)count, .ids = ids, .images = tn_media_pictures(media)};
    const tn_outputs out = {.size = sizeof out, .last_logits = logits};
    ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s", err.message);
    double sum = 0;
    for (int64_t i = 0; i < info.vocab; i++)
        highest = logits[i] > highest ? logits[i] : highest;
    for (int64_t i = 0; i < info.vocab; i++)
        sum += exp((double)(logits[i] - highest));
    *tokens = (int64_t)count;
    free(logits);
    free(ids);
    tn_session_free(s);
    tn_media_free(media);
    tn_tokenizer_free(tokenizer);
    tn_model_close(model);
    return -log(sum);
}

static int64_t number(const asked *r, const char *path)
{
    return json_integer_value(asked_at(r->json, path));
}

/* 60 by 100 pixels, upright, within 1024 as 24 by 40: 15 rows. */
START_TEST(a_picture_is_seen)
{
    static const char file[] = FILES "exif6_100x60.jpg";
    api *a = asked_open(&seeing);
    const char *part = picture(file);
    const asked *prompt = asked_for(a, "/apply-template", body_of(part, ""));
    const char *text = asked_string(prompt->json, "prompt");
    ck_assert_uint_eq(times(text, "<|image_pad|>"), 15);
    int64_t tokens = 0;
    double expected = by_session(text, file, &tokens);
    const asked *r = asked_for(a, "/chat/completions", body_of(part, ", \"logprobs\": true"));
    ck_assert_int_eq(r->status, 200);
    ck_assert_int_eq(number(r, "usage.prompt_tokens"), tokens);
    ck_assert_double_eq_tol(json_real_value(asked_at(r->json, "choices.0.logprobs.content.0.logprob")), expected, 1e-4);
    const asked *counted = asked_for(a, "/chat/completions/input_tokens", body_of(part, ""));
    ck_assert_int_eq(number(counted, "input_tokens"), tokens);
    /* Once more, in two choices: what they begin with is not computed again, and they answer alike. */
    const asked *again = asked_for(a, "/chat/completions", body_of(part, ", \"logprobs\": true, \"n\": 2"));
    ck_assert_int_gt(number(again, "usage.prompt_tokens_details.cached_tokens"), 15);
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        ck_assert_str_eq(asked_string(again->json, path), asked_string(r->json, "choices.0.message.content"));
    }
}
END_TEST

/* Tokens of the prompt before its first picture. */
static int64_t before_picture(api *a, const char *body)
{
    const char *text = asked_string(asked_for(a, "/apply-template", body)->json, "prompt");
    json_t *beginning = json_pack("{s:s%, s:b}", "prompt", text, (size_t)(strstr(text, "<|image_pad|>") - text),
                                  "add_special_tokens", 0);
    char *asks = json_dumps(beginning, 0);
    const asked *r = asked_for(a, "/tokenize", asks);
    json_decref(beginning);
    free(asks);
    return (int64_t)json_array_size(json_object_get(r->json, "tokens"));
}

/* Pictures of several messages, in order; another one in the place of the first shares nothing of it. */
START_TEST(pictures_of_a_conversation)
{
    api *a = asked_open(&seeing);
    const char *one = picture(FILES "exif6_100x60.jpg"), *other = picture(FILES "tiny_3x5.png");
    const char *order[2][2] = {{one, other}, {other, one}};
    double likely[2];
    for (int i = 0; i < 2; i++) {
        char *body = NULL;
        ck_assert_int_gt(
            asprintf(&body,
                     "{\"messages\": [{\"role\": \"user\", \"content\": [%s]}, {\"role\": \"assistant\", "
                     "\"content\": \"ok\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                     "\"And this\"}, %s]}], \"temperature\": 0, \"max_tokens\": 1, \"logprobs\": true}",
                     order[i][0], order[i][1]),
            0);
        suite_keep(body, free);
        const asked *r = asked_for(a, "/chat/completions", body);
        ck_assert_msg(r->status == 200, "%s", r->text);
        likely[i] = json_real_value(asked_at(r->json, "choices.0.logprobs.content.0.logprob"));
        ck_assert_int_eq(number(r, "usage.prompt_tokens_details.cached_tokens"), i == 0 ? 0 : before_picture(a, body));
    }
    ck_assert(fabs(likely[0] - likely[1]) > 1e-6);
}
END_TEST

START_TEST(a_sound_is_heard)
{
    static const char *const formats[] = {"wav", "mp3"};
    api *a = asked_open(&(api_options){.folder = HEARING, .queue = 8});
    char *data = base64_of(FILES "s16_16k_stereo.wav");
    for (int i = 0; i < 2; i++) { /* what the format says is not believed                                 */
        char *part = NULL;
        ck_assert_int_gt(asprintf(&part,
                                  "{\"type\": \"input_audio\", \"input_audio\": {\"data\": \"%s\", \"format\": "
                                  "\"%s\"}}",
                                  data, formats[i]),
                         0);
        suite_keep(part, free);
        const asked *r = asked_for(a, "/chat/completions", body_of(part, ""));
        ck_assert_msg(r->status == 200, "%s", r->text);
    }
}
END_TEST

START_TEST(what_is_no_picture_is_refused)
{
    static const struct {
        const char *part, *says;
    } bad[] = {
        {"{\"type\": \"image_url\"}", "without image_url.url"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": 3}}", "without image_url.url"},
        {"{\"type\": \"input_audio\", \"input_audio\": {}}", "without input_audio.data"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"http://127.0.0.1/a.png\"}}", "nothing is fetched"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"file:///etc/passwd\"}}", "nothing is fetched"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png,AAAA\"}}", "nothing is fetched"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:,\"}}", "nothing is fetched"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,\"}}", "base64 is broken"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,A\"}}", "base64 is broken"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,AA=A\"}}", "base64 is broken"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,AA%2B\"}}", "base64 is broken"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,AAAA\"}}",
         "picture 1 is no PNG, JPEG or WebP"},
        {"{\"type\": \"input_audio\", \"input_audio\": {\"data\": \"AAAA\", \"format\": \"wav\"}}", "hears none"},
    };
    api *a = asked_open(&seeing);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const asked *r = asked_for(a, "/chat/completions", body_of(bad[i].part, ""));
        ck_assert_int_eq(r->status, 400);
        suite_expect_in(r->text, bad[i].says);
    }
    /* More of them than a request may bring, and a text that has a place for one more. */
    char *many = calloc(1, 100 * 100);
    suite_keep(many, free);
    for (int i = 0; i < 65; i++)
        strcat(strcat(many, i ? ", " : ""),
               "{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,AAAA\"}}");
    const asked *r = asked_for(a, "/chat/completions", body_of(many, ""));
    ck_assert_int_eq(r->status, 400);
    suite_expect_in(r->text, "may bring 64");
    char *two = NULL;
    ck_assert_int_gt(
        asprintf(&two, "%s, {\"type\": \"text\", \"text\": \"<|image_pad|>\"}", picture(FILES "tiny_3x5.png")), 0);
    suite_keep(two, free);
    r = asked_for(a, "/chat/completions", body_of(two, ""));
    ck_assert_int_eq(r->status, 400);
    suite_expect_in(r->text, "has 2 places for pictures");
}
END_TEST

START_TEST(a_model_of_text_sees_nothing)
{
    api *a = asked_open(NULL);
    const asked *r = asked_for(a, "/chat/completions", body_of(picture(FILES "tiny_3x5.png"), ""));
    ck_assert_int_eq(r->status, 400);
    ck_assert_str_eq(asked_string(r->json, "error.param"), "messages");
    suite_expect_in(r->text, "takes texts only");
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("api_shown", 60);
    suite_add(tcase, a_picture_is_seen, pictures_of_a_conversation, a_sound_is_heard, what_is_no_picture_is_refused,
              a_model_of_text_sees_nothing);
    return suite_run();
}
