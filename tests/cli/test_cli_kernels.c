/* kernels, inspect, verify and bench, and what is said about plugins that cannot be used. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/tenon.h>
#ifdef TN_SECCOMP
#include <errno.h>
#include <seccomp.h>
#include <sys/prctl.h>
#endif

#define MODEL "models/demo"
#define NORM "npu_fused_rmsnorm"

/* BUILD/plugins in the form that kernels prints; static storage. */
static const char *plugins(void)
{
    static char path[4200], full[4096];
    snprintf(path, sizeof path, "%s/plugins", process_build());
    ck_assert_ptr_nonnull(realpath(path, full));
    return full;
}

static void expect_words(const process_result *r, const char *const *words)
{
    ck_assert_msg(r->status == 0, "status %d: %s", r->status, r->err);
    for (; *words; words++)
        ck_assert_msg(strstr(r->out, *words), "'%s' is not in: %s", *words, r->out);
}

/* ---- kernels -------------------------------------------------------------------------------------- */

/* The one called id in the list of kernels. */
static const json_t *find_kernel(const json_t *list, const char *id)
{
    size_t i;
    const json_t *kernel;
    json_array_foreach (list, i, kernel)
        if (strcmp(printed_string(kernel, "id"), id) == 0)
            return kernel;
    ck_abort_msg("%s is not listed", id);
    return NULL;
}

START_TEST(kernels_of_the_build_are_found)
{
    process_result r = TENON(NULL, "kernels", "--json");
    json_t *list = printed_json(&r, 0);
    const json_t *norm = find_kernel(list, NORM);
    ck_assert_str_eq(printed_string(norm, "device"), "cpu");
    ck_assert_str_eq(printed_string(norm, "reason"), "");
    ck_assert(json_is_true(json_object_get(norm, "available")));
    ck_assert_int_eq(strncmp(printed_string(norm, "file"), plugins(), strlen(plugins())), 0);
    ck_assert_uint_gt(strlen(printed_string(norm, "version")), 0);
    r = TENON(NULL, "kernels", "--device=cpu");
    const char *const words[] = {"ID  ",
                                 "AVAILABLE",
                                 NORM,
                                 "/npu_rmsnorm.so\n",
                                 "\nnpu_* for the CPU: the ids are those of LLaMA-Factory's kernels, ",
                                 " more for other devices: --all lists them\n",
                                 NULL};
    expect_words(&r, words);
    ck_assert_ptr_null(strstr(r.out, "for device 'npu'"));
    ck_assert_str_eq(process_said(&r), "");
    r = TENON(NULL, "kernels", "--all");
    ck_assert_msg(r.status == 0 && strstr(r.out, "for device 'npu', not for 'cpu'\n"), "%s%s", r.out, r.err);
    ck_assert_ptr_null(strstr(r.out, "--all"));
}
END_TEST

/* --verbose has the summary. Without measuring what is taken is the same on all machines. */
START_TEST(the_line_of_kernels_is_short)
{
    static const struct {
        const char *spec, *more, *said;
    } lines[] = {{"auto", "-n1", "kernels: 6 kernels at "},
                 {"auto," NORM, "-n1", "kernels: 6 kernels at "},
                 {"auto", "--verbose", "\nkernels: cpu_attention 4/4 ATTENTION, "},
                 {NORM, "--verbose", "\nkernels: " NORM " 9/9 RMS_NORM, "}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        process_result r = TENON(NULL, "run", MODEL, "And", "-n1", "--temperature=0", "--no-measure", lines[i].more,
                                 "--kernels", lines[i].spec);
        ck_assert_msg(r.status == 0 && strstr(r.err, lines[i].said), "%s", r.err);
        ck_assert_int_eq(strstr(r.err, " sites; --verbose lists them\n") != NULL, i < 2);
    }
    char *empty = tempdir_new();
    process_result r = TENON(NULL, "run", MODEL, "And", "-n1", "--only-plugins", empty, "--kernels=auto");
    ck_assert_msg(r.status == 0 && strstr(r.err, "kernels: none at ") && strstr(r.err, "; --verbose says more\n"), "%s",
                  r.err);
}
END_TEST

