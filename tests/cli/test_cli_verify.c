/* tenon verify: failed kernels are rows and exit status 5, whoever stands beside them; --training, --text. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MODEL "models/demo"
#define TEXT MODEL "/heldout.txt"
#define NORM "test_layer_norm"
#define SUM "test_layer_sum"

/* A folder of plugins, and a configuration that names it and checks nothing before use. */
static char *folder, *never;

static void add_plugin(const char *file)
{
    char *to = tempdir_at(folder, strrchr(file, '/') + 1);
    process_copy_built(file, folder, strrchr(file, '/') + 1);
    ck_assert_int_eq(chmod(to, 0755), 0);
}

static void setup(void)
{
    static const char text[] = "{\"plugins\": [\".\"], \"verify\": \"never\"}";
    folder = tempdir_new();
    never = tempdir_at(folder, "never.json");
    tempdir_write(never, text, strlen(text));
    add_plugin("tests/bad_kernels/layer_kernels.so");
    add_plugin("plugins/npu_rope.so");
}

static void set_fault(const char *fault, const char *sites, const char *only)
{
    setenv("BAD_FAULT", fault, 1);
    setenv("BAD_SITES", sites, 1);
    if (only)
        setenv("BAD_ID", only, 1);
    else
        unsetenv("BAD_ID");
}

static const json_t *row_of(const json_t *root, const char *kernel, const char *op)
{
    size_t i;
    const json_t *row;
    json_array_foreach (json_object_get(root, "results"), i, row) {
        if (!strcmp(json_string_value(json_object_get(row, "kernel")), kernel) &&
            (!op || !strcmp(json_string_value(json_object_get(row, "op")), op)))
            return row;
    }
    ck_abort_msg("no row of %s", kernel);
}

static bool truth(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_boolean(json_object_get(object, key)), "no boolean '%s'", key);
    return json_is_true(json_object_get(object, key));
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    ck_assert_msg(value != NULL, "no text '%s'", key);
    return value;
}

/* ---- every kernel is a row ------------------------------------------------------------------------------------- */

