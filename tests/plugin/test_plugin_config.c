/* kernels.json: what it may say, what is wrong with it, and where it is looked for. */
#include "plugin/kernels_config.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *root, *path;

static void setup(void)
{
    root = tempdir_new();
    path = tempdir_at(root, "kernels.json");
    unsetenv("TENON_CONFIG");
    unsetenv("XDG_CONFIG_HOME");
    setenv("HOME", root, 1);
}

static tn_config *load(const char *text)
{
    tn_error err = TN_ERROR_INIT;
    tempdir_write(path, text, strlen(text));
    tn_config *config = tn_config_load(path, &err);
    ck_assert_msg(config != NULL, "%s: %s", err.where, err.message);
    return config;
}

static void expect_wrong(const char *text, const char *why)
{
    tn_error err = TN_ERROR_INIT;
    tempdir_write(path, text, strlen(text));
    ck_assert_msg(tn_config_load(path, &err) == NULL, "accepted: %s", text);
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_str_eq(err.where, path);
    ck_assert_str_eq(err.message, why);
}

START_TEST(an_empty_configuration_has_defaults)
{
    tn_config *configs[] = {tn_config_new(), load("{}")};
    for (int i = 0; i < 2; i++) {
        ck_assert_str_eq(tn_config_kernels(configs[i]), "auto");
        ck_assert_str_eq(tn_config_device(configs[i]), "auto");
        ck_assert_int_eq(kernels_config_verify(configs[i]), CONFIG_VERIFY_FIRST_USE);
        ck_assert_uint_eq(kernels_config_folders(configs[i]), 0);
        ck_assert_ptr_null(kernels_config_folder(configs[i], 0));
        ck_assert(!kernels_config_has_pins(configs[i]));
        ck_assert(!kernels_config_disabled(configs[i], "a"));
        ck_assert_ptr_null(kernels_config_modules(configs[i], "a"));
        ck_assert_ptr_null(kernels_config_pin(configs[i], "a.so"));
    }
    ck_assert_ptr_null(tn_config_file(configs[0]));
    ck_assert_str_eq(tn_config_file(configs[1]), path);
    tn_config_free(configs[0]);
    tn_config_free(configs[1]);
    tn_config_free(NULL);
}
END_TEST

START_TEST(every_key_is_read)
{
    char pin[72];
    snprintf(pin, sizeof pin, "sha256:%064d", 5);
    char text[1024];
    snprintf(text, sizeof text,
             "{\"plugins\": [\"/opt/none\", \"more\"], \"kernels\": [\"b\", \"a\"], \"device\": \"cpu\","
             "\"verify\": \"all\", \"max_packed_mb\": 700, \"disable\": [\"acme_*\", \"x\"],"
             "\"options\": {\"npu_fused_moe\": {\"modules\": [\"model.layers.*\", \"lm_head\"]}, \"y\": {}},"
             "\"pins\": {\"a.so\": \"%s\"}}",
             pin);
    tn_config *config = load(text);
    ck_assert_uint_eq(kernels_config_folders(config), 2);
    ck_assert_str_eq(kernels_config_folder(config, 0), "/opt/none");
    char *more = tempdir_at(root, "more");
    ck_assert_str_eq(kernels_config_folder(config, 1), more);
    ck_assert_str_eq(tn_config_kernels(config), "b,a");
    ck_assert_str_eq(tn_config_device(config), "cpu");
    ck_assert_int_eq(kernels_config_verify(config), CONFIG_VERIFY_ALL);
    ck_assert_int_eq(tn_config_max_packed_mb(config), 700);
    ck_assert_uint_eq(kernels_config_max_packed(config), (size_t)700 << 20);
    ck_assert(kernels_config_disabled(config, "acme_norm"));
    ck_assert(kernels_config_disabled(config, "x"));
    ck_assert(!kernels_config_disabled(config, "xx"));
    ck_assert_str_eq(kernels_config_modules(config, "npu_fused_moe"), "model.layers.*,lm_head");
    ck_assert_ptr_null(kernels_config_modules(config, "y"));
    ck_assert(kernels_config_has_pins(config));
    ck_assert_str_eq(kernels_config_pin(config, "a.so"), pin);
    tn_config_free(config);
    config = load("{\"kernels\": [], \"verify\": \"never\"}");
    ck_assert_str_eq(tn_config_kernels(config), "none");
    ck_assert_int_eq(kernels_config_verify(config), CONFIG_VERIFY_NEVER);
    ck_assert_uint_eq(kernels_config_max_packed(config), SIZE_MAX);
    tn_config_free(config);
}
END_TEST

