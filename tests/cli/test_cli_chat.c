/* Conversations: tenon run --messages, one question, and tenon chat through a pipe. */
#include "suite.h"
#include "talk.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files of messages ---------------------------------------------------------------------------- */

START_TEST(run_answers_messages)
{
    static const char *const files[] = {
        "[{\"role\": \"user\", \"content\": \"And it came to pass\"}]",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"And it came to pass\"}]}",
        "[{\"role\": \"user\", \"content\": \"And it \"}, {\"role\": \"assistant\", \"content\": \"came to pass\"}]",
    };
    char *path = tempdir_at(folder, "messages.json"), *want = continued("And it came to pass", "9");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        tempdir_put(folder, "messages.json", files[i]);
        process_expect_output(TENON(NULL, "run", folder, "--messages", path, GREEDY, "-n9"), want);
        process_expect_output(TENON(files[i], "run", folder, "--messages", "-", GREEDY, "-n9"), want);
    }
    /* Texts in parts are joined, since this template loops over none. */
    want = continued("And it\ncame", "5");
    process_expect_output(
        TENON("[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"And it\"}, {\"type\": "
              "\"text\", \"text\": \"came\"}]}]",
              "run", folder, "--messages", "-", GREEDY, "-n5"),
        want);
    /* Other keys are variables of the template, and tools are tools. */
    tempdir_put(folder, "chat_template.jinja", "{{ greeting }}{{ tools[0].name }}");
    tempdir_put(folder, "messages.json",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"greeting\": \"And it \", "
                "\"tools\": [{\"name\": \"came\"}]}");
    want = continued("And it came", "5");
    process_expect_output(TENON(NULL, "run", folder, "--messages", path, GREEDY, "-n5"), want);
}
END_TEST

static const struct {
    const char *text, *word;
} wrong[] = {{"", "is not valid JSON"},
             {"{", "is not valid JSON: line 1"},
             {"3", "is not valid JSON"},
             {"[]", "holds no messages"},
             {"{\"tools\": []}", "holds no messages"},
             {"[{\"content\": \"x\"}]", "message 1 has no role"},
             {"[{\"role\": \"user\", \"content\": \"x\"}, 5]", "message 2 has no role"},
             {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": 1}", "'tools' must be a list"},
             {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"x\"}, {\"type\": \"image_url\"}]}]",
              "message 1 has a part of type 'image_url', and messages hold texts only; leave it out, give"}};

START_TEST(wrong_messages_are_errors)
{
    char *path = tempdir_at(folder, "messages.json");
    tempdir_put(folder, "messages.json", wrong[_i].text);
    process_expect_error(TENON(NULL, "run", folder, "--messages", path, "-q"), 4, "messages.json", wrong[_i].word,
                         NULL);
    process_expect_error(TENON(wrong[_i].text, "run", folder, "--messages", "-", "-q"), 4, "standard input",
                         wrong[_i].word, NULL);
    process_expect_error(TENON("", "chat", folder, "--messages", path, "-q"), 4, wrong[_i].word, NULL);
}
END_TEST

START_TEST(other_mistakes_are_told)
{
    process_expect_error(TENON("Hello\n", "chat", MODEL, "--system=x"), 4, "has no chat template",
                         "chat_template.jinja", "tokenizer_config.json", "chat_template.json", NULL);
    process_expect_error(TENON("[]", "run", MODEL, "--messages", "-"), 4, MODEL ": has no chat template",
                         "chat_template.jinja", "tokenizer_config.json", "chat_template.json", NULL);
    process_expect_error(TENON(NULL, "run", folder, "x", "--messages", "y"), 2, "leave out all but one", NULL);
    process_expect_error(TENON(NULL, "run", folder, "--messages", "/nonexistent/m.json"), 4, "/nonexistent/m.json",
                         NULL);
    process_expect_error(TENON("x\n", "chat", folder, "--messages", "-"), 2, "give a file", NULL);
    process_expect_error(CHAT("/nope\n", "-q"), 2, "unknown command '/nope'", NULL);
    process_expect_error(CHAT("/save\n", "-q"), 2, "no file named", NULL);
    process_expect_error(CHAT("/save /nonexistent/x\n", "-q"), 4, "/nonexistent/x", "cannot be written", NULL);
    process_expect_error(CHAT("\xff\n", "-q"), 4, "is not UTF-8", NULL);
    process_expect_error(CHAT("And it came to pass in those days\n", "-q", "--context=4"), 4, "the context holds 4",
                         "/reset", "--context N", NULL);
    tempdir_put(folder, "chat_template.jinja", "{{ raise_exception('only\\x1b[31m users') }}");
    process_expect_error(CHAT("Hello\n", "-q"), 4, "only", NULL);
}
END_TEST