START_TEST(a_wrong_kernel_beside_good_ones)
{
    static const char *const specs[] = {"auto", NORM, NORM "," SUM};
    set_fault("scale 1.1", "layers", NORM);
    process_result r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--kernels", specs[_i]);
    ck_assert_msg(r.status == 5, "status %d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, NORM);
    suite_expect_in(r.out, "FAILED\n");
    suite_expect_in(r.out, NORM " at model.layers.");
    suite_expect_in(r.out, ": wrong numbers with ");
    if (_i != 1)
        suite_expect_in(r.out, SUM " ADD_RMS_NORM: tried ");
    suite_expect_in(r.err, "tenon: " NORM ": fails at model.layers.");
    r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--kernels", specs[_i], "--json");
    json_t *root = printed_json(&r, 5);
    ck_assert(!truth(root, "passed"));
    const json_t *row = row_of(root, NORM, "RMS_NORM");
    ck_assert(!truth(row, "passed") && printed_count(row, "applied_sites") == 0 && printed_count(row, "sites") > 0);
    suite_expect_in(text_of(row, "reason"), "wrong numbers");
    suite_expect_in(text_of(row, "not_applied"), "refused: wrong numbers");
    if (_i != 1) {
        ck_assert(truth(row_of(root, SUM, "ADD_RMS_NORM"), "passed"));
        suite_expect_in(text_of(row_of(root, SUM, "ADD_RMS_NORM"), "coverage"), " tokens, ");
    }
    if (_i == 0)
        ck_assert(truth(row_of(root, "npu_fused_rope", "ROPE"), "passed"));
}
END_TEST

START_TEST(one_that_lost_its_sites)
{
    add_plugin("plugins/npu_rmsnorm.so");
    set_fault("scale 1", "-", NULL);
    process_result r = TENON(NULL, "verify", MODEL, "--only-plugins", folder);
    ck_assert_msg(r.status == 0, "status %d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, "passed, not applied\n");
    suite_expect_in(r.out, ": not applied at ");
    set_fault("scale 1.1", "layers", NORM);
    r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--json");
    json_t *root = printed_json(&r, 5);
    ck_assert(!truth(row_of(root, NORM, NULL), "passed"));
    ck_assert(truth(row_of(root, "npu_fused_rmsnorm", "RMS_NORM"), "passed"));
}
END_TEST

START_TEST(one_that_crashes)
{
    add_plugin("tests/bad_kernels/bad_kernel.so");
    setenv("BAD_KERNEL", "crash", 1);
    process_result r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--dtype=f32", "--json");
    json_t *root = printed_json(&r, 5);
    const json_t *row = row_of(root, "npu_fused_rmsnorm", "RMS_NORM");
    ck_assert(!truth(root, "passed") && !truth(row, "passed"));
    suite_expect_in(text_of(row, "reason"), "crashed with SIGSEGV");
    ck_assert(json_is_null(json_object_get(row, "largest_error")));
    ck_assert(truth(row_of(root, NORM, NULL), "passed"));
}
END_TEST

START_TEST(inspect_never_says_that_a_refused_one_takes_it)
{
    set_fault("scale 1.1", "layers", NULL);
    static const char *const specs[] = {"auto", NORM};
    process_result r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder, "--explain", "--kernels", specs[_i]);
    ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
    suite_expect_in(r.out, "- " NORM ": refused: wrong numbers with ");
    ck_assert_msg(!strstr(r.out, NORM ": takes it"), "%s", r.out);
}
END_TEST

START_TEST(selection_errors_end_with_3)
{
    process_expect_error(TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--kernels=test_layer_nrom"), 3,
                         "did you mean '" NORM "'", NULL);
    process_expect_error(
        TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--dtype=f32", "--training", "--kernels=" NORM), 3,
        "takes no site", "no backward", NULL);
}
END_TEST

/* ---- gradients --------------------------------------------------------------------------------------------------- */

START_TEST(training_shows_each_gradient)
{
    add_plugin("tests/bad_kernels/bad_kernel.so");
    for (int bad = 0; bad < 2; bad++) {
        setenv("BAD_KERNEL", bad ? "gradient" : "none", 1);
        process_result r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--dtype=f32", "--training", "--json",
                                 "--kernels=npu_fused_rmsnorm");
        json_t *root = printed_json(&r, bad ? 5 : 0);
        const json_t *list = json_object_get(row_of(root, "npu_fused_rmsnorm", NULL), "gradients");
        ck_assert_uint_eq(json_array_size(list), 2);
        for (size_t i = 0; i < 2; i++) {
            const json_t *gradient = json_array_get(list, i);
            ck_assert_str_eq(text_of(gradient, "gradient"), i ? "weight" : "input 0");
            ck_assert(truth(gradient, "passed") == (!bad || i));
            ck_assert(json_is_number(json_object_get(gradient, "largest_ulps")));
            ck_assert(strlen(text_of(gradient, "worst_site")) > 0);
        }
        r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--dtype=f32", "--training",
                  "--kernels=npu_fused_rmsnorm");
        ck_assert_int_eq(r.status, bad ? 5 : 0);
        suite_expect_in(r.out, "\nGRADIENT OF  KERNEL ");
        suite_expect_in(r.out, "\nweight ");
        suite_expect_in(r.out, "passed, worst at model.");
        if (bad)
            suite_expect_in(r.out, "FAILED, worst at model.");
    }
}
END_TEST

/* ---- the whole model -------------------------------------------------------------------------------------------- */

static process_result compare(const char *kernels, const char *more)
{
    return TENON(NULL, "verify", MODEL, "--config", never, "--text", TEXT, "--kernels", kernels, "--max-tokens=128",
                 "-q", more);
}

START_TEST(good_kernels_pass_on_text)
{
    set_fault("scale 1", "-", NULL);
    process_result r = compare("auto", NULL);
    ck_assert_msg(r.status == 0, "status %d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, "128 tokens in windows of 128;");
    suite_expect_in(r.out,
                    "\nPrompts in a session's chunks; 32 single tokens; 32 tokens in calls of up to 7; a batch of 3\n");
    suite_expect_in(r.out, "\nTYPE  SITES ");
    suite_expect_in(r.out, "\nbf16 ");
    suite_expect_in(r.out, "\nf32 ");
    suite_expect_in(r.out, "passed\n");
    r = TENON(NULL, "verify", MODEL, "--text", TEXT, "--max-tokens=64", "--context=32", "--json");
    json_t *root = printed_json(&r, 0);
    const json_t *row = json_array_get(json_object_get(root, "results"), 0);
    ck_assert(truth(root, "passed") && truth(row, "passed") && truth(root, "search_complete"));
    ck_assert(printed_count(root, "tokens") == 64 && printed_count(root, "context") == 32);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "sites")), 0);
    const json_t *calls = json_object_get(root, "calls");
    ck_assert(printed_count(calls, "single_tokens") == 8 && printed_count(calls, "few_tokens") == 16);
    ck_assert(printed_count(calls, "most_few") == 7 && printed_count(calls, "batch_rows") == 3);
    static const char *const keys[] = {"rms",  "largest", "kl_mean",        "kl_max",           "perplexity_kernels",
                                       "top1", "worst",   "distance_eager", "distance_kernels", "perplexity_eager"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_msg(json_real_value(json_object_get(row, keys[i])) > 0, "%s", keys[i]);
}
END_TEST

