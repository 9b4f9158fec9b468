/* What requests are answered: texts and streams, log-probabilities, forms, ends. */
#include "asked.h"
#include "suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char prompt[] = "\"prompt\": \"And it came to pass\", \"temperature\": 0";
static const char user[] =
    "\"messages\": [{\"role\": \"user\", \"content\": \"And it came to pass\"}], \"temperature\": 0";

static int64_t number(const json_t *json, const char *path)
{
    return json_integer_value(asked_at(json, path));
}

/* ---- texts -------------------------------------------------------------------------------------- */

START_TEST(a_stream_is_the_whole_answer)
{
    api *a = asked_open(NULL);
    const asked *whole = asked_format(a, "/completions", "{%s, \"max_tokens\": 24}", prompt);
    const asked *stream = asked_format(
        a, "/completions", "{%s, \"max_tokens\": 24, \"stream\": true, \"stream_options\": {\"include_usage\": true}}",
        prompt);
    char *joined = asked_joined(stream, 0, NULL);
    size_t events = json_array_size(stream->events);
    const json_t *last = json_array_get(stream->events, events - 1);
    ck_assert_int_eq(whole->status, 200);
    ck_assert_str_eq(asked_string(whole->json, "choices.0.finish_reason"), "length");
    ck_assert_int_eq(number(whole->json, "usage.completion_tokens"), 24);
    ck_assert_str_eq(joined, asked_string(whole->json, "choices.0.text"));
    ck_assert(stream->done && events > 10);
    ck_assert_uint_eq(json_array_size(json_object_get(last, "choices")), 0);
    ck_assert_int_eq(number(last, "usage.total_tokens"), number(whole->json, "usage.total_tokens"));
    free(joined);
}
END_TEST

START_TEST(choices_open_in_order_and_draw_apart)
{
    static const char drawn[] =
        "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"temperature\": 1, \"seed\": 9";
    api *a = asked_open(NULL);
    const asked *one = asked_format(a, "/chat/completions", "{%s, \"max_tokens\": 12}", drawn);
    const asked *three =
        asked_format(a, "/chat/completions", "{%s, \"max_tokens\": 12, \"n\": 3, \"stream\": true}", drawn);
    char *texts[3];
    for (int i = 0; i < 3; i++) {
        char path[32];
        snprintf(path, sizeof path, "%d.choices.0.index", i);
        ck_assert_int_eq(number(three->events, path), i);
        snprintf(path, sizeof path, "%d.choices.0.delta.role", i);
        ck_assert_str_eq(asked_string(three->events, path), "assistant");
        texts[i] = asked_joined(three, i, "content");
    }
    ck_assert_str_eq(texts[0], asked_string(one->json, "choices.0.message.content"));
    ck_assert_str_ne(texts[0], texts[1]);
    ck_assert_str_ne(texts[1], texts[2]);
    for (int i = 0; i < 3; i++)
        free(texts[i]);
}
END_TEST

START_TEST(prompts_have_choices_of_their_own)
{
    api *a = asked_open(NULL);
    const asked *r = asked_for(
        a, "/completions", "{\"prompt\": [\"In the\", \"And the\"], \"n\": 2, \"max_tokens\": 6, \"temperature\": 0}");
    const asked *second =
        asked_for(a, "/completions", "{\"prompt\": \"And the\", \"max_tokens\": 6, \"temperature\": 0}");
    ck_assert_uint_eq(json_array_size(json_object_get(r->json, "choices")), 4);
    ck_assert_int_eq(number(r->json, "choices.3.index"), 3);
    ck_assert_str_eq(asked_string(r->json, "choices.0.text"), asked_string(r->json, "choices.1.text"));
    ck_assert_str_eq(asked_string(r->json, "choices.2.text"), asked_string(second->json, "choices.0.text"));
    ck_assert_int_eq(number(r->json, "usage.completion_tokens"), 24);
}
END_TEST