/* ---- one message of the command line -------------------------------------------------------------- */

START_TEST(a_question_is_answered_once)
{
    char *answer = continued("And it came to pass", "9");
    process_expect_output(CHAT("And\n", "And it came to pass", "-n9", "-q"), answer);
    process_expect_output(CHAT("And it came to pass\n", "-", "-n9", "-q"), answer);
    process_expect_output(TENON(NULL, "chat", "-m", folder, "-p", "And it came to pass", GREEDY, "-n9", "-q"), answer);
    process_expect_output(TENON(NULL, "run", folder, "--chat", "And it came to pass", GREEDY, "-n9", "-q"), answer);
    process_expect_output(TENON("And it came to pass\n", "run", folder, "--chat", GREEDY, "-n9", "-q"), answer);
    answer = continued("/And", "5"); /* which is no command here                                    */
    process_expect_output(CHAT(NULL, "/And", "-n5", "-q"), answer);
    answer = continued("[And it]came to pass", "5");
    process_expect_output(CHAT(NULL, "came to pass", "--system=And it", "-n5", "-q"), answer);
    process_expect_output(TENON(NULL, "run", folder, "--chat", "came to pass", "--system=And it", GREEDY, "-n5", "-q"),
                          answer);
    process_expect_error(CHAT(NULL, "", "-q"), 4, "the question is empty", NULL);
    process_expect_error(TENON(NULL, "run", folder, "--chat", "", "-q"), 4, "the prompt is empty", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--chat", "x", "-q"), 4, "has no chat template", NULL);
    process_expect_error(TENON(NULL, "run", folder, "--chat", "--tokens=1"), 2, "leave out --chat or --tokens", NULL);
    process_expect_error(TENON(NULL, "run", folder, "x", "--system=y"), 2,
                         "--system is for the chat template; add --chat", NULL);
}
END_TEST

START_TEST(the_template_gets_variables_and_tools)
{
    char *tools = tempdir_at(folder, "tools.json"), *messages = tempdir_at(folder, "messages.json");
    tempdir_put(folder, "chat_template.jinja",
                "{{ greeting }}{% if flag is false %}{{ n + 1 }}{% endif %}{{ tools[0].name }}");
    tempdir_put(folder, "tools.json", "[{\"name\": \" came\"}]");
    tempdir_put(folder, "messages.json",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"greeting\": \"Not\"}");
    char *want = continued("And it5 came", "5");
#define VARIABLES                                                                                                      \
    "--template-var=greeting=And it", "--template-var", "flag=false", "--template-var=n=4", "--tools", tools
    process_expect_output(TENON(NULL, "run", folder, "--chat", "x", GREEDY, "-n5", VARIABLES), want);
    process_expect_output(TENON(NULL, "run", folder, "--messages", messages, GREEDY, "-n5", VARIABLES), want);
    process_expect_output(CHAT(NULL, "x", "-n5", VARIABLES), want);
#undef VARIABLES
    process_expect_error(CHAT(NULL, "x", "--template-var=flag"), 2, "'flag' is no NAME=VALUE", NULL);
    process_expect_error(CHAT(NULL, "x", "--template-var==1"), 2, "'=1' is no NAME=VALUE", NULL);
    process_expect_error(CHAT(NULL, "x", "--template-var=tools=1"), 2, "tools is set by the conversation", NULL);
    process_expect_error(CHAT(NULL, "x", "--template-var=a=\xff"), 2, "is not UTF-8", NULL);
    process_expect_error(CHAT(NULL, "x", "--tools=/nonexistent/t"), 4, "/nonexistent/t", "cannot open", NULL);
    tempdir_put(folder, "tools.json", "{}");
    process_expect_error(CHAT(NULL, "x", "--tools", tools), 4, "tools.json", "holds no list of tools", NULL);
}
END_TEST

/* The text is the messages, a line each, with the answers behind them. */
START_TEST(a_model_without_a_template_continues_plain_text)
{
    char *first = continued("And it came to pass", "9"), prompt[512], both[1024];
    snprintf(prompt, sizeof prompt, "And it came to pass%.*s\nAnd", (int)strlen(first) - 1, first);
    char *second = continued(prompt, "9");
    snprintf(both, sizeof both, "%s%s", first, second);
    process_result r = TENON("And it came to pass\nAnd\n", "chat", MODEL, "--temperature=0", "--kernels=none", "-n9");
    ck_assert_int_eq(r.status, 0);
    ck_assert_str_eq(r.out, both);
    expect_said(&r, "the model has no chat template; it continues plain text\n");
    process_expect_error(TENON("/system x\n", "chat", MODEL, "-q"), 2, "the model has no chat template, and so", NULL);
    tempdir_put(folder, "messages.json", "[{\"role\": \"tool\", \"content\": \"x\"}]");
    char *path = tempdir_at(folder, "messages.json");
    process_expect_error(TENON("x\n", "chat", MODEL, "-q", "--messages", path), 4, "only texts of user and", NULL);
}
END_TEST

/* ---- a pipe --------------------------------------------------------------------------------------- */

START_TEST(a_line_is_a_message)
{
    char *first = continued("And it came to pass", "9"), both[512], prompt[512];
    snprintf(prompt, sizeof prompt, "And it came to pass%.*s And", (int)strlen(first) - 1, first);
    char *second = continued(prompt, "9");
    snprintf(both, sizeof both, "%s%s", first, second);
    /* Empty lines are none, and the last line needs no end. */
    process_result r = CHAT("And it came to pass\n\n  \n And", "-n9", "-v");
    ck_assert_str_eq(r.out, both);
    /* Of the second message only what the session does not hold is computed: the last token, and it. */
    expect_said(&r, "prompt: 5 tokens, 5 of them new; generated: 9");
    expect_said(&r, "prompt: 15 tokens, 2 of them new; generated: 9");
    /* After a reset the same message has the same answer; // is a slash. */
    snprintf(both, sizeof both, "%s%s", first, first);
    process_expect_output(CHAT("And it came to pass\n/reset\nAnd it came to pass\n", "-n9", "-q"), both);
    first = continued("/And\nit", "5");
    process_expect_output(CHAT("//And\\\nit\n", "-n5", "-q"), first);
}
END_TEST

START_TEST(a_conversation_is_saved_and_goes_on)
{
    char *path = tempdir_at(folder, "saved.json"), input[512];
    snprintf(input, sizeof input, "/system Be brief\nAnd it came\n/save %s\n and\n", path);
    process_result whole = CHAT(input, "-n6", "-q");
    ck_assert_int_eq(whole.status, 0);
    json_t *saved = json_load_file(path, 0, NULL);
    ck_assert_uint_eq(json_array_size(saved), 3);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(saved, 0), "content")), "Be brief");
    json_decref(saved);
    process_result rest = CHAT(" and\n", "-n6", "-q", "--messages", path);
    ck_assert_int_eq(rest.status, 0);
    const char *second = strchr(whole.out, '\n') + 1;
    ck_assert_str_eq(rest.out, second);
    /* The system's message is given, changed, and taken away. */
    rest = CHAT("And it came\n", "-n6", "-q", "--system", "Be brief");
    ck_assert_int_eq(strncmp(rest.out, whole.out, (size_t)(second - whole.out)), 0);
    char *plain = continued("And it came", "6");
    process_expect_output(CHAT("/system\nAnd it came\n/quit\nAnd\n", "-n6", "-q", "--system", "Be brief"), plain);
}
END_TEST

