/* Chat templates from folders, their arguments, their bounds, and what happens without memory. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/chat.h>
#include <unistd.h>

#include "sanitizer.h"
#include "suite.h"
#include "tempdir.h"

/* Sanitizers have allocators of their own. */
#if !SANITIZER
/* Allocations left before one fails; -1: none fails. */
static long allocations_left = -1;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *data, size_t size);

static bool fails(void)
{
    return allocations_left >= 0 && allocations_left-- == 0;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *data, size_t size)
{
    return fails() ? NULL : __libc_realloc(data, size);
}
#endif

static tn_template *parsed(const char *source)
{
    tn_error err = TN_ERROR_INIT;
    tn_template *t = tn_template_parse(source, strlen(source), "test", &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    return t;
}

static void assert_renders(const tn_template *t, const char *messages, const tn_render_options *options,
                           const char *expected)
{
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    size_t length = 0;
    tn_status status = tn_template_render(t, messages, strlen(messages), options, &text, &length, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_str_eq(text, expected);
    ck_assert_uint_eq(length, strlen(expected));
    free(text);
}

static void assert_fails(const char *source, const char *message)
{
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    tn_template *t = tn_template_parse(source, strlen(source), "test", &err);
    if (t)
        ck_assert_int_eq(tn_template_render(t, "[]", 2, NULL, &text, NULL, &err), TN_E_INPUT);
    ck_assert_ptr_null(text);
    ck_assert_msg(strstr(err.message, message) != NULL, "%.60s: %s", source, err.message);
    tn_template_free(t);
}

static void assert_folder(const char *folder, const char *tools, const char *expected)
{
    tn_error err = TN_ERROR_INIT;
    tn_template *t = tn_template_open(folder, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    tn_render_options options = {.size = sizeof options, .tools = tools};
    assert_renders(t, "[]", &options, expected);
    tn_template_free(t);
}

START_TEST(folders)
{
    char *folder = tempdir_new();
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_template_open(folder, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    suite_expect_in(err.message, "has no chat template");
    tempdir_put(folder, "special_tokens_map.json",
                "{\"bos_token\": \"other\", \"eos_token\": {\"content\": \"</s>\"}}");
    tempdir_put(
        folder, "tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"add_bos_token\": true, \"extra_special_tokens\": {\"image_token\": \"<i>\"},"
        "\"chat_template\": [{\"name\": \"default\", \"template\": \"{{ bos_token }}{{ eos_token }}\"},"
        "{\"name\": \"tool_use\", \"template\": \"{{ tools|length }}{{ image_token }}\"}]}");
    assert_folder(folder, NULL, "<s></s>");
    assert_folder(folder, "[1, 2]", "2<i>");
    tempdir_put(folder, "chat_template.jinja", "file {{ eos_token }}{{ add_bos_token is defined }}{{ tools }}");
    assert_folder(folder, NULL, "file </s>FalseNone");
    tempdir_put(folder, "tokenizer_config.json", "[");
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_template_open(folder, &err));
    suite_expect_in(err.where, "tokenizer_config.json");
}
END_TEST

START_TEST(continuing)
{
    tn_render_options options = {.size = sizeof options, .continue_final_message = true};
    tn_template *plain = parsed("{% for m in messages %}<{{ m['content'] }}>{% endfor %}");
    tn_template *trimmed = parsed("{% for m in messages %}<{{ m.content|trim }}>{% endfor %}");
    tn_template *none = parsed("content");
    tn_error err = TN_ERROR_INIT;
    char *text;
    assert_renders(plain, "[{\"content\": \"a\"}, {\"content\": \"b \"}]", &options, "<a><b ");
    assert_renders(trimmed, "[{\"content\": \"a\"}, {\"content\": \"b \"}]", &options, "<a><b");
    ck_assert_int_eq(tn_template_render(none, "[{\"content\": \"b\"}]", 18, &options, &text, NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, "does not appear");
    options.add_generation_prompt = true;
    tn_error_clear(&err);
    ck_assert_int_eq(tn_template_render(plain, "[]", 2, &options, &text, NULL, &err), TN_E_USAGE);
    tn_template_free(plain);
    tn_template_free(trimmed);
    tn_template_free(none);
}
END_TEST

/* Content in parts goes on behind the last text; what has no text cannot go on. */
START_TEST(continuing_parts)
{
    static const char *const pairs[][2] = {
        {"[]", "there is no message to continue"},
        {"[{\"content\": null}]", "the last message has no content to continue"},
        {"[{\"role\": \"user\"}]", "the last message has no content to continue"},
        {"[{\"content\": 5}]", "the last message's content is no text to continue"},
        {"[{\"content\": [{\"type\": \"image\"}]}]", "the last message has no text to continue"},
    };
    tn_render_options options = {.size = sizeof options, .continue_final_message = true};
    tn_template *t = parsed("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}");
    assert_renders(t, "[{\"content\": [{\"text\": \"a\"}, {\"text\": \"b\"}, {\"type\": \"image\"}]}]", &options,
                   "<a><b");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        char *text = NULL;
        tn_status status = tn_template_render(t, pairs[i][0], strlen(pairs[i][0]), &options, &text, NULL, &err);
        ck_assert_int_eq(status, TN_E_INPUT);
        ck_assert_ptr_null(text);
        ck_assert_msg(strstr(err.message, pairs[i][1]) != NULL, "%s: %s", pairs[i][0], err.message);
    }
    tn_template_free(t);
}
END_TEST

/* Who loops over the parts gets them; for others their texts are one. */
START_TEST(parts_of_contents)
{
    static const char *const taking[] = {
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] | list %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.get('content') %}{% for p in c %}<{{ p.text }}>{% endfor %}{% endfor %}",
        ("{% macro f(content) %}{% for p in content[0:] %}<{{ p.text }}>{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ f(m.content) }}{% endfor %}"),
    };
    static const char *const texts[] = {
        "{% for m in messages %}<{{ m.content }}>{% endfor %}",
        "{% for m in messages %}<{% for w in m.content.split(' ') %}{{ w }}{% endfor %}>{% endfor %}",
    };
    static const char two[] = "[{\"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"text\": \"b\"}]}]";
    static const char *const refused[][2] = {
        {"[{\"content\": [{\"type\": \"image\"}]}]",
         "message 0 has a part of type 'image', and this chat template takes texts only; leave the part out, or use"},
        {"[{\"content\": [{\"text\": 5}]}]", "message 0 has a part without a text; write {"},
    };
    for (size_t i = 0; i < sizeof taking / sizeof *taking; i++) {
        tn_template *t = parsed(taking[i]);
        assert_renders(t, two, NULL, "<a><b>");
        assert_renders(t, "[{\"content\": [{\"type\": \"image\"}]}]", NULL, "<>");
        tn_template_free(t);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tn_template *t = parsed(texts[i]);
        assert_renders(t, two, NULL, "<a\nb>");
        assert_renders(t, "[{\"content\": [\"a\"]}, {\"content\": []}]", NULL, "<a><>");
        for (size_t j = 0; j < 2; j++) {
            tn_error err = TN_ERROR_INIT;
            char *text;
            ck_assert_int_eq(tn_template_render(t, refused[j][0], strlen(refused[j][0]), NULL, &text, NULL, &err),
                             TN_E_INPUT);
            suite_expect_in(err.message, refused[j][1]);
        }
        tn_template_free(t);
    }
}
END_TEST

static void expect_no_template(const char *path, tn_status status, const char *where, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_template_open(path, &err));
    ck_assert_int_eq(err.code, status);
    ck_assert_msg(strstr(err.where, where) && strstr(err.message, words), "%s: %s", err.where, err.message);
}