/* A stop in the midst of the text that comes without it. */
START_TEST(a_stop_cuts_text_and_entries)
{
    api *a = asked_open(NULL);
    const asked *r = asked_format(a, "/completions", "{%s, \"max_tokens\": 20}", prompt);
    char *text = strdup(asked_string(r->json, "choices.0.text"));
    char stop[9];
    snprintf(stop, sizeof stop, "%.8s", text + 10);
    ck_assert_ptr_null(strpbrk(stop, "\"\\\n"));
    r = asked_format(a, "/completions", "{%s, \"max_tokens\": 20, \"stop\": [\"zzz\", \"%s\"], \"logprobs\": 0}",
                     prompt, stop);
    char *end = strstr(text, stop);
    *end = '\0';
    ck_assert_str_eq(asked_string(r->json, "choices.0.text"), text);
    ck_assert_str_eq(asked_string(r->json, "choices.0.finish_reason"), "stop");
    size_t i, length = 0;
    json_t *token;
    json_array_foreach (asked_at(r->json, "choices.0.logprobs.tokens"), i, token) {
        ck_assert_int_eq(strncmp(text + length, json_string_value(token), json_string_length(token)), 0);
        length += json_string_length(token);
    }
    ck_assert(i > 0 && length <= strlen(text));
    free(text);
}
END_TEST

/* ---- log-probabilities -------------------------------------------------------------------------- */

START_TEST(entries_join_to_the_text)
{
    api *a = asked_open(NULL);
    const asked *r =
        asked_format(a, "/chat/completions", "{%s, \"max_tokens\": 12, \"logprobs\": true, \"top_logprobs\": 3}", user);
    const char *text = asked_string(r->json, "choices.0.message.content");
    size_t i, k, at = 0;
    json_t *entry, *byte;
    json_array_foreach (asked_at(r->json, "choices.0.logprobs.content"), i, entry) {
        double best = json_number_value(asked_at(entry, "top_logprobs.0.logprob"));
        ck_assert_uint_eq(json_array_size(json_object_get(entry, "top_logprobs")), 3);
        ck_assert_double_eq_tol(json_number_value(json_object_get(entry, "logprob")), best, 1e-12); /* greedy */
        ck_assert(best <= 0 && best >= json_number_value(asked_at(entry, "top_logprobs.1.logprob")));
        json_array_foreach (json_object_get(entry, "bytes"), k, byte) {
            ck_assert_int_eq(json_integer_value(byte), (unsigned char)text[at++]);
        }
    }
    ck_assert_uint_eq(at, strlen(text));
}
END_TEST

/* The entries of a prompt are those that its tokens have as an answer. */
START_TEST(an_echo_scores_the_prompt)
{
    api *a = asked_open(NULL);
    const asked *made = asked_format(a, "/completions", "{%s, \"max_tokens\": 5, \"logprobs\": 1}", prompt);
    const asked *r = asked_format(a, "/completions",
                                  "{\"prompt\": \"And it came to pass%s\", \"echo\": true, \"max_tokens\": 0, "
                                  "\"logprobs\": 1, \"temperature\": 0}",
                                  asked_string(made->json, "choices.0.text"));
    const json_t *all = asked_at(r->json, "choices.0.logprobs.token_logprobs");
    const json_t *few = asked_at(made->json, "choices.0.logprobs.token_logprobs");
    size_t more = json_array_size(all) - json_array_size(few);
    ck_assert_uint_eq(json_array_size(few), 5);
    ck_assert(json_is_null(json_array_get(all, 0)));
    ck_assert_int_eq(number(r->json, "usage.completion_tokens"), 0);
    ck_assert_int_eq(number(r->json, "usage.prompt_tokens"), (int64_t)json_array_size(all));
    for (size_t i = 0; i < 5; i++)
        ck_assert_double_eq_tol(json_number_value(json_array_get(all, more + i)),
                                json_number_value(json_array_get(few, i)), 1e-4);
    ck_assert_int_eq(number(r->json, "choices.0.logprobs.text_offset.1"),
                     (int64_t)strlen(asked_string(r->json, "choices.0.logprobs.tokens.0")));
}
END_TEST

/* ---- drawing ------------------------------------------------------------------------------------ */

