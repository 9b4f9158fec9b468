/* What requests may say: every member's type and range, and what a chat's messages become. */
#include "asked.h"
#include "suite.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is refused ---------------------------------------------------------------------------- */

/* A member in place of the one of an otherwise right request. */
static const struct {
    const char *path, *member;
    int status;
    const char *param; /* of the error; NULL: none                                                   */
} members[] = {
    {"/chat/completions", "\"messages\": 3", 400, "messages"},
    {"/chat/completions", "\"messages\": []", 400, "messages"},
    {"/chat/completions", "\"messages\": [3]", 400, "messages[0]"},
    {"/chat/completions", "\"messages\": [{\"role\": \"user\"}]", 400, "messages[0].content"},
    {"/chat/completions", "\"messages\": [{\"role\": \"assistant\"}]", 400, "messages[0].content"},
    {"/chat/completions", "\"messages\": [{\"role\": \"cook\", \"content\": \"x\"}]", 400, "messages[0].role"},
    {"/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": []}]", 400, "messages[0].content"},
    {"/chat/completions",
     "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}]",
     400, "messages[0].content"},
    {"/chat/completions",
     "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"video_url\", \"video_url\": {\"url\": \"x\"}}]}]",
     400, "messages[0].content"},
    {"/chat/completions", "\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": 3}}]}]",
     400, "messages[0].tool_calls"},
    {"/chat/completions", "\"messages\": [{\"role\": \"tool\", \"content\": \"x\", \"tool_call_id\": 3}]", 400,
     "messages[0].tool_call_id"},
    {"/chat/completions", "\"model\": 3", 400, "model"},
    {"/chat/completions", "\"model\": \"gpt-9\"", 404, "model"},
    {"/chat/completions", "\"temperature\": -0.1", 400, "temperature"},
    {"/chat/completions", "\"temperature\": 2.1", 400, "temperature"},
    {"/chat/completions", "\"temperature\": true", 400, "temperature"},
    {"/chat/completions", "\"top_p\": 0", 400, "top_p"},
    {"/chat/completions", "\"top_k\": -2", 400, "top_k"},
    {"/chat/completions", "\"min_p\": 1.5", 400, "min_p"},
    {"/chat/completions", "\"n\": 0", 400, "n"},
    {"/chat/completions", "\"n\": 129", 400, "n"},
    {"/chat/completions", "\"n\": 1.5", 400, "n"},
    {"/chat/completions", "\"max_tokens\": 0", 400, "max_tokens"},
    {"/chat/completions", "\"max_tokens\": \"7\"", 400, "max_tokens"},
    {"/chat/completions", "\"max_completion_tokens\": 5, \"max_tokens\": -1", 400, "max_tokens"},
    {"/chat/completions", "\"max_completion_tokens\": 0", 400, "max_completion_tokens"},
    {"/chat/completions", "\"min_tokens\": 9, \"max_tokens\": 8", 400, "min_tokens"},
    {"/chat/completions", "\"seed\": 0.5", 400, "seed"},
    {"/chat/completions", "\"stop\": \"\"", 400, "stop"},
    {"/chat/completions", "\"stop\": [\"a\", 1]", 400, "stop"},
    {"/chat/completions", "\"stop\": \"a\\u0000\"", 400, "stop"},
    {"/chat/completions", "\"stop_token_ids\": [2048]", 400, "stop_token_ids"},
    {"/chat/completions", "\"presence_penalty\": 2.5", 400, "presence_penalty"},
    {"/chat/completions", "\"frequency_penalty\": \"x\"", 400, "frequency_penalty"},
    {"/chat/completions", "\"repetition_penalty\": 0", 400, "repetition_penalty"},
    {"/chat/completions", "\"repeat_penalty\": -1", 400, "repeat_penalty"},
    {"/chat/completions", "\"logit_bias\": {\"5\": 101}", 400, "logit_bias"},
    {"/chat/completions", "\"logit_bias\": {\"-5\": 1}", 400, "logit_bias"},
    {"/chat/completions", "\"logit_bias\": {\"2048\": 1}", 400, "logit_bias"},
    {"/chat/completions", "\"logit_bias\": [[5]]", 400, "logit_bias"},
    {"/chat/completions", "\"logprobs\": 1", 400, "logprobs"},
    {"/chat/completions", "\"top_logprobs\": 1", 400, "top_logprobs"},
    {"/chat/completions", "\"logprobs\": true, \"top_logprobs\": 21", 400, "top_logprobs"},
    {"/chat/completions", "\"stream\": 1", 400, "stream"},
    {"/chat/completions", "\"stream_options\": {}", 400, "stream_options"},
    {"/chat/completions", "\"stream\": true, \"stream_options\": {\"include_usage\": 1}", 400, "include_usage"},
    {"/chat/completions", "\"tools\": {}", 400, "tools"},
    {"/chat/completions", "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a b\"}}]", 400, "tools"},
    {"/chat/completions", "\"tool_choice\": \"auto\"", 400, "tool_choice"},
    {"/chat/completions",
     "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\"}}], \"tool_choice\": \"maybe\"", 400,
     "tool_choice"},
    {"/chat/completions",
     "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\"}}], \"tool_choice\": {\"type\": "
     "\"function\", "
     "\"function\": {\"name\": \"b\"}}",
     400, "tool_choice"},
    {"/chat/completions",
     "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"parameters\": {\"type\": \"thing\"}}}], "
     "\"tool_choice\": \"required\"",
     400, "tools"},
    {"/chat/completions", "\"functions\": []", 400, "functions"},
    {"/chat/completions", "\"response_format\": \"json\"", 400, "response_format"},
    {"/chat/completions", "\"response_format\": {\"type\": \"yaml\"}", 400, "response_format"},
    {"/chat/completions", "\"response_format\": {\"type\": \"json_schema\"}", 400, "response_format"},
    {"/chat/completions",
     "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", \"schema\": {\"not\": {}}}}",
     400, "response_format"},
    {"/chat/completions", "\"reasoning_effort\": \"some\"", 400, "reasoning_effort"},
    {"/chat/completions", "\"reasoning_format\": \"other\"", 400, "reasoning_format"},
    {"/chat/completions", "\"modalities\": [\"audio\"]", 400, "modalities"},
    {"/chat/completions", "\"chat_template_kwargs\": []", 400, "chat_template_kwargs"},
    {"/chat/completions", "\"chat_template_kwargs\": {\"messages\": 1}", 400, "chat_template_kwargs"},
    {"/chat/completions", "\"cache_salt\": 1", 400, "cache_salt"},
    {"/chat/completions", "\"continue_final_message\": true, \"add_generation_prompt\": true", 400,
     "continue_final_message"},
    {"/completions", "\"prompt\": 3", 400, "prompt"},
    {"/completions", "\"prompt\": null", 400, "prompt"},
    {"/completions", "\"prompt\": \"\"", 400, "prompt"},
    {"/completions", "\"prompt\": []", 400, "prompt"},
    {"/completions", "\"prompt\": [2048]", 400, "prompt"},
    {"/completions", "\"prompt\": [\"a\", [1]]", 400, "prompt"},
    {"/completions", "\"prompt\": [[1], []]", 400, "prompt"},
    {"/completions", "\"logprobs\": 6", 400, "logprobs"},
    {"/completions", "\"echo\": 1", 400, "echo"},
    {"/completions", "\"suffix\": \"x\"", 400, "suffix"},
    {"/completions", "\"best_of\": 2", 400, "best_of"},
    {"/embeddings", "\"input\": \"x\"", 400, "model"},
    {"/tokenize", "\"content\": 3", 400, "content"},
    {"/detokenize", "\"tokens\": [-1]", 400, "tokens"},
    {"/detokenize", "\"tokens\": \"x\"", 400, "tokens"},
};