/* A conversation that the template writes otherwise than it was generated goes back as far as it differs. */
/* What was there stays, whole, and nothing lies beside it. A quote takes two bytes in the file, so that it grows beyond
 * a limit that the input does not reach. */
START_TEST(a_conversation_that_cannot_be_saved)
{
    char *talks = tempdir_at(folder, "talks"), *path = tempdir_at(talks, "saved.json"), input[4000], quotes[3001];
    struct rlimit before, small;
    size_t size;
    ck_assert_int_eq(mkdir(talks, 0755), 0);
    tempdir_write(path, "[]", 2);
    memset(quotes, '"', 3000);
    quotes[3000] = '\0';
    snprintf(input, sizeof input, "/system %s\n/save %s\n", quotes, path);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &small);
    process_result r = CHAT(input, "-q");
    setrlimit(RLIMIT_FSIZE, &before);
    process_expect_error(r, 4, "saved.json", "cannot be written: File too large", NULL);
    char *left = tempdir_read(path, &size);
    ck_assert_str_eq(left, "[]");
    free(left);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(talks), 0);
    process_expect_error(CHAT("/save /dev/null\n", "-q"), 4, "/dev/null", "is not a regular file", NULL);
}
END_TEST

START_TEST(what_changed_is_computed_again)
{
    tempdir_put(folder, "chat_template.jinja", "{%- for m in messages -%}<{{ m.content.upper() }}>{%- endfor -%}");
    process_result grown = CHAT("and it came\nto pass\n", "-n5", "-v"), last;
    expect_said(&grown, "of them new; generated: 5");
    char *path = tempdir_at(folder, "messages.json"), *end = strrchr(grown.out, '\n'),
         *first = strndup(grown.out, strcspn(grown.out, "\n"));
    *end = '\0';
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "and it came", "role",
                                 "assistant", "content", first, "role", "user", "content", "to pass");
    ck_assert_int_eq(json_dump_file(messages, path, 0), 0);
    json_decref(messages);
    last = TENON(NULL, "run", folder, "--messages", path, GREEDY, "-n5", "-q");
    last.out[strlen(last.out) - 1] = '\0';
    ck_assert_str_eq(strchr(grown.out, '\n') + 1, last.out);
    free(first);
}
END_TEST