START_TEST(biases_and_penalties_change_what_comes)
{
    api *a = asked_open(NULL);
    const asked *r = asked_for(a, "/tokenize", "{\"content\": \" the\"}");
    ck_assert_uint_eq(json_array_size(json_object_get(r->json, "tokens")), 1);
    long long the = (long long)number(r->json, "tokens.0");
    r = asked_format(a, "/completions", "{%s, \"max_tokens\": 3, \"logit_bias\": {\"%lld\": 100}}", prompt, the);
    ck_assert_str_eq(asked_string(r->json, "choices.0.text"), " the the the");
    r = asked_format(a, "/completions",
                     "{%s, \"max_tokens\": 2, \"logit_bias\": {\"%lld\": 100}, \"stop_token_ids\": [%lld]}", prompt,
                     the, the);
    ck_assert_str_eq(asked_string(r->json, "choices.0.text"), "");
    ck_assert_str_eq(asked_string(r->json, "choices.0.finish_reason"), "stop");
    /* A bias that a penalty outweighs after some tokens. */
    r = asked_format(a, "/completions",
                     "{%s, \"max_tokens\": 60, \"logit_bias\": {\"%lld\": 20}, \"frequency_penalty\": 2}", prompt, the);
    const char *text = asked_string(r->json, "choices.0.text");
    ck_assert_int_eq(strncmp(text, " the the", 8), 0);
    ck_assert_ptr_null(
        strstr(text, " the the the the the the the the the the the the the the the the the the the the"));
}
END_TEST

/* ---- forms -------------------------------------------------------------------------------------- */

START_TEST(answers_have_the_form_that_is_demanded)
{
    static const char schema[] =
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", \"schema\": {\"type\": "
        "\"object\", \"properties\": {\"kind\": {\"enum\": [\"sheep\", \"goat\"]}, \"n\": {\"type\": \"integer\", "
        "\"minimum\": 1, \"maximum\": 9}}, \"required\": [\"kind\", \"n\"], \"additionalProperties\": false}}}";
    api *a = asked_open(NULL);
    const asked *r =
        asked_format(a, "/chat/completions", "{%s, %s, \"max_tokens\": 80, \"ignore_eos\": true}", user, schema);
    const char *text = asked_string(r->json, "choices.0.message.content");
    json_t *made = json_loads(text ? text : "", 0, NULL);
    ck_assert_msg(made != NULL, "%s", r->text);
    ck_assert(json_integer_value(json_object_get(made, "n")) >= 1 && json_object_size(made) == 2);
    json_decref(made);
    r = asked_format(a, "/chat/completions", "{%s, %s, \"max_tokens\": 2}", user, schema);
    ck_assert_str_eq(asked_string(r->json, "choices.0.finish_reason"), "length");
    ck_assert_int_eq(asked_string(r->json, "choices.0.message.content")[0], '{');
}
END_TEST

START_TEST(calls_are_forced)
{
    static const char tools[] = "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"pick\", "
                                "\"parameters\": {\"type\": \"object\", "
                                "\"properties\": {\"p\": {\"enum\": [\"x\", \"y\"]}}, \"required\": [\"p\"], "
                                "\"additionalProperties\": false}}}, "
                                "{\"type\": \"function\", \"function\": {\"name\": \"go\", \"parameters\": {\"type\": "
                                "\"object\", \"properties\": "
                                "{\"q\": {\"const\": 1}}, \"required\": [\"q\"], \"additionalProperties\": false}}}]";
    api *a = asked_open(NULL);
    const asked *r = asked_format(a, "/chat/completions", "{%s, %s, \"tool_choice\": \"required\"}", user, tools);
    const char *name = asked_string(r->json, "choices.0.message.tool_calls.0.function.name");
    ck_assert_msg(name && (strcmp(name, "pick") == 0 || strcmp(name, "go") == 0), "%s", r->text);
    r = asked_format(a, "/chat/completions",
                     "{%s, %s, \"stream\": true, \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": "
                     "\"go\"}}}",
                     user, tools);
    ck_assert_str_eq(asked_string(r->events, "1.choices.0.delta.tool_calls.0.function.name"), "go");
    ck_assert_str_eq(asked_string(r->events, "2.choices.0.delta.tool_calls.0.function.arguments"), "{\"q\": 1}");
    ck_assert_str_eq(asked_string(r->events, "3.choices.0.finish_reason"), "tool_calls");
    /* What is cut is no call. */
    r = asked_format(a, "/chat/completions", "{%s, %s, \"tool_choice\": \"required\", \"max_tokens\": 2}", user, tools);
    ck_assert_str_eq(asked_string(r->json, "choices.0.finish_reason"), "length");
    ck_assert_ptr_null(asked_at(r->json, "choices.0.message.tool_calls"));
}
END_TEST

/* ---- ends --------------------------------------------------------------------------------------- */