START_TEST(members_are_checked)
{
    api *a = asked_open(NULL);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const char *usual =
            strncmp(members[i].member, "\"messages\"", 10) == 0 || strncmp(members[i].member, "\"prompt\"", 8) == 0 ? ""
            : strstr(members[i].path, "chat") ? "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
                                              : "\"prompt\": \"x\", ";
        const char *few = strstr(members[i].member, "max_") ? "" : ", \"max_tokens\": 1";
        const asked *r = asked_format(a, members[i].path, "{%s%s%s}", usual, members[i].member, few);
        const char *param = asked_string(r->json, "error.param");
        ck_assert_msg(r->status == members[i].status, "%s: %d, %s", members[i].member, r->status, r->text);
        ck_assert_msg(param && strcmp(param, members[i].param) == 0, "%s: %s", members[i].member, r->text);
    }
    ck_assert_int_eq(api_active(a), 0);
}
END_TEST

/* Where it has no null a member is as if it were not there, and what is unknown may be anything. */
START_TEST(null_is_absent)
{
    api *a = asked_open(NULL);
    const asked *r = asked_for(
        a, "/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 1, \"temperature\": null, \"n\": "
        "null, "
        "\"stop\": null, \"tools\": null, \"tool_choice\": null, \"response_format\": null, \"logit_bias\": null, "
        "\"stream\": null, \"seed\": null, \"other\": {\"a\": [1]}}");
    ck_assert_msg(r->status == 200, "%s", r->text);
}
END_TEST

