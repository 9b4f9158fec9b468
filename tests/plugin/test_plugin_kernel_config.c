/* LLaMA-Factory's kernel_config: what its keys mean here, and what is wrong with them. */
#include "plugin/kernels_config.h"
#include "plugin/spec.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define CHUNKS "kernels: chunk_size has no effect here: kernels choose the sizes of their chunks"
#define LOGITS "kernels: require_logits has no effect here: there are always logits"
#define FLA "flash-linear-attention"
#define BOTH "; write chunk_gated_delta_rule, fused_recurrent_gated_delta_rule or auto"
#define ONE "kernels: include_kernels has no effect here: one kernel has both operators of " FLA
#define NOT "kernels: include_kernels has no effect here: its operators are of " FLA ", which 'name' does not have"

static const struct {
    const char *text, *spec, *notes[2];
} right[] = {
    {"{\"name\": \"auto\"}", "auto", {0}},
    {" {\"name\": \" b , auto,-c, a\"}\n", "auto,b,a,-c", {0}},
    {"{\"name\": \"none\"}", "none", {0}},
    {"{\"name\": \"b,a\", \"include_kernels\": \"auto\"}", "b,a", {0}},
    {"{\"include_kernels\": true, \"name\": \"auto\"}", "auto", {0}},
    {"{\"name\": \"auto\", \"include_kernels\": \"True\"}", "auto", {0}},
    {"{\"name\": \"auto\", \"include_kernels\": [\"b\", \"a\"]}", "b,a", {0}},
    {"{\"name\": \"auto\", \"include_kernels\": \"b, a\"}", "b,a", {0}},
    {"{\"name\": \"auto\", \"include_kernels\": \"auto,a\"}", "auto,a", {0}},
    {"{\"name\": \"auto\", \"chunk_size\": 64}", "auto", {CHUNKS}},
    {"{\"require_logits\": \"FALSE\", \"chunk_size\": \"16\", \"name\": \"a\"}", "a", {CHUNKS, LOGITS}},
    {"{\"name\": \"auto\", \"require_logits\": true, \"include_kernels\": \"a\"}", "a", {LOGITS}},
    {"{\"name\": \"auto, " FLA "\", \"include_kernels\": \"auto\"}", "auto," FLA, {0}},
    {"{\"name\": \"" FLA "\", \"include_kernels\": \"chunk_gated_delta_rule, fused_recurrent_gated_delta_rule\"}",
     FLA,
     {0}},
    {"{\"name\": \"" FLA "\", \"include_kernels\": \"chunk_gated_delta_rule\", \"chunk_size\": 32}",
     FLA,
     {ONE, CHUNKS}},
    {"{\"name\": \"auto\", \"include_kernels\": \"fused_recurrent_gated_delta_rule\"}", "auto", {NOT}},
    {"{\"name\": \"a,b\", \"include_kernels\": [\"chunk_gated_delta_rule\"]}", "a,b", {NOT}},
    {"{\"name\": \"auto\", \"include_kernels\": \"" FLA ",a\"}", FLA ",a", {0}},
    {"{\"name\": \"auto\", \"include_kernels\": \"chunk_gated_delta_rule,a\"}", "chunk_gated_delta_rule,a", {0}},
};