/* A configuration that names folders means these; one that names none leaves the program its own. */
START_TEST(the_configuration_names_the_folders)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "kernels.json");
    tempdir_write(path, "{\"plugins\": [\".\"]}", 18);
    process_result r = TENON(NULL, "kernels", "--json", "--config", path);
    json_t *list = printed_json(&r, 0);
    ck_assert_uint_eq(json_array_size(list), 0);
    r = TENON(NULL, "kernels", "--config", path, "--only-plugins", plugins());
    const char *const words[] = {NORM, NULL};
    expect_words(&r, words);
    tempdir_write(path, "{\"kernels\": \"" NORM "\"}", 15 + strlen(NORM));
    r = TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n1", "--config", path, "--json");
    json_t *run = printed_json(&r, 0);
    ck_assert_str_eq(printed_string(json_object_get(run, "kernels"), "spec"), NORM);
}
END_TEST

/* A folder with a good plugin and a text that calls itself one. */
static char *mixed_folder(void)
{
    char *folder = tempdir_new(), from[4200];
    snprintf(from, sizeof from, "%s/npu_rmsnorm.so", plugins());
    tempdir_copy_file(from, folder, "good.so");
    tempdir_put(folder, "text.so", "not a plugin\n");
    return folder;
}

START_TEST(a_file_that_is_no_plugin_is_listed)
{
    char *folder = mixed_folder();
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    const char *const words[] = {NORM, "/good.so\n", "\nnot used:\n  ", "/text.so: skipped: not an ELF file", NULL};
    expect_words(&r, words);
    r = TENON(NULL, "kernels", "--only-plugins", folder, "--json");
    ck_assert_msg(strstr(r.err, "tenon: warning: ") && strstr(r.err, "/text.so: skipped"), "%s", r.err);
    json_t *list = printed_json(&r, 0);
    ck_assert_uint_eq(json_array_size(list), 2); /* the CPU's side and that of the NPU                  */
    r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder);
    ck_assert_int_eq(r.status, 0);
    ck_assert_msg(strncmp(r.err, "tenon: warning: ", 16) == 0, "%s", r.err);
}
END_TEST

/* The good plugin, changed to say that it was made for another major version. */
START_TEST(a_broken_plugin_shows_in_the_exit_status)
{
    char *folder = mixed_folder(), *good = tempdir_at(folder, "good.so"), *other = tempdir_at(folder, "other.so");
    size_t size;
    char *data = tempdir_read(good, &size);
    /* The word behind the owner's name "Tenon" is the ABI's major version. */
    for (size_t i = 0; i + 12 < size; i++)
        if (memcmp(data + i, "Tenon\0\0\0", 8) == 0)
            data[i + 8] = 9;
    tempdir_write(other, data, size);
    process_result r = TENON(NULL, "kernels", "--only-plugins", folder);
    ck_assert_int_eq(r.status, 3);
    ck_assert_msg(strstr(r.out, NORM) && strstr(r.out, "/other.so: refused: "), "%s", r.out);
    ck_assert_msg(strncmp(process_said(&r), "tenon: ", 7) == 0 && strstr(r.err, "1 of 3 plugins cannot be used; "),
                  "%s", r.err);
    r = TENON(NULL, "kernels", "--only-plugins", folder, "--json", "--quiet");
    printed_json(&r, 3);
    /* Elsewhere it is a warning. */
    r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder);
    ck_assert_int_eq(r.status, 0);
    suite_expect_in(r.err, "/other.so: refused: ");
    r = TENON(NULL, "inspect", MODEL, "--only-plugins", folder, "--quiet");
    ck_assert_int_eq(r.status, 0);
    ck_assert_msg(strstr(r.err, "/other.so: refused: ") && !strstr(r.err, "/text.so"), "%s", r.err);
    free(data);
}
END_TEST

START_TEST(kernels_asked_for_by_name)
{
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--kernels=npu_fused_rmsnrm"), 3,
                         "kernel 'npu_fused_rmsnrm' not found; did you mean '" NORM "'?", NULL);
    process_expect_error(TENON(NULL, "inspect", "tests/data/models/qwen3", "--kernels=npu_fused_moe"), 3,
                         "npu_fused_moe", NULL);
    process_expect_error(TENON(NULL, "verify", MODEL, "--kernels=none"), 2, "nothing to verify", NULL);
    char *empty = tempdir_new();
    process_expect_error(TENON(NULL, "verify", MODEL, "--only-plugins", empty, "--quiet"), 3, "no kernel took a site",
                         NULL);
    ck_assert_int_eq(chmod(empty, 0777), 0);
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--only-plugins", empty), 3, empty, "writable", NULL);
}
END_TEST

START_TEST(no_kernels_in_spite_of_a_bad_folder)
{
    char *folder = tempdir_new();
    ck_assert_int_eq(chmod(folder, 0777), 0);
    process_result r =
        TENON(NULL, "run", "--temperature=0", MODEL, "And", "-n2", "--kernels=none", "--only-plugins", folder);
    ck_assert_int_eq(r.status, 0);
    ck_assert_msg(strstr(r.err, "tenon: warning: ") == r.err && strstr(r.err, "writable"), "%s", r.err);
}
END_TEST