START_TEST(kernels_are_said_in_several_ways)
{
    static const struct {
        const char *text, *spec;
    } ways[] = {{"true", "auto"},
                {"false", "none"},
                {"\"true\"", "auto"},
                {"\"false\"", "none"},
                {"[]", "none"},
                {"[\"auto\", \"-npu_fused_moe\"]", "auto,-npu_fused_moe"},
                {"[\"mine\", \"auto\", \"yours\"]", "auto,mine,yours"},
                {"\" auto , -b,a \"", "auto,a,-b"},
                {"[\"b\", \"a\"]", "b,a"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"kernels\": %s}", ways[i].text);
        tn_config *config = load(text);
        ck_assert_str_eq(tn_config_kernels(config), ways[i].spec);
        ck_assert_str_eq(kernels_config_source(config), path);
        ck_assert_int_eq(tn_config_set_kernels(config, "none", NULL), TN_OK);
        ck_assert_ptr_null(kernels_config_source(config));
        tn_config_free(config);
    }
}
END_TEST

START_TEST(an_empty_list_of_folders_is_one)
{
    tn_config *config = load("{\"plugins\": []}");
    ck_assert(tn_config_says_plugins(config));
    ck_assert_uint_eq(tn_config_folder_count(config), 0);
    tn_config_free(config);
    config = load("{}");
    ck_assert(!tn_config_says_plugins(config));
    ck_assert_int_eq(tn_config_set_plugins(config, "/opt/none", NULL), TN_OK);
    ck_assert(tn_config_says_plugins(config));
    tn_config_free(config);
}
END_TEST