static const struct {
    const char *text, *why;
} wrong[] = {
    {"{}", "kernel_config has no key 'name'; write \"auto\" or ids like \"a,b\""},
    {"{\"name\": null}", "key 'name': expected \"auto\" or ids in one string, got null"},
    {"{\"name\": [\"a\"]}", "key 'name': expected \"auto\" or ids in one string, got a list"},
    {"{\"name\": \"\"}", "key 'name': '' has an empty id; write auto, none or ids like a,b"},
    {"{\"name\": \"a,b,a\"}", "key 'name': 'a' stands there twice; write it once"},
    {"{\"name\": \"none,a\"}", "key 'name': 'none' cannot be combined with anything; write it alone"},
    {"{\"name\": \"{\"}", "key 'name': '{' has a JSON object among ids; write one of the two alone"},
    {"{\"nam\": \"a\"}", "unknown key 'nam' in kernel_config, did you mean 'name'?; correct or remove it"},
    {"{\"name\": \"a\", \"0\": 1}", "unknown key '0' in kernel_config; correct or remove it"},
    {"{\"name\": \"auto\", \"include_kernels\": null}",
     "key 'include_kernels': expected \"auto\", true, or ids as a list or in one string, got null"},
    {"{\"name\": \"auto\", \"include_kernels\": 1}",
     "key 'include_kernels': expected \"auto\", true, or ids as a list or in one string, got an integer"},
    {"{\"name\": \"auto\", \"include_kernels\": [true]}",
     "key 'include_kernels': element 0: expected a string, got true or false"},
    {"{\"name\": \"auto\", \"include_kernels\": []}",
     "key 'include_kernels' leaves no kernels; write none as 'name', or leave the key out"},
    {"{\"name\": \"auto\", \"include_kernels\": false}",
     "key 'include_kernels' leaves no kernels; write none as 'name', or leave the key out"},
    {"{\"name\": \"auto\", \"include_kernels\": \"a,a\"}",
     "key 'include_kernels': 'a' stands there twice; write it once"},
    {"{\"name\": \"auto,b\", \"include_kernels\": \"a\"}",
     "key 'include_kernels' has ids, which go with auto alone as 'name'; write them into 'name'"},
    {"{\"name\": \"b\", \"include_kernels\": [\"a\"]}",
     "key 'include_kernels' has ids, which go with auto alone as 'name'; write them into 'name'"},
    {"{\"name\": \"auto," FLA "\", \"include_kernels\": \"chunk_gated_delta_rul\"}",
     "key 'include_kernels': 'chunk_gated_delta_rul' is no operator of " FLA
     ", did you mean 'chunk_gated_delta_rule'?" BOTH},
    {"{\"name\": \"" FLA "\", \"include_kernels\": \"chunk_gated_delta_rule,zz\"}",
     "key 'include_kernels': 'zz' is no operator of " FLA BOTH},
    {"{\"name\": \"" FLA "\", \"include_kernels\": \"" FLA "\"}",
     "key 'include_kernels': '" FLA "' is no operator of " FLA BOTH},
    {"{\"name\": \"" FLA "\", \"include_kernels\": \"auto,-chunk_gated_delta_rule\"}",
     "key 'include_kernels' has ids, which go with auto alone as 'name'; write them into 'name'"},
    {"{\"name\": \"a\", \"chunk_size\": 48}", "key 'chunk_size' may be 16, 32 or 64; write one of them"},
    {"{\"name\": \"a\", \"chunk_size\": true}", "key 'chunk_size' may be 16, 32 or 64; write one of them"},
    {"{\"name\": \"a\", \"chunk_size\": \"032\"}", "key 'chunk_size' may be 16, 32 or 64; write one of them"},
    {"{\"name\": \"a\", \"require_logits\": 1}", "key 'require_logits': expected true or false, got an integer"},
    {"{\"name\": \"a\", \"require_logits\": \"no\"}", "key 'require_logits': expected true or false, got a string"},
};

static void expect_notes(const kernel_spec *spec, const char *const notes[2])
{
    size_t count = !notes[0] ? 0 : !notes[1] ? 1 : 2;
    ck_assert_uint_eq(spec->notes.count, count);
    for (size_t i = 0; i < count; i++)
        ck_assert_str_eq(spec->notes.items[i], notes[i]);
}