START_TEST(broken_folders)
{
    char *folder = tempdir_new(), longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    expect_no_template(NULL, TN_E_USAGE, "path", "is NULL");
    expect_no_template("/no/such/folder", TN_E_INPUT, "/no/such", "cannot be read: No such file or directory");
    expect_no_template(longest, TN_E_INPUT, "xxx", "cannot be read: File name too long");
    tempdir_put(folder, "tokenizer_config.json", "[1, 2]");
    expect_no_template(folder, TN_E_INPUT, "tokenizer_config.json", "holds no JSON object; fetch it again");
    tempdir_put(folder, "tokenizer_config.json",
                "{\"chat_template\": [{\"name\": \"other\", \"template\": \"x\"}, 5]}");
    expect_no_template(folder, TN_E_INPUT, "tokenizer_config.json", "has no chat_template called 'default'; add one");
    tempdir_put(folder, "tokenizer_config.json", "{}");
    tempdir_put(folder, "chat_template.json", "{\"chat_template\": \"from {{ 1 }} file\"}");
    assert_folder(folder, NULL, "from 1 file");
    tempdir_put(folder, "chat_template.json", "{\"chat_template\": \"{% if %}\"}");
    expect_no_template(folder, TN_E_INPUT, "chat_template.json:1", "expected an expression");
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_template_parse(NULL, 0, "x", &err));
    ck_assert(err.code == TN_E_USAGE && !strcmp(err.where, "source"));
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_template_parse("x", 1, NULL, &err));
    ck_assert(err.code == TN_E_USAGE && !strcmp(err.where, "name"));
}
END_TEST

START_TEST(reasoning_has_all_its_names)
{
    tn_template *t = parsed("{% for m in messages %}{{ m }}{% endfor %}");
    assert_renders(t, "[{\"role\": \"a\", \"reasoning\": \"r\"}]", NULL,
                   "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}");
    tn_template_free(t);
}
END_TEST