/* ---- inspect ---------------------------------------------------------------------------------------- */

START_TEST(inspect_prints_tree_and_reasons)
{
    const char *const tree[] = {"Qwen3MoeForCausalLM", "Qwen3MoeSparseMoeBlock", "apply_rotary_pos_emb", "* ", NULL};
    const char *const reasons[] = {"+ npu_fused_moe: takes it\n",
                                   "- npu_fused_moe: covered: npu_fused_moe has the MOE_BLOCK",
                                   "+ cpu_linear: takes it\n", NULL};
    const char *const missing[] = {"\nno implementation for ", "LINEAR (20 sites)", "ATTENTION (4 sites)", NULL};
    const char *const memory[] = {"\nmemory:\n",
                                  "weights, mapped",
                                  "weights, packed by kernels",
                                  "KV cache, 100 positions",
                                  "KV cache per 1000 positions",
                                  NULL};
    process_result r = TENON(NULL, "inspect", MODEL);
    expect_words(&r, tree);
    ck_assert_ptr_null(strstr(r.out, "+ cpu_linear: takes it"));
    ck_assert_str_eq(process_said(&r), "");
    r = TENON(NULL, "inspect", MODEL, "--explain");
    expect_words(&r, tree);
    expect_words(&r, reasons);
    ck_assert_ptr_null(strstr(r.out, "op: site has"));
    char *folder = mixed_folder();
    r = TENON(NULL, "inspect", MODEL, "--explain", "--only-plugins", folder);
    expect_words(&r, missing);
    r = TENON(NULL, "inspect", MODEL, "--kernels=none");
    ck_assert_int_eq(r.status, 0);
    ck_assert_ptr_null(strstr(r.out, NORM));
    r = TENON(NULL, "inspect", MODEL, "--memory", "--context=100");
    expect_words(&r, memory);
}
END_TEST

START_TEST(inspect_prints_other_formats)
{
    process_result r = TENON(NULL, "inspect", MODEL, "--format=json", "--memory");
    json_t *root = printed_json(&r, 0);
    const json_t *memory = json_object_get(root, "memory");
    ck_assert_str_eq(printed_string(root, "model_type"), "qwen3_moe");
    ck_assert(printed_number(memory, "weight_bytes") > 5e6 && printed_number(memory, "cache_bytes") > 0);
    ck_assert(printed_number(memory, "cache_bytes_per_1000") * 512 == printed_number(memory, "cache_bytes") * 1000);
    ck_assert_uint_eq(json_array_size(json_object_get(memory, "packed")), 0); /* none of these packs */
    ck_assert(printed_number(memory, "context") == 512 && printed_number(memory, "arena_bytes") > 0);
    r = TENON(NULL, "inspect", MODEL, "--format=dot");
    ck_assert_int_eq(r.status, 0);
    ck_assert_int_eq(strncmp(r.out, "digraph ", 8), 0);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--format=dot", "--memory"), 2, "--memory goes with", NULL);
    const char *path = getenv("PATH");
    char *before = strdup(path ? path : "/usr/bin:/bin");
    if (system("dot -V > /dev/null 2>&1") == 0) {
        r = TENON(NULL, "inspect", MODEL, "--format=svg");
        ck_assert_msg(r.status == 0 && strstr(r.out, "<svg") && strstr(r.out, "</svg>"), "%s", r.err);
    } else {
        puts("SKIPPED drawings: dot is not installed");
    }
    setenv("PATH", "/nonexistent", 1);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--kernels=none", "--format=svg"), 2, "needs Graphviz",
                         "install", NULL);
    setenv("PATH", before, 1);
    free(before);
}
END_TEST

/* ---- verify, bench, embed ----------------------------------------------------------------------------- */

