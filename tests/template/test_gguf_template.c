/* The chat template of a .gguf, with its special tokens. */
#include "gguf_file.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/chat.h>

#define KEY "tokenizer.chat_template"

static gguf_file file;

static void start(const char *source)
{
    gguf_file_start(&file, 3);
    gguf_file_texts(&file, "tokenizer.ggml.tokens", (const char *const[]){"<s>", "</s>", "<pad>"}, 3);
    gguf_file_u32(&file, "tokenizer.ggml.bos_token_id", 0);
    gguf_file_u32(&file, "tokenizer.ggml.eos_token_id", 1);
    gguf_file_u32(&file, "tokenizer.ggml.padding_token_id", 2);
    gguf_file_u32(&file, "tokenizer.ggml.unknown_token_id", 3); /* is none, which its tokenizer tells */
    if (source)
        gguf_file_text(&file, KEY, source);
}

static void free_template(void *t)
{
    tn_template_free(t);
}

static tn_template *open_file(tn_error *err)
{
    char *path = gguf_file_write(&file);
    tn_template *t = tn_template_open(path, err);
    free(path);
    return t;
}

static void assert_renders(const char *tools, const char *expected)
{
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    tn_error err = TN_ERROR_INIT;
    tn_render_options o = {.size = sizeof o, .tools = tools};
    char *text = NULL;
    tn_template *t = open_file(&err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    suite_keep(t, free_template);
    ck_assert_msg(tn_template_render(t, messages, strlen(messages), &o, &text, NULL, &err) == TN_OK, "%s", err.message);
    ck_assert_str_eq(text, expected);
    free(text);
}

static void assert_wrong(const char *where, const char *word)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(open_file(&err) == NULL, "'%s' was no error", word);
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_msg(strstr(err.where, where), "'%s' lacks '%s'", err.where, where);
    ck_assert_msg(strstr(err.message, word), "'%s' lacks '%s'", err.message, word);
}

START_TEST(usual)
{
    start("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}");
    assert_renders(NULL, "<s>Hi</s><pad>False");
    assert_renders("[]", "<s>Hi</s><pad>False");
}
END_TEST

START_TEST(with_tools)
{
    start("plain");
    gguf_file_text(&file, KEY ".tool_use", "with {{ tools | length }}");
    assert_renders(NULL, "plain");
    assert_renders("[{}]", "with 1");
}
END_TEST

START_TEST(wrong)
{
    start(NULL);
    assert_wrong("model.gguf", "key 'tokenizer.chat_template' is missing");
    gguf_file_u32(&file, KEY, 1);
    assert_wrong(KEY, "is no string in ");
    start("{% if");
    assert_wrong(KEY, "");
    start("x");
    gguf_file_u32(&file, KEY ".tool_use", 1);
    assert_wrong(KEY ".tool_use", "is no string in ");
    start("x");
    file.size--;
    assert_wrong("model.gguf", "truncated");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("gguf_template", 60);
    tcase_add_test(tc, usual);
    tcase_add_test(tc, with_tools);
    tcase_add_test(tc, wrong);
    return suite_run();
}