static void expect_refused(const char *text, const char *why)
{
    kernel_spec spec;
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(spec_parse(text, &spec, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, "kernels");
    ck_assert_str_eq(err.message, why);
    ck_assert_uint_eq(spec.count + spec.notes.count, 0);
}

START_TEST(text_of_the_command_line)
{
    tn_config *config = tn_config_new();
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        ck_assert_int_eq(tn_config_set_kernels(config, right[i].text, NULL), TN_OK);
        ck_assert_str_eq(tn_config_kernels(config), right[i].spec);
        expect_notes(kernels_config_spec(config), right[i].notes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_refused(wrong[i].text, wrong[i].why);
    ck_assert_int_eq(tn_config_set_kernels(config, "{}", NULL), TN_E_KERNEL);
    ck_assert_str_eq(tn_config_kernels(config), right[sizeof right / sizeof *right - 1].spec);
    tn_config_free(config);
}
END_TEST

START_TEST(text_that_is_no_json)
{
#define ADVICE "; write JSON as in '{\"name\": \"auto\"}'"
    expect_refused("{\"name\"", "line 1, column 7: ':' expected near end of file" ADVICE);
    expect_refused("{name: auto}", "line 1, column 5: string or '}' expected near 'name'" ADVICE);
    expect_refused("{\"name\": \"a\"} b", "line 1, column 15: end of file expected near 'b'" ADVICE);
    expect_refused("{\"name\": \"a\", \"name\": \"b\"}",
                   "line 1, column 20: duplicate object key near '\"name\"'" ADVICE);
    expect_refused("auto,{\"name\": \"a\"}",
                   "'auto,{\"name\": \"a\"}' has a JSON object among ids; write one of the two alone");
}
END_TEST

/* A file with these members, which is removed again. */
static tn_config *load(const char *members, const char *text, char *path, tn_error *err)
{
    char *folder = tempdir_new(), *file = tempdir_at(folder, "kernels.json"), all[512];
    int n = snprintf(all, sizeof all, "{%s%s}", members, text);
    tempdir_write(file, all, (size_t)n);
    snprintf(path, 4096, "%s", file);
    tn_config *config = tn_config_load(file, err);
    return config;
}

START_TEST(a_key_of_the_file)
{
    char path[4096];
    tn_error err = TN_ERROR_INIT;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        tn_config *config = load("\"kernel_config\": ", right[i].text, path, &err);
        ck_assert_msg(config != NULL, "%s: %s", right[i].text, err.message);
        ck_assert_str_eq(tn_config_kernels(config), right[i].spec);
        expect_notes(kernels_config_spec(config), right[i].notes);
        ck_assert_str_eq(kernels_config_source(config), path);
        ck_assert_str_eq(kernels_config_key(config), "kernel_config");
        ck_assert_int_eq(tn_config_set_kernels(config, "none", NULL), TN_OK);
        ck_assert_uint_eq(kernels_config_spec(config)->notes.count, 0);
        tn_config_free(config);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_error_clear(&err);
        ck_assert_ptr_null(load("\"kernel_config\": ", wrong[i].text, path, &err));
        ck_assert_str_eq(err.where, path);
        ck_assert_str_eq(err.message, wrong[i].why);
    }
}
END_TEST

START_TEST(keys_that_say_which_kernels)
{
    static const struct {
        const char *text, *spec, *why;
    } files[] = {
        {"\"kernel_config\": null", "none", NULL},
        {"\"use_v1_kernels\": true", "auto", NULL},
        {"\"use_v1_kernels\": \"True\"", "auto", NULL},
        {"\"use_v1_kernels\": false", "none", NULL},
        {"\"use_v1_kernels\": 1", NULL, "key 'use_v1_kernels': expected true or false, got an integer"},
        {"\"kernel_config\": \"auto\"", NULL,
         "key 'kernel_config': expected an object with the key 'name', or null, got a string"},
        {"\"kernel_config\": []", NULL,
         "key 'kernel_config': expected an object with the key 'name', or null, got a list"},
        {"\"kernel_confg\": {}", NULL,
         "unknown key 'kernel_confg', did you mean 'kernel_config'?; correct or remove it"},
        {"\"kernels\": \"a\", \"kernel_config\": {\"name\": \"a\"}", NULL,
         "keys 'kernels' and 'kernel_config' both say which kernels; keep one of them"},
        {"\"use_v1_kernels\": true, \"kernels\": [\"a\"]", NULL,
         "keys 'use_v1_kernels' and 'kernels' both say which kernels; keep one of them"},
    };
    char path[4096];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_config *config = load("", files[i].text, path, &err);
        ck_assert_int_eq(config != NULL, files[i].spec != NULL);
        if (config)
            ck_assert_str_eq(tn_config_kernels(config), files[i].spec);
        else
            ck_assert_str_eq(err.message, files[i].why);
        tn_config_free(config);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("kernel_config", 0);
    suite_add(tc, text_of_the_command_line, text_that_is_no_json, a_key_of_the_file, keys_that_say_which_kernels);
    return suite_run();
}