START_TEST(arguments)
{
    tn_template *t = parsed("{{ x }}{{ bos_token }}");
    tn_render_options options = {.size = sizeof options, .variables = "{\"x\": [1, null, 2.0]}"};
    tn_error err = TN_ERROR_INIT;
    char *text;
    assert_renders(t, "[]", &options, "[1, None, 2.0]");
    ck_assert_int_eq(tn_template_render(t, "{}", 2, NULL, &text, NULL, &err), TN_E_INPUT);
    ck_assert_str_eq(err.where, "messages");
    options.variables = "[]";
    tn_error_clear(&err);
    ck_assert_int_eq(tn_template_render(t, "[]", 2, &options, &text, NULL, &err), TN_E_INPUT);
    ck_assert_str_eq(err.where, "variables");
    options.size = 0;
    tn_error_clear(&err);
    ck_assert_int_eq(tn_template_render(t, "[]", 2, &options, &text, NULL, &err), TN_E_USAGE);
    ck_assert_int_eq(tn_template_render(NULL, "[]", 2, NULL, &text, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_template_render(t, "[1]", 3, NULL, &text, NULL, NULL), TN_E_INPUT);
    ck_assert_ptr_null(tn_template_parse("\xff", 1, "test", NULL));
    tn_template_free(t);
    tn_template_free(NULL);
}
END_TEST

/* before, then piece count times, then behind. Owned. */
static char *repeated(const char *before, const char *piece, size_t count, const char *behind)
{
    size_t n = strlen(piece);
    char *text = malloc(strlen(before) + count * n + strlen(behind) + 1), *at = stpcpy(text, before);
    for (size_t i = 0; i < count; i++)
        at = stpcpy(at, piece);
    strcpy(at, behind);
    return text;
}

static void assert_repeated_fails(const char *before, const char *piece, size_t count, const char *message)
{
    char *source = repeated(before, piece, count, " a }}");
    assert_fails(source, message);
    free(source);
}

START_TEST(bounds)
{
    assert_fails("{% set l = range(99999)|list %}{% for a in range(9999) %}{{ l.count(1) }}{% endfor %}",
                 "10000000 steps");
    assert_fails("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "256 MB of memory");
    assert_fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deeper than 1000 levels");
    assert_fails("{{ 'abcdefgh' * 9000000 }}", "text of more than 16 MB");
    assert_fails("{% for a in range(99999) %}{{ 'abcdefgh' * 100 }}{% endfor %}", "text of more than 16 MB");
    assert_fails("{% set ns = namespace(x=[1]) %}{% for a in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
                 "more than");
    assert_fails(
        "{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "deeper than 1000 levels");
    assert_fails("{{ range(100001) }}", "range too big");
    assert_fails("{{ '%9999999d' % 1 }}", "not supported");
    assert_repeated_fails("{{ ", "(", 100000, "brackets are open");
    assert_repeated_fails("{{ ", "not ", 100000, "deeper than");
    assert_repeated_fails("{{ ", "- ", 100000, "deeper than");
    assert_repeated_fails("{{ a", ".a", 100000, "deeper than");
    assert_repeated_fails("{{ a", "|e", 100000, "deeper than");
    assert_repeated_fails("{{ a", " + a", 100000, "deeper than");
    assert_repeated_fails("{{ a", " if a else a", 100000, "deeper than");
    assert_repeated_fails("", "{% if a %}", 100000, "deeper than");
}
END_TEST

START_TEST(deep_messages)
{
    char *messages = repeated("[{\"a\": ", "[", 1500, "");
    char *whole = repeated(messages, "]", 1500, "}]");
    tn_template *t = parsed("{{ messages }}");
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    ck_assert_int_eq(tn_template_render(t, whole, strlen(whole), NULL, &text, NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, "deeper than");
    tn_template_free(t);
    free(messages);
    free(whole);
}
END_TEST

/* Each allocation of opening and rendering fails once. */
START_TEST(out_of_memory)
{
#if SANITIZER
    printf("SKIPPED out of memory: the sanitizer has its own allocator\n");
#else
    static const char source[] = "{% macro f(x) %}{{ x|tojson }}{% endmacro %}{% for m in messages %}{{ f(m) }}"
                                 "{{ range(3000)|list|map('string')|join(',')|length }}{% endfor %}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"x\"}]";
    tn_render_options options = {.size = sizeof options, .tools = "[1]", .variables = "{\"a\": 2}"};
    bool done = false;
    long failed = 0;
    for (long n = 0; !done; n++) {
        tn_error err = TN_ERROR_INIT;
        char *text = NULL;
        allocations_left = n;
        tn_template *t = tn_template_parse(source, sizeof source - 1, "test", &err);
        tn_status status =
            t ? tn_template_render(t, messages, sizeof messages - 1, &options, &text, NULL, &err) : err.code;
        done = allocations_left >= 0;
        allocations_left = -1;
        ck_assert_msg(status == (done ? TN_OK : TN_E_MEMORY), "allocation %ld: %d %s: %s", n, status, err.where,
                      err.message);
        failed += !done;
        free(text);
        tn_template_free(t);
    }
    ck_assert_int_gt(failed, 10);
#endif
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("template", 240);
    suite_add(tcase, folders, continuing, continuing_parts, parts_of_contents, broken_folders,
              reasoning_has_all_its_names, arguments, bounds, deep_messages, out_of_memory);
    return suite_run();
}