START_TEST(verify_prints_the_figures)
{
    process_result r = TENON(NULL, "verify", MODEL, "--kernels=" NORM);
    const char *const words[] = {"KERNEL", "LARGEST ERROR", "TOLERANCE", NORM "  RMS_NORM ", "passed\n", NULL};
    expect_words(&r, words);
    r = TENON(NULL, "verify", MODEL, "--kernels=" NORM, "--json");
    json_t *root = printed_json(&r, 0);
    const json_t *row = json_array_get(json_object_get(root, "results"), 0);
    ck_assert(json_is_true(json_object_get(root, "passed")) && json_is_true(json_object_get(row, "passed")));
    ck_assert_str_eq(printed_string(row, "kernel"), NORM);
    ck_assert(printed_number(row, "sites") == 9 && printed_number(row, "tolerance_ulps") > 0);
    ck_assert(printed_number(row, "largest_error") <= 1 && printed_number(row, "eager_seconds") > 0);
    row = json_array_get(json_object_get(root, "results"), 1);
    ck_assert(!strcmp(printed_string(row, "op"), "ADD_RMS_NORM") && printed_number(row, "sites") == 8);
    r = TENON(NULL, "verify", MODEL, "--kernels=" NORM, "--training");
    expect_words(&r, words);
}
END_TEST

START_TEST(bench_measures_both_sides)
{
    process_result r =
        TENON(NULL, "bench", MODEL, "--prompt=16,8", "--decode=3", "--context=5", "--repeat=1", "--json");
    json_t *root = printed_json(&r, 0), *result;
    const json_t *results = json_object_get(root, "results"), *machine = json_object_get(root, "machine");
    static const struct {
        const char *kernels, *phase;
        int tokens, context;
    } wanted[] = {{"auto", "prompt", 16, 0}, {"none", "prompt", 16, 0}, {"auto", "prompt", 8, 0},
                  {"none", "prompt", 8, 0},  {"auto", "decode", 3, 5},  {"none", "decode", 3, 5}};
    size_t i;
    ck_assert_uint_eq(json_array_size(results), 6);
    json_array_foreach (results, i, result) {
        ck_assert_str_eq(printed_string(result, "kernels"), wanted[i].kernels);
        ck_assert_str_eq(printed_string(result, "phase"), wanted[i].phase);
        ck_assert(printed_number(result, "tokens") == wanted[i].tokens &&
                  printed_number(result, "context") == wanted[i].context);
        ck_assert(printed_number(result, "tokens_per_second") > 0 && printed_number(result, "median_seconds") > 0);
        ck_assert(printed_number(result, "best_seconds") <= printed_number(result, "median_seconds"));
        ck_assert(printed_number(result, "worst_seconds") >= printed_number(result, "median_seconds"));
    }
    ck_assert_uint_gt(strlen(printed_string(machine, "cpu")), 0);
    ck_assert(printed_number(machine, "threads") >= 1 && printed_number(machine, "memory_read_gb_per_second") > 0);
    ck_assert(printed_number(json_object_get(root, "memory"), "peak_bytes") > 0);
    r = TENON(NULL, "bench", MODEL, "--prompt=8", "--decode=2", "--repeat=1", "--against=" NORM, "--threads=1");
    const char *const words[] = {"machine: ", " 1 thread, last cache ", "memory, read", "SPEED-UP\n",     "\nprompt ",
                                 "\ndecode ", NORM ", TOKENS/S",        "KV cache",     "packed by auto", NULL};
    expect_words(&r, words);
}
END_TEST

/* Both sides of a case agree on whether they overlap, and the table says where they do. */
START_TEST(bench_shows_the_spread)
{
    process_result r = TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=4", "--repeat=2", "--json");
    json_t *root = printed_json(&r, 0);
    const json_t *results = json_object_get(root, "results");
    for (size_t i = 0; i < json_array_size(results); i += 2) {
        const json_t *a = json_array_get(results, i), *b = json_array_get(results, i + 1);
        const json_t *const sides[] = {a, b};
        for (int s = 0; s < 2; s++) {
            double low = printed_number(sides[s], "lower_quartile_seconds"),
                   high = printed_number(sides[s], "upper_quartile_seconds");
            double median = printed_number(sides[s], "median_seconds");
            ck_assert(printed_number(sides[s], "best_seconds") <= low && low <= median);
            ck_assert(median <= high && high <= printed_number(sides[s], "worst_seconds"));
        }
        bool apart = printed_number(a, "upper_quartile_seconds") < printed_number(b, "lower_quartile_seconds") ||
                     printed_number(b, "upper_quartile_seconds") < printed_number(a, "lower_quartile_seconds");
        bool overlap = printed_number(a, "samples") < 3 || !apart;
        ck_assert_int_eq(json_is_true(json_object_get(a, "overlap")), overlap);
        ck_assert_int_eq(json_is_true(json_object_get(b, "overlap")), overlap);
    }
    r = TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=0", "--repeat=1", "--against=auto");
    const char *const words[] = {"  SPREAD  ", "\nmedians; SPREAD is the middle half of the measurements; ?", NULL};
    expect_words(&r, words);
    ck_assert_int_eq(strstr(r.out, "x ?\n") != NULL,
                     strstr(r.err, "warning: bench: the spreads of the two sides overlap in 1 of 1 cases") != NULL);
}
END_TEST