START_TEST(bodies_are_json)
{
    static const char *const bodies[] = {"",
                                         "{",
                                         "[]",
                                         "3",
                                         "{\"a\": NaN}",
                                         "{\"a\": 1e999}",
                                         "nil",
                                         "{\"a\"}",
                                         "{} extra",
                                         "{\"a\": \"\\ud800\"}",
                                         "{\"a\": \"\xff\"}"};
    api *a = asked_open(NULL);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        ck_assert_msg(asked_for(a, "/chat/completions", bodies[i])->status == 400, "%s", bodies[i]);
}
END_TEST

START_TEST(paths_and_methods)
{
    api *a = asked_open(NULL);
    ck_assert_int_eq(asked_for(a, "/nothing", NULL)->status, 404);
    ck_assert_int_eq(asked_for(a, "/nothing", "{}")->status, 404);
    ck_assert_int_eq(asked_for(a, "/chat/completions", NULL)->status, 405);
    ck_assert_int_eq(asked_for(a, "/health", "{}")->status, 405);
    ck_assert_int_eq(asked_for(a, "/health", NULL)->status, 200);
    ck_assert_int_eq(asked_for(a, "/models/demo", NULL)->status, 200);
    ck_assert_int_eq(asked_for(a, "/models/other", NULL)->status, 404);
    ck_assert_str_eq(asked_string(asked_for(a, "/models", NULL)->json, "data.0.id"), "demo");
}
END_TEST

START_TEST(aliases_are_names)
{
    static const char *const other[] = {"first", "second"}, *const any[] = {"*"};
    api *a = asked_open(&(api_options){.aliases = other, .alias_count = 2, .queue = 1});
    ck_assert_int_eq(asked_for(a, "/models/second", NULL)->status, 200);
    ck_assert_int_eq(asked_for(a, "/models/third", NULL)->status, 404);
    a = asked_open(&(api_options){.aliases = any, .alias_count = 1, .queue = 1});
    const asked *r = asked_for(a, "/completions", "{\"model\": \"gpt-4o\", \"prompt\": \"x\", \"max_tokens\": 1}");
    ck_assert_int_eq(r->status, 200);
    ck_assert_str_eq(asked_string(r->json, "model"), "demo");
}
END_TEST

