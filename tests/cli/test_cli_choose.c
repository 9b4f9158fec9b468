/* A plugin that is dropped in beside others, SPECs of the command line, and configurations that name what is not there.
 */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MODEL "models/demo"
#define NORM "npu_fused_rmsnorm"
#define HELLO "example_fused_rmsnorm"

static char *folder, *config;

/* The plugins of the tree, and the example's beside them. */
static void setup(void)
{
    folder = tempdir_new();
    config = tempdir_at(folder, "kernels.json");
    static const char *const files[] = {"npu_moe.so", "npu_rmsnorm.so", "npu_rope.so", "npu_swiglu.so"};
    for (int i = 0; i < 4; i++) {
        char from[64];
        snprintf(from, sizeof from, "plugins/%s", files[i]);
        process_copy_built(from, folder, files[i]);
    }
    process_copy_built("tests/hello_kernel/hello_kernel.so", folder, "hello_kernel.so");
}

static void write_config(const char *text)
{
    tempdir_write(config, text, strlen(text));
}

/* Ended well, with these words on stdout and (err not NULL) those on stderr. */
static void expect(process_result r, const char *out, const char *err)
{
    ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
    ck_assert_msg(!out || strstr(r.out, out), "no '%s' in: %s", out, r.out);
    ck_assert_msg(!err || strstr(r.err, err), "no '%s' in: %s", err, r.err);
}

/* ---- dropping in ------------------------------------------------------------------------------------------------ */

START_TEST(a_plugin_that_is_dropped_in_stops_nothing)
{
    static const char tie[] = "tie: ";
    expect(TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n4", "-v", "--only-plugins", folder, "--kernels=auto"),
           NULL, tie);
    expect(TENON(NULL, "inspect", MODEL, "--only-plugins", folder), tie, NULL);
    expect(TENON(NULL, "verify", MODEL, "--only-plugins", folder), HELLO, NULL);
    expect(TENON(NULL, "bench", MODEL, "--only-plugins", folder, "--prompt=8", "--decode=2", "--repeat=1"), "auto",
           NULL);
    expect(TENON(NULL, "kernels", "--only-plugins", folder), HELLO, NULL);
    expect(TENON(NULL, "perplexity", MODEL, "README.md", "--only-plugins", folder), NULL, NULL);
}
END_TEST

/* A plugin in a folder of one's own has the kernels of that id; the usual one is refused, which is not the folder's
 * fault. The same contents in both are one plugin. */
START_TEST(a_folder_of_ones_own_comes_before_the_usual)
{
    char own[4200], beside[4200];
    size_t size;
    char *path = tempdir_at(folder, "npu_rope.so"), *data = tempdir_read(path, &size);
    data[size] = 'x'; /* in place of the NUL: behind what the file says it has */
    tempdir_write(path, data, size + 1);
    snprintf(own, sizeof own, "yes        %s\n", path);
    snprintf(beside, sizeof beside,
             "/plugins/npu_rope.so: refused: kernel 'npu_fused_rope' for cpu is already registered by %s; ", path);
    process_result r = TENON(NULL, "kernels", "--plugins", folder);
    ck_assert_msg(r.status == 0 && strstr(r.out, HELLO) && strstr(r.out, "cpu_attention"), "%s%s", r.out, r.err);
    ck_assert_msg(strstr(r.out, own) && strstr(r.out, beside), "%s", r.out);
    ck_assert_ptr_null(strstr(r.out, "npu_moe.so: refused"));
    r = TENON(NULL, "kernels", "--only-plugins", folder);
    ck_assert_msg(r.status == 0 && strstr(r.out, own) && !strstr(r.out, "cpu_attention"), "%s%s", r.out, r.err);
    free(data);
}
END_TEST

/* The folder stands beside those of the configuration, too, and an empty list there still means none. */
START_TEST(folders_of_the_configuration_stay)
{
    char *empty = tempdir_new();
    const char *const both[] = {"--plugins", "--only-plugins"};
    write_config("{\"plugins\": [\".\"]}");
    expect(TENON(NULL, "kernels", "--config", config, "--plugins", empty), HELLO, NULL);
    for (int i = 0; i < 2; i++) {
        expect(TENON(NULL, "kernels", "--config", config, both[i], empty, both[1 - i], folder), HELLO, NULL);
        expect(TENON(NULL, "kernels", "--only-plugins", empty, both[i], empty), NULL, "no kernels for ");
    }
    expect(TENON(NULL, "kernels", "--config", config, "--only-plugins", empty), NULL, "no kernels for ");
    write_config("{\"plugins\": []}");
    expect(TENON(NULL, "kernels", "--config", config, "--plugins", empty), NULL, "no kernels for ");
    ck_assert_int_eq(chmod(folder, 0777), 0);
    write_config("{\"plugins\": [\".\"]}");
    process_expect_error(TENON(NULL, "kernels", "--config", config, "--plugins", empty), 3, config, "key 'plugins'",
                         "writable", NULL);
    process_expect_error(TENON(NULL, "kernels", "--plugins", folder), 3, "writable", NULL);
}
END_TEST