static const char endless[] =
    "{\"prompt\": \"And\", \"max_tokens\": 400, \"ignore_eos\": true, \"temperature\": 1, \"n\": 64, \"stream\": %s}";

static exchange *begin_endless(api *a, bool stream)
{
    char body[256];
    snprintf(body, sizeof body, endless, stream ? "true" : "false");
    return asked_begin(a, "/completions", body);
}

START_TEST(a_client_that_leaves_is_not_computed)
{
    api *a = asked_open(NULL);
    for (int stream = 0; stream < 2; stream++) {
        exchange *x = begin_endless(a, stream);
        ck_assert_int_eq(api_active(a), 1);
        asked_leave(x, false);
        asked_end(x);
        asked_idle(a);
    }
    exchange *x = begin_endless(a, false);
    asked_leave(x, true);
    ck_assert_int_eq(asked_end(x)->status, 504);
    x = begin_endless(a, true);
    asked_leave(x, true);
    const asked *r = asked_end(x);
    ck_assert(r->done && strstr(r->text, "longer than"));
}
END_TEST

START_TEST(ending_refuses_and_cuts)
{
    api *a = asked_open(NULL);
    exchange *stream = begin_endless(a, true), *whole = begin_endless(a, false);
    asked_wait_text(stream, "text");
    api_stop(a, 0);
    const asked *r = asked_end(stream);
    ck_assert(r->done && asked_at(json_array_get(r->events, json_array_size(r->events) - 1), "error"));
    ck_assert_int_eq(asked_end(whole)->status, 503);
    r = asked_format(a, "/completions", "{%s}", prompt);
    ck_assert_int_eq(r->status, 503);
    ck_assert_str_ne(r->retry_after, "");
    ck_assert_int_eq(asked_for(a, "/health", NULL)->status, 503);
}
END_TEST

START_TEST(a_full_queue_says_when_to_come_again)
{
    api *a = asked_open(&(api_options){.sequences = 1, .queue = 1});
    exchange *x = begin_endless(a, true);
    const asked *r = asked_format(a, "/completions", "{%s}", prompt);
    ck_assert_int_eq(r->status, 429);
    ck_assert_str_ne(r->retry_after, "");
    asked_leave(x, false);
    asked_end(x);
    asked_idle(a);
    ck_assert_int_eq(asked_format(a, "/completions", "{%s}", prompt)->status, 200);
}
END_TEST

START_TEST(the_context_bounds_prompt_and_answer)
{
    api *a = asked_open(&(api_options){.context = 32, .queue = 4});
    const asked *r = asked_format(a, "/completions", "{%s, \"max_tokens\": 500, \"ignore_eos\": true}", prompt);
    ck_assert_int_eq(r->status, 200);
    ck_assert_int_eq(number(r->json, "usage.total_tokens"), 32);
    r = asked_for(a, "/completions",
                  "{\"prompt\": \"a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l\"}");
    ck_assert_int_eq(r->status, 400);
    suite_expect_in(r->text, "maximum context length is 32 tokens");
}
END_TEST

START_TEST(what_happened_is_counted)
{
    api *a = asked_open(NULL);
    asked_format(a, "/completions", "{%s, \"max_tokens\": 7}", prompt);
    const asked *r = asked_for(a, "/metrics", NULL);
    suite_expect_in(r->text, "tenon:generation_tokens_total{model_name=\"demo\"} 7\n");
    suite_expect_in(r->text, "tenon:request_success_total{model_name=\"demo\",finished_reason=\"length\"} 1\n");
    suite_expect_in(r->text, "tenon:time_to_first_token_seconds_count{model_name=\"demo\"} 1\n");
    suite_expect_in(r->text, "tenon:inter_token_latency_seconds_bucket{model_name=\"demo\",le=\"+Inf\"} 6\n");
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("api_answers", 60);
    suite_add(tcase, a_stream_is_the_whole_answer, choices_open_in_order_and_draw_apart,
              prompts_have_choices_of_their_own, a_stop_cuts_text_and_entries, entries_join_to_the_text,
              an_echo_scores_the_prompt, biases_and_penalties_change_what_comes, answers_have_the_form_that_is_demanded,
              calls_are_forced, a_client_that_leaves_is_not_computed, ending_refuses_and_cuts,
              a_full_queue_says_when_to_come_again, the_context_bounds_prompt_and_answer, what_happened_is_counted);
    return suite_run();
}