/* ---- messages ----------------------------------------------------------------------------------- */

static const struct {
    const char *messages, *prompt;
} renderings[] = {
    {"[{\"role\": \"user\", \"content\": \"a\"}]", "user: a; assistant:"},
    {"[{\"role\": \"developer\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}]",
     "system: a; user: b; assistant:"},
    {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": "
     "\"b\"}]}]",
     "user: a\nb; assistant:"},
    /* Arguments are an object; a call without an id gets one, and its answer the same. */
    {"[{\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": [{\"id\": null, \"type\": \"function\", "
     "\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}, "
     "{\"role\": \"tool\", \"content\": \"r\"}]",
     "assistant: c[{\"id\": \"call00001\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
     "{\"a\": 1}}}]; tool: r[call00001]; assistant:"},
    /* What is no object stays text. */
    {"[{\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": [{\"id\": \"x\", \"function\": {\"name\": \"f\", "
     "\"arguments\": \"{\"}}]}]",
     "assistant: c[{\"id\": \"x\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
     "\"{\"}}]; assistant:"},
};

START_TEST(messages_are_rendered)
{
    api *a = asked_open(NULL);
    for (size_t i = 0; i < sizeof renderings / sizeof *renderings; i++) {
        const asked *r = asked_format(a, "/apply-template", "{\"messages\": %s}", renderings[i].messages);
        ck_assert_msg(r->status == 200, "%s", r->text);
        ck_assert_str_eq(asked_string(r->json, "prompt"), renderings[i].prompt);
    }
}
END_TEST

START_TEST(the_template_is_told)
{
    static const char user[] = "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]";
    static const char tool[] = "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
    api *a = asked_open(NULL);
    const asked *r = asked_format(a, "/apply-template", "{%s, \"reasoning_effort\": \"none\"}", user);
    ck_assert_str_eq(asked_string(r->json, "prompt"), "user: a; assistant: False");
    r = asked_format(a, "/apply-template", "{%s, \"chat_template_kwargs\": {\"enable_thinking\": true}}", user);
    ck_assert_str_eq(asked_string(r->json, "prompt"), "user: a; assistant: True");
    r = asked_format(a, "/apply-template", "{%s, %s}", user, tool);
    suite_expect_in(asked_string(r->json, "prompt"), "<tool_call> [{\"type\"");
    r = asked_format(a, "/apply-template", "{%s, %s, \"tool_choice\": \"none\"}", user, tool);
    ck_assert_str_eq(asked_string(r->json, "prompt"), "user: a; assistant:");
    r = asked_format(a, "/apply-template", "{%s, \"continue_final_message\": true}", user);
    ck_assert_str_eq(asked_string(r->json, "prompt"), "user: a");
    r = asked_format(a, "/chat/completions/input_tokens", "{%s}", user);
    ck_assert_int_gt(json_integer_value(asked_at(r->json, "input_tokens")), 3);
}
END_TEST

START_TEST(text_goes_to_tokens_and_back)
{
    api *a = asked_open(NULL);
    const asked *r = asked_for(a, "/tokenize", "{\"content\": \"And \\u00e9\\u0000<|endoftext|>\"}");
    char *ids = json_dumps(asked_at(r->json, "tokens"), 0);
    r = asked_format(a, "/detokenize", "{\"tokens\": %s}", ids);
    free(ids);
    ck_assert_uint_eq(json_string_length(asked_at(r->json, "content")), strlen("And \xc3\xa9 <|endoftext|>"));
    ck_assert_int_eq(memcmp(asked_string(r->json, "content"), "And \xc3\xa9\0<|endoftext|>", 20), 0);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("api_requests", 60);
    suite_add(tcase, members_are_checked, null_is_absent, bodies_are_json, paths_and_methods, aliases_are_names,
              messages_are_rendered, the_template_is_told, text_goes_to_tokens_and_back);
    return suite_run();
}
