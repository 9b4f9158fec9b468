/* The language of templates: what Jinja2 3.1.6 rendered, or that it failed (tests/data/template_language.json). */
#include "suite.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/chat.h>

/* strftime_now shows local time: 2025-03-09 in every zone. */
#define NOON INT64_C(1741521600)

static bool render(const char *source, const char *variables, char **text, tn_error *err)
{
    tn_template *t = tn_template_parse(source, strlen(source), "test", err);
    tn_render_options options = {.size = sizeof options, .variables = variables, .now = NOON};
    tn_status status = t ? tn_template_render(t, "[]", 2, &options, text, NULL, err) : err->code;
    ck_assert(status == TN_OK || status == TN_E_INPUT);
    ck_assert_int_eq(status, err->code);
    tn_template_free(t);
    return status == TN_OK;
}

START_TEST(as_jinja_renders)
{
    json_t *data = json_load_file("tests/data/template_language.json", JSON_ALLOW_NUL, NULL);
    json_t *cases = json_object_get(data, "cases"), *item;
    char *variables = json_dumps(json_object_get(data, "variables"), 0);
    size_t i, wrong = 0;
    ck_assert_uint_gt(json_array_size(cases), 300);
    json_array_foreach (cases, i, item) {
        const char *source = json_string_value(json_object_get(item, "source"));
        const char *expected = json_string_value(json_object_get(item, "expected"));
        tn_error err = TN_ERROR_INIT;
        char *text = NULL;
        bool done = render(source, variables, &text, &err);
        if (done != (expected != NULL) || (done && strcmp(text, expected) != 0)) {
            printf("%s\n  expected %s\n  got      %s\n", source, expected ? expected : "an error",
                   done ? text : err.message);
            wrong++;
        }
        free(text);
    }
    ck_assert_msg(wrong == 0, "%zu of %zu templates differ", wrong, i);
    free(variables);
    json_decref(data);
}
END_TEST

static const struct {
    const char *source, *where, *message;
} mistakes[] = {
    {"a\nb\n{{ x|xmlattr }}", "test:3", "the filter 'xmlattr' is not supported"},
    {"{{ x is odder }}", "test:1", "the test 'odder' is not supported"},
    {"\n{% include 'x' %}", "test:2", "the tag 'include' is not supported"},
    {"{% if a %}\n{% for b in c %}\n{% endif %}", "test:3", "unknown tag 'endif' (inside of 'for')"},
    {"{% if a %}\n\n", "test:2", "expected one of the tags 'elif else endif'"},
    {"{{ 'abc", "test:1", "does not end"},
    {"\n\n{# abc", "test:3", "missing end of comment"},
    {"{% raw %}\n", "test:1", "missing end of raw"},
    {"{{ (1, }}", "test:1", "unexpected '}', expected ')'"},
    {"{{ a b }}", "test:1", "expected '}}', got 'b'"},
    {"{{ 5 $ }}", "test:1", "unexpected char '$'"},
    {"\n{{ x.y.z }}", "test:2", "'x' is undefined"},
    {"{% set d = {} %}\n{{ d.y.z }}", "test:2", "'dict object' has no attribute 'y'"},
    {"{{ [][0].a }}", "test:1", "list object has no element 0"},
    {"{% set l = [1] %}\n\n{{ l.append(2) }}", "test:3", "access to attribute 'append' of 'list' object is unsafe"},
    {"{{ raise_exception('roles must alternate') }}", "test:1", "refuses this conversation: roles must alternate"},
    {"{{ 9223372036854775807 + 1 }}", "test:1", "more than 64 bits"},
    {"{{ 99999999999999999999 }}", "test:1", "more than 64 bits"},
    {"{{ 1 // 0 }}", "test:1", "division by zero"},
    {"{{ 1 + 'a' }}", "test:1", "unsupported operand types for +: 'int' and 'str'"},
    {"{{ 'a'.encode() }}", "test:1", "not supported"},
    {"{{ [1]|map('upper') }}", "test:1", "generator is not supported as text"},
    {"{% break %}", "test:1", "a loop around it"},
    {"{{ range(3)|tojson }}", "test:1", "range is not JSON serializable"},
    {"{{ namespace(_a=1) }}", "test:1", "begins with an underscore"},
    {"{{ '9'|int(0, 7) }}", "test:1", "numbers of base 7 are not supported; use 2, 8, 10 or 16"},
    {"{{ '{} {0}'.format(1) }}", "test:1", "cannot mix '{}' and '{0}' in a format string"},
    {"{{ '{!a}'.format(1) }}", "test:1", "the conversion '!a' is not supported; use !r or !s"},
    {"{{ '{:#x}'.format(1) }}", "test:1", "the format specification '#x' is not supported"},
    {"{{ '{:99999999}'.format(1) }}", "test:1", "a width of more than 1000000 is not supported"},
    {"{{ '%.99f' % 1.5 }}", "test:1", "a precision of more than 60 is not supported"},
    {"{{ '%a' % 1 }}", "test:1", "the format character 'a' is not supported"},
    {"{{ '%x' % -1 }}", "test:1", "%x of negative numbers is not supported; use %d"},
    {"{{ '%d' % 1e30 }}", "test:1", "a whole number has more than 64 bits, which is not supported; use %f"},
    {"{% macro f(a) %}{% endmacro %}\n{{ f.arguments }}", "test:2", "what a macro takes is not supported"},
    {"{{ [1]|tojson(indent=2000) }}", "test:1", "an indent of 2000 is not supported; use at most 1000"},
    {"{{ 55|round(-1) }}", "test:1", "rounding whole numbers to a negative precision is not supported; use //"},
    {"{{ '\\N{DASH}' }}", "test:1", "the escape \\N in a text is not supported"},
    {"{{ '\\ud800' }}", "test:1", "the escape of character 0xd800 in a text is not supported"},
    {"{{ -8.0 ** 0.5 }}{{ (-8) ** 0.5 }}", "test:1", "this power is no real number"},
    {"{{ strftime_now('%Y' * 2000) }}", "test:1", "strftime_now takes a short text"},
    {"{{ {(1, 2): 1}|tojson(sort_keys=true) }}", "test:1", "sort_keys is not supported for keys of type 'tuple'"},
    {"{{ 'x'|tojson(separators=(1, 2)) }}", "test:1", "separators are two texts; write separators=(',', ':')"},
    {"{{ a\u00e9$ }}", "test:1", "unexpected char '$'"},
    {"{{ 1 }\n", "test:1", "unexpected '}'"},
    {"{% if %}", "test:1", "expected an expression"},
    {"{% set a.5 = 1 %}", "test:1", "expected"},
};

START_TEST(mistakes_are_named_by_line)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        char *text = NULL;
        ck_assert_msg(!render(mistakes[i].source, NULL, &text, &err), "%s", mistakes[i].source);
        ck_assert_msg(strcmp(err.where, mistakes[i].where) == 0, "%s: %s: %s", mistakes[i].source, err.where,
                      err.message);
        ck_assert_msg(strstr(err.message, mistakes[i].message) != NULL, "%s: %s", mistakes[i].source, err.message);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("language", 240);
    suite_add(tcase, as_jinja_renders, mistakes_are_named_by_line);
    return suite_run();
}