START_TEST(bench_refuses_what_does_not_fit)
{
    process_expect_error(TENON(NULL, "bench", MODEL, "--prompt=513"), 4,
                         "513 positions are needed, and the model is made for 512", "--context", NULL);
    process_expect_error(TENON(NULL, "bench", MODEL, "--prompt=500", "--decode=13"), 4, "513 positions", NULL);
    process_expect_error(TENON(NULL, "bench", MODEL, "--prompt=0"), 2, "--prompt: a length of 0 is out of range", NULL);
    process_expect_error(TENON(NULL, "bench", MODEL, "--prompt=a"), 2, "--prompt: 'a' is not a whole number; give some",
                         NULL);
}
END_TEST

START_TEST(embedding_example_says_the_same)
{
    char line[16384], out[4096] = "";
    snprintf(line, sizeof line, "%s/examples/embed %s %s 'And it came to pass' 2>/dev/null", process_build(), MODEL,
             plugins());
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t length = fread(out, 1, sizeof out - 1, pipe);
    ck_assert_int_eq(pclose(pipe), 0);
    ck_assert_uint_gt(length, 20);
    process_expect_output(TENON(NULL, "run", "--temperature=0", MODEL, "And it came to pass", "-n48"), out);
    snprintf(line, sizeof line, "%s/examples/embed /nonexistent %s x >/dev/null 2>&1", process_build(), plugins());
    int status = system(line);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 4);
}
END_TEST

/* ---- trials without a filter ------------------------------------------------------------------------------------ */

static size_t count_of(const char *text, const char *words)
{
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        count++;
    return count;
}

/* The line stands where one looks, once, and nowhere else. */
static void expect_unfiltered(const char *why)
{
    char line[256], plugin[4300];
    snprintf(line, sizeof line, "plugins are tried without a filter of system calls: %s\n", why);
    snprintf(plugin, sizeof plugin, "%s/npu_rope.so", plugins());
    process_result r = TENON(NULL, "--version");
    ck_assert_msg(r.status == 0 && count_of(r.out, why[0] ? line : "filter of") == (why[0] != 0), "%s%s", r.out, r.err);
    r = TENON(NULL, "kernels", "--only-plugins", plugins());
    ck_assert_msg(r.status == 0 && count_of(r.err, why[0] ? line : "filter of") == (why[0] != 0), "%s%s", r.out, r.err);
    r = TENON(NULL, "check", plugin, "--quick", "--site", "1");
    ck_assert_msg(r.status == 0 && count_of(r.err, why[0] ? line : "filter of") == (why[0] != 0), "%s%s", r.out, r.err);
    r = TENON(NULL, "inspect", MODEL, "--only-plugins", plugins());
    ck_assert_msg(r.status == 0 && count_of(r.err, "filter of system calls") == 0, "%s%s", r.out, r.err);
}

START_TEST(a_missing_filter_is_told)
{
#ifdef TN_SECCOMP
    if (tn_trial_unfiltered()) {
        printf("SKIPPED: %s\n", tn_trial_unfiltered());
        return;
    }
    expect_unfiltered("");
    /* From here on no process takes another filter. */
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    ck_assert_ptr_nonnull(filter);
    ck_assert_int_eq(seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(seccomp), 0), 0);
    ck_assert_int_eq(
        seccomp_rule_add(filter, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(prctl), 1, SCMP_A0(SCMP_CMP_EQ, PR_SET_SECCOMP, 0)),
        0);
    ck_assert_int_eq(seccomp_load(filter), 0);
    seccomp_release(filter);
    expect_unfiltered("this system takes no filter");
#else
    expect_unfiltered("libtenon was built without libseccomp");
#endif
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: kernels", 600);
    suite_add(all, kernels_of_the_build_are_found, the_line_of_kernels_is_short, a_missing_filter_is_told,
              the_configuration_names_the_folders, a_file_that_is_no_plugin_is_listed,
              a_broken_plugin_shows_in_the_exit_status, kernels_asked_for_by_name, no_kernels_in_spite_of_a_bad_folder,
              inspect_prints_tree_and_reasons, inspect_prints_other_formats, verify_prints_the_figures,
              bench_measures_both_sides, bench_shows_the_spread, bench_refuses_what_does_not_fit,
              embedding_example_says_the_same);
    return process_main();
}
