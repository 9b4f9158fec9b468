/* What chat templates write of calls is what the splitter reads: a conversation with calls is rendered, and the
 * assistant's part of it divided again. */
#include "split.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/chat.h>

#define DATA "tests/data/templates/"

typedef struct rendering {
    const char *path;
    const char *before, *behind; /* the answer's part of the text                                                   */
    bool content;                /* can stand beside calls                                                    */
} rendering;

static const rendering renderings[] = {
    {DATA "qwen2.5/template.jinja", "<|im_start|>assistant\n", "<|im_end|>", true},
    {DATA "qwen3/template.jinja", "<|im_start|>assistant\n", "<|im_end|>", true},
    {DATA "mistral-nemo/template.jinja", "[/INST]", NULL, false},
    {DATA "deepseek-r1-distill-qwen/template.jinja", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", false},
};

static const char *const calls[] = {
    "[[\"get_weather\", {\"city\": \"Paris\"}]]",
    "[[\"get_time\", {}]]",
    "[[\"get_weather\", {\"city\": \"a \\\"b\\\" \\\\ {c} [d]\\n\\te <tool_call> </tool_call> 🦜\", \"days\": -3}],"
    " [\"get_time\", {\"zone\": \"Europe/Rome\"}]]",
    "[[\"set_all\", {\"text\": \"\", \"count\": 0, \"ratio\": 1.5, \"on\": true, \"list\": [1, [\"two\", null], {}],"
    " \"map\": {\"k\": {\"l\": \"m\"}}, \"maybe\": null}], [\"set_all\", {}], [\"get_time\", {\"zone\": \"]\"}]]",
};

static json_t *loaded(const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(value);
    return value;
}

/* A conversation in which the assistant makes the calls. */
static char *conversation(const json_t *list, const char *content)
{
    json_t *made = json_array(), *each;
    size_t i;
    json_array_foreach (list, i, each) {
        json_t *call = json_pack("{s:s,s:s,s:{s:O,s:O}}", "type", "function", "id", "abcdefghi", "function", "name",
                                 json_array_get(each, 0), "arguments", json_array_get(each, 1));
        json_array_append_new(made, call);
    }
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s?,s:o}]", "role", "user", "content", "Hi", "role", "assistant",
                                 "content", content, "tool_calls", made);
    ck_assert_ptr_nonnull(messages);
    char *text = json_dumps(messages, 0);
    json_decref(messages);
    return text;
}

/* The assistant's part of a rendered conversation. */
static char *answer_of(const rendering *r, char *template_text, const char *messages)
{
    tn_error err = TN_ERROR_INIT;
    tn_template *t = tn_template_parse(template_text, strlen(template_text), "template", &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    const tn_render_options options = {
        .size = sizeof options, .tools = split_tools, .variables = "{\"bos_token\":\"\",\"eos_token\":\"\"}", .now = 1};
    char *text = NULL;
    ck_assert_msg(tn_template_render(t, messages, strlen(messages), &options, &text, NULL, &err) == TN_OK, "%s",
                  err.message);
    tn_template_free(t);
    char *at = text;
    for (char *next; (next = strstr(at, r->before));)
        at = next + strlen(r->before);
    char *end = r->behind ? strstr(at, r->behind) : NULL;
    char *answer = strndup(at, end ? (size_t)(end - at) : strlen(at));
    free(text);
    return answer;
}

/* The calls' JSON, which templates write with white space of their own. */
static void expect_calls(const char *parts, const json_t *list, const char *answer)
{
    size_t i;
    json_t *each;
    json_array_foreach (list, i, each) {
        const char *name = json_string_value(json_array_get(each, 0));
        ck_assert_msg(strncmp(parts, name, strlen(name)) == 0 && parts[strlen(name)] == '(', "%s of %s", parts, answer);
        parts += strlen(name) + 1;
        json_error_t err;
        json_t *arguments = json_loads(parts, JSON_DISABLE_EOF_CHECK, &err);
        ck_assert_msg(json_equal(arguments, json_array_get(each, 1)), "%s of %s", parts, answer);
        json_decref(arguments);
        parts += err.position;
        ck_assert_msg(*parts == ')', "%s", parts);
        parts += parts[1] ? 2 : 1;
    }
    ck_assert_msg(*parts == '\0', "%s of %s", parts, answer);
}

START_TEST(round_trip)
{
    const rendering *r = &renderings[_i];
    size_t size;
    char *template_text = tempdir_read(r->path, &size);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (int with = 0; with <= r->content; with++) {
            json_t *list = loaded(calls[i]);
            char *messages = conversation(list, with ? "I look." : r->content ? "" : NULL);
            char *answer = answer_of(r, template_text, messages);
            const split_case c = {.marks = template_text, .text = answer};
            const char *parts = split_everywhere(&c), *head = "content{I look.} ";
            if (with)
                ck_assert_msg(strncmp(parts, head, strlen(head)) == 0, "%s", parts);
            expect_calls(parts + (with ? strlen(head) : 0), list, answer);
            free(answer);
            free(messages);
            json_decref(list);
        }
    free(template_text);
}
END_TEST

/* How the prompt ends by a template tells where the answer begins. */
START_TEST(prompts)
{
    static const struct {
        const char *path, *variables, *result;
    } cases[] = {
        {DATA "deepseek-r1-distill-qwen/template.jinja", "{\"enable_thinking\":true}", "reasoning{A} content{B}"},
        {DATA "deepseek-r1-distill-qwen/template.jinja", "{\"enable_thinking\":false}", "content{A</think>B}"},
        {DATA "qwen3/template.jinja", "{\"enable_thinking\":false}", "content{A</think>B}"},
        {DATA "qwen3/template.jinja", NULL, "content{A</think>B}"},
        {DATA "smollm3/template.jinja", NULL, "content{A</think>B}"},
    };
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"<think>\"}]";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        size_t size;
        char *source = tempdir_read(cases[i].path, &size), *prompt = NULL;
        tn_template *t = tn_template_parse(source, size, "template", &err);
        const tn_render_options options = {
            .size = sizeof options, .add_generation_prompt = true, .variables = cases[i].variables, .now = 1};
        ck_assert_int_eq(tn_template_render(t, messages, strlen(messages), &options, &prompt, NULL, &err), TN_OK);
        const split_case c = {.marks = source, .text = "A</think>B", .prompt = prompt};
        ck_assert_str_eq(split_everywhere(&c), cases[i].result);
        tn_template_free(t);
        free(prompt);
        free(source);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("splitter_templates", 60);
    tcase_add_loop_test(tc, round_trip, 0, sizeof renderings / sizeof renderings[0]);
    tcase_add_test(tc, prompts);
    return suite_run();
}