START_TEST(the_speed_of_an_answer_is_told)
{
    process_result r = CHAT("/speed\nAnd it came to pass\n/speed\n And\n/speed\n", "-n9", "-q");
    expect_said(&r, "(there is no answer yet)\n(read: 5 tokens in ");
    expect_said(&r, " tokens/s; answered: 9 in ");
    expect_said(&r, " tokens/s)\n(read: 2 tokens in "); /* what the session did not hold               */
}
END_TEST

START_TEST(a_full_context_is_told)
{
    process_result r = CHAT("And it came to pass\n", "--context=12", "--ignore-eos");
    expect_said(&r, "(the context of 12 tokens is full: /reset begins anew, /save FILE keeps what was said; tenon chat "
                    "--context N has room for more)\n");
    r = CHAT("And it came to pass\n", "-n2", "--ignore-eos");
    expect_said(&r, "(ended after 2 tokens; -n N allows more)\n");
    r = CHAT("And it came to pass\n", "--stop", " LORD", "--context=64");
    ck_assert_int_eq(r.status, 0);
    ck_assert_ptr_null(strstr(r.out, "LORD"));
}
END_TEST

/* Answers end before the texts of generation_config.json, and before those of --stop in their place. */
START_TEST(answers_end_where_the_model_says)
{
    tempdir_put(folder, "generation_config.json", "{\"stop_strings\": \" had\"}");
    process_result r = CHAT("And it came to pass\n/reset\nAnd it came to pass\n", "-n9");
    expect_said(&r, "stop: \" had\", as generation_config.json says\n");
    ck_assert_str_eq(r.out, ", when the LORD\n, when the LORD\n");
    r = CHAT("And it came to pass\n", "-n9", "--stop", " LORD");
    ck_assert_msg(r.status == 0 && !strstr(r.err, "stop: "), "%s", r.err);
    ck_assert_str_eq(r.out, ", when the\n");
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: chat", 600);
    tcase_add_checked_fixture(all, setup, NULL);
    suite_add(all, run_answers_messages);
    tcase_add_loop_test(all, wrong_messages_are_errors, 0, sizeof wrong / sizeof *wrong);
    suite_add(all, other_mistakes_are_told, a_question_is_answered_once, the_template_gets_variables_and_tools,
              a_model_without_a_template_continues_plain_text, a_line_is_a_message, a_conversation_is_saved_and_goes_on,
              a_conversation_that_cannot_be_saved, what_changed_is_computed_again, the_speed_of_an_answer_is_told,
              a_full_context_is_told, answers_end_where_the_model_says);
    return process_main();
}