/* The same example again under another id, so that three have the same priority. */
START_TEST(three_that_tie)
{
    size_t size;
    char *path = tempdir_at(folder, "hello_kernel.so"), *data = tempdir_read(path, &size);
    for (size_t i = 0; i + sizeof HELLO <= size; i++)
        if (!memcmp(data + i, HELLO, sizeof HELLO))
            data[i] = 'E';
    path = tempdir_at(folder, "a_copy.so");
    tempdir_write(path, data, size);
    expect(TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n2", "-v", "--only-plugins", folder), NULL,
           "Example_fused_rmsnorm 9/9 RMS_NORM");
    process_result r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder);
    suite_expect_in(r.out, HELLO "  0 sites: ");
    suite_expect_in(r.out, "comes first by file name; choose with --kernels=auto," HELLO);
    free(data);
}
END_TEST

START_TEST(who_lost_a_site_to_whom_is_shown)
{
    expect(TENON(NULL, "inspect", MODEL, "--only-plugins", folder),
           "\n" NORM "      lost 9 sites to " HELLO ": tie: " HELLO " of hello_kernel.so has the same priority", NULL);
    process_result r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder, "--format=json");
    ck_assert_int_eq(r.status, 0);
    json_t *root = printed_text(r.out), *overlap = NULL;
    size_t i, lost = 0;
    json_array_foreach (json_object_get(root, "overlaps"), i, overlap)
        lost += !strcmp(json_string_value(json_object_get(overlap, "kernel")), NORM) &&
                !strcmp(json_string_value(json_object_get(overlap, "winner")), HELLO) &&
                json_integer_value(json_object_get(overlap, "sites")) == 9;
    ck_assert_uint_eq(lost, 1);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "kernels")), 5);
}
END_TEST

/* ---- SPEC ------------------------------------------------------------------------------------------------------- */

START_TEST(specs_of_the_command_line)
{
    static const struct {
        const char *spec, *out;
    } right[] = {{"--kernels=auto," HELLO, "\n" HELLO " 17/17 RMS_NORM, npu_fused_swiglu 1/1 MLP"},
                 {"--kernels=" HELLO ",auto", "\n" HELLO " 17/17 RMS_NORM, npu_fused_swiglu 1/1 MLP"},
                 {"--kernels=auto," NORM, "\n" NORM " 9/9 RMS_NORM, " NORM " 8/8 ADD_RMS_NORM, npu_fused_swiglu"},
                 {"--kernels=" HELLO "," NORM, "\n" HELLO " 17/17 RMS_NORM; "},
                 {"--kernels=" NORM "," HELLO, "\n" NORM " 9/9 RMS_NORM, " NORM " 8/8 ADD_RMS_NORM; "},
                 {"--kernels=auto,-npu_fused_moe", "npu_fused_moe          0 sites: left out by -npu_fused_moe"},
                 {"--kernels=true", "tie: "},
                 {"--kernels={\"name\": \"auto,-npu_fused_moe\"}", "0 sites: left out by -npu_fused_moe"},
                 {"--kernels={\"name\": \"auto\", \"include_kernels\": \"" HELLO "\"}", "\n" HELLO " 17/17 RMS_NORM; "},
                 {"--kernels=false", "\nno kernels; eager: "}};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        expect(TENON(NULL, "inspect", MODEL, "--only-plugins", folder, right[i].spec), right[i].out, NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--kernels=-" NORM), 3, "write auto,-" NORM, NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--kernels={\"name\": auto}"), 3,
                         "tenon: kernels: line 1, column 13: ", "write JSON as in '{\"name\": \"auto\"}'", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--kernels=none," NORM), 3, "cannot be combined", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--kernels=auto,-npu_fused_mo"), 3,
                         "did you mean 'npu_fused_moe'?", NULL);
    process_expect_error(TENON(NULL, "verify", MODEL, "--kernels=false"), 2, "nothing to verify", NULL);
    expect(TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n2", "--only-plugins", folder, "--kernels=auto,-" NORM,
                 "--json"),
           "\"spec\": \"auto,-" NORM "\"", NULL);
}
END_TEST