START_TEST(wrong_variables_are_errors)
{
    static const struct {
        const char *name, *value, *words;
    } wrong[] = {{"TENON_CPU", "foo", "'foo' caps nothing; it may be one of c, neon, avx2, avxvnni, avx512,"},
                 {"TENON_CPU", "AVX2", "'AVX2' caps nothing"},
                 {"TENON_CPU", "avx2 ", "'avx2 ' caps nothing"},
                 {"TENON_TRIAL_SECONDS", "soon", "'soon' is no number of seconds; give 0.01 to 3600"},
                 {"TENON_TRIAL_SECONDS", "5s", "'5s' is no number of seconds"},
                 {"TENON_TRIAL_SECONDS", "-1", "'-1' is no number of seconds"},
                 {"TENON_TRIAL_SECONDS", "nan", "'nan' is no number of seconds"},
                 {"TENON_TRIAL_SECONDS", "4000", "'4000' is no number of seconds"}};
    static const char *const right[][2] = {{"TENON_CPU", "c"}, {"TENON_CPU", ""}, {"TENON_TRIAL_SECONDS", "0.5"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_error err = TN_ERROR_INIT;
        setenv(wrong[i].name, wrong[i].value, 1);
        ck_assert_ptr_null(tn_config_load(NULL, &err));
        ck_assert_int_eq(err.code, TN_E_KERNEL);
        ck_assert_str_eq(err.where, wrong[i].name);
        ck_assert_msg(strstr(err.message, wrong[i].words) == err.message, "%s", err.message);
        tn_error_clear(&err);
        ck_assert_ptr_null(tn_model_open("models/demo", NULL, &err));
        ck_assert_str_eq(err.where, wrong[i].name);
        unsetenv(wrong[i].name);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        setenv(right[i][0], right[i][1], 1);
        tn_config *config = tn_config_load(NULL, NULL);
        ck_assert_ptr_nonnull(config);
        tn_config_free(config);
        unsetenv(right[i][0]);
    }
}
END_TEST

START_TEST(relative_folders_count_from_the_file)
{
    char *plugins = tempdir_at(root, "plugins"), *conf = tempdir_at(root, "conf");
    char *file = tempdir_at(conf, "kernels.json");
    ck_assert_int_eq(mkdir(plugins, 0755), 0);
    ck_assert_int_eq(mkdir(conf, 0755), 0);
    static const char text[] = "{\"plugins\": [\"../plugins\"]}";
    tempdir_write(file, text, sizeof text - 1);
    ck_assert_int_eq(chdir(conf), 0);
    const char *const ways[] = {file, "kernels.json", "./kernels.json"};
    for (int i = 0; i < 3; i++) {
        tn_config *config = tn_config_load(ways[i], NULL);
        ck_assert_ptr_nonnull(config);
        ck_assert_str_eq(kernels_config_folder(config, 0), plugins);
        tn_config_free(config);
    }
}
END_TEST

START_TEST(what_is_wrong_is_told)
{
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"{\"kernel\": \"auto\"}", "unknown key 'kernel', did you mean 'kernels'?; correct or remove it"},
        {"{\"plguins\": []}", "unknown key 'plguins', did you mean 'plugins'?; correct or remove it"},
        {"{\"0\": 1}", "unknown key '0'; correct or remove it"},
        {"{\"options\": {\"k\": {\"module\": []}}}",
         "unknown key 'module' in k, did you mean 'modules'?; correct or remove it"},
        {"[]", "expected an object, got a list"},
        {"{\"plugins\": \"x\"}", "key 'plugins': expected a list of strings, got a string"},
        {"{\"plugins\": [1]}", "key 'plugins': element 0: expected a string, got an integer"},
        {"{\"plugins\": [\"a\", \"\"]}", "key 'plugins': element 1 is empty"},
        {"{\"kernels\": 1.5}",
         "key 'kernels': expected \"auto\", \"none\", or ids as a list or in one string, got a number"},
        {"{\"kernels\": \"a,,b\"}", "key 'kernels': 'a,,b' has an empty id; write auto, none or ids like a,b"},
        {"{\"kernels\": [\"a,b\"]}", "key 'kernels': element 0 contains a comma; make it two elements"},
        {"{\"kernels\": [\"none\", \"b\"]}", "key 'kernels': 'none' cannot be combined with anything; write it alone"},
        {"{\"kernels\": [\"b\", \"auto\", \"b\"]}", "key 'kernels': 'b' stands there twice; write it once"},
        {"{\"kernels\": [\"-b\"]}",
         "key 'kernels': '-b' leaves a kernel out of auto, which is not asked for; write auto,-b"},
        {"{\"kernels\": [true]}", "key 'kernels': element 0: expected a string, got true or false"},
        {"{\"kernels\": null}",
         "key 'kernels': expected \"auto\", \"none\", or ids as a list or in one string, got null"},
        {"{\"device\": \"gpu 1\"}", "key 'device': 'gpu 1' is not a device; give auto, NAME or NAME:ORDINAL"},
        {"{\"device\": null}", "key 'device': expected a string, got null"},
        {"{\"verify\": \"often\"}", "key 'verify': 'often' is none of first-use, all, never"},
        {"{\"verify\": true}", "key 'verify': expected a string, got true or false"},
        {"{\"max_packed_mb\": \"9\"}", "key 'max_packed_mb': expected an integer, got a string"},
        {"{\"max_packed_mb\": -2}",
         "key 'max_packed_mb': -2 is out of range; give 0 to 1099511627776, or -1 for no bound"},
        {"{\"disable\": {}}", "key 'disable': expected a list of strings, got an object"},
        {"{\"options\": []}", "key 'options': expected an object of kernel ids, got a list"},
        {"{\"options\": {\"k\": 1}}", "key 'k': expected an object, got an integer"},
        {"{\"options\": {\"k\": {\"modules\": \"x\"}}}", "key 'modules': expected a list of strings, got a string"},
        {"{\"options\": {\"k\": {\"modules\": []}}}", "key 'modules' of 'k' is empty; use disable instead"},
        {"{\"pins\": {\"a.so\": 1}}", "key 'a.so': expected a string, got an integer"},
        {"{\"pins\": {\"a.so\": \"md5:1\"}}", "pin of 'a.so': expected sha256: and 64 hexadecimal digits, got 'md5:1'"},
        {"{\"pins\": []}", "key 'pins': expected an object of file names, got a list"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect_wrong(wrong[i].text, wrong[i].why);
}
END_TEST

START_TEST(errors_of_syntax_have_a_place)
{
    expect_wrong("{\n  \"plugins\": [\n  ]]\n}", "line 3, column 4: '}' expected near ']'");
    expect_wrong("{\"device\": \"cpu\", \"device\": \"cpu\"}",
                 "line 1, column 26: duplicate object key near '\"device\"'");
    tn_error err = TN_ERROR_INIT;
    tempdir_write(path, "", 0);
    ck_assert_ptr_null(tn_config_load(path, &err));
    ck_assert_msg(strncmp(err.message, "line 1, column 0: ", 18) == 0, "%s", err.message);
}
END_TEST

START_TEST(files_that_cannot_be_read_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    char *missing = tempdir_at(root, "missing.json");
    ck_assert_ptr_null(tn_config_load(missing, &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_str_eq(err.where, missing);
    ck_assert_str_eq(err.message, "cannot be read: No such file or directory; correct the path");
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_config_load(root, &err));
    ck_assert_str_eq(err.message, "not a regular file; give a kernels.json");
    tn_error_clear(&err);
    tempdir_write(path, "", 0);
    ck_assert_int_eq(truncate(path, (off_t)1 << 40), 0);
    ck_assert_ptr_null(tn_config_load(path, &err));
    ck_assert_str_eq(err.message, "larger than 1 MiB; not a kernels.json");
}
END_TEST

/* Writes {"kernels": NAME} to root/below/tenon/kernels.json. */
static void place(const char *below, const char *name)
{
    char folder[512], text[128];
    snprintf(folder, sizeof folder, "%s/%s", root, below);
    mkdir(folder, 0755);
    snprintf(folder, sizeof folder, "%s/%s/tenon", root, below);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    char *file = tempdir_at(folder, "kernels.json");
    int n = snprintf(text, sizeof text, "{\"kernels\": \"%s\"}", name);
    tempdir_write(file, text, (size_t)n);
}

static void expect_found(const char *kernels)
{
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_load(NULL, &err);
    ck_assert_msg(config != NULL, "%s: %s", err.where, err.message);
    ck_assert_str_eq(tn_config_kernels(config), kernels);
    tn_config_free(config);
}

START_TEST(the_file_is_looked_for_in_order)
{
    place(".config", "of_home");
    expect_found("of_home");
    place("xdg", "of_xdg");
    char *xdg = tempdir_at(root, "xdg");
    setenv("XDG_CONFIG_HOME", xdg, 1);
    expect_found("of_xdg");
    tn_config *named = load("{\"kernels\": \"of_variable\"}");
    tn_config_free(named);
    setenv("TENON_CONFIG", path, 1);
    expect_found("of_variable");
    char *missing = tempdir_at(root, "missing.json");
    setenv("TENON_CONFIG", missing, 1);
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_config_load(NULL, &err)); /* it was asked for */
    ck_assert_str_eq(err.where, missing);
}
END_TEST

START_TEST(without_any_file_there_is_an_empty_configuration)
{
    tn_config *config = tn_config_load(NULL, NULL);
    ck_assert_ptr_nonnull(config);
    /* Or, on a machine where tenon is installed, its own default. */
    const char *file = tn_config_file(config);
    ck_assert_msg(!file || strstr(file, "/etc/tenon/kernels.json"), "%s", file);
    tn_config_free(config);
}
END_TEST

START_TEST(the_installed_default_is_well_formed)
{
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_load("conf/kernels.json", &err);
    ck_assert_msg(config != NULL, "%s: %s", err.where, err.message);
    ck_assert_str_eq(tn_config_kernels(config), "auto");
    ck_assert_uint_eq(kernels_config_folders(config), 1);
    tn_config_free(config);
}
END_TEST

START_TEST(overrides_replace_or_add)
{
    tn_config *config = load("{\"plugins\": [\"/a\"], \"kernels\": \"x\"}");
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_config_add_plugins(config, "/b", &err), TN_OK);
    ck_assert_uint_eq(kernels_config_folders(config), 2);
    ck_assert_int_eq(tn_config_set_plugins(config, "/c", &err), TN_OK);
    ck_assert_uint_eq(kernels_config_folders(config), 1);
    ck_assert_str_eq(kernels_config_folder(config, 0), "/c");
    ck_assert_int_eq(tn_config_set_plugins(config, "", &err), TN_E_KERNEL);
    ck_assert_str_eq(err.message, "no folder given; name the folder that holds the plugins");
    ck_assert_str_eq(kernels_config_folder(config, 0), "/c");
    tn_error_clear(&err);
    ck_assert_int_eq(tn_config_set_kernels(config, "a,b", &err), TN_OK);
    ck_assert_str_eq(tn_config_kernels(config), "a,b");
    ck_assert_int_eq(tn_config_set_kernels(config, "a,", &err), TN_E_KERNEL);
    ck_assert_str_eq(tn_config_kernels(config), "a,b");
    tn_error_clear(&err);
    ck_assert_int_eq(tn_config_set_device(config, "npu", &err), TN_OK);
    ck_assert_int_eq(tn_config_set_device(config, "gpu_2:13", &err), TN_OK);
    static const char *const bad[] = {"",
                                      ":1",
                                      "npu:",
                                      "npu:-1",
                                      "npu: 1",
                                      "npu:1x",
                                      "npu:2147483648",
                                      "NPU",
                                      "auto:1",
                                      "a,b",
                                      "a-name-that-is-longer-than-it-may-be"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tn_error_clear(&err);
        ck_assert_int_eq(tn_config_set_device(config, bad[i], &err), TN_E_KERNEL);
        ck_assert_str_eq(err.where, "device");
        suite_expect_in(err.message, "' is not a device; give auto, NAME or NAME:ORDINAL");
    }
    ck_assert_str_eq(tn_config_device(config), "gpu_2:13");
    tn_config_free(config);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("kernels.json", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, an_empty_configuration_has_defaults, every_key_is_read, kernels_are_said_in_several_ways,
              an_empty_list_of_folders_is_one, wrong_variables_are_errors, relative_folders_count_from_the_file,
              what_is_wrong_is_told, errors_of_syntax_have_a_place, files_that_cannot_be_read_are_refused,
              the_file_is_looked_for_in_order, without_any_file_there_is_an_empty_configuration,
              the_installed_default_is_well_formed, overrides_replace_or_add);
    return suite_run();
}
