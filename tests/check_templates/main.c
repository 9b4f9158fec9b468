/* check_templates DIR: renders every case of a folder of chat templates and compares with what is expected, byte for
 * byte. Each sub-folder (or DIR itself) holds template.jinja and cases.json. A line per case; exit status 0 only if
 * none failed. */
#include "folders.h"

#include <tenon/tenon.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* "2025-03-09T14:05:06" as local time. */
static int64_t seconds_of(const char *text)
{
    struct tm t = {.tm_isdst = -1};
    if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &t))
        return 0;
    return (int64_t)mktime(&t);
}

/* JSON of a member; NULL where it is none. Owned. */
static char *member(const json_t *item, const char *name)
{
    const json_t *value = json_object_get(item, name);
    return !value || json_is_null(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
}

/* Special tokens, and what the case adds. Owned. */
static char *variables_of(const json_t *item)
{
    json_t *all = json_object();
    json_object_update(all, json_object_get(item, "special_tokens"));
    json_object_update(all, json_object_get(item, "extra"));
    char *text = json_dumps(all, 0);
    json_decref(all);
    return text;
}

/* Where two texts part, with what stands there. */
static void show_difference(const char *expected, const char *got)
{
    size_t at = 0;
    while (expected[at] && expected[at] == got[at])
        at++;
    size_t from = at > 20 ? at - 20 : 0;
    printf("    from byte %zu, expected ...%.80s\n    got ...%.80s\n", at, expected + from, got + from);
}

static bool check_case(const tn_template *t, const json_t *item, const char *folder)
{
    const json_t *expected = json_object_get(item, "expected");
    const char *name = json_string_value(json_object_get(item, "name"));
    char *messages = member(item, "messages"), *tools = member(item, "tools"), *variables = variables_of(item);
    tn_render_options options = {.size = sizeof options, .tools = tools, .variables = variables};
    options.add_generation_prompt = json_is_true(json_object_get(item, "add_generation_prompt"));
    options.continue_final_message = json_is_true(json_object_get(item, "continue_final_message"));
    options.now = seconds_of(json_string_value(json_object_get(item, "now")));
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    size_t length = 0;
    tn_status status = tn_template_render(t, messages, messages ? strlen(messages) : 0, &options, &text, &length, &err);
    bool fine;
    if (json_is_string(expected))
        fine = status == TN_OK && length == json_string_length(expected) &&
               memcmp(text, json_string_value(expected), length) == 0;
    else
        fine = status == TN_E_INPUT && json_is_string(json_object_get(item, "expected_error"));
    printf("%s %s/%s%s%s%s%s\n", fine ? "ok    " : "FAILED", folder, name ? name : "?", status ? ": " : "",
           status ? err.where : "", status ? ": " : "", status ? err.message : "");
    if (!fine && status == TN_OK)
        show_difference(json_is_string(expected) ? json_string_value(expected) : "(an error)", text);
    free(text);
    free(messages);
    free(tools);
    free(variables);
    return fine;
}

static tally check_folder(const char *folder)
{
    tally sum = {0, 0};
    char path[4096];
    json_error_t error;
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "%s/template.jinja", folder);
    tn_template *t = tn_template_open(path, &err);
    snprintf(path, sizeof path, "%s/cases.json", folder);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!t || !json_is_array(cases)) {
        printf("FAILED %s: %s %s\n", folder, t ? path : err.where, t ? error.text : err.message);
        sum.failed++;
    }
    for (size_t i = 0; t && i < json_array_size(cases); i++)
        *(check_case(t, json_array_get(cases, i), folder) ? &sum.passed : &sum.failed) += 1;
    json_decref(cases);
    tn_template_free(t);
    return sum;
}

static bool is_folder(const char *folder)
{
    char path[4096];
    struct stat st;
    return snprintf(path, sizeof path, "%s/template.jinja", folder) < (int)sizeof path && stat(path, &st) == 0;
}

int main(int argc, char **argv)
{
    return folders_main(argc, argv, "check_templates", "a template.jinja", is_folder, check_folder);
}