/* Keys of kernel_config that change nothing are said to. */
START_TEST(what_has_no_effect_is_told)
{
    static const char told[] = "chunk_size has no effect here: kernels choose the sizes of their chunks";
    static const char json[] = "--kernels={\"name\": \"" NORM "\", \"chunk_size\": 32}";
    expect(TENON(NULL, "inspect", MODEL, "--plugins", folder, json), "\n" NORM " 9/9 RMS_NORM, ", told);
    expect(TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n1", "--plugins", folder, json, "--json"), told, told);
    expect(TENON(NULL, "bench", MODEL, "--plugins", folder, "--prompt=2", "--decode=1", "--repeat=1", "--kernels=none",
                 "--against={\"name\": \"" NORM "\"}"),
           NORM " 9/9 RMS_NORM", NULL);
}
END_TEST

/* LLaMA-Factory's names for the delta rule ask for the kernel that has the operation. */
START_TEST(names_of_flash_linear_attention)
{
    static const char *const specs[] = {"--kernels=flash-linear-attention", "--kernels=auto,chunk_gated_delta_rule",
                                        "--kernels={\"name\": \"fused_recurrent_gated_delta_rule\"}",
                                        "--kernels=flash-linear-attention,cpu_delta_rule"};
    static const char delta[] = "tests/data/models/qwen3_next";
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        expect(TENON(NULL, "inspect", delta, specs[i]), "GATED_DELTA_RULE * cpu_delta_rule", NULL);
    expect(TENON(NULL, "verify", delta, specs[0]), "cpu_delta_rule", NULL);
    expect(TENON(NULL, "inspect", delta, "--kernels=auto,-flash-linear-attention"),
           "0 sites: left out by -flash-linear-attention", NULL);
    process_expect_error(TENON(NULL, "inspect", delta, "--kernels=auto,flash-linear-attention,-cpu_delta_rule"), 3,
                         "flash-linear-attention: takes no site of this model; left out by -cpu_delta_rule", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "x", specs[0]), 3,
                         "flash-linear-attention: takes no site of this model, which has no GATED_DELTA_RULE; leave it "
                         "out",
                         NULL);
}
END_TEST

/* As docs/configuration.md has it. */
START_TEST(a_file_for_both_programs)
{
    size_t size;
    char *guide = tempdir_read("docs/configuration.md", &size), *text = strstr(guide, "{ \"name\": \"auto, flash-");
    ck_assert_ptr_nonnull(text);
    *strstr(text, "\n```") = '\0';
    process_result r = TENON(NULL, "inspect", "tests/data/models/qwen3_next", "--kernels", text);
    free(guide);
    ck_assert_msg(r.status == 0 && strstr(r.out, "GATED_DELTA_RULE * cpu_delta_rule"), "%s%s", r.out, r.err);
    ck_assert_msg(strstr(r.err, "chunk_size has no effect") && strstr(r.err, "require_logits has no effect") &&
                      strstr(r.err, "liger_kernel is a collection of Triton kernels") &&
                      !strstr(r.err, "include_kernels"),
                  "%s", r.err);
}
END_TEST

/* ---- kernels.json ----------------------------------------------------------------------------------------------- */

START_TEST(specs_of_the_file)
{
    static const struct {
        const char *text, *out;
    } right[] = {
        {"{\"kernels\": [\"auto\", \"-npu_fused_moe\"]}", "0 sites: left out by -npu_fused_moe"},
        {"{\"kernels\": [\"" HELLO "\", \"auto\"]}", "\n" HELLO " 17/17 RMS_NORM, npu_fused_swiglu"},
        {"{\"kernels\": \"auto," HELLO "\"}", "\n" HELLO " 17/17 RMS_NORM, npu_fused_swiglu"},
        {"{\"kernels\": true}", "tie: "},
        {"{\"kernel_config\": {\"name\": \"" HELLO ", auto\"}}", "\n" HELLO " 17/17 RMS_NORM, npu_fused_swiglu"},
        {"{\"use_v1_kernels\": true}", "tie: "},
        {"{\"kernels\": false}", "\nno kernels; eager: "}};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        write_config(right[i].text);
        expect(TENON(NULL, "inspect", MODEL, "--only-plugins", folder, "--config", config), right[i].out, NULL);
    }
}
END_TEST