static const struct {
    const char *fault, *sites, *only;
    size_t count;
    const char *paths[3];
} faults[] = {
    {"scale 1.01",
     "layers.1.input:layers.3.input",
     NULL,
     2,
     {"model.layers.1.input_layernorm", "model.layers.3.input_layernorm"}},
    {"eps 1e-3", "layers.1.input", NULL, 1, {"model.layers.1.input_layernorm"}},
    {"rows 70", "layers.2.post", NULL, 1, {"model.layers.2.post_attention_layernorm"}},
    {"remainder", "layers.2.post", SUM, 1, {"model.layers.2.post_attention_layernorm"}},
    {"decode", "layers.3.post", SUM, 1, {"model.layers.3.post_attention_layernorm"}},
    {"scale 1.01",
     "layers.0.input:layers.0.post:model.norm",
     NULL,
     3,
     {"model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"}},
    {"scale 0.99", "layers.3.self_attn.q", NORM, 1, {"model.layers.3.self_attn.q_norm"}},
};

START_TEST(wrong_kernels_fail_on_text)
{
    set_fault(faults[_i].fault, faults[_i].sites, faults[_i].only);
    process_result r = compare("auto", "--json");
    json_t *root = printed_json(&r, 5);
    ck_assert(!truth(root, "passed") && truth(root, "search_complete"));
    const json_t *sites = json_object_get(root, "sites");
    ck_assert_uint_eq(json_array_size(sites), faults[_i].count);
    for (size_t i = 0; i < faults[_i].count; i++)
        ck_assert_str_eq(text_of(json_array_get(sites, i), "site"), faults[_i].paths[i]);
}
END_TEST

START_TEST(failures_on_text_are_told)
{
    set_fault("scale 1.3", "layers.3.input", NULL);
    process_result r = compare("auto", NULL);
    ck_assert_msg(r.status == 5, "status %d: %s%s", r.status, r.out, r.err);
    suite_expect_in(r.out, "FAILED\n");
    suite_expect_in(r.out, "\nIt comes from 1 site; ");
    suite_expect_in(r.out, "\n  " SUM " at model.layers.3.input_layernorm\n");
    suite_expect_in(r.err, "as rounding explains");
    suite_expect_in(r.err, "it comes from " SUM " at model.layers.3.input_layernorm");
    /* A kernel that the first use refuses takes no part, and asked for by name it is an error. */
    r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--text", TEXT, "--max-tokens=32", "-q");
    ck_assert_msg(r.status == 0 && !strstr(r.out, SUM), "status %d: %s%s", r.status, r.out, r.err);
    set_fault("scale 1.3", "layers", NULL);
    r = TENON(NULL, "verify", MODEL, "--only-plugins", folder, "--text", TEXT, "--max-tokens=32", "--kernels=" NORM);
    ck_assert_int_eq(r.status, 5);
    suite_expect_in(r.err, "is refused at ");
}
END_TEST

START_TEST(wrong_use)
{
    process_expect_error(TENON(NULL, "verify", MODEL, "--text", TEXT, "--training"), 2, "do not go together", NULL);
    process_expect_error(TENON(NULL, "verify", MODEL, "--text", "/nonexistent/file"), 4, "/nonexistent/file", NULL);
    process_expect_error(TENON("x", "verify", MODEL, "--text", "-"), 4, "give at least two", NULL);
    process_expect_error(TENON(NULL, "verify", MODEL, "--text", TEXT, "--kernels=none"), 2, "nothing to verify", NULL);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("cli: verify", 300);
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_loop_test(c, a_wrong_kernel_beside_good_ones, 0, 3);
    suite_add(c, one_that_lost_its_sites, one_that_crashes);
    tcase_add_loop_test(c, inspect_never_says_that_a_refused_one_takes_it, 0, 2);
    suite_add(c, selection_errors_end_with_3, training_shows_each_gradient, good_kernels_pass_on_text);
    tcase_add_loop_test(c, wrong_kernels_fail_on_text, 0, sizeof faults / sizeof *faults);
    suite_add(c, failures_on_text_are_told, wrong_use);
    return process_main();
}