START_TEST(files_that_name_what_is_not_there)
{
    static const struct {
        const char *text, *key, *words;
    } wrong[] = {
        {"{\"options\": {\"npu_fused_mo\": {\"modules\": [\"model.layers.1.*\"]}}}", "key 'options': 'npu_fused_mo'",
         "did you mean 'npu_fused_moe'?"},
        {"{\"disable\": [\"npu_fused_mo\"]}", "key 'disable': 'npu_fused_mo'", "did you mean 'npu_fused_moe'?"},
        {"{\"kernels\": \"npu_fused_mo\"}", "key 'kernels': kernel 'npu_fused_mo'", "did you mean 'npu_fused_moe'?"},
        {"{\"kernel_config\": {\"name\": \"npu_fused_mo\"}}", "key 'kernel_config': kernel 'npu_fused_mo'",
         "did you mean 'npu_fused_moe'?"},
        {"{\"kernels\": \"npu_fused_moe\", \"options\": {\"npu_fused_moe\": {\"modules\": [\"model.layer.*\"]}}}",
         "key 'options': npu_fused_moe takes no site", "did you mean 'model.layers."},
        {"{\"device\": \"nqu\"}", "key 'device': 'nqu' is not here", "cpu"},
        {"{\"max_packed_mb\": 1, \"kernel\": 1}", "unknown key 'kernel'", "did you mean 'kernels'?"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_config(wrong[i].text);
        process_expect_error(TENON(NULL, "run", MODEL, "x", "--only-plugins", folder, "--config", config), 3, config,
                             wrong[i].key, wrong[i].words, NULL);
    }
    write_config("{\"options\": {\"npu_fused_moe\": {\"modules\": [\"model.layer.*\"]}}, \"disable\": [\"acme_*\"]}");
    expect(TENON(NULL, "inspect", MODEL, "--only-plugins", folder, "--config", config),
           "npu_fused_moe          0 sites: ",
           "key 'options': npu_fused_moe: 'model.layer.*' matches no module of this model, did you mean ");
    process_result r = TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n1", "--only-plugins", folder, "--config",
                             config, "--json");
    ck_assert_msg(strstr(r.err, "tenon: warning: ") && strstr(r.err, "'acme_*' matches no kernel"), "%s", r.err);
    json_t *root = printed_text(r.out), *note;
    size_t i, busy = 0;
    const json_t *notes = json_object_get(json_object_get(root, "kernels"), "notes");
    json_array_foreach (notes, i, note)
        busy += process_was_busy(json_string_value(note));
    ck_assert_uint_eq(json_array_size(notes) - busy, 2);
    write_config("{\"plugins\": [\"nowhere\"]}");
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--config", config), 3, config, "key 'plugins': ", "/nowhere",
                         NULL);
}
END_TEST

/* A pin with a misspelt name refuses the file that it was meant for; both are told. */
START_TEST(a_pin_that_is_misspelt)
{
    char text[256];
    snprintf(text, sizeof text, "{\"pins\": {\"npu_rop.so\": \"sha256:%064d\"}}", 1);
    write_config(text);
    expect(TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n1", "--only-plugins", folder, "--config", config),
           NULL, "key 'pins': 'npu_rop.so' is no file of the plugin folders, did you mean 'npu_rope.so'?");
}
END_TEST

START_TEST(an_empty_list_of_folders_means_none)
{
    write_config("{\"plugins\": []}");
    process_result r = TENON(NULL, "kernels", "--config", config, "--json");
    ck_assert_msg(r.status == 0 && !strcmp(r.out, "[]\n"), "%s%s", r.out, r.err);
    expect(TENON(NULL, "inspect", MODEL, "--config", config), "\nno kernels; eager: ", NULL);
    expect(TENON(NULL, "kernels", "--config", config, "--only-plugins", folder), HELLO, NULL);
    write_config("{}");
    expect(TENON(NULL, "kernels", "--config", config), NORM, NULL);
}
END_TEST

START_TEST(wrong_variables_are_errors)
{
    static const char *const wrong[][2] = {{"TENON_CPU", "foo"}, {"TENON_TRIAL_SECONDS", "soon"}};
    for (int i = 0; i < 2; i++) {
        setenv(wrong[i][0], wrong[i][1], 1);
        process_expect_error(TENON(NULL, "run", MODEL, "x"), 3, wrong[i][0], wrong[i][1], NULL);
        process_expect_error(TENON(NULL, "kernels"), 3, wrong[i][0], NULL);
        unsetenv(wrong[i][0]);
    }
    setenv("TENON_CPU", "foo", 1);
    process_expect_error(TENON(NULL, "inspect", MODEL), 3, "c, neon, avx2, avxvnni, avx512", NULL);
    unsetenv("TENON_CPU");
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: choosing", 600);
    tcase_add_checked_fixture(all, setup, NULL);
    suite_add(all, a_plugin_that_is_dropped_in_stops_nothing, a_folder_of_ones_own_comes_before_the_usual,
              folders_of_the_configuration_stay, three_that_tie, who_lost_a_site_to_whom_is_shown,
              specs_of_the_command_line, what_has_no_effect_is_told, names_of_flash_linear_attention,
              a_file_for_both_programs, specs_of_the_file, files_that_name_what_is_not_there, a_pin_that_is_misspelt,
              an_empty_list_of_folders_means_none, wrong_variables_are_errors);
    return process_main();
}
